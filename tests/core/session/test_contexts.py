"""Contexts that are longer than the window: what was read of a branch once is not read again, and never outlives it."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from miniclaw_sessions.core.history.branch_memory import LONGEST_BRANCH, MOST_BRANCHES, BranchMemory
from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.protocol.entries import Compaction
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.stores.base import StoredEntry
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.errors import StoreUnavailable
from miniclaw_sessions.testing import FakeClock
from tests.core.session.bench import Bench, say, told_by

pytestmark = pytest.mark.anyio

LETTERS = list("abcdefgh")


def no_reading(bench: Bench) -> None:
    bench.store.fail(method="read")
    bench.store.fail(method="find")


async def test_a_second_context_reads_nothing_again(bench: Bench) -> None:
    async with bench.opened(window=3) as session:
        await say(session, *LETTERS)
        assert await told_by(session) == LETTERS
        no_reading(bench)
        for text in ("i", "j", "k", "l", "m", "n"):
            session.append(Message.user(text))
            assert (await told_by(session))[-1] == text
        session.update(title="what is no message", model="m1")
        assert await told_by(session) == [*LETTERS, "i", "j", "k", "l", "m", "n"]


async def test_a_first_context_reads_no_more_than_it_holds(bench: Bench) -> None:
    bench.real = store = ReadStore()
    bench.renew_store()
    async with bench.opened(window=3) as session:
        said = await session.add_messages([Message.user(f"{number}") for number in range(2_000)])
        await session.tree.append_compaction("summary", said[-200].id)
        await say(session, *LETTERS)
        store.entries_read = 0
        assert len(await told_by(session)) == 1 + 200 + len(LETTERS)
        assert store.entries_read == 200 + 1 + len(LETTERS)


async def test_what_left_the_window_before_it_was_seen_is_read(bench: Bench) -> None:
    async with bench.opened(window=3) as session:
        await say(session, *LETTERS)
        await told_by(session)
        await say(session, "1", "2", "3", "4")
        no_reading(bench)
        with pytest.raises(StoreUnavailable):
            await told_by(session)
        bench.store.heal()
        assert await told_by(session) == [*LETTERS, "1", "2", "3", "4"]


async def test_nothing_of_a_branch_that_was_left_is_in_a_context(bench: Bench) -> None:
    async with bench.opened(window=3) as session:
        ids = await say(session, *LETTERS)
        assert await told_by(session) == LETTERS
        await session.tree.branch(ids[4])
        assert await told_by(session) == LETTERS[:5]
        await say(session, "elsewhere")
        assert await told_by(session) == [*LETTERS[:5], "elsewhere"]
        await session.tree.append_compaction("summary", ids[2])
        assert await told_by(session) == ["summary", "c", "d", "e", "elsewhere"]
        session.clear()
        await say(session, *"123456")
        assert await told_by(session) == list("123456")


async def test_a_call_whose_result_comes_after_its_context_is_answered_in_the_next(bench: Bench) -> None:
    call = ToolCall("c1", "look", "{}")
    async with bench.opened(window=3) as session:
        await say(session, *LETTERS)
        session.extend([Message.user("?"), Message.assistant("", (call,))])
        assert (await session.get_context()).messages[-1].is_error
        session.append(Message.tool_result(call, "found"))
        assert [message.text for message in (await session.get_context()).messages[-2:]] == ["", "found"]


async def test_what_a_reader_does_to_a_context_changes_no_later_one(bench: Bench) -> None:
    async with bench.opened(window=3) as session:
        session.append(Message(Role.USER, "?", extra={"mood": ["calm"]}))
        await say(session, *LETTERS)
        for _ in range(3):
            first = (await session.get_context()).messages[0]
            assert first.extra == {"mood": ["calm"]}
            first.extra["mood"].append("angry")


def say_more(session: Session) -> None:
    session.append(Message.user("late"))


def compact(session: Session) -> None:
    kept = session.entries()[-3]
    unit = session.unit()
    before = {"first_kept_entry_id": kept.parent_id, "first_kept_sequence": kept.sequence - 1}
    unit.add(Compaction, summary="summary", **before)
    unit.accept()


@pytest.mark.parametrize("meanwhile", [say_more, compact])
async def test_what_is_done_while_a_branch_is_read_is_in_the_next_context(
    bench: Bench, meanwhile: Callable[[Session], object]
) -> None:
    bench.real = store = ReadStore()
    bench.renew_store()
    async with bench.opened(window=3) as session:
        await say(session, *LETTERS)
        store.while_reading.append(lambda: meanwhile(session))
        assert await told_by(session) == LETTERS
        assert store.while_reading == []
        expected = [message.text for message in (await session.tree.read_branch()).messages()]
        assert await told_by(session) == expected != LETTERS


class ReadStore(MemoryStore):
    """A store that counts the entries that are read, with things to be done meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.while_reading: list[Callable[[], object]] = []
        self.entries_read = 0

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        page = await super().read(session_id, after=after, limit=limit)
        self.entries_read += len(page)
        while self.while_reading:
            self.while_reading.pop()()
        return page


async def test_a_branch_is_forgotten_with_its_session(session: Session) -> None:
    memory, other = BranchMemory(), _conversation()
    memory.remember(other, [b"{}"], up_to=1)
    memory.remember(session.journal.conversation, [b"{}"], up_to=1)
    del other
    gc.collect()
    assert repr(memory) == "<BranchMemory of 1 branches>"


def test_the_memory_for_branches_is_bounded() -> None:
    memory = BranchMemory()
    conversations = [_conversation() for _ in range(MOST_BRANCHES + 2)]
    memory.remember(conversations[0], [b"x" * LONGEST_BRANCH, b"x"], up_to=1)
    assert memory.messages_of(conversations[0]) is None
    for conversation in conversations[:-2]:
        memory.remember(conversation, [b"{}"], up_to=1)
    assert memory.messages_of(conversations[0]) == [b"{}"]
    memory.remember(conversations[-1], [b"{}"], up_to=1)
    assert memory.messages_of(conversations[0]) == [b"{}"]
    assert memory.messages_of(conversations[1]) is None


def _conversation() -> Conversation:
    clock = FakeClock()
    return Conversation.new(SessionKey("telegram", "1"), incarnation="1", created_at=clock.now(), capacity=3)
