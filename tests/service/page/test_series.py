"""The numbers behind the plots: sampled while the daemon runs, for an hour, column by column."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from prometheus_client import CollectorRegistry, Histogram

from miniclaw_sessions.config import SessionSettings, Settings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.service.api.samples import MOST, Series
from miniclaw_sessions.service.gateway.sampling import sample
from miniclaw_sessions.service.gateway.telemetry import LoopDelay, Telemetry
from miniclaw_sessions.testing.clock import FakeClock

pytestmark = pytest.mark.anyio


async def test_a_sample_tells_the_daemons_numbers(tmp_path: Path) -> None:
    clock, series = FakeClock(), Series()
    seconds = Histogram("commit_seconds", "How long.", registry=CollectorRegistry())
    seconds.observe(0.25)
    async with (
        SessionManager(tmp_path, settings=SessionSettings(store="memory:"), clock=clock) as manager,
        anyio.create_task_group() as tasks,
    ):
        await (await manager.get_or_create("demo", "1")).add_message(Message.user("x"))
        delay = LoopDelay(Telemetry(manager.statistics, Settings()).metrics)
        tasks.start_soon(sample, manager, series, seconds, delay)
        while not (reply := series.reply(None)).at:
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert reply.at == [clock.now().timestamp()]
    assert reply.appended == [1]
    assert reply.commit_seconds == [0.25]
    assert reply.memory_bytes[0] > 1_000_000
    assert reply.loop_delay_s == [0]


def test_an_hour_is_kept_and_only_what_is_new_is_told() -> None:
    series = Series()
    for number in range(MOST + 10):
        series.add({"at": float(number), "appended": number})
    assert len(series.reply(None).at) == MOST
    newest = series.reply(MOST + 7.0)
    assert (newest.at, newest.appended, newest.commits) == ([MOST + 8.0, MOST + 9.0], [MOST + 8, MOST + 9], [0, 0])
