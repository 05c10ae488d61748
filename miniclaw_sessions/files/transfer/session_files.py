"""What a workspace without transcripts has, as a source to copy: the newest messages, from its session files."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from datetime import datetime

from miniclaw_sessions.clock import SystemClock, derived_id
from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.persistence.recovery import missing_entries, read_snapshot
from miniclaw_sessions.core.persistence.snapshots import SUFFIX, Snapshots
from miniclaw_sessions.core.stores.base import Append, StoredEntry, StoredHead


class SessionFiles:
    """The sessions of a directory of session files: a `Transcripts` of `copy_store`.

    A session's entries are those that recovery would give to a store that has lost it: the messages of the file's
    window, their summary, and the metadata. They are the same ones whenever the same file is read.
    """

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._newest: Append | None = None

    async def session_ids(self) -> list[str]:
        """The ids of all sessions, in order."""
        return sorted(name.removesuffix(SUFFIX) for name in await self._snapshots.names())

    async def heads(self) -> AsyncIterator[StoredHead]:
        """All sessions whose files can be read."""
        for session_id in await self.session_ids():
            found = await self._load(session_id)
            if found is not None:
                yield StoredHead(found.head, found.entries[-1].sequence)

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """The entries after a sequence, oldest first."""
        found = self._newest
        if found is None or found.head.session_id != session_id:
            found = await self._load(session_id)
        entries = [entry for entry in (found.entries if found is not None else ()) if entry.sequence > after]
        return entries[:limit]

    async def _load(self, session_id: str) -> Append | None:
        snapshot = await read_snapshot(self._snapshots, session_id, SystemClock())
        if snapshot is None or snapshot.state.session_id != session_id:
            return None
        state = snapshot.state
        clock = _Still(state.last_accessed, f"{state.incarnation} {state.last_sequence}")
        conversation = Conversation.from_snapshot(snapshot, capacity=max(len(snapshot.kept), 2))
        self._newest = missing_entries(snapshot, conversation, 0, clock)
        return self._newest


class _Still(SystemClock):
    """A clock that stands where the file was written, and gives the ids that follow from it."""

    def __init__(self, at: datetime, of: str) -> None:
        super().__init__()
        self._at = at
        self._of = of

    def now(self) -> datetime:
        """When the session was used last."""
        return self._at

    def new_id(self) -> str:
        """Always the same one."""
        return derived_id(hashlib.sha256(self._of.encode()).hexdigest())
