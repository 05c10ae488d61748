"""Searching without an index: every entry is read, and only the hits of one page are held."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Protocol

from anyio import to_thread

from miniclaw_sessions.core.history.search import Found, Hit, Place, Search, cursor_of, place_of
from miniclaw_sessions.core.history.searched import hit
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.reading import PAGE, Transcripts, readable
from miniclaw_sessions.core.stores.records import SessionHead, StoredEntry, StoredHead
from miniclaw_sessions.errors import SessionUnavailable

_IN_A_THREAD = 65_536
"""A page with this many bytes is looked through in a thread, because it would block the event loop."""


_ESCAPED = set('"\\/')


NO_INDEX = "this store has no index, so every message was read"


class Scanned(Transcripts, Protocol):
    """What can be searched by reading it."""

    async def head(self, session_id: str) -> StoredHead | None:
        """One session, or None."""
        ...


async def scan(store: Scanned, search: Search, note: str = NO_INDEX) -> Found:
    """Read every entry of the searched sessions; the newest matches are the page.

    Sessions that cannot be read now are left out.

    Args:
        store: the store to search.
        search: what to search for.
        note: why there is no index.

    Raises:
        InvalidSearch: the cursor is not one of a scan.
        StoreError: the store cannot be read.
    """
    newest = Newest(search)
    async for stored in _heads(store, search):
        if search.covers(stored.head.session_id, stored.head.key):
            with suppress(SessionUnavailable):
                await _look_at_all(store, stored.head, newest)
    return newest.found(note)


async def _look_at_all(store: Scanned, head: SessionHead, newest: Newest) -> None:
    after = 0
    while page := await store.read(head.session_id, after=after, limit=PAGE):
        if sum(len(entry.encoded) for entry in page) < _IN_A_THREAD:
            newest.look_at(head.session_id, head.key, page)
        else:
            await to_thread.run_sync(newest.look_at, head.session_id, head.key, page)
        after = page[-1].sequence


async def _heads(store: Scanned, search: Search) -> AsyncIterator[StoredHead]:
    if search.session_ids is None:
        async for stored in store.heads():
            yield stored
        return
    for session_id in sorted(search.session_ids):
        one = None
        with suppress(SessionUnavailable):
            one = await store.head(session_id)
        if one is not None:
            yield one


class Newest:
    """Collects the newest hits among entries that come in any order."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._below = None if search.cursor is None else place_of(search.cursor)
        self._last = None if search.until is None else place_of(search.until)
        self._words = plain_words(search)
        self._hits: list[tuple[Place, Hit]] = []  # a heap, the oldest first
        self._left_out = False

    def look_at(self, session_id: str, key: SessionKey, page: Sequence[StoredEntry]) -> None:
        """Take the matches among some entries of one session."""
        for entry in readable(stored for stored in page if may_fit(stored.encoded, self._words)):
            found = hit(self._search, session_id, key, entry)
            if found is None or (self._below is not None and found.place >= self._below):
                continue
            if self._last is not None and found.place < self._last:
                continue
            if len(self._hits) < self._search.limit:
                heapq.heappush(self._hits, (found.place, found))
                continue
            self._left_out = True
            if found.place > self._hits[0][0]:
                heapq.heapreplace(self._hits, (found.place, found))

    def found(self, note: str = NO_INDEX) -> Found:
        """The page."""
        hits = tuple(hit for _, hit in sorted(self._hits, reverse=True))
        cursor = cursor_of(hits[-1].place) if self._left_out else self._search.until
        return Found(hits=hits, cursor=cursor, note=note)


def may_fit(encoded: bytes, words: Sequence[bytes]) -> bool:
    """Whether an entry may match, judged by its bytes; most entries need not be decoded.

    Args:
        encoded: its JSON.
        words: the `plain_words` of the search.
    """
    if not words or not encoded.isascii() or b"\\u" in encoded:
        return True
    lower = encoded.lower()
    return all(word in lower for word in words)


def plain_words(search: Search) -> list[bytes]:
    """The words that the JSON of an ASCII text must contain if the text contains all terms.

    A text that is not ASCII may contain such a word in its folded form only. Words with characters that JSON may escape
    are left out.
    """
    words = {word for term in search.terms for word in term.split()}
    return [word.encode() for word in words if word.isascii() and not _ESCAPED & set(word)]
