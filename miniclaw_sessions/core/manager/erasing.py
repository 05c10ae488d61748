"""How a session is taken off the disk: once it is quiet, if it may go, and no more of it than was looked at."""

from __future__ import annotations

from contextlib import suppress

from miniclaw_sessions.core.manager.cache import SessionCache
from miniclaw_sessions.core.manager.mode import Mode
from miniclaw_sessions.core.manager.saving import Saving
from miniclaw_sessions.core.persistence.storage import Storage
from miniclaw_sessions.core.protocol.entries import INCOMPLETE
from miniclaw_sessions.core.session import Journal
from miniclaw_sessions.core.stores.base import StoredHead
from miniclaw_sessions.errors import LeafMoved, SessionHeld, StoreConflict, StoreUnavailable

LOOKS = 20
"""How often a deletion looks again because others have stored something meanwhile."""


def require_removable(journal: Journal, if_sequence: int | None) -> None:
    """Return if a session may be deleted, as it is known now.

    Raises:
        LeafMoved: its last sequence number is not the one that was demanded.
        SessionHeld: it is under legal hold.
    """
    if if_sequence not in (None, journal.last_sequence):
        raise LeafMoved(f"session {journal.session_id} went on meanwhile; it was not deleted, look at it and try again")
    if journal.legal_hold is not None:
        raise SessionHeld(journal.session_id, journal.legal_hold)


class Eraser:
    """Takes the files and transcripts of one manager's sessions off the disk; these take nothing more."""

    def __init__(self, storage: Storage, saving: Saving, cache: SessionCache, mode: Mode) -> None:
        self._storage = storage
        self._mode = mode
        self._store = saving.store
        self._committer = saving.committer
        self._flusher = saving.flusher
        self._cache = cache

    async def erase(self, journal: Journal, if_sequence: int | None) -> None:
        """Erase a session; where others have gone on with it, not before that is folded in and looked at, too.

        Raises:
            LeafMoved, SessionHeld: it may not be deleted.
            StoreError: it could not be.
        """
        for _ in range(LOOKS):
            try:
                await self._quiet(journal)
                require_removable(journal, if_sequence)  # an entry may have come since the caller looked
                return await self._remove(journal, StoredHead(journal.queue.head, journal.queue.committed))
            except StoreConflict as conflict:
                is_there = await self._mode.give_way(journal, conflict)
            if not is_there:  # another process has deleted it
                return self._flusher.remove(journal)
        raise StoreUnavailable(
            f"session {journal.session_id} was not deleted: other processes go on with it all the time; try again later"
        )

    async def erase_unfinished(self, journal: Journal) -> None:
        """Erase what there is of a session that was never finished, and nothing that others have made or said since."""
        await self._quiet(journal)
        self._flusher.remove(journal)
        # where it was complete for a moment, another process may have used it: what is there is not ours alone
        is_ours = INCOMPLETE in journal.conversation.state.metadata
        stored = await self._store.head(journal.session_id)
        if stored is None or stored.head.incarnation == journal.incarnation:
            with suppress(StoreConflict):
                await self._remove(journal, StoredHead(journal.queue.head, journal.queue.committed if is_ours else 0))
        self._committer.refusals.pop(journal.session_id, None)

    async def _quiet(self, journal: Journal) -> None:
        journal.retire()
        if journal.queue.rejected is None:
            await self._committer.wait(journal.queue, journal.last_sequence)

    async def _remove(self, journal: Journal, known: StoredHead) -> None:
        session_id = journal.session_id
        self._flusher.remove(journal)
        async with self._flusher.lock:  # a flush under way may have captured it, and would write the file again
            await self._storage.checkpoints.remove(session_id)
            if await self._store.delete(session_id, known=known):
                self._cache.names.removed()
        self._committer.refusals.pop(session_id, None)
