"""Time that stands still until a test moves it."""

from __future__ import annotations

import heapq
from datetime import UTC, datetime, timedelta

import anyio
from anyio.lowlevel import checkpoint

_ROUNDS = 32
"""How often the other tasks get to run after each step of time: enough for a chain of that many wake-ups."""

_ROUNDING = 1e-6
"""Seconds by which a sum of steps may miss a deadline: ten times 0.1 is not quite 1."""


class FakeClock:
    """A `Clock` for tests: time passes as fast as the tasks that it wakes run, and always in the same way.

    Thirty days without a wake-up cost nothing; each wake-up on the way, such as a flush every 30 s, costs some tenths
    of a millisecond.

    Time moves only by `advance` (both clocks) or `jump` (the wall clock alone, as when a person sets it). Ids are
    UUIDv7 texts, made of the time and a counter: the same in every run, unique within one clock, ascending even when
    the wall clock is set back. `jitter` returns its argument.
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._wall = start
        self._monotonic = 1000.0  # not 0, which code may treat as "never"
        self._sleepers: list[tuple[float, int, anyio.Event]] = []
        self._sleeps = 0
        self._ids = 0
        self._id_milliseconds = 0

    def __repr__(self) -> str:
        return f"<FakeClock {self._wall:%Y-%m-%dT%H:%M:%S}Z, {self.sleepers} sleepers>"

    @property
    def sleepers(self) -> int:
        """How many tasks sleep on this clock."""
        return len(self._sleepers)

    def now(self) -> datetime:
        """The wall clock, UTC."""
        return self._wall

    def monotonic(self) -> float:
        """Seconds, moved by `advance` only."""
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        """Wait until the test has moved time this far."""
        if seconds <= 0:
            await checkpoint()
            return
        self._sleeps += 1
        sleeper = (self._monotonic + seconds, self._sleeps, anyio.Event())
        heapq.heappush(self._sleepers, sleeper)
        try:
            await sleeper[2].wait()
        finally:
            if sleeper in self._sleepers:  # cancelled
                self._sleepers.remove(sleeper)
                heapq.heapify(self._sleepers)

    async def advance(self, seconds: float) -> None:
        """Let time pass: sleeping tasks wake in order of their deadlines, and each runs before the next one wakes.

        The other tasks run until they wait, but their work in threads is not waited for: await its result before you
        look at it.

        Args:
            seconds: how far time moves, 0 or more; 0 lets the other tasks run.
        """
        end = self._monotonic + seconds
        await _let_others_run()
        while self._sleepers and self._sleepers[0][0] <= end + _ROUNDING:
            deadline, _, event = heapq.heappop(self._sleepers)
            self._move_to(min(deadline, end))
            event.set()
            await _let_others_run()
        self._move_to(end)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or back with a negative number; the monotonic clock goes on undisturbed."""
        self._wall += timedelta(seconds=seconds)

    def new_id(self) -> str:
        """A UUIDv7 made of the time and a counter."""
        self._ids += 1
        self._id_milliseconds = max(self._id_milliseconds, int(self._wall.timestamp() * 1000))
        time = f"{self._id_milliseconds:012x}"
        return f"{time[:8]}-{time[8:]}-7000-8000-{self._ids:012x}"

    def jitter(self, seconds: float) -> float:
        """The same duration."""
        return seconds

    def _move_to(self, monotonic: float) -> None:
        self._wall += timedelta(seconds=monotonic - self._monotonic)
        self._monotonic = monotonic


async def _let_others_run() -> None:
    for _ in range(_ROUNDS):
        await checkpoint()
