"""A database of a million sessions: a start, a page and a load cost what they cost with one.

The short form has 100,000; `SESSIONS=1000000 pytest -s -m proof tests/core/manager/test_million_sessions.py` says
how long each takes.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest

from miniclaw_sessions import Message, SessionManager, SessionSettings
from miniclaw_sessions.core.stores.positions import ListPosition
from miniclaw_sessions.core.stores.postgresql.connections import Connections
from tests.postgresql import PostgreSQLServer

pytestmark = [pytest.mark.anyio, pytest.mark.proof]

SESSIONS = int(os.environ.get("SESSIONS", "100000"))
ENTRIES = (100, 100_000)
T = TypeVar("T")

_MAKE = f"""
INSERT INTO sessions (session_id, channel, chat_id, incarnation, created_at, last_sequence, used_at, fence)
    SELECT 'telegram_' || n, 'telegram', n::text, md5(n::text), now(), 0, now() - n * INTERVAL '1 second', 0
    FROM generate_series(1, {SESSIONS}) AS n"""


async def test_a_start_a_page_and_a_load_cost_the_same_however_many_sessions_there_are(
    postgresql: PostgreSQLServer, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = urlsplit(postgresql_url).path.strip("/")
    rows: list[int] = []
    fetch = Connections.fetch

    async def counted(self: Connections, statement: Any, **values: Any) -> list[Any]:
        found = await fetch(self, statement, **values)
        rows.append(len(found))
        return found

    async def timed(what: str, call: Callable[[], Awaitable[T]]) -> T:
        rows.clear()
        started = time.perf_counter()
        result = await call()
        tell(f"{what}: {1000 * (time.perf_counter() - started):.1f} ms, {sum(rows)} rows, {memory()} MB")
        return result

    monkeypatch.setattr(Connections, "fetch", counted)
    settings = SessionSettings(max_sessions=10_000_000)
    async with SessionManager(postgresql_url, settings=settings) as manager:
        await (await manager.get_or_create("signal", "1")).add_message(Message.user("hello"))
    for statement in (_MAKE, "ANALYZE sessions"):
        await postgresql.execute(statement, name)
    before = memory()
    manager = SessionManager(postgresql_url, settings=settings)
    await timed("start", manager.__aenter__)
    assert sum(rows) <= 2
    assert await timed("count", manager.count) == SESSIONS + 1
    page = await timed("first page of 100", lambda: manager.list(limit=100))
    assert [row.session_id for row in page[1:4]] == ["telegram_1", "telegram_2", "telegram_3"]
    assert sum(rows) <= 2 * 100 + 2  # the count in the background is one more
    last = ListPosition(page[-1].last_accessed, page[-1].session_id)
    page = await timed("next page of 100", lambda: manager.list(limit=100, after=last))
    assert page[0].session_id == "telegram_100"
    await timed("one chat", lambda: manager.get("telegram", SESSIONS // 2))
    assert sum(rows) <= 2
    await timed("sweep, dry", lambda: manager.sweep(dry_run=True))
    assert memory() - before < 100
    await manager.__aexit__(None, None, None)


async def test_loading_a_session_costs_the_same_however_long_it_is(postgresql_url: str) -> None:
    times: dict[int, list[float]] = {length: [] for length in ENTRIES}
    async with SessionManager(postgresql_url) as manager:
        for length in ENTRIES:
            session = await manager.get_or_create("telegram", length)
            for start in range(0, length, 1000):
                some = range(start, min(start + 1000, length))
                await session.add_messages([Message.user(f"message {number}") for number in some])
    for _ in range(10):
        for length in ENTRIES:
            async with SessionManager(postgresql_url) as manager:
                started = time.process_time()
                session = await manager.get("telegram", length)
                times[length].append(time.process_time() - started)
                assert session.message_count == length
    short, long = (min(times[length]) for length in ENTRIES)
    tell(f"loading {ENTRIES[0]} entries: {1000 * short:.2f} ms of CPU, {ENTRIES[1]} entries: {1000 * long:.2f} ms")
    assert long < 5 * short


def tell(what: str) -> None:
    sys.stdout.write(f"\n{what}")


def memory() -> int:
    """The most that this process has had, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
