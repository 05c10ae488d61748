"""The Microsoft Agent Framework on our sessions: its messages come back, and it sees what others said.

Its source distribution has no tests. What it promises of a store is asked of its own file store and of ours alike.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import agent_framework
import pytest
from agent_framework import Agent, ChatResponse, Content, FileHistoryProvider, HistoryProvider, UsageDetails
from agent_framework import Message as FrameworkMessage
from anyio import to_thread
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.adapters import agent_framework as adapter
from miniclaw_sessions.adapters.agent_framework import (
    KEPT,
    MiniclawHistoryProvider,
    from_agent_framework,
    to_agent_framework,
)
from miniclaw_sessions.adapters.agent_framework_messages import as_agent_framework
from miniclaw_sessions.core.history.context import NO_RESULT, build_context
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.encoding import decode_message, encode_message
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, Role, TextPart, ThinkingPart, ToolCall, Usage
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.histories import Shown
from miniclaw_sessions.service.client import Client
from tests.adapters.examples import run_example
from tests.adapters.json_values import json_values, objects
from tests.files.formats.legal_contexts import legal_contexts
from tests.legality import is_legal
from tests.serving import asked

pytestmark = pytest.mark.anyio


class Scripted(
    agent_framework.FunctionInvocationLayer[Any],
    agent_framework.ChatMiddlewareLayer[Any],
    agent_framework.BaseChatClient[Any],
):
    """A model that says what it is told to, made of what the framework's own clients are made of."""

    def __init__(self, *replies: FrameworkMessage) -> None:
        super().__init__()
        self.replies = iter(replies)
        self.given: list[list[FrameworkMessage]] = []

    async def _inner_get_response(self, *, messages: Any, **_: Any) -> ChatResponse:
        self.given.append(list(messages))
        usage = UsageDetails(input_token_count=30, output_token_count=5, cache_read_input_token_count=10)
        return ChatResponse(messages=[next(self.replies)], usage_details=usage)


def agent_of(history: HistoryProvider, *replies: FrameworkMessage, **options: Any) -> tuple[Agent[Any], Scripted]:
    model = Scripted(*replies)
    return Agent(client=cast("Any", model), context_providers=[history], **options), model


def said(text: str, role: str = "assistant", **fields: Any) -> FrameworkMessage:
    return FrameworkMessage(role, [text], **fields)


def dicts(messages: list[FrameworkMessage]) -> list[dict[str, Any]]:
    return [message.to_dict() for message in messages]


def through_the_store(messages: list[FrameworkMessage]) -> list[FrameworkMessage]:
    canonical = [decode_message(encode_message(message)) for message in from_agent_framework(messages)]
    return as_agent_framework(Shown(message, message) for message in canonical)


@pytest.fixture
async def history(sessions: SessionManager | Client) -> MiniclawHistoryProvider:
    return MiniclawHistoryProvider(sessions, channel="telegram")


def test_the_example_runs(tmp_path: Path) -> None:
    assert run_example(adapter, tmp_path) == "Hello Ada! ['I am Ada.', 'Hello Ada!']\n"


# --- what the framework promises of a store --------------------------------------------------------------------------


class Stores:
    """One of its own kind, or of ours: opened again, it has what it had."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind, self._directory = kind, directory

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[HistoryProvider]:
        if self.kind == "its files":
            with warnings.catch_warnings(action="ignore"):  # it is an experiment of theirs
                yield FileHistoryProvider(self._directory)
            return
        async with SessionManager(self._directory) as manager:
            if self.kind == "held":
                yield MiniclawHistoryProvider(manager)
            else:
                async with asked(manager) as client:
                    yield MiniclawHistoryProvider(client)


@pytest.fixture(params=["its files", "held", "asked"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    return Stores(request.param, tmp_path)


async def test_a_conversation_is_remembered_over_a_restart(stores: Stores) -> None:
    given: list[list[FrameworkMessage]] = []
    for number, question in enumerate(("I am Ada.", "Who am I?")):
        async with stores.opened() as history:
            agent, model = agent_of(history, said(f"Ada {number}."))
            result = await agent.run(question, session=agent.create_session(session_id="1"))
            assert result.text == f"Ada {number}."
            given += model.given
    assert [message.text for message in given[-1]] == ["I am Ada.", "Ada 0.", "Who am I?"]


async def test_sessions_are_apart_and_an_unknown_one_is_empty(stores: Stores) -> None:
    async with stores.opened() as history:
        for session_id in ("1", "a/../b", None):
            await history.save_messages(session_id, [said(f"of {session_id}")])
        for session_id in ("1", "a/../b", None):
            assert [message.text for message in await history.get_messages(session_id)] == [f"of {session_id}"]
        assert await history.get_messages("another") == []


async def test_a_tool_loop_is_kept_with_its_calls_and_results(stores: Stores) -> None:
    def double(number: int) -> int:
        return 2 * number

    calls = [Content.from_function_call(f"c{number}", "double", arguments={"number": number}) for number in (2, 3)]
    async with stores.opened() as history:
        agent, _ = agent_of(history, FrameworkMessage("assistant", calls), said("4 and 6"), tools=[double])
        await agent.run("double 2 and 3", session=agent.create_session(session_id="1"))
    async with stores.opened() as history:
        asked_for, called, answered, told = await history.get_messages("1")
    assert [(content.type, content.call_id) for content in called.contents + answered.contents] == [
        *(("function_call", "c2"), ("function_call", "c3")),
        *(("function_result", "c2"), ("function_result", "c3")),
    ]
    assert [content.result for content in answered.contents] == ["4", "6"]
    assert (asked_for.role, called.role, answered.role, told.text) == ("user", "assistant", "tool", "4 and 6")


async def test_each_reply_is_kept_before_its_tools_run_where_the_agent_says_so(stores: Stores) -> None:
    call = Content.from_function_call("c1", "look", arguments={})
    seen: list[list[str]] = []
    async with stores.opened() as history:

        async def look() -> str:
            seen.append([content.type for message in await history.get_messages("1") for content in message.contents])
            return "rain"

        agent, model = agent_of(
            history,
            FrameworkMessage("assistant", [call]),
            said("It rains."),
            tools=[look],
            require_per_service_call_history_persistence=True,
        )
        await agent.run("look", session=agent.create_session(session_id="1"))
        kept = [content.type for message in await history.get_messages("1") for content in message.contents]
    assert seen == [["text", "function_call"]]
    assert [content.type for message in model.given[-1] for content in message.contents] == [
        *("text", "function_call", "function_result")
    ]
    assert kept == ["text", "function_call", "function_result", "text"]


async def test_a_transcript_that_is_handed_over_again_adds_what_is_new(stores: Stores) -> None:
    first = [said("hi", "user"), said("hello")]
    async with stores.opened() as history:
        await history.save_messages("1", first)
        await history.save_messages("1", [*first, said("and?", "user"), said("well")])
        assert [message.text for message in await history.get_messages("1")] == ["hi", "hello", "and?", "well"]


async def test_what_a_person_says_twice_is_kept_twice(stores: Stores) -> None:
    async with stores.opened() as history:
        await history.save_messages("1", [said("yes", "user")])
        await history.save_messages("1", [said("yes", "user"), said("fine")])
        assert [message.text for message in await history.get_messages("1")] == ["yes", "yes", "fine"]


async def test_a_call_that_waits_for_its_approval_is_there_after_a_restart(stores: Stores) -> None:
    runs: list[str] = []

    def pay(to: str) -> str:
        runs.append(to)
        return "paid"

    tool = agent_framework.tool(approval_mode="always_require")(pay)
    call = Content.from_function_call("c1", "pay", arguments={"to": "Ada"})
    async with stores.opened() as history:
        agent, _ = agent_of(history, FrameworkMessage("assistant", [call]), tools=[tool])
        session = agent.create_session(session_id="1")
        waiting = await agent.run("pay Ada", session=session)
        (request,) = waiting.user_input_requests
        state = json.dumps(session.to_dict())  # which the framework's user keeps, with whom it waits for
    async with stores.opened() as history:
        agent, model = agent_of(history, said("done"), tools=[tool])
        answer = FrameworkMessage("user", [request.to_function_approval_response(approved=True)])
        result = await agent.run(answer, session=agent_framework.AgentSession.from_dict(json.loads(state)))
    assert (runs, result.text) == (["Ada"], "done")
    contents = [content for message in model.given[-1] for content in message.contents]
    assert [content.result for content in contents if content.type == "function_result"] == ["paid"]


# --- its messages ----------------------------------------------------------------------------------------------------

properties = objects.filter(lambda fields: not any(name.startswith("_") for name in fields))
short = st.text(max_size=5)
ids = st.sampled_from(["c1", "c2", "odd|id"])
contents = st.one_of(
    st.builds(Content.from_text, short, additional_properties=properties),
    st.builds(lambda text: Content.from_text_reasoning(text=text, protected_data="c2ln", id="r"), short | st.none()),
    st.binary(min_size=1, max_size=4).map(lambda data: Content.from_data(data, "image/png", name="a.png")),
    st.just(Content.from_data(b"%PDF", "application/pdf")),
    st.just(Content.from_uri("https://example.org/a.png", media_type="image/png")),
    st.builds(Content.from_function_call, ids, short, arguments=short | objects | st.none(), id=short | st.none()),
    st.builds(Content.from_error, message=short),
    st.just(Content.from_usage({"input_token_count": 1})),
)
results = st.builds(
    Content.from_function_result, ids, result=short | json_values | st.lists(contents, max_size=2), exception=st.none()
)
any_messages = st.builds(
    FrameworkMessage,
    st.sampled_from(["user", "assistant", "system", "tool", "developer", "another"]),
    st.lists(contents | results, max_size=3),
    author_name=short | st.none(),
    message_id=short | st.none(),
    additional_properties=properties,
)


@given(st.lists(any_messages, max_size=4))
def test_any_messages_come_back_exactly(messages: list[FrameworkMessage]) -> None:
    assert dicts(through_the_store(messages)) == dicts(messages)


def test_others_understand_what_the_framework_said() -> None:
    shown = [Content.from_text("this?"), Content.from_data(b"ABC", "image/png")]
    thought = Content.from_text_reasoning(text="hm", protected_data="c2ln")
    call = Content.from_function_call("c1", "look", arguments={"at": "it"})
    fails = Content.from_function_result("c1", result="no", exception="boom")
    asked_for, called, failed = from_agent_framework(
        [
            FrameworkMessage("user", shown, author_name="Ada"),
            FrameworkMessage("assistant", [thought, Content.from_text("Let me look."), call], author_name="helper"),
            FrameworkMessage("tool", [fails]),
        ]
    )
    assert (asked_for.role, asked_for.name, asked_for.text) == (Role.USER, "Ada", "this?")
    assert [type(part) for part in asked_for.content] == [TextPart, ImagePart]
    assert (called.author, called.text) == ("helper", "Let me look.")
    assert called.tool_calls is not None
    assert [(call.id, call.name, call.arguments) for call in called.tool_calls] == [("c1", "look", '{"at":"it"}')]
    assert (failed.tool_call_id, failed.text, failed.is_error) == ("c1", "no", True)


async def test_what_a_run_cost_is_counted_once(manager: SessionManager) -> None:
    history = MiniclawHistoryProvider(manager, channel="telegram")
    agent, _ = agent_of(history, said("hello"))
    await agent.run("hi", session=agent.create_session(session_id="1"))
    session = await manager.find("telegram_1")
    assert [message.usage for message in session.messages()] == [None, Usage(20, 5, 10)]


async def test_what_is_not_json_is_refused_and_nothing_of_it_is_kept(history: MiniclawHistoryProvider) -> None:
    odd = Content.from_function_call("c1", "look", arguments={"at": object()})
    with pytest.raises(InvalidMessage):
        await history.save_messages("1", [said("hi", "user"), FrameworkMessage("assistant", [odd])])
    assert await history.get_messages("1") == []


# --- what others said ------------------------------------------------------------------------------------------------


@given(legal_contexts())
def test_what_others_said_comes_legal_and_in_its_words(context: list[Message]) -> None:
    messages = to_agent_framework(context)
    assert is_legal(build_context(from_agent_framework(messages))) == []
    assert not any(content.type == "text_reasoning" for message in messages for content in message.contents)
    json.dumps(dicts(messages))


async def test_parts_calls_and_results_of_others(history: MiniclawHistoryProvider, manager: SessionManager) -> None:
    session = await manager.get_or_create("telegram", 1)
    call = ToolCall("c1", "weather", '{"city": "Paris"}')
    reply = Message(Role.ASSISTANT, (ThinkingPart("hm", "theirs"), TextPart("Let me look.")), tool_calls=(call,))
    image = ImagePart("image/png", "QUJD")
    await session.add_messages([Message.user((TextPart("this?"), image)), reply, Message.tool_result(call, "no")])
    asked_for, called, answered = await history.get_messages("1")
    assert [(content.type, content.uri) for content in asked_for.contents] == [
        *(("text", None), ("data", "data:image/png;base64,QUJD"))
    ]
    assert [content.type for content in called.contents] == ["text", "function_call"]
    assert (called.contents[1].arguments, called.contents[1].call_id) == ('{"city": "Paris"}', "c1")
    assert (answered.role, answered.contents[0].call_id, answered.contents[0].result) == ("tool", "c1", "no")


@pytest.mark.parametrize("extra", [{KEPT: {}}, None], ids=["its own", "of others"])
async def test_calls_that_a_kill_left_unanswered_are_answered(
    history: MiniclawHistoryProvider, manager: SessionManager, extra: dict[str, Any] | None
) -> None:
    session = await manager.get_or_create("telegram", 1)
    called = Message(Role.ASSISTANT, "", tool_calls=(ToolCall("c1", "search", "{}"),), extra=extra)
    await session.add_messages([Message.user("hi"), called])
    assert (await history.get_messages("1"))[-1].contents[0].result == NO_RESULT


async def test_another_event_loop_is_as_good(history: MiniclawHistoryProvider) -> None:
    async def elsewhere() -> list[FrameworkMessage]:
        await history.save_messages("1", [said("hi", "user")])
        return await history.get_messages("1")

    assert [message.text for message in await to_thread.run_sync(lambda: asyncio.run(elsewhere()))] == ["hi"]
