"""No store: sessions live in their snapshots alone, and what came since the last flush can be lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from miniclaw_sessions.core.stores.base import Append
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.errors import StoreError


class NoStore(MemoryStore):
    """A store that acknowledges every append at once, and keeps nothing."""

    keeps_entries: ClassVar[bool] = False

    def __repr__(self) -> str:
        return "<NoStore>"

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        """Acknowledge, and keep nothing."""
        return [None] * len(appends)
