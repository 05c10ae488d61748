"""Several managers on one database, as several gateways have them: no word is lost, doubled, or out of order."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import asyncpg
import msgspec
import pytest

from miniclaw_sessions import Message, SessionManager, SessionSettings, ToolCall
from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.core.history.conversation import REMEMBERED_KEYS
from miniclaw_sessions.core.protocol.entries import Custom, LeafMove, MessageEntry, SessionInfo
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.stores.base import Append, StoredHead, TurnClaim
from miniclaw_sessions.core.stores.postgresql.store import PostgreSQLStore
from miniclaw_sessions.core.stores.shared_store import Archiving
from miniclaw_sessions.errors import (
    DuplicateMessage,
    InvalidMessage,
    LeafMoved,
    SessionDeleted,
    SessionHeld,
    SessionNotFound,
    StoreConflict,
    StoreError,
    StoreUnavailable,
    TurnTaken,
)
from miniclaw_sessions.files.transfer.forgetting import Selection, forget, select_sessions
from miniclaw_sessions.testing import FaultyStore
from tests.core.sharing.modes import shared_mode
from tests.postgresql import PostgreSQLServer, open_transaction
from tests.texts import texts_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def database(postgresql_url: str) -> str:
    return postgresql_url


@asynccontextmanager
async def gateways(
    database: str, directory: Path, count: int = 2, window: int = 50
) -> AsyncIterator[list[SessionManager]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                SessionManager(directory / f"gateway-{number}", store=database, settings=SessionSettings(window=window))
            )
            for number in range(count)
        ]


async def test_what_one_says_the_other_reads_and_goes_on_behind(database: str, tmp_path: Path) -> None:
    async with gateways(database, tmp_path) as (one, other):
        first = await one.get_or_create("telegram", 1)
        await first.add_message(Message.user("one"))
        second = await other.get_or_create("telegram", 1)
        assert second.journal.incarnation == first.journal.incarnation
        await second.add_message(Message.user("two"))
        assert texts_of((await one.get_or_create("telegram", 1)).messages()) == ["one", "two"]
        entry = await first.add_message(Message.user("three"))
        assert entry.sequence == 3
        assert texts_of((await other.get("telegram", 1)).messages()) == ["one", "two", "three"]


async def test_all_who_ask_at_the_same_time_how_fresh_their_chats_are_share_one_query(
    database: str, tmp_path: Path, postgresql: PostgreSQLServer
) -> None:
    name = urlsplit(database).path.strip("/")
    await postgresql.execute(f"ALTER DATABASE \"{name}\" SET log_statement = 'all'")
    async with gateways(database, tmp_path) as (one, other):
        for chat in range(40):
            await (await one.get_or_create("telegram", chat)).add_message(Message.user("one"))
        theirs = [await other.get_or_create("telegram", chat) for chat in range(40)]
        for session in theirs[::2]:
            await session.add_message(Message.user("two"))
        before = len(postgresql.log)
        seen: dict[int, list[str]] = {}

        async def look(chat: int) -> None:
            seen[chat] = texts_of((await one.get_or_create("telegram", chat)).messages())

        async with anyio.create_task_group() as tasks:
            for chat in range(40):
                tasks.start_soon(look, chat, name=f"look {chat}")
        await postgresql.execute("SELECT 'the end'")
        assert seen == {chat: ["one"] if chat % 2 else ["one", "two"] for chat in range(40)}
        asked = postgresql.log[before:].partition("'the end'")[0]
        assert asked.count("sessions.session_id = ANY") == 1, "each chat was asked about on its own"
        assert "sessions.session_id = $1" not in asked
        read = set(re.findall(r"'(telegram_\d+)', \$2 = '1'", asked))
        assert read == {f"telegram_{chat}" for chat in range(0, 40, 2)}, "what had not changed was read"


async def test_whoever_comes_second_goes_on_behind_the_first(database: str, tmp_path: Path) -> None:
    async with gateways(database, tmp_path) as (one, other):
        first = await one.get_or_create("telegram", 1)
        await first.add_message(Message.user("one"))
        second = await other.get_or_create("telegram", 1)
        await first.add_message(Message.user("two"))
        entry = await second.add_message(Message.user("three"))  # which does not know of the second
        assert entry.sequence == 3
        assert texts_of(second.messages()) == ["one", "two", "three"]
        branch = await second.tree.get_branch()
        assert [one.message.text for one in branch if hasattr(one, "message")] == ["one", "two", "three"]
        assert (await one.check()).problems == []


class Busy(FaultyStore):
    """A store that shows when it could not append to a session."""

    def __init__(self, database: str) -> None:
        super().__init__(PostgreSQLStore(database))
        self.delayed = anyio.Event()

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        outcomes = await super().append(appends)
        if any(isinstance(outcome, StoreUnavailable) for outcome in outcomes):
            self.delayed.set()
        return outcomes


AS_A_CHECKPOINT_DOES = "SELECT 1 FROM sessions WHERE session_id = 'telegram_1' FOR NO KEY UPDATE"
"""Locks the row of a session until the transaction ends."""

BEGUN = (
    "INSERT INTO sessions (session_id, channel, chat_id, incarnation, created_at, last_sequence, used_at, fence) "
    "VALUES ('telegram_1', 'telegram', '1', 'other', now(), 0, now(), 0)"
)


async def test_a_message_waits_for_another_gateway_that_is_slow_with_the_session(
    database: str, tmp_path: Path, postgresql: PostgreSQLServer
) -> None:
    store = Busy(database)
    async with SessionManager(tmp_path / "one", store=store) as one:
        session = await one.get_or_create("telegram", 1)
        await session.add_message(Message.user("one"))
        held = open_transaction(postgresql, database, AS_A_CHECKPOINT_DOES)
        async with anyio.create_task_group() as tasks, held:
            tasks.start_soon(session.add_message, Message.user("two"), name="say")
            await store.delayed.wait()
        assert texts_of(session.messages()) == ["one", "two"]
        assert one.health().problems == []


async def test_a_turn_is_given_back_to_others_though_another_gateway_is_slow_with_the_session(
    database: str, tmp_path: Path, postgresql: PostgreSQLServer
) -> None:
    store = Busy(database)
    async with SessionManager(tmp_path / "one", store=store) as one:
        session = await one.get_or_create("telegram", 1)
        slow, release = anyio.Event(), anyio.Event()

        async def answer() -> None:
            async with session.turn(Message.user("question")):
                slow.set()
                await release.wait()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, name="answer")
            await slow.wait()
            async with open_transaction(postgresql, database, AS_A_CHECKPOINT_DOES):
                release.set()
                await store.delayed.wait()
        stored = await store.head("telegram_1")
        assert stored is not None
        assert stored.turn is not None
        assert stored.turn.is_over


async def test_a_session_that_another_gateway_is_slow_to_make_is_waited_for(
    database: str, tmp_path: Path, postgresql: PostgreSQLServer
) -> None:
    store = Busy(database)
    async with SessionManager(tmp_path / "one", store=store) as one:
        async with anyio.create_task_group() as tasks, open_transaction(postgresql, database, BEGUN):
            tasks.start_soon(one.get_or_create, "telegram", 1, name="make")
            await store.delayed.wait()
        assert (await one.get_or_create("telegram", 1)).journal.incarnation == "other"


async def test_a_caller_cancelled_twice_while_its_message_is_committed_frees_the_session_for_all(
    database: str, tmp_path: Path
) -> None:
    store = FaultyStore(PostgreSQLStore(database))
    async with SessionManager(tmp_path / "one", store=store) as one, gateways(database, tmp_path, 1) as (other,):
        mine, theirs = [await manager.get_or_create("telegram", 1) for manager in (one, other)]
        hold = store.hold()

        async def ask() -> None:
            async with mine.turn(Message.user("question")):
                pytest.fail("cancelled before it began")

        task = asyncio.create_task(ask())
        await hold.reached.wait()
        for _ in range(2):
            task.cancel()
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
        store.heal()
        await asyncio.wait([task])
        assert task.cancelled()
        assert not mine.journal.turn_lock.is_held
        stored = await store.head("telegram_1")
        assert stored is not None
        assert stored.turn is None or stored.turn.is_over
        for session in (theirs, mine):
            async with session.turn(Message.user("next")):
                pass


async def test_many_writers_of_one_chat_lose_and_double_nothing(database: str, tmp_path: Path) -> None:
    async with gateways(database, tmp_path, 3, window=1000) as managers:
        answered: list[str] = []

        async def talk(manager: SessionManager, name: str) -> None:
            session = await manager.get_or_create("telegram", 1)
            for number in range(20):
                text = f"{name}-{number}"
                await session.add_message(Message.user(text), idempotency_key=text)
                answered.append(text)

        async with anyio.create_task_group() as tasks:
            for gateway, manager in enumerate(managers):
                for task in range(3):
                    tasks.start_soon(talk, manager, f"{gateway}{task}", name=f"talk {gateway}{task}")
        seen = [texts_of((await manager.get_or_create("telegram", 1)).messages()) for manager in managers]
        assert Counter(seen[0]) == Counter(answered)
        assert len(answered) == 180
        assert seen[0] == seen[1] == seen[2]
        for name in {text.partition("-")[0] for text in answered}:
            assert [text for text in seen[0] if text.startswith(f"{name}-")] == [f"{name}-{n}" for n in range(20)]
        assert (await managers[0].check()).problems == []


async def test_a_message_that_two_gateways_were_brought_is_there_once(database: str, tmp_path: Path) -> None:
    async with gateways(database, tmp_path) as managers:
        sessions = [await manager.get_or_create("telegram", 1) for manager in managers]
        ids = []

        async def bring(number: int, key: str) -> None:
            entry = await sessions[number].add_message(Message.user(key), idempotency_key=key)
            ids.append(entry.id)

        for key in ("a", "b", "c"):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(bring, 0, key, name="one")
                tasks.start_soon(bring, 1, key, name="other")
        for manager in managers:
            assert texts_of((await manager.get_or_create("telegram", 1)).messages()) == ["a", "b", "c"]


class Overtaken(FaultyStore):
    """A store in which another gateway does something before a deletion, or behind a fork's last commit.

    That commit is not answered.
    """

    def __init__(self, database: str) -> None:
        super().__init__(PostgreSQLStore(database))
        self.before_deletion: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
        self.behind_the_end: Callable[[], Awaitable[None]] | None = None

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        outcomes = await super().append(appends)
        is_end = any(b'"session.incomplete":null' in entry.encoded for one in appends for entry in one.entries)
        if is_end and self.behind_the_end is not None:
            meanwhile, self.behind_the_end = self.behind_the_end, None
            await meanwhile()
            raise StoreUnavailable("the connection was lost, as the test wants")
        return outcomes

    async def delete(self, session_id: str, *, known: StoredHead | None = None) -> bool:
        meanwhile, self.before_deletion = self.before_deletion, anyio.lowlevel.checkpoint
        await meanwhile()
        return await super().delete(session_id, known=known)


async def hello(manager: SessionManager, chat: str = "1") -> None:
    await (await manager.get_or_create("telegram", chat)).add_message(Message.user("hello"))


async def test_what_another_says_in_a_new_session_is_kept_though_its_metadata_are_refused(
    database: str, tmp_path: Path
) -> None:
    store = Overtaken(database)
    async with SessionManager(tmp_path / "one", store=store) as one, gateways(database, tmp_path, 1) as (other,):
        store.before_deletion = partial(hello, other)
        with pytest.raises(InvalidMessage):
            await one.get_or_create("telegram", 1, metadata={"long": "x" * 2_000_000})
        for manager in (one, other):
            assert texts_of((await manager.get("telegram", 1)).messages()) == ["hello"]


async def test_what_another_makes_where_a_fork_was_left_unfinished_is_kept(
    database: str, tmp_path: Path, postgresql: PostgreSQLServer
) -> None:
    store = Overtaken(database)
    async with SessionManager(tmp_path / "one", store=store) as one, gateways(database, tmp_path) as (killed, other):
        with suppress(StoreError):
            async with killed._registry.new_journal(SessionKey("telegram", "1"), purpose="import") as journal:
                journal.append(Message.user("half of it"))
                await journal.saved()
                killed._cache.making.clear()  # as if it was killed here
                await time_runs_out(postgresql, database)
                store.before_deletion = partial(hello, other)
                assert texts_of((await one.get_or_create("telegram", 1)).messages()) == ["hello"]
                await killed._saving.committer.drain()
        for manager in (one, other, killed):
            assert texts_of((await manager.get("telegram", 1)).messages()) == ["hello"]
        assert (await one.check()).problems == []


async def test_a_fork_whose_last_commit_is_not_answered_is_kept_where_another_has_used_it(
    database: str, tmp_path: Path
) -> None:
    store = Overtaken(database)
    async with SessionManager(tmp_path / "one", store=store) as one, gateways(database, tmp_path, 1) as (other,):
        await hello(one)
        store.behind_the_end = partial(hello, other, "fork")
        with pytest.raises(StoreUnavailable):
            await (await one.get("telegram", 1)).fork("telegram_fork")
        for manager in (one, other):
            assert texts_of((await manager.get("telegram", "fork")).messages()) == ["hello", "hello"]
        assert (await one.check()).problems == []


@pytest.mark.parametrize("can_delete", [True, False])
async def test_a_fork_whose_last_commit_is_not_answered_is_not_there(
    database: str, tmp_path: Path, can_delete: bool
) -> None:
    store = Overtaken(database)
    async with SessionManager(tmp_path / "one", store=store) as one, gateways(database, tmp_path, 1) as (other,):
        await hello(one)
        store.behind_the_end = anyio.lowlevel.checkpoint
        if not can_delete:
            store.fail(method="delete")
        with pytest.raises(StoreUnavailable):
            await (await one.get("telegram", 1)).fork("telegram_fork")
        store.heal()
        for manager in (other, one):
            assert [summary.session_id for summary in await manager.list()] == ["telegram_1"]
            with pytest.raises(SessionNotFound):
                await manager.find("telegram_fork")
        await hello(other, "fork")
        for manager in (one, other):
            assert texts_of((await manager.get("telegram", "fork")).messages()) == ["hello"]
        assert (await one.check()).problems == []


async def test_two_gateways_that_make_a_chat_at_the_same_time_have_one(database: str, tmp_path: Path) -> None:
    async with gateways(database, tmp_path) as managers:
        sessions = [await manager.get_or_create("telegram", 1) for manager in managers]

        async def begin(number: int) -> None:
            await sessions[number].add_message(Message.user(f"from {number}"))

        async with anyio.create_task_group() as tasks:
            for number in (0, 1):
                tasks.start_soon(begin, number, name=f"begin {number}")
        seen = [await manager.get_or_create("telegram", 1) for manager in managers]
        assert seen[0].journal.incarnation == seen[1].journal.incarnation
        assert sorted(texts_of(seen[0].messages())) == ["from 0", "from 1"]
        assert texts_of(seen[0].messages()) == texts_of(seen[1].messages())


async def test_a_turn_is_one_unit_though_others_speak_meanwhile(database: str, tmp_path: Path) -> None:
    async with gateways(database, tmp_path) as (one, other):
        mine, theirs = await one.get_or_create("telegram", 1), await other.get_or_create("telegram", 1)
        async with mine.turn(Message.user("question")) as turn:
            await theirs.add_message(Message.user("by the way"))
            turn.append(Message.assistant("answer, first part"))
            await turn.save()
            await theirs.add_message(Message.user("one more thing"))
            turn.append(Message.assistant("answer, second part"))
            assert texts_of(turn.messages())[-1] == "answer, second part"
        expected = ["question", "by the way", "answer, first part", "one more thing", "answer, second part"]
        for manager in (one, other):
            assert texts_of((await manager.get_or_create("telegram", 1)).messages()) == expected


async def test_a_message_that_is_brought_to_every_gateway_is_answered_once(database: str, tmp_path: Path) -> None:
    async with gateways(database, tmp_path, 3, window=1000) as managers:
        answers: Counter[str] = Counter()

        async def serve(number: int, chat: int, key: str) -> None:
            session = await managers[number].get_or_create("telegram", chat)
            with suppress(DuplicateMessage):
                async with session.turn(Message.user(key), idempotency_key=key) as turn:
                    await anyio.lowlevel.checkpoint()
                    turn.append(Message.assistant(f"answer to {key}"))
                answers[f"{chat} {key}"] += 1

        for key in ("a", "b", "c"):
            async with anyio.create_task_group() as tasks:
                for number in range(3):
                    for chat in range(4):
                        tasks.start_soon(serve, number, chat, key, name=f"serve {number} {chat}")
        assert answers == {f"{chat} {key}": 1 for chat in range(4) for key in "abc"}
        for manager in managers:
            for chat in range(4):
                said = texts_of((await manager.get_or_create("telegram", chat)).messages())
                assert said == ["a", "answer to a", "b", "answer to b", "c", "answer to c"]
        assert (await managers[0].check()).problems == []


class Apart(SystemClock):
    """Its wall clock is an hour ahead, or behind."""

    def __init__(self, hours: int) -> None:
        super().__init__()
        self._apart = timedelta(hours=hours)

    def now(self) -> datetime:
        return super().now() + self._apart


async def test_gateways_whose_clocks_are_an_hour_apart_keep_one_order_and_answer_each_message_once(
    database: str, tmp_path: Path
) -> None:
    async with (
        SessionManager(tmp_path / "ahead", store=database, clock=Apart(1)) as ahead,
        SessionManager(tmp_path / "behind", store=database, clock=Apart(-1)) as behind,
    ):
        answers = list[str]()

        async def answer(manager: SessionManager, question: str) -> None:
            session = await manager.get_or_create("telegram", 1)
            with suppress(DuplicateMessage):
                async with session.turn(Message.user(question), idempotency_key=question) as turn:
                    await anyio.lowlevel.checkpoint()
                    turn.append(Message.assistant(f"answer to {question}"))
                answers.append(question)

        for question in "abcd":
            async with anyio.create_task_group() as tasks:
                for manager in (ahead, behind):
                    tasks.start_soon(answer, manager, question, name=f"answer {question}")
        expected = [text for question in "abcd" for text in (question, f"answer to {question}")]
        assert answers == list("abcd")
        for manager in (ahead, behind):
            assert texts_of((await manager.get_or_create("telegram", 1)).messages()) == expected
            assert [row.session_id for row in await manager.list()] == ["telegram_1"]
            assert (await manager.sweep()).expired == 0
        async with aclosing(behind.events.follow("telegram_1", after=0)) as tail:
            (first, *_) = await anext(tail)
            assert first.sequence == 1
            await (await ahead.get_or_create("telegram", 1)).add_message(Message.user("e"))
            with anyio.fail_after(60):
                while not any(isinstance(one, MessageEntry) and one.message.text == "e" for one in await anext(tail)):
                    pass


async def test_turns_of_two_gateways_in_one_chat_come_one_after_the_other(database: str, tmp_path: Path) -> None:
    async with gateways(database, tmp_path, window=1000) as managers:

        async def serve(number: int) -> None:
            session = await managers[number].get_or_create("telegram", 1)
            for turn_number in range(4):
                question = f"{number}-{turn_number}"
                async with session.turn(Message.user(question)) as turn:
                    assert texts_of(turn.messages())[-1] == question
                    turn.append(Message.assistant(f"{question} step"))
                    await turn.save()
                    turn.append(Message.assistant(f"{question} answer"))

        async with anyio.create_task_group() as tasks:
            for number in (0, 1):
                tasks.start_soon(serve, number, name=f"serve {number}")
        said = texts_of((await managers[0].get_or_create("telegram", 1)).messages())
        assert len(said) == 24
        for start in range(0, 24, 3):
            question = said[start]
            assert said[start : start + 3] == [question, f"{question} step", f"{question} answer"]


async def test_a_gateway_that_stood_still_writes_nothing_over_the_one_that_took_over(
    database: str, tmp_path: Path, postgresql: PostgreSQLServer
) -> None:
    async with gateways(database, tmp_path) as (one, other):
        mine, theirs = await one.get_or_create("telegram", 1), await other.get_or_create("telegram", 1)
        call = ToolCall(id="call", name="look_up")

        async def answer_slowly() -> None:
            async with mine.turn(Message.user("question"), idempotency_key="key") as slow:
                slow.append(Message.assistant("I look it up", tool_calls=(call,)))
                slow.append(Message.tool_result(call, "found"))
                await slow.save()
                await time_runs_out(postgresql, database)
                async with theirs.turn(Message.user("question"), idempotency_key="key") as turn:
                    assert turn.is_resumed
                    turn.append(Message.assistant("the answer"))
                slow.append(Message.assistant("a late answer"))

        with pytest.raises(TurnTaken):
            await answer_slowly()
        for manager in (one, other):
            said = texts_of((await manager.get_or_create("telegram", 1)).messages())
            assert said == ["question", "I look it up", "found", "the answer"]
        async with mine.turn(Message.user("and now?")) as turn:
            turn.append(Message.assistant("now it is mine again"))
        assert (await other.check()).problems == []


async def test_a_turn_is_prolonged_while_its_model_thinks_and_stopped_when_it_is_lost(
    database: str, tmp_path: Path, postgresql: PostgreSQLServer
) -> None:
    left = "SELECT extract(epoch FROM turn_until - clock_timestamp()) FROM sessions"
    async with gateways(database, tmp_path) as (one, other):
        mine, theirs = await one.get_or_create("telegram", 1), await other.get_or_create("telegram", 1)

        async def think() -> None:
            async with mine.turn(Message.user("question")) as turn:
                await time_runs_out(postgresql, database)
                await shared_mode(one).keeper.prolong()
                ((seconds,),) = await postgresql.execute(left, urlsplit(database).path.strip("/"))
                assert seconds > 20
                await time_runs_out(postgresql, database)
                async with theirs.turn(Message.user("another")) as another:
                    another.append(Message.assistant("answered"))
                    with turn.stoppable() as thinking:
                        await shared_mode(one).keeper.prolong()
                        await anyio.sleep(60)
                    assert thinking.cancelled_caught
                turn.append(Message.assistant("late"))

        with pytest.raises(TurnTaken):
            await think()
        assert texts_of((await one.get_or_create("telegram", 1)).messages()) == ["question", "another", "answered"]


async def test_a_reply_that_waits_for_the_store_is_not_sent_in_the_next_turn(
    database: str, tmp_path: Path, postgresql: PostgreSQLServer
) -> None:
    store = FaultyStore(PostgreSQLStore(database))
    async with SessionManager(tmp_path / "one", store=store) as one, gateways(database, tmp_path, 1) as (other,):
        mine = await one.get_or_create("telegram", 1)

        async def answer_in_vain() -> None:
            async with mine.turn(Message.user("question"), idempotency_key="key") as turn:
                turn.append(Message.assistant("a reply that nobody acknowledged"))
                store.fail()

        with pytest.raises(StoreUnavailable):
            await answer_in_vain()
        await time_runs_out(postgresql, database)
        theirs = await other.get_or_create("telegram", 1)
        async with theirs.turn(Message.user("question"), idempotency_key="key") as turn:
            turn.append(Message.assistant("the reply"))
        store.heal()
        while True:
            with suppress(StoreUnavailable):
                async with mine.turn(Message.user("next")) as turn:
                    said = texts_of(turn.messages())
                break
        assert said == ["question", "the reply", "next"]
        assert texts_of((await other.get_or_create("telegram", 1)).messages()) == said


async def test_prolonging_that_comes_late_does_not_take_a_turn_again_that_was_given_back(
    database: str, tmp_path: Path
) -> None:
    async with PostgreSQLStore(database) as store, gateways(database, tmp_path, 1) as (other,):
        session = await other.get_or_create("telegram", 1)
        await session.add_message(Message.user("hello"))
        head = session.journal.queue.head

        async def claim(fence: int, owner: str, seconds: float) -> bool:
            turn = TurnClaim(fence, owner, seconds)
            (outcome,) = await store.append([Append(head, (), turn=turn, must_exist=True)])
            return outcome is None

        assert await claim(1, "one", 30.0)
        assert await claim(1, "one", 30.0), "held, and prolonged"
        assert not await claim(2, "other", 30.0)
        assert await claim(1, "one", 0.0)
        assert await claim(1, "one", 0.0), "its answer was lost, and it came again"
        assert not await claim(1, "one", 30.0), "it was given back"
        assert await claim(2, "other", 30.0)


async def test_a_turn_that_others_gave_back_without_a_word_is_asked_for_again(database: str, tmp_path: Path) -> None:
    store = GivingBack(PostgreSQLStore(database))
    async with SessionManager(tmp_path / "one", store=store) as one:
        session = await one.get_or_create("telegram", 1)
        await session.add_message(Message.user("first"))
        store.foreign = Append(session.journal.queue.head, (), turn=TurnClaim(7, "other", 30.0), must_exist=True)
        await store.append([store.foreign])
        with anyio.fail_after(60):
            async with session.turn(Message.user("second")) as turn:
                turn.append(Message.assistant("answer"))
        assert texts_of(session.messages()) == ["first", "second", "answer"]


class GivingBack(FaultyStore):
    """Somebody else has a turn, and gives it back right after an append was refused for that."""

    foreign: Append | None = None

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        outcomes = await super().append(appends)
        if self.foreign is not None and appends[0].entries and isinstance(outcomes[0], StoreConflict):
            given, self.foreign = self.foreign, None
            assert given.turn is not None
            over = msgspec.structs.replace(given.turn, seconds=0.0)
            assert await super().append([msgspec.structs.replace(given, turn=over)]) == [None]
        return outcomes


async def test_a_turn_that_is_cancelled_while_its_question_is_on_its_way_is_given_back(
    database: str, tmp_path: Path
) -> None:
    store = FaultyStore(PostgreSQLStore(database))
    async with SessionManager(tmp_path / "one", store=store) as one:
        session = await one.get_or_create("telegram", 1)
        await session.add_message(Message.user("first"))
        hold, asking = store.hold(), anyio.CancelScope()

        async def ask() -> None:
            with asking:
                async with session.turn(Message.user("question")):
                    pass

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, name="ask")
            await hold.reached.wait()
            asking.cancel()
            await anyio.lowlevel.checkpoint()
            store.heal()
        stored = await store.head(session.session_id)
        assert stored is not None
        assert stored.turn is not None
        assert stored.turn.is_over, "nobody has it, and nobody could take it"


async def test_what_was_given_up_with_a_turn_is_not_acknowledged_to_whoever_else_waits_for_it(
    database: str, tmp_path: Path
) -> None:
    store = FaultyStore(PostgreSQLStore(database))
    async with SessionManager(tmp_path / "one", store=store) as one, gateways(database, tmp_path, 1) as (other,):
        session = await one.get_or_create("telegram", 1)
        await session.add_message(Message.user("first"))
        turn = TurnClaim(7, "other", 30.0)
        await other.store.append([Append(session.journal.queue.head, (), turn=turn, must_exist=True)])
        hold, asking = store.hold(), anyio.CancelScope()

        async def ask() -> None:
            with asking:
                async with session.turn(Message.user("question"), idempotency_key="key"):
                    pass

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, name="ask")
            await hold.reached.wait()
            async with anyio.create_task_group() as others:
                others.start_soon(partial(session.add_message, idempotency_key="key"), Message.user("question"))
                await anyio.lowlevel.checkpoint()
                store.heal()
            asking.cancel()
        assert texts_of((await other.get_or_create("telegram", 1)).messages()) == ["first", "question"]


async def test_all_turns_are_prolonged_in_one_statement(
    database: str, tmp_path: Path, postgresql: PostgreSQLServer
) -> None:
    await postgresql.execute(f"ALTER DATABASE \"{urlsplit(database).path.strip('/')}\" SET log_statement = 'all'")
    async with gateways(database, tmp_path, 1) as (one,), AsyncExitStack() as turns:
        for chat in range(20):
            session = await one.get_or_create("telegram", chat)
            await turns.enter_async_context(session.turn(Message.user("hello")))
        before = len(postgresql.log)
        await shared_mode(one).keeper.prolong()
        assert postgresql.log[before:].count("UPDATE sessions") == 1


async def test_a_key_that_only_the_store_remembers_is_found_where_another_gateway_has_used_it(
    database: str, tmp_path: Path
) -> None:
    async with gateways(database, tmp_path) as (one, other):
        mine = await one.get_or_create("telegram", 1)
        keys = [str(number) for number in range(REMEMBERED_KEYS)]
        await mine.add_messages([Message.user(key) for key in keys], idempotency_keys=keys)
        theirs = await other.get_or_create("telegram", 1)
        stored = await theirs.add_message(Message.user("hello"), idempotency_key="new")
        with anyio.fail_after(60):
            again = await mine.add_message(Message.user("hello"), idempotency_key="new")
        assert (again.id, again.sequence) == (stored.id, stored.sequence)


async def test_the_same_key_at_two_gateways_gives_both_the_entry_that_is_stored(database: str, tmp_path: Path) -> None:
    async with gateways(database, tmp_path) as (one, other):
        mine, theirs = await one.get_or_create("telegram", 1), await other.get_or_create("telegram", 1)
        stored = await mine.add_message(Message.user("hello"), idempotency_key="a")
        again = await theirs.add_message(Message.user("hello"), idempotency_key="a")
        assert (again.id, again.sequence) == (stored.id, 1)
        several = await mine.add_messages([Message.user("x"), Message.user("y")], idempotency_keys=["b", "c"])
        repeated = await theirs.add_messages([Message.user("x"), Message.user("y")], idempotency_keys=["b", "c"])
        assert [entry.id for entry in repeated] == [entry.id for entry in several]
        assert texts_of((await other.get("telegram", 1)).messages()) == ["hello", "x", "y"]


@pytest.mark.parametrize("is_known", [True, False], ids=["one after the other", "at once"])
async def test_a_step_back_with_the_same_key_at_two_gateways_is_made_once(
    database: str, tmp_path: Path, *, is_known: bool
) -> None:
    async with gateways(database, tmp_path) as (one, other):
        mine = await one.get_or_create("telegram", 1)
        first, _ = await mine.add_messages([Message.user("one"), Message.user("two")])
        theirs = await other.get_or_create("telegram", 1)
        made: list[list[str]] = []

        async def go_back(session: Session) -> None:
            then = [Message.user("three"), Message.assistant("four")]
            made.append(await session.tree.branch(first.id, then=then, idempotency_key="back"))

        if is_known:
            await go_back(mine)
            await go_back(theirs)
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(go_back, mine)
                tasks.start_soon(go_back, theirs)
        assert made[0] == made[1]
        assert [entry.sequence for entry in await theirs.tree.get_branch()] == [1, 4, 5]
        for session in (mine, theirs):
            await session.tree.replace(made[0][0], [Message.user("THREE")], idempotency_key="instead")
        for manager in (one, other):
            session = await manager.get("telegram", 1)
            assert texts_of(session.messages()) == ["one", "THREE", "four"]
            assert session.last_sequence == 8
        assert (await one.check()).problems == []


async def test_what_another_gateway_said_follows_what_stands_in_an_entry_s_place(database: str, tmp_path: Path) -> None:
    async with gateways(database, tmp_path) as (one, other):
        mine = await one.get_or_create("telegram", 1)
        first = await mine.add_message(Message.user("secret"))
        theirs = await other.get_or_create("telegram", 1)
        await theirs.add_message(Message.user("two"))  # which the first one does not know of
        await mine.tree.replace(first.id, [Message.user("one")])
        assert texts_of(mine.messages()) == ["one", "two"]

        async def say() -> None:
            for number in range(20):
                await theirs.add_message(Message.user(f"at once {number}"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say)
            for number in range(3):
                (newest, *_) = await mine.tree.get_branch()
                await mine.tree.replace(newest.id, [Message.user(f"one {number}")])
        at_once = [f"at once {number}" for number in range(20)]
        assert texts_of((await one.get("telegram", 1)).messages()) == ["one 2", "two", *at_once]
        leaf_id = mine.leaf_id
        await theirs.add_message(Message.user("late"))
        with pytest.raises(LeafMoved):
            await mine.tree.replace((await mine.tree.get_branch())[0].id, if_leaf=leaf_id)
        assert texts_of((await one.get("telegram", 1)).messages()) == ["one 2", "two", *at_once, "late"]


async def test_a_command_with_the_same_key_at_two_gateways_is_stored_once(database: str, tmp_path: Path) -> None:
    async with gateways(database, tmp_path) as (one, other):
        for session in [await one.get_or_create("telegram", 1), await other.get_or_create("telegram", 1)]:
            unit = session.unit()
            unit.add_custom("command", idempotency_key="key")
            await unit.save()
            await session.add_message(Message.user("hello"), idempotency_key="m1")
        stored = await (await other.get("telegram", 1)).tree.get_branch()
        assert [entry.idempotency_key for entry in stored if isinstance(entry, Custom | MessageEntry)] == ["key", "m1"]


async def test_what_was_accepted_with_an_entry_whose_key_is_stored_is_not_stored_either(
    database: str, tmp_path: Path
) -> None:
    async with gateways(database, tmp_path) as (one, other):
        mine, theirs = await one.get_or_create("telegram", 1), await other.get_or_create("telegram", 1)
        for session in mine, theirs:
            unit = session.unit()
            unit.add(LeafMove, target_id=None)
            unit.add_custom("command", idempotency_key="key")
            unit.add(SessionInfo, name="anew")
            await unit.save()
            await session.add_message(Message.user(session.title or ""))
        entries = [entry async for entry in (await one.get("telegram", 1)).tree.read_entries()]
        assert [type(entry) for entry in entries] == [LeafMove, Custom, SessionInfo, MessageEntry, MessageEntry]
        assert texts_of((await other.get("telegram", 1)).messages()) == ["anew", "anew"]


async def test_a_turn_that_is_saved_with_the_same_key_at_two_gateways_is_there_once_and_whole(
    database: str, tmp_path: Path
) -> None:
    said = [Message.user("question"), Message.assistant("I think"), Message.assistant("answer")]
    async with gateways(database, tmp_path) as (one, other):
        mine, theirs = await one.get_or_create("telegram", 1), await other.get_or_create("telegram", 1)
        assert len(await mine.save_turn(said, idempotency_key="key")) == 3
        assert await theirs.save_turn(said, idempotency_key="key") == [], "it was saved before"
        assert texts_of((await other.get("telegram", 1)).messages()) == texts_of(said)


async def test_a_session_that_is_made_anew_behind_others_keeps_nobody_waiting(database: str, tmp_path: Path) -> None:
    store = Unreadable(PostgreSQLStore(database))
    async with SessionManager(tmp_path / "one", store=store) as one, gateways(database, tmp_path, 1) as (other,):
        mine, bystander = await one.get_or_create("telegram", 1), await one.get_or_create("telegram", 2)
        await (await other.get_or_create("telegram", 1)).add_message(Message.user("first"))
        store.may_read = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(mine.add_message, Message.user("second"), name="overtaken")
            await store.asked.wait()
            await bystander.add_message(Message.user("meanwhile"))
            assert len(mine.journal.queue.pending) == 1
            store.may_read.set()
        assert texts_of(mine.messages()) == ["first", "second"]


async def test_a_gateway_that_is_closed_while_it_waits_for_the_store_ends(database: str, tmp_path: Path) -> None:
    store = Unreadable(PostgreSQLStore(database))
    manager = SessionManager(tmp_path / "one", store=store, settings=SessionSettings(shutdown_timeout_s=0.5))
    refused: list[StoreUnavailable] = []

    async def say() -> None:
        try:
            await mine.add_message(Message.user("second"))
        except StoreUnavailable as error:
            refused.append(error)

    async with gateways(database, tmp_path, 1) as (other,), anyio.create_task_group() as tasks:
        await manager.__aenter__()
        mine = await manager.get_or_create("telegram", 1)
        await (await other.get_or_create("telegram", 1)).add_message(Message.user("first"))
        store.may_read = anyio.Event()
        tasks.start_soon(say, name="overtaken")
        await store.asked.wait()
        with pytest.raises(StoreUnavailable, match="1 messages"):
            await manager.close()
    assert len(refused) == 1


async def test_a_session_whose_making_was_not_answered_is_checkpointed_once_it_is_used(database: str) -> None:
    store = FaultyStore(PostgreSQLStore(database))
    async with SessionManager(store=store) as manager:
        store.fail_next(stored=True)
        with pytest.raises(StoreUnavailable):
            await manager.get_or_create("telegram", 1)
        await (await manager.get_or_create("telegram", 1)).add_message(Message.user("one"))
        report = await manager.flush()
        assert (report.written, report.failed) == (1, 0)
        store.fail_next()
        with pytest.raises(StoreUnavailable):
            await manager.get_or_create("telegram", 2)
        assert (await manager.flush()).problems == []


class Unreadable(FaultyStore):
    """A store that answers no question about a session for a while."""

    may_read: anyio.Event | None = None

    def __init__(self, store: PostgreSQLStore) -> None:
        super().__init__(store)
        self.asked = anyio.Event()

    async def head(self, session_id: str) -> StoredHead | None:
        if self.may_read is not None:
            self.asked.set()
            await self.may_read.wait()
        return await super().head(session_id)


async def time_runs_out(postgresql: PostgreSQLServer, database: str) -> None:
    over = "UPDATE sessions SET turn_until = clock_timestamp() - INTERVAL '1 second' WHERE turn_until IS NOT NULL"
    await postgresql.execute(over, urlsplit(database).path.strip("/"))


async def test_a_branch_and_metadata_that_wait_go_on_behind_what_others_said(database: str, tmp_path: Path) -> None:
    async with gateways(database, tmp_path) as (one, other):
        mine = await one.get_or_create("telegram", 1)
        root = await mine.add_message(Message.user("root"))
        await mine.add_message(Message.assistant("left"))
        theirs = await other.get_or_create("telegram", 1)
        await theirs.add_message(Message.user("more on the left"))
        mine.update(title="A title", colour="green")
        await mine.saved()
        assert mine.metadata["colour"] == "green"
        await theirs.add_message(Message.user("still on the left"))
        await mine.tree.branch(root.id)
        await mine.add_message(Message.user("right"))
        for manager in (one, other):
            session = await manager.get_or_create("telegram", 1)
            assert texts_of(session.messages()) == ["root", "right"]
            assert session.metadata["title"] == "A title"
        assert (await other.check()).problems == []


async def test_what_demands_its_place_is_refused_where_others_were_first(database: str, tmp_path: Path) -> None:
    async with gateways(database, tmp_path) as (one, other):
        mine = await one.get_or_create("telegram", 1)
        await mine.add_message(Message.user("one"))
        theirs = await other.get_or_create("telegram", 1)
        await mine.add_message(Message.user("two"))
        with pytest.raises(LeafMoved):
            await theirs.add_messages([Message.user("only behind one")], if_sequence=1)
        again = await other.get_or_create("telegram", 1)
        assert again is theirs, "whoever has it goes on"
        assert texts_of(again.messages()) == ["one", "two"]
        await again.add_messages([Message.user("three")], if_sequence=2)


async def test_what_demands_its_place_takes_nobody_along_when_it_is_refused(database: str, tmp_path: Path) -> None:
    async with gateways(database, tmp_path) as (one, other):
        mine = await one.get_or_create("telegram", 1)
        await mine.add_message(Message.user("one"))
        await (await other.get_or_create("telegram", 1)).add_message(Message.user("two"))
        refused: list[LeafMoved] = []

        async def demand() -> None:
            try:
                await mine.add_messages([Message.user("only behind one")], if_sequence=1)
            except LeafMoved as error:
                refused.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(demand, name="demanding")
            tasks.start_soon(mine.add_message, Message.user("three"), name="content")
        assert len(refused) == 1
        await mine.add_message(Message.user("four"))
        assert texts_of((await other.get_or_create("telegram", 1)).messages()) == ["one", "two", "three", "four"]


async def test_a_summary_stands_for_nothing_that_another_gateway_said_meanwhile(database: str, tmp_path: Path) -> None:
    async with gateways(database, tmp_path) as (one, other):
        mine = await one.get_or_create("telegram", 1)
        for text in ("one", "two"):
            await mine.add_message(Message.user(text))
        theirs = await other.get_or_create("telegram", 1)
        await theirs.add_message(Message.user("my address"))
        with pytest.raises(LeafMoved):
            await mine.tree.append_compaction("they counted", None)
        await theirs.add_message(Message.user("my other address"))

        async def summarize(messages: Sequence[Message]) -> str:
            assert "my other address" not in texts_of(list(messages))
            return "they spoke"

        outcome = await mine.compact(summarize, keep_tokens=0)
        assert outcome.status == "done"
        for manager in (one, other):
            said = texts_of((await manager.get_or_create("telegram", 1)).messages())
            assert said[-1] == "my other address"


async def test_a_chat_that_another_gateway_deleted_is_gone_and_does_not_come_back(
    database: str, tmp_path: Path
) -> None:
    async with gateways(database, tmp_path) as (one, other):
        mine = await one.get_or_create("telegram", 1)
        await mine.add_message(Message.user("one"))
        await one.flush()
        theirs = await other.get_or_create("telegram", 1)
        await theirs.add_message(Message.user("two"))
        await other.flush()
        await one.delete("telegram_1")
        with pytest.raises((StoreConflict, SessionDeleted)):
            await theirs.add_message(Message.user("to whom?"))
        new = await other.get_or_create("telegram", 1)
        assert new.messages() == []
        assert new.journal.incarnation != mine.journal.incarnation
        await new.add_message(Message.user("again"))
        assert texts_of((await one.get_or_create("telegram", 1)).messages()) == ["again"]
    async with gateways(database, tmp_path) as managers:
        for manager in managers:
            assert texts_of((await manager.get_or_create("telegram", 1)).messages()) == ["again"]


class Meanwhile(PostgreSQLStore):
    """A store that lets something happen right before sessions are removed, when everybody has looked at them."""

    happens: Callable[[], Awaitable[object]] | None = None

    async def delete(self, session_id: str, *, known: StoredHead | None = None) -> bool:
        await self._let_happen()
        return await super().delete(session_id, known=known)

    async def expire(self, session_ids: Iterable[str], idle_s: float, archiving: Archiving | None) -> dict[str, int]:
        await self._let_happen()
        return await super().expire(session_ids, idle_s, archiving)

    async def _let_happen(self) -> None:
        if self.happens is not None:
            happens, self.happens = self.happens, None
            await happens()


@asynccontextmanager
async def one_and_whoever_deletes(
    database: str, directory: Path, **settings: Any
) -> AsyncIterator[tuple[SessionManager, SessionManager, Meanwhile]]:
    """Two gateways that know the same session, and the store of the second."""
    store, chosen = Meanwhile(database), SessionSettings(**settings)
    async with (
        SessionManager(directory / "one", store=database, settings=chosen) as one,
        SessionManager(directory / "other", store=store, settings=chosen) as other,
    ):
        await (await one.get_or_create("law", 1)).add_message(Message.user("evidence"))
        await other.get("law", 1)
        yield one, other, store


async def test_a_hold_at_one_gateway_keeps_what_another_is_deleting(database: str, tmp_path: Path) -> None:
    async with one_and_whoever_deletes(database, tmp_path) as (one, other, store):
        await store.write_archived("law_1", "20260101T000000.000000Z-law_1.jsonl", in_pieces(b"older evidence"))
        store.happens = lambda: one.hold("law_1", "case 12")
        with pytest.raises(SessionHeld, match="case 12"):
            await other.delete("law_1")
        assert len(await other.archive.names()) == 1
        await (await other.get("law", 1)).add_message(Message.user("and more"))
        await one.hold("law_1", None)
        chosen = [found async for found in select_sessions(other, Selection(channel="law")) if found.archived is None]
        store.happens = lambda: one.hold("law_1", "case 13")
        done = await forget(other, chosen)
        assert (done.gone, [found.session_id for found in done.changed]) == ([], ["law_1"])
        session = await one.get("law", 1)
        assert (session.journal.legal_hold, texts_of(session.messages())) == ("case 13", ["evidence", "and more"])


async def test_a_hold_at_one_gateway_keeps_what_expires_at_another(
    database: str, tmp_path: Path, postgresql: PostgreSQLServer
) -> None:
    async with one_and_whoever_deletes(database, tmp_path, ttl_days=1) as (one, other, store):
        await other.sweep(dry_run=True)  # has seen that somebody was there: the clock is not doubted
        idle = "UPDATE sessions SET used_at = used_at - INTERVAL '2 days'"
        await postgresql.execute(idle, urlsplit(database).path.strip("/"))
        assert (await other.sweep(dry_run=True)).sessions == ["law_1"]
        store.happens = lambda: one.hold("law_1", "case 12")
        assert (await other.sweep()).sessions == []
        assert (await one.find("law_1")).journal.legal_hold == "case 12"


async def test_a_message_at_one_gateway_is_not_forgotten_by_who_has_not_seen_it(database: str, tmp_path: Path) -> None:
    async with one_and_whoever_deletes(database, tmp_path) as (one, other, store):
        session = await one.get("law", 1)
        chosen = [found async for found in select_sessions(other, Selection(channel="law"))]
        store.happens = lambda: session.add_message(Message.user("wait"))
        done = await forget(other, chosen)
        assert (done.gone, [found.session_id for found in done.changed]) == ([], ["law_1"])
        assert texts_of((await other.get("law", 1)).messages()) == ["evidence", "wait"]
        store.happens = lambda: session.add_message(Message.user("whatever it is"))
        assert await other.delete("law_1"), "nobody has said which state of it is meant"
        for manager in (one, other):
            with pytest.raises(SessionNotFound):
                await manager.get("law", 1)


async def test_who_deletes_what_another_has_deleted_leaves_its_successor(database: str, tmp_path: Path) -> None:
    async with one_and_whoever_deletes(database, tmp_path) as (one, other, store):

        async def begin_anew() -> None:
            await one.delete("law_1")
            await (await one.get_or_create("law", 1)).add_message(Message.user("anew"))

        store.happens = begin_anew
        assert await other.delete("law_1")
        for manager in (one, other):
            assert texts_of((await manager.get("law", 1)).messages()) == ["anew"]


async def test_a_session_that_goes_on_all_the_time_is_as_it_was_when_it_cannot_be_deleted(
    database: str, tmp_path: Path
) -> None:
    async with one_and_whoever_deletes(database, tmp_path) as (one, other, store):
        session, said = await one.get("law", 1), list[str]()

        async def go_on() -> None:
            said.append(f"{len(said)}")
            await session.add_message(Message.user(said[-1]))
            store.happens = go_on

        store.happens = go_on
        with pytest.raises(StoreUnavailable, match="all the time"):
            await other.delete("law_1")
        store.happens = None
        theirs = await other.get("law", 1)
        await theirs.add_message(Message.user("still here"))
        assert texts_of(theirs.messages()) == ["evidence", *said, "still here"]
        assert await other.delete("law_1")


async def in_pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def test_a_commit_that_is_cut_off_is_neither_lost_nor_doubled_though_others_came_between(
    database: str, tmp_path: Path, postgresql: PostgreSQLServer
) -> None:
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    async with gateways(database, tmp_path, window=1000) as managers:
        said: list[str] = []
        acknowledged = anyio.Semaphore(0)

        async def talk(manager: SessionManager, name: str) -> None:
            for number in range(15):
                text = f"{name}-{number}"
                while text not in said:
                    with suppress(StoreUnavailable):
                        session = await manager.get_or_create("telegram", 1)
                        await session.add_message(Message.user(text), idempotency_key=text)
                        said.append(text)
                        acknowledged.release()
                    await anyio.lowlevel.checkpoint()

        async def cutting() -> None:
            while True:
                await acknowledged.acquire()  # or a busy machine, which connects slowly, would get nowhere
                with suppress(asyncpg.PostgresError):  # it cuts its own, too
                    await postgresql.execute(cut, urlsplit(database).path.strip("/"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cutting, name="cut")
            async with anyio.create_task_group() as talking:
                for number, manager in enumerate(managers):
                    talking.start_soon(talk, manager, f"{number}", name=f"talk {number}")
            tasks.cancel_scope.cancel()
        seen = [texts_of((await manager.get_or_create("telegram", 1)).messages()) for manager in managers]
        assert Counter(seen[0]) == Counter(said)
        assert seen[0] == seen[1]
        assert (await managers[0].check()).problems == []
