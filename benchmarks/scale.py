"""Many sessions: 100,000 live ones in one process, and a million on disk of which only some are in memory.

The second part runs the real daemon and talks to it over its socket. It needs some 15 GB of disk and several minutes.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import anyio
import msgspec
import orjson

from benchmarks.checkpoints import SETTINGS, _fill, _run_bare_flush, _run_bare_recovery
from benchmarks.daemon import Daemon
from benchmarks.memory import _resident
from benchmarks.unix_http import Connection
from benchmarks.workload import Row, collector_watched, fresh, in_process, message
from miniclaw_sessions import SessionManager, SessionSettings


class Sizes(NamedTuple):
    """How many sessions.

    Attributes:
        live: in memory at once, in the first part.
        stored: on disk, in the second part.
        resident: of those, in memory at most.
        touched: that are used while the bound is watched.
        timed: that are used for the first time, one after the other, while the reply is timed.
    """

    live: int = 100_000
    stored: int = 1_000_000
    resident: int = 20_000
    touched: int = 50_000
    timed: int = 2_000


QUICK = Sizes(live=2_000, stored=20_000, resident=1_000, touched=3_000, timed=300)

CLIENTS = 8
BYTES_PER_SESSION = 15_000
"""On disk, with room to spare: a snapshot takes whole blocks of the file system, and its entries stand in the store."""

FULL_EVERY = 100
START_TARGET_S, MEMORY_TARGET_MB, REPLY_TARGET_MS, PAUSE_TARGET_MS = 10.0, 1000.0, 50.0, 20.0


def measure(directory: Path, *, quick: bool) -> list[Row]:
    """The rows of this benchmark."""
    sizes = QUICK if quick else Sizes()
    _require_space(directory, sizes.stored * BYTES_PER_SESSION)
    rows = _measure_live(fresh(directory, "live"), sizes.live)
    with tempfile.TemporaryDirectory(prefix="scale") as scratch:  # sockets need a short path
        place = fresh(directory, "stored")
        rows += _measure_stored(place, Path(scratch), sizes)
        shutil.rmtree(place)
    return rows


def _require_space(directory: Path, wanted: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < wanted:
        raise OSError(f"{directory} has {free / 1e9:.0f} GB free, and this needs {wanted / 1e9:.0f}; try --directory")


# --- live ------------------------------------------------------------------------------------------------------------


def _measure_live(place: Path, count: int) -> list[Row]:
    settings = msgspec.structs.replace(SETTINGS, max_sessions=count, max_cached=count)
    in_process(_fill, place / "w", count)
    raw = sum(file.stat().st_size for file in (place / "w" / "sessions").iterdir()) / 1e6
    bare_start = in_process(_run_bare_recovery, place / "w")
    numbers = in_process(_run_live, place, settings)
    shutil.rmtree(place)
    bare_flush = in_process(_run_bare_flush, place, count)
    shutil.rmtree(place)
    memory, pause = numbers["memory"], numbers["pause"]
    return [
        Row(f"start with {count:,} sessions of 50 messages", "s", numbers["start"], bare_start),
        Row("memory of all, loaded (floor: their JSON)", "MB", memory, raw, "at most 1.6 x", memory <= 1.6 * raw),
        Row("longest collector pause, appending to all", "ms", pause, None, "under 20", pause < PAUSE_TARGET_MS),
        Row("longest delay of the event loop meanwhile", "ms", numbers["delay"]),
        Row(f"flush of all {count:,}", "s", numbers["flush"], bare_flush),
        Row("event loop's delay meanwhile, p99", "ms", numbers["flush delay p99"]),
        Row("event loop's delay meanwhile, longest", "ms", numbers["flush delay"]),
    ]


class Delays:
    """How late the event loop is, every millisecond."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            started = time.perf_counter()
            await anyio.sleep(0.001)
            self.seconds.append(time.perf_counter() - started - 0.001)

    def take(self) -> tuple[float, float]:
        """The p99 and the longest since the last time, milliseconds."""
        ordered, self.seconds = sorted(self.seconds) or [0.0], []
        return quantile(ordered, 0.99) * 1e3, ordered[-1] * 1e3


def _run_live(place: Path, settings: SessionSettings) -> dict[str, float]:
    return anyio.run(_measured_live, place, settings)


async def _measured_live(place: Path, settings: SessionSettings) -> dict[str, float]:
    numbers: dict[str, float] = {}
    async with SessionManager(place / "warm-up", settings=settings):
        before = _resident()
    started = time.perf_counter()
    async with SessionManager(place / "w", settings=settings) as manager, anyio.create_task_group() as tasks:
        numbers["start"] = time.perf_counter() - started
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 250, 100)  # as the daemon does
        delays = Delays()
        tasks.start_soon(delays.watch)
        with collector_watched() as pauses:
            await manager.list()
            numbers["memory"] = (_resident() - before) / 1e6
            await _append_to_all(manager)
        _, numbers["delay"] = delays.take()
        numbers["pause"] = max(pauses, default=0.0) * 1e3
        numbers["flush"] = (await manager.flush()).seconds
        numbers["flush delay p99"], numbers["flush delay"] = delays.take()
        tasks.cancel_scope.cancel()
    return numbers


async def _append_to_all(manager: SessionManager) -> None:
    """Twice to each, a hundred at a time, each hundred acknowledged."""
    ids = [summary.session_id for summary in await manager.list()]
    sessions = [await manager.find(session_id) for session_id in ids]
    for number in range(2 * len(sessions)):
        sessions[number % len(sessions)].append(message(number))
        if number % 100 == 99:
            await sessions[number % len(sessions)].saved()


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of them is below."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


# --- stored ----------------------------------------------------------------------------------------------------------


def _measure_stored(place: Path, scratch: Path, sizes: Sizes) -> list[Row]:
    started = time.perf_counter()
    entries = in_process(_populate, place / "w", sizes.stored)
    rate = sizes.stored / (time.perf_counter() - started)
    settings = {
        "MINICLAW_SESSIONS_MAX_SESSIONS": str(2 * sizes.stored),
        "MINICLAW_SESSIONS_MAX_CACHED": str(sizes.resident),
        "MINICLAW_LOG_LEVEL": "warning",
    }
    with Daemon(place / "w", scratch, **settings) as daemon:
        numbers = anyio.run(_measured_stored, daemon, sizes)
        check = Row("check of all of them", "s", _seconds_of_check(daemon))
    name = f"{sizes.stored:,} sessions on disk, {sizes.resident:,} in memory"
    made = Row(f"sessions made, of {entries / sizes.stored:.1f} messages", "per s", rate)
    return [made, *_rows_of_starts(name, numbers), *_rows_of_use(numbers, sizes), check]


def _rows_of_starts(name: str, numbers: Mapping[str, float]) -> list[Row]:
    starts = {
        "start": name,
        "start after a kill": "after kill -9",
        "start without page cache": "page cache dropped",
    }
    return [
        Row(f"start to READY, {text}", "s", numbers[key], None, "under 10", numbers[key] < START_TARGET_S)
        for key, text in starts.items()
        if key in numbers
    ]


def _rows_of_use(numbers: Mapping[str, float], sizes: Sizes) -> list[Row]:
    memory = {"memory": "memory after the start", "peak memory": f"peak, after {sizes.touched:,} sessions were used"}
    rows = [
        Row(text, "MB", numbers[key], None, "under 1,000", numbers[key] < MEMORY_TARGET_MB)
        for key, text in memory.items()
    ]
    replies = {
        "read": "messages of a sleeping session",
        "append": "message acknowledged in a sleeping session",
        "read from disk": "messages, page cache dropped",
    }
    rows += [
        Row(f"{text}, {share}", "ms", value, None, "under 50", value < REPLY_TARGET_MS)
        for key, text in replies.items()
        for share in ("p99", "longest")
        if (value := numbers.get(f"{key} {share}")) is not None
    ]
    most = numbers["resident"]
    return [
        *rows,
        Row("sessions in memory then", "", most, sizes.resident, "the floor is the bound", most <= sizes.resident),
    ]


def _populate(place: Path, count: int) -> int:
    return anyio.run(_populated, place, count)


async def _populated(place: Path, count: int) -> int:
    """Make them with the library itself; how many messages they have together."""
    settings = msgspec.structs.replace(SETTINGS, max_sessions=count, max_cached=10_000)
    entries = 0
    async with SessionManager(place, settings=settings) as manager:
        gc.freeze()
        gc.set_threshold(10_000, 250, 100)
        for number in range(count):
            session = await manager.get_or_create("scale", number)
            for one in range(_messages_of(number)):
                session.append(message(one))
            entries += _messages_of(number)
            if number % 5_000 == 4_999:
                await manager.flush()
    return entries


async def _measured_stored(daemon: Daemon, sizes: Sizes) -> dict[str, float]:
    chosen = random.Random(sizes.stored).sample(range(sizes.stored), sizes.touched)
    numbers = {"start": await daemon.start(), "memory": daemon.usage().resident}
    few = sizes.timed
    reading, appending, rest = chosen[:few], chosen[few : 2 * few], chosen[2 * few :]
    numbers |= await _timed(daemon, "read", _read, reading)
    numbers |= await _timed(daemon, "append", _append, appending)
    async with anyio.create_task_group() as tasks:
        for client in range(CLIENTS):
            tasks.start_soon(_use, daemon, rest[client::CLIENTS])
    async with await Connection.open(daemon.socket) as connection:
        numbers["resident"] = orjson.loads((await connection.get("/v1/statistics")).body)["cached"]
    numbers["peak memory"] = daemon.peak_memory()
    await daemon.end(signal.SIGKILL)
    numbers["start after a kill"] = await daemon.start()
    await daemon.end(signal.SIGTERM)
    if _drop_page_cache():
        numbers["start without page cache"] = await daemon.start()
        numbers |= await _timed(daemon, "read from disk", _read, rest[:few])
        await daemon.end(signal.SIGTERM)
    return numbers


Call = Callable[[Connection, int], Awaitable[None]]


async def _timed(daemon: Daemon, name: str, call: Call, numbers: Sequence[int]) -> dict[str, float]:
    seconds = []
    async with await Connection.open(daemon.socket) as connection:
        for number in numbers:
            started = time.perf_counter()
            await call(connection, number)
            seconds.append(time.perf_counter() - started)
    seconds.sort()
    return {f"{name} p99": quantile(seconds, 0.99) * 1e3, f"{name} longest": seconds[-1] * 1e3}


async def _use(daemon: Daemon, numbers: Sequence[int]) -> None:
    async with await Connection.open(daemon.socket) as connection:
        for number in numbers:
            await _read(connection, number)


async def _read(connection: Connection, number: int) -> None:
    reply = await connection.get(f"/v1/sessions/scale_{number}/messages")
    found = len(orjson.loads(reply.body)["messages"])
    if found != _messages_of(number):
        raise AssertionError(f"session {number} has {found} messages instead of {_messages_of(number)}")


async def _append(connection: Connection, number: int) -> None:
    document = {"role": "user", "content": f"one more for {number}"}
    reply = await connection.post(f"/v1/sessions/scale_{number}/messages", document)
    sequence = orjson.loads(reply.body)["entries"][0]["sequence"]
    if sequence != _messages_of(number) + 1:
        raise AssertionError(f"session {number} has {sequence} messages instead of one more than before")


def _messages_of(number: int) -> int:
    """How many messages a session has: 50 one in a hundred, the others two to four."""
    return 50 if number % FULL_EVERY == 0 else 2 + number % 3


def _drop_page_cache() -> bool:
    """Make the machine forget what it has read; only root can."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")
    except OSError:
        return False
    return True


def _seconds_of_check(daemon: Daemon) -> float:
    """How long it takes to look at everything, which must be sound."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "miniclaw_sessions", "check", "--json"]
    done = subprocess.run(command, env=daemon.environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"the population is not sound: {done.stdout[:1000]}{done.stderr[:1000]}")
    return time.perf_counter() - started
