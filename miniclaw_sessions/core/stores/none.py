"""No store at all: the bare card. The snapshots are all there is, and what came since the last flush can be lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from miniclaw_sessions.core.stores.base import Append
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.errors import StoreError


class NoStore(MemoryStore):
    """A memory in which nothing is ever put: it acknowledges everything at once, and keeps none of it."""

    keeps_entries: ClassVar[bool] = False

    def __repr__(self) -> str:
        return "<NoStore>"

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        """Acknowledge, and forget."""
        return [None] * len(appends)
