"""Expiry where several processes share a database: it says what is idle, and lets one of them remove a session."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager.database_lists import sessions_in
from miniclaw_sessions.core.manager.expiry import JUMP, Expiry
from miniclaw_sessions.core.manager.registry import SessionRegistry
from miniclaw_sessions.core.manager.retention import Retention, Rule
from miniclaw_sessions.core.persistence.database import Database
from miniclaw_sessions.core.session.home import Home
from miniclaw_sessions.core.stores.shared import SharedStore
from miniclaw_sessions.errors import SessionsError
from miniclaw_sessions.log import get_logger

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


async def idle_in(shared: SharedStore, retention: Retention, ahead: timedelta, *, limit: int) -> list[str]:
    """The sessions that will be idle for too long when this time has passed; of each rule's at most so many."""
    idle = list[str]()
    for rule in retention.rules:
        if rule.ttl:
            idle_s = max(0.0, (rule.ttl - ahead).total_seconds())
            others = () if rule.channel is not None else retention.channels
            idle += await shared.idle(idle_s, limit=limit, channel=rule.channel, but_channels=others)
    return idle


async def held_in(database: Database, session_ids: Sequence[str], home: Home) -> list[str]:
    """Those of these sessions that are under legal hold."""
    found = await sessions_in(database, session_ids, home)
    return [session_id for session_id, session in found.items() if session.journal.legal_hold is not None]


class DatabaseExpiry(Expiry):
    """Expires the idle ones among the sessions of a shared database; what is idle is said by the server's clock."""

    def __init__(
        self, registry: SessionRegistry, database: Database, *, settings: SessionSettings, clock: Clock
    ) -> None:
        super().__init__(registry, database.archive, settings=settings, clock=clock)
        self._database = database
        self._table = database.archive
        self._shared = database.shared
        self._is_first_look = True
        self._stay = 0  # so many of the idle ones are held

    async def _idle(self, at: datetime) -> tuple[int, list[str]]:
        if self._is_first_look:
            for newest in await self._shared.newest(limit=1):
                self._clock_guard.consider(newest.last_accessed)
            self._is_first_look = False
        return await self._registry.known.count(), await self._idle_now(at)

    async def _doubt(self) -> str | None:
        return self._clock_guard.doubt() or await doubt_of(self._shared, self._clock)

    def _forgive(self, jump: timedelta, *, before: datetime) -> None:  # noqa: ARG002 - as where uses are kept here
        """Uses are dated by the server, which may have jumped as well: people get a while to come back."""
        self._clock_guard.distrust()

    async def _idle_now(self, at: datetime) -> list[str]:
        """What the database takes for idle, without what is used here and it does not know of yet."""
        ahead, limit = at - self._clock.now(), FORETOLD + self._stay
        idle = await idle_in(self._shared, self._retention, ahead, limit=limit)
        used = {position.session_id for position, _ in self._registry.known.unsaved_uses()}
        return [one for one in idle if one not in used]

    async def _held(self, session_ids: Sequence[str]) -> list[str]:
        return await held_in(self._database, session_ids, self._registry)

    async def _that_may_go(self, at: datetime) -> tuple[int, list[str], list[str]]:
        looked = await super()._that_may_go(at)
        self._stay = len(looked[2])  # or else nobody would ever see what is behind those that are held
        return looked

    async def renewed(self, session_id: str, used_before: datetime) -> None:
        """Let the others know at once of the use of a session that had been idle for long."""
        ttl = self._retention.of_id(session_id).ttl
        if ttl and self._clock.now() - used_before > ttl / 2:
            await self._registry.known.write_uses()

    async def _remove(self, idle: list[str]) -> dict[str, int]:
        """Remove what is idle; of what another process is removing at the same time, nothing is said here."""
        gone = dict[str, int]()
        while idle:
            before = len(gone)
            for rule in self._retention.rules:
                gone |= await self._remove_of(rule, [one for one in idle if self._retention.of_id(one) is rule])
            if len(gone) == before:
                break
            _, idle, _ = await self._that_may_go(self._clock.now())
        return gone

    async def _remove_of(self, rule: Rule, idle: list[str]) -> dict[str, int]:
        archiving = self._table.archiving(self._clock.now()) if rule.archives else None
        gone = dict[str, int]()
        for start in range(0, len(idle), TOGETHER):
            part = idle[start : start + TOGETHER]
            try:
                removed = await self._shared.expire(part, rule.ttl.total_seconds(), archiving)
            except SessionsError as error:  # the others expire all the same
                log.error("expired sessions could not be removed", action="sweep.failed", error=str(error))
                continue
            self._registry.gone(removed)
            gone |= removed
        return gone
