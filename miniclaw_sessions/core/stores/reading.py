"""Reading transcripts of any length, a page at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from typing import Protocol

from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.core.stores.records import StoredEntry, StoredHead, decode_stored
from miniclaw_sessions.errors import InvalidMessage

PAGE = 500
"""How many entries are read from a store at a time."""


class Readable(Protocol):
    """A source of entries, which are read a page at a time."""

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """The entries with a sequence greater than `after`, oldest first, at most `limit` of them."""
        ...


class Transcripts(Readable, Protocol):
    """What can be copied: a store, or what is left of one."""

    def heads(self) -> AsyncIterator[StoredHead]:
        """All readable sessions, in order of session_id."""
        ...

    async def session_ids(self) -> list[str]:
        """The ids of all sessions, including unreadable ones."""
        ...


async def read_all(store: Readable, session_id: str, *, after: int = 0) -> AsyncIterator[StoredEntry]:
    """The entries with a sequence greater than `after`, oldest first, including entries that are added meanwhile."""
    while page := await store.read(session_id, after=after, limit=PAGE):
        for stored in page:
            yield stored
        after = page[-1].sequence


def readable(page: Iterable[StoredEntry]) -> Iterator[Entry]:
    """The decoded entries, with their sequences; damaged ones are left out."""
    for stored in page:
        with suppress(InvalidMessage):
            yield decode_stored(stored)


def close_together(sequences: Iterable[int], most: int) -> Iterator[tuple[int, int]]:
    """Groups of sequences, each to be read in one page of at most `most` entries: the first and the last of each."""
    wanted = sorted(set(sequences), reverse=True)
    while wanted:
        first = last = wanted.pop()
        while wanted and wanted[-1] < first + most:
            last = wanted.pop()
        yield first, last


async def find_by_reading(store: Readable, session_id: str, entry_id: str) -> StoredEntry | None:
    """The entry with this id, or None; reads them all."""
    async for stored in read_all(store, session_id):
        if stored.entry_id == entry_id:
            return stored
    return None
