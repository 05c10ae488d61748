"""Samples the daemon's numbers for the plots of its page (`api.samples`)."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
from anyio import to_thread
from prometheus_client import Histogram

from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.service.api.samples import EVERY_S, Series
from miniclaw_sessions.service.gateway.telemetry import LoopDelay


async def sample(manager: SessionManager, series: Series, commit_seconds: Histogram, delay: LoopDelay) -> None:
    """Add a sample every `EVERY_S` until cancelled.

    Args:
        manager: whose numbers they are.
        series: where they go.
        commit_seconds: how long each commit took.
        delay: the event loop's.
    """
    while True:
        memory = await to_thread.run_sync(_memory_bytes)
        numbers = manager.statistics()
        sums = [one.value for metric in commit_seconds.collect() for one in metric.samples if one.name.endswith("_sum")]
        series.add(
            {
                "at": manager.clock.now().timestamp(),
                "appended": numbers.appended,
                "commits": numbers.commits,
                "commit_seconds": sum(sums),
                "flush_seconds": numbers.last_flush_seconds,
                "memory_bytes": memory,
                "loop_delay_s": delay.take_worst(),
            }
        )
        await anyio.sleep(EVERY_S)


def _memory_bytes() -> int:
    """The process's resident memory; 0 where the system does not report it."""
    try:
        resident = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(resident) * os.sysconf("SC_PAGE_SIZE")
