"""What is kept and what is not: deleting sessions so that nothing of them is left, and the hold that forbids it."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial

from miniclaw_sessions.core.manager.reader import SessionReader
from miniclaw_sessions.core.manager.registry import SessionRegistry
from miniclaw_sessions.core.persistence.archive import Archive
from miniclaw_sessions.core.persistence.storage import Storage
from miniclaw_sessions.core.protocol.entries import FOLLOWED, LEGAL_HOLD
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.stores.base import Store
from miniclaw_sessions.errors import StoreUnavailable
from miniclaw_sessions.log import get_logger

log = get_logger(__name__)


class SessionKeeper(SessionReader):
    """A part of the manager."""

    _registry: SessionRegistry
    _archive: Archive
    _storage: Storage
    _store: Store
    _also_at: dict[str, dict[str, None]]  # of deleted sessions: where else their words are

    @abstractmethod
    def _require_open(self) -> None:
        """Raise ManagerClosed unless it is open."""

    @property
    def archive(self) -> Archive:
        """What has expired.

        Raises:
            ManagerClosed: the manager is not open.
        """
        self._require_open()
        return self._archive

    async def hold(self, session_id: str, reason: str | None) -> Session:
        """Put a session under legal hold: nothing deletes it, and it does not expire, until that ends with None.

        Raises:
            SessionNotFound: there is none; an expired one can be held after `restore`.
            StoreUnavailable: it could not be written down.
        """
        self._require_open()
        session = await self.find(session_id)
        session.journal.note({LEGAL_HOLD: reason})
        await session.saved()
        log.info("legal hold", action="session.held", session_id=session_id, held=reason is not None)
        return session

    async def delete(self, session_id: str, *, if_sequence: int | None = None) -> bool:
        """Delete a session: from memory, its file, its quarantined copies and its transcript; whether there was one.

        Waits for the session's open turn. When it returns, a crash does not bring the session back. What was said may
        be in the store's log until `purge`.

        Raises:
            LeafMoved: its last sequence number is not `if_sequence` (None: whatever it is); nothing was changed.
            SessionHeld: it is under legal hold; nothing was changed.
            StoreUnavailable: not all of it could be deleted, its archived copies last; delete it again.
            TurnInProgress: this very task holds the session's turn.
        """
        self._require_open()
        journal = await self._registry.load(session_id)
        if journal is None and await self._registry.is_in_the_making(session_id):
            raise StoreUnavailable(
                f"session {session_id!r} is being imported, forked or restored by another process; delete it afterwards"
            )
        if journal is None:
            return await self._archive.forget(session_id) > 0
        async with journal.between_turns():
            if journal.is_deleted:
                return False
            copies = partial(self._archive.forget, session_id)
            await self._registry.remove(journal, if_sequence=if_sequence, afterwards=copies)
            if isinstance(source := journal.conversation.state.metadata.get(FOLLOWED), dict):
                self._also_at[session_id] = {f"{source.get('path')} is another program's: remove it there": None}
        log.info("deleted", action="session.deleted", session_id=session_id)
        return True

    async def purge(self, *session_ids: str) -> list[str]:
        """After `delete`: leave their words in no file that is in use, and return what may still hold them.

        The store's log is emptied; archived copies, and damaged ones that were set aside, go. Backups are named where
        they are known; forks and exports are others' business. To be called again where something remains.

        Raises:
            StoreUnavailable: it could not be done.
        """
        self._require_open()
        remains: dict[str, None] = {}
        for place, session_id in enumerate(session_ids):
            await self._archive.forget(session_id, anew=place == 0)
            remains.update(self._also_at.pop(session_id, {}))
            remains.update(dict.fromkeys(await self._storage.purge(session_id)))
        if not await self._store.purge():
            remains[self._storage.log_remains] = None
        return list(remains)
