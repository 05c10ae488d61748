"""Tools that wait for a person: the turn ends, says for what, and goes on with the answer, also after a restart."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from miniclaw_sessions.agent.agent import Agent, AgentEvent, PendingCall, SuspendTurn, TurnSuspended, Unanswered
from miniclaw_sessions.agent.calls import pending_calls as calls_that_wait
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.compacting import CompactionStatus
from miniclaw_sessions.core.session.turn import ABANDONED
from miniclaw_sessions.errors import AgentError, InvalidMessage, NothingToResume
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.agent.conversations import HELLO, assert_legal, calls, costing, echo, opened, read, roles, tool
from tests.legality import is_legal
from tests.texts import texts

pytestmark = pytest.mark.anyio


async def ask(arguments: dict[str, Any]) -> str:
    raise SuspendTurn("may I?", {"arguments": arguments})


TOOLS = [tool("ask", ask), tool("echo", echo)]


def pending_of(events: list[AgentEvent]) -> list[PendingCall]:
    last = events[-1]
    assert isinstance(last, TurnSuspended)
    return list(last.pending)


async def suspended(session: Session, *names: str) -> list[PendingCall]:
    """A turn in which these tools were called."""
    asked = calls(*names, arguments='{"say": "x"}')
    return pending_of(await read(Agent(ScriptedProvider([asked]), tools=TOOLS).run(HELLO, session=session)))


# --- across a restart ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["sqlite:", "jsonl:"])
async def test_a_turn_goes_on_with_the_answer_after_a_restart(tmp_path: Path, store: str) -> None:
    async with opened(tmp_path, store) as session:
        (pending,) = await suspended(session, "ask", "echo")
        assert not session.journal.turn_lock.is_held
        assert session.journal.committed_sequence == session.last_sequence
    call = ToolCall("call_0", "ask", '{"say": "x"}')
    assert pending == PendingCall(call, "may I?", {"arguments": {"say": "x"}}, pending.question)
    async with opened(tmp_path, store) as session:
        assert await calls_that_wait(session) == [pending]
    provider = ScriptedProvider(["done"])
    async with opened(tmp_path, store) as session:
        await read(Agent(provider, tools=TOOLS).resume(session, results={"call_0": "you may"}))
        assert await calls_that_wait(session) == []
        await assert_legal(session, provider)
    assert [message.text for message in provider.contexts[0]] == ["hello", "", "you may", "x"]  # in the calls' order


async def test_answers_may_come_one_by_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as session:
        assert len(await suspended(session, "ask", "ask", "echo")) == 2
    provider = ScriptedProvider(["done"])
    async with opened(tmp_path) as session:
        (pending,) = pending_of(await read(Agent(provider, tools=TOOLS).resume(session, results={"call_1": "second"})))
        assert (pending.call.id, provider.contexts) == ("call_0", [])
    async with opened(tmp_path) as session:
        await read(Agent(provider, tools=TOOLS).resume(session, results={"call_0": "first"}))
        await assert_legal(session, provider)
    assert [message.text for message in provider.contexts[0]] == ["hello", "", "first", "second", "x"]


@pytest.mark.parametrize("policy", list(Unanswered))
async def test_without_an_answer_it_waits_on_and_asks_nobody_twice(session: Session, policy: Unanswered) -> None:
    before = await suspended(session, "ask")
    asked: list[str] = []

    async def ask_again(_: dict[str, Any]) -> str:
        asked.append("again")
        return "never"

    agent = Agent(ScriptedProvider(), tools=[tool("ask", ask_again)])
    for _ in range(2):
        events = await read(agent.resume(session, unanswered=policy, results={"some other call": "yes"}))
        assert pending_of(events) == before
    assert asked == []
    assert roles(session) == ["user", "assistant"]


async def test_a_tool_may_ask_again_within_the_resumed_turn(session: Session) -> None:
    await suspended(session, "ask")
    provider = ScriptedProvider([calls("ask"), "done"])  # a second question, under the same id
    agent = Agent(provider, tools=TOOLS)
    (pending,) = pending_of(await read(agent.resume(session, results={"call_0": "one"})))
    assert pending.data == {"arguments": {}}
    await read(agent.resume(session, results={"call_0": "two"}))
    assert texts(session) == ["hello", "", "one", "", "two", "done"]
    await assert_legal(session, provider)


async def test_what_waited_in_an_earlier_turn_is_not_taken_for_a_call_of_the_same_id(session: Session) -> None:
    await suspended(session, "ask")
    await read(Agent(ScriptedProvider(["done"]), tools=TOOLS).resume(session, results={"call_0": "yes"}))
    await session.add_messages([Message.user("next"), calls("echo")])  # a process that was killed while it ran
    assert await calls_that_wait(session) == []
    await read(Agent(ScriptedProvider(["well"]), tools=TOOLS).resume(session))
    assert texts(session)[-3:] == ["", "nothing", "well"]


# --- the user goes on ------------------------------------------------------------------------------------------------


async def test_a_new_message_closes_the_calls_that_wait(tmp_path: Path) -> None:
    async with opened(tmp_path) as session:
        await suspended(session, "ask", "echo")
    provider = ScriptedProvider(["fine", "never"])
    async with opened(tmp_path) as session:
        agent = Agent(provider, tools=TOOLS)
        await agent.reply(Message.user("forget it"), session=session)
        assert texts(session) == ["hello", "", "x", ABANDONED, "forget it", "fine"]
        assert await calls_that_wait(session) == []
        with pytest.raises(NothingToResume):
            await read(agent.resume(session, results={"call_0": "too late"}))
        await assert_legal(session, provider)
    assert texts(session)[-1] == "fine"


async def test_the_same_delivery_once_more_is_not_the_user_going_on(session: Session) -> None:
    agent = Agent(ScriptedProvider([calls("ask")]), tools=TOOLS, session=session)
    first = pending_of(await read(agent.run(HELLO, idempotency_key="update-1")))
    assert pending_of(await read(agent.run(HELLO, idempotency_key="update-1"))) == first
    assert roles(session) == ["user", "assistant"]


async def test_what_is_said_while_a_turn_waits_is_seen_when_it_goes_on(session: Session) -> None:
    await suspended(session, "ask")
    await session.add_message(Message.user("hurry"))
    provider = ScriptedProvider(["done"])
    await read(Agent(provider, tools=TOOLS).resume(session, results={"call_0": "yes"}))
    assert [message.text for message in provider.contexts[0]] == ["hello", "", "yes", "hurry"]
    await assert_legal(session, provider)


# --- what is kept of it ----------------------------------------------------------------------------------------------


async def test_reply_says_that_it_waits(session: Session) -> None:
    with pytest.raises(AgentError, match="waits for the answer of a tool"):
        await Agent(ScriptedProvider([calls("ask")]), tools=TOOLS).reply(HELLO, session=session)
    assert len(await calls_that_wait(session)) == 1


async def test_what_it_cost_is_told_and_counted(session: Session) -> None:
    provider = ScriptedProvider([costing(calls("ask"), 100), costing("done", 110)])
    agent = Agent(provider, tools=TOOLS, session=session)
    events = await read(agent.run(HELLO))
    assert isinstance(events[-1], TurnSuspended)
    assert events[-1].usage.total == 100
    await read(agent.resume(results={"call_0": "yes"}))
    assert session.total_usage.total == 210


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"when": datetime(2026, 1, 1, tzinfo=UTC)}, "no form"),
        ({"big": "x" * 2**24}, "bytes"),
        ({"a": "\ud800"}, ""),
    ],
    ids=["no JSON", "too large", "no UTF-8"],
)
async def test_data_that_cannot_be_kept_is_an_error_of_the_tool(
    session: Session, data: dict[str, Any], problem: str
) -> None:
    async def wrong(_: dict[str, Any]) -> str:
        raise SuspendTurn("wait", data)

    provider = ScriptedProvider([calls("wrong", "echo"), "done"])
    await Agent(provider, tools=[tool("wrong", wrong), *TOOLS]).reply(HELLO, session=session)
    assert roles(session) == ["user", "assistant", "tool_result!", "tool_result", "assistant"]
    assert problem in texts(session)[2]


async def test_an_answer_that_cannot_be_stored_is_refused_and_another_one_taken(session: Session) -> None:
    await suspended(session, "ask")
    agent = Agent(ScriptedProvider(["done"]), tools=TOOLS, session=session)
    with pytest.raises(InvalidMessage):
        await read(agent.resume(results={"call_0": "\ud800"}))
    assert len(await calls_that_wait(session)) == 1
    await read(agent.resume(results={"call_0": "yes"}))
    assert texts(session) == ["hello", "", "yes", "done"]


async def test_a_session_is_not_compacted_while_a_call_waits(session: Session) -> None:
    async def summarize(_: object) -> str:
        return "They said hello."

    await suspended(session, "ask")
    assert (await session.compact(summarize)).status is CompactionStatus.SKIPPED
    await read(Agent(ScriptedProvider(["done"]), tools=TOOLS).resume(session, results={"call_0": "yes"}))
    assert (await session.compact(summarize)).status is CompactionStatus.DONE


async def test_sixty_calls_of_which_one_waits_fit_no_window_and_are_all_there(tmp_path: Path) -> None:
    async with opened(tmp_path) as session:
        await suspended(session, *["echo"] * 59, "ask")
    provider = ScriptedProvider(["done"])
    async with opened(tmp_path) as session:
        await read(Agent(provider, tools=TOOLS).resume(session, results={"call_59": "yes"}))
        await assert_legal(session, provider)
    (context,) = provider.contexts
    assert [message.text for message in context] == ["hello", "", *["x"] * 59, "yes"]
    assert is_legal(context) == []
