"""A turn: exclusive, the user's message safe before the body runs, the reply saved as one unit or closed legally."""
# ruff: noqa: PT012 - a turn that fails is a block

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from miniclaw_sessions.core.history.pairing import open_calls, with_answers
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import INTERRUPTED, Turn, _SoleOwner
from miniclaw_sessions.errors import (
    DuplicateMessage,
    InvalidMessage,
    ManagerClosed,
    SessionDeleted,
    StoreFull,
    StoreUnavailable,
    TurnInProgress,
    UnsavedLimit,
)
from miniclaw_sessions.testing import FakeClock
from tests.core.session.bench import Bench
from tests.texts import texts
from tests.two_tasks import in_two_tasks

pytestmark = pytest.mark.anyio

CALL, OTHER = ToolCall("call-1", "search", "{}"), ToolCall("call-2", "fetch", "{}")
ASK = Message.user("ask")


async def committed(bench: Bench) -> list[int]:
    return [entry.sequence for entry in await bench.store.read("telegram_1")]


class BodyFailed(Exception):
    pass


# --- the normal case -------------------------------------------------------------------------------------------------


async def test_the_users_message_is_committed_before_the_body_runs(session: Session, bench: Bench) -> None:
    async with session.turn(ASK) as turn:
        assert await committed(bench) == [1]
        assert turn.message.sequence == session.journal.committed_sequence == 1
        assert turn.message.message.text == "ask"


async def test_what_is_staged_joins_the_session_at_the_end_in_one_commit(session: Session, bench: Bench) -> None:
    async with session.turn(ASK) as turn:
        turn.append(Message.assistant("", (CALL,)))
        turn.append(Message.tool_result(CALL, "found"))
        await bench.clock.advance(60)
        turn.append(Message.assistant("answer"))
        assert texts(session) == ["ask"]
        assert [message.text for message in turn.messages()] == ["ask", "", "found", "answer"]
        commits = bench.store.calls["append"]
    assert texts(session) == ["ask", "", "found", "answer"]
    assert bench.store.calls["append"] == commits + 1
    assert await committed(bench) == [1, 2, 3, 4]


async def test_a_turn_is_entered_once(session: Session) -> None:
    turn = session.turn(ASK)
    async with turn:
        turn.append(Message.assistant("answer"))
    with pytest.raises(TurnInProgress):
        async with turn:
            pytest.fail("entered again")
    assert texts(session) == ["ask", "answer"]


async def test_staged_messages_get_the_time_at_which_they_were_said(session: Session, bench: Bench) -> None:
    async with session.turn(ASK) as turn:
        said = bench.clock.now()
        turn.append(Message.assistant("answer"))
        await bench.clock.advance(60)
    assert session.messages()[-1].timestamp == said


async def test_the_order_is_user_call_result_reply(session: Session) -> None:
    async with session.turn(ASK) as turn:
        turn.append(Message.assistant("", (CALL, OTHER)))
        turn.append(Message.tool_result(CALL, "1"))
        turn.append(Message.tool_result(OTHER, "2"))
        turn.append(Message.assistant("answer"))
    assert [message.role.value for message in session.messages()] == [
        "user",
        "assistant",
        "tool_result",
        "tool_result",
        "assistant",
    ]


async def test_a_turn_renews_the_session(session: Session, bench: Bench) -> None:
    async with session.turn(ASK):
        await bench.clock.advance(7200)
    assert session.last_accessed == bench.clock.now()


async def test_a_message_that_cannot_be_stored_is_refused_when_it_is_staged_and_ends_nothing(session: Session) -> None:
    async with session.turn(ASK) as turn:
        with pytest.raises(InvalidMessage):
            turn.append(Message.assistant("\ud800"))
        turn.append(Message.assistant("answer"))
    assert texts(session) == ["ask", "answer"]


async def test_whatever_may_be_staged_can_be_saved(bench: Bench) -> None:
    async with bench.opened(max_message_bytes=1000) as session:
        for size in range(800, 1000):
            async with session.turn(ASK) as turn:
                turn.append(Message.assistant("", (CALL,)))
                turn.append(Message.tool_result(CALL, "r"))
                try:
                    turn.append(Message.assistant("x" * size))
                except InvalidMessage:
                    turn.append(Message.assistant("too long"))
            assert not session.journal.turn_lock.is_held
        assert session.last_sequence == 200 * 4


@pytest.mark.parametrize("failed", [False, True])
async def test_a_closed_turn_takes_nothing_more(session: Session, *, failed: bool) -> None:
    kept: list[Turn] = []
    try:
        async with session.turn(ASK) as turn:
            kept.append(turn)
            if failed:
                raise BodyFailed  # noqa: TRY301 - the body's failure is what is tested
    except BodyFailed:
        pass
    with pytest.raises(TurnInProgress, match="lost"):
        kept[0].append(Message.assistant("late"))
    unopened = session.turn(ASK)
    with pytest.raises(TurnInProgress):
        unopened.append(Message.assistant("early"))
    with pytest.raises(TurnInProgress):
        _ = unopened.message


# --- failing ---------------------------------------------------------------------------------------------------------


async def fail_after(session: Session, *staged: Message) -> None:
    async with session.turn(ASK) as turn:
        for message in staged:
            turn.append(message)
        raise BodyFailed


async def test_a_failing_turn_keeps_the_users_message(session: Session, bench: Bench) -> None:
    with pytest.raises(BodyFailed):
        await fail_after(session)
    assert texts(session) == ["ask"]
    assert await committed(bench) == [1]
    assert not session.journal.turn_lock.is_held


async def test_a_failing_turn_keeps_complete_groups_and_closes_the_open_call(session: Session, bench: Bench) -> None:
    with pytest.raises(BodyFailed):
        await fail_after(
            session,
            Message.assistant("", (CALL,)),
            Message.tool_result(CALL, "found"),
            Message.assistant("let me see", (OTHER,)),
        )
    assert texts(session) == ["ask", "", "found", "let me see", INTERRUPTED]
    closing = session.messages()[-1]
    assert (closing.tool_call_id, closing.name, closing.is_error) == ("call-2", "fetch", True)
    assert await committed(bench) == [1, 2, 3, 4, 5]


async def test_every_unanswered_call_is_closed_right_behind_the_answers_of_its_unit() -> None:
    third = ToolCall("call-3", "list")
    closed = with_answers(
        [
            Message.assistant("", (CALL, OTHER)),
            Message.tool_result(OTHER, "2"),
            Message.assistant("", (third,)),
        ],
        INTERRUPTED,
    )
    assert [(message.role.value, message.tool_call_id, message.is_error) for message in closed] == [
        ("assistant", None, False),
        ("tool_result", "call-2", False),
        ("tool_result", "call-1", True),
        ("assistant", None, False),
        ("tool_result", "call-3", True),
    ]
    assert with_answers(closed, INTERRUPTED) == closed
    assert with_answers([], INTERRUPTED) == []


async def test_a_failing_turn_that_cannot_be_saved_raises_the_bodys_error(session: Session, bench: Bench) -> None:
    with pytest.raises(BodyFailed):
        async with session.turn(ASK) as turn:
            turn.append(Message.assistant("half"))
            bench.store.fail(StoreFull("full"))
            raise BodyFailed
    bench.store.heal()
    assert not session.journal.turn_lock.is_held


async def test_a_failing_turn_on_a_closed_manager_raises_the_bodys_error(bench: Bench) -> None:
    with pytest.raises(BodyFailed):
        async with bench.manager() as manager:
            session = await manager.get_or_create("telegram", "1")
            async with session.turn(ASK) as turn:
                turn.append(Message.assistant("half"))
                await manager.close()
                raise BodyFailed


async def test_a_turn_that_outlives_its_manager_says_that_its_reply_is_lost(bench: Bench) -> None:
    async with bench.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        with pytest.raises(ManagerClosed):
            async with session.turn(ASK) as turn:
                turn.append(Message.assistant("answer"))
                await manager.close()
    assert await committed(bench) == [1]


async def test_a_turn_refused_in_the_middle_leaves_no_half_of_its_reply(bench: Bench) -> None:
    async with bench.opened(max_unsaved_bytes=1500) as session:
        with pytest.raises(UnsavedLimit):
            async with session.turn(ASK) as turn:
                turn.append(Message.assistant("", (CALL,)))
                turn.append(Message.tool_result(CALL, "x" * 500))
                turn.append(Message.assistant("y" * 800))
        assert texts(session) == ["ask"]
        assert not session.journal.turn_lock.is_held
        await session.add_message(Message.user("goes on"))


async def test_a_turn_for_which_there_is_no_room_leaves_the_open_call_open(bench: Bench) -> None:
    async with bench.opened(max_unsaved_bytes=1500) as session:
        await session.add_messages([ASK, Message.assistant("", (CALL,))])
        with pytest.raises(UnsavedLimit):
            async with session.turn(Message.user("x" * 1400)):
                pytest.fail("the message was not accepted")
        assert open_calls(session.messages()) == [CALL]


# --- the store fails -------------------------------------------------------------------------------------------------


async def test_a_turn_that_a_failing_store_refuses_leaves_the_open_call_open(session: Session, bench: Bench) -> None:
    await session.add_messages([ASK, Message.assistant("", (CALL,))])
    bench.store.fail(StoreUnavailable("gone"))
    with pytest.raises(StoreUnavailable):
        await session.add_message(Message.user("a word, by which it is known that the store fails"))
    with pytest.raises(StoreUnavailable):
        async with session.turn(Message.user("next")):
            pytest.fail("the message is not safe")
    assert open_calls(session.messages()) == [CALL]
    bench.store.heal()


async def test_a_store_that_fails_at_the_beginning_keeps_the_body_from_running(session: Session, bench: Bench) -> None:
    bench.store.fail(StoreFull("full"))
    with pytest.raises(StoreFull):
        async with session.turn(ASK):
            pytest.fail("the message is not safe")
    assert not session.journal.turn_lock.is_held
    bench.store.heal()
    await bench.clock.advance(60)
    async with session.turn(Message.user("again")):
        pass


async def test_a_store_that_fails_at_the_end_raises_and_keeps_the_reply_in_memory(
    session: Session, bench: Bench
) -> None:
    with pytest.raises(StoreUnavailable):
        async with session.turn(ASK) as turn:
            turn.append(Message.assistant("answer"))
            bench.store.fail()
    assert texts(session) == ["ask", "answer"]
    assert not session.journal.turn_lock.is_held
    bench.store.heal()
    await bench.clock.advance(60)
    assert await committed(bench) == [1, 2]


# --- exclusive -------------------------------------------------------------------------------------------------------


async def test_two_turns_do_not_interleave_and_come_in_order_of_arrival(session: Session, bench: Bench) -> None:
    async def answer(number: int) -> None:
        async with session.turn(Message.user(f"ask {number}")) as turn:
            await bench.clock.sleep(10 - number)
            turn.append(Message.assistant(f"answer {number}"))

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(answer, number)
            await bench.clock.advance(0)
        await bench.clock.advance(200)
    assert texts(session) == [text for number in range(5) for text in (f"ask {number}", f"answer {number}")]


async def test_other_sessions_are_not_held_up(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, store="memory:") as manager:
        one, two = await manager.get_or_create("telegram", "1"), await manager.get_or_create("telegram", "2")
        async with one.turn(ASK), two.turn(ASK) as turn:
            turn.append(Message.assistant("answer"))
        assert texts(two) == ["ask", "answer"]


async def test_entering_again_from_within_fails_at_once(session: Session) -> None:
    async with session.turn(ASK) as turn:
        with pytest.raises(TurnInProgress):
            async with session.turn(Message.user("nested")):
                pass
        turn.append(Message.assistant("answer"))
    assert texts(session) == ["ask", "answer"]
    async with session.turn(ASK):
        pass


async def test_entering_again_from_a_child_task_fails_at_once(session: Session) -> None:
    refused = []

    async def nested() -> None:
        try:
            async with session.turn(Message.user("nested")):
                pass
        except TurnInProgress:
            refused.append(True)

    async with session.turn(ASK):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(nested)
        await asyncio.create_task(nested())
    assert refused == [True, True]


async def test_a_task_that_was_started_in_a_turn_may_open_one_when_it_is_over(session: Session) -> None:
    over = anyio.Event()

    async def later() -> None:
        await over.wait()
        async with session.turn(Message.user("later")):
            pass

    async with anyio.create_task_group() as tasks:
        async with session.turn(ASK):
            tasks.start_soon(later)
        over.set()
    assert texts(session) == ["ask", "later"]


async def test_a_turn_that_one_task_begins_may_be_ended_by_another(session: Session) -> None:
    async with in_two_tasks(session.turn(ASK)) as turn:
        turn.append(Message.assistant("answered"))
    async with session.turn(Message.user("next")):
        pass
    assert texts(session) == ["ask", "answered", "next"]


async def test_a_task_keeps_of_all_its_turns_that_others_ended_at_most_the_last_in_memory(session: Session) -> None:
    turns: weakref.WeakSet[Turn] = weakref.WeakSet()
    for number in range(3):
        turn = session.turn(Message.user(str(number)))
        turns.add(await turn.__aenter__())
        await asyncio.create_task(turn.__aexit__(None, None, None))
        del turn
    gc.collect()
    assert len(turns) <= 1


async def test_a_turn_that_one_task_begins_and_whose_block_fails_is_over(session: Session) -> None:
    with pytest.raises(ZeroDivisionError):
        async with in_two_tasks(session.turn(ASK)):
            raise ZeroDivisionError
    assert not session.journal.turn_lock.is_held


async def test_re_entry_is_noticed_through_another_sessions_turn(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, store="memory:") as manager:
        one, two = await manager.get_or_create("telegram", "1"), await manager.get_or_create("telegram", "2")
        async with one.turn(ASK):
            async with two.turn(ASK):
                with pytest.raises(TurnInProgress):
                    await one.turn(ASK).__aenter__()
            async with two.turn(ASK):
                pass


async def test_the_wait_for_a_turn_can_be_cancelled_and_leaves_no_trace(session: Session, bench: Bench) -> None:
    release = anyio.Event()

    async def hold() -> None:
        async with session.turn(ASK):
            await release.wait()

    async def wait() -> None:
        async with session.turn(Message.user("too late")):
            pytest.fail("cancelled")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold)
        await bench.clock.advance(0)
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(wait)
            await bench.clock.advance(0)
            waiting.cancel_scope.cancel()
        native = asyncio.create_task(wait())
        await bench.clock.advance(0)
        native.cancel()
        await bench.clock.advance(0)
        assert native.cancelled()
        release.set()
    assert texts(session) == ["ask"]
    async with session.turn(Message.user("next")):
        pass


# --- cancelled -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [False, True])
async def test_a_turn_cancelled_in_its_body_is_closed_and_committed(
    session: Session, bench: Bench, *, native: bool
) -> None:
    async def talk() -> None:
        async with session.turn(ASK) as turn:
            turn.append(Message.assistant("", (CALL,)))
            await anyio.sleep_forever()

    if native:
        task = asyncio.create_task(talk())
        await bench.clock.advance(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk)
            await bench.clock.advance(0)
            tasks.cancel_scope.cancel()
    assert texts(session) == ["ask", "", INTERRUPTED]
    assert await committed(bench) == [1, 2, 3]
    assert not session.journal.turn_lock.is_held


async def test_a_turn_cancelled_while_its_message_is_committed_keeps_the_message_and_frees_the_session(
    session: Session, bench: Bench
) -> None:
    hold = bench.store.hold()

    async def talk() -> None:
        async with session.turn(ASK, idempotency_key="update-1"):
            pytest.fail("cancelled before it began")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(talk)
        await hold.reached.wait()
        tasks.cancel_scope.cancel()
    assert not session.journal.turn_lock.is_held
    hold.release()
    await session.saved()
    assert await committed(bench) == [1]
    async with session.turn(ASK, idempotency_key="update-1") as turn:
        turn.append(Message.assistant("answer"))
    assert texts(session) == ["ask", "answer"]


@pytest.mark.parametrize("native", [False, True])
async def test_a_turn_cancelled_while_its_reply_is_committed_keeps_the_reply_and_frees_the_session(
    session: Session, bench: Bench, *, native: bool
) -> None:
    entered = anyio.Event()

    async def talk() -> None:
        async with session.turn(ASK) as turn:
            turn.append(Message.assistant("answer"))
            bench.store.hold()
            entered.set()

    task = asyncio.create_task(talk())
    await entered.wait()
    await bench.clock.advance(0)
    if native:
        task.cancel()
        await bench.clock.advance(0)
    bench.store.heal()
    await asyncio.wait([task])
    await session.saved()
    assert await committed(bench) == [1, 2]
    assert not session.journal.turn_lock.is_held
    async with session.turn(Message.user("next")):
        pass


class _Contested(_SoleOwner):
    """The turn of a session that other processes answer too, of a server that is slow."""

    def __init__(self) -> None:
        self.begun, self.giving_back, self.answered = anyio.Event(), anyio.Event(), anyio.Event()
        self.is_given_back = False

    async def begin(self, begin: Callable[[], Awaitable[Any]]) -> Any:
        del begin
        self.begun.set()
        await anyio.sleep_forever()

    async def give_back(self) -> None:
        self.giving_back.set()
        await self.answered.wait()
        self.is_given_back = True


async def test_a_caller_cancelled_twice_while_it_waits_for_a_turn_gives_it_back_and_frees_the_session(
    session: Session, bench: Bench
) -> None:
    turn, contested = session.turn(ASK), _Contested()
    turn._ownership = contested

    async def talk() -> None:
        async with turn:
            pytest.fail("cancelled before it began")

    task = asyncio.create_task(talk())
    await contested.begun.wait()
    task.cancel()
    await contested.giving_back.wait()
    task.cancel()
    await bench.clock.advance(0)
    contested.answered.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert contested.is_given_back
    assert not session.journal.turn_lock.is_held
    async with session.turn(Message.user("next")):
        pass


# --- repeated messages -----------------------------------------------------------------------------------------------


async def test_a_message_that_was_answered_is_a_duplicate_and_names_its_entry(session: Session) -> None:
    async with session.turn(ASK, idempotency_key="update-1") as turn:
        turn.append(Message.assistant("answer"))
        entry_id = turn.message.id
    with pytest.raises(DuplicateMessage) as refusal:
        async with session.turn(ASK, idempotency_key="update-1"):
            pytest.fail("answered twice")
    assert refusal.value.entry_id == entry_id
    assert texts(session) == ["ask", "answer"]
    assert not session.journal.turn_lock.is_held


async def test_a_message_that_arrives_twice_at_once_is_answered_once(session: Session, bench: Bench) -> None:
    refused = []

    async def talk() -> None:
        try:
            async with session.turn(ASK, idempotency_key="update-1") as turn:
                await bench.clock.sleep(5)
                turn.append(Message.assistant("answer"))
        except DuplicateMessage as error:
            refused.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(talk)
        tasks.start_soon(talk)
        await bench.clock.advance(60)
    assert len(refused) == 1
    assert texts(session) == ["ask", "answer"]


async def test_an_unanswered_message_is_taken_up_again_after_a_restart(bench: Bench) -> None:
    async with bench.opened() as session:
        with pytest.raises(BodyFailed):
            async with session.turn(ASK, idempotency_key="update-1") as turn:
                turn.append(Message.assistant("", (CALL,)))
                raise BodyFailed
        asked = session.entries()[0].id
    async with bench.opened() as session, session.turn(ASK, idempotency_key="update-1") as turn:
        assert turn.message.id == asked
        turn.append(Message.assistant("answer"))
    assert texts(session) == ["ask", "", INTERRUPTED, "answer"]
    async with bench.opened() as session:
        assert texts(session) == ["ask", "", INTERRUPTED, "answer"]
        with pytest.raises(DuplicateMessage):
            await session.turn(ASK, idempotency_key="update-1").__aenter__()


async def test_an_unanswered_message_that_others_followed_is_not_taken_up_again(session: Session) -> None:
    async with session.turn(ASK, idempotency_key="update-1"):
        pass
    session.append(Message.user("never mind"))
    with pytest.raises(DuplicateMessage):
        await session.turn(ASK, idempotency_key="update-1").__aenter__()


async def test_a_duplicate_beyond_the_window_or_cleared_away_is_still_one(bench: Bench) -> None:
    async with bench.opened(window=4) as session:
        async with session.turn(ASK, idempotency_key="update-1"):
            pass
        session.clear()
        with pytest.raises(DuplicateMessage):
            await session.turn(ASK, idempotency_key="update-1").__aenter__()


async def test_taking_up_a_message_waits_until_it_is_acknowledged(session: Session, bench: Bench) -> None:
    bench.store.fail()
    with pytest.raises(StoreUnavailable):
        await session.turn(ASK, idempotency_key="update-1").__aenter__()
    with pytest.raises(StoreUnavailable):
        await session.turn(ASK, idempotency_key="update-1").__aenter__()
    bench.store.heal()
    await bench.clock.advance(60)
    async with session.turn(ASK, idempotency_key="update-1"):
        assert await committed(bench) == [1]


# --- deleted ---------------------------------------------------------------------------------------------------------


async def test_waiting_for_the_turn_of_a_session_that_is_deleted_meanwhile(tmp_path: Path) -> None:
    clock = FakeClock()
    outcomes = []
    async with SessionManager(tmp_path, store="memory:", clock=clock) as manager:
        session = await manager.get_or_create("telegram", "1")

        release = anyio.Event()

        async def hold() -> None:
            async with session.turn(ASK):
                await release.wait()

        async def talk() -> None:
            try:
                async with session.turn(Message.user("late")):
                    outcomes.append("talked")
            except SessionDeleted:
                outcomes.append("deleted")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold)
            await clock.advance(0)
            tasks.start_soon(manager.delete, "telegram_1")
            await clock.advance(0)
            tasks.start_soon(talk)
            await clock.advance(0)
            release.set()
        assert outcomes == ["deleted"]
        assert await manager.list() == []
