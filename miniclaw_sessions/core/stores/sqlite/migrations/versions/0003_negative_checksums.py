"""Another form of checksum for new rows; versions before would take them for damaged."""

from __future__ import annotations

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change nothing: the sign of a checksum shows its form (`stores.sql.checksums`)."""


def downgrade() -> None:
    """There is no way back: an older version would repair what is right."""
    raise NotImplementedError("this version cannot be undone; restore a backup instead")
