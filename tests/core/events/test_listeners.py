"""A listener is called once for each event, and an event without a listener costs nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
import structlog.testing

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.core.events.feed import KEPT_S
from miniclaw_sessions.core.events.listeners import Commit, Flush, Topic, TurnEvent
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.testing import FakeClock

pytestmark = pytest.mark.anyio

KEY = SessionKey.of("telegram", 1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def manager(tmp_path: Path, clock: FakeClock) -> AsyncIterator[SessionManager]:
    async with SessionManager(tmp_path, store="memory:", clock=clock) as manager:
        yield manager


def test_listeners_are_called_in_order_and_those_that_come_or_go_meanwhile_change_nothing() -> None:
    topic: Topic[int] = Topic()
    heard: list[tuple[str, int]] = []

    def first(event: int) -> None:
        heard.append(("first", event))
        topic.unsubscribe(first)
        topic.subscribe(lambda event: heard.append(("third", event)))

    topic.subscribe(first)
    topic.subscribe(lambda event: heard.append(("second", event)))
    topic.publish(1)
    topic.publish(2)
    assert heard == [("first", 1), ("second", 1), ("second", 2), ("third", 2)]


async def test_a_listener_that_raises_is_logged_by_name_and_harms_no_commit(manager: SessionManager) -> None:
    heard: list[int] = []

    def fails(_: object) -> None:
        raise RuntimeError("hello")

    manager.events.commits.subscribe(fails)
    manager.events.commits.subscribe(lambda commit: heard.append(commit.entries))
    manager.events.flushes.subscribe(fails)
    session = await manager.get_or_create("telegram", 1)
    with structlog.testing.capture_logs() as logged:
        await session.add_message(Message.user("one"))
        await session.add_message(Message.user("two"))
        await manager.flush()
    assert heard == [1, 1]
    assert session.statistics().committed_sequence == 2
    assert manager.health().ok
    failures = [one for one in logged if one["action"] == "event.listener_failed"]
    assert [one["listener"].rpartition(".")[2] for one in failures] == ["fails", "fails", "fails"]
    assert {one["error"] for one in failures} == {"RuntimeError"}  # its text may have what was said


async def test_a_group_is_published_once_with_all_that_it_has_stored(manager: SessionManager) -> None:
    commits: list[Commit] = []
    flushes: list[Flush] = []
    manager.events.commits.subscribe(commits.append)
    manager.events.flushes.subscribe(flushes.append)
    sessions = [await manager.get_or_create("telegram", chat) for chat in range(3)]
    for session in sessions:
        session.append(Message.user("one"))
        session.append(Message.user("two"))
    for session in sessions:
        await session.saved()
    (commit,) = commits
    assert [(head.session_id, [one.sequence for one in sent]) for head, sent in commit.appended] == [
        (session.session_id, [1, 2]) for session in sessions
    ]
    assert commit.entries == 6
    await manager.flush()
    assert [flush.written for flush in flushes] == [3]


async def test_commits_have_listeners_only_while_something_is_followed(
    manager: SessionManager, clock: FakeClock
) -> None:
    events = manager.events

    def listening() -> int:
        return len(events.commits.listeners)

    session = await manager.get_or_create("telegram", 1)
    await session.add_message(Message.user("hello"))
    assert listening() == 0
    async with aclosing(events.follow("telegram_1", after=0)) as tail:
        await anext(tail)
        assert listening() == 1
    assert listening() == 0
    events.turns.publish(TurnEvent(KEY, "typing", {}))
    assert listening() == 1
    events.turns.publish(TurnEvent(KEY, "done", {}))
    assert listening() == 0
    async with aclosing(events.watch_all()) as watched:
        await anext(watched)
        assert listening() == 1
    await session.add_message(Message.user("the feed is kept for those who come back"))
    assert listening() == 1
    await clock.advance(KEPT_S + 1)
    for _ in range(2):  # the first one wakes the search index, which does not listen while it works
        await session.add_message(Message.user("no reader came back"))
    assert listening() == 0
