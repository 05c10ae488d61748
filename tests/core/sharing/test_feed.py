"""What the poll for the doings of other gateways costs follows how much they did, and it misses nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import pytest

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.core.events.feed import Event
from miniclaw_sessions.core.sharing.feed import LATE_S, POLL_S, QUIET_POLL_S, QUIET_S, THOROUGH_EVERY_S
from miniclaw_sessions.core.stores.postgresql import changes
from miniclaw_sessions.core.stores.postgresql.store import PostgreSQLStore
from miniclaw_sessions.core.stores.shared_store import Changes, Use
from miniclaw_sessions.errors import StoreUnavailable
from miniclaw_sessions.testing import FakeClock
from tests.core.sharing.modes import shared_mode
from tests.postgresql import PostgreSQLServer

pytestmark = pytest.mark.anyio

MANY = 3_000
QUIET = f"""INSERT INTO sessions (session_id, channel, chat_id, incarnation, created_at, last_sequence, used_at, fence)
    SELECT 'quiet_' || n, 'quiet', n, 'of quiet ' || n, now(), 1, now() - INTERVAL '30 minutes', 0
    FROM generate_series(1, {MANY}) AS n"""


class Database:
    """A database, and what its server says of it."""

    def __init__(self, server: PostgreSQLServer, url: str) -> None:
        self.url = url
        self.server = server
        self.name = urlsplit(url).path.strip("/")

    async def execute(self, statement: str) -> list[tuple[object, ...]]:
        return [tuple(row) for row in await self.server.execute(statement, self.name)]


@pytest.fixture
def database(postgresql: PostgreSQLServer, postgresql_url: str) -> Database:
    return Database(postgresql, postgresql_url)


@asynccontextmanager
async def two(database: Database, directory: Path) -> AsyncIterator[tuple[SessionManager, SessionManager, FakeClock]]:
    """Two gateways; the first one's clock stands still, so that it polls when it is asked to."""
    clock = FakeClock()
    async with (
        SessionManager(directory / "here", store=database.url, clock=clock) as here,
        SessionManager(directory / "there", store=database.url) as there,
    ):
        yield here, there, clock


async def said(watched: AsyncGenerator[list[Event], None], count: int) -> list[tuple[str, str]]:
    """What the next events are, and of which sessions."""
    found: list[tuple[str, str]] = []
    with anyio.fail_after(60):
        while len(found) < count:
            found += [(event.kind, event.session_id) for event in await anext(watched)]
    return found


async def test_a_poll_reads_what_has_changed_however_many_sessions_were_used_in_the_hour(database: Database) -> None:
    async with PostgreSQLStore(database.url) as store:
        await database.execute(QUIET)
        await database.execute("ANALYZE sessions")
        at = await store.now()
        nothing = await store.changes(at, LATE_S)
        assert (nothing.changed, nothing.deleted) == ([], set())
        assert nothing.at >= at
        plan = await database.execute(
            "EXPLAIN " + changes.CHANGES.text.replace("$1::", f"'{at.isoformat()}'::").replace("$2::FLOAT", "5::FLOAT")
        )
        assert any("ix_sessions_used_at_session_id" in str(line) for line in plan)
        await database.execute("UPDATE sessions SET used_at = clock_timestamp() WHERE chat_id IN ('7', '11')")
        assert {one.head.session_id for one in (await store.changes(nothing.at, LATE_S)).changed} == {
            "quiet_7",
            "quiet_11",
        }


async def test_where_nothing_happens_a_poll_is_one_query_however_many_are_followed_and_watched(
    database: Database, tmp_path: Path
) -> None:
    await database.execute(f"ALTER DATABASE \"{database.name}\" SET log_statement = 'all'")
    async with SessionManager(tmp_path / "there", store=database.url) as there:
        for chat in range(10):
            await (await there.get_or_create("telegram", chat)).add_message(Message.user("hello"))
    async with (  # alone, and its clock stands still: nothing asks the server but the poll, and the index at the start
        SessionManager(tmp_path / "here", store=database.url, clock=FakeClock()) as here,
        aclosing(here.events.watch_all()) as watched,
    ):
        assert (await anext(watched))[0].kind == "ready"
        followers = [aclosing(here.events.watch(f"telegram_{chat}")) for chat in range(10)]

        async def follow(chat: int) -> None:
            async with followers[chat] as stream:
                async for _ in stream:
                    pass

        async with anyio.create_task_group() as tasks:
            for chat in range(10):
                tasks.start_soon(follow, chat, name=f"follow {chat}")
            while here.events.tails.followers < 10:
                await anyio.lowlevel.checkpoint()
            await here.events.feed.poll()
            before = len(database.server.log)
            await here.events.feed.poll()
            asked = database.server.log[before:]
            tasks.cancel_scope.cancel()
    assert asked.count("sessions.used_at >") == 1
    assert asked.count("sessions.session_id = ANY") == 0, "none is asked for by its name"


class Remembering(PostgreSQLStore):
    """Its polls are answered at once, by what it was told last: so no time passes while they are under way."""

    told: Changes | None = None
    polls = 0

    async def changes(self, since: datetime, late_s: float) -> Changes:
        self.polls += 1
        if self.told is None:
            self.told = await super().changes(since, late_s)
        return self.told


async def test_the_polls_of_a_quiet_database_become_few_and_many_again_once_something_happens(
    database: Database,
) -> None:
    clock, store = FakeClock(), Remembering(database.url)
    async with SessionManager(store=store, clock=clock) as here, aclosing(here.events.watch_all()) as watched:
        await anext(watched)

        async def polls_in(seconds: float) -> int:
            before = store.polls
            await clock.advance(seconds)
            return store.polls - before

        quick, slow = 20 / POLL_S, 20 / QUIET_POLL_S
        assert (
            await polls_in(20) > quick * 0.8
        )  # an interval is cut at either end, and a poll of a busy server takes time
        await clock.advance(QUIET_S)
        assert slow - 1 <= await polls_in(20) <= slow + 1
        store.told = None
        await (await here.get_or_create("telegram", 1)).add_message(Message.user("hello"))
        await anext(watched)
        await here.events.feed.poll()
        store.told = Changes(await store.now(), [], set())
        await clock.advance(QUIET_POLL_S)
        assert await polls_in(20) > quick * 0.8


async def test_the_next_poll_finds_a_quiet_session_that_another_gateway_deletes(
    database: Database, tmp_path: Path
) -> None:
    async with two(database, tmp_path) as (here, there, _):
        for chat in (1, 2):
            await (await there.get_or_create("telegram", chat)).add_message(Message.user("hello"))
        await there.flush()
        await database.execute("UPDATE sessions SET used_at = used_at - INTERVAL '30 minutes'")
        async with (
            aclosing(here.events.watch_all()) as watched,
            aclosing(here.events.follow("telegram_1", after=0)) as stream,
        ):
            await anext(watched)
            assert await anext(stream)
            await here.events.feed.poll()
            await there.delete("telegram_1")
            await here.events.feed.poll()
            assert await said(watched, 1) == [("deleted", "telegram_1")]
            with anyio.fail_after(60):
                async for _ in stream:
                    pass


@pytest.mark.parametrize("is_polled_first", [False, True])
async def test_a_reader_that_begins_while_the_followed_are_polled_misses_nothing(
    database: Database, tmp_path: Path, *, is_polled_first: bool
) -> None:
    async with two(database, tmp_path) as (here, there, _):
        session = await there.get_or_create("telegram", 1)
        await session.add_message(Message.user("hello"))
        async with (
            aclosing(here.events.follow("telegram_1", after=0)) as stream,
            aclosing(here.events.watch_all()) as watched,
        ):
            await anext(stream)
            begun = [lambda: anext(watched), here.events.feed.poll]
            async with anyio.create_task_group() as tasks:
                for one in reversed(begun) if is_polled_first else begun:
                    tasks.start_soon(one)
            await session.add_message(Message.user("is anybody there?"))
            await here.events.feed.poll()
            assert await said(watched, 1) == [("entries", "telegram_1")]


async def test_a_session_that_another_gateway_makes_again_is_deleted_first_and_then_new(
    database: Database, tmp_path: Path
) -> None:
    async with two(database, tmp_path) as (here, there, _), aclosing(here.events.watch_all()) as watched:
        await (await there.get_or_create("telegram", 1)).add_message(Message.user("hello"))
        await anext(watched)
        await there.delete("telegram_1")
        await (await there.get_or_create("telegram", 1)).add_message(Message.user("hello again"))
        await here.events.feed.poll()
        kinds = await said(watched, 3)
    assert kinds == [("deleted", "telegram_1"), ("created", "telegram_1"), ("entries", "telegram_1")]


async def test_a_transaction_that_took_long_is_found_within_a_minute(database: Database, tmp_path: Path) -> None:
    async with two(database, tmp_path) as (here, there, clock), aclosing(here.events.watch_all()) as watched:
        await (await there.get_or_create("telegram", 1)).add_message(Message.user("hello"))
        await anext(watched)
        await database.execute(QUIET.replace("30 minutes", "100 seconds").replace(f"1, {MANY}", "1, 1"))
        await here.events.feed.poll()
        await (await there.get_or_create("telegram", 2)).add_message(Message.user("and this at once"))
        await here.events.feed.poll()
        assert await said(watched, 2) == [("created", "telegram_2"), ("entries", "telegram_2")]
        await clock.advance(THOROUGH_EVERY_S)
        await here.events.feed.poll()
        assert ("created", "quiet_1") in await said(watched, 1)


async def test_a_deletion_is_known_for_an_hour_and_names_no_session(database: Database) -> None:
    noted = "SELECT name FROM properties WHERE name LIKE 'deleted/%'"
    async with PostgreSQLStore(database.url) as store:
        await database.execute(
            "INSERT INTO properties SELECT 'deleted/' || lpad((extract(epoch from now() - INTERVAL '61 minutes') "
            "* 1000000)::bigint::text, 20, '0') || '/of old', ''"
        )
        await database.execute(QUIET)
        at = await store.now()
        await store.delete("quiet_1")
        assert (await store.changes(at, 0)).deleted == {"of quiet 1"}
        ((name,),) = await database.execute(noted)
        assert str(name).endswith("/of quiet 1")
        assert await store.expire(["quiet_2", "quiet_3"], 60, None) == {"quiet_2": 0, "quiet_3": 0}
        assert (await store.changes(at, 0)).deleted == {"of quiet 1", "of quiet 2", "of quiet 3"}


class CutOff(PostgreSQLStore):
    """Its network is gone, while it has a `failing` method."""

    failing = ""

    async def changes(self, since: datetime, late_s: float) -> Changes:
        self._check("changes")
        return await super().changes(since, late_s)

    async def used(self, uses: Sequence[Use], *, backwards: bool = False) -> None:
        self._check("used")
        await super().used(uses, backwards=backwards)

    def _check(self, method: str) -> None:
        if method == self.failing:
            raise StoreUnavailable("the network is gone")


async def test_health_hears_of_a_poll_and_of_a_count_that_fail(database: Database) -> None:
    clock, store = FakeClock(), CutOff(database.url)
    async with SessionManager(store=store, clock=clock) as manager:

        def health() -> tuple[bool, list[str]]:
            return manager.health().ok, manager.health().problems

        await manager.get_or_create("telegram", 1)
        async with aclosing(manager.events.watch_all()) as watched:
            await anext(watched)
            for name, step in (("changes", manager.events.feed.poll), ("used", shared_mode(manager).census.write_uses)):
                clock.jump(1)
                (await manager.get_or_create("telegram", 1)).journal.checkpoint.touch()
                store.failing = name
                with pytest.raises(StoreUnavailable):
                    await step()
                assert health() == (False, ["the store cannot be used: the network is gone"])
                store.failing = ""
                await step()
                assert health() == (True, [])
