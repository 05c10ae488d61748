"""Flush and recovery, beside the bare loops that do only what the disk must do."""

from __future__ import annotations

import gc
import os
import statistics
import time
from functools import partial
from pathlib import Path

import anyio
import msgspec

from benchmarks.workload import Row, fresh, in_process, in_turns, message
from miniclaw_sessions import SessionManager, SessionSettings
from miniclaw_sessions.core.history.state import State
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.disk import Directory


class _Typed(State):
    """A snapshot file with its messages."""

    messages: list[Message]  # type: ignore[assignment]


SETTINGS = SessionSettings(flush_interval_s=3600, max_unsaved_bytes=2**40)


def measure(directory: Path, *, quick: bool) -> list[Row]:
    """The rows of this benchmark."""
    rounds = 1 if quick else 3
    dirty, stored = (200, 1_000) if quick else (2_000, 10_000)
    home = fresh(directory, "flush")
    flushes = [in_process(_run_flush, fresh(home, "ours"), dirty) for _ in range(rounds)]
    flush = statistics.median(seconds for seconds, _ in flushes)
    delay = statistics.median(p99 for _, p99 in flushes)
    (bare_flush,) = in_turns(rounds, partial(in_process, _run_bare_flush, fresh(home, "bare"), dirty))
    place = fresh(directory, "recovery")
    in_process(_fill, place, stored)
    recovery, bare_recovery = in_turns(
        rounds, partial(in_process, _run_recovery, place), partial(in_process, _run_bare_recovery, place)
    )
    return [
        Row(f"flush of {dirty:,} dirty sessions", "s", flush, bare_flush, "at most 1.5 x", flush <= 1.5 * bare_flush),
        Row("loop delay during that flush, p99", "ms", delay * 1e3, None, "under 5", delay < 0.005),
        Row(
            f"recovery of {stored:,} sessions",
            "s",
            recovery,
            bare_recovery,
            "at most 1.5 x",
            recovery <= 1.5 * bare_recovery,
        ),
    ]


async def _make_sessions(manager: SessionManager, count: int) -> None:
    for number in range(count):
        session = await manager.get_or_create("bench", number)
        for one in range(50):
            session.append(message(one))
        if number % 100 == 99 or number == count - 1:
            await session.saved()


def _fill(place: Path, count: int) -> None:
    async def main() -> None:
        async with SessionManager(place, store="sqlite:", settings=SETTINGS) as manager:
            await _make_sessions(manager, count)

    anyio.run(main)


def _run_flush(directory: Path, count: int) -> tuple[float, float]:
    delays: list[float] = []

    async def heartbeat() -> None:
        while True:
            started = time.perf_counter()
            await anyio.sleep(0.001)
            delays.append(time.perf_counter() - started - 0.001)

    async def main() -> tuple[float, float]:
        async with SessionManager(fresh(directory, "run"), store="sqlite:", settings=SETTINGS) as manager:
            await _make_sessions(manager, count)
            gc.freeze()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(heartbeat)
                report = await manager.flush()
                tasks.cancel_scope.cancel()
            assert report.written == count, report
            delays.sort()
            return report.seconds, delays[int(len(delays) * 0.99)] if delays else 0.0

    return anyio.run(main)


def _run_bare_flush(directory: Path, count: int) -> float:
    """The floor: write all, one sync of the file system, rename all, one sync of the directory."""
    place = fresh(directory, "run")
    data = b"x" * 24_400
    held = Directory(place)
    started = time.perf_counter()
    for number in range(count):
        with open(place / f"{number}.tmp", "xb", buffering=0) as file:
            file.write(data)
    held._sync_file_system()
    for number in range(count):
        os.rename(place / f"{number}.tmp", place / f"{number}.json")
    held.sync()
    seconds = time.perf_counter() - started
    held.close()
    return seconds


def _run_recovery(place: Path) -> float:
    import miniclaw_sessions.core.stores.sqlite.store  # noqa: F401, PLC0415 - a library's import is no part of recovery

    async def main() -> float:
        started = time.perf_counter()
        async with SessionManager(place, store="sqlite:", settings=SETTINGS) as manager:
            seconds = time.perf_counter() - started
            assert not (await manager.flush()).written
        return seconds

    return anyio.run(main)


def _run_bare_recovery(place: Path) -> float:
    """The floor: read every file and decode it, typed and validated, keeping the result."""
    decoder = msgspec.json.Decoder(_Typed)
    gc.disable()
    started = time.perf_counter()
    kept = []
    for entry in os.scandir(place / "sessions"):
        with open(entry.path, "rb", buffering=0) as file:
            kept.append(decoder.decode(file.read()))
    return time.perf_counter() - started
