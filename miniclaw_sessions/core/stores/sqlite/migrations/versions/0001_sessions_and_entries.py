"""Sessions and their entries."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG_INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make the tables of the first version."""
    op.create_table(
        "sessions",
        sa.Column("id", BIG_INTEGER, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("channel", sa.Text, nullable=False),
        sa.Column("chat_id", sa.Text, nullable=False),
        sa.Column("incarnation", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
        sa.UniqueConstraint("session_id", name="uq_sessions_session_id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "entries",
        sa.Column("position", BIG_INTEGER, autoincrement=False, nullable=False),
        sa.Column("session", BIG_INTEGER, nullable=False),
        sa.Column("sequence", BIG_INTEGER, nullable=False),
        sa.Column("entry_id", sa.Text, nullable=False),
        sa.Column("encoded", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("position", name="pk_entries"),
    )
    op.create_table(
        "places",
        sa.Column("session", BIG_INTEGER, autoincrement=False, nullable=False),
        sa.Column("sequence", BIG_INTEGER, autoincrement=False, nullable=False),
        sa.Column("position", BIG_INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("session", "sequence", name="pk_places"),
        sqlite_with_rowid=False,
    )
    placed = op.create_table(
        "placed",
        sa.Column("up_to", BIG_INTEGER, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("up_to", name="pk_placed"),
    )
    op.bulk_insert(placed, [{"up_to": 0}])


def downgrade() -> None:
    """There is no way back: a store that lost its entries would be no store."""
    raise NotImplementedError("the first version cannot be undone; restore a backup instead")
