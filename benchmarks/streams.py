"""Ten thousand connections that wait for events, and requests beside them, on the real daemon.

Half of the streams follow a session each in which nothing is said, half watch a channel in which nothing happens; a few
watch everything. Requests come at a fixed rate, whether or not earlier ones are done, half of them reads and half
acknowledged appends. Memory and processor time are the daemon's, from outside. Before that, with the streams but
without requests, what a stream and a sign of life cost; after it, how long the daemon takes to stop; and reads and
appends beside a bare starlette route that is asked by the same client, in turns; appends also beside one that commits
what it is given to SQLite, with a sync each.

Exit status 0: no request failed, no stream broke, and memory stayed flat.

Examples:
    python -m benchmarks.streams --connections 10000 --rate 500 --minutes 5
    python -m benchmarks.streams --connections 500 --rate 200 --minutes 0.2 --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import signal
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.client import processor_s, served_echo
from benchmarks.daemon import Daemon
from benchmarks.unix_http import Connection

WATCH_ALL = 4
QUIET_SESSIONS = 500
BUSY_SESSIONS = 100
CONNECTIONS = 32
TARGET = 0.6
ROUND_REQUESTS = 1_500
OPENED_TOGETHER = 100
MAX_GROWTH = 0.05
"""By so much of its size the daemon's memory may grow in the second half of the time."""

BODY = {"role": "user", "content": "how is the weather in the mountains today? " * 5}


class Report(msgspec.Struct, kw_only=True):
    """What was found; `problems` is empty when all held."""

    connections: int
    rate: float
    seconds: float
    problems: list[str] = []
    kb_per_stream: float = 0.0
    idle_processor_share: float = 0.0
    us_per_sign_of_life: float = 0.0
    requests: int = 0
    failed: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    rss_mb: list[float] = []
    processor_share: float = 0.0
    events_seen: int = 0
    stop_s: float = 0.0
    reads_per_s: float = 0.0
    reads_of_starlette: float = 0.0
    appends_per_s: float = 0.0
    appends_of_starlette: float = 0.0
    appends_of_starlette_with_sqlite: float = 0.0


class Stream(asyncio.Protocol):
    """A connection that asks for events, and counts what comes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.began = asyncio.get_running_loop().create_future()
        self.is_open = True
        self.pieces = 0
        self.events = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self.transport = transport
        request = f"GET {self._path} HTTP/1.1\r\nhost: localhost\r\n\r\n"
        transport.write(request.encode())  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Count."""
        if not self.began.done():
            self.began.set_result(data.startswith(b"HTTP/1.1 200"))
        self.pieces += 1
        self.events += data.count(b"event: entries")

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        del exc
        self.is_open = False
        if not self.began.done():
            self.began.set_result(False)


async def measure(report: Report, seconds: float, idle_s: float, directory: Path, scratch: Path) -> Report:
    """All of it."""
    variables = {
        "MINICLAW_LISTEN_MAX_CONNECTIONS": str(report.connections + 200),
        "MINICLAW_SESSIONS_MAX_CACHED": "2000",
    }
    with Daemon(directory / "streams", scratch, **variables) as daemon:
        await daemon.start()
        await _prepare(daemon.socket)
        await _compare(report, daemon, scratch)
        before = daemon.usage()
        streams = await _open(daemon.socket, report.connections)
        report.kb_per_stream = (daemon.usage().own - before.own) * 1000 / report.connections
        await _rest(report, daemon, streams, idle_s)
        await _load(report, daemon, seconds)
        if broken := sum(not stream.is_open for stream in streams):
            report.problems.append(f"{broken} streams broke")
        report.events_seen = streams[0].events
        if not report.events_seen:
            report.problems.append("who watches all saw nothing")
        began = time.perf_counter()
        status = await daemon.end(signal.SIGTERM)
        report.stop_s = time.perf_counter() - began
        if status:
            report.problems.append(f"the daemon ended with status {status}")
    if report.failed:
        report.problems.append(f"{report.failed} requests failed")
    half = report.rss_mb[len(report.rss_mb) // 2 :]
    if len(half) > 1 and statistics.mean(half[-len(half) // 4 - 1 :]) > (1 + MAX_GROWTH) * statistics.mean(
        half[: len(half) // 4 + 1]
    ):
        report.problems.append("memory grew")
    return report


async def _prepare(socket: Path) -> None:
    async with await Connection.open(socket) as connection:
        for number in range(QUIET_SESSIONS):
            await connection.post(f"/v1/sessions/quiet_{number}/messages", BODY)
        for number in range(BUSY_SESSIONS):
            await connection.post(f"/v1/sessions/busy_{number}/messages", {"messages": [BODY] * 10})


async def _open(socket: Path, count: int) -> list[Stream]:
    """The streams; the first ones watch everything."""
    loop = asyncio.get_running_loop()
    paths = [
        "/v1/events"
        if number < WATCH_ALL
        else "/v1/events?channel=nowhere"
        if number % 2
        else f"/v1/sessions/quiet_{number % QUIET_SESSIONS}/follow"
        for number in range(count)
    ]
    streams: list[Stream] = []
    for start in range(0, count, OPENED_TOGETHER):
        opened = [
            (await loop.create_unix_connection(lambda path=path: Stream(path), str(socket)))[1]  # type: ignore[misc]
            for path in paths[start : start + OPENED_TOGETHER]
        ]
        began = await asyncio.gather(*(stream.began for stream in opened))
        if not all(began):
            raise RuntimeError(f"stream {start + began.index(False)} was refused")
        streams += opened
    return streams


async def _rest(report: Report, daemon: Daemon, streams: list[Stream], idle_s: float) -> None:
    """What the streams cost when nothing happens."""
    spent, pieces = processor_s(daemon.pid), sum(stream.pieces for stream in streams)
    await anyio.sleep(idle_s)
    spent, pieces = processor_s(daemon.pid) - spent, sum(stream.pieces for stream in streams) - pieces
    report.idle_processor_share = spent / idle_s
    report.us_per_sign_of_life = 1e6 * spent / pieces if pieces else 0.0


async def _load(report: Report, daemon: Daemon, seconds: float) -> None:
    """Requests at a fixed rate; memory is looked at every second."""
    latencies: list[float] = []
    begun = time.perf_counter()
    spent = processor_s(daemon.pid)
    numbers = iter(range(int(report.rate * seconds)))

    async def ask() -> None:
        async with await Connection.open(daemon.socket) as connection:
            for number in numbers:
                due = begun + number / report.rate
                if (early := due - time.perf_counter()) > 0:
                    await anyio.sleep(early)
                report.failed += not await _request(connection, number)
                latencies.append(time.perf_counter() - due)

    async with anyio.create_task_group() as tasks:
        for _ in range(CONNECTIONS):
            tasks.start_soon(ask)
        while time.perf_counter() - begun < seconds:
            report.rss_mb.append(round(daemon.usage().resident, 1))
            await anyio.sleep(1.0)
    report.requests, report.seconds = len(latencies), time.perf_counter() - begun
    report.processor_share = (processor_s(daemon.pid) - spent) / report.seconds
    latencies.sort()
    report.p50_ms, report.p99_ms = (1e3 * latencies[int(len(latencies) * part)] for part in (0.5, 0.99))


async def _request(connection: Connection, number: int) -> bool:
    session = f"/v1/sessions/busy_{number % BUSY_SESSIONS}/messages"
    if number % 2:
        return (await connection.get(f"{session}?limit=10")).status == 200
    return (await connection.post(session, BODY)).status == 201


async def _compare(report: Report, daemon: Daemon, scratch: Path) -> None:
    """Reads and appends as fast as they go, in turns with the same to a bare route."""

    async def rate(socket: Path, work: Callable[[Connection, int], Awaitable[object]]) -> float:
        numbers = iter(range(ROUND_REQUESTS))

        async def caller() -> None:
            async with await Connection.open(socket) as connection:
                for number in numbers:
                    await work(connection, number)

        begun = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for _ in range(CONNECTIONS):
                tasks.start_soon(caller)
        return ROUND_REQUESTS / (time.perf_counter() - begun)

    async def read(connection: Connection, number: int) -> None:
        reply = await connection.get(f"/v1/sessions/busy_{number % BUSY_SESSIONS}/messages?limit=10")
        assert reply.status == 200, reply

    async def append(connection: Connection, number: int) -> None:
        reply = await connection.post(f"/v1/sessions/busy_{number % BUSY_SESSIONS}/messages", BODY)
        assert reply.status == 201, reply

    async def keep(connection: Connection, _: int) -> None:
        reply = await connection.post("/kept", BODY)
        assert reply.status == 201, reply

    with served_echo(scratch / "echo.sock") as (echo, _):
        for name, work in (("reads", read), ("appends", append)):
            pairs = [(await rate(daemon.socket, work), await rate(echo, work)) for _ in range(5)]
            ours, theirs = (statistics.median(one) for one in zip(*pairs, strict=True))
            setattr(report, f"{name}_per_s", ours)
            setattr(report, f"{name}_of_starlette", ours / theirs)
        rates = [await rate(echo, keep) for _ in range(5)]
        report.appends_of_starlette_with_sqlite = report.appends_per_s / statistics.median(rates)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=500.0, help="requests per second")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--idle", type=float, default=30.0, help="seconds without requests first")
    parser.add_argument("--directory", type=Path, help="where the workspace is made (default: a temporary one)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report = run(arguments.connections, arguments.rate, 60 * arguments.minutes, arguments.idle, arguments.directory)
    if arguments.json:
        print(json.dumps(msgspec.to_builtins(report), indent=2))
    else:
        table = Table("what", "found", title="streams that wait, and requests beside them")
        for name, value in msgspec.to_builtins(report).items():
            shown = f"{value:,.2f}" if isinstance(value, float) else str(value)
            table.add_row(name.replace("_", " "), shown)
        Console().print(table)
    return 1 if report.problems else 0


def run(connections: int, rate: float, seconds: float, idle_s: float, directory: Path | None = None) -> Report:
    """The measurement, in this process and a daemon's; raises the limit of descriptors of both."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(connections * 2, 4096)), hard))
    report = Report(connections=connections, rate=rate, seconds=seconds)
    with tempfile.TemporaryDirectory(dir=directory) as files, tempfile.TemporaryDirectory(prefix="mc") as scratch:
        return anyio.run(measure, report, seconds, idle_s, Path(files), Path(scratch))


if __name__ == "__main__":
    raise SystemExit(main())
