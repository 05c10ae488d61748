"""A clock whose pauses are short."""

from __future__ import annotations

import anyio

from miniclaw_sessions.clock import SystemClock
from tests.channels.rooms import PATIENCE_S


class HastyClock(SystemClock):
    """Notes how long it was to sleep, and hardly does.

    Args:
        goes: whether each pause counts as long as it was to be; else what paces sees the time that the test says.
    """

    def __init__(self, *, goes: bool = False) -> None:
        super().__init__()
        self._goes = goes
        self.pauses: list[float] = []
        self.time = 0.0
        self.held: dict[float, anyio.Event] = {}
        """Pauses that are as long as the test says."""
        self._paused = anyio.Event()

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._paused.set()
        self._paused = anyio.Event()
        if seconds in self.held:
            await self.held[seconds].wait()
        else:
            await anyio.sleep(min(seconds, 0.01))
        if self._goes:
            self.time += seconds

    async def paused(self, seconds: float, times: int) -> None:
        """Wait until it was to sleep that long that often."""
        with anyio.fail_after(PATIENCE_S):
            while self.pauses.count(seconds) < times:
                await self._paused.wait()
