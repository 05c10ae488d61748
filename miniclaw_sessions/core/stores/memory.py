"""Transcripts in memory, for tests: the contract of `stores.base` in its shortest form."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Mapping, Sequence
from operator import attrgetter
from typing import ClassVar, NamedTuple

from anyio.lowlevel import checkpoint

from miniclaw_sessions.core.stores.base import LOST, Append, SessionHead, Store, StoredEntry, StoredHead, entries_to_add
from miniclaw_sessions.core.stores.checking import check_transcripts
from miniclaw_sessions.errors import StoreConflict, StoreError

_sequence = attrgetter("sequence")


class MemoryStore(Store):
    """A dict of lists. Closing it keeps them, so a test may open it again and find its entries."""

    durable: ClassVar[bool] = False
    keeps_entries: ClassVar[bool] = True

    def __init__(self) -> None:
        self._sessions: dict[str, _Transcript] = {}

    def __repr__(self) -> str:
        return f"<MemoryStore {len(self._sessions)} sessions>"

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        """Append the new entries, each session by itself."""
        await checkpoint()
        return [self.add(append) for append in appends]

    def add(self, append: Append) -> StoreConflict | None:
        """Append one session's entries, synchronously. Returns the conflict, if there is one."""
        transcript = self._sessions.get(append.head.session_id)
        entries = transcript.entries if transcript else []
        try:
            new = entries_to_add(
                append,
                incarnation=transcript.head.incarnation if transcript else None,
                last_sequence=_last(entries),
                ids_between=lambda first, last: _ids_between(entries, first, last),
            )
        except StoreConflict as conflict:
            return conflict
        entries.extend(new)
        self._sessions.setdefault(append.head.session_id, _Transcript(append.head, entries))
        return None

    async def heads(self) -> AsyncIterator[StoredHead]:
        """All sessions in order of session_id, each in the state when it is reached."""
        for session_id in sorted(self._sessions):
            if (stored := await self.head(session_id)) is not None:
                yield stored

    async def session_ids(self) -> list[str]:
        """The ids of all sessions, in order."""
        await checkpoint()
        return sorted(self._sessions)

    async def head(self, session_id: str) -> StoredHead | None:
        """One session, or None."""
        await checkpoint()
        transcript = self._sessions.get(session_id)
        return StoredHead(transcript.head, _last(transcript.entries)) if transcript else None

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """The entries after a sequence, oldest first."""
        await checkpoint()
        entries = self._entries(session_id)
        start = bisect_right(entries, after, key=_sequence)
        return entries[start:] if limit is None else entries[start : start + max(limit, 0)]

    async def read_newest(self, session_id: str, limit: int) -> list[StoredEntry]:
        """The newest entries, oldest first."""
        await checkpoint()
        return self._entries(session_id)[-limit:] if limit > 0 else []

    async def find(self, session_id: str, entry_id: str) -> StoredEntry | None:
        """The entry with this id, or None."""
        await checkpoint()
        return next((entry for entry in self._entries(session_id) if entry.entry_id == entry_id), None)

    async def find_by_idempotency_key(self, session_id: str, key: str) -> StoredEntry | None:
        """The oldest entry with this key, or None."""
        await checkpoint()
        return next((entry for entry in self._entries(session_id) if entry.idempotency_key == key), None)

    async def mend(self, session_id: str, candidates: Sequence[StoredEntry]) -> int:
        """Replace lost entries; memory has no checksums."""
        await checkpoint()
        stored, right = self._entries(session_id), {entry.sequence: entry for entry in reversed(candidates)}
        wrong = [n for n, entry in enumerate(stored) if entry.encoded == LOST and entry.sequence in right]
        for number in wrong:
            stored[number] = right[stored[number].sequence]
        return len(wrong)

    async def delete(self, session_id: str, *, known: StoredHead | None = None) -> bool:  # noqa: ARG002 - never shared
        """Remove a session. Returns whether there was one."""
        await checkpoint()
        return self._sessions.pop(session_id, None) is not None

    async def check(self) -> list[str]:
        """Check every transcript."""
        await checkpoint()
        return await check_transcripts(self, self.heads())

    def _entries(self, session_id: str) -> list[StoredEntry]:
        transcript = self._sessions.get(session_id)
        return transcript.entries if transcript else []


class _Transcript(NamedTuple):
    head: SessionHead
    entries: list[StoredEntry]


def _last(entries: Sequence[StoredEntry]) -> int:
    return entries[-1].sequence if entries else 0


def _ids_between(entries: Sequence[StoredEntry], first: int, last: int) -> Mapping[int, str]:
    start, end = bisect_left(entries, first, key=_sequence), bisect_right(entries, last, key=_sequence)
    return {entry.sequence: entry.entry_id for entry in entries[start:end]}
