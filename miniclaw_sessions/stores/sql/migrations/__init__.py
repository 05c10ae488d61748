"""How the schema came to be, step by step; a store brings its database to the newest step when it is opened.

Whether anything is to be done is known from one plain query, so Alembic, which is slow to import, is only loaded when a
database is new or old.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection

REVISIONS = ("0001", "0002", "0003")
"""All versions of the schema, oldest first."""


def upgrade(connection: Connection) -> None:
    """Bring the schema to the newest version, within the connection's transaction."""
    from alembic import command  # noqa: PLC0415 - see above
    from alembic.config import Config  # noqa: PLC0415 - same

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    command.upgrade(config, REVISIONS[-1])
