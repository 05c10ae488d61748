"""Memory of live sessions beside their raw JSON, and the longest pause of the garbage collector."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import anyio

from benchmarks.checkpoints import SETTINGS, _fill
from benchmarks.workload import Row, collector_watched, fresh, in_process, message
from miniclaw_sessions import SessionManager


def measure(directory: Path, *, quick: bool) -> list[Row]:
    """The rows of this benchmark."""
    count = 1_000 if quick else 20_000
    place = fresh(directory, "memory")
    in_process(_fill, place, count)
    raw = sum(file.stat().st_size for file in (place / "sessions").iterdir())
    used, pause = in_process(_run, place)
    return [
        Row(f"memory of {count:,} sessions", "MB", used / 1e6, raw / 1e6, "at most 1.6 x", used <= 1.6 * raw),
        Row("longest collector pause meanwhile", "ms", pause * 1e3, None, "under 20", pause < 0.020),
    ]


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _run(place: Path) -> tuple[int, float]:
    """Load them all in a manager as the daemon has it, then append for a while, with the collector watched."""

    async def main() -> tuple[int, float]:
        async with SessionManager(fresh(place.parent, "warm-up"), store="sqlite:", settings=SETTINGS):
            before = _resident()
        async with SessionManager(place, store="sqlite:", settings=SETTINGS) as manager:
            gc.collect()
            gc.freeze()
            gc.set_threshold(10_000, 250, 100)  # as the daemon does
            with collector_watched() as pauses:
                summaries = await manager.list()
                used = _resident() - before
                for number in range(200_000 if len(summaries) > 5_000 else 20_000):
                    session = await manager.find(summaries[number % len(summaries)].session_id)
                    session.append(message(number))
                    if number % 1_000 == 0:
                        await session.saved()
            return used, max(pauses, default=0.0)

    return anyio.run(main)
