"""SessionManager: opens, shares, commits, flushes, expires and closes the sessions of one directory or database.

    async with SessionManager("~/.miniclaw/workspace") as manager:
        session = await manager.get_or_create("telegram", "123456789")
        await session.add_message(Message.user("Hello miniclaw!"))

It is composed of its storage, the registry (one live object for each key, with its cache), the committer, the flusher
and the expiry, which run in the background. There is never more than one live object for a key. Opening takes the
directory's lock, opens the store and recovers; closing commits and flushes.

On a database that several gateways share (`postgresql:`) all is in there, and no directory is needed:

    async with SessionManager(store="postgresql://chat@db.example/sessions") as manager:
        ...
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cached_property, partial
from itertools import islice
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import msgspec

from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.events.events import Events
from miniclaw_sessions.core.manager import reading
from miniclaw_sessions.core.manager.archived import forget_copies, restore
from miniclaw_sessions.core.manager.choosing import choose, mode_of
from miniclaw_sessions.core.manager.expiry import Expiry, SweepReport
from miniclaw_sessions.core.manager.registry import SessionRegistry
from miniclaw_sessions.core.manager.saving import Saving
from miniclaw_sessions.core.manager.sources import LiveSource
from miniclaw_sessions.core.persistence.archive import Archive
from miniclaw_sessions.core.persistence.checking import CheckReport
from miniclaw_sessions.core.persistence.flusher import FlushReport
from miniclaw_sessions.core.persistence.mending import Mended
from miniclaw_sessions.core.persistence.own_task import Background, HeldOpen
from miniclaw_sessions.core.persistence.recovery import Progress, RecoveryReport
from miniclaw_sessions.core.persistence.storage import Storage
from miniclaw_sessions.core.protocol.entries import FOLLOWED, LEGAL_HOLD
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session import Journal, Owner, Session, guarded
from miniclaw_sessions.core.session.copying import copy_session
from miniclaw_sessions.core.stores.base import Store
from miniclaw_sessions.core.stores.positions import ListPosition
from miniclaw_sessions.core.stores.wrapping import WatchedStore
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import (
    ManagerClosed,
    SessionDeleted,
    SessionNotFound,
    StoreError,
    StoreUnavailable,
)
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.statistics import Health, ManagerStatistics

FEW_RECENT = 10
"""How many sessions are read to find the one used last; the first may just have been deleted."""

LISTED_LOSSES = 20
"""At most this many sessions that have lost something are named by `health`."""

log = get_logger(__name__)


@guarded(attrgetter("_owner"), anywhere=("statistics", "health"))
class SessionManager:
    """The sessions of one directory or database; an async context manager that any task may enter, and any other leave.

    Attributes:
        workspace: the directory; None without one.
        events: what happens to its sessions: topics to subscribe to, the live tail of one session, the feed of all.
    """

    _storage: Storage
    _store: WatchedStore
    _registry: SessionRegistry
    _saving: Saving
    _background: Background

    def __init__(  # noqa: PLR0913 - one argument per thing that a user may choose
        self,
        workspace: str | Path | None = None,
        *,
        settings: SessionSettings | None = None,
        store: str | Store | None = None,
        clock: Clock | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        encryption: KeyRing | None = None,
        create: bool = True,
        wait_s: float = 0.0,
    ) -> None:
        """Nothing is opened yet.

        Args:
            workspace: the directory, by default `~/.miniclaw/workspace`; or the URL of a database that several
                processes share, which is as if it was given as `store`. Beside such a store nothing is in a directory.
            settings: see `SessionSettings`; its defaults by default.
            store: a store, or the URL of one, instead of `settings.store`.
            clock: time and ids; the machine's by default.
            on_progress: called during recovery, flushes and checks, on the event loop.
            encryption: the keys that everything is encrypted with; None: nothing is.
            create: make the workspace if it is missing.
            wait_s: seconds to wait for another process that has the directory, before DirectoryInUse is raised.
        """
        self.settings = settings or SessionSettings()
        self.clock = clock or SystemClock()
        self._choice = choose(workspace, store if store is not None else self.settings.store)
        self.workspace = self._choice.directory
        self._watcher = on_progress or (lambda _: None)
        self.recovery = RecoveryReport()
        self._mode, self._cache = mode_of(
            self._choice,
            self.settings,
            clock=self.clock,
            encryption=encryption,
            on_progress=self.on_progress,
            create=create,
            wait_s=wait_s,
        )
        self.events = Events(
            self.clock, locate=self._end_of, store=lambda: self.source.store, making=self._cache.making
        )
        self._also_at: dict[str, list[str]] = {}  # of deleted sessions: where else their words are
        self._held: HeldOpen[None] | None = None
        self._owner: Owner | None = None  # while it is open
        self._closed = False
        self._patience: anyio.CancelScope | None = None  # of closing

    def __repr__(self) -> str:
        state = "closed" if self._held is None else "open"
        where = self.workspace or "of a shared store"
        return f"<SessionManager {where}, {len(self)} sessions, {state}>"

    @property
    def source(self) -> LiveSource:
        """The live sessions and what they are stored in, for the functions of other modules that take a manager.

        Raises:
            ManagerClosed: the manager is not open.
            WrongThread: it belongs to another thread or event loop.
        """
        self._require_open()
        self._registry.owner.check()
        return self._source

    @cached_property
    def _source(self) -> LiveSource:
        return LiveSource(self._registry, self._storage)

    @property
    def store(self) -> Store:
        """The store, for copies of it; changing it behind the sessions' backs would harm them. Raises ManagerClosed."""
        self._require_open(or_closed=True)
        return self._store

    @property
    def archive(self) -> Archive:
        """What has expired. Raises ManagerClosed."""
        self._require_open()
        return self._storage.archive

    def __len__(self) -> int:
        return len(self._cache)

    def __bool__(self) -> bool:
        return True  # a manager without sessions is one all the same

    def _require_open(self, *, or_closed: bool = False) -> None:
        if (self._closed and not or_closed) or (self._held is None and not self._closed):
            raise ManagerClosed("the session manager is not open; use `async with SessionManager(...)`")

    async def _end_of(self, session_id: str) -> tuple[int, str | None]:
        """Where a session's transcript ends in the store, and its incarnation; None: the store does not have it."""
        journal = (await self.find(session_id)).journal
        last = journal.committed_sequence
        return last, journal.incarnation if last else None

    async def count(self) -> int:
        """How many sessions there are; of a shared store it is asked, and `len` gives what was counted last."""
        self._require_open()
        return await self._mode.count()

    # --- opening and closing -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Lock the directory, open the store, recover, start the background tasks.

        Raises:
            DirectoryInUse: another process has the directory, and did not let it go within `wait_s`.
            SnapshotUnreadable, SchemaTooNew, QuarantineFull: something is there that must not be touched; it was not.
            StoreError: the store cannot be opened.
            NotAWorkspace: there is no workspace, or the directory is another program's; it was not touched.
            ConfigError: the store's URL is not one, or the directory cannot be used.
            WrongKey, KeyNeeded, NotEncrypted: the keys do not go with what is there; it was not touched.
        """
        if self._closed:
            raise ManagerClosed("a closed session manager is not opened again; make a new one")
        held = HeldOpen(self._opened(), name="sessions")
        await held.__aenter__()
        self._held, self._owner = held, self._registry.owner
        return self

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        # the storage encloses the tasks: the directory is let go only when none of them can write any more
        async with self._mode.new_storage() as storage, anyio.create_task_group() as tasks:
            self._compose(storage, Background(tasks, self.clock))
            self._background.start(self.events.run, name="events")
            self._saving.start(self._background)
            self._background.start(self._expiry.run, name="expiry")
            for name, task in self._mode.tasks():
                self._background.start(task, name=name)
            try:
                await self._registry.remove_unfinished()
                with anyio.CancelScope(shield=True):  # after every failure or cancellation: `close` saves first
                    yield
            except BaseException:
                self._background.cut_off()
                raise
            if not self._closed:  # its opener was cancelled just then, and cannot close it
                self._background.cut_off()

    def _compose(self, storage: Storage, background: Background) -> None:
        settings, clock = self.settings, self.clock
        self._storage, self._background = storage, background
        self._store = storage.store
        self._saving = Saving(
            storage,
            settings=settings,
            clock=clock,
            on_progress=self.on_progress,
            topics=self.events,
            look_s=self._mode.look_s,
        )
        self.events.open(self._store, self._mode.make_feed)
        self.events.flushes.subscribe(lambda _: self._cache.evict())  # what was dirty may leave the memory now
        self._registry = SessionRegistry(
            storage,
            self._saving,
            background,
            settings=settings,
            clock=clock,
            cache=self._cache,
            events=self.events,
            mode=self._mode,
        )
        self._registry.adopt(storage.sessions, storage.on_disk)
        storage.sessions, storage.on_disk = {}, {}
        self._expiry = Expiry(self._registry, storage, settings=settings, clock=clock)
        self.recovery = report = storage.report
        log.info(
            "recovered",
            action="recovery.done",
            sessions=len(self),
            cached=self._cache.cached,
            messages=report.messages,
            brought_up=report.brought_up,
            rebuilt=report.rebuilt,
            written_back=report.written_back,
            quarantined=len(report.quarantined),
            ignored=len(report.ignored),
            seconds=round(report.seconds, 3),
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; when the body already failed, what could not be saved is logged instead of raised."""
        try:
            await self.close()
        except StoreError as unsaved:
            if error is None:
                raise
            log.error("not everything was saved", action="shutdown.unsaved", error=str(unsaved))

    async def close(self) -> None:
        """Accept nothing more, commit and flush everything, let the directory go. A second call waits for the first.

        Runs to its end even when the caller is being cancelled, as long as it advances every `shutdown_timeout_s`
        seconds; only a disk that hangs within a call of the system can hold it longer. Any task may call it.

        Raises:
            StoreFull, StoreUnavailable: something accepted, or some snapshot, could not be saved.
        """
        if (held := self._held) is None:
            return
        if self._closed:
            await held.watch()
            return
        self._closed = True
        self._registry.close()
        self.events.stop()
        self._saving.committer.accepting = False
        try:
            await self._background.complete(self._wind_down)
        finally:  # asyncio itself may cancel the caller: without this, the lock would stay and a task write on
            try:
                await held.__aexit__(None, None, None)
            finally:  # a task or the storage may fail at its end: the manager is closed all the same
                self._held = self._owner = None
        self._saving.refuse_to_forget(
            session.queue.rejected for session in self._cache.in_memory() if session.queue.rejected
        )

    async def _wind_down(self) -> None:
        with anyio.move_on_after(self.settings.shutdown_timeout_s) as self._patience:
            self._expiry.close()  # first: it may change last uses, which the last flush writes
            await self._saving.finish()
            await self._background.ended()
        self._background.cut_off()

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def get_or_create(
        self,
        channel: str,
        chat_id: str | int,
        *,
        agent_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Session:
        """The session of this chat, created if needed. Renews its time to live.

        Any number of tasks may ask for the same chat at once: all get the same object. A new session is written at the
        next flush, or by `await session.saved()`, and is in the store from its first entry on.

        Args:
            channel: where the conversation takes place, such as telegram.
            chat_id: which chat of the channel it is; a number becomes its decimal text.
            agent_id: stored with the session if it is new.
            metadata: title and other fields that are stored with the session if it is new.

        Raises:
            InvalidKey: the channel or chat id cannot name a session.
            InvalidMessage: it is new, and its metadata cannot be stored; there is no session then.
            SessionLimit: there are `max_sessions` sessions already.
            ManagerClosed: the manager is not open.
            StoreError: the store had refused this session's entries, and what it has instead cannot be read now.
        """
        self._require_open()
        key = SessionKey.of(channel, chat_id)
        session_id = key.session_id
        journal = await self._registry.fresh(session_id)
        if journal is None:
            if self.settings.restore_archived and not await self._registry.exists(session_id):
                await self._source.restore_if_archived(session_id)
            given = {**(metadata or {}), **({} if agent_id is None else {"agent_id": agent_id})}
            journal = await self._registry.get_or_create(key, given)
        used_before = journal.last_accessed
        journal.checkpoint.touch()
        await self._expiry.renewed(session_id, used_before)
        return Session.of(journal)

    get = reading.get
    find = reading.find
    list = reading.list_sessions
    search = reading.search
    usage = reading.usage
    get_session_history = reading.get_session_history

    async def restore(self, session_id: str) -> Session:
        """Bring an expired session back from the archive, whole, under its old key; its time to live starts again.

        Raises:
            NotArchived: the archive has no such session.
            SessionExists: there is a session of this id already; rename or delete that first.
            ImportRefused, DamagedSeal, WrongKey: the archived file is damaged or another key's; it stays.
            SessionLimit, StoreError: the session could not be made; the archived file stays.
        """
        self._require_open()
        return await restore(self._registry, self._storage.archive, session_id)

    async def put(self, session: Session) -> Session:
        """Return when everything of a session is acknowledged, in Dive's words.

        Sessions of this manager save themselves; this waits for it, and is `Session.saved`. A session from elsewhere,
        such as a fork of `Session.new()` or another manager's, is copied: go on with the copy, which is returned and is
        what this manager gives for its id from now on.

        Raises:
            SessionExists: this manager has another session of that id; nothing was stored.
            SessionDeleted: the session was deleted or has expired.
            ManagerClosed: the manager is not open.
            StoreError: it cannot be saved now.
        """
        self._require_open()
        known = await self._registry.load(session.session_id)
        if known is session.journal:
            await session.saved()
            return session
        if session.journal.is_deleted:
            raise SessionDeleted(f"session {session.session_id} was deleted; it cannot be put")
        async with self._registry.new_journal(session.key, purpose="put", created_at=session.created_at) as copy:
            await copy_session(session.journal, copy, None)
        return Session.of(copy)

    async def continue_recent(self, *, channel: str | None = None) -> Session:
        """The session that was used last, of all or of one channel; renews its time to live.

        Raises:
            SessionNotFound: it does not exist.
            ManagerClosed: the manager is not open.
        """
        self._require_open()
        behind: ListPosition | None = None
        while page := await self._source.newest(channel=channel, limit=FEW_RECENT, behind=behind):
            for _, session_id in page:
                recent = await self._registry.load(session_id)
                if (
                    recent is not None
                    and recent is self._registry.usable(session_id)
                    and channel in (None, recent.key.channel)
                ):
                    return await self.get_or_create(recent.key.channel, recent.key.chat_id)
            behind = page[-1]
        raise SessionNotFound("" if channel is None else f"{channel}_...")

    async def acknowledge_losses(self, session_id: str | None = None) -> int:
        """Report no more what one session lost, or all of them; returns the number of sessions.

        Raises:
            StoreUnavailable: it could not be written down; the losses are still reported.
            ManagerClosed: the manager is not open.
        """
        self._require_open()
        return await self._storage.acknowledge_losses(session_id)

    async def hold(self, session_id: str, reason: str | None) -> Session:
        """Put a session under legal hold: nothing deletes it, and it does not expire, until that ends with None.

        Raises:
            SessionNotFound: it does not exist; an expired one can be held after `restore`.
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

        Waits for the session's open turn, and while it is imported, forked or restored. When it returns, a crash does
        not bring the session back. What was said may be in the store's log until `purge`.

        Raises:
            LeafMoved: its last sequence number is not `if_sequence` (None: any number); nothing was changed.
            SessionHeld: it is under legal hold; nothing was changed.
            StoreUnavailable: not all of it could be deleted, its archived copies last; delete it again.
            TurnInProgress: this very task holds the session's turn.
        """
        self._require_open()
        while (journal := await self._registry.load(session_id)) is None:
            if await self._registry.is_in_the_making(session_id):
                raise StoreUnavailable(
                    f"session {session_id!r} is being imported, forked or restored by another process; "
                    "delete it afterwards"
                )
            copies = await forget_copies(self._registry, self._storage.archive, session_id)
            if copies is not None:
                return copies > 0
        incarnation = journal.incarnation
        while journal is not None and journal.incarnation == incarnation:
            async with journal.between_turns():
                if not journal.is_deleted and await self._remove(journal, if_sequence):
                    return True
            journal = await self._registry.load(session_id)  # the same session, if the store had refused its entries
        return False

    async def _remove(self, journal: Journal, if_sequence: int | None) -> bool:
        session_id = journal.session_id
        copies = partial(self._storage.archive.forget, session_id)
        if not await self._registry.remove(journal, if_sequence=if_sequence, afterwards=copies):
            return False
        if isinstance(source := journal.conversation.state.metadata.get(FOLLOWED), dict):
            self._also_at[session_id] = [f"{source.get('path')} is another program's: remove it there"]
        log.info("deleted", action="session.deleted", session_id=session_id)
        return True

    async def purge(self, *session_ids: str) -> builtins.list[str]:
        """After `delete`: leave their words in no file that is in use, and return what may still hold them.

        The store's log is emptied; archived copies, and damaged ones that were set aside, go. Backups are named where
        they are known; forks and exports are others' business. To be called again where something remains.

        Raises:
            StoreUnavailable: it could not be done.
        """
        self._require_open()
        remains: dict[str, None] = {}
        for place, session_id in enumerate(session_ids):
            await self._storage.archive.forget(session_id, look_again=place == 0)
            also_at = self._also_at.pop(session_id, [])
            remains.update(dict.fromkeys([*also_at, *await self._storage.purge(session_id)]))
        if not await self._store.purge():
            remains[self._storage.log_remains] = None
        return [*remains]

    # --- upkeep ------------------------------------------------------------------------------------------------------

    async def flush(self) -> FlushReport:
        """Commit what was accepted and write every dirty session's snapshot, now.

        Raises:
            StoreFull, StoreUnavailable: not everything could be committed; the snapshots of what is committed are
                written all the same.
            ManagerClosed: the manager is not open.
        """
        self._require_open()
        report = await self._saving.flusher.flush()
        await self._saving.committer.check_store()
        return report

    async def sweep(self, *, dry_run: bool = False) -> SweepReport:
        """Expire idle sessions now: archive them if the setting says so, then delete them.

        Never a session with an open turn. Does nothing while the clock is in doubt.

        Args:
            dry_run: change nothing, and list what would expire.
        """
        self._require_open()
        report = await self._expiry.sweep(dry_run=dry_run)
        remains = [self._storage.log_remains] if self._expiry.is_to_be_purged and not dry_run else []
        return msgspec.structs.replace(report, remains=remains)

    async def check(self) -> CheckReport:
        """Verify every snapshot against the store; changes nothing."""
        self._require_open()
        async with self._saving.flusher.lock:
            return await self._storage.check(self._store, self.on_progress)

    async def repair(self) -> Mended:
        """Write what the session files have whole over what is damaged in the store; reads all of both.

        Raises:
            StoreError: the store cannot be read or written.
            ManagerClosed: the manager is not open.
        """
        await self.flush()
        async with self._saving.flusher.lock:
            return await self._storage.repair(self._store)

    def statistics(self) -> ManagerStatistics:
        """The manager's numbers at this moment, or when it was closed. Raises ManagerClosed before it is open."""
        self._require_open(or_closed=True)
        return ManagerStatistics(
            **self._saving.numbers,
            sessions=len(self),
            cached=self._cache.cached,
            cache_loads=self._cache.loads,
            cache_evictions=self._cache.evictions,
            messages_in_memory=sum(len(one.conversation.window) for one in self._cache.in_memory()),
            evicted_from_window=self._registry.evicted_of_gone + sum(one.evicted for one in self._cache.in_memory()),
            recovered=self.recovery.from_snapshots + self.recovery.rebuilt,
            quarantined=len(self.recovery.quarantined),
            expired=self._expiry.expired,
            followers=self.events.followers,
            store=self._choice.name,
        )

    def health(self) -> Health:
        """Whether messages can be acknowledged and snapshots written."""
        if self._held is None or self._closed:
            return Health(ok=False, store=self._choice.name, store_state="closed", problems=["the manager is not open"])
        problems = self._saving.problems
        if (failure := self._background.failure) is not None:
            problems.append(f"a part of the session manager has failed ({type(failure).__name__}); restart the program")
        losses = [loss.sentence(session_id) for session_id, loss in islice(self._storage.losses.items(), LISTED_LOSSES)]
        return Health(
            ok=not problems, store=self._choice.name, store_state=self._saving.state, problems=problems, losses=losses
        )

    @property
    def progressed_at(self) -> float:
        """The monotonic second at which committer, flusher and all others were last known to be alive: see `Saving`."""
        self._require_open(or_closed=True)
        return min(self._saving.progressed_at, self._background.failed_at)

    def on_progress(self, progress: Progress) -> None:
        """Report progress to the watcher that was given, and let `close` wait longer. Never raises."""
        if self._patience is not None:
            self._patience.deadline = anyio.current_time() + self.settings.shutdown_timeout_s
        try:
            self._watcher(progress)
        except Exception as error:  # noqa: BLE001 - an observer must not fail the observed work
            log.warning("telling the progress failed", action="progress.failed", error=type(error).__name__)
