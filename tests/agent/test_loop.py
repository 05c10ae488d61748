"""The agent loop on real sessions: what is stored, in which order, and what is left when a turn goes wrong."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from miniclaw_sessions.agent.agent import (
    Agent,
    AgentEvent,
    MessageAccepted,
    ReplyFinished,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnFinished,
)
from miniclaw_sessions.agent.provider import ModelEvent, Reply
from miniclaw_sessions.agent.tools import Tool, calculator_tool
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.stores.base import Append
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.errors import (
    ConfigError,
    DuplicateMessage,
    IterationLimit,
    ManagerClosed,
    ModelError,
    StoreError,
    StoreFull,
    TurnInProgress,
)
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.agent.conversations import HELLO, calls, echo, read, roles_and_texts, tool
from tests.fuzz.every_step import Cancelled
from tests.legality import is_legal
from tests.two_tasks import in_two_tasks

pytestmark = pytest.mark.anyio


async def fail(_: dict[str, Any]) -> str:
    raise RuntimeError("the disk is on fire")


async def events_of(agent: Agent, session: Session, message: Message = HELLO) -> list[AgentEvent]:
    return await read(agent.run(message, session=session))


# --- a turn that succeeds --------------------------------------------------------------------------------------------


async def test_a_reply_is_streamed_stored_and_told_last(session: Session) -> None:
    events = await events_of(Agent(ScriptedProvider(["hi there"])), session)
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["hi t", "here"]
    finished = events[-1]
    assert isinstance(finished, TurnFinished)
    assert finished.message == session.messages()[-1]
    assert (finished.message.model, finished.message.timestamp is None) == ("script-1", False)
    assert roles_and_texts(session) == [("user", "hello"), ("assistant", "hi there")]


async def test_a_reply_is_understood_however_a_provider_makes_it(session: Session) -> None:
    replies: list[Any] = [Message("assistant", "one"), {"role": "assistant", "content": "two"}]  # type: ignore[arg-type]

    class Plain:
        name = model = "plain"

        async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent]:  # noqa: ARG002 - a provider
            yield Reply(replies.pop(0))

    for _ in range(2):
        await events_of(Agent(Plain()), session)
    assert roles_and_texts(session)[1::2] == [("assistant", "one"), ("assistant", "two")]


async def test_a_reply_that_is_not_the_assistant_s_is_called_so(session: Session) -> None:
    with pytest.raises(ModelError, match="replied as user, not as the assistant"):
        await events_of(Agent(ScriptedProvider([Message.user("me?")])), session)


async def test_the_turn_is_over_and_committed_when_it_is_told_to_be(session: Session) -> None:
    async with Agent(ScriptedProvider(["hi"])).run(HELLO, session=session) as events:
        async for event in events:
            if isinstance(event, TurnFinished):
                assert not session.journal.turn_lock.is_held
                assert session.journal.committed_sequence == session.last_sequence == 2


async def test_the_message_is_committed_before_the_model_is_asked(session: Session) -> None:
    def answer(_: list[Message]) -> str:
        assert session.journal.committed_sequence == 1
        return "hi"

    assert (await Agent(ScriptedProvider(answer)).reply(HELLO, session=session)).text == "hi"


@pytest.mark.parametrize("number", [1, 2, 5])
async def test_tool_calls_and_results_are_stored_in_order(session: Session, number: int) -> None:
    provider = ScriptedProvider([calls(*["echo"] * number, arguments='{"say": "x"}'), "done"])
    agent = Agent(provider, tools=[tool("echo", echo)])
    assert (await agent.reply(HELLO, session=session)).text == "done"
    assert roles_and_texts(session) == [
        ("user", "hello"),
        ("assistant", ""),
        *[("tool_result", "x")] * number,
        ("assistant", "done"),
    ]
    assert [m.tool_call_id for m in session.messages()[2:-1]] == [f"call_{i}" for i in range(number)]
    assert is_legal(session.messages()) == []


async def test_the_model_sees_the_whole_history_on_every_iteration(session: Session) -> None:
    provider = ScriptedProvider([calls("echo"), calls("echo"), "done", "again"])
    agent = Agent(provider, tools=[tool("echo", echo)], system_prompt="be kind")
    await agent.reply(HELLO, session=session)
    await agent.reply(Message.user("and now?"), session=session)
    assert provider.tools == ["echo"]
    assert [len(context) for context in provider.contexts] == [2, 4, 6, 8]
    for context in provider.contexts:
        assert context[0] == Message.system("be kind")
        assert is_legal(context) == []
    assert [message.role for message in provider.contexts[1]][1:] == [Role.USER, Role.ASSISTANT, Role.TOOL_RESULT]


async def test_the_current_message_is_in_the_context_exactly_once(session: Session) -> None:
    provider = ScriptedProvider(["one", "two"])
    agent = Agent(provider)
    await agent.reply(HELLO, session=session)
    await agent.reply(HELLO, session=session)  # the same text again is another message
    assert [[m.text for m in context if m.is_user] for context in provider.contexts] == [["hello"], ["hello", "hello"]]


async def test_the_system_prompt_is_not_stored(session: Session) -> None:
    await Agent(ScriptedProvider(["hi"]), system_prompt="be kind").reply(HELLO, session=session)
    assert Role.SYSTEM not in {message.role for message in session.messages()}


async def test_parallel_tools_run_at_once_and_their_results_keep_the_order_of_the_calls(session: Session) -> None:
    first_may_end, order = anyio.Event(), []

    async def first(_: dict[str, Any]) -> str:
        await first_may_end.wait()
        order.append("first")
        return "1"

    async def second(_: dict[str, Any]) -> str:
        order.append("second")
        first_may_end.set()
        return "2"

    agent = Agent(
        ScriptedProvider([calls("first", "second"), "done"]), tools=[tool("first", first), tool("second", second)]
    )
    events = await events_of(agent, session)
    assert order == ["second", "first"]
    assert [event.call.name for event in events if isinstance(event, ToolStarted)] == ["first", "second"]
    assert [event.call.name for event in events if isinstance(event, ToolFinished)] == ["second", "first"]
    assert [message.text for message in session.messages()[2:4]] == ["1", "2"]


async def test_the_usage_of_all_replies_is_summed(session: Session) -> None:
    def costing(message: Message, usage: Usage | None) -> Message:
        return Message(Role.ASSISTANT, message.content, tool_calls=message.tool_calls, usage=usage)

    script = [
        costing(calls("echo"), Usage(10, 2, 3, 4, cost=0.5)),
        costing(calls("echo"), None),
        costing(Message.assistant("done"), Usage(20, 5, total_tokens=26, cost=0.25)),
    ]
    events = await events_of(Agent(ScriptedProvider(script), tools=[tool("echo", echo)]), session)
    assert isinstance(events[-1], TurnFinished)
    assert events[-1].usage == Usage(30, 7, 3, 4, total_tokens=45, cost=0.75)


async def test_two_sessions_of_one_agent_do_not_see_each_other(manager: SessionManager) -> None:
    provider = ScriptedProvider(lambda context: f"you said {context[-1].text}")
    agent = Agent(provider)
    one, two = await manager.get_or_create("cli", "1"), await manager.get_or_create("cli", "2")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(agent.reply, Message.user("a"), session=one))
        tasks.start_soon(partial(agent.reply, Message.user("b"), session=two))
    assert roles_and_texts(one) == [("user", "a"), ("assistant", "you said a")]
    assert roles_and_texts(two) == [("user", "b"), ("assistant", "you said b")]


async def test_two_messages_of_one_chat_are_answered_one_after_the_other(session: Session) -> None:
    agent = Agent(ScriptedProvider(lambda context: f"re: {context[-1].text}"))
    async with anyio.create_task_group() as tasks:
        for text in "abc":
            tasks.start_soon(partial(agent.reply, Message.user(text), session=session))
    assert [text for _, text in roles_and_texts(session)] == ["a", "re: a", "b", "re: b", "c", "re: c"]


async def test_what_others_append_during_a_turn_is_not_overwritten(session: Session) -> None:
    async def interject(_: dict[str, Any]) -> str:
        session.append(Message.user("by the way"))
        return "ok"

    provider = ScriptedProvider([calls("interject"), "done"])
    await Agent(provider, tools=[tool("interject", interject)]).reply(HELLO, session=session)
    assert ("user", "by the way") in roles_and_texts(session)
    assert is_legal(build_context(session.messages())) == []
    assert all(is_legal(context) == [] for context in provider.contexts)


async def test_the_same_delivery_is_answered_once(session: Session) -> None:
    agent = Agent(ScriptedProvider(["hi", "never"]))
    await agent.reply(HELLO, session=session, idempotency_key="update-1")
    with pytest.raises(DuplicateMessage):
        await agent.reply(HELLO, session=session, idempotency_key="update-1")
    assert len(session.messages()) == 2


async def test_a_message_that_was_left_unanswered_is_answered_when_it_is_delivered_again(session: Session) -> None:
    agent = Agent(ScriptedProvider([RuntimeError("down"), "hi"]))
    with pytest.raises(ModelError):
        await agent.reply(HELLO, session=session, idempotency_key="update-1")
    await agent.reply(HELLO, session=session, idempotency_key="update-1")
    assert roles_and_texts(session) == [("user", "hello"), ("assistant", "hi")]


async def test_calls_survive_a_restart_and_reach_the_model_again(tmp_path: Path) -> None:
    agent = Agent(ScriptedProvider([calls("echo", arguments='{"say":"x"}'), "done"]), tools=[tool("echo", echo)])
    async with SessionManager(tmp_path) as manager:
        await agent.reply(HELLO, session=await manager.get_or_create("telegram", 1))
    provider = ScriptedProvider(["again"])
    async with SessionManager(tmp_path) as manager:
        await Agent(provider).reply(Message.user("and?"), session=await manager.get_or_create("telegram", 1))
    (context,) = provider.contexts
    assert [m.role for m in context] == [Role.USER, Role.ASSISTANT, Role.TOOL_RESULT, Role.ASSISTANT, Role.USER]
    assert context[1].tool_calls == (ToolCall("call_0", "echo", '{"say":"x"}'),)
    assert context[2].tool_call_id == "call_0"


# --- tools that fail -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "shown"),
    [
        ("fail", "{}", "error: the disk is on fire"),
        ("missing", "{}", "error: there is no tool 'missing'; the tools are: fail, echo, huge, odd"),
        ("echo", "[1]", "error: the arguments were not a JSON object"),
        ("echo", '{"say": ', "error: the arguments were not valid JSON"),
        ("huge", "{}", "error: the result cannot be stored"),
        ("odd", "{}", "error: the result cannot be stored"),
    ],
)
async def test_what_goes_wrong_with_a_tool_is_told_to_the_model_and_the_loop_goes_on(
    session: Session, name: str, arguments: str, shown: str
) -> None:
    async def huge(_: dict[str, Any]) -> str:
        return "x" * 2**24

    async def odd(_: dict[str, Any]) -> str:
        return "\ud800"

    tools = [tool("fail", fail), tool("echo", echo), tool("huge", huge), tool("odd", odd)]
    provider = ScriptedProvider([calls(name, "echo", arguments=arguments), "done"])
    await Agent(provider, tools=tools).reply(HELLO, session=session)
    seen = provider.contexts[1]
    assert is_legal(seen) == []
    assert len(seen) == 4
    assert seen[2].is_error
    assert seen[2].text.startswith(shown)
    assert roles_and_texts(session)[-1] == ("assistant", "done")


async def test_malformed_arguments_are_kept_for_the_transcript(session: Session) -> None:
    provider = ScriptedProvider([calls("echo", arguments='{"say": '), "done"])
    await Agent(provider, tools=[tool("echo", echo)]).reply(HELLO, session=session)
    (stored,) = session.messages()[1].tool_calls or ()
    assert (stored.arguments, stored.extra) == ("{}", {"malformed_arguments": '{"say": '})


async def test_a_tool_without_arguments_runs(session: Session) -> None:
    provider = ScriptedProvider([calls("echo", arguments=""), "done"])
    await Agent(provider, tools=[tool("echo", echo)]).reply(HELLO, session=session)
    assert session.messages()[2].text == "nothing"


async def test_a_tool_that_takes_too_long_is_cancelled_and_answered_with_an_error(session: Session) -> None:
    outcomes: list[str] = []

    async def sleepy(_: dict[str, Any]) -> str:
        try:
            await anyio.Event().wait()
        finally:
            outcomes.append("cancelled")
        return "never"

    provider = ScriptedProvider([calls("sleepy", "echo"), "done"])
    agent = Agent(provider, tools=[tool("sleepy", sleepy), tool("echo", echo)], tool_timeout_s=0.01)
    await agent.reply(HELLO, session=session)
    assert outcomes == ["cancelled"]
    assert [(m.text, m.is_error) for m in session.messages()[2:4]] == [
        ("error: no answer within 0.01 seconds", True),
        ("nothing", False),
    ]


async def test_a_tool_that_cancels_itself_does_not_end_the_turn(session: Session) -> None:
    async def quits(_: dict[str, Any]) -> str:
        raise anyio.get_cancelled_exc_class()

    provider = ScriptedProvider([calls("quits", "echo"), "done"])
    await Agent(provider, tools=[tool("quits", quits), tool("echo", echo)]).reply(HELLO, session=session)
    assert [message.is_error for message in session.messages()[2:4]] == [True, False]
    assert is_legal(session.messages()) == []


async def test_a_tool_that_asks_the_agent_about_its_own_session_fails_at_once(session: Session) -> None:
    agents: list[Agent] = []

    async def ask(_: dict[str, Any]) -> str:
        return (await agents[0].reply(HELLO, session=session)).text

    agents.append(Agent(ScriptedProvider([calls("ask"), "done"]), tools=[tool("ask", ask)]))
    await agents[0].reply(HELLO, session=session)
    assert session.messages()[2].is_error
    assert "is in a turn" in session.messages()[2].text


async def test_calls_without_an_id_or_with_the_same_one_get_their_own(session: Session) -> None:
    reply = Message.assistant(
        "", (ToolCall("", "echo"), ToolCall("a", "echo"), ToolCall("a", "echo"), ToolCall("b", ""))
    )
    provider = ScriptedProvider([reply, "done"])
    await Agent(provider, tools=[tool("echo", echo)]).reply(HELLO, session=session)
    assert is_legal(session.messages()) == []
    assert [message.role.value for message in session.messages()] == [
        *("user", "assistant", "tool_result", "tool_result", "tool_result", "assistant")
    ]
    assert len(provider.contexts[1]) == 5


# --- turns that fail -------------------------------------------------------------------------------------------------


async def test_a_model_that_fails_leaves_the_users_message(session: Session) -> None:
    with pytest.raises(ModelError, match=r"scripted/script-1 failed with RuntimeError") as caught:
        await Agent(ScriptedProvider([RuntimeError("secret")])).reply(HELLO, session=session)
    assert "secret" not in str(caught.value)
    assert roles_and_texts(session) == [("user", "hello")]


async def test_a_model_error_is_passed_on_as_it_is(session: Session) -> None:
    failure = ModelError("the model service is overloaded")
    with pytest.raises(ModelError) as caught:
        await Agent(ScriptedProvider([failure])).reply(HELLO, session=session)
    assert caught.value is failure


async def test_a_model_that_fails_after_tools_ran_leaves_their_complete_group(session: Session) -> None:
    agent = Agent(ScriptedProvider([calls("echo", "echo"), RuntimeError()]), tools=[tool("echo", echo)])
    with pytest.raises(ModelError):
        await agent.reply(HELLO, session=session)
    assert [message.role.value for message in session.messages()] == [
        *("user", "assistant", "tool_result", "tool_result")
    ]
    assert is_legal(session.messages()) == []
    assert session.journal.committed_sequence == 4


@pytest.mark.parametrize(
    "reply", [Message.assistant(""), Message.assistant(" \n"), Message.assistant("", (ToolCall("a", ""),)), HELLO]
)
async def test_an_empty_reply_is_an_error_and_is_not_stored(session: Session, reply: Message) -> None:
    with pytest.raises(ModelError):
        await Agent(ScriptedProvider([reply])).reply(HELLO, session=session)
    assert roles_and_texts(session) == [("user", "hello")]


async def test_a_stream_that_ends_without_a_reply_is_an_error(session: Session) -> None:
    class Silent:
        name = "silent"
        model = "none"

        async def generate(self, *_: object) -> AsyncIterator[ModelEvent]:
            yield TextDelta("hel")

    with pytest.raises(ModelError, match="ended without a reply"):
        await Agent(Silent()).reply(HELLO, session=session)  # type: ignore[arg-type]
    assert roles_and_texts(session) == [("user", "hello")]


async def test_a_reply_that_cannot_be_stored_is_the_models_error(session: Session) -> None:
    with pytest.raises(ModelError, match="cannot be stored"):
        await Agent(ScriptedProvider(["\ud800"])).reply(HELLO, session=session)


async def test_the_limit_of_iterations_ends_the_turn_and_keeps_its_steps(session: Session) -> None:
    provider = ScriptedProvider(lambda _: calls("echo"))
    with pytest.raises(IterationLimit, match="3 times"):
        await Agent(provider, tools=[tool("echo", echo)], max_iterations=3).reply(HELLO, session=session)
    assert len(provider.contexts) == 3
    assert [message.role.value for message in session.messages()] == ["user", *["assistant", "tool_result"] * 3]
    assert is_legal(session.messages()) == []


async def test_the_default_limit_is_200_and_the_window_stays_legal(tmp_path: Path) -> None:
    provider = ScriptedProvider(lambda _: calls("echo"))
    async with SessionManager(tmp_path, store="memory:") as manager:
        session = await manager.get_or_create("telegram", 1)
        with pytest.raises(IterationLimit):
            await Agent(provider, tools=[tool("echo", echo)]).reply(HELLO, session=session)
        assert len(provider.contexts) == 200
        assert len(provider.contexts[-1]) == 1 + 2 * 199  # a model never forgets the steps of the turn it is in
        assert session.last_sequence == 1 + 2 * 200
        assert len(session.messages()) <= 50
        assert session.messages()[0].text == "hello"
        assert is_legal(session.messages()) == []
        assert manager.statistics().unsaved_entries == 0


async def test_a_tool_that_exits_ends_its_call_and_not_the_program(session: Session) -> None:
    async def run(_: dict[str, Any]) -> str:
        sys.exit(2)

    provider = ScriptedProvider([calls("exits"), "I cannot."])
    assert (await Agent(provider, tools=[tool("exits", run)]).reply(HELLO, session=session)).text == "I cannot."
    assert [(one.text, one.is_error) for one in session.messages() if one.is_tool_result] == [
        ("error: SystemExit(2)", True)
    ]


async def test_a_turn_with_sixty_results_keeps_its_message_and_a_legal_window(session: Session) -> None:
    provider = ScriptedProvider([calls(*["echo"] * 60), "done", "still here"])
    agent = Agent(provider, tools=[tool("echo", echo)])
    await agent.reply(HELLO, session=session)
    assert len(provider.contexts[1]) == 62
    await agent.reply(Message.user("still there?"), session=session)
    assert session.messages()[-2].text == "still there?"
    assert is_legal(build_context(session.messages())) == []
    assert is_legal(provider.contexts[2]) == []


async def test_an_error_of_the_reader_is_raised_as_it_is_and_cancels_the_turn(session: Session) -> None:
    provider = ScriptedProvider([calls("echo"), anyio.Event(), "never"])

    async def read() -> None:
        async with Agent(provider, tools=[tool("echo", echo)]).run(HELLO, session=session) as events:
            async for event in events:
                if isinstance(event, ToolFinished):
                    await provider.stalled.wait()
                    raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await read()
    assert provider.cancelled == 1
    assert not session.journal.turn_lock.is_held
    assert [message.role.value for message in session.messages()] == ["user", "assistant", "tool_result"]


async def test_leaving_early_cancels_the_turn_and_waits_until_it_is_saved(session: Session) -> None:
    provider = ScriptedProvider([anyio.Event(), "never"])
    async with Agent(provider).run(HELLO, session=session):
        await provider.stalled.wait()
    assert (provider.cancelled, provider.closed) == (1, 1)
    assert session.journal.committed_sequence == session.last_sequence
    assert [message.text for message in session.messages()] == ["hello"]
    assert (await Agent(ScriptedProvider(["hi"])).reply(Message.user("again"), session=session)).text == "hi"


async def test_one_task_begins_to_read_a_turn_and_another_leaves_it(session: Session) -> None:
    provider = ScriptedProvider([anyio.Event(), "never"])
    async with in_two_tasks(Agent(provider).run(HELLO, session=session)):
        await provider.stalled.wait()
    assert (provider.cancelled, provider.closed) == (1, 1)
    assert not session.journal.turn_lock.is_held


async def test_a_reader_that_does_not_read_does_not_stop_the_turn(session: Session) -> None:
    agent = Agent(ScriptedProvider(["x" * 1000]))
    async with agent.run(HELLO, session=session) as events:
        async with session.turn(Message.user("next")):  # waits until the first turn has ended
            pass
        assert [type(event).__name__ for event in [e async for e in events]][-1] == "TurnFinished"


async def test_a_turn_within_a_turn_of_the_same_session_is_refused(session: Session) -> None:
    agent = Agent(ScriptedProvider(["hi"]))
    async with session.turn(HELLO):
        with pytest.raises(TurnInProgress):
            await agent.reply(HELLO, session=session)


async def test_a_reply_that_is_not_saved_is_not_told_as_finished(tmp_path: Path) -> None:
    class FullAfterOne(MemoryStore):
        is_full = False

        async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
            if self.is_full:
                raise StoreFull("no space left")
            return await super().append(appends)

    store = FullAfterOne()

    def answer(_: list[Message]) -> str:
        store.is_full = True
        return "hi"

    events: list[AgentEvent] = []
    async with SessionManager(tmp_path, store=store) as manager:
        session = await manager.get_or_create("telegram", 1)

        async def read() -> None:
            async with Agent(ScriptedProvider(answer)).run(HELLO, session=session) as told:
                async for event in told:
                    events.append(event)  # noqa: PERF401 - those before the error count too

        with pytest.raises(StoreFull):
            await read()
        assert [type(event) for event in events] == [MessageAccepted, TextDelta, TextDelta, ReplyFinished]
        assert roles_and_texts(session) == [
            ("user", "hello"),
            ("assistant", "hi"),
        ]  # accepted: it is saved when space returns
        store.is_full = False
        await manager.flush()


async def test_a_closed_manager_answers_nothing(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, store="memory:") as manager:
        session = await manager.get_or_create("telegram", 1)
    provider = ScriptedProvider(["hi"])
    with pytest.raises(ManagerClosed):
        await Agent(provider).reply(HELLO, session=session)
    assert provider.contexts == []


# --- cancellation ----------------------------------------------------------------------------------------------------


async def test_a_turn_that_is_cancelled_before_its_first_step_leaves_nothing(session: Session) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await Agent(ScriptedProvider(["hi"])).reply(HELLO, session=session)
    assert session.messages() == []


@pytest.mark.parametrize("store", ["memory:", "sqlite:"])
async def test_a_cancellation_at_any_moment_leaves_a_legal_session(tmp_path: Path, store: str) -> None:
    async with SessionManager(tmp_path, settings=SessionSettings(store=store)) as manager:
        outcomes = await outcomes_of_cancellations(manager)
    group = ("user", "assistant", "tool_result", "tool_result")
    assert {("user",), group, (*group, "assistant", "tool_result", "assistant")} <= outcomes


async def outcomes_of_cancellations(manager: SessionManager) -> set[tuple[str, ...]]:
    """Cancel a turn at each of its steps; what was left each time, which must be legal."""

    async def slow(_: dict[str, Any]) -> str:
        for _round in range(3):
            await checkpoint()
        return "slow"

    outcomes: set[tuple[str, ...]] = set()
    for step in count():
        provider = ScriptedProvider([calls("echo", "slow"), calls("slow"), "done"])
        session = await manager.get_or_create("cancelled", step)
        agent = Agent(provider, tools=[tool("echo", echo), tool("slow", slow)])
        cancelled = Cancelled("scope", step)
        await cancelled.run(read(agent.run(HELLO, session=session)))
        stored = session.messages()
        assert not session.journal.turn_lock.is_held
        assert is_legal(stored) == [], step
        assert not stored or stored[0].text == "hello"
        assert all(is_legal(context) == [] for context in provider.contexts)
        assert provider.closed == len(provider.contexts)
        assert (await Agent(ScriptedProvider(["next"])).reply(Message.user("go on"), session=session)).text == "next"
        outcomes.add(tuple(f"{m.role.value}{'!' * m.is_error}" for m in stored))
        if not cancelled.is_reached:
            break
    return outcomes


async def test_what_was_complete_is_kept_when_another_call_of_the_same_reply_is_cancelled(session: Session) -> None:
    async def endless(_: dict[str, Any]) -> str:
        await anyio.sleep_forever()
        raise AssertionError

    agent = Agent(ScriptedProvider([calls("echo", "slow")]), tools=[tool("echo", echo), tool("slow", endless)])
    with anyio.CancelScope() as scope:
        async with agent.run(HELLO, session=session) as events:
            async for event in events:
                if isinstance(event, ToolFinished):
                    scope.cancel()
    kinds = [f"{message.role.value}{'!' * message.is_error}" for message in session.messages()]
    assert kinds == ["user", "assistant", "tool_result", "tool_result!"]
    assert is_legal(session.messages()) == []


async def test_a_cancelled_turn_that_waits_for_another_one_appends_nothing(session: Session) -> None:
    may_end = anyio.Event()
    first, second = ScriptedProvider([may_end, "first"]), ScriptedProvider(["second"])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(Agent(first).reply, HELLO, session=session))
        await first.stalled.wait()
        with anyio.move_on_after(0):
            await Agent(second).reply(Message.user("impatient"), session=session)
        may_end.set()
    assert roles_and_texts(session) == [("user", "hello"), ("assistant", "first")]


# --- settings --------------------------------------------------------------------------------------------------------


def test_an_agent_that_cannot_work_is_refused() -> None:
    twice = [calculator_tool(), calculator_tool()]
    for wrong in ({"tools": twice}, {"max_iterations": 0}, {"tool_timeout_s": 0.0}):
        with pytest.raises(ConfigError):
            Agent(ScriptedProvider(), **wrong)


def test_the_reply_event_carries_the_whole_message() -> None:
    assert Reply(Message.assistant("hi")).message.text == "hi"
