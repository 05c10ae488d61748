"""The feed of all sessions: in order, bounded, and resumed where it was cut off."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.core.events import events as manager_events
from miniclaw_sessions.core.events import feed
from miniclaw_sessions.core.events.feed import Event
from miniclaw_sessions.core.events.heartbeat import QUIET_S
from miniclaw_sessions.core.events.listeners import TurnEvent
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.testing import FakeClock

pytestmark = pytest.mark.anyio

KEY = SessionKey.of("telegram", 1)


# --- all sessions ----------------------------------------------------------------------------------------------------


async def events_of(
    watched: AsyncGenerator[list[Event], None], last: str, session_id: str | None = None
) -> list[Event]:
    """The events up to one of this kind."""
    found: list[Event] = []
    with anyio.fail_after(60):
        async for events in watched:
            found += [event for event in events if event.kind != "quiet"]
            if any(event.kind == last and session_id in (None, event.session_id) for event in events):
                return found
    raise AssertionError(found)


def said(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.kind, event.session_id) for event in events]


async def test_the_feed_has_sessions_that_come_change_and_go_and_their_turns(manager: SessionManager) -> None:
    async with aclosing(manager.events.watch_all()) as watched:
        (ready,) = await anext(watched)
        assert ready.data == {"resumed": False, "turns": []}
        session = await manager.get_or_create("telegram", 1)
        await session.add_message(Message.user("hello"))
        session.update(title="About it")
        await session.saved()
        manager.events.turns.publish(TurnEvent(KEY, "typing", {}))
        manager.events.turns.publish(TurnEvent(KEY, "stopped", {}))
        await manager.delete("telegram_1")
        events = await events_of(watched, "deleted")
    assert [event.kind for event in events] == [
        *("created", "entries", "entries", "changed", "turn_started", "turn_ended", "deleted"),
    ]
    assert {event.session_id for event in events} == {"telegram_1"}
    (entry,) = events[1].data["entries"]
    assert (entry["sequence"], entry["type"], entry["role"]) == (1, "message", "user")
    assert "hello" not in repr([event.data for event in events])
    assert events[3].data == {"session_id": "telegram_1", "title": "About it"}
    assert events[5].data["outcome"] == "stopped"


async def test_the_feed_resumes_behind_any_cursor_with_nothing_missing_and_nothing_twice(
    manager: SessionManager,
) -> None:
    session = await manager.get_or_create("telegram", 1)
    async with aclosing(manager.events.watch_all()) as watched:
        (ready,) = await anext(watched)
        for count in range(20):
            await session.add_message(Message.user(str(count)))
        seen: list[Event] = []
        while len(seen) < 20:
            seen += await anext(watched)
    for cut in range(20):
        async with aclosing(manager.events.watch_all(after=seen[cut - 1].cursor if cut else ready.cursor)) as again:
            (resumed,) = await anext(again)
            assert resumed.data["resumed"]
            rest = [event.cursor for event in await anext(again)] if cut < 20 else []
            assert rest == [event.cursor for event in seen[cut:]]


async def test_a_cursor_of_another_feed_lists_where_each_session_ends(manager: SessionManager) -> None:
    for chat in (1, 2):
        session = await manager.get_or_create("telegram", chat)
        for _ in range(chat):
            await session.add_message(Message.user("hello"))
    for place in ("another:12", "nonsense", ":1", None):
        async with aclosing(manager.events.watch_all(after=place, listed=True)) as watched:
            *listed, ready = await events_of(watched, "ready")
        assert {one.session_id: one.data["last_sequence"] for one in listed} == {"telegram_1": 1, "telegram_2": 2}
        assert not ready.data["resumed"]


@pytest.fixture
def few_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The feed of a manager that is opened after this is short."""
    monkeypatch.setattr(feed, "KEPT_EVENTS", 10)


@pytest.mark.usefixtures("few_kept")
async def test_a_slow_reader_is_cut_off_and_what_waits_for_it_is_bounded(manager: SessionManager) -> None:
    session = await manager.get_or_create("telegram", 1)
    async with aclosing(manager.events.watch_all()) as slow:
        (ready,) = await anext(slow)
        for count in range(30):
            await session.add_message(Message.user(str(count)))
        assert [one async for one in slow] == []
    async with aclosing(manager.events.watch_all(after=ready.cursor)) as again:
        assert [one.data["resumed"] for one in await anext(again)] == [False]


@pytest.mark.usefixtures("few_kept")
async def test_a_reader_of_quiet_sessions_is_not_too_slow_however_much_happens_in_others(tmp_path: Path) -> None:
    def quiet(session_id: str, _: SessionKey | None) -> bool:
        return session_id == "telegram_2"

    clock = FakeClock()
    async with SessionManager(tmp_path, store="memory:", clock=clock) as manager:
        busy, other = [await manager.get_or_create("telegram", chat) for chat in (1, 2)]
        async with aclosing(manager.events.watch_all(only=quiet)) as watched, anyio.create_task_group() as tasks:
            events = await anext(watched)
            for _ in range(3):
                for _ in range(25):
                    await busy.add_message(Message.user("hello"))
                tasks.start_soon(clock.advance, QUIET_S)
                events = await anext(watched)
                assert [one.kind for one in events] == ["quiet"]
            await other.add_message(Message.user("hello"))
            assert said(await anext(watched)) == [("entries", "telegram_2")]
        async with aclosing(manager.events.watch_all(after=events[0].cursor, only=quiet)) as again:
            assert [one.data["resumed"] for one in await anext(again)] == [True]
            assert said(await anext(again)) == [("entries", "telegram_2")]


async def test_a_cursor_holds_for_a_while_without_a_reader_and_never_skips_what_was_not_kept(tmp_path: Path) -> None:
    clock = FakeClock()
    async with SessionManager(tmp_path, store="memory:", clock=clock) as manager:
        session = await manager.get_or_create("telegram", 1)
        async with aclosing(manager.events.watch_all()) as watched:
            (ready,) = await anext(watched)
        await session.add_message(Message.user("without a reader"))
        async with aclosing(manager.events.watch_all(after=ready.cursor)) as watched:
            assert [one.data.get("resumed") for one in await anext(watched)] == [True]
            assert [one.kind for one in await anext(watched)] == ["entries"]
        await clock.advance(feed.KEPT_S + 1)
        await session.add_message(Message.user("long after"))
        async with aclosing(manager.events.watch_all(after=ready.cursor)) as watched:
            assert [one.data["resumed"] for one in await anext(watched)] == [False]


async def test_a_reader_gets_only_the_sessions_that_it_may_see(manager: SessionManager) -> None:
    def of_one(session_id: str, key: SessionKey | None) -> bool:
        assert key is not None
        return session_id == "telegram_1"

    async with aclosing(manager.events.watch_all(only=of_one)) as watched:
        await anext(watched)
        for chat in (2, 1):
            await (await manager.get_or_create("telegram", chat)).add_message(Message.user("hello"))
            manager.events.turns.publish(TurnEvent(SessionKey.of("telegram", chat), "typing", {}))
        for chat in (2, 1):
            await manager.delete(f"telegram_{chat}")
        assert {event.session_id for event in await events_of(watched, "deleted")} == {"telegram_1"}


async def test_cursors_do_not_count_what_happens_in_sessions_of_others(manager: SessionManager) -> None:
    session = await manager.get_or_create("telegram", 1)
    async with aclosing(manager.events.watch_all()) as watched:
        await anext(watched)
        for _ in range(20):
            await session.add_message(Message.user("hello"))
        numbers = [int(event.cursor.rpartition(":")[2], 16) for event in await anext(watched)]
    assert len(set(numbers)) == len(numbers)
    assert numbers != sorted(numbers), "they are not in order, so they cannot be counted"


async def test_a_session_that_is_put_together_is_published_when_it_is_complete(manager: SessionManager) -> None:
    session = await manager.get_or_create("telegram", 1)
    await session.add_message(Message.user("hello"))
    async with aclosing(manager.events.watch_all()) as watched:
        await anext(watched)
        copy = await session.fork()
        events = await events_of(watched, "entries")
    assert said(events) == [("created", copy.session_id), ("entries", copy.session_id)]
    assert events[1].data["sequence"] == copy.last_sequence


async def test_entries_come_whole_where_that_is_asked_for(manager: SessionManager) -> None:
    session = await manager.get_or_create("telegram", 1)
    async with aclosing(manager.events.watch_all(content=True)) as watched:
        await anext(watched)
        entry = await session.add_message(Message.user("hello"))
        (event,) = await events_of(watched, "entries")
    assert entry.id.encode() in bytes(event.data["entries"][0]["entry"])
    assert b"hello" in bytes(event.data["entries"][0]["entry"])


async def test_what_waits_for_a_slow_watcher_with_content_is_bounded(
    manager: SessionManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_events, "MOST_CONTENT_BYTES", 2_000)
    session = await manager.get_or_create("telegram", 1)
    async with aclosing(manager.events.watch_all(content=True)) as watched:
        await anext(watched)
        for _ in range(3):
            await session.add_messages([Message.user(500 * "x")] * 10)
        for _ in range(3):
            (event,) = await anext(watched)
            whole = ["entry" in one for one in event.data["entries"]]
            assert 0 < sum(whole) < 5
            assert whole == sorted(whole, reverse=True), "the first ones are whole: the others lie in a gap"
            assert event.data["sequence"] == event.data["entries"][-1]["sequence"]


@asynccontextmanager
async def gateways(database: str, directory: Path) -> AsyncIterator[list[SessionManager]]:
    async with AsyncExitStack() as stack:
        managers = [SessionManager(directory / str(number), store=database) for number in range(2)]
        yield [await stack.enter_async_context(manager) for manager in managers]


async def test_what_another_gateway_does_comes_here_in_order_and_once(postgresql_url: str, tmp_path: Path) -> None:
    async with gateways(postgresql_url, tmp_path) as (here, there):
        before = await there.get_or_create("telegram", 1)
        await before.add_message(Message.user("before"))
        async with aclosing(here.events.watch_all()) as watched:
            await anext(watched)
            ours = await here.get_or_create("telegram", 1)
            for count in range(10):
                await before.add_message(Message.user(f"there {count}"))
                await ours.add_message(Message.user(f"here {count}"))
            await (await there.get_or_create("telegram", 2)).add_message(Message.user("new"))
            await there.delete("telegram_1")
            events = await events_of(watched, "deleted", "telegram_1")
            if ("created", "telegram_2") not in said(events):
                events += await events_of(watched, "entries", "telegram_2")
    sequences = [
        one["sequence"]
        for event in events
        if event.session_id == "telegram_1" and event.kind == "entries"
        for one in event.data["entries"]
    ]
    assert sequences == sorted(set(sequences)), "in order and once"
    assert ("created", "telegram_2") in said(events)
