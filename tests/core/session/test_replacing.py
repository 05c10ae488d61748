"""Going on without an entry: what followed it follows still, and means what it meant."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import LeafMove, MessageEntry, SessionInfo, original_id
from miniclaw_sessions.core.protocol.messages import Message, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.unit import Unit
from miniclaw_sessions.errors import EntryNotFound, InvalidMessage, LeafMoved, TranscriptNotKept

pytestmark = pytest.mark.anyio


@pytest.fixture
async def session(tmp_path: Path) -> AsyncIterator[Session]:
    async with SessionManager(tmp_path) as manager:
        yield await manager.get_or_create("telegram", 1)


async def texts(session: Session) -> list[str]:
    path = await session.tree.get_branch()
    return [entry.message.text for entry in path if isinstance(entry, MessageEntry)]


async def test_what_followed_follows_as_copies_and_the_transcript_keeps_what_was_left(session: Session) -> None:
    said = await session.add_messages([Message.user(f"{number}") for number in range(5)])
    await session.tree.replace(said[2].id, [Message.user("two"), Message.user("and a half")])
    assert await texts(session) == ["0", "1", "two", "and a half", "3", "4"]
    assert [message.text for message in session.messages()] == await texts(session)
    path = await session.tree.get_branch()
    assert [original_id(entry) for entry in path[4:]] == [said[3].id, said[4].id]
    assert (await session.tree.get_entry(said[2].id)).id == said[2].id

    await session.tree.replace(path[4].id)
    assert await texts(session) == ["0", "1", "two", "and a half", "4"]
    copy = (await session.tree.get_branch())[-1]
    assert original_id(copy) == said[4].id  # of the first one, however often it is copied
    with pytest.raises(EntryNotFound):
        await session.tree.replace(said[3].id)  # it is on no branch that goes on


async def test_what_was_said_is_not_paid_for_again(session: Session) -> None:
    answer = msgspec.structs.replace(Message.assistant("hello"), usage=Usage(3, 4), model="m1")
    said = await session.add_messages([Message.user("hi"), answer])
    cost = session.total_usage
    await session.tree.replace(said[0].id, [Message.user("good day")])
    assert session.total_usage == cost
    assert [message.model for message in session.messages()] == [None, "m1"]


async def test_model_and_thinking_level_are_what_they_are_at_the_place_that_is_gone_back_to(session: Session) -> None:
    first = await session.add_message(Message.user("a"))
    await session.tree.append_model_change("p", "m1")
    second = await session.add_message(Message.user("b"))
    await session.tree.append_model_change("p", "m2")
    third = await session.add_message(Message.user("c"))
    await session.tree.replace(third.id)
    assert session.metadata["model"] == "m2"
    await session.tree.replace(second.id)
    assert session.metadata["model"] == "m2"  # the change is copied
    await session.tree.replace(first.id)
    assert session.metadata["model"] == "m2"
    assert await texts(session) == []
    context = await session.get_context()
    assert (context.provider, context.model) == ("p", "m2")


async def test_a_label_goes_along_and_a_title_stays(session: Session) -> None:
    said = await session.add_messages([Message.user("a"), Message.user("b")])
    await session.tree.append_session_info("first title")
    await session.tree.set_label(said[1].id, "here")
    await session.tree.branch((await session.tree.get_branch())[-1].id)
    session.update(title="last title")
    await session.saved()
    await session.tree.replace(said[0].id)
    path = await session.tree.get_branch()
    assert session.title == "last title"
    assert not any(isinstance(entry, SessionInfo) for entry in path)
    assert await session.tree.get_label(path[0].id) == "here"
    assert await session.tree.get_label(said[1].id) == "here"


async def test_a_label_goes_along_with_the_copy_of_a_copy_too(session: Session) -> None:
    said = await session.add_messages([Message.user("a"), Message.user("b")])
    await session.tree.set_label(said[1].id, "here")
    for number in range(3):
        (first, second, *_) = await session.tree.get_branch()
        assert await session.tree.get_label(second.id) == "here", f"after {number} times"
        await session.tree.replace(first.id, [Message.user(f"a{number}")])


@pytest.mark.parametrize("damage", ["DELETE FROM entries", "UPDATE entries SET encoded = CAST('{' AS BLOB)"])
async def test_an_entry_is_replaced_though_the_one_before_it_is_gone_or_damaged(tmp_path: Path, damage: str) -> None:
    settings = SessionSettings(store="sqlite:")
    async with SessionManager(tmp_path, settings=settings) as manager:
        session = await manager.get_or_create("telegram", 1)
        said = await session.add_messages([Message.user(f"{number}") for number in range(4)])
    with closing(sqlite3.connect(tmp_path / "sessions.db")) as database, database:
        assert database.execute(f"{damage} WHERE sequence = 2").rowcount == 1
    async with SessionManager(tmp_path, settings=settings) as manager:
        session = await manager.get("telegram", 1)
        before = await texts(session)
        await session.tree.replace(said[2].id, [Message.user("two")])
        assert await texts(session) == ["two" if text == "2" else text for text in before]


async def test_the_newest_entry_of_a_long_session_is_taken_back_without_reading_all_of_it(session: Session) -> None:
    await session.add_messages([Message.user(f"{number}") for number in range(3_000)])
    read: list[int] = []
    store = session.journal.home.store
    ask = store.read

    async def counted(session_id: str, *, after: int = 0, limit: int | None = None) -> object:
        page = await ask(session_id, after=after, limit=limit)
        read.append(len(page))
        return page

    store.read = counted  # type: ignore[method-assign, assignment]
    await session.tree.replace(session.entries()[-1].id)
    assert sum(read) < 1_000
    assert len(await texts(session)) == 2_999


async def test_who_speaks_all_the_time_keeps_it_from_its_end_no_longer_than_one_look(session: Session) -> None:
    first = await session.add_message(Message.user("first"))
    await session.add_messages([Message.user(f"{number}") for number in range(3_000)])
    store = session.journal.home.store
    ask, read, spoken = store.read, list[int](), list[str]()

    async def speaking(session_id: str, *, after: int = 0, limit: int | None = None) -> object:
        page = await ask(session_id, after=after, limit=limit)
        read.append(len(page))
        if len(spoken) < 12:
            spoken.append(f"meanwhile {len(spoken)}")
            session.append(Message.user(spoken[-1]))
            await session.saved()
        return page

    store.read = speaking  # type: ignore[method-assign, assignment]
    await session.tree.replace(first.id, [Message.user("another")])
    store.read = ask  # type: ignore[method-assign]
    assert len(spoken) == 12
    assert sum(read) < 2 * 3_000
    assert await texts(session) == ["another", *(f"{number}" for number in range(3_000)), *spoken]


async def test_it_is_there_after_a_restart(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", 1)
        said = await session.add_messages([Message.user(f"{number}") for number in range(5)])
        await session.tree.replace(said[1].id)
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", 1)
        assert await texts(session) == ["0", "2", "3", "4"]
        assert [message.text for message in session.messages()] == ["0", "2", "3", "4"]
        moves = [entry async for entry in session.tree.read_entries() if isinstance(entry, LeafMove)]
        assert len(moves) == 1
        assert (await manager.check()).problems == []


async def test_without_a_transcript_nothing_is_left_out(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, store="none:") as manager:
        session = await manager.get_or_create("telegram", 1)
        said = await session.add_messages([Message.user("a"), Message.user("b")])
        with pytest.raises(TranscriptNotKept):
            await session.tree.replace(said[0].id)
        assert [message.text for message in session.messages()] == ["a", "b"]


async def test_later_entries_are_left_out_too_where_they_are_named(session: Session) -> None:
    said = await session.add_messages([Message.user(f"{number}") for number in range(5)])
    await session.tree.replace(said[1].id, [Message.user("one")], without=[said[2].id, said[4].id])
    assert await texts(session) == ["0", "one", "3"]


async def test_nothing_is_replaced_where_the_session_went_on_meanwhile(session: Session) -> None:
    first = await session.add_message(Message.user("a"))
    await session.add_message(Message.user("b"))
    with pytest.raises(LeafMoved):
        await session.tree.replace(first.id, if_leaf=first.id)
    assert await texts(session) == ["a", "b"]


async def test_entries_of_any_kind_come_with_a_move_or_the_leaf_stays(session: Session) -> None:
    first = await session.add_message(Message.user("a"))
    await session.add_message(Message.user("b"))
    sequence = session.last_sequence

    def add(unit: Unit) -> None:
        unit.add_custom("kept", {"n": 1})
        unit.add_message(Message.user("c"))

    def fail(unit: Unit) -> None:
        add(unit)
        unit.add_custom("metadata")

    with pytest.raises(InvalidMessage):
        await session.tree.branch_with_entries(first.id, fail)
    assert (await texts(session), session.last_sequence) == (["a", "b"], sequence)
    added = await session.tree.branch_with_entries(first.id, add)
    assert await texts(session) == ["a", "c"]
    assert [entry.id for entry in added] == [entry.id for entry in (await session.tree.get_branch())[1:]]
