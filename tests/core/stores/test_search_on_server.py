"""The search index of a server's database: many gateways fill it, each entry once; deletion leaves nothing in it."""

from __future__ import annotations

from typing import Any

import anyio
import asyncpg
import pytest

from miniclaw_sessions.core.history.search import Search
from miniclaw_sessions.core.stores.base import Append
from miniclaw_sessions.core.stores.postgresql import search_sql
from miniclaw_sessions.core.stores.postgresql.server import LOCK_S
from miniclaw_sessions.core.stores.postgresql.store import PostgreSQLStore
from miniclaw_sessions.errors import StoreUnavailable
from miniclaw_sessions.testing import sample_entries, sample_head

pytestmark = pytest.mark.anyio

QUIET = """INSERT INTO sessions (session_id, channel, chat_id, incarnation, created_at, last_sequence, used_at, fence)
    SELECT 'quiet_' || n, 'quiet', n, 'of quiet ' || n, now(), 1, now() - INTERVAL '30 minutes', 0
    FROM generate_series(1, 3000) AS n"""


async def say(store: PostgreSQLStore, chat: int, first: int, last: int, text: str) -> None:
    assert await store.append([Append(sample_head(chat), sample_entries(first, last, text=text))]) == [None]


async def index_all(store: PostgreSQLStore, step: int = 50) -> int:
    count = 0
    while indexed := await store.index(step):
        count += indexed
    return count


async def found(store: PostgreSQLStore, query: str, **filters: Any) -> list[tuple[str, int]]:
    page = await store.search(Search.parse(query, limit=1_000, **filters))
    return [(hit.session_id, hit.sequence) for hit in page.hits]


async def rows_of(url: str, statement: str) -> list[Any]:
    connection = await asyncpg.connect(url.partition("&allow")[0])
    try:
        return list(await connection.fetch(statement))
    finally:
        await connection.close()


async def test_what_a_gateway_left_is_indexed_by_another_one_and_each_entry_once(postgresql_url: str) -> None:
    async with PostgreSQLStore(postgresql_url) as gone:
        for chat in range(3):
            await say(gone, chat, 1, 40, "a needle")
        assert await gone.index(50) == 50  # and was killed
    async with PostgreSQLStore(postgresql_url) as one, PostgreSQLStore(postgresql_url) as other:
        assert await index_all(one) == 70
        assert await index_all(other) == 0
        assert len(await found(other, "needle")) == 120
    assert await rows_of(postgresql_url, "SELECT count(*) FROM search") == [(120,)]


async def test_a_look_for_what_others_left_reads_no_session_that_was_not_used_lately(postgresql_url: str) -> None:
    async with PostgreSQLStore(postgresql_url):
        await rows_of(postgresql_url, QUIET)
        await rows_of(postgresql_url, "ANALYZE sessions")
        look = search_sql.BEHIND.text.replace("$1::FLOAT", "315.0").replace("$2::BIGINT", "1000")
        plan = [line for (line,) in await rows_of(postgresql_url, f"EXPLAIN (ANALYZE) {look}")]
        assert any("Index Cond: (used_at >" in line for line in plan), plan
        assert not any("Rows Removed by Filter" in line for line in plan), plan


async def test_gateways_that_index_at_the_same_time_miss_nothing(postgresql_url: str) -> None:
    async with PostgreSQLStore(postgresql_url) as one, PostgreSQLStore(postgresql_url) as other:

        async def talk(store: PostgreSQLStore, chats: range) -> None:
            for first in range(1, 41, 4):
                for chat in chats:
                    await say(store, chat, first, first + 3, f"needle {chat}")
                await store.index(30)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk, one, range(5), name="one")
            tasks.start_soon(talk, other, range(5, 10), name="other")
        for store in (one, other):
            await index_all(store)
        async with PostgreSQLStore(postgresql_url) as late:
            await index_all(late)
            assert len(await found(late, "needle")) == 400
            assert await found(late, "needle", session_ids=frozenset({"telegram_7"})) == [
                ("telegram_7", sequence) for sequence in range(40, 0, -1)
            ]


async def test_deleting_while_it_is_indexed_leaves_nothing_in_the_index(postgresql_url: str) -> None:
    async with PostgreSQLStore(postgresql_url) as one, PostgreSQLStore(postgresql_url) as other:
        for turn in range(25):
            await say(one, turn, 1, 30, "a secret")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(other.index if turn % 2 else one.index, 20, name="index")
                for _ in range(turn % 5):
                    await anyio.lowlevel.checkpoint()
                tasks.start_soon(one.delete, f"telegram_{turn}", name="delete")
        await index_all(one)
        await index_all(other)
        assert await found(one, "secret") == []
    for table in ("search", "searched"):
        assert await rows_of(postgresql_url, f"SELECT count(*) FROM {table}") == [(0,)]


async def test_a_deletion_waits_for_a_gateway_that_takes_its_time_to_index(postgresql_url: str) -> None:
    waits = f"""SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
        AND query LIKE 'DELETE FROM searched%' AND query_start < now() - INTERVAL '{LOCK_S + 0.1} s'"""
    async with PostgreSQLStore(postgresql_url) as store:
        await say(store, 1, 1, 2, "a needle")
        await index_all(store)
        connection = await asyncpg.connect(postgresql_url.partition("&allow")[0])
        try:
            async with anyio.create_task_group() as tasks, connection.transaction():
                await connection.execute("SELECT 1 FROM searched WHERE session_id = 'telegram_1' FOR UPDATE")
                tasks.start_soon(store.delete, "telegram_1", name="delete")
                with anyio.fail_after(60):
                    while not await rows_of(postgresql_url, waits):  # noqa: ASYNC110 - the server has no event for it
                        await anyio.sleep(0.05)
                await connection.execute("SELECT 1")  # it is busy still, and does not stall
        finally:
            await connection.close()
        assert await store.session_ids() == []


async def test_old_sessions_that_a_step_does_not_reach_are_indexed_by_the_next_ones(postgresql_url: str) -> None:
    async with PostgreSQLStore(postgresql_url) as store:
        for chat in range(30):
            await say(store, chat, 1, 10, "a needle")
    await rows_of(postgresql_url, "UPDATE sessions SET used_at = used_at - INTERVAL '3 days'")
    async with PostgreSQLStore(postgresql_url) as store:
        assert await index_all(store, 20) == 300
        assert len(await found(store, "needle")) == 300


async def test_a_session_whose_row_is_locked_is_indexed_later_and_delays_nobody(postgresql_url: str) -> None:
    async with PostgreSQLStore(postgresql_url) as store:
        await say(store, 1, 1, 2, "a needle")
        await say(store, 2, 1, 2, "a needle")
        connection = await asyncpg.connect(postgresql_url.partition("&allow")[0])
        try:
            async with connection.transaction():
                await connection.execute("SELECT 1 FROM sessions WHERE session_id = 'telegram_1' FOR UPDATE")
                await index_all(store)
                assert await found(store, "needle") == [("telegram_2", 2), ("telegram_2", 1)]
        finally:
            await connection.close()
        await say(store, 1, 3, 3, "a needle")
        await index_all(store)
        assert len(await found(store, "needle")) == 5


async def test_what_cannot_be_indexed_now_is_found_as_soon_as_it_can(postgresql_url: str) -> None:
    async with PostgreSQLStore(postgresql_url) as store:
        await say(store, 1, 1, 2, "a needle")
        await rows_of(postgresql_url, "ALTER TABLE search RENAME TO elsewhere")
        with pytest.raises(StoreUnavailable):
            await store.index(10)
        await say(store, 1, 3, 3, "a needle")
        await rows_of(postgresql_url, "ALTER TABLE elsewhere RENAME TO search")
        assert len(await found(store, "needle")) == 3


async def test_dropping_the_index_empties_it_and_it_is_filled_again(postgresql_url: str) -> None:
    async with PostgreSQLStore(postgresql_url) as store:
        await say(store, 1, 1, 5, "a needle")
        await index_all(store)
        await store.drop_index()
        assert await rows_of(postgresql_url, "SELECT count(*) FROM search") == [(0,)]
        assert len(await found(store, "needle")) == 5


async def test_a_message_is_not_in_the_index_as_text(postgresql_url: str) -> None:
    async with PostgreSQLStore(postgresql_url) as store:
        await say(store, 1, 1, 1, "a needle")
        await index_all(store)
    ((row,),) = await rows_of(postgresql_url, "SELECT CAST(search AS text) FROM search")
    assert "needle" not in row
