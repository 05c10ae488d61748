"""Acknowledged appends per second on a PostgreSQL server with two synchronous standbys, beside what it can do at best.

The floor is a bare asyncpg loop that commits the same messages in the same fenced batches: an array of each column, one
statement for all that waits, each session's row locked and compared with what was expected of it. The other comparison
is what most stores do: a transaction for each append.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import asyncpg

from benchmarks.workload import Row, fresh, in_process, in_turns, message
from miniclaw_sessions import SessionManager, SessionSettings
from miniclaw_sessions.protocol.encoding import encode_message
from tests.postgresql import OWNER, running_rack

SETTINGS = SessionSettings(flush_interval_s=3600, max_unsaved_bytes=2**40)
CONNECTIONS = 20
"""For a transaction for each append; more only wait for each other here."""

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


def measure(directory: Path, *, quick: bool) -> list[Row]:
    """The rows of this benchmark."""
    rows = []
    with running_rack(fresh(directory, "rack")) as rack:
        for writers in (1, 10, 100, 1000):
            per_writer = max(2, (4_000 if quick else 40_000) // writers) if writers > 1 else (200 if quick else 2_000)
            arguments = (rack[0].directory, rack[0].url(), writers, per_writer)
            ours, bare, single = in_turns(
                1 if quick else 3,
                *(partial(in_process, run, *arguments) for run in (run_ours, run_bare, run_one_by_one)),
            )
            target, met = ("at least 0.6 of the floor", ours >= 0.6 * bare) if writers == 100 else ("", None)
            rows.append(Row(f"appends on a server, {writers} writers", "per s", ours, bare, target, met))
            target, met = ("at least 5 times that", ours >= 5 * single) if writers == 100 else ("", None)
            rows.append(Row(f"the same, and a transaction for each, {writers}", "per s", ours, single, target, met))
    return rows


def run_ours(server: Path, url: str, writers: int, per_writer: int) -> float:
    """Through the manager, in a workspace of its own."""

    async def main() -> float:
        workspace = fresh(server.parent.parent, "workspace")
        async with SessionManager(workspace, store=url, settings=SETTINGS) as manager:
            sessions = [await manager.get_or_create("bench", f"{workspace.name}-{number}") for number in range(writers)]

            async def write(number: int) -> None:
                for one in range(per_writer):
                    await sessions[number].add_message(message(one))

            return await _rate(writers, per_writer, write)

    return anyio.run(main)


def run_bare(server: Path, _url: str, writers: int, per_writer: int) -> float:
    """The floor: all that waits in one statement, one shared event per group."""

    async def main() -> float:
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

        async def write(number: int) -> None:
            for one in range(per_writer):
                waiting.append((f"bench_{number}", one + 1, 1, encode_message(message(one))))
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


def run_one_by_one(server: Path, _url: str, writers: int, per_writer: int) -> float:
    """A statement, and so a transaction, for each append."""
    per_writer = max(1, per_writer // 10)

    async def main() -> float:
        await (await _prepared(server, writers)).close()
        pool = await asyncpg.create_pool(
            host=str(server), user=OWNER, database="postgres", min_size=1, max_size=CONNECTIONS
        )

        async def write(number: int) -> None:
            for one in range(per_writer):
                row = ([f"bench_{number}"], [one + 1], [1], [encode_message(message(one))])
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


async def _rate(writers: int, per_writer: int, write: Callable[[int], Coroutine[Any, Any, None]]) -> float:
    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for number in range(writers):
            tasks.start_soon(write, number)
    return writers * per_writer / (time.perf_counter() - started)
