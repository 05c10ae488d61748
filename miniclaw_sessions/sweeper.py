"""The daily task: sessions that nobody uses any more go to the archive, and then from memory, file and store.

Which sessions these are, and whether the clock may be believed, is decided in `persistence.expiry`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

import anyio
from anyio import to_thread

from miniclaw_sessions.clock import Clock, sleep_unless
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.errors import SessionsError
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.persistence.archive import Archive, archive
from miniclaw_sessions.persistence.expiry import ClockGuard, SweepReport, is_expired, is_idle
from miniclaw_sessions.protocol.encoding import encode_entry
from miniclaw_sessions.session import Session
from miniclaw_sessions.stores.base import Store
from miniclaw_sessions.stores.reading import read_all

FIRST_SWEEP_S = 600.0
"""The first sweep comes this long after the start, so that frequent restarts do not prevent it."""

log = get_logger(__name__)


class Sessions(Protocol):
    """What the sweeper needs of the sessions of a manager."""

    newest_on_disk: datetime | None
    """When the one was last used that was used last before the start, of those that were not loaded then."""

    def live(self) -> Iterator[Session]:
        """Those in memory."""
        ...

    def forgive(self, jump: timedelta, *, before: datetime) -> None:
        """Let none of those that sleep age by a jump of the clock."""
        ...


class Sleepers(Protocol):
    """What the sweeper needs of those that are not in memory."""

    def asleep_since(self, moment: datetime) -> list[str]:
        """The ids of those that were not used since."""
        ...


class Sweeper:
    """Expires the idle ones among a manager's sessions."""

    def __init__(  # noqa: PLR0913 - it works with what the manager has
        self,
        sessions: Sessions,
        store: Store,
        *,
        settings: SessionSettings,
        archive_to: Archive,
        clock: Clock,
        queue: Callable[[], Awaitable[Sleepers]],
        wake: Callable[[str], Awaitable[Session | None]],
        remove: Callable[[Session], Awaitable[None]],
    ) -> None:
        self.expired = 0
        self._sessions = sessions
        self._store = store
        self._settings = settings
        self._archive_to = archive_to
        self._clock = clock
        self._queue = queue
        self._wake = wake
        self._remove = remove
        self._stop = anyio.Event()
        newest = max((session.last_accessed for session in sessions.live()), default=None)
        self._clock_guard = ClockGuard(clock, newest_access=newest, patience_s=settings.sweep_interval_s)

    def __repr__(self) -> str:
        return f"<Sweeper {self._settings.ttl_days:g} days, {self.expired} expired>"

    async def run(self) -> None:
        """Sweep now and then until `close`; never raises for what store or disk do."""
        wait = min(FIRST_SWEEP_S, self._settings.sweep_interval_s)
        while not await sleep_unless(self._clock, wait, self._stop):
            wait = self._settings.sweep_interval_s
            if self._settings.ttl_days > 0:
                try:
                    await self.sweep()
                except SessionsError as error:
                    log.error("the sweep failed; it is tried again", action="sweep.failed", error=str(error))

    def close(self) -> None:
        """Make `run` return after the sweep that is under way."""
        self.forgive_jump()
        self._stop.set()

    def forgive_jump(self) -> None:
        """If the wall clock jumped ahead since the last look, let no session age by it."""
        expected, jump = self._clock_guard.jump()
        if jump:
            log.warning("the clock jumped; no session ages by it", action="clock.jumped", seconds=jump.total_seconds())
            for session in list(self._sessions.live()):
                session.journal.forgive(jump, before=expected)
            self._sessions.forgive(jump, before=expected)

    async def sweep(self) -> SweepReport:
        """Expire idle sessions now; never one with an open turn, and none while the clock is in doubt."""
        self.forgive_jump()
        sleepers = await self._queue()
        if self._sessions.newest_on_disk is not None:
            self._clock_guard.consider(self._sessions.newest_on_disk)
        if doubt := self._clock_guard.doubt():
            log.warning("expiry is put off", action="sweep.postponed", reason=doubt)
            return SweepReport(postponed=doubt)
        now, ttl = self._clock.now(), timedelta(days=self._settings.ttl_days)
        scanned = list(self._sessions.live())
        idle = [session for session in scanned if is_expired(session.journal, now, ttl)]
        gone = sum([await self._expire(session, ttl) for session in idle])
        sleeping = sleepers.asleep_since(now - ttl) if ttl else []
        gone += sum([await self._expire_sleeping(session_id, ttl) for session_id in sleeping])
        self.expired += gone
        archived = gone if self._settings.archive_expired else 0
        looked_at = len(scanned) + len(sleeping)
        log.info("swept", action="sweep.done", scanned=looked_at, expired=gone, archived=archived)
        return SweepReport(scanned=looked_at, expired=gone, archived=archived)

    async def _expire_sleeping(self, session_id: str, ttl: timedelta) -> bool:
        """Delete one idle session that must be loaded first: only then is it known when it was used."""
        try:
            session = await self._wake(session_id)
        except SessionsError as error:  # its neighbours expire all the same
            _log_failure(session_id, error)
            return False
        return session is not None and await self._expire(session, ttl)

    async def _expire(self, session: Session, ttl: timedelta) -> bool:
        """Delete one idle session, unless it was used since; whether it is gone. Its turn is held meanwhile."""
        async with session.journal.turn_lock:
            if session.journal.is_deleted or not is_idle(session.journal, self._clock.now(), ttl):
                return False
            copy: Path | None = None
            try:
                if self._settings.archive_expired:
                    lines = self._encoded_entries(session)
                    copy = await archive(self._archive_to, session.session_id, lines, at=self._clock.now())
                if is_idle(session.journal, self._clock.now(), ttl):  # it may have been used while it was archived
                    await self._remove(session)
            except (SessionsError, OSError) as error:
                _log_failure(session.session_id, error)
            if copy is not None and not session.journal.is_deleted:
                with suppress(OSError):
                    await to_thread.run_sync(copy.unlink)
            return session.journal.is_deleted

    async def _encoded_entries(self, session: Session) -> AsyncIterator[bytes]:
        """The transcript as it is stored, so that a damaged entry does not keep its session for ever."""
        if not self._store.keeps_entries:
            for entry in session.entries():
                yield encode_entry(entry)
            return
        async for stored in read_all(self._store, session.session_id):
            yield stored.encoded


def _log_failure(session_id: str, error: Exception) -> None:
    log.error(
        "an expired session could not be removed; it is tried again",
        action="sweep.failed",
        session_id=session_id,
        error=str(error),
    )
