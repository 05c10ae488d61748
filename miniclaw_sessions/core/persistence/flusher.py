"""The 30-second task: dirty sessions to their snapshots, in files or in the database.

The first flush comes one interval after the start; a slow flush never piles up, because the next interval begins when
it ends. A flush covers only what the store has committed. A session whose snapshot could not be written stays dirty and
its old file stays whole; the next flush tries again with the newest state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import anyio
import msgspec

from miniclaw_sessions.clock import Clock, sleep_unless
from miniclaw_sessions.core.events.listeners import Flush, Topic
from miniclaw_sessions.core.history.state import Snapshot
from miniclaw_sessions.core.persistence.checkpoints import Checkpoints, Written
from miniclaw_sessions.core.persistence.committer import Committer
from miniclaw_sessions.core.persistence.recovery import Progress
from miniclaw_sessions.core.persistence.snapshots import CHUNK, SUFFIX
from miniclaw_sessions.disk import is_no_space
from miniclaw_sessions.errors import StoreFull, StoreUnavailable, named
from miniclaw_sessions.log import get_logger

LISTED = 20
"""At most this many files that could not be written are named by a flush."""

log = get_logger(__name__)


class Checkpointed(Protocol):
    """What the flusher needs of a session's checkpoint."""

    @property
    def is_dirty(self) -> bool:
        """Whether it lacks something."""
        ...

    def capture(self) -> tuple[int, Snapshot] | None:
        """Its revision and what may be written now, in one step; None when nothing may be."""
        ...

    def flushed(self, revision: int, snapshot: Snapshot) -> None:
        """The snapshot of this revision is safe."""
        ...


class Flushable(Protocol):
    """A session that is held until its checkpoint is written."""

    @property
    def checkpoint(self) -> Checkpointed:
        """Its checkpoint."""
        ...


class FlushReport(msgspec.Struct, frozen=True):
    """What one flush did; `failed` counts sessions that are still dirty because writing failed.

    `problems` names the first of them, and why, one sentence each.
    """

    written: int = 0
    failed: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    problems: Sequence[str] = ()


class FlushCounts(msgspec.Struct):
    """What all flushes did."""

    flushes: int = 0
    failures: int = 0
    written: int = 0
    last_seconds: float = 0.0


class Flusher:
    """Writes dirty sessions every interval, on request and at the end; one flush at a time."""

    def __init__(  # noqa: PLR0913 - what it works with, and where it says what it did
        self,
        checkpoints: Checkpoints,
        committer: Committer,
        *,
        clock: Clock,
        interval_s: float,
        on_progress: Callable[[Progress], None],
        flushes: Topic[Flush] | None = None,
    ) -> None:
        self.counts = FlushCounts()
        self.busy_since: float | None = None
        self.problem: StoreUnavailable | None = None
        self.lock = anyio.Lock()
        """Held during a flush, and by the removal of a session's file, so that no flush brings it back."""
        self._checkpoints = checkpoints
        self._committer = committer
        self._clock = clock
        self._interval_s = interval_s
        self._on_progress = on_progress
        self._flushes: Topic[Flush] = Topic() if flushes is None else flushes
        self._dirty: dict[Flushable, None] = {}
        self._wake = anyio.Event()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Flusher {len(self._dirty)} dirty, every {self._interval_s:g} s>"

    @property
    def dirty(self) -> int:
        """How many sessions wait to be written."""
        return len(self._dirty)

    def add(self, session: Flushable) -> None:
        """A session changed."""
        self._dirty[session] = None

    def remove(self, session: Flushable) -> None:
        """A session is gone and must not be written any more."""
        self._dirty.pop(session, None)

    async def run(self) -> None:
        """Flush every interval until `close`; never raises for what the disk does."""
        while True:
            await sleep_unless(self._clock, self._interval_s, self._wake)
            if self._closed:
                return
            self._wake = anyio.Event()
            try:
                await self.flush()
            except Exception as error:  # noqa: BLE001 - a flush that fails must not end the task that repeats it
                self.problem = StoreUnavailable(f"the last flush failed: {type(error).__name__}")
                log.error("the flush failed; retrying", action="flush.failed", error=named(error))

    def hurry(self) -> None:
        """Do not wait for the end of the interval, unless the disk failed at the last flush."""
        if self.problem is None:
            self._wake.set()

    def close(self) -> None:
        """Make `run` return after the flush that is under way."""
        self._closed = True
        self._wake.set()

    async def flush(self) -> FlushReport:
        """Write every session that is dirty now; what changes meanwhile is dirty again."""
        async with self.lock:
            self.busy_since = started = self._clock.monotonic()
            try:
                report = await self._write_dirty(started)
            finally:
                self.busy_since = None
        self.counts.flushes += 1
        self.counts.failures += report.failed
        self.counts.written += report.written
        self.counts.last_seconds = report.seconds
        if report.written:
            log.info(
                "flushed",
                action="flush.done",
                written=report.written,
                bytes=report.bytes_written,
                seconds=round(report.seconds, 4),
            )
        if self._flushes.listeners:
            self._flushes.publish(Flush(report.written, report.seconds))
        return report

    async def write(self, session: Flushable) -> None:
        """Write one session now, if it is dirty; behind a flush that is under way.

        Raises:
            StoreFull, StoreUnavailable: it cannot be written; it stays dirty.
        """
        async with self.lock:
            failed = [one for one in await self._write_chunk([session]) if one.error is not None]
        if failed:
            self._report_failures(failed)
        if failed and self.problem is not None:
            raise self.problem

    async def _write_dirty(self, started: float) -> FlushReport:
        try:
            await self._committer.drain()
        except StoreUnavailable:
            log.debug("flushing what is committed", action="flush.partial")  # the committer has reported why
        written: list[Written] = []
        waiting = list(self._dirty)
        for start in range(0, len(waiting), CHUNK):
            written += await self._write_chunk(waiting[start : start + CHUNK])
            self.busy_since = self._clock.monotonic()  # progress, for the watchdog and the stop timeout (R27)
            self._on_progress(Progress("flushing", min(start + CHUNK, len(waiting)), len(waiting)))
        failed = [one for one in written if one.error is not None]
        self._report_failures(failed)
        return FlushReport(
            written=len(written) - len(failed),
            failed=len(failed),
            bytes_written=sum(one.size for one in written if one.error is None),
            seconds=self._clock.monotonic() - started,
            problems=[f"{one.session_id}{SUFFIX}: {named(one.error)}" for one in failed[:LISTED] if one.error],
        )

    async def _write_chunk(self, sessions: Iterable[Flushable]) -> list[Written]:
        captured = [
            (session, *capture)
            for session in sessions
            if session in self._dirty  # it may have been deleted while an earlier chunk was written
            and (capture := session.checkpoint.capture()) is not None
        ]
        if not captured:
            return []
        written = await self._checkpoints.write([snapshot for _, _, snapshot in captured])
        for (session, revision, snapshot), outcome in zip(captured, written, strict=True):
            if outcome.error is None:
                session.checkpoint.flushed(revision, snapshot)
                if not session.checkpoint.is_dirty:
                    self._dirty.pop(session, None)
        return written

    def _report_failures(self, failed: list[Written]) -> None:
        """One line for the whole flush: a full disk must not fill the log too (rule S21)."""
        if failed:
            self._failed(failed)
            return
        if self.problem:
            log.warning("snapshots are written again", action="flush.recovered")
        self.problem = None

    def _failed(self, failed: list[Written]) -> StoreUnavailable:
        """What is wrong, until a flush writes all again."""
        first = failed[0]
        kind = StoreFull if is_no_space(first.error) else StoreUnavailable
        self.problem = problem = kind(f"{len(failed)} snapshots could not be written: {first.error}")
        log.error(
            "snapshots could not be written; they stay dirty and are tried again",
            action="flush.failed",
            failed=len(failed),
            session_id=first.session_id,
            error=str(first.error),
        )
        return problem
