"""Expiry where several processes share a database: it says what is idle, and lets one of them remove a session."""

from __future__ import annotations

from datetime import datetime, timedelta

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.errors import SessionsError
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.manager.expiry import JUMP, Expiry
from miniclaw_sessions.manager.registry import SessionRegistry
from miniclaw_sessions.persistence.database import Database
from miniclaw_sessions.stores.shared import SharedStore

FORETOLD = 10_000
"""So many idle sessions are listed at the most."""

TOGETHER = 100
"""So many are removed in one transaction."""

log = get_logger(__name__)


async def doubt_of(shared: SharedStore, clock: Clock) -> str | None:
    """Why the server's clock is not to be believed, or None: of two clocks that differ, one is wrong."""
    difference = await shared.now() - clock.now()
    if abs(difference) <= JUMP:
        return None
    return (
        f"the server's clock and this machine's differ by {difference.total_seconds():.0f} seconds; mend the wrong one"
    )


class DatabaseExpiry(Expiry):
    """Expires the idle ones among the sessions of a shared database; what is idle is said by the server's clock."""

    def __init__(
        self, registry: SessionRegistry, database: Database, *, settings: SessionSettings, clock: Clock
    ) -> None:
        super().__init__(registry, settings=settings, clock=clock)
        self._table = database.archive
        self._shared = database.shared
        self._is_first_look = True

    async def _idle(self, at: datetime) -> tuple[int, list[str]]:
        if self._is_first_look:
            for newest in await self._shared.newest(limit=1):
                self._clock_guard.consider(newest.last_accessed)
            self._is_first_look = False
        return await self._registry.known.count(), await self._idle_now(self._idle_s(at))

    async def _doubt(self) -> str | None:
        return self._clock_guard.doubt() or await doubt_of(self._shared, self._clock)

    def _forgive(self, jump: timedelta, *, before: datetime) -> None:  # noqa: ARG002 - as where uses are kept here
        """Uses are dated by the server, which may have jumped as well: people get a while to come back."""
        self._clock_guard.distrust()

    async def _idle_now(self, idle_s: float) -> list[str]:
        """What the database takes for idle, without what is used here and it does not know of yet."""
        if not self._ttl:
            return []
        used = {position.session_id for position, _ in self._registry.known.unsaved_uses()}
        return [one for one in await self._shared.idle(idle_s, limit=FORETOLD) if one not in used]

    async def renewed(self, used_before: datetime) -> None:
        """Let the others know at once of the use of a session that had been idle for long."""
        if self._ttl and self._clock.now() - used_before > self._ttl / 2:
            await self._registry.known.write_uses()

    async def _remove(self, idle: list[str]) -> list[str]:
        """Remove what is idle; of what another process is removing at the same time, nothing is said here."""
        archiving = self._table.archiving(self._clock.now()) if self._settings.archive_expired else None
        idle_s, gone = self._idle_s(self._clock.now()), list[str]()
        while idle:
            before = len(gone)
            for start in range(0, len(idle), TOGETHER):
                part = idle[start : start + TOGETHER]
                try:
                    removed = await self._shared.expire(part, idle_s, archiving)
                except SessionsError as error:  # the others expire all the same
                    log.error("expired sessions could not be removed", action="sweep.failed", error=str(error))
                    continue
                self._registry.gone(removed)
                gone += removed
            if len(gone) == before:
                break
            idle = await self._idle_now(idle_s)
        return gone

    def _idle_s(self, at: datetime) -> float:
        """For how long one must be idle now to be idle for longer than its time to live at a moment."""
        return max(0.0, (self._ttl - (at - self._clock.now())).total_seconds())
