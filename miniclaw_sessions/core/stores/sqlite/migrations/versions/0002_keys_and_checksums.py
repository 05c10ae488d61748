"""Idempotency keys that are found again, and a checksum in every new row."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from miniclaw_sessions.core.stores.base import idempotency_key_in
from miniclaw_sessions.core.stores.sqlite.statements import driver_of

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BIG_INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_FILL = "UPDATE entries SET idempotency_key = key_in(encoded) WHERE key_in(encoded) IS NOT NULL"
_INDEX = """
INSERT OR IGNORE INTO idempotency_keys (session, idempotency_key, sequence)
SELECT session, idempotency_key, sequence FROM entries
WHERE idempotency_key IS NOT NULL AND position <= (SELECT up_to FROM placed) ORDER BY session, sequence
"""


def upgrade() -> None:
    """Add both columns and the index; existing entries get their keys, but no checksum, which could only be guessed.

    The keys of encrypted entries cannot be read here: they are found again after a `rekey`.
    """
    op.add_column("entries", sa.Column("idempotency_key", sa.Text, nullable=True))
    op.add_column("entries", sa.Column("checksum", BIG_INTEGER, nullable=True))
    op.create_table(
        "idempotency_keys",
        sa.Column("session", BIG_INTEGER, autoincrement=False, nullable=False),
        sa.Column("idempotency_key", sa.Text, nullable=False),
        sa.Column("sequence", BIG_INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("session", "idempotency_key", name="pk_idempotency_keys"),
        sqlite_with_rowid=False,
    )
    driver_of(op.get_bind()).create_function("key_in", 1, idempotency_key_in, deterministic=True)
    op.execute(_FILL)
    op.execute(_INDEX)


def downgrade() -> None:
    """There is no way back: keys that are forgotten would let a message in twice."""
    raise NotImplementedError("this version cannot be undone; restore a backup instead")
