"""Reading a transcript of any length, a page at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from miniclaw_sessions.stores.base import StoredEntry

PAGE = 500
"""How many entries are read from a store at a time."""


class Readable(Protocol):
    """What entries can be read from, a page at a time."""

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """The entries with a sequence greater than `after`, oldest first, at most `limit` of them."""
        ...


async def read_all(store: Readable, session_id: str, *, after: int = 0) -> AsyncIterator[StoredEntry]:
    """The entries with a sequence greater than `after`, oldest first; entries that come meanwhile are read too."""
    while page := await store.read(session_id, after=after, limit=PAGE):
        for stored in page:
            yield stored
        after = page[-1].sequence
