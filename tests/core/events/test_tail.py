"""Following a session: everything that is acknowledged comes once and in order, whichever process has written it."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import pytest

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.config import PostgreSQLSettings, SessionSettings
from miniclaw_sessions.core.events import tail
from miniclaw_sessions.core.events.events import Events
from miniclaw_sessions.core.events.listeners import SessionCreated, TurnEvent
from miniclaw_sessions.core.manager.reading import read_transcript
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.base import SessionHead, Store, StoredEntry
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.errors import ManagerClosed, SessionNotFound, TranscriptNotKept
from miniclaw_sessions.testing import FakeClock, FaultyStore
from tests.postgresql import PostgreSQLServer

pytestmark = pytest.mark.anyio


KEY = SessionKey.of("telegram", 1)


@asynccontextmanager
async def gateways(database: str, directory: Path, count: int) -> AsyncIterator[list[SessionManager]]:
    async with AsyncExitStack() as stack:
        patient = PostgreSQLSettings(statement_timeout_s=200)  # a busy machine holds a row for long
        settings = SessionSettings(store=database, postgresql=patient)
        managers = [SessionManager(directory / str(number), settings=settings) for number in range(count)]
        yield [await stack.enter_async_context(manager) for manager in managers]


async def first_of(manager: SessionManager, count: int, *, after: int | None = 0) -> list[tuple[int, str]]:
    """The first messages that come, with their places."""
    seen: list[tuple[int, str]] = []
    with anyio.fail_after(100):
        async with aclosing(manager.events.follow("telegram_1", after=after)) as lists:
            async for entries in lists:
                seen += [(one.sequence, one.message.text) for one in entries if isinstance(one, MessageEntry)]
                if len(seen) >= count:
                    break
    return seen


async def test_what_several_gateways_write_comes_to_each_that_follows_once_and_in_order(
    postgresql_url: str, tmp_path: Path
) -> None:
    async with gateways(postgresql_url, tmp_path, 3) as managers:
        await (await managers[0].get_or_create("telegram", 1)).add_message(Message.user("the first"))
        seen: dict[int, list[tuple[int, str]]] = {}

        async def follow(number: int) -> None:
            seen[number] = await first_of(managers[number], 46)

        async def write(number: int) -> None:
            session = await managers[number].get_or_create("telegram", 1)
            for count in range(15):
                await session.add_message(Message.user(f"{number} {count}"))

        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(follow, number, name=f"follow {number}")
                tasks.start_soon(write, number, name=f"write {number}")
        stored = [
            (entry.sequence, entry.message.text)
            async for entry in read_transcript(managers[0], "telegram_1")
            if isinstance(entry, MessageEntry)
        ]
        assert seen == dict.fromkeys(range(3), stored)


async def test_however_many_are_followed_one_query_asks_whether_others_wrote_them(
    postgresql_url: str, tmp_path: Path, postgresql: PostgreSQLServer
) -> None:
    name = urlsplit(postgresql_url).path.strip("/")
    await postgresql.execute(f"ALTER DATABASE \"{name}\" SET log_statement = 'all'")
    async with gateways(postgresql_url, tmp_path, 2) as (one, other):
        for chat in range(20):
            await (await one.get_or_create("telegram", chat)).add_message(Message.user("hello"))
        tails = one.events.tails
        waiting = [aclosing(tails.follow(f"telegram_{chat}", 1)) for chat in range(20)]
        came: list[int] = []

        async def follow(chat: int) -> None:
            async with waiting[chat] as lists:
                (entry,) = await anext(lists)
                assert isinstance(entry, StoredEntry)
                came.append(entry.sequence)

        async with anyio.create_task_group() as tasks:
            for chat in range(20):
                tasks.start_soon(follow, chat, name=f"follow {chat}")
            while sum(one.followers for one in tails._tails.values()) < 20:
                await anyio.lowlevel.checkpoint()
            before = len(postgresql.log)
            await one.events.feed.poll()
            asked = postgresql.log[before:]
            for chat in range(20):
                await (await other.get_or_create("telegram", chat)).add_message(Message.user("and you?"))
        assert came == [2] * 20
        assert asked.count("sessions.session_id = ANY") == 1


async def test_what_this_process_stores_comes_at_once_and_what_was_there_before_is_not_repeated(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with SessionManager(tmp_path, store=store) as manager:
        session = await manager.get_or_create("telegram", 1)
        await session.add_message(Message.user("before"))
        async with aclosing(manager.events.follow("telegram_1")) as lists:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(session.add_message, Message.user("now"), name="say")
                entries = await anext(lists)
            assert [(one.sequence, one.message.text) for one in entries if isinstance(one, MessageEntry)] == [
                (2, "now")
            ]
        assert store.calls["versions"] == 0, "no other process writes this store"
        assert manager.events.tails._tails == {}


async def test_it_ends_when_the_session_is_deleted_here_or_elsewhere(postgresql_url: str, tmp_path: Path) -> None:
    async with gateways(postgresql_url, tmp_path, 2) as managers:
        for deleting in managers:
            await (await managers[0].get_or_create("telegram", 1)).add_message(Message.user("hello"))
            with anyio.fail_after(60):
                async with aclosing(managers[0].events.follow("telegram_1", after=0)) as lists:
                    assert len(await anext(lists)) == 1
                    await deleting.delete("telegram_1")
                    assert [one async for one in lists if one] == []


async def test_a_store_that_is_away_for_a_moment_ends_nothing(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with SessionManager(tmp_path, store=store) as manager:
        session = await manager.get_or_create("telegram", 1)
        await session.add_message(Message.user("one"))
        store.fail(method="read")
        async with aclosing(manager.events.follow("telegram_1", after=0)) as lists:
            assert await anext(lists) == []
            store.heal()
            assert [one.sequence for one in await anext(lists)] == [1]


async def test_following_what_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, store="none:") as manager:
        await manager.get_or_create("telegram", 1)
        with pytest.raises(SessionNotFound):
            await anext(manager.events.follow("telegram_2"))
        with pytest.raises(TranscriptNotKept):
            await anext(manager.events.follow("telegram_1"))


async def test_a_manager_that_closes_says_so(tmp_path: Path) -> None:
    manager = SessionManager(tmp_path, store="memory:")
    async with manager:
        await (await manager.get_or_create("telegram", 1)).add_message(Message.user("one"))
        lists = manager.events.follow("telegram_1", after=0)
        await anext(lists)
    with pytest.raises(ManagerClosed):
        await anext(lists)


# --- turns under way -------------------------------------------------------------------------------------------------


def words(*items: Any) -> list[str]:
    """What was stream, in short: an entry's text, a piece's, or the name of what happened."""
    return [
        one.message.text if isinstance(one, MessageEntry) else one.data.get("text", one.kind)
        for one in items
        if isinstance(one, MessageEntry | TurnEvent)
    ]


async def next_of(stream: AsyncGenerator[list[Any], None], count: int) -> list[str]:
    """The first things that come, in short."""
    found: list[str] = []
    with anyio.fail_after(60):
        while len(found) < count:
            found += words(*await anext(stream))
    return found


async def test_pieces_come_before_their_entry_and_an_answers_entries_before_its_end(manager: SessionManager) -> None:
    session = await manager.get_or_create("telegram", 1)
    async with aclosing(manager.events.watch("telegram_1")) as stream, anyio.create_task_group() as tasks:

        async def answer() -> None:
            while not manager.events.tails._tails:
                await anyio.lowlevel.checkpoint()
            await session.add_message(Message.user("hello"))
            manager.events.turns.publish(TurnEvent(KEY, "typing", {}))
            for piece in ("[o", "ne]"):
                manager.events.turns.publish(TurnEvent(KEY, "text", {"text": piece}))
            manager.events.turns.publish(TurnEvent(KEY, "usage", {}))
            await session.add_message(Message.assistant("one"))
            manager.events.turns.publish(TurnEvent(KEY, "done", {}))

        tasks.start_soon(answer)
        found = await next_of(stream, 6)
    assert "".join(found) == "hellotyping[one]usageonedone"


async def test_a_reader_that_comes_in_mid_answer_gets_it_so_far_and_nothing_that_is_stored(
    manager: SessionManager,
) -> None:
    session = await manager.get_or_create("telegram", 1)
    await session.add_message(Message.user("hello"))
    manager.events.turns.publish(TurnEvent(KEY, "typing", {}))
    manager.events.turns.publish(TurnEvent(KEY, "accepted", {}))
    manager.events.turns.publish(TurnEvent(KEY, "text", {"text": "let me look"}))
    manager.events.turns.publish(TurnEvent(KEY, "usage", {}))
    manager.events.turns.publish(TurnEvent(KEY, "tool_started", {}))
    await session.add_message(Message.assistant("let me look"))
    for kind, text in (("thinking", "so"), ("thinking", " what"), ("text", "it "), ("text", "is")):
        manager.events.turns.publish(TurnEvent(KEY, kind, {"text": text}))
    async with aclosing(manager.events.watch("telegram_1", after=0)) as stream:
        found = await next_of(stream, 7)
        assert found == ["hello", "let me look", "typing", "accepted", "tool_started", "so what", "it is"]
    manager.events.turns.publish(TurnEvent(KEY, "done", {}))
    async with aclosing(manager.events.watch("telegram_1", after=2)) as stream:
        with anyio.move_on_after(0.05):
            raise AssertionError(await anext(stream))


async def test_a_reader_too_slow_for_the_pieces_gets_the_answer_from_its_beginning(
    manager: SessionManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "STEPS", 3)
    await (await manager.get_or_create("telegram", 1)).add_message(Message.user("hello"))
    async with aclosing(manager.events.watch("telegram_1", after=0)) as stream:
        assert await next_of(stream, 1) == ["hello"]
        manager.events.turns.publish(TurnEvent(KEY, "typing", {}))
        manager.events.turns.publish(TurnEvent(KEY, "text", {"text": "a"}))
        assert await next_of(stream, 2) == ["typing", "a"]
        for piece in "bcdef":
            manager.events.turns.publish(TurnEvent(KEY, "text", {"text": piece}))
        assert await next_of(stream, 2) == ["typing", "abcdef"]


def events_of(store: Store, clock: FakeClock) -> Events:
    """The events of a store without a manager."""

    async def locate(_: str) -> tuple[int, str | None]:
        return 0, None

    events = Events(clock, locate=locate, store=lambda: store)
    events.open(store)
    return events


def test_an_answer_under_way_takes_no_more_memory_than_its_text() -> None:
    """However small the pieces are that a service sends: no reader may follow, and there may be a thousand answers."""
    turns = events_of(MemoryStore(), FakeClock()).turns
    tracemalloc.start()
    turns.publish(TurnEvent(KEY, "typing", {}))
    for _ in range(50_000):
        turns.publish(TurnEvent(KEY, "text", {"text": "ü"}))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 500_000


def test_nothing_is_kept_of_sessions_that_are_made_without_a_reader() -> None:
    class Shared(MemoryStore):
        shared = True

    clock = FakeClock()
    events = events_of(Shared(), clock)
    head = SessionHead("telegram_1", SessionKey("telegram", "1"), "incarnation", clock.now())
    before = sys.getrefcount(head)
    events.created.publish(SessionCreated(head))
    assert sys.getrefcount(head) == before
