"""A manager's life: open the directory, keep it saved, close it; and what it tells about itself meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import ManagerClosed, StoreError, StoreFull, StoreUnavailable, named
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.manager.held import HeldSessions, ManagerHome
from miniclaw_sessions.persistence.archive import Archive
from miniclaw_sessions.persistence.background import Background
from miniclaw_sessions.persistence.checking import Check, CheckReport
from miniclaw_sessions.persistence.committer import Committer
from miniclaw_sessions.persistence.expiry import SweepReport
from miniclaw_sessions.persistence.flusher import Flusher, FlushReport
from miniclaw_sessions.persistence.recovery import Progress, RecoveryReport
from miniclaw_sessions.persistence.workspace import Workspace
from miniclaw_sessions.statistics import Health, ManagerStatistics
from miniclaw_sessions.stores.base import Store
from miniclaw_sessions.sweeper import Sweeper

DEFAULT_WORKSPACE = Path("~/.miniclaw/workspace")
log = get_logger(__name__)


class OpenManager(HeldSessions):
    """The sessions of one directory, from opening to closing; an async context manager."""

    def __init__(  # noqa: PLR0913 - one argument per thing that a user may choose
        self,
        workspace: str | Path | None = None,
        *,
        settings: SessionSettings | None = None,
        store: str | Store | None = None,
        clock: Clock | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        encryption: KeyRing | None = None,
    ) -> None:
        """Nothing is opened yet.

        Args:
            workspace: the directory; `~/.miniclaw/workspace` by default.
            settings: see `SessionSettings`; the defaults are the card's.
            store: a store, or the URL of one, instead of `settings.store`.
            clock: time and ids; the machine's by default.
            on_progress: called during recovery, flushes and checks, on the event loop.
            encryption: the keys that everything is encrypted with; None: nothing is.
        """
        super().__init__(settings or SessionSettings(), clock or SystemClock())
        self.workspace = Path(workspace or DEFAULT_WORKSPACE).expanduser().resolve()
        self.on_progress = on_progress or _ignore
        self._encryption = encryption
        self._store_choice = store if store is not None else self.settings.store
        self._owner = 0

    def __repr__(self) -> str:
        state = "closed" if self._stack is None else "open"
        return f"<SessionManager {self.workspace}, {len(self)} sessions, {state}>"

    # --- opening and closing -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Lock the directory, open the store, recover, start the background tasks.

        Raises:
            DirectoryInUse: another process has the directory.
            SnapshotUnreadable, SchemaTooNew, QuarantineFull: something is there that must not be touched; it was not.
            StoreError: the store cannot be opened.
            ConfigError: the store's URL is not one, or the directory cannot be used.
            WrongKey, KeyNeeded, NotEncrypted: the keys do not go with what is there; it was not touched.
        """
        if self._closed:
            raise ManagerClosed("a closed session manager is not opened again; make a new one")
        async with AsyncExitStack() as stack:
            workspace = Workspace(
                self.workspace,
                self.settings,
                self._store_choice,
                clock=self.clock,
                on_progress=self._progress,
                encryption=self._encryption,
            )
            await stack.enter_async_context(workspace)
            self._files = workspace
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
                on_flushed=self._residents.shrink,
            )
            self._home = ManagerHome(self, self._committer, self._flusher, self._store)
            self._adopt(self.recovery)
            self._sweeper = Sweeper(
                self._residents,
                self._store,
                settings=self.settings,
                archive_to=Archive(self.workspace / "archive", self._encryption),
                clock=self.clock,
                queue=self._queue,
                wake=self._wake,
                remove=self._remove,
            )
            self._background = Background(await stack.enter_async_context(anyio.create_task_group()))
            self._background.start(self._committer.run, name="committer")
            self._background.start(self._flusher.run, name="flusher")
            self._background.start(self._sweeper.run, name="sweeper")
            await self._remove_unfinished()
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
        rejected = next(
            (s.journal.log.rejected for s in self._residents.live() if s.journal.log.rejected is not None), None
        )
        cause = self._committer.failure or self._flusher.problem or rejected or "time ran out"
        kind = StoreFull if isinstance(cause, StoreFull) else StoreUnavailable
        raise kind(f"closed with {unsaved} messages and {dirty} snapshots unsaved in {self.workspace}: {cause}")

    def _adopt(self, report: RecoveryReport) -> None:
        """Make live sessions of what recovery found."""
        for found in report.sessions.values():
            self._admit(self._session(found.conversation, dirty=found.dirty))
        self._residents.put_to_sleep(report.asleep)
        report.sessions, report.asleep = {}, {}
        log.info(
            "recovered",
            action="recovery.done",
            sessions=len(self),
            resident=self._residents.awake,
            messages=report.messages,
            brought_up=report.brought_up,
            rebuilt=report.rebuilt,
            written_back=report.written_back,
            quarantined=len(report.quarantined),
            ignored=len(report.ignored),
            seconds=round(report.seconds, 3),
        )

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
        return ManagerStatistics(
            sessions=len(self),
            resident=self._residents.awake,
            let_go=self._residents.let_go,
            woken=self._residents.woken,
            dirty=self._flusher.dirty,
            messages_in_memory=sum(len(session) for session in self._residents.live()),
            evicted_from_window=self._evicted_of_gone
            + sum(session.journal.evicted for session in self._residents.live()),
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
            store_state=self._store_state,
        )

    def health(self) -> Health:
        """Whether messages can be acknowledged and snapshots written."""
        if self._stack is None or self._closed:
            return Health(ok=False, store=self._store_name, store_state="closed", problems=["the manager is not open"])
        problems = []
        if self._committer.failure is not None:
            problems.append(f"messages are not acknowledged: {self._committer.failure}")
        if self._flusher.problem is not None:
            problems.append(str(self._flusher.problem))
        return Health(ok=not problems, store=self._store_name, store_state=self._store_state, problems=problems)

    @property
    def progressed_at(self) -> float:
        """The monotonic second at which committer and flusher were last known to be alive: now, when both are idle.

        A full disk is progress (it answers); a disk that hangs is not. The watchdog watches this (rule R29).
        """
        starts = [since for since in (self._committer.busy_since, self._flusher.busy_since) if since is not None]
        return min(starts, default=self.clock.monotonic())

    @property
    def _store_state(self) -> str:
        return "failing" if self._committer.failure else "ok"

    @property
    def _store_name(self) -> str:
        choice = self._store_choice
        return choice.partition(":")[0] if isinstance(choice, str) else type(choice).__name__

    def _progress(self, progress: Progress) -> None:
        try:
            self.on_progress(progress)
        except Exception as error:  # noqa: BLE001 - whoever watches must not fail what is watched
            log.warning("telling the progress failed", action="progress.failed", error=type(error).__name__)


def _ignore(progress: Progress) -> None:
    """Nobody watches."""
