"""SessionManager: opens, shares, commits, flushes, expires and closes the sessions of one directory.

    async with SessionManager("~/.miniclaw/workspace") as manager:
        session = await manager.get_or_create("telegram", "123456789")
        await session.add_message(Message.user("Hello miniclaw!"))

Sessions live in one dict, keyed `{channel}_{chat_id}` and guarded by a lock for creation; there is never more than one
live object for a key. Opening takes the directory's lock, opens the store and recovers; closing commits and flushes.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.disk import is_no_space
from miniclaw_sessions.errors import (
    ManagerClosed,
    SessionLimit,
    SessionNotFound,
    StoreError,
    StoreFull,
    StoreUnavailable,
    named,
)
from miniclaw_sessions.events import get_logger
from miniclaw_sessions.history.conversation import Conversation
from miniclaw_sessions.history.window import MAX_MESSAGES, Window
from miniclaw_sessions.persistence.background import Background
from miniclaw_sessions.persistence.checking import Check, CheckReport
from miniclaw_sessions.persistence.committer import Committer
from miniclaw_sessions.persistence.expiry import SweepReport
from miniclaw_sessions.persistence.flusher import Flusher, FlushReport
from miniclaw_sessions.persistence.recovery import Progress, RecoveryReport, catch_up
from miniclaw_sessions.persistence.workspace import Workspace
from miniclaw_sessions.protocol.encoding import decode_entry
from miniclaw_sessions.protocol.entries import Entry
from miniclaw_sessions.protocol.keys import SessionKey, is_session_id
from miniclaw_sessions.protocol.messages import Message
from miniclaw_sessions.session import Services, Session
from miniclaw_sessions.statistics import Health, ManagerStatistics, SessionSummary
from miniclaw_sessions.stores.base import Store
from miniclaw_sessions.stores.reading import read_all
from miniclaw_sessions.sweeper import Sweeper
from miniclaw_sessions.turn import refuse_reentry

DEFAULT_WORKSPACE = Path("~/.miniclaw/workspace")
log = get_logger(__name__)


class SessionManager:
    """The sessions of one directory; an async context manager."""

    def __init__(
        self,
        workspace: str | Path | None = None,
        *,
        settings: SessionSettings | None = None,
        store: str | Store | None = None,
        clock: Clock | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Nothing is opened yet.

        Args:
            workspace: the directory; `~/.miniclaw/workspace` by default.
            settings: see `SessionSettings`; the defaults are the card's.
            store: a store, or the URL of one, instead of `settings.store`.
            clock: time and ids; the machine's by default.
            on_progress: called during recovery, flushes and checks, on the event loop.
        """
        self.workspace = Path(workspace or DEFAULT_WORKSPACE).expanduser().resolve()
        self.settings = settings or SessionSettings()
        self.clock = clock or SystemClock()
        self.on_progress = on_progress or _ignore
        self.recovery = RecoveryReport()
        self._store_choice = store if store is not None else self.settings.store
        self._sessions: dict[str, Session] = {}
        self._lock = anyio.Lock()
        self._leaving: dict[str, anyio.Event] = {}
        self._stack: AsyncExitStack | None = None
        self._closed = False
        self._evicted_of_gone = 0
        self._owner = 0

    def __repr__(self) -> str:
        state = "closed" if self._stack is None else "open"
        return f"<SessionManager {self.workspace}, {len(self._sessions)} sessions, {state}>"

    def __len__(self) -> int:
        return len(self._sessions)

    def __bool__(self) -> bool:
        return True  # a manager without sessions is one all the same

    # --- opening and closing -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Lock the directory, open the store, recover, start the background tasks.

        Raises:
            DirectoryInUse: another process has the directory.
            SnapshotUnreadable, SchemaTooNew, QuarantineFull: something is there that must not be touched; it was not.
            StoreError: the store cannot be opened.
            ConfigError: the store's URL is not one, or the directory cannot be used.
        """
        if self._closed:
            raise ManagerClosed("a closed session manager is not opened again; make a new one")
        async with AsyncExitStack() as stack:
            workspace = Workspace(
                self.workspace, self.settings, self._store_choice, clock=self.clock, on_progress=self._progress
            )
            await stack.enter_async_context(workspace)
            self.recovery, self._store, self._snapshots = workspace.report, workspace.store, workspace.snapshots
            self._committer = Committer(
                self._store, clock=self.clock, max_unsaved_bytes=self.settings.max_unsaved_bytes
            )
            self._flusher = Flusher(
                self._snapshots,
                self._committer,
                clock=self.clock,
                interval_s=self.settings.flush_interval_s,
                on_progress=self._progress,
            )
            self._services = Services(self.clock, self._committer, self._flusher, self.settings.max_message_bytes)
            self._adopt(self.recovery)
            self._sweeper = Sweeper(
                self._sessions,
                self._store,
                settings=self.settings,
                archive_to=self.workspace / "archive",
                clock=self.clock,
                remove=self._remove,
            )
            self._background = Background(await stack.enter_async_context(anyio.create_task_group()))
            self._background.start(self._committer.run, name="committer")
            self._background.start(self._flusher.run, name="flusher")
            self._background.start(self._sweeper.run, name="sweeper")
            self._owner = anyio.get_current_task().id
            self._stack = stack.pop_all()
        return self

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
        """Accept nothing more, commit and flush everything, let the directory go. Safe to call twice.

        Runs to its end even when the caller is being cancelled, for at most `shutdown_timeout_s` seconds; only a disk
        that hangs within a call of the system can hold it longer. Call it in the task that opened the manager.

        Raises:
            StoreFull, StoreUnavailable: something accepted, or some snapshot, could not be saved.
        """
        if self._stack is None or self._closed:
            return
        if anyio.get_current_task().id != self._owner:
            raise RuntimeError(
                "a session manager is closed by the task that opened it; tell that task to leave its block"
            )
        self._closed = True
        self._committer.accepting = False
        try:
            await self._background.complete(self._wind_down)
        finally:  # when asyncio itself cancels the caller, the stack's task group waits for what was begun
            stack, self._stack = self._stack, None
            await stack.aclose()
        self._refuse_to_forget()

    async def _wind_down(self) -> None:
        with anyio.move_on_after(self.settings.shutdown_timeout_s):
            self._sweeper.close()
            await self._save_the_rest()
            self._flusher.close()
            self._committer.close()
            await self._background.ended()
        self._background.cut_off()

    async def _save_the_rest(self) -> None:
        try:
            await self._flusher.flush()
        except Exception as error:  # noqa: BLE001 - closing goes on; _refuse_to_forget tells
            log.error("the last flush failed", action="flush.failed", error=named(error))

    def _refuse_to_forget(self) -> None:
        """An error when something was not saved: silence would be a lie (rule R31)."""
        unsaved, dirty = self._committer.counts.unsaved_entries, self._flusher.dirty
        if not unsaved and not dirty:
            return
        rejected = next((s.log.rejected for s in self._sessions.values() if s.log.rejected is not None), None)
        cause = self._committer.failure or self._flusher.problem or rejected or "time ran out"
        kind = StoreFull if isinstance(cause, StoreFull) else StoreUnavailable
        raise kind(f"closed with {unsaved} messages and {dirty} snapshots unsaved in {self.workspace}: {cause}")

    def _adopt(self, report: RecoveryReport) -> None:
        """Make live sessions of what recovery found."""
        for found in report.sessions.values():
            conversation = found.conversation
            session = Session(conversation, self._services, committed=conversation.last_sequence, dirty=found.dirty)
            self._sessions[session.session_id] = session
        report.sessions = {}
        log.info(
            "recovered",
            action="recovery.done",
            sessions=len(self._sessions),
            messages=report.messages,
            brought_up=report.brought_up,
            rebuilt=report.rebuilt,
            written_back=report.written_back,
            quarantined=len(report.quarantined),
            ignored=len(report.ignored),
            seconds=round(report.seconds, 3),
        )

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def get_or_create(self, channel: str, chat_id: str | int, *, agent_id: str | None = None) -> Session:
        """The session of this chat, made if there is none. Renews its time to live.

        Any number of tasks may ask for the same chat at once: all get the same object. A new session is written at the
        next flush, and is in the store from its first entry on.

        Args:
            channel: where the conversation takes place, such as telegram.
            chat_id: which chat of the channel it is; a number becomes its decimal text.
            agent_id: stored with the session if it is new.

        Raises:
            InvalidKey: the channel or chat id cannot name a session.
            SessionLimit: there are `max_sessions` sessions already.
            ManagerClosed: the manager is not open.
            StoreError: the store had refused this session's entries, and what it has instead cannot be read now.
        """
        self._require_open()
        key = SessionKey.of(channel, chat_id)
        session_id = key.session_id
        session = self._usable(session_id)
        while session is None:
            if (leaving := self._leaving.get(session_id)) is not None:
                await leaving.wait()  # its predecessor is being deleted; its files must be gone first
            async with self._lock:
                self._require_open()
                session = self._usable(session_id)
                if session is None and session_id not in self._leaving:
                    refused = self._sessions.get(session_id)
                    session = self._create(key, agent_id) if refused is None else await self._reload(refused)
        session.touch()
        return session

    async def get(self, channel: str, chat_id: str | int) -> Session:
        """The session of this chat; does not renew its time to live.

        Raises:
            SessionNotFound: there is none.
            InvalidKey: the channel or chat id cannot name a session.
        """
        return await self.find(SessionKey.of(channel, chat_id).session_id)

    async def find(self, session_id: str) -> Session:
        """The session with this id; does not renew its time to live.

        Raises:
            SessionNotFound: there is none.
            InvalidKey: the text does not have the form of a session id.
        """
        self._require_open()
        session = self._sessions.get(session_id)
        if session is None:
            if not is_session_id(session_id):
                SessionKey.parse(session_id)  # says what is wrong with it
            raise SessionNotFound(session_id)
        return session

    async def get_session_history(
        self, channel: str, chat_id: str | int, *, limit: int = MAX_MESSAGES
    ) -> builtins.list[Message]:
        """The newest messages of a chat, oldest first, at most `limit`; never beginning with an orphan tool result.

        Raises:
            SessionNotFound: there is no such session.
        """
        session = await self.get(channel, chat_id)
        if limit <= 0:
            return []
        newest = [entry.message for entry in Window(max(limit, 2), session.entries())][-limit:]
        return newest[1:] if newest and newest[0].is_tool_result else newest

    async def list(self, *, channel: str | None = None) -> builtins.list[SessionSummary]:
        """All sessions, or those of one channel, the most recently used first. Creates and renews nothing."""
        self._require_open()
        chosen = [s for s in self._sessions.values() if channel is None or s.channel == channel]
        chosen.sort(key=lambda session: (session.last_accessed, session.session_id), reverse=True)
        return [summarize(session) for session in chosen]

    async def delete(self, session_id: str) -> bool:
        """Delete a session: from memory, its file, its quarantined copies and its transcript; whether there was one.

        Waits for the session's open turn. When it returns, a crash does not bring the session back.

        Raises:
            StoreUnavailable: it could not be deleted and is as it was.
            TurnInProgress: this very task holds the session's turn.
        """
        self._require_open()
        session = self._sessions.get(session_id)
        if session is None:
            return False
        refuse_reentry(session)
        async with session.turn_lock:
            if session.is_deleted:
                return False
            await self._remove(session)
        log.info("deleted", action="session.deleted", session_id=session_id)
        return True

    async def read_transcript(self, session_id: str) -> AsyncIterator[Entry]:
        """Every committed entry of a session, oldest first, read from the store a page at a time.

        With the store `none` there is no transcript: the window's messages are all there is.

        Raises:
            SessionNotFound: there is no such session.
            StoreError: the store cannot be read.
        """
        session = await self.find(session_id)
        if not self._store.keeps_entries:
            for entry in session.entries():
                yield entry
            return
        async for stored in read_all(self._store, session_id):
            yield decode_entry(stored.encoded)

    # --- upkeep ------------------------------------------------------------------------------------------------------

    async def flush(self) -> FlushReport:
        """Commit what was accepted and write every dirty session's snapshot, now.

        Raises:
            StoreFull, StoreUnavailable: not everything could be committed; the snapshots of what is committed are
                written all the same.
            ManagerClosed: the manager is not open.
        """
        self._require_open()
        report = await self._flusher.flush()
        self._committer.check_store()
        return report

    async def sweep(self) -> SweepReport:
        """Expire idle sessions now: archive them if the setting says so, then delete them.

        Never a session with an open turn. Does nothing while the clock is in doubt.
        """
        self._require_open()
        return await self._sweeper.sweep()

    async def check(self) -> CheckReport:
        """Verify every snapshot against the store; changes nothing."""
        self._require_open()
        async with self._flusher.lock:
            return await Check(self._snapshots, self._store, clock=self.clock, on_progress=self._progress).run()

    def statistics(self) -> ManagerStatistics:
        """The manager's numbers at this moment."""
        commits, flushes = self._committer.counts, self._flusher.counts
        sessions = self._sessions.values()
        return ManagerStatistics(
            sessions=len(sessions),
            dirty=self._flusher.dirty,
            messages_in_memory=sum(len(session) for session in sessions),
            evicted_from_window=self._evicted_of_gone + sum(session.evicted for session in sessions),
            unsaved_entries=commits.unsaved_entries,
            unsaved_bytes=commits.unsaved_bytes,
            appended=commits.committed + commits.unsaved_entries,
            committed=commits.committed,
            commits=commits.commits,
            commit_failures=commits.failures,
            flushes=flushes.flushes,
            flush_failures=flushes.failures,
            snapshots_written=flushes.written,
            last_flush_seconds=flushes.last_seconds,
            recovered=self.recovery.from_snapshots + self.recovery.rebuilt,
            quarantined=len(self.recovery.quarantined),
            expired=self._sweeper.expired,
            store=self._store_name,
            store_state="failing" if self._committer.failure else "ok",
        )

    def health(self) -> Health:
        """Whether messages can be acknowledged and snapshots written."""
        if self._stack is None or self._closed:
            return Health(ok=False, store=self._store_name, problems=["the manager is not open"])
        problems = []
        if self._committer.failure is not None:
            problems.append(f"messages are not acknowledged: {self._committer.failure}")
        if self._flusher.problem is not None:
            problems.append(str(self._flusher.problem))
        return Health(ok=not problems, store=self._store_name, problems=problems)

    @property
    def progressed_at(self) -> float:
        """The monotonic second at which committer and flusher were last known to be alive: now, when both are idle.

        A full disk is progress (it answers); a disk that hangs is not. The watchdog watches this (rule R29).
        """
        starts = [since for since in (self._committer.busy_since, self._flusher.busy_since) if since is not None]
        return min(starts, default=self.clock.monotonic())

    # --- inside ------------------------------------------------------------------------------------------------------

    @property
    def _store_name(self) -> str:
        choice = self._store_choice
        return choice.partition(":")[0] if isinstance(choice, str) else type(choice).__name__

    def _require_open(self) -> None:
        if self._stack is None or self._closed:
            raise ManagerClosed("the session manager is not open; use `async with SessionManager(...)`")

    def _create(self, key: SessionKey, agent_id: str | None) -> Session:
        limit = self.settings.max_sessions
        if len(self._sessions) >= limit:
            raise SessionLimit(f"there are {limit} sessions already (max_sessions); delete some or raise the limit")
        conversation = Conversation(
            key, incarnation=self.clock.new_id(), created_at=self.clock.now(), capacity=self.settings.window
        )
        session = Session(conversation, self._services, committed=0, dirty=agent_id is None)
        if agent_id is not None:  # which may be refused: until then nobody may know of the session
            session.agent_id = agent_id
        self._sessions[session.session_id] = session
        return session

    def _usable(self, session_id: str) -> Session | None:
        """The live session, unless it is being deleted or the store has refused it."""
        session = self._sessions.get(session_id)
        is_usable = session is not None and session.log.rejected is None and session_id not in self._leaving
        return session if is_usable else None

    async def _reload(self, refused: Session) -> Session | None:
        """The store refused a session's entries: go on from what the store has, as a new object for the same key.

        None when it is being deleted, or was deleted meanwhile. When the store cannot be read, nothing has changed.
        """
        session_id = refused.session_id
        stored = await self._store.head(session_id)
        head = stored.head if stored is not None else refused.log.head
        conversation = Conversation(
            head.key, incarnation=head.incarnation, created_at=head.created_at, capacity=self.settings.window
        )
        await catch_up(conversation, self._store)
        if self._sessions.get(session_id) is not refused or session_id in self._leaving:
            return None
        refused.retire()
        self._flusher.remove(refused)
        self._evicted_of_gone += refused.evicted
        session = Session(conversation, self._services, committed=conversation.last_sequence, dirty=True)
        self._sessions[session_id] = session
        log.warning("reloaded from the store", action="session.reloaded", session_id=session.session_id)
        return session

    async def _remove(self, session: Session) -> None:
        """Take a session out of memory and off the disk; on failure it is back as it was.

        A task of the manager does it, because nothing keeps asyncio's own cancellation from the caller's: the file
        would be gone and the transcript not.
        """
        if self._stack is None:
            raise ManagerClosed(f"the session manager was closed; session {session.session_id} is as it was")
        self._leaving[session.session_id] = anyio.Event()
        await self._background.complete(partial(self._remove_now, session))

    async def _remove_now(self, session: Session) -> None:
        session_id = session.session_id
        try:
            session.retire()
            if session.log.rejected is None:
                await self._committer.wait(session.log, session.last_sequence)
            self._flusher.remove(session)
            async with self._flusher.lock:
                await self._snapshots.remove(session_id)
                await self._store.delete(session_id)
            self._evicted_of_gone += session.evicted
            del self._sessions[session_id]
        except OSError as error:
            session.revive()
            kind = StoreFull if is_no_space(error) else StoreUnavailable
            raise kind(f"session {session_id} could not be deleted: {error.strerror}; it is as it was") from error
        except BaseException:
            session.revive()
            raise
        finally:
            self._leaving.pop(session_id).set()

    def _progress(self, progress: Progress) -> None:
        try:
            self.on_progress(progress)
        except Exception as error:  # noqa: BLE001 - whoever watches must not fail what is watched
            log.warning("telling the progress failed", action="progress.failed", error=type(error).__name__)


def summarize(session: Session) -> SessionSummary:
    """A session as one line of a list."""
    return SessionSummary(
        session_id=session.session_id,
        channel=session.channel,
        chat_id=session.chat_id,
        title=session.title,
        messages=len(session),
        entries=session.last_sequence,
        created_at=session.created_at,
        last_accessed=session.last_accessed,
        dirty=session.is_dirty,
    )


def _ignore(progress: Progress) -> None:
    """Nobody watches."""
