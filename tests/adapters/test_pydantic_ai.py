"""pydantic-ai on our sessions: its messages come back, and it sees what others said."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import Agent, BinaryContent, DeferredToolRequests, DeferredToolResults, ImageUrl, ModelRetry, messages
from pydantic_ai.messages import (
    CachePoint,
    CompactionPart,
    FilePart,
    InstructionDeltaPart,
    LoadCapabilityReturnPart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    RetryFeedbackPart,
    RetryInfo,
    SpeechPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolAvailabilityDeltaPart,
    ToolCallPart,
    ToolReturnPart,
    ToolSearchReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage

from miniclaw_sessions.adapters import pydantic_ai as adapter
from miniclaw_sessions.adapters.pydantic_ai import (
    SaveRuns,
    load_conversation,
    load_messages,
    save,
    save_conversation,
)
from miniclaw_sessions.agent.providers.pydantic_ai_messages import KEPT, from_model_messages, to_model_messages
from miniclaw_sessions.core.history.context import NO_RESULT, build_context
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol import messages as canonical
from miniclaw_sessions.core.protocol.encoding import decode_message, encode_message
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, Role, ToolCall, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.service.client import Client, ClientSession
from tests.adapters.examples import run_example
from tests.adapters.json_values import json_values, objects
from tests.files.formats.legal_contexts import legal_contexts
from tests.legality import is_legal

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 11, 21, 12, 30, 0, 123456, tzinfo=UTC)


@pytest.fixture
async def session(sessions: SessionManager | Client) -> Session | ClientSession:
    return await sessions.get_or_create("telegram", 1)


def stored(said: list[Message]) -> list[Message]:
    return [decode_message(encode_message(message)) for message in said]


def as_json(said: list[ModelMessage]) -> Any:
    return json.loads(ModelMessagesTypeAdapter.dump_json(said))


def read_back(said: list[ModelMessage]) -> list[ModelMessage]:
    """What pydantic-ai itself makes of its own JSON, which forgets a few things (who counted a result's files)."""
    return ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(said))


# --- the example, and runs -------------------------------------------------------------------------------------------


def test_the_example_runs(tmp_path: Path) -> None:
    assert run_example(adapter, tmp_path) == "Hello Ada! ['I am Ada.', 'Hello Ada!']\n"


async def test_runs_with_tools_are_remembered_over_a_restart(tmp_path: Path) -> None:
    agent = Agent(TestModel(), system_prompt="be kind", instructions="be brief")

    @agent.tool_plain
    def weather(city: str) -> dict[str, str]:
        if city == "x":
            raise ModelRetry("no such city")
        return {city: "sunny"}

    said: list[ModelMessage] = []
    for question in ("How is it?", "And now?"):
        async with SessionManager(tmp_path) as manager:
            session = await manager.get_or_create("telegram", 1)
            assert as_json(await load_messages(session)) == as_json(said)
            result = await agent.run(question, message_history=await load_messages(session))
            await save(session, result.new_messages())
            assert session.journal.committed_sequence == session.last_sequence
            said = result.all_messages()
            assert is_legal((await session.get_context()).messages) == []


async def test_the_capability_saves_every_run(manager: SessionManager, session: Session) -> None:
    agent = Agent(TestModel(custom_output_text="Hello Ada!"), capabilities=[SaveRuns(session)])
    first = await agent.run("I am Ada.")
    second = await agent.run("Hello?", message_history=await load_messages(session))

    assert as_json(await load_messages(session)) == as_json(second.all_messages())
    assert len(second.all_messages()) == len(first.all_messages()) * 2
    assert (await manager.get("telegram", 1)).event_count == 2  # a run is a turn


async def test_a_call_that_waits_for_an_approval_still_waits_after_a_restart(tmp_path: Path) -> None:
    agent = Agent(TestModel(), output_type=[str, DeferredToolRequests])
    deleted: list[str] = []

    @agent.tool_plain(requires_approval=True)
    def delete(path: str) -> str:
        deleted.append(path)
        return "gone"

    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", 1)
        result = await agent.run("clean up", conversation=await load_conversation(session))
        assert isinstance(result.output, DeferredToolRequests)
        await save_conversation(session, result)
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", 1)
        conversation = await load_conversation(session)
        assert conversation.usage == result.usage
        assert conversation.deferred_tool_requests is not None
        (call,) = conversation.deferred_tool_requests.approvals
        assert is_legal((await session.get_context()).messages) == []  # others are told that it has no result
        done = await agent.run(
            conversation=conversation, deferred_tool_results=DeferredToolResults(approvals={call.tool_call_id: True})
        )
        await save_conversation(session, done)
        assert deleted == ["a"]
        assert (await load_conversation(session)).usage.requests == 2
        assert as_json(await load_messages(session)) == as_json(done.all_messages())


async def test_a_new_session_is_a_new_conversation(session: Session) -> None:
    conversation = await load_conversation(session)
    assert (conversation.conversation_id, conversation.messages) == ("telegram_1", [])


async def test_a_state_of_another_version_is_refused_and_the_messages_are_not(session: Session) -> None:
    await save(session, [ModelRequest(parts=[UserPromptPart("hi")])])
    await session.tree.append_custom_entry(adapter.STATE, {"usage": "a lot"})
    with pytest.raises(InvalidMessage, match="load_messages"):
        await load_conversation(session)
    assert len(await load_messages(session)) == 1


# --- its messages ----------------------------------------------------------------------------------------------------

IMAGE = BinaryContent(b"\xfb\xff\xfe image", media_type="image/png", vendor_metadata={"detail": "low"})
PDF = BinaryContent(b"%PDF", media_type="application/pdf", identifier="report")
EVERYTHING: list[ModelMessage] = [
    ModelRequest(
        parts=[
            SystemPromptPart("be kind", timestamp=NOW, dynamic_ref="f", metadata={"a": None}),
            SystemPromptPart("3 requests are left", timestamp=NOW, scope="request"),
            UserPromptPart(
                [
                    "what is this?",
                    IMAGE,
                    ImageUrl("https://example.org/a.png", force_download=True),
                    TextContent("see", metadata={"page": 1}),
                    PDF,
                    messages.AudioUrl("https://example.org/a.mp3"),
                    CachePoint(),
                ],
                timestamp=NOW,
            ),
            InstructionDeltaPart(id=None, content="be brief"),
            ToolAvailabilityDeltaPart(tools_added=[]),
        ],
        timestamp=NOW,
        instructions="be brief",
        run_id="run-1",
        conversation_id="c-1",
        metadata={"n": 1.0},
    ),
    ModelResponse(
        parts=[
            ThinkingPart("hm", id="rs_1", signature="abc", provider_name="openai", provider_details={"x": [1]}),
            TextPart("Let me look.", id="msg_1", provider_name="openai"),
            ToolCallPart("weather", '{"city":  "Paris"}', "c1", id="fc_1", provider_name="openai"),
            TextPart("And again."),
            ToolCallPart("weather", {"city": "Rome", "n": 1.0}, "c2"),
            ToolCallPart("clock", None, "c3"),
            ToolCallPart("broken", '{"a":', "c4"),
            NativeToolCallPart("web_search", {"q": "x"}, "n1", provider_name="openai"),
            NativeToolReturnPart("web_search", {"hits": []}, "n1", provider_name="openai", timestamp=NOW),
            FilePart(BinaryContent(b"123", media_type="image/png")),
            CompactionPart(None, id="cmp", provider_name="openai", provider_details={"encrypted_content": "x"}),
            SpeechPart(speaker="assistant", transcript="spoken", interrupted_at_ms=3),
        ],
        usage=RequestUsage(
            input_tokens=30,
            cache_read_tokens=10,
            cache_write_tokens=2,
            output_tokens=5,
            output_reasoning_tokens=3,
            details={"reasoning": 0},
            cost=Decimal("0.0001"),
            own_count=0,
        ),
        model_name="m-1",
        model_id="openai:m",
        timestamp=NOW,
        provider_name="openai",
        provider_response_id="resp_1",
        provider_details={"finish_reason": "stop"},
        finish_reason="tool_call",
        run_id="run-1",
    ),
    ModelRequest(
        parts=[
            ToolReturnPart("weather", "18", "c1", timestamp=NOW),
            ToolReturnPart("weather", {"degrees": 20, "at": [1.0, None]}, "c2", timestamp=NOW, metadata={"raw": 1}),
            ToolReturnPart("clock", ["here", IMAGE, {"a": 1}, 7], "c3", timestamp=NOW),
            ToolReturnPart(
                "broken", "fix it", "c4", outcome="retried", retry=RetryInfo(cause="validation_error"), timestamp=NOW
            ),
            RetryFeedbackPart("say more", retry=RetryInfo(cause="model_retry"), timestamp=NOW),
            SpeechPart(speaker="user", transcript="said aloud"),
            CompactionPart("They greeted."),
            UserPromptPart("", timestamp=NOW),
            UserPromptPart([], timestamp=NOW),
        ]
    ),
    ModelResponse(parts=[], timestamp=NOW, state="interrupted"),
    ModelRequest(parts=[], instructions="go on"),
    ModelResponse(parts=[TextPart("")], timestamp=NOW.astimezone(timezone(timedelta(hours=2)))),
    ModelResponse(parts=[TextPart("done"), ToolCallPart("weather", "", "c5")], timestamp=NOW.replace(tzinfo=None)),
    ModelRequest(parts=[ToolReturnPart("weather", None, "c5", timestamp=NOW, outcome="denied")]),
    ModelRequest(
        parts=[ToolReturnPart("weather", PDF, "c6", timestamp=NOW), ToolReturnPart("w", b"raw", "c7", timestamp=NOW)]
    ),
]


@pytest.mark.parametrize("place", range(len(EVERYTHING)))
def test_every_message_comes_back_exactly(place: int) -> None:
    message = EVERYTHING[place]
    assert as_json(to_model_messages(stored(from_model_messages([message])))) == as_json(read_back([message]))


async def test_a_whole_conversation_comes_back_from_a_real_store(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        await save(await manager.get_or_create("telegram", 1), EVERYTHING)
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", 1)
        assert as_json(await load_messages(session)) == as_json(read_back(EVERYTHING))
        assert is_legal((await session.get_context()).messages) == []


texts, ids = st.text(max_size=6), st.text(max_size=4)
times = st.datetimes(timezones=st.just(UTC)) | st.datetimes()
items = texts | st.just(IMAGE) | st.just(PDF) | st.builds(TextContent, texts, metadata=st.none() | objects)
request_parts: st.SearchStrategy[Any] = st.one_of(
    st.builds(SystemPromptPart, texts, timestamp=times),
    st.builds(UserPromptPart, texts | st.lists(items, max_size=3), timestamp=times),
    st.builds(
        ToolReturnPart, ids, json_values | st.lists(items, max_size=2), ids, timestamp=times, metadata=json_values
    ),
    st.builds(CompactionPart, texts),
)
response_parts: st.SearchStrategy[Any] = st.one_of(
    st.builds(TextPart, texts, id=st.none() | ids),
    st.builds(ThinkingPart, texts, signature=st.none() | texts),
    st.builds(ToolCallPart, ids, st.none() | texts | objects, ids),
    st.builds(NativeToolCallPart, ids, objects, ids),
)
usages = st.builds(
    RequestUsage, input_tokens=st.integers(0, 99), cache_read_tokens=st.integers(0, 9), output_tokens=st.integers(0, 9)
)
any_messages = st.one_of(
    st.builds(
        ModelRequest, st.lists(request_parts, max_size=3), instructions=st.none() | texts, metadata=st.none() | objects
    ),
    st.builds(
        ModelResponse,
        st.lists(response_parts, max_size=4),
        usage=usages,
        timestamp=times,
        provider_details=st.none() | objects,
    ),
)


@given(st.lists(any_messages, max_size=5))
def test_any_messages_come_back_exactly(said: list[ModelMessage]) -> None:
    assert as_json(to_model_messages(stored(from_model_messages(said)))) == as_json(read_back(said))


def test_others_understand_what_pydantic_ai_said() -> None:
    said = build_context(from_model_messages(EVERYTHING))
    system, asked, called, first, second, third, fourth, *_ = said

    assert (system.role, system.content) == (Role.SYSTEM, "be kind")
    assert [message for message in said if "requests are left" in message.text] == []  # it was for one request only
    assert isinstance(asked.content[1], ImagePart)
    assert (asked.content[1].media_type, asked.content[1].data) == ("image/png", "+//+IGltYWdl")
    assert (called.text, called.model, called.usage) == (
        "Let me look.And again.spoken",
        "m-1",
        Usage(18, 5, 10, 2, cost=0.0001),
    )
    assert [(call.id, call.name, call.arguments) for call in called.tool_calls or ()] == [
        ("c1", "weather", '{"city":  "Paris"}'),
        ("c2", "weather", '{"city":"Rome","n":1.0}'),
        ("c3", "clock", ""),
    ]
    assert (first.tool_call_id, first.name, first.content) == ("c1", "weather", "18")
    assert second.content == '{"degrees":20,"at":[1.0,null]}'
    assert isinstance(third.content[1], ImagePart)
    assert "say more" in fourth.text
    assert fourth.role is Role.USER
    assert any("They greeted." in message.text for message in said)


def test_a_part_of_another_version_is_read_as_what_it_says() -> None:
    kept = {KEPT: {"whole": {"part_kind": "a part of the future", "content": "?"}}}
    said = to_model_messages([Message.user("hi"), Message(Role.USER, "spoken", extra=kept)])
    assert [part.content for message in said for part in message.parts] == ["hi", "spoken"]  # type: ignore[union-attr]


async def test_what_cannot_be_stored_is_refused_and_nothing_of_it_is_kept(session: Session) -> None:
    request = ModelRequest(parts=[UserPromptPart("hi")], metadata={"n": 2**80})
    with pytest.raises(InvalidMessage):
        await save(session, [ModelRequest(parts=[UserPromptPart("before")]), request])
    assert await load_messages(session) == []


# --- what others said ------------------------------------------------------------------------------------------------


def problems(said: list[ModelMessage]) -> list[str]:
    """What is wrong with a history, as pydantic-ai and the services see it."""
    found = []
    open_calls: dict[str, str] = {}
    for place, message in enumerate(said):
        results = [part for part in message.parts if isinstance(part, ToolReturnPart)]
        if {part.tool_call_id: part.tool_name for part in results} != open_calls and place:
            found.append(f"message {place} answers {results}, and {open_calls} wait")
        open_calls = {p.tool_call_id: p.tool_name for p in message.parts if isinstance(p, ToolCallPart)}
        found += [f"message {place} has no parts"] * (not message.parts)
        if place and isinstance(message, ModelResponse) and isinstance(said[place - 1], ModelResponse):
            found.append(f"message {place} follows a response")
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                part.args_as_dict(raise_if_invalid=True)
    return found


@given(legal_contexts())
def test_what_others_said_are_good_messages(context: list[Message]) -> None:
    said = to_model_messages(context)
    assert [problem for problem in problems(said) if "follows a response" not in problem] == []
    assert as_json(to_model_messages(stored(from_model_messages(said)))) == as_json(said)
    assert is_legal(build_context(from_model_messages(said))) == []


async def test_parts_calls_results_and_usage_of_others(session: Session) -> None:
    call = ToolCall("c1", "weather", '{"city": "Paris"}')
    reply = Message(
        Role.ASSISTANT,
        (canonical.ThinkingPart("hm", "theirs"), canonical.TextPart("Let me look.")),
        tool_calls=(call,),
        usage=Usage(18, 5, 10, 2),
        model="m-1",
        stop_reason="length",
        timestamp=NOW,
    )
    await session.add_messages(
        [
            Message.system("be kind"),
            Message.user(
                (canonical.TextPart("this?"), ImagePart("image/png", "+//+"), ImagePart(url="https://a.org/a.png"))
            ),
            reply,
            Message.tool_result(call, "no", is_error=True),
        ]
    )

    asked, answered, result = await load_messages(session)
    assert [type(part) for part in asked.parts] == [SystemPromptPart, UserPromptPart]
    content = asked.parts[1].content  # type: ignore[union-attr]
    image = BinaryContent.narrow_type(BinaryContent(b"\xfb\xff\xfe", media_type="image/png"))
    assert content == ["this?", image, ImageUrl("https://a.org/a.png")]
    assert isinstance(answered, ModelResponse)
    assert answered.parts == [TextPart("Let me look."), ToolCallPart("weather", '{"city": "Paris"}', "c1")]
    assert (answered.model_name, answered.finish_reason, answered.timestamp) == ("m-1", "length", NOW)
    assert answered.usage == RequestUsage(input_tokens=30, output_tokens=5, cache_read_tokens=10, cache_write_tokens=2)
    (part,) = result.parts
    assert isinstance(part, ToolReturnPart)
    assert (part.tool_name, part.content, part.tool_call_id, part.outcome) == ("weather", "no", "c1", "failed")


async def test_a_call_of_somebody_else_is_answered_and_one_of_its_own_is_not(session: Session) -> None:
    await session.add_messages([Message.user("hi"), Message.assistant("", (ToolCall("theirs", "search", "{}"),))])
    own: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart("go on")]),
        ModelResponse(parts=[ToolCallPart("search", "{}", "own")]),
    ]
    await save(session, own)

    said = await load_messages(session)
    (result,) = said[2].parts
    assert isinstance(result, ToolReturnPart)
    assert (result.content, result.tool_call_id) == (NO_RESULT, "theirs")
    assert as_json(said[3:]) == as_json(own)


async def test_a_model_gets_what_others_said(session: Session) -> None:
    call = ToolCall("functions.search:0", "default_api:search", "[1]")
    await session.add_messages([Message.user("hi"), Message.assistant("", (call,)), Message.tool_result(call, "found")])
    seen: list[list[ModelMessage]] = []

    def answer(history: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        seen.append(history)
        return ModelResponse(parts=[TextPart("ok")])

    await Agent(FunctionModel(answer)).run("and?", message_history=await load_messages(session))
    assert problems(seen[0]) == []
    assert [type(part).__name__ for message in seen[0] for part in message.parts] == [
        "UserPromptPart",
        "ToolCallPart",
        "ToolReturnPart",
        "UserPromptPart",
    ]


# --- what the attack found -------------------------------------------------------------------------------------------


async def test_discovered_tools_and_loaded_capabilities_come_back_as_what_they_are() -> None:
    found = ToolSearchReturnPart(content={"discovered_tools": [], "message": "none"}, tool_call_id="c1")
    loaded = LoadCapabilityReturnPart(content={"instructions": "be kind"}, tool_call_id="c2")
    said: list[ModelMessage] = [ModelRequest(parts=[found, loaded])]
    (back,) = to_model_messages(stored(from_model_messages(said)))
    assert [type(part) for part in back.parts] == [ToolSearchReturnPart, LoadCapabilityReturnPart]
    assert ModelMessagesTypeAdapter.dump_python([back]) == ModelMessagesTypeAdapter.dump_python(said)


async def test_an_image_is_stored_once() -> None:
    image = BinaryContent(b"x" * 30_000, media_type="image/png")
    for part in (UserPromptPart(["look", image]), ToolReturnPart("camera", ["here", image], "c1")):
        (message,) = from_model_messages([ModelRequest(parts=[part])])
        assert len(encode_message(message)) < 1.1 * len(b64encode(image.data)) + 1_000
        (back,) = to_model_messages(stored([message]))
        assert ModelMessagesTypeAdapter.dump_python([back]) == ModelMessagesTypeAdapter.dump_python(
            [ModelRequest(parts=[part])]
        )


async def test_runs_are_saved_from_a_thread_and_from_another_loop(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", 1)
        agent = Agent(TestModel(custom_output_text="hello"), capabilities=[SaveRuns(session)])

        def run() -> None:
            agent.run_sync("one")
            asyncio.get_event_loop_policy().get_event_loop().close()  # that pydantic-ai made for this thread

        with anyio.fail_after(60):
            await to_thread.run_sync(run)
            result = await Agent(TestModel(custom_output_text="hello")).run("two")
            await to_thread.run_sync(lambda: asyncio.run(save(session, result.new_messages())))
            history = await to_thread.run_sync(lambda: asyncio.run(load_messages(session)))
        assert [message.text for message in session.messages()] == ["one", "hello", "two", "hello"]
        assert len(history) == 4
        assert session.journal.committed_sequence == session.last_sequence
