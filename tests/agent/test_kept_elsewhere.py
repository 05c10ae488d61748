"""An agent in a session that others keep: any object with the methods that documents 000 and 001 ask of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from miniclaw_sessions.agent.agent import Agent, Generation, Hooks, TurnSuspended
from miniclaw_sessions.agent.calls import SuspendTurn
from miniclaw_sessions.agent.foreign_session import AnySession
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.documents import DiveSession, GoSession, KernelSession
from miniclaw_sessions.core.session.turn import Opening
from miniclaw_sessions.errors import AgentError, ConfigError, InvalidKey, ModelError
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.agent.conversations import HELLO, calls, costing, echo, read, tool
from tests.texts import texts

pytestmark = pytest.mark.anyio


class Turns:
    """Somebody's own session, as document 001 has it; nothing of ours."""

    def __init__(self, *said: Message) -> None:
        self.said = list(said)
        self.saved: list[tuple[list[str], Usage | None]] = []

    def id(self) -> str:
        return "theirs"

    def __len__(self) -> int:
        return len(self.said)

    async def messages(self) -> list[Message]:
        return list(self.said)

    async def save_turn(self, messages: Sequence[Message], usage: Usage | None) -> None:
        self.said += messages
        self.saved.append(([message.text for message in messages], usage))


class Messages:
    """Somebody's own session, as document 000 has it."""

    id = "01981f3c-6b1e-7c52-9f61-2f3f5d2a9b10"

    def __init__(self, said: Sequence[dict[str, Any]] = ()) -> None:
        self.said: list[Any] = list(said)

    def messages(self) -> list[Any]:
        return list(self.said)

    def add_message(self, message: Message) -> None:
        self.said.append(message)


async def test_any_object_with_the_methods_of_document_001_keeps_the_turns() -> None:
    """S1.6, S1.8 to S1.13: loaded before the turn, saved behind it, with what it cost."""
    provider = ScriptedProvider([calls("echo"), costing("one", 10), "two"])
    session = Turns(Message.user("before"), costing("answered", 500))
    agent = Agent(provider, tools=[tool("echo", echo)], session=session)
    assert (await agent.reply(HELLO)).text == "one"
    assert (await agent.reply(Message.user("again"))).text == "two"
    assert session.saved == [(["hello", "", "nothing", "one"], Usage(9, 1, 0, 0, 10)), (["again", "two"], None)]
    assert [message.text for message in provider.contexts[-1]] == [
        *("before", "answered", "hello", "", "nothing", "one", "again")
    ]


async def test_a_session_of_others_is_named_in_a_call_and_may_be_empty() -> None:
    """S1.12: the call's own session, though it is empty, goes before the agent's."""
    own, given = Turns(), Turns()
    await Agent(ScriptedProvider(["hi"]), session=own).reply(HELLO, session=given)
    assert (len(own), len(given)) == (0, 2)


async def test_any_object_with_the_methods_of_document_000_gets_every_message() -> None:
    """S0.1, S0.17 to S0.20; what it holds may be messages as JSON has them."""
    session = Messages([{"role": "user", "content": "before"}, {"role": "assistant", "content": "answered"}])
    provider = ScriptedProvider([calls("echo"), "one"])
    await Agent(provider, tools=[tool("echo", echo)], session=session).reply(HELLO)
    assert [message.text for message in provider.contexts[0]] == ["before", "answered", "hello"]
    assert [message.text for message in session.said[2:]] == ["hello", "", "nothing", "one"]


@pytest.mark.parametrize("limit", [120, 100, 30])
async def test_the_history_limit_holds_in_a_session_of_others_also_beyond_the_default(limit: int) -> None:
    said = [Message(Role.ASSISTANT if place % 2 else Role.USER, str(place)) for place in range(120)]
    provider = ScriptedProvider([calls("echo"), "one"])
    agent = Agent(provider, tools=[tool("echo", echo)], history_limit=limit)
    await agent.reply(HELLO, session=Turns(*said))
    assert [len(context) for context in provider.contexts] == [limit + 1, limit + 3]


async def test_a_session_of_others_whose_id_cannot_name_one_is_refused_as_such() -> None:
    session = Messages()
    session.id = ""
    with pytest.raises(InvalidKey):
        await Agent(ScriptedProvider(["hi"]), session=session).reply(HELLO)


async def test_load_and_save_stand_around_the_hooks() -> None:
    """S1.15: load, before generation, generation, after generation, save."""
    order: list[str] = []

    class Recorded(Turns):
        async def messages(self) -> list[Message]:
            order.append("load")
            return await super().messages()

        async def save_turn(self, messages: Sequence[Message], usage: Usage | None) -> None:
            order.append("save")
            await super().save_turn(messages, usage)

    class Recording(Hooks):
        async def before_generation(self, generation: Generation) -> None:
            order.append(f"before {generation.session.key.name}")

        async def after_generation(self, generation: Generation) -> None:
            order.append(f"after {generation.session.key.name}")

    await Agent(ScriptedProvider(["hi"]), session=Recorded(), hooks=Recording()).reply(HELLO)
    assert order == ["load", "before theirs", "after theirs", "save"]


async def test_a_turn_that_fails_leaves_nothing_in_a_session_of_others() -> None:
    """As in Dive: the error carries what was produced."""
    session = Turns()
    agent = Agent(ScriptedProvider([calls("echo"), RuntimeError()]), tools=[tool("echo", echo)], session=session)
    with pytest.raises(ModelError) as caught:
        await agent.reply(HELLO)
    assert [message.role.value for message in caught.value.messages] == ["assistant", "tool_result"]
    assert session.said == []


async def test_calls_that_others_left_open_are_answered_before_the_next_message() -> None:
    session = Turns(HELLO, calls("echo"))
    await Agent(ScriptedProvider(["hi"]), session=session).reply(Message.user("again"))
    assert [message.role.value for message in session.said] == [
        *("user", "assistant", "tool_result", "user", "assistant")
    ]


async def test_a_turn_that_waits_is_resumed_with_the_answer_from_outside() -> None:
    async def wait(_: dict[str, Any]) -> str:
        raise SuspendTurn("a person decides")

    session = Turns()
    agent = Agent(ScriptedProvider([calls("ask"), "thank you"]), tools=[tool("ask", wait)], session=session)
    assert isinstance((await read(agent.run(HELLO)))[-1], TurnSuspended)
    assert [message.role.value for message in session.said] == ["user", "assistant"]
    await read(agent.resume(results={"call_0": "yes"}))
    assert [message.text for message in session.said] == ["hello", "", "yes", "thank you"]


async def test_a_reply_that_cannot_be_saved_is_in_the_error() -> None:
    class Full(Turns):
        async def save_turn(self, messages: Sequence[Message], usage: Usage | None) -> None:
            raise RuntimeError("secret words", messages, usage)

    with pytest.raises(AgentError, match="save_turn of the Full that keeps the session failed: RuntimeError") as caught:
        await Agent(ScriptedProvider([costing("hi", 10)]), session=Full()).reply(HELLO)
    assert [message.text for message in caught.value.messages] == ["hi"]
    assert caught.value.usage == Usage(9, 1, 0, 0, 10)
    assert "secret" not in str(caught.value)


async def test_messages_that_cannot_be_loaded_ask_no_model() -> None:
    provider = ScriptedProvider(["hi"])
    with pytest.raises(AgentError, match="messages of the Messages that keeps the session failed"):
        await Agent(provider, session=Messages([{"role": 5, "content": "x"}])).reply(HELLO)
    assert provider.contexts == []


async def test_what_is_no_session_is_refused_by_what_it_lacks() -> None:
    nothing: Any = object()
    with pytest.raises(ConfigError, match="it has no id and no messages and no save_turn"):
        await Agent(ScriptedProvider(["hi"])).reply(HELLO, session=nothing)


async def test_what_only_our_session_keeps_is_refused_of_others() -> None:
    agent = Agent(ScriptedProvider(["hi"]), session=Turns())
    with pytest.raises(ConfigError, match="cannot keep an idempotency key"):
        await agent.reply(HELLO, idempotency_key="7")
    with pytest.raises(ConfigError, match="cannot keep where a turn begins"):
        await agent.answer(Opening([HELLO], at=None))


@pytest.mark.parametrize("facade", [KernelSession, DiveSession, GoSession])
async def test_the_documents_own_sessions_are_the_session_that_they_stand_for(
    facade: type[KernelSession | DiveSession | GoSession], tmp_path: Path
) -> None:
    """S0.6, S1.10, S1.11: what is promised of a `Session` holds, the message of a turn that fails among it."""
    async with SessionManager(tmp_path) as manager:
        own = await manager.get_or_create("cli", "own")
        session: AnySession = facade(own)
        agent = Agent(ScriptedProvider(["hi", RuntimeError()]), session=session)
        await agent.reply(HELLO, idempotency_key="1")
        with pytest.raises(ModelError):
            await agent.reply(Message.user("again"))
        assert texts(own) == ["hello", "hi", "again"]


async def test_a_session_of_others_spends_no_budget_for_what_was_said_before() -> None:
    said = [msgspec.structs.replace(Message.assistant("old"), usage=Usage(1_000_000, cost=9.0)), HELLO]
    seen: list[Session] = []

    class Looking(Hooks):
        async def before_generation(self, generation: Generation) -> None:
            seen.append(generation.session)

    await Agent(ScriptedProvider(["hi"]), session=Turns(*said), hooks=Looking()).reply(HELLO)
    assert seen[0].total_usage == Usage()


async def test_the_arguments_and_ids_of_calls_are_kept_as_they_are() -> None:
    call = ToolCall("their id", "echo", '{ "say" : 1.0 }')
    session = Turns()
    provider = ScriptedProvider([Message.assistant("", (call,)), "one"])
    await Agent(provider, tools=[tool("echo", echo)], session=session).reply(HELLO)
    assert session.said[1].tool_calls == (call,)
    assert session.said[2].tool_call_id == "their id"
