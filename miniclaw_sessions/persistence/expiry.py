"""Which sessions have outlived their time, and whether the clock may be believed when it says so.

A session expires when it has been idle for strictly longer than its time to live; every use renews it. A wrong clock
must not expire everything at once (requirement W40). While the process runs, a forward jump of the wall clock against
the monotonic one is added to every session's last access. When no session at all was used for over a day before the
start, either the clock is wrong or the gateway was down; in both cases people get one sweep interval to come back.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from miniclaw_sessions.clock import Clock

JUMP = timedelta(hours=1)
"""A difference between wall clock and monotonic clock that is no drift any more."""

LONG_SILENCE = timedelta(days=1)


class Expiring(Protocol):
    """What expiry needs of a session."""

    @property
    def last_accessed(self) -> datetime:
        """When it was last used."""
        ...

    @property
    def in_turn(self) -> bool:
        """Whether it is being used now."""
        ...


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one sweep did; `postponed` tells why it did nothing, where the clock is not to be believed."""

    scanned: int = 0
    expired: int = 0
    archived: int = 0
    postponed: str | None = None


class ClockGuard:
    """Watches whether the wall clock can be believed."""

    def __init__(self, clock: Clock, *, newest_access: datetime | None, patience_s: float) -> None:
        self._clock = clock
        self._started_at = self._wall = clock.now()
        self._trusted_from = self._monotonic = clock.monotonic()
        self._patient_until = self._monotonic + patience_s
        if newest_access is not None:
            self.consider(newest_access)

    def consider(self, newest_access: datetime) -> None:
        """A session was last used then, and none later, before the start."""
        if abs(self._started_at - newest_access) > LONG_SILENCE:
            self._trusted_from = self._patient_until

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
            return "no session was used for more than a day before the start: the clock may be wrong"
        return None


def is_idle(session: Expiring, now: datetime, ttl: timedelta) -> bool:
    """Whether it has been idle for strictly longer than `ttl` (0: never); a time in the future counts as now."""
    return ttl > timedelta(0) and now - session.last_accessed > ttl


def is_expired(session: Expiring, now: datetime, ttl: timedelta) -> bool:
    """Whether a session may go: idle for too long, and not in a turn."""
    return is_idle(session, now, ttl) and not session.in_turn
