"""Expiry where several processes share a database: it says what is idle, and lets one of them remove a session."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.core.persistence.retention import JUMP, ClockGuard, Looked, Retention, Rule
from miniclaw_sessions.core.session import Home, Journal
from miniclaw_sessions.core.session.home import ManagedHome
from miniclaw_sessions.core.sharing.census import Census
from miniclaw_sessions.core.sharing.database import Database
from miniclaw_sessions.core.sharing.lists import sessions_in
from miniclaw_sessions.core.stores.shared_store import SharedStore
from miniclaw_sessions.errors import SessionsError
from miniclaw_sessions.log import get_logger

FORETOLD = 10_000
"""How many idle sessions are listed at most."""

TOGETHER = 100
"""How many are removed in one transaction."""

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
    """The sessions that will be idle for too long when this time has passed; at most this many of each rule."""
    idle = list[str]()
    for rule in retention.rules:
        if rule.ttl:
            idle_s = max(0.0, (rule.ttl - ahead).total_seconds())
            others = () if rule.channel is not None else retention.channels
            idle += await shared.idle(idle_s, limit=limit, channel=rule.channel, but_channels=others)
    return idle


async def held_in(database: Database, session_ids: Sequence[str], home: Home[Journal]) -> list[str]:
    """Those of these sessions that are under legal hold."""
    found = await sessions_in(database, session_ids, home)
    return [session_id for session_id, session in found.items() if session.journal.legal_hold is not None]


class SharedPopulation:
    """The sessions of a shared store; its clock decides which are idle."""

    def __init__(
        self,
        home: ManagedHome[Journal],
        database: Database,
        census: Census,
        retention: Retention,
        guard: ClockGuard,
    ) -> None:
        self._home = home
        self._database = database
        self._census = census
        self._retention = retention
        self._guard = guard
        self._clock = home.clock
        self._is_first_look = True
        self._stay = 0  # how many of the idle ones are held

    def __repr__(self) -> str:
        return f"<SharedPopulation of {self._database!r}>"

    async def find_idle(self, at: datetime) -> Looked:
        """Which sessions will be idle for too long at that moment, without those used here that it does not know of."""
        if self._is_first_look:
            for newest in await self._database.server.newest(limit=1):
                self._guard.consider(newest.last_accessed)
            self._is_first_look = False
        return await self._find_idle(at, await self._census.take())

    async def _find_idle(self, at: datetime, scanned: int) -> Looked:
        ahead, limit = at - self._clock.now(), FORETOLD + self._stay
        idle = await idle_in(self._database.server, self._retention, ahead, limit=limit)
        used = {position.session_id for position, _ in self._census.unsaved_uses()}
        held = await self.held([one for one in idle if one not in used])
        self._stay = len(held)  # or else those behind the ones that are held would never be seen
        kept = frozenset(held) | used
        return Looked(scanned, [one for one in idle if one not in kept], held)

    async def held(self, session_ids: Sequence[str]) -> list[str]:
        """Those of these sessions that are under legal hold."""
        return await held_in(self._database, session_ids, self._home)

    async def doubt(self) -> str | None:
        """Why one of the two clocks is not to be believed."""
        return self._guard.doubt() or await doubt_of(self._database.server, self._clock)

    def forgive(self, jump: timedelta, *, before: datetime) -> None:  # noqa: ARG002 - as where uses are kept here
        """Uses are dated by the server, which may have jumped as well: people get a while to come back."""
        self._guard.distrust()

    async def keep_forgiven(self) -> None:
        """Nothing was changed."""

    async def renewed(self, session_id: str, used_before: datetime) -> None:
        """Let the others know at once of the use of a session that had been idle for long."""
        ttl = self._retention.of_id(session_id).ttl
        if ttl and self._clock.now() - used_before > ttl / 2:
            await self._census.write_uses()

    async def remove(self, idle: list[str]) -> dict[str, int]:
        """Remove those that are still idle; what another process removes at the same time, that one reports."""
        gone = dict[str, int]()
        while idle:
            before = len(gone)
            for rule in self._retention.rules:
                gone |= await self._remove_of(rule, [one for one in idle if self._retention.of_id(one) is rule])
            if len(gone) == before:
                break
            idle = (await self._find_idle(self._clock.now(), 0)).idle
        return gone

    async def _remove_of(self, rule: Rule, idle: list[str]) -> dict[str, int]:
        archiving = self._database.archive.archiving(self._clock.now()) if rule.archives else None
        gone = dict[str, int]()
        for start in range(0, len(idle), TOGETHER):
            part = idle[start : start + TOGETHER]
            try:
                removed = await self._database.store.watch(
                    self._database.server.expire(part, rule.ttl.total_seconds(), archiving)
                )
            except SessionsError as error:  # the others expire all the same
                log.error("expired sessions could not be removed", action="sweep.failed", error=str(error))
                continue
            self._home.gone(removed)
            gone |= removed
        return gone
