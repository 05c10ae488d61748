"""Hooks: who is called when, what they may change, and what is left when they fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest

from miniclaw_sessions.agent.agent import Agent, Generation, Hooks, SuspendTurn, TurnFinished, TurnSuspended
from miniclaw_sessions.agent.assistant import AgentSession
from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import AgentError, DuplicateMessage, ModelError, StoreUnavailable
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.agent.conversations import HELLO, assert_legal, calls, costing, echo, read, roles, tool
from tests.texts import texts

pytestmark = pytest.mark.anyio


class Recording(Hooks):
    """Remembers in which order it was called."""

    def __init__(self) -> None:
        self.order: list[str] = []

    async def before_generation(self, generation: Generation) -> None:
        history = [message.text for message in generation.session.messages()]
        self.order.append(f"before {generation.message.text}, history {history}")

    async def after_generation(self, generation: Generation) -> None:
        reply = generation.reply.text if generation.reply else None
        saved = generation.session.journal.committed_sequence
        self.order.append(f"after {reply}, saved {saved}, cost {generation.usage.total}")

    async def before_tool(self, generation: Generation, call: ToolCall) -> ToolCall | Message | None:
        del generation
        self.order.append(f"before tool {call.name}")
        return None

    async def after_tool(self, generation: Generation, call: ToolCall, result: Message) -> Message | None:
        del generation
        self.order.append(f"after tool {call.name}: {result.text}")
        return None


async def test_the_order_is_load_before_generation_tools_after_save(session: Session) -> None:
    async def noted(_: dict[str, Any]) -> str:
        hooks.order.append("tool runs")
        return "x"

    def answer(context: list[Message]) -> Message | str:
        hooks.order.append(f"model sees {len(context)}")
        return costing(calls("noted"), 10) if len(context) == 3 else costing("done", 20)

    hooks = Recording()
    await session.add_messages([Message.user("earlier"), Message.assistant("yes")])
    await Agent(ScriptedProvider(answer), tools=[tool("noted", noted)], hooks=hooks).reply(HELLO, session=session)
    assert hooks.order == [
        *("before hello, history ['earlier', 'yes', 'hello']", "model sees 3"),
        *("before tool noted", "tool runs", "after tool noted: x", "model sees 5"),
        "after done, saved 5, cost 30",
    ]
    assert session.journal.committed_sequence == 6


async def test_the_prompt_and_further_messages_come_from_before_generation(session: Session) -> None:
    class Informed(Hooks):
        async def before_generation(self, generation: Generation) -> None:
            generation.system_prompt += " and brief"
            generation.added.append(Message.user("It is raining."))

    provider = ScriptedProvider([calls("echo"), "bring an umbrella", "again"])
    agent = Agent(provider, tools=[tool("echo", echo)], hooks=Informed(), system_prompt="be kind", session=session)
    await agent.reply(HELLO)
    for context in provider.contexts:
        assert [message.text for message in context][:3] == ["be kind and brief", "hello", "It is raining."]
    assert texts(session) == ["hello", "It is raining.", "", "nothing", "bring an umbrella"]
    await agent.reply(HELLO)
    assert provider.contexts[2][0].text == "be kind and brief"  # each turn begins with the agent's own prompt
    await assert_legal(session, provider)


async def test_after_generation_may_put_another_reply_in_its_place(session: Session) -> None:
    class Polite(Hooks):
        async def after_generation(self, generation: Generation) -> None:
            assert generation.reply is not None
            generation.reply = Message.assistant(generation.reply.text + ", please")

    said = msgspec.structs.replace(Message.assistant("sit"), usage=Usage(3, 4), model="m")
    events = await read(Agent(ScriptedProvider([said]), hooks=Polite()).run(HELLO, session=session))
    assert isinstance(events[-1], TurnFinished)
    assert events[-1].message.text == "sit, please"
    assert (session.total_usage.total, events[-1].message.model) == (7, "m"), "what it stands for was paid for"
    assert texts(session) == ["hello", "sit, please"]


# --- around tools ----------------------------------------------------------------------------------------------------


class Guard(Hooks):
    """Answers `before_tool` and `after_tool` with what it is given."""

    def __init__(
        self, before: Callable[[ToolCall], Any] = lambda _: None, after: Callable[[Message], Any] = lambda _: None
    ) -> None:
        self._before = before
        self._after = after

    async def before_tool(self, generation: Generation, call: ToolCall) -> ToolCall | Message | None:
        del generation
        return self._before(call)  # type: ignore[no-any-return]

    async def after_tool(self, generation: Generation, call: ToolCall, result: Message) -> Message | None:
        del generation, call
        return self._after(result)  # type: ignore[no-any-return]


def refuse(_: object) -> None:
    raise PermissionError("not on my watch")


@pytest.mark.parametrize(
    ("hooks", "ran", "shown"),
    [
        (Guard(lambda call: ToolCall(call.id, "echo", '{"say": "changed"}')), ["changed"], "changed"),
        (Guard(lambda _: ToolCall("another id", "echo", '{"say": "b"}')), ["b"], "b"),
        (Guard(lambda call: Message.tool_result(call, "no need")), [], "no need"),
        (Guard(lambda _: Message.tool_result(ToolCall("odd", "odd"), "no need")), [], "no need"),
        (Guard(refuse), [], "error: not on my watch"),
        (Guard(lambda _: ToolCall("a", "missing")), [], "error: there is no tool 'missing'; the tools are: echo"),
        (Guard(after=lambda result: Message.user(result.text.upper())), ["a"], "A"),
        (Guard(after=refuse), ["a"], "error: not on my watch"),
        (Guard(after=lambda _: Message.user("\ud800")), ["a"], "error: the result cannot be stored"),
        (Guard(after=lambda _: 7), ["a"], "error: "),
    ],
    ids=[
        *("another call", "a call with another id", "a result instead", "a result for another call", "refused"),
        *("a call of no tool", "another result", "failed after", "a result that cannot be stored", "no result at all"),
    ],
)
async def test_a_hook_around_a_tool_decides_what_runs_and_what_the_model_sees(
    session: Session, hooks: Hooks, ran: list[str], shown: str
) -> None:
    runs: list[str] = []

    async def noted(arguments: dict[str, Any]) -> str:
        runs.append(arguments["say"])
        return str(arguments["say"])

    provider = ScriptedProvider([calls("echo", arguments='{"say": "a"}'), "done"])
    await Agent(provider, tools=[tool("echo", noted)], hooks=hooks).reply(HELLO, session=session)
    assert runs == ran
    result = provider.contexts[1][2]
    assert result.text.startswith(shown)
    assert result.is_error == shown.startswith("error")
    assert (result.tool_call_id, result.name) == ("call_0", "echo")
    assert session.messages()[1].tool_calls == (ToolCall("call_0", "echo", '{"say": "a"}'),)
    await assert_legal(session, provider)


async def test_one_hook_serves_parallel_calls(session: Session) -> None:
    hooks = Guard(lambda call: Message.tool_result(call, "denied") if call.name == "rm" else None)
    provider = ScriptedProvider([calls("echo", "rm", "echo"), "done"])
    agent = Agent(provider, tools=[tool("echo", echo), tool("rm", echo)], hooks=hooks)
    await agent.reply(HELLO, session=session)
    assert texts(session)[2:5] == ["nothing", "denied", "nothing"]


@pytest.mark.parametrize("place", ["before", "after"])
async def test_a_hook_around_a_tool_may_suspend_the_turn(session: Session, place: str) -> None:
    def ask(_: object) -> None:
        raise SuspendTurn("may it run?")

    hooks = Guard(before=ask) if place == "before" else Guard(after=ask)
    provider = ScriptedProvider([calls("echo"), "thank you"])
    events = await read(Agent(provider, tools=[tool("echo", echo)], hooks=hooks).run(HELLO, session=session))
    assert isinstance(events[-1], TurnSuspended)
    assert [pending.reason for pending in events[-1].pending] == ["may it run?"]
    await read(Agent(provider).resume(session, results={"call_0": "go"}))
    assert texts(session) == ["hello", "", "go", "thank you"]


# --- hooks that fail -------------------------------------------------------------------------------------------------


class Failing(Hooks):
    """Fails at one place."""

    def __init__(self, place: str, error: Exception) -> None:
        self._place = place
        self._error = error

    async def before_generation(self, generation: Generation) -> None:
        del generation
        if self._place == "before":
            raise self._error

    async def after_generation(self, generation: Generation) -> None:
        del generation
        if self._place == "after":
            raise self._error


@pytest.mark.parametrize(("place", "kept"), [("before", 1), ("after", 3)])
@pytest.mark.parametrize("error", [RuntimeError("secret"), ModelError("down"), StoreUnavailable("down")])
async def test_a_hook_that_fails_ends_the_turn_as_a_failing_model_does(
    session: Session, place: str, kept: int, error: Exception
) -> None:
    provider = ScriptedProvider([costing(calls("echo"), 5), costing("lost", 6), "hi"])
    agent = Agent(provider, tools=[tool("echo", echo)], hooks=Failing(place, error), session=session)
    with pytest.raises(type(error) if isinstance(error, ModelError | StoreUnavailable) else AgentError) as caught:
        await agent.reply(HELLO)
    assert "secret" not in str(caught.value)
    assert roles(session) == ["user", "assistant", "tool_result"][:kept]
    paid_for_only = 1 if place == "after" else 0  # an entry of its own says what the lost reply has cost
    assert session.journal.committed_sequence == kept + paid_for_only
    if isinstance(caught.value, AgentError):
        assert [message.role for message in caught.value.messages] == [Role.ASSISTANT, Role.TOOL_RESULT][: kept - 1]
        assert caught.value.usage == (Usage(9, 2, total_tokens=11) if place == "after" else Usage())
    await assert_legal(session, provider)


@pytest.mark.parametrize(
    "reply",
    [None, "text", Message.user("hi"), calls("echo"), Message.assistant("\ud800")],
    ids=["nothing", "a text", "a user's", "calls", "one that cannot be stored"],
)
async def test_a_reply_that_would_leave_an_illegal_session_is_refused(session: Session, reply: Any) -> None:
    class Odd(Hooks):
        async def after_generation(self, generation: Generation) -> None:
            generation.reply = reply

    with pytest.raises(AgentError, match="a hook gave"):
        await Agent(ScriptedProvider(["hi"]), hooks=Odd()).reply(HELLO, session=session)
    assert texts(session) == ["hello"]


@pytest.mark.parametrize(
    "added",
    ["text", calls("echo"), Message.tool_result(ToolCall("a", "echo"), "x"), Message.user("\ud800")],
    ids=["a text", "calls", "a result", "one that cannot be stored"],
)
async def test_an_added_message_that_would_leave_an_illegal_session_is_refused(session: Session, added: Any) -> None:
    class Odd(Hooks):
        async def before_generation(self, generation: Generation) -> None:
            generation.added.append(added)

    provider = ScriptedProvider(["hi"])
    with pytest.raises(AgentError, match="a hook gave"):
        await Agent(provider, hooks=Odd()).reply(HELLO, session=session)
    assert (texts(session), provider.contexts) == (["hello"], [])


async def test_a_resumed_turn_says_so_and_calls_the_hooks_in_the_same_order(session: Session) -> None:
    class Resumed(Recording):
        async def before_generation(self, generation: Generation) -> None:
            self.order.append(f"before, resumed {generation.is_resumed}")

    await session.add_messages([HELLO, calls("echo")])
    hooks = Resumed()
    agent = Agent(ScriptedProvider(["done", "hi"]), tools=[tool("echo", echo)], hooks=hooks, session=session)
    await read(agent.resume())
    assert hooks.order == [
        *("before, resumed True", "before tool echo", "after tool echo: nothing", "after done, saved 3, cost 0")
    ]
    await agent.reply(HELLO)
    assert hooks.order[4] == "before, resumed False"


class Weather(Hooks):
    """Adds a message in the user's name, once in a turn."""

    async def before_generation(self, generation: Generation) -> None:
        if not generation.is_resumed:
            generation.added.append(Message.user("It is raining."))


@pytest.mark.parametrize("tools_first", [False, True])
async def test_what_a_hook_says_in_the_users_name_is_not_taken_for_the_users_message(
    session: Session, tools_first: bool
) -> None:
    steps: list[Any] = [calls("echo")] if tools_first else []
    provider = ScriptedProvider([*steps, RuntimeError("down"), RuntimeError("down"), RuntimeError("down"), "hi"])
    agent = Agent(provider, tools=[tool("echo", echo)], hooks=Weather(), session=session)
    with pytest.raises(ModelError):
        await agent.reply(HELLO, idempotency_key="update-1")
    with pytest.raises(ModelError):
        await agent.reply(HELLO, idempotency_key="update-1")  # the message is delivered again, and still unanswered
    with pytest.raises(ModelError):
        await read(agent.resume())
    await agent.reply(HELLO, idempotency_key="update-1")
    assert texts(session) == ["hello", "It is raining.", *["", "nothing"] * tools_first, "hi"]
    with pytest.raises(DuplicateMessage):
        await agent.reply(HELLO, idempotency_key="update-1")
    await assert_legal(session, provider)


async def test_a_retry_goes_back_to_the_users_message_and_not_to_what_a_hook_added(session: Session) -> None:
    provider = ScriptedProvider(["first", "second"])
    agent = Agent(provider, hooks=Weather())
    agent_session = AgentSession(agent, session, context_window=100_000)
    await agent_session.reply(HELLO)
    await read(agent_session.retry())
    assert texts(session) == ["hello", "second"]
    assert [message.text for message in provider.contexts[1]] == ["hello"]


async def test_a_hook_or_a_model_that_cancels_itself_is_an_error_of_the_turn(session: Session) -> None:
    class Cancelled(Hooks):
        async def before_generation(self, generation: Generation) -> None:
            del generation
            raise anyio.get_cancelled_exc_class()

    with pytest.raises(AgentError, match="cancelled itself"):
        await Agent(ScriptedProvider(["hi"]), hooks=Cancelled()).reply(HELLO, session=session)
    assert not session.journal.turn_lock.is_held
    assert texts(session) == ["hello"]
