"""Checks of stored transcripts, one entry after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable

from miniclaw_sessions.core.stores.base import LOST, StoredEntry, StoredHead, decode_stored
from miniclaw_sessions.core.stores.reading import Readable, read_all
from miniclaw_sessions.encryption import is_sealed
from miniclaw_sessions.errors import InvalidMessage, KeyMismatch, SessionUnavailable, StoreCorrupt

RESTORED = "restored_from_snapshot"
"""A field in the `extra` of entries that recovery wrote after a store was lost: gaps before them are known."""


class TranscriptCheck:
    """Checks that a session's entries are numbered from 1 without gaps, have unique ids, and are readable.

    Feed it all entries in order of sequence, then read `problems`.
    """

    def __init__(self, session_id: str, *, opens_seals: bool = False) -> None:
        """Begin with a session.

        Args:
            session_id: the session of the entries.
            opens_seals: whether the caller opens sealed entries before it feeds them, so that an entry that is still
                sealed is damaged. Otherwise a transcript with sealed entries is not judged.
        """
        self._session_id = session_id
        self._opens_seals = opens_seals
        self._is_closed = False
        self._last = 0
        self._ids: set[str] = set()
        self._gaps: list[str] = []
        self._damage: list[str] = []

    @property
    def problems(self) -> list[str]:
        """The problems of the entries so far, one sentence each; none if all are sound."""
        found = () if self._is_closed else (*self._gaps, *self._damage)
        return [f"session {self._session_id}: {text}" for text in found]

    def feed(self, stored: StoredEntry) -> None:
        """Check the next entry."""
        if not self._opens_seals and is_sealed(stored.encoded):
            self._is_closed = True
            return
        if stored.sequence != self._last + 1:
            self._gaps.append(f"after sequence {self._last} comes {stored.sequence}")
        self._last = stored.sequence
        if stored.entry_id in self._ids:
            self._damage.append(f"entry id {stored.entry_id} occurs again at sequence {stored.sequence}")
        self._ids.add(stored.entry_id)
        if stored.encoded == LOST:
            return  # a known loss: `losses.json` has it until it is acknowledged
        try:
            entry = decode_stored(stored)
        except InvalidMessage as error:
            self._damage.append(f"entry {stored.sequence} is damaged: {error}")
            return
        if entry.id != stored.entry_id:
            self._damage.append(f"entry {stored.sequence} says its id is {entry.id}, stored is {stored.entry_id}")
        if entry.extra and RESTORED in entry.extra:
            self._gaps.clear()


async def check_transcripts(
    store: Readable,
    heads: AsyncIterator[StoredHead],
    own: Awaitable[list[str]] | None = None,
    *,
    opens_seals: bool = False,
) -> list[str]:
    """The problems of a store as a whole, then of each session, one sentence each; unreadable parts are reported too.

    Args:
        store: the store to check.
        heads: its sessions.
        own: finds the problems of the store as a whole; None: it has no such check.
        opens_seals: as for `TranscriptCheck`.
    """
    problems: list[str] = []
    try:
        problems += () if own is None else await own
    except StoreCorrupt as error:
        problems.append(str(error))
    try:
        async for stored in heads:
            problems += await _check_transcript(store, stored, opens_seals=opens_seals)
    except StoreCorrupt as error:
        problems.append(str(error))
    return list(dict.fromkeys(problems))


async def _check_transcript(store: Readable, stored: StoredHead, *, opens_seals: bool) -> list[str]:
    """The problems of one session: of its name, and of its entries."""
    session_id = stored.head.session_id
    check = TranscriptCheck(session_id, opens_seals=opens_seals)
    try:
        async for entry in read_all(store, session_id):
            check.feed(entry)
    except KeyMismatch as error:
        return [str(error)]
    except SessionUnavailable as error:
        return [f"session {session_id}: {error}"]
    if stored.head.key.session_id != session_id:
        return [f"session {session_id}: its channel and chat id make {stored.head.key.session_id}", *check.problems]
    return check.problems
