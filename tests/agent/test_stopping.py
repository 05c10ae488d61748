"""Stopping a turn: within a moment, with what was said so far, its calls answered, and the conversation legal."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import anyio
import pytest

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import AgentSession
from miniclaw_sessions.agent.calls import SuspendTurn
from miniclaw_sessions.agent.events import AgentEvent, MessageAccepted, TurnEnd, TurnFinished, TurnStopped
from miniclaw_sessions.agent.provider import ModelEvent, Reply, TextDelta
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.manager.reading import read_transcript
from miniclaw_sessions.core.protocol.messages import ABORTED, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import INTERRUPTED
from miniclaw_sessions.errors import AgentError, DuplicateMessage, NothingToResume
from miniclaw_sessions.testing import ScriptedProvider
from tests.agent.conversations import roles_and_texts
from tests.legality import is_legal

pytestmark = pytest.mark.anyio

HELLO = Message.user("hello")
PATIENCE_S = 60.0


class Endless:
    """A model that says "word " for ever, once the first one was heard."""

    name = "test"
    model = "endless"

    def __init__(self) -> None:
        self.began = anyio.Event()
        self.ended = False

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        del messages, tools
        try:
            yield TextDelta("one ")
            yield TextDelta("two")
            self.began.set()
            await anyio.sleep_forever()
        finally:
            self.ended = True


class Running:
    """A turn in a task of its own; `end` is how it ended."""

    def __init__(self, agent: Agent, session: Session, **options: Any) -> None:
        self.events: list[AgentEvent] = []
        self.end: TurnEnd | None = None
        self._answer = agent.answer(HELLO, session=session, on_event=self.events.append, **options)

    async def __call__(self) -> None:
        self.end = await self._answer


async def stopped(agent: Agent, session: Session, began: anyio.Event, **options: Any) -> TurnStopped:
    """What a turn ends with that is stopped once it has begun."""
    running = Running(agent, session, **options)
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(running)
            await began.wait()
            assert session.stop_turn()
    assert isinstance(running.end, TurnStopped)
    return running.end


async def test_the_text_so_far_is_kept_and_marked(session: Session, manager: SessionManager) -> None:
    model = Endless()
    end = await stopped(Agent(model), session, model.began)
    assert model.ended
    assert (end.message.text, end.message.stop_reason, end.message.model) == ("one two", ABORTED, "endless")
    assert roles_and_texts(session) == [("user", "hello"), ("assistant", "one two")]
    stored = [entry async for entry in read_transcript(manager, session.session_id)]
    assert stored[-1].message.stop_reason == ABORTED  # type: ignore[union-attr]
    assert not session.stop_turn()  # nothing runs any more


async def test_the_conversation_goes_on_after_a_stop(session: Session) -> None:
    model = Endless()
    await stopped(Agent(model), session, model.began)
    provider = ScriptedProvider(["gladly"])
    await Agent(provider).reply(Message.user("go on"), session=session)
    assert [message.text for message in provider.contexts[0]] == ["hello", "one two", "go on"]
    assert is_legal(provider.contexts[0]) == []


async def test_tools_are_cancelled_and_those_that_had_ended_keep_their_result(session: Session) -> None:
    runs, cancelled = anyio.Event(), []

    async def quick(_: dict[str, Any]) -> str:
        return "done"

    async def slow(_: dict[str, Any]) -> str:
        runs.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append("slow")
        return "never"

    async def asks(_: dict[str, Any]) -> str:
        raise SuspendTurn("may I?")

    tools = [
        Tool(name, name, {"type": "object"}, run) for name, run in {"quick": quick, "slow": slow, "asks": asks}.items()
    ]
    calls = tuple(ToolCall(f"c{place}", tool.name, "{}") for place, tool in enumerate(tools))
    agent = Agent(ScriptedProvider([Message.assistant("let me see", calls)]), tools=tools)
    end = await stopped(agent, session, runs)
    assert cancelled == ["slow"]
    assert end.message.text == ""
    assert [text for _, text in roles_and_texts(session)] == [
        "hello",
        "let me see",
        "done",
        INTERRUPTED,
        INTERRUPTED,
        "",
    ]
    context = build_context([*session.messages(), Message.user("next")])
    assert is_legal(context) == []
    assert [message.text for message in context] == ["hello", "let me see", "done", INTERRUPTED, INTERRUPTED, "next"]


async def test_a_stopped_turn_is_over(session: Session) -> None:
    model = Endless()
    await stopped(Agent(model), session, model.began, idempotency_key="update-1")
    with pytest.raises(DuplicateMessage):  # the network delivers it again: it is not begun anew
        await Agent(ScriptedProvider(["again"])).reply(HELLO, session=session, idempotency_key="update-1")
    with pytest.raises(NothingToResume):
        await Agent(ScriptedProvider(["again"])).answer(None, session=session)


async def test_what_was_stopped_can_be_asked_again(session: Session) -> None:
    model = Endless()
    await stopped(Agent(model), session, model.began)
    agent_session = AgentSession(Agent(ScriptedProvider(["at last"])), session, context_window=100_000)
    async with agent_session.retry() as events:
        ends = [event async for event in events]
    assert isinstance(ends[-1], TurnFinished)
    assert roles_and_texts(session) == [("user", "hello"), ("assistant", "at last")]


async def test_a_reader_of_events_sees_the_end_of_a_stopped_turn(session: Session) -> None:
    model = Endless()
    async with Agent(model).run(HELLO, session=session) as events:
        seen = []
        async for event in events:
            seen.append(event)
            if isinstance(event, TextDelta) and event.text == "two":
                assert session.stop_turn()
    assert isinstance(seen[0], MessageAccepted)
    assert seen[0].entry.id == session.entries()[0].id
    assert isinstance(seen[-1], TurnStopped)


async def test_a_reply_that_was_stopped_is_an_error_for_who_wants_nothing_else(session: Session) -> None:
    model = Endless()

    async def stop() -> None:
        await model.began.wait()
        session.stop_turn()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop)
        with pytest.raises(AgentError, match="stopped"):
            await Agent(model).reply(HELLO, session=session)
    assert roles_and_texts(session)[-1] == ("assistant", "one two")


async def test_a_model_that_is_quicker_than_the_stop_has_answered(session: Session) -> None:
    class Quick(Endless):
        async def generate(
            self, messages: Sequence[Message], tools: Sequence[Tool]
        ) -> AsyncGenerator[ModelEvent, None]:
            del messages, tools
            yield Reply(Message.assistant("done"))

    end = await Agent(Quick()).answer(HELLO, session=session)
    assert isinstance(end, TurnFinished)
    assert not session.stop_turn()
