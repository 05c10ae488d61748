"""Acknowledged appends per second on a PostgreSQL server with two synchronous standbys, beside what it can do at best.

The floor is a bare asyncpg loop that commits the same messages in the same fenced batches: an array of each column, one
statement for all that waits, each session's row locked and compared with what was expected of it. The other comparisons
are a transaction for each append, which is what most stores do, and the stores of other frameworks on the same server,
each in a process and an environment of its own. All take turns.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import asyncpg

from benchmarks.peers.catalogue import ON_A_SERVER, Peer
from benchmarks.peers.environments import Environments, NotAvailable, default_directory, version
from benchmarks.peers.measurements import run_python
from benchmarks.workload import Row, fresh, in_process, message
from miniclaw_sessions import SessionManager, SessionSettings
from miniclaw_sessions.core.protocol.encoding import encode_message
from tests.postgresql import OWNER, PostgreSQLServer, running_rack

SETTINGS = SessionSettings(flush_interval_s=3600, max_unsaved_bytes=2**40)
CONNECTIONS = 20
"""For a transaction for each append; more only wait for each other here."""

CROWD = 100
"""The number of writers of the stated targets, at which other programs are measured too."""

LEAST = {"bare loop": 0.6, "a transaction for each": 5.0}
SIZES = (100, 1_000, 10_000, 100_000)
FLAT = 1.3
LENGTH_ROUNDS = 300
PEER_S = 4.0

_TABLES = """
CREATE TABLE bare_sessions (session_id text PRIMARY KEY, fence bigint, last bigint) WITH (fillfactor = 70);
CREATE TABLE bare_entries (session_id text, sequence bigint, body bytea, PRIMARY KEY (session_id, sequence));
"""
_BARE = """
WITH given AS (SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bytea[]) AS g(id, last, fence, body)),
free AS (SELECT s.session_id FROM bare_sessions s JOIN given g ON s.session_id = g.id
    WHERE s.last = g.last - 1 AND s.fence = g.fence ORDER BY s.session_id FOR UPDATE OF s),
moved AS (UPDATE bare_sessions s SET last = g.last FROM given g, free f
    WHERE s.session_id = f.session_id AND g.id = f.session_id RETURNING s.session_id),
added AS (INSERT INTO bare_entries SELECT g.id, g.last, g.body FROM given g JOIN moved m ON m.session_id = g.id)
SELECT session_id FROM moved
"""


class Rate(NamedTuple):
    """How fast appends were acknowledged, how long one took, and what it cost the client."""

    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float = 0.0  # unknown for other programs' processes


def measure(directory: Path, *, quick: bool) -> list[Row]:
    """The rows of this benchmark."""
    rows: list[Row] = []
    directory.chmod(0o711)  # the servers may run as another user
    with running_rack(fresh(directory, "rack")) as rack:
        for writers in (1, 10, 100, 1000):
            rows += _appends(rack[0], writers, 20_000 if quick else 40_000, rounds=1 if quick else 3)
        rows += _of_length(rack[0], SIZES[:2] if quick else SIZES)
    return rows


def _appends(server: PostgreSQLServer, writers: int, appends: int, *, rounds: int) -> list[Row]:
    """Our store and all others, in turns."""
    per_writer = max(2, appends // writers) if writers > 1 else appends // 20
    measured: dict[str, Callable[[], Rate]] = {
        name: partial(in_process, run, server.directory, server.url(), writers, per_writer)
        for name, run in (("ours", run_ours), ("bare loop", run_bare), ("a transaction for each", run_one_by_one))
    }
    if writers == CROWD:
        measured |= _peers(server)
    samples: dict[str, list[Rate]] = {name: [] for name in measured}
    for _ in range(rounds):
        for name, run in measured.items():
            samples[name].append(run())
    found = {name: Rate(*map(statistics.median, zip(*rates, strict=True))) for name, rates in samples.items()}
    ours, what = found.pop("ours"), f"appends on a server, {writers} writers"
    rows = []
    for name, other in found.items():
        least = LEAST.get(name) if writers == CROWD else None
        target = "" if least is None else f"at least {least:g} of that"
        met = None if least is None else ours.per_s >= least * other.per_s
        rows.append(Row(f"{what}: ours and {name}", "per s", ours.per_s, other.per_s, target, met))
        rows.append(Row("the same, half of them within", "ms", ours.p50_ms, other.p50_ms))
        rows.append(Row("the same, 99 of 100 within", "ms", ours.p99_ms, other.p99_ms))
        if other.cpu_us:
            rows.append(Row("the same, processor time of the client for each", "us", ours.cpu_us, other.cpu_us))
    return rows


def _peers(server: PostgreSQLServer) -> dict[str, Callable[[], Rate]]:
    """The stores of others that can be installed here, by name and version."""
    environments = Environments(default_directory())
    found: dict[str, Callable[[], Rate]] = {}
    for peer in ON_A_SERVER:
        with suppress(NotAvailable):
            interpreter = environments.interpreter(peer)
            found[f"{peer.name} {version(interpreter, peer)}"] = partial(run_peer, server, peer, interpreter)
    return found


def run_peer(server: PostgreSQLServer, peer: Peer, interpreter: Path) -> Rate:
    """A store of another framework, on an empty database; as many writers, for a few seconds."""
    name = anyio.run(server.new_database)
    result = server.directory / f"{name}.json"
    orders = {
        "directory": str(server.directory / name),
        "result": str(result),
        "sessions": CROWD,
        "per_session": 10**6,
        "limit_s": PEER_S,
    }
    done = run_python(interpreter, "-m", "benchmarks.peers.worker", peer.adapter, "appends", json.dumps(orders))
    assert result.exists(), f"{peer.name}: {done.stderr[-2000:]}"
    measured = json.loads(result.read_bytes())
    anyio.run(server.drop_database, name)
    return Rate(measured["per_s"], measured["p50_ms"], measured["p99_ms"])


def _of_length(server: PostgreSQLServer, sizes: Sequence[int]) -> list[Row]:
    """What an append costs in sessions of several lengths: in turns, beside the shortest."""
    costs: dict[int, float] = in_process(run_lengths, server.url(), sizes)
    shortest = costs[sizes[0]]
    return [
        Row(
            f"append on a server, {size:,} messages in the session",
            "ms",
            cost,
            shortest,
            "at most 1.3 times the shortest" if size == sizes[-1] else "",
            cost <= FLAT * shortest if size == sizes[-1] else None,
        )
        for size, cost in costs.items()
    ]


def run_lengths(url: str, sizes: Sequence[int]) -> dict[int, float]:
    """The median milliseconds of an append, for each size, by one writer that takes the sessions in turns."""

    async def main() -> dict[int, float]:
        async with SessionManager(store=url, settings=SETTINGS) as manager:
            sessions = {size: await manager.get_or_create("length", f"{size}-{id(manager)}") for size in sizes}
            for size, session in sessions.items():
                for number in range(size):
                    session.append(message(number))
                    if number % 1000 == 0:
                        await session.saved()
                await session.saved()
            seconds: dict[int, list[float]] = {size: [] for size in sizes}
            for number in range(LENGTH_ROUNDS):
                for size, session in sessions.items():
                    begun = time.perf_counter()
                    await session.add_message(message(number))
                    seconds[size].append(time.perf_counter() - begun)
            return {size: 1e3 * statistics.median(times) for size, times in seconds.items()}

    return anyio.run(main)


def run_ours(server: Path, url: str, writers: int, per_writer: int) -> Rate:
    """Through the manager, in sessions of its own."""

    async def main() -> Rate:
        run = fresh(server.parent.parent, "run").name
        async with SessionManager(store=url, settings=SETTINGS) as manager:
            sessions = [await manager.get_or_create("bench", f"{run}-{number}") for number in range(writers)]

            async def write(writer: int, number: int) -> None:
                await sessions[writer].add_message(message(number))

            await _rate(writers, 2, write)  # the others are connected, and their sessions there, when it begins
            return await _rate(writers, per_writer, write)

    return anyio.run(main)


def run_bare(server: Path, _url: str, writers: int, per_writer: int) -> Rate:
    """The floor: all that waits in one statement, one shared event per group."""

    async def main() -> Rate:
        connection = await _prepared(server, writers)
        statement = await connection.prepare(_BARE)
        waiting: list[tuple[str, int, int, bytes]] = []
        group = wake = anyio.Event()

        async def commit() -> None:
            nonlocal waiting, group, wake
            while True:
                await wake.wait()
                wake, batch, done = anyio.Event(), waiting, group
                waiting, group = [], anyio.Event()
                answer = await statement.fetch(*map(list, zip(*batch, strict=True)))
                assert len(answer) == len(batch)
                done.set()

        async def write(writer: int, number: int) -> None:
            waiting.append((f"bench_{writer}", number + 1, 1, encode_message(message(number))))
            wake.set()
            await group.wait()

        group = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit)
            rate = await _rate(writers, per_writer, write)
            tasks.cancel_scope.cancel()
        await connection.close()
        return rate

    return anyio.run(main)


def run_one_by_one(server: Path, _url: str, writers: int, per_writer: int) -> Rate:
    """A statement, and so a transaction, for each append."""
    per_writer = max(1, per_writer // 10)

    async def main() -> Rate:
        await (await _prepared(server, writers)).close()
        pool = await asyncpg.create_pool(
            host=str(server), user=OWNER, database="postgres", min_size=1, max_size=CONNECTIONS
        )

        async def write(writer: int, number: int) -> None:
            row = ([f"bench_{writer}"], [number + 1], [1], [encode_message(message(number))])
            async with pool.acquire() as connection:
                assert len(await connection.fetch(_BARE, *row)) == 1

        rate = await _rate(writers, per_writer, write)
        await pool.close()
        return rate

    return anyio.run(main)


async def _prepared(server: Path, writers: int) -> asyncpg.Connection:
    connection = await asyncpg.connect(host=str(server), user=OWNER, database="postgres")
    await connection.execute("DROP TABLE IF EXISTS bare_sessions, bare_entries")
    await connection.execute(_TABLES)
    await connection.executemany(
        "INSERT INTO bare_sessions VALUES ($1, 1, 0)", [(f"bench_{number}",) for number in range(writers)]
    )
    return connection


async def _rate(writers: int, per_writer: int, write: Callable[[int, int], Coroutine[Any, Any, None]]) -> Rate:
    """Let all write this many messages, each its next one when the last one is acknowledged."""
    seconds: list[float] = []

    async def write_all(writer: int) -> None:
        for number in range(per_writer):
            begun = time.perf_counter()
            await write(writer, number)
            seconds.append(time.perf_counter() - begun)

    started, processor = time.perf_counter(), time.process_time()
    async with anyio.create_task_group() as tasks:
        for writer in range(writers):
            tasks.start_soon(write_all, writer)
    took, worked = time.perf_counter() - started, time.process_time() - processor
    appends = writers * per_writer
    hundredths = statistics.quantiles(seconds, n=100)
    return Rate(appends / took, 1e3 * hundredths[49], 1e3 * hundredths[98], 1e6 * worked / appends)
