"""Expiry: unused sessions go to the archive, and then from memory, file and store.

A session expires when it has been idle for strictly longer than its time to live; every use renews it. The log
announces what the next sweep will take, a dry run lists it, and an archived session comes back.

A wrong clock must not expire everything at once. While the process runs, a forward jump of the wall
clock against the monotonic one is added to every session's last access. When no session at all was used for over a day
before the start, either the clock is wrong or the gateway was down; in both cases people get one sweep interval to come
back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial

import anyio
import msgspec

from miniclaw_sessions.clock import Clock, sleep_unless
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager.archived import forget_copy
from miniclaw_sessions.core.manager.registry import SessionRegistry
from miniclaw_sessions.core.persistence.archive import session_of
from miniclaw_sessions.core.persistence.retention import ClockGuard, Retention
from miniclaw_sessions.core.persistence.storage import Storage
from miniclaw_sessions.errors import SessionHeld, SessionsError
from miniclaw_sessions.log import get_logger

FIRST_SWEEP_S = 600.0
"""The first sweep comes this long after the start, so that frequent restarts do not prevent it."""

log = get_logger(__name__)


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one sweep did.

    Attributes:
        scanned: how many sessions were looked at.
        expired: how many were removed; in a dry run none.
        archived: how many of these went to the archive.
        freed_bytes: how large their entries were, as the store had them; what the archive took of that is not less.
        sessions: the ids of the sessions that were removed; in a dry run, that would be.
        held: the ids of sessions under legal hold that stay for it, though they were idle for too long, or their
            archived copies were kept for long enough.
        forgotten: the archived files that had been kept for long enough, and went for good; in a dry run, would go.
        remains: what may still have the words of removed sessions, one sentence each.
        dry_run: nothing was changed.
        postponed: why nothing was done, if the clock is not to be believed.
    """

    scanned: int = 0
    expired: int = 0
    archived: int = 0
    freed_bytes: int = 0
    sessions: list[str] = []
    held: list[str] = []
    forgotten: list[str] = []
    remains: list[str] = []
    dry_run: bool = False
    postponed: str | None = None


class Expiry:
    """Expires the idle ones among a manager's sessions.

    Attributes:
        expired: how many it has expired.
        renewed: to be called when a session is used: `Population.renewed`.
        is_to_be_purged: whether the store's log may have words of what is gone for good.
    """

    def __init__(self, registry: SessionRegistry, storage: Storage, *, settings: SessionSettings, clock: Clock) -> None:
        self.expired = 0
        self._registry = registry
        self._store = registry.store
        self._storage = storage
        self._settings = settings
        self._retention = Retention(settings)
        self._clock = clock
        self._stop = anyio.Event()
        self._sweeping = anyio.Lock()
        self.is_to_be_purged = False
        self._clock_guard = ClockGuard(
            clock, newest_access=registry.cache.newest_use(), patience_s=settings.sweep_interval_s
        )
        self._population = registry.mode.population(registry, self._retention, self._clock_guard)
        self.renewed = self._population.renewed

    def __repr__(self) -> str:
        return f"<Expiry {self._settings.ttl_days:g} days, {self.expired} expired>"

    async def run(self) -> None:
        """Sweep now and then until `close`; never raises for what store or disk do."""
        wait = min(FIRST_SWEEP_S, self._settings.sweep_interval_s)
        while True:
            if self._retention.expires:
                await self._tried(partial(self._foretell, wait))
            if await sleep_unless(self._clock, wait, self._stop):
                return
            wait = self._settings.sweep_interval_s
            if self._retention.expires:
                await self._tried(self.sweep)

    def close(self) -> None:
        """Make `run` return after the sweep that is under way."""
        self.forgive_jump()
        self._stop.set()

    def forgive_jump(self) -> bool:
        """If the wall clock jumped ahead since the last look, let no session age by it, and return True."""
        expected, jump = self._clock_guard.jump()
        if jump:
            log.warning("the clock jumped; no session ages by it", action="clock.jumped", seconds=jump.total_seconds())
            self._population.forgive(jump, before=expected)
        return bool(jump)

    async def sweep(self, *, dry_run: bool = False) -> SweepReport:
        """Expire idle sessions now; never one with an open turn, and none while the clock is in doubt.

        One that another sweep of this process is removing is gone, too, when this returns; that one counts it.

        Args:
            dry_run: only list them. One that is on disk only is listed by the time of its file, and may turn out to
                have been used since.
        """
        async with self._sweeping:
            if self.forgive_jump():
                await self._population.keep_forgiven()
            scanned, idle, held = await self._population.find_idle(self._clock.now())
            believed = self._clock.now() - self._clock_guard.ahead  # else a jump would empty the archive
            outdated, kept = await self._retention.outdated(self._storage.archive, believed, self._population.held)
            held = list(dict.fromkeys([*held, *kept]))
            if doubt := await self._population.doubt():
                if not dry_run:
                    log.warning("expiry is put off", action="sweep.postponed", reason=doubt)
                    return SweepReport(postponed=doubt)
                return SweepReport(dry_run=True, sessions=idle, held=held, forgotten=outdated, postponed=doubt)
            if dry_run:
                return SweepReport(scanned=scanned, sessions=idle, held=held, forgotten=outdated, dry_run=True)
            gone = await self._population.remove(idle)
            self.expired += len(gone)
            archived = sum(self._retention.of_id(session_id).archives for session_id in gone)
            for session_id in gone:
                self._registry.events.swept.publish(session_id)
            self.is_to_be_purged = self.is_to_be_purged or len(gone) > archived
            forgotten, kept = await self._forget(outdated)
            held = list(dict.fromkeys([*held, *kept]))
            if self.is_to_be_purged:
                await self._purge()
            report = SweepReport(
                scanned=scanned,
                expired=len(gone),
                archived=archived,
                freed_bytes=sum(gone.values()),
                sessions=list(gone),
                held=held,
                forgotten=forgotten,
            )
            numbers = {name: getattr(report, name) for name in ("scanned", "expired", "archived", "freed_bytes")}
            log.info("swept", action="sweep.done", **numbers, held=len(held), forgotten=len(forgotten))
            return report

    async def _forget(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Delete archived files; the next sweep does what cannot be done now.

        Returns:
            Those that are gone; and the ids of the sessions that were put under legal hold since the files were chosen.
        """
        gone, held = list[str](), list[str]()
        for name in names:
            try:
                await forget_copy(self._registry, self._storage.archive, name)
            except SessionHeld as error:
                held.append(error.session_id)
            except SessionsError as error:
                session_id = session_of(name)
                sentence = "an archived session could not be deleted; it is tried again"
                log.error(sentence, action="sweep.failed", session_id=session_id, error=str(error))
            else:
                self._registry.events.swept.publish(session_of(name))
                gone.append(name)
        return gone, held

    async def _purge(self) -> None:
        """Leave nothing of what is gone for good in the store's log; the next sweep does what cannot be done now."""
        try:
            self.is_to_be_purged = not await self._store.purge()
        except SessionsError as error:
            log.error("the store's log was not emptied", action="sweep.failed", error=str(error))

    async def _tried(self, step: Callable[[], Awaitable[object]]) -> None:
        try:
            await step()
        except SessionsError as error:
            log.error("the sweep failed; it is tried again", action="sweep.failed", error=str(error))

    async def _foretell(self, seconds: float) -> None:
        """Log what the sweep will take that comes in this many seconds, unless it is used until then."""
        async with self._sweeping:  # what the first look finds decides about the first sweep
            at = self._clock.now() + timedelta(seconds=seconds)
            _, idle, _ = await self._population.find_idle(at)
        if idle:
            log.info(
                "the next sweep will take these",
                action="sweep.next",
                count=len(idle),
                sessions=idle,
                at=at.isoformat(timespec="seconds").replace("+00:00", "Z"),
            )
