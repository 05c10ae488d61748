"""LangChain on our sessions: its messages come back, and it sees what others said."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    convert_to_openai_messages,
)

from miniclaw_sessions.adapters import langchain as adapter
from miniclaw_sessions.adapters.langchain import (
    KEPT,
    MiniclawChatMessageHistory,
    as_langchain,
    from_langchain,
    to_langchain,
)
from miniclaw_sessions.core.history.context import NO_RESULT, build_context
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.encoding import decode_message, encode_message
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, Role, TextPart, ThinkingPart, ToolCall, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.service.client import Client
from tests.adapters.examples import run_example
from tests.adapters.json_values import json_values, objects
from tests.files.formats.legal_contexts import legal_contexts, rejects_openai
from tests.legality import is_legal

pytestmark = pytest.mark.anyio


@pytest.fixture
async def history(sessions: SessionManager | Client) -> MiniclawChatMessageHistory:
    return MiniclawChatMessageHistory(await sessions.get_or_create("telegram", 1))


def through_the_store(messages: list[BaseMessage]) -> list[BaseMessage]:
    """As they come back while all of their calls are being answered."""
    canonical = [decode_message(encode_message(message)) for message in from_langchain(messages)]
    return [as_langchain(message) for message in canonical]


# --- the example, and the base class ---------------------------------------------------------------------------------


def test_the_example_runs(tmp_path: Path) -> None:
    assert run_example(adapter, tmp_path) == "['I am Ada.', 'Hello Ada!']\n"


async def test_it_is_a_history_of_the_framework(session: Session) -> None:
    history = MiniclawChatMessageHistory(session)
    assert isinstance(history, BaseChatMessageHistory)
    await history.aadd_messages([HumanMessage("hi"), AIMessage("hello")])
    assert str(history) == "Human: hi\nAI: hello"


async def test_a_conversation_is_remembered_over_a_restart(tmp_path: Path) -> None:
    model = FakeListChatModel(responses=["Hello Ada!", "Ada."])
    said: list[BaseMessage] = []
    for question in ("I am Ada.", "Who am I?"):
        async with SessionManager(tmp_path) as manager:
            history = MiniclawChatMessageHistory(await manager.get_or_create("telegram", 1))
            assert await history.aget_messages() == said
            turn = [HumanMessage(question)]
            reply = await model.ainvoke([*said, *turn])
            await history.aadd_messages([*turn, reply])
            said = await history.aget_messages()
    assert [message.text for message in said] == ["I am Ada.", "Hello Ada!", "Who am I?", "Ada."]


# --- its messages ----------------------------------------------------------------------------------------------------

USAGE = {
    "input_tokens": 30,
    "output_tokens": 5,
    "total_tokens": 35,
    "input_token_details": {"cache_read": 10, "cache_creation": 2, "audio": 1},
    "output_token_details": {"reasoning": 3},
}
EVERY_KIND: list[BaseMessage] = [
    SystemMessage("be kind", id="s1"),
    HumanMessage("hi", name="Ada", id="h1", additional_kwargs={"x": {"y": [1, 2.5, None, True]}}),
    HumanMessage(
        [
            "a string",
            {"type": "text", "text": "what is this?", "cache_control": {"type": "ephemeral"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD", "detail": "low"}},
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            {"type": "image_url", "image_url": "https://example.org/b.png"},
            {"type": "image", "base64": "QUJD", "mime_type": "image/png"},
            {"type": "image", "url": "https://example.org/c.png", "id": "i1"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
            {"type": "file", "base64": "QUJD", "mime_type": "application/pdf"},
            {"no type": 1},
        ]
    ),
    AIMessage(
        [
            {"type": "thinking", "thinking": "hm", "signature": "abc="},
            {"type": "reasoning", "reasoning": "so", "extras": {"a": 1}},
            {"type": "text", "text": "Let me look.", "index": 0},
            {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Paris"}},
        ],
        tool_calls=[{"name": "weather", "args": {"city": "Paris"}, "id": "c1", "type": "tool_call"}],
        invalid_tool_calls=[{"name": "x", "args": "{", "id": "c9", "error": "bad", "type": "invalid_tool_call"}],
        usage_metadata=USAGE,
        response_metadata={"model_name": "m-1", "finish_reason": "tool_calls", "logprobs": None},
        id="run-1",
    ),
    ToolMessage("18", tool_call_id="c1", name="weather", artifact={"raw": [1]}, id="t1"),
    ToolMessage([{"type": "text", "text": "no"}], tool_call_id="c2", status="error"),
    AIMessage("", tool_calls=[{"name": "a", "args": {"n": 1.0}, "id": None}]),
    AIMessage("", additional_kwargs={"function_call": {"name": "f", "arguments": "{}"}}),
    FunctionMessage(content="result", name="f"),
    AIMessageChunk(content="a chu", id="run-2", tool_call_chunks=[{"name": "n", "args": "{", "id": "z", "index": 0}]),
    AIMessageChunk(content="a chunk", id="run-2", response_metadata={"stop_reason": "end_turn"}, chunk_position="last"),
    HumanMessageChunk(content="chunk"),
    ChatMessage(content="hello", role="narrator"),
    ChatMessage(content="hello", role="user"),
    RemoveMessage("h1"),
]


@pytest.mark.parametrize("message", EVERY_KIND, ids=lambda message: type(message).__name__)
def test_a_message_of_every_kind_comes_back_exactly(message: BaseMessage) -> None:
    (back,) = through_the_store([message])
    assert type(back) is type(message)
    assert back == message
    assert json.loads(back.model_dump_json()) == json.loads(message.model_dump_json())


@pytest.mark.parametrize("is_followed", [True, False])
async def test_own_calls_that_a_kill_left_unanswered_are_answered(tmp_path: Path, *, is_followed: bool) -> None:
    asked = AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": call} for call in ("functions.weather:0", "c2")])
    async with SessionManager(tmp_path) as manager:
        history = MiniclawChatMessageHistory(await manager.get_or_create("telegram", 1))
        await history.aadd_messages([HumanMessage("hi"), asked])
        assert await history.aget_messages() == [HumanMessage("hi"), asked]  # the results may be on their way
        await history.aadd_messages([ToolMessage("done", tool_call_id="c2")])
    async with SessionManager(tmp_path) as manager:
        history = MiniclawChatMessageHistory(await manager.get_or_create("telegram", 1))
        if is_followed:
            await history.aadd_messages([HumanMessage("well?")])
        back = await history.aget_messages()
        results = [(message.tool_call_id, message.status) for message in back if isinstance(message, ToolMessage)]
        assert results == [("c2", "success"), ("functions.weather:0", "error")]
        assert [message.type for message in back] == ["human", "ai", "tool", "tool", *["human"] * is_followed]
        assert len(history.session.messages()) == 3 + is_followed


async def test_what_a_history_hands_out_cannot_change_the_session(tmp_path: Path) -> None:
    block = {"no type": {"deep": [1]}}
    said = HumanMessage([block], additional_kwargs={"note": {"deep": [1]}})
    expected = said.model_copy(deep=True)
    async with SessionManager(tmp_path) as manager:
        history = MiniclawChatMessageHistory(await manager.get_or_create("telegram", 1))
        await history.aadd_messages([said])
        said.additional_kwargs["note"]["deep"].append(2)
        block["no type"]["deep"].append(2)
        for messages in (await history.aget_messages(), history.messages):
            assert messages == [expected]
            messages[0].additional_kwargs["note"]["deep"].append(3)
            messages[0].content[0]["no type"].clear()  # type: ignore[index, union-attr]
        assert (await manager.check()).problems == []
    async with SessionManager(tmp_path) as manager:
        history = MiniclawChatMessageHistory(await manager.get_or_create("telegram", 1))
        assert await history.aget_messages() == [expected]


async def test_all_of_them_come_back_from_a_real_store(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        await MiniclawChatMessageHistory(await manager.get_or_create("telegram", 1)).aadd_messages(EVERY_KIND)
    async with SessionManager(tmp_path) as manager:
        history = MiniclawChatMessageHistory(await manager.get_or_create("telegram", 1))
        back = await history.aget_messages()
        made_up = [message for message in back if message.content == NO_RESULT]
        assert [message for message in back if message not in made_up] == EVERY_KIND
        assert [message.tool_call_id for message in made_up if isinstance(message, ToolMessage)] == ["z"]
        assert is_legal((await history.session.get_context()).messages) == []


odd_blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "image_url", "thinking", "reasoning", "str", "tool_use", "x"])},
    optional=dict.fromkeys(("text", "url", "image_url", "thinking", "reasoning", "signature", "base64"), json_values),
)
contents = st.text(max_size=8) | st.lists(st.text(max_size=4) | odd_blocks, max_size=3)
tool_calls = st.lists(
    st.builds(
        lambda name, args, call_id: {"name": name, "args": args, "id": call_id, "type": "tool_call"},
        st.text(max_size=5),
        objects,
        st.none() | st.text(max_size=5),
    ),
    max_size=2,
)
any_messages = st.one_of(
    st.builds(HumanMessage, contents, additional_kwargs=objects, id=st.none() | st.text(max_size=3)),
    st.builds(SystemMessage, contents),
    st.builds(AIMessage, contents, tool_calls=tool_calls, response_metadata=objects),
    st.builds(ToolMessage, contents, tool_call_id=st.text(max_size=5), artifact=json_values),
)


@given(st.lists(any_messages, max_size=5))
def test_any_messages_come_back_exactly(messages: list[BaseMessage]) -> None:
    back = through_the_store(messages)
    assert [json.loads(message.model_dump_json()) for message in back] == [
        json.loads(message.model_dump_json()) for message in messages
    ]


def test_others_understand_what_langchain_said() -> None:
    system, named, picture, call, result, *_ = from_langchain(EVERY_KIND)

    assert (system.role, system.content) == (Role.SYSTEM, "be kind")
    assert (named.role, named.content, named.name) == (Role.USER, "hi", "Ada")
    assert [type(part) for part in picture.content][:4] == [TextPart, TextPart, ImagePart, ImagePart]
    assert (call.role, call.text, call.model, call.stop_reason) == (Role.ASSISTANT, "Let me look.", "m-1", "tool_calls")
    assert call.tool_calls == (ToolCall("c1", "weather", '{"city":"Paris"}'),)
    assert call.usage == Usage(18, 5, 10, 2, total_tokens=35)
    assert isinstance(call.content[0], ThinkingPart)
    assert (call.content[0].thinking, call.content[0].signature) == ("hm", "abc=")
    assert (result.role, result.tool_call_id, result.name, result.is_error) == (
        Role.TOOL_RESULT,
        "c1",
        "weather",
        False,
    )
    assert result.extra == {KEPT: {"artifact": {"raw": [1]}, "id": "t1"}}


def test_a_class_that_nobody_knows_any_more_is_read_as_what_it_says() -> None:
    message = Message(Role.ASSISTANT, "hello", extra={KEPT: {"type": "a class of somebody's", "id": "1"}})
    assert to_langchain([message]) == [AIMessage("hello")]


async def test_what_is_not_json_is_refused_and_nothing_of_it_is_kept(history: MiniclawChatMessageHistory) -> None:
    with pytest.raises(InvalidMessage):
        await history.aadd_messages([HumanMessage("hi"), ToolMessage("x", tool_call_id="1", artifact=object())])
    assert await history.aget_messages() == []


# --- what others said ------------------------------------------------------------------------------------------------


@given(legal_contexts())
def test_what_others_said_is_acceptable_to_a_service(context: list[Message]) -> None:
    messages = to_langchain(context)
    request = convert_to_openai_messages(messages)
    assert isinstance(request, list)
    for message in request:
        if message["role"] == "tool":  # this service takes neither names nor images with a result, others do
            message.pop("name", None)
            if not isinstance(message["content"], str):
                message["content"] = [block for block in message["content"] if block["type"] == "text"] or ""
    assert rejects_openai(request) == []
    assert is_legal(build_context(from_langchain(messages))) == []


async def test_parts_calls_results_and_usage_of_others(history: MiniclawChatMessageHistory) -> None:
    call = ToolCall("c1", "weather", '{"city": "Paris"}')
    reply = Message(
        Role.ASSISTANT,
        (ThinkingPart("hm", "theirs"), TextPart("Let me look.")),
        tool_calls=(call,),
        usage=Usage(18, 5, 10, 2),
        model="m-1",
    )
    picture = Message.user(
        (TextPart("this?"), ImagePart("image/png", "QUJD"), ImagePart(url="https://example.org/a.png"))
    )
    await history.session.add_messages([picture, reply, Message.tool_result(call, "no", is_error=True)])

    asked, answered, result = await history.aget_messages()
    assert asked.content == [
        {"type": "text", "text": "this?"},
        {"type": "image", "base64": "QUJD", "mime_type": "image/png"},
        {"type": "image", "url": "https://example.org/a.png"},
    ]
    assert isinstance(answered, AIMessage)
    assert answered.content == [{"type": "text", "text": "Let me look."}]
    assert answered.tool_calls == [{"name": "weather", "args": {"city": "Paris"}, "id": "c1", "type": "tool_call"}]
    assert answered.usage_metadata is not None
    assert (answered.usage_metadata["input_tokens"], answered.usage_metadata["total_tokens"]) == (30, 35)
    assert isinstance(result, ToolMessage)
    assert (result.content, result.tool_call_id, result.name, result.status) == ("no", "c1", "weather", "error")


async def test_a_call_that_somebody_else_left_open_is_answered(history: MiniclawChatMessageHistory) -> None:
    await history.session.add_messages([Message.user("hi"), Message.assistant("", (ToolCall("c1", "search", "{}"),))])
    assert (await history.aget_messages())[-1].content == NO_RESULT


# --- from everywhere, and acknowledged -------------------------------------------------------------------------------


async def test_asynchronous_calls_are_acknowledged(history: MiniclawChatMessageHistory, session: Session) -> None:
    await history.aadd_messages([HumanMessage("one"), HumanMessage("two")])
    assert session.journal.committed_sequence == session.last_sequence == 2
    await history.aclear()
    assert session.journal.committed_sequence == session.last_sequence == 3
    assert await history.aget_messages() == []


async def test_synchronous_calls_from_a_thread_are_acknowledged(
    history: MiniclawChatMessageHistory, session: Session
) -> None:
    def in_a_thread() -> list[BaseMessage]:
        history.add_messages([HumanMessage(f"{number}") for number in range(60)])
        assert session.journal.committed_sequence == 60
        everything = history.messages
        history.add_user_message("one more")
        history.clear()
        assert history.messages == []
        return everything

    everything = await to_thread.run_sync(in_a_thread)
    assert [message.content for message in everything] == [f"{number}" for number in range(60)]  # more than the window
    assert session.journal.committed_sequence == session.last_sequence


async def test_synchronous_calls_on_the_loop_do_not_block_it(session: Session) -> None:
    history = MiniclawChatMessageHistory(session)
    history.add_messages([HumanMessage(f"{number}") for number in range(60)])
    assert (session.journal.committed_sequence, session.last_sequence) == (0, 60)  # accepted, and nobody waited
    assert [message.content for message in history.messages] == [f"{number}" for number in range(10, 60)]  # the window
    assert len(await history.aget_messages()) == 60
    history.clear()
    assert history.messages == []
    await session.saved()
    assert session.journal.committed_sequence == session.last_sequence


async def test_another_event_loop_is_as_good_as_a_thread(history: MiniclawChatMessageHistory, session: Session) -> None:
    async def elsewhere() -> list[BaseMessage]:
        await history.aadd_messages([HumanMessage("hi")])
        return await history.aget_messages()

    assert await to_thread.run_sync(lambda: asyncio.run(elsewhere())) == [HumanMessage("hi")]
    assert session.journal.committed_sequence == 1


def test_without_an_event_loop_a_session_in_memory_is_used_directly() -> None:
    history = MiniclawChatMessageHistory(Session.new())
    history.add_messages([HumanMessage("hi"), AIMessage("hello")])
    assert history.messages == [HumanMessage("hi"), AIMessage("hello")]


async def test_adding_at_once_keeps_everything_and_each_call_together(history: MiniclawChatMessageHistory) -> None:
    calls: list[list[Any]] = [[HumanMessage(f"{task}.{place}") for place in range(3)] for task in range(20)]
    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(history.aadd_messages, call)

    got = [message.content for message in await history.aget_messages()]
    chunks = [got[start : start + 3] for start in range(0, 60, 3)]
    assert sorted(chunks, key=str) == sorted(([m.content for m in call] for call in calls), key=str)
