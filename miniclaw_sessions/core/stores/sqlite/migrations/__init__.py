"""The migrations of the schema; a store upgrades its database when it is opened.

One plain query finds the version, and a new database gets the newest schema at once. So Alembic, which is slow to
import, is only loaded for an old database.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sqlalchemy import Connection, insert
from sqlalchemy.dialects.sqlite import dialect
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from miniclaw_sessions.core.stores.sqlite.tables import METADATA, PLACED

REVISIONS = ("0001", "0002", "0003")
"""All versions of the schema, oldest first."""


_VERSION_TABLE = (
    "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
    "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
)


def create(connection: Connection) -> None:
    """Make the newest schema in an empty database, as `upgrade` would, within the connection's transaction."""
    connection.exec_driver_sql(_VERSION_TABLE)
    connection.exec_driver_sql("INSERT INTO alembic_version VALUES (?)", (REVISIONS[-1],))
    for statement in _schema():
        connection.exec_driver_sql(statement)
    connection.execute(insert(PLACED).values(up_to=0))


@cache
def _schema() -> list[str]:
    """What `create_all` does, which would compile it again for each database; a salvage counts on its order."""
    tables = METADATA.tables.values()
    made: list[ExecutableDDLElement] = [CreateTable(table) for table in tables]
    made += [CreateIndex(index) for table in tables for index in sorted(table.indexes, key=lambda one: str(one.name))]
    return [str(one.compile(dialect=dialect())) for one in made]


def upgrade(connection: Connection) -> None:
    """Bring the schema to the newest version, within the connection's transaction."""
    from alembic import command  # noqa: PLC0415 - slow to load, and only for an older schema
    from alembic.config import Config  # noqa: PLC0415 - same

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    command.upgrade(config, REVISIONS[-1])
