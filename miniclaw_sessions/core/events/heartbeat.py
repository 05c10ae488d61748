"""Waiting for news, or for a heartbeat where there are none: one timer, however many wait."""

from __future__ import annotations

import asyncio
import math

import anyio

from miniclaw_sessions.clock import Clock, sleep_unless

QUIET_S = 15.0
"""Each waiter gets a heartbeat at least this often."""

_PATIENCE_S = 10.0  # a waiter may get its heartbeat after this time: so they do not all get it at once
_BEAT_S = 0.1

Waiters = set["asyncio.Future[bool]"]
"""Those who wait for the same news."""


class Heartbeat:
    """All waiters of one manager, those first that began first.

    A wait is a bare future: ten thousand streams that have nothing to say are ten thousand of them, and no timer each.

    Args:
        clock: time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[asyncio.Future[bool], float] = {}
        self._has_waiters = anyio.Event()
        self._stop = anyio.Event()

    def __repr__(self) -> str:
        return f"<Heartbeat of {len(self._since)}>"

    async def wait(self, among: Waiters) -> bool:
        """Wait until `wake` is called for these, which gives True, or for a heartbeat, which gives False."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        among.add(future)
        self._since[future] = self._clock.monotonic()
        self._has_waiters.set()
        try:
            return await future
        finally:
            among.discard(future)
            self._since.pop(future, None)

    async def run(self) -> None:
        """Give heartbeats until `close`."""
        while not self._stop.is_set():
            await self._has_waiters.wait()
            if not await sleep_unless(self._clock, self._pause(), self._stop):
                self._beat()

    def close(self) -> None:
        """Make `run` return."""
        self._stop.set()
        self._has_waiters.set()

    def _pause(self) -> float:
        """How long none of them has waited long enough: who comes later may wait longer."""
        oldest = next(iter(self._since.values()), -math.inf)
        return max(_BEAT_S, oldest + _PATIENCE_S - self._clock.monotonic())

    def _beat(self) -> None:
        """Give a heartbeat to those that have waited longest: a few at a time, so that nothing else waits for all."""
        if not self._since:
            self._has_waiters = anyio.Event()
            return
        now = self._clock.monotonic()
        most = math.ceil(len(self._since) * _BEAT_S / (QUIET_S - _PATIENCE_S))
        for place, (future, since) in enumerate(self._since.items(), start=1):
            if now - since < (_PATIENCE_S if place <= most else QUIET_S - _BEAT_S):
                break
            if not future.done():
                future.set_result(False)


def wake(among: Waiters) -> None:
    """There are news for these."""
    for future in among:
        if not future.done():
            future.set_result(True)
    among.clear()
