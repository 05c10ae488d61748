"""Heartbeats: in time, and a few at once."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from miniclaw_sessions.core.events.heartbeat import QUIET_S, Heartbeat, wake
from miniclaw_sessions.testing import FakeClock

pytestmark = pytest.mark.anyio


async def test_heartbeats_come_in_time_and_a_few_at_once() -> None:
    clock = FakeClock()
    heartbeat = Heartbeat(clock)
    together: set[Any] = set()
    heard: dict[int, float] = {}
    news: list[int] = []

    async def wait(number: int) -> None:
        while True:
            heard[number] = clock.monotonic()
            if await heartbeat.wait(together):
                news.append(number)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(heartbeat.run)
        for number in range(600):
            tasks.start_soon(wait, number)
        for _ in range(400):
            await clock.advance(0.1)
            assert clock.monotonic() - min(heard.values()) <= QUIET_S, "no stream is taken for dead"
            at_once = sum(at == clock.monotonic() for at in heard.values())
            assert at_once == 600 or at_once < 600 / 40, "no other task waits for six hundred"
        wake(together)
        await clock.advance(0)
        assert sorted(news) == list(range(600))
        tasks.cancel_scope.cancel()


class Counting(FakeClock):
    """Counts how often anybody asks to be woken."""

    slept = 0

    async def sleep(self, seconds: float) -> None:
        self.slept += 1
        await super().sleep(seconds)


async def test_nothing_wakes_before_the_first_heartbeat_is_due() -> None:
    clock, heard = Counting(), list[float]()
    heartbeat = Heartbeat(clock)

    async def wait() -> None:
        while True:
            await heartbeat.wait(set())
            heard.append(clock.monotonic())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(heartbeat.run)
        tasks.start_soon(wait)
        await clock.advance(10 * QUIET_S)
        tasks.cancel_scope.cancel()
    assert len(heard) >= 10
    assert clock.slept <= len(heard) + 2
