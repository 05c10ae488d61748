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
    """Make the two tables of the first version."""
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
        sa.Column("session", BIG_INTEGER, nullable=False),
        sa.Column("sequence", BIG_INTEGER, autoincrement=False, nullable=False),
        sa.Column("entry_id", sa.Text, nullable=False),
        sa.Column("encoded", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("session", "sequence", name="pk_entries"),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name="fk_entries_session"),
    )


def downgrade() -> None:
    """There is no way back: a store that lost its entries would be no store."""
    raise NotImplementedError("the first version cannot be undone; restore a backup instead")
