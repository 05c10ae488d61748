"""Expiry: sessions that nobody uses any more go to the archive, and then from memory, file and store.

A session expires when it has been idle for strictly longer than its time to live; every use renews it. Nobody is to be
surprised: the log says beforehand what the next sweep will take, a dry run lists it, and what was archived comes back.

A wrong clock must not expire everything at once (requirement W40). While the process runs, a forward jump of the wall
clock against the monotonic one is added to every session's last access. When no session at all was used for over a day
before the start, either the clock is wrong or the gateway was down; in both cases people get one sweep interval to come
back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

import anyio
import msgspec

from miniclaw_sessions.clock import Clock, sleep_unless
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager.registry import SessionRegistry
from miniclaw_sessions.core.manager.retention import Retention
from miniclaw_sessions.core.persistence.archive import Archive, ArchiveDirectory, session_of
from miniclaw_sessions.core.protocol.encoding import encode_entry
from miniclaw_sessions.core.session import Journal
from miniclaw_sessions.core.stores.reading import read_all
from miniclaw_sessions.errors import SessionsError
from miniclaw_sessions.log import get_logger

FIRST_SWEEP_S = 600.0
"""The first sweep comes this long after the start, so that frequent restarts do not prevent it."""

JUMP = timedelta(hours=1)
"""A difference between wall clock and monotonic clock that is no drift any more."""

LONG_SILENCE = timedelta(days=1)
"""No session used for longer than this before the start: the clock may be wrong."""

log = get_logger(__name__)


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one sweep did.

    Attributes:
        scanned: how many sessions were looked at.
        expired: how many were removed; in a dry run none.
        archived: how many of these went to the archive.
        freed_bytes: how large their entries were, as the store had them; what the archive took of that is not less.
        sessions: the ids of those that were removed; in a dry run, of those that would be.
        held: the ids of those that were idle for too long, or whose archived copies were kept for long enough, and that
            stay because they are under legal hold.
        forgotten: the archived files that had been kept for long enough, and went for good; in a dry run, would go.
        remains: what may still have the words of those that went for good, one sentence each.
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


class Expiry(ABC):
    """Expires the idle ones among a manager's sessions.

    Attributes:
        expired: how many it has expired.
        is_to_be_purged: whether the store's log may have words of what is gone for good.
    """

    def __init__(self, registry: SessionRegistry, archive: Archive, *, settings: SessionSettings, clock: Clock) -> None:
        self.expired = 0
        self._registry = registry
        self._cache = registry.cache
        self._store = registry.store
        self._archive = archive
        self._settings = settings
        self._retention = Retention(settings)
        self._clock = clock
        self._stop = anyio.Event()
        self._sweeping = anyio.Lock()
        self.is_to_be_purged = False
        newest = max((journal.last_accessed for journal in self._cache.in_memory()), default=None)
        self._clock_guard = ClockGuard(clock, newest_access=newest, patience_s=settings.sweep_interval_s)

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

    def forgive_jump(self) -> None:
        """If the wall clock jumped ahead since the last look, let no session age by it."""
        expected, jump = self._clock_guard.jump()
        if jump:
            log.warning("the clock jumped; no session ages by it", action="clock.jumped", seconds=jump.total_seconds())
            self._forgive(jump, before=expected)

    def _forgive(self, jump: timedelta, *, before: datetime) -> None:
        for journal in list(self._cache.in_memory()):
            journal.forgive(jump, before=before)
        self._cache.forgive(jump, before=before)

    async def sweep(self, *, dry_run: bool = False) -> SweepReport:
        """Expire idle sessions now; never one with an open turn, and none while the clock is in doubt.

        One that another sweep of this process is removing is gone, too, when this returns; that one counts it.

        Args:
            dry_run: only list them. One that is on disk only is listed by the time of its file, and may turn out to
                have been used since.
        """
        async with self._sweeping:
            return await self._sweep(dry_run=dry_run)

    async def _sweep(self, *, dry_run: bool) -> SweepReport:
        self.forgive_jump()
        scanned, idle, held = await self._that_may_go(self._clock.now())
        outdated, kept = await self._retention.outdated(self._archive, self._clock.now(), self._held)
        held = list(dict.fromkeys([*held, *kept]))
        if doubt := await self._doubt():
            if not dry_run:
                log.warning("expiry is put off", action="sweep.postponed", reason=doubt)
                return SweepReport(postponed=doubt)
            return SweepReport(dry_run=True, sessions=idle, held=held, forgotten=outdated, postponed=doubt)
        if dry_run:
            return SweepReport(scanned=scanned, sessions=idle, held=held, forgotten=outdated, dry_run=True)
        gone = await self._remove(idle)
        self.expired += len(gone)
        archived = sum(self._retention.of_id(session_id).archives for session_id in gone)
        for name in outdated:
            await self._archive.delete(name)
        for session_id in [*gone, *map(session_of, outdated)]:
            self._registry.events.swept.publish(session_id)
        if len(gone) > archived or self.is_to_be_purged:
            await self._purge()
        report = SweepReport(
            scanned=scanned,
            expired=len(gone),
            archived=archived,
            freed_bytes=sum(gone.values()),
            sessions=list(gone),
            held=held,
            forgotten=outdated,
        )
        numbers = {name: getattr(report, name) for name in ("scanned", "expired", "archived", "freed_bytes")}
        log.info("swept", action="sweep.done", **numbers, held=len(held), forgotten=len(outdated))
        return report

    async def _that_may_go(self, at: datetime) -> tuple[int, list[str], list[str]]:
        """How many were looked at; which will be idle for too long at that moment; and which of these are held."""
        scanned, idle = await self._idle(at)
        held = await self._held(idle)
        kept = frozenset(held)
        return scanned, [session_id for session_id in idle if session_id not in kept], held

    async def _purge(self) -> None:
        """Leave nothing of what is gone for good in the store's log; the next sweep does what cannot be done now."""
        self.is_to_be_purged = True
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
            _, idle, _ = await self._that_may_go(at)
        if idle:
            log.info(
                "the next sweep will take these",
                action="sweep.next",
                count=len(idle),
                sessions=idle,
                at=at.isoformat(timespec="seconds").replace("+00:00", "Z"),
            )

    async def _doubt(self) -> str | None:
        """Why nothing should expire now, or None."""
        return self._clock_guard.doubt()

    async def renewed(self, session_id: str, used_before: datetime) -> None:  # noqa: B027 - where nobody else expires anything
        """A session is used that was last used at a moment; whoever else may expire it must know."""

    @abstractmethod
    async def _idle(self, at: datetime) -> tuple[int, list[str]]:
        """How many sessions were looked at, and which of them will be idle for too long at that moment."""

    @abstractmethod
    async def _held(self, session_ids: Sequence[str]) -> list[str]:
        """Those of these sessions that are under legal hold."""

    @abstractmethod
    async def _remove(self, idle: list[str]) -> dict[str, int]:
        """Archive and delete those that are still idle; which those were, and how many bytes their entries had.

        Logs what cannot be done.
        """


class DirectoryExpiry(Expiry):
    """Expires the idle ones among the sessions of a directory, which this process alone has."""

    def __init__(
        self, registry: SessionRegistry, archive: ArchiveDirectory, *, settings: SessionSettings, clock: Clock
    ) -> None:
        super().__init__(registry, archive, settings=settings, clock=clock)
        self._directory = archive

    async def _idle(self, at: datetime) -> tuple[int, list[str]]:
        listing = await self._registry.listing()
        if self._cache.newest_on_disk is not None:
            self._clock_guard.consider(self._cache.newest_on_disk)
        in_memory = list(self._cache.in_memory())
        idle = [one.session_id for one in in_memory if not one.in_turn and self._is_idle(one, at)]
        on_disk = [
            session_id
            for rule in self._retention.rules
            if rule.ttl
            for session_id in listing.on_disk_since(at - rule.ttl)
            if self._retention.of_id(session_id) is rule
        ]
        return len(in_memory) + len(on_disk), [*idle, *on_disk]

    async def _held(self, session_ids: Sequence[str]) -> list[str]:
        held = []
        for session_id in session_ids:
            with suppress(SessionsError):  # `_expire` tells of it
                journal = await self._registry.load(session_id)
                if journal is not None and journal.legal_hold is not None:
                    held.append(session_id)
        return held

    async def _remove(self, idle: list[str]) -> dict[str, int]:
        freed = {session_id: await self._expire(session_id) for session_id in idle}
        return {session_id: size for session_id, size in freed.items() if size is not None}

    async def _expire(self, session_id: str) -> int | None:
        """Delete one idle session, unless it was used since, and tell how large its entries were; None if it stays.

        Its turn is held meanwhile.
        """
        try:
            journal = await self._registry.load(session_id)
        except SessionsError as error:  # its neighbours expire all the same
            _log_failure(session_id, error)
            return None
        if journal is None or journal.in_turn:
            return None
        async with journal.turn_lock:
            if journal.is_deleted or journal.legal_hold is not None or not self._is_idle(journal, self._clock.now()):
                return None
            copy, freed = None, None
            entries = _Counted(self._encoded_entries(journal))
            try:
                if self._retention.of(journal.key.channel).archives:
                    copy = await self._directory.write(journal.log.head, aiter(entries), self._clock.now())
                else:
                    await entries.count()
                if self._is_idle(journal, self._clock.now()):  # it may have been used while it was archived
                    await self._registry.remove(journal, kind="expired")
                    freed = entries.bytes
            except (SessionsError, OSError) as error:
                _log_failure(session_id, error)
            if copy is not None and not journal.is_deleted:
                with suppress(SessionsError):
                    await self._archive.delete(copy)
            return freed

    def _is_idle(self, journal: Journal, at: datetime) -> bool:
        return self._retention.of(journal.key.channel).is_idle(journal.last_accessed, at)

    async def _encoded_entries(self, journal: Journal) -> AsyncIterator[bytes]:
        """The transcript as it is stored, so that a damaged entry does not keep its session for ever."""
        if not self._store.keeps_entries:
            for entry in journal.conversation.window:
                yield encode_entry(entry)
            return
        async for stored in read_all(self._store, journal.session_id):
            yield stored.encoded


class _Counted:
    """Entries on their way, and how many bytes have passed."""

    def __init__(self, entries: AsyncIterator[bytes]) -> None:
        self.bytes = 0
        self._entries = entries

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for entry in self._entries:
            self.bytes += len(entry)
            yield entry

    async def count(self) -> None:
        """Look at all of them; what cannot be read is not counted, and expires all the same."""
        with suppress(SessionsError):
            async for _ in self:
                pass


class ClockGuard:
    """Watches if the wall clock can be believed."""

    def __init__(self, clock: Clock, *, newest_access: datetime | None, patience_s: float) -> None:
        self._clock = clock
        self._started_at = self._wall = clock.now()
        self._trusted_from = self._monotonic = clock.monotonic()
        self._patient_until = self._monotonic + patience_s
        self._patience_s = patience_s
        self._reason = "no session was used for more than a day before the start: the clock may be wrong"
        if newest_access is not None:
            self.consider(newest_access)

    def consider(self, newest_access: datetime) -> None:
        """Take note that a session was last used then, and none later, before the start."""
        if abs(self._started_at - newest_access) > LONG_SILENCE:
            self._trusted_from = max(self._trusted_from, self._patient_until)

    def distrust(self) -> None:
        """The clock jumped: believe it only after a while."""
        self._trusted_from = self._clock.monotonic() + self._patience_s
        self._reason = "the clock jumped: it may be wrong"

    def jump(self) -> tuple[datetime, timedelta]:
        """By how much the wall clock ran ahead of the monotonic one since the last call, and where it should be.

        A suspended machine looks the same and deserves the same: nobody could have used a session meanwhile.
        """
        wall, monotonic = self._clock.now(), self._clock.monotonic()
        expected = self._wall + timedelta(seconds=monotonic - self._monotonic)
        self._wall, self._monotonic = wall, monotonic
        return expected, (wall - expected if wall - expected > JUMP else timedelta(0))

    def doubt(self) -> str | None:
        """Why nothing should expire now, or None."""
        if self._clock.monotonic() < self._trusted_from:
            return self._reason
        return None


def _log_failure(session_id: str, error: Exception) -> None:
    log.error(
        "an expired session could not be removed; it is tried again",
        action="sweep.failed",
        session_id=session_id,
        error=str(error),
    )
