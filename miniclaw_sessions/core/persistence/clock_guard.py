"""Whether the wall clock can be believed: a wrong one must not let everything expire at once."""

from __future__ import annotations

from datetime import datetime, timedelta

from miniclaw_sessions.clock import Clock

JUMP = timedelta(hours=1)
"""A difference between wall clock and monotonic clock that is no drift any more."""

LONG_SILENCE = timedelta(days=1)
"""No session used for longer than this before the start: the clock may be wrong."""


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

        A suspended machine looks the same and is treated the same: its sessions could not be used meanwhile.
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
