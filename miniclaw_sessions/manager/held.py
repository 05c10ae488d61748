"""The sessions that a manager holds: made, loaded, given up, each under one key and once only.

The dict of sessions is guarded by one lock for creation. A key whose session is being loaded or deleted, or is being
put together by a fork or an import, is in nobody's hands until that is done: whoever asks for it waits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial

import anyio
from anyio.lowlevel import checkpoint

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.disk import is_no_space
from miniclaw_sessions.errors import ManagerClosed, SessionExists, SessionLimit, StoreFull, StoreUnavailable
from miniclaw_sessions.history.conversation import Conversation
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.manager.residents import Queue, Residents
from miniclaw_sessions.persistence.background import Background
from miniclaw_sessions.persistence.committer import Committer, anew
from miniclaw_sessions.persistence.flusher import Flusher
from miniclaw_sessions.persistence.recovery import RecoveryReport, catch_up
from miniclaw_sessions.persistence.snapshots import Snapshots
from miniclaw_sessions.persistence.workspace import Workspace
from miniclaw_sessions.protocol.entries import INCOMPLETE
from miniclaw_sessions.protocol.keys import SessionKey
from miniclaw_sessions.session import Journal, Session
from miniclaw_sessions.stores.base import Store

LEARNED_AT_ONCE = 10_000
"""How many files' times are noted before others run."""

log = get_logger(__name__)


class ManagerHome:
    """A manager as the home of its sessions."""

    def __init__(self, manager: HeldSessions, committer: Committer, flusher: Flusher, store: Store) -> None:
        self.clock = manager.clock
        self.committer = committer
        self.flusher = flusher
        self.store = store
        self.max_message_bytes = manager.settings.max_message_bytes
        self._manager = manager

    def new_journal(self, key: SessionKey, *, purpose: str) -> AbstractAsyncContextManager[Journal]:
        """A new session of the manager."""
        return self._manager.new_journal(key, purpose=purpose)


class HeldSessions:
    """The live sessions of an open manager, and how they come and go."""

    _files: Workspace
    _store: Store
    _snapshots: Snapshots
    _committer: Committer
    _flusher: Flusher
    _home: ManagerHome
    _background: Background

    def __init__(self, settings: SessionSettings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.recovery = RecoveryReport()
        self._residents = Residents(settings.max_resident)
        self._lock = anyio.Lock()
        self._busy: dict[str, anyio.Event] = {}
        self._in_the_making = 0
        self._unfinished: dict[str, Session] = {}  # what is left of them could not be removed yet
        self._stack: AsyncExitStack | None = None
        self._closed = False
        self._evicted_of_gone = 0

    def __len__(self) -> int:
        return len(self._residents)

    def __bool__(self) -> bool:
        return True  # a manager without sessions is one all the same

    def _require_open(self) -> None:
        if self._stack is None or self._closed:
            raise ManagerClosed("the session manager is not open; use `async with SessionManager(...)`")

    def _create(self, key: SessionKey, agent_id: str | None) -> Session:
        session = self._new(key, dirty=agent_id is None)
        if agent_id is not None:  # which may be refused: until then nobody may know of the session
            session.update(agent_id=agent_id)
        self._admit(session)
        return session

    def _admit(self, session: Session) -> None:
        """A session is in memory from here on; if that makes too many, the dirty ones are saved so that some can go."""
        if not self._residents.add(session):
            self._flusher.hurry()

    def _new(self, key: SessionKey, *, dirty: bool = False, created_at: datetime | None = None) -> Session:
        limit = self.settings.max_sessions
        if len(self._residents) + self._in_the_making >= limit:
            raise SessionLimit(f"there are {limit} sessions already (max_sessions); delete some or raise the limit")
        conversation = Conversation(
            key,
            incarnation=self.clock.new_id(),
            created_at=created_at or self.clock.now(),
            capacity=self.settings.window,
        )
        return Session(Journal(conversation, self._home, dirty=dirty))

    def _session(self, conversation: Conversation, *, dirty: bool) -> Session:
        """The session of what the store has."""
        return Session(Journal(conversation, self._home, committed=conversation.last_sequence, dirty=dirty))

    def _usable(self, session_id: str) -> Session | None:
        """The live session, unless it is being deleted or the store has refused it."""
        session = self._residents.get(session_id)
        is_usable = session is not None and session.journal.log.rejected is None and session_id not in self._busy
        return session if is_usable else None

    async def _wake(self, session_id: str) -> Session | None:
        """The live session, loaded if it sleeps; None when there is none. However many ask, one loads it.

        Raises:
            SnapshotUnreadable, SchemaTooNew, QuarantineFull: its file is there and must not be touched; it was not.
            StoreError: the store cannot be read.
        """
        while self._residents.is_asleep(session_id):
            if (busy := self._busy.get(session_id)) is not None:
                await busy.wait()
                self._require_open()
                continue
            self._busy[session_id] = anyio.Event()
            try:
                await self._make_room()
                await self._load(session_id)
            finally:
                self._busy.pop(session_id).set()
        return self._residents.get(session_id)

    async def _load(self, session_id: str) -> None:
        report = await self._files.load(session_id)
        self._require_open()
        self.recovery.quarantined += report.quarantined
        self.recovery.rebuilt += report.rebuilt
        self.recovery.brought_up += report.brought_up
        self.recovery.written_back += report.written_back
        found = report.sessions.pop(session_id, None)
        self._residents.put_to_sleep(report.sessions)
        if found is None:
            self._residents.remove(session_id)  # somebody else deleted its files
            return
        conversation = found.conversation
        conversation.last_accessed = self._residents.last_use(session_id, conversation.last_accessed)
        session = self._session(conversation, dirty=found.dirty)
        if INCOMPLETE in session.metadata:
            self._residents.remove(session_id)
            await self._discard(session)
        else:
            self._residents.woken += 1
            self._admit(session)

    async def _queue(self) -> Queue:
        """All sessions and when they were last used; of those that sleep, their files tell."""
        if not self._residents.knows_times:
            times = await self._snapshots.modified()
            self._residents.knows_times = True
            for start in range(0, len(times), LEARNED_AT_ONCE):
                self._residents.learn_times(times[start : start + LEARNED_AT_ONCE])
                await checkpoint()
        return self._residents.queue()

    async def _make_room(self) -> None:
        """Wait for a flush when sessions change faster than they are saved: the memory has a bound.

        Raises:
            StoreFull, StoreUnavailable: they cannot be saved.
        """
        if self._residents.awake < 2 * self.settings.max_resident:
            return
        await self._flusher.flush()
        crowded = not self._residents.shrink()
        if crowded and self._flusher.problem is not None:
            raise anew(self._flusher.problem, "no more sessions can be in memory until they are saved")

    async def _reload(self, refused: Session) -> Session | None:
        """The store refused a session's entries: go on from what the store has, as a new object for the same key.

        None when it is being deleted, or was deleted meanwhile. When the store cannot be read, nothing has changed.
        """
        session_id = refused.session_id
        stored = await self._store.head(session_id)
        head = stored.head if stored is not None else refused.journal.log.head
        conversation = Conversation(
            head.key, incarnation=head.incarnation, created_at=head.created_at, capacity=self.settings.window
        )
        await catch_up(conversation, self._store)
        if self._residents.get(session_id) is not refused or session_id in self._busy:
            return None
        refused.journal.retire()
        self._flusher.remove(refused.journal)
        self._evicted_of_gone += refused.journal.evicted
        session = self._session(conversation, dirty=True)
        self._admit(session)
        log.warning("reloaded from the store", action="session.reloaded", session_id=session.session_id)
        return session

    @asynccontextmanager
    async def new_session(
        self, key: SessionKey, *, purpose: str, created_at: datetime | None = None
    ) -> AsyncIterator[Session]:
        """A session that nobody else sees until the block has ended well; else nothing of it is left.

        Its content is committed as it comes, however much that is. After a crash in between, the next start removes it.

        Args:
            key: its key.
            purpose: what makes it: fork or import.
            created_at: when it began; by default now.

        Raises:
            SessionExists: there is a session with this key, or one is being made.
            SessionLimit: there are `max_sessions` sessions already.
            StoreError: it could not be stored; nothing of it is left.
        """
        session_id = key.session_id
        async with self._lock:
            self._require_open()
            await self._clear(session_id)
            if session_id in self._residents or session_id in self._busy:
                raise SessionExists(f"session {session_id!r} exists already; delete it first, or choose another name")
            session = self._new(key, created_at=created_at)
            self._busy[session_id] = anyio.Event()
            self._in_the_making += 1
        try:
            session.journal.note({INCOMPLETE: purpose})
            yield session
            session.journal.note({INCOMPLETE: None})
            await session.journal.settle()
            await session.saved()
            self._admit(session)
        except BaseException:
            await self._background.complete(partial(self._discard, session))
            raise
        finally:
            self._in_the_making -= 1
            self._busy.pop(session_id).set()

    @asynccontextmanager
    async def new_journal(self, key: SessionKey, *, purpose: str) -> AsyncIterator[Journal]:
        """`new_session` for a session that makes another one."""
        async with self.new_session(key, purpose=purpose) as session:
            yield session.journal

    async def _remove_unfinished(self) -> None:
        """Finish what a crash interrupted: half a fork or half an import is no session."""
        for session in [one for one in self._residents.live() if INCOMPLETE in one.metadata]:
            purpose = session.metadata[INCOMPLETE]
            log.warning("unfinished", action="session.unfinished", session_id=session.session_id, purpose=purpose)
            self._residents.remove(session.session_id)
            await self._discard(session)

    async def _discard(self, session: Session) -> None:
        """Remove what there is of a session that was never finished; if it cannot be removed, whoever comes next does.

        That is whoever wants its key, or else the next start.
        """
        try:
            await self._committer.drain()  # the store may have recovered without anybody having tried
            await self._erase(session)
            self._unfinished.pop(session.session_id, None)
        except (StoreUnavailable, OSError) as error:
            self._flusher.remove(session.journal)
            self._unfinished[session.session_id] = session
            log.error(
                "an unfinished session could not be removed; it is tried again",
                action="session.unfinished",
                session_id=session.session_id,
                error=str(error),
            )

    async def _clear(self, session_id: str) -> None:
        """Make sure that nothing unfinished is left under a key: a new session would continue it.

        Raises:
            StoreUnavailable: it cannot be removed now.
        """
        if (session := self._unfinished.get(session_id)) is None:
            return
        await self._background.complete(partial(self._discard, session))
        if session_id in self._unfinished:
            raise StoreUnavailable(
                f"session {session_id!r} cannot be made: what is left of an interrupted import or fork cannot be "
                "removed while the store fails; try again later"
            )

    async def _remove(self, session: Session) -> None:
        """Take a session out of memory and off the disk; on failure it is back as it was.

        A task of the manager does it, because nothing keeps asyncio's own cancellation from the caller's: the file
        would be gone and the transcript not.
        """
        if self._stack is None:
            raise ManagerClosed(f"the session manager was closed; session {session.session_id} is as it was")
        self._busy[session.session_id] = anyio.Event()
        await self._background.complete(partial(self._remove_now, session))

    async def _remove_now(self, session: Session) -> None:
        session_id = session.session_id
        try:
            await self._erase(session)
            self._evicted_of_gone += session.journal.evicted
            self._residents.remove(session_id)
        except OSError as error:
            session.journal.revive()
            kind = StoreFull if is_no_space(error) else StoreUnavailable
            raise kind(f"session {session_id} could not be deleted: {error.strerror}; it is as it was") from error
        except BaseException:
            session.journal.revive()
            raise
        finally:
            self._busy.pop(session_id).set()

    async def _erase(self, session: Session) -> None:
        """Take a session's file and transcript off the disk, once it is quiet; it takes nothing more."""
        session.journal.retire()
        if session.journal.log.rejected is None:
            await self._committer.wait(session.journal.log, session.last_sequence)
        self._flusher.remove(session.journal)
        async with self._flusher.lock:
            await self._snapshots.remove(session.session_id)
            await self._store.delete(session.session_id)
