"""What is only right in its very place, where several gateways have one chat: a condition, and a compaction.

It is stored there or not at all, and takes nothing along that others said.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from miniclaw_sessions import Message, Session, SessionManager
from miniclaw_sessions.core.session.compacting import CompactionStatus
from miniclaw_sessions.core.stores.base import Append, StoredEntry
from miniclaw_sessions.core.stores.postgresql.store import PostgreSQLStore
from miniclaw_sessions.errors import LeafMoved, StoreError
from miniclaw_sessions.testing import FaultyStore
from tests.texts import texts

pytestmark = pytest.mark.anyio


class Overtaken(FaultyStore):
    """A store in which somebody else is first: something is done before an append, so often."""

    def __init__(self, database: str) -> None:
        super().__init__(PostgreSQLStore(database))
        self.times = 0
        self.before: Callable[[], Coroutine[Any, Any, object]] | None = None

        self.before_a_fold: Callable[[], Coroutine[Any, Any, object]] | None = None

    async def find_by_idempotency_key(self, session_id: str, idempotency_key: str) -> StoredEntry | None:
        found = await super().find_by_idempotency_key(session_id, idempotency_key)
        if (before := self.before_a_fold) is not None:
            self.before_a_fold = None
            await before()
        return found

    def be_first(self, before: Callable[[], Coroutine[Any, Any, object]], times: int = 1) -> None:
        self.before, self.times = before, times

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        if self.times and self.before is not None and any(append.entries for append in appends):
            self.times -= 1
            await self.before()
        return await super().append(appends)


@asynccontextmanager
async def one_chat(database: str) -> AsyncIterator[tuple[Session, Session, Overtaken]]:
    """A chat of the messages m0 to m4 as two gateways have it, and the store of the first one."""
    store = Overtaken(database)
    async with SessionManager(store=store) as one, SessionManager(store=database) as other:
        mine = await one.get_or_create("telegram", 1)
        await mine.add_messages([Message.user(f"m{number}") for number in range(5)])
        yield mine, await other.get_or_create("telegram", 1), store
        await mine.saved()
        await (await one.get("telegram", 1)).saved()
        views = [texts(await manager.get("telegram", 1)) for manager in (one, other)]
        async with SessionManager(store=database) as third:
            fresh = await third.get("telegram", 1)
            views.append(texts(fresh))
            branch = await fresh.tree.read_branch()
            assert [message.text for message in branch.messages()] == views[2]
            assert branch.problems == ()
        assert views[0] == views[1] == views[2]
        assert (await one.check()).problems == []


def say(session: Session, text: str) -> Callable[[], Coroutine[Any, Any, object]]:
    return lambda: session.add_message(Message.user(text))


async def test_what_comes_before_a_message_that_waits_stays_in_the_context(postgresql_url: str) -> None:
    async with one_chat(postgresql_url) as (mine, theirs, store):
        is_planned = anyio.Event()

        async def speak() -> None:
            await is_planned.wait()
            await theirs.add_message(Message.user("my IBAN is 1234"))

        async def summarize(messages: Sequence[Message]) -> str:
            is_planned.set()
            return f"summary of {len(messages)}"

        store.be_first(speak)
        mine.append(Message.user("m5"))
        await mine.compact(summarize)
        assert texts(mine) == ["summary of 6", "my IBAN is 1234", "m5"]


async def test_what_is_said_elsewhere_while_a_model_summarizes_stays_in_the_context(postgresql_url: str) -> None:
    async with one_chat(postgresql_url) as (mine, theirs, _):

        async def summarize(messages: Sequence[Message]) -> str:
            await theirs.add_message(Message.user("my IBAN is 1234"))
            return f"summary of {len(messages)}"

        outcome = await mine.compact(summarize)
        assert outcome.status is CompactionStatus.DONE
        assert texts(mine) == ["summary of 5", "my IBAN is 1234"]


@pytest.mark.parametrize("kept", [3, None])
async def test_a_compaction_of_a_branch_that_was_left_elsewhere_is_refused(
    postgresql_url: str, kept: int | None
) -> None:
    async with one_chat(postgresql_url) as (mine, theirs, _):
        ids = [entry.id for entry in mine.entries()]
        await theirs.tree.branch(ids[0], then=[Message.user("b")])
        with pytest.raises(LeafMoved):
            await mine.tree.append_compaction("summary", None if kept is None else ids[kept])
        assert texts(mine) == ["m0", "b"]
        await mine.add_message(Message.user("c"))


async def test_a_condition_that_fails_takes_nothing_along_that_has_none(postgresql_url: str) -> None:
    async with one_chat(postgresql_url) as (mine, theirs, store):
        store.be_first(say(theirs, "theirs"))
        refused: list[str] = []

        async def demand(text: str) -> None:
            with pytest.raises(LeafMoved):
                await mine.add_messages(
                    [Message.user(text), Message.user(text)], idempotency_keys=[text, None], if_sequence=5
                )
            refused.append(text)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(demand, "demanding", name="demand")
            tasks.start_soon(say(mine, "plain"), name="say")
        assert refused == ["demanding"]
        assert texts(mine)[5:] == ["theirs", "plain"]
        again = await mine.add_messages([Message.user("demanding")], idempotency_keys=["demanding"], if_sequence=7)
        assert [entry.sequence for entry in again] == [8]


async def test_what_was_said_behind_a_branch_that_was_refused_follows_the_leaf(postgresql_url: str) -> None:
    async with one_chat(postgresql_url) as (mine, theirs, store):
        first, leaf = mine.entries()[0], mine.leaf_id
        store.be_first(say(theirs, "theirs"))

        async def go_back() -> None:
            with pytest.raises(LeafMoved):
                await mine.tree.branch(first.id, then=[Message.user("b")], if_leaf=leaf)

        async def speak() -> None:
            while mine.last_sequence == 5:
                await anyio.lowlevel.checkpoint()
            await mine.add_message(Message.user("plain"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go_back, name="branch")
            tasks.start_soon(speak, name="say")
        assert texts(mine) == ["m0", "m1", "m2", "m3", "m4", "theirs", "plain"]


async def test_a_turn_that_another_gateway_has_saved_demands_nothing(postgresql_url: str) -> None:
    async with one_chat(postgresql_url) as (mine, theirs, _):
        turn = [Message.user("question"), Message.assistant("answer")]
        saved = await theirs.save_turn(turn, idempotency_key="key", if_sequence=5)
        assert [entry.sequence for entry in saved] == [6, 7]
        assert await mine.save_turn(turn, idempotency_key="key", if_sequence=5) == []
        assert texts(mine)[5:] == ["question", "answer"]


async def test_a_message_that_comes_to_two_gateways_at_the_very_same_time_is_there_once(postgresql_url: str) -> None:
    async with one_chat(postgresql_url) as (mine, theirs, store):
        store.be_first(say(theirs, "theirs"))
        store.before_a_fold = lambda: theirs.add_message(Message.user("both"), idempotency_key="key")
        entry = await mine.add_message(Message.user("both"), idempotency_key="key")
        assert texts(mine)[5:] == ["theirs", "both"]
        assert entry.id == theirs.leaf_id
