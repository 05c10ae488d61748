"""Anthropic's messages survive the way through the canonical form, and canonical ones come out acceptable."""

from __future__ import annotations

import functools
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.protocol.encoding import decode_message, encode_message
from miniclaw_sessions.core.protocol.messages import (
    ImagePart,
    Message,
    OtherPart,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    Usage,
)
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.anthropic import from_anthropic, to_anthropic
from miniclaw_sessions.files.formats.google import to_google
from miniclaw_sessions.files.formats.message_list import NOTHING_TO_SHOW
from miniclaw_sessions.files.formats.openai_chat import to_openai
from miniclaw_sessions.files.formats.openai_items import to_items
from miniclaw_sessions.files.formats.pi import PI
from tests.files.formats.codec_files import read
from tests.files.formats.legal_contexts import (
    SYSTEM_IN_THE_MIDDLE,
    everything_consumed,
    legal_contexts,
    rejects_anthropic,
    rejects_google,
    rejects_items,
    rejects_openai,
)
from tests.files.formats.pi_files import LARGE
from tests.legality import is_legal

CALL = ToolCall("call_1", "weather", '{"city":  "Paris"}')
SECOND = ToolCall("call_2", "camera", "{}")
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}


@functools.cache
def message_and_system_types() -> tuple[TypeAdapter[Any], TypeAdapter[Any]]:
    """How the package types what it sends; importing its types takes longer than most files of tests."""
    from anthropic.types import MessageParam, TextBlockParam  # noqa: PLC0415

    return TypeAdapter(MessageParam), TypeAdapter(str | list[TextBlockParam])


def written(*messages: Message) -> list[dict[str, Any]]:
    wire: list[dict[str, Any]] = to_anthropic(messages)["messages"]
    return wire


# --- acceptable ------------------------------------------------------------------------------------------------------


@given(legal_contexts())
def test_every_legal_context_is_acceptable(context: list[Message]) -> None:
    assert is_legal(context) == []
    request = orjson.loads(orjson.dumps(to_anthropic(context)))
    assert rejects_anthropic(request) == []
    message_type, system_type = message_and_system_types()
    for message in request["messages"]:
        assert everything_consumed(message_type.validate_python(message)) == message
    assert system_type.validate_python(request.get("system", "")) is not None


@given(legal_contexts())
def test_what_was_written_is_read_and_written_the_same(context: list[Message]) -> None:
    request = to_anthropic(context)
    assert to_anthropic(from_anthropic(**request)) == request


@pytest.mark.parametrize("end", [60, 501, 10_000])
def test_a_long_real_conversation_is_acceptable_to_every_service(end: int) -> None:
    context = build_context(read(PI, LARGE[:end]).messages)
    assert rejects_anthropic(to_anthropic(context)) == []
    assert rejects_google(to_google(context)) == []
    assert rejects_items(to_items(context, for_request=True)) == []
    assert rejects_openai(to_openai(context)) == []
    assert to_anthropic(from_anthropic(**to_anthropic(context))) == to_anthropic(context)


def test_system_messages_are_apart_wherever_they_stood() -> None:
    request = to_anthropic(SYSTEM_IN_THE_MIDDLE)
    assert request["system"] == [{"type": "text", "text": "be kind"}, {"type": "text", "text": "be brief"}]
    assert [message["role"] for message in request["messages"]] == ["user", "assistant", "user"]
    assert to_anthropic([Message.system("one"), Message.user("hi")])["system"] == "one"
    assert "system" not in to_anthropic([Message.user("hi")])


def test_results_of_parallel_calls_are_first_in_one_message() -> None:
    wire = written(
        Message.user("hi"),
        Message.assistant("let me see", (CALL, SECOND)),
        Message.tool_result(CALL, "sunny"),
        Message.tool_result(SECOND, (TextPart("a photo"), ImagePart("image/png", "QUJD"))),
        Message.user("and?"),
    )
    assert wire[1]["content"] == [
        {"type": "text", "text": "let me see"},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Paris"}},
        {"type": "tool_use", "id": "call_2", "name": "camera", "input": {}},
    ]
    assert wire[2:] == [
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "sunny"},
                {
                    "type": "tool_result",
                    "tool_use_id": "call_2",
                    "content": [{"type": "text", "text": "a photo"}, IMAGE],
                },
                {"type": "text", "text": "and?"},
            ],
        }
    ]


def test_images_of_a_result_that_is_an_error_follow_all_results() -> None:
    failed = Message.tool_result(CALL, (TextPart("no"), ImagePart("image/png", "QUJD")), is_error=True)
    wire = written(
        Message.user("hi"), Message.assistant("", (CALL, SECOND)), failed, Message.tool_result(SECOND, "yes")
    )
    assert wire[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "call_1", "is_error": True, "content": [{"type": "text", "text": "no"}]},
        {"type": "tool_result", "tool_use_id": "call_2", "content": "yes"},
        IMAGE,
    ]


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [("", {}), (" ", {}), ('{"a": 1}', {"a": 1}), ("[1]", {"value": [1]}), ("null", {"value": None})],
)
def test_arguments_are_always_an_object(arguments: str, sent: dict[str, Any]) -> None:
    wire = written(Message.user("hi"), Message.assistant("", (ToolCall("1", "run", arguments),)))
    assert wire[1]["content"][0]["input"] == sent


def test_foreign_ids_are_replaced_alike_for_call_and_result_and_never_shared() -> None:
    odd = ToolCall("call|1", "run")
    turns = [Message.assistant("", (odd,)), Message.tool_result(odd, "done")]
    first, result, second, again = written(Message.user("hi"), *turns, *turns)[1:]
    assert first["content"][0]["id"] == result["content"][0]["tool_use_id"] != "call|1"
    assert second["content"][0]["id"] == again["content"][0]["tool_use_id"] != first["content"][0]["id"]
    assert written(Message.user("hi"), *turns)[1:] == [first, result], "the same id is always replaced by the same"


def test_thinking_stays_verbatim_at_its_place() -> None:
    wire = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": " a ", "signature": "s1"},
            {"type": "redacted_thinking", "data": "d"},
            {"type": "tool_use", "id": "a", "name": "x", "input": {}},
            {"type": "thinking", "thinking": "", "signature": "s2"},
            {"type": "text", "text": "so"},
            {"type": "tool_use", "id": "b", "name": "x", "input": {}, "cache_control": {"type": "ephemeral"}},
        ],
    }
    (message,) = from_anthropic([wire])
    assert message.content == (
        ThinkingPart(" a ", "s1"),
        ThinkingPart("", "d", redacted=True),
        ThinkingPart("", "s2"),
        TextPart("so"),
    )
    assert to_anthropic([message])["messages"] == [wire]
    assert to_anthropic([decode_message(encode_message(message))])["messages"] == [wire]


@pytest.mark.parametrize(
    "thinking",
    [
        ThinkingPart("unsigned"),
        ThinkingPart("x", "of Google", extra={"google": {}}),
        ThinkingPart("x", "of OpenAI", extra={"openai-items": {}}),
        ThinkingPart("x", "of OpenAI", extra={"codex": {"id": "rs_1"}}),
    ],
)
def test_thinking_that_the_service_did_not_sign_is_left_out(thinking: ThinkingPart) -> None:
    assert written(Message.user("hi"), Message.assistant((thinking, TextPart("yes"))))[1]["content"] == [
        {"type": "text", "text": "yes"}
    ]


@pytest.mark.parametrize("extra", [{"api": "openai-responses"}, {"pi": {"api": "openai-responses"}}])
def test_thinking_of_another_api_in_a_pi_file_is_left_out(extra: dict[str, Any]) -> None:
    content = (ThinkingPart("x", "{}"), TextPart("yes"))
    wire = written(Message.user("hi"), Message(Role.ASSISTANT, content, extra=extra))
    assert wire[1]["content"] == [{"type": "text", "text": "yes"}]


def test_a_reply_of_thinking_alone_is_left_out_and_the_users_words_joined() -> None:
    reply = Message.assistant((OtherPart({"type": "foreign"}), ThinkingPart("x", "s")))
    wire = written(Message.user("a"), reply, Message.user("b"))
    assert wire == [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]


@pytest.mark.parametrize(
    "image",
    [
        *(ImagePart(), ImagePart(url="file:///a.png"), ImagePart(url="a.png")),
        ImagePart(extra={"anthropic": {"source": {"type": "url", "url": "file:///a.png"}}}),
    ],
)
def test_a_text_stands_for_an_image_that_the_service_cannot_fetch(image: ImagePart) -> None:
    assert written(Message.user((image,)))[0]["content"] == [{"type": "text", "text": "(an image that is not at hand)"}]


def test_blank_text_is_left_out_and_a_blank_message_stood_in_for() -> None:
    blank = Message.user((TextPart(" "), TextPart("")))
    assert written(blank, Message.assistant("hi"))[0]["content"][0]["text"] == NOTHING_TO_SHOW
    assert written(Message.user((TextPart(" "), TextPart("x"))))[0]["content"] == [{"type": "text", "text": "x"}]


def test_the_assistants_last_words_have_no_space_behind_them() -> None:
    assert written(Message.user("hi"), Message.assistant("so \n"))[1]["content"] == "so"
    assert written(Message.user("hi"), Message.assistant((TextPart("so "),)))[1]["content"][0]["text"] == "so"


# --- both ways -------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=10).map("x{}".format)
ids = st.uuids().map(lambda value: f"toolu_{value.hex}")
cache = st.just({"type": "ephemeral"})
text_blocks = st.fixed_dictionaries({"type": st.just("text"), "text": texts}, optional={"cache_control": cache})
image_blocks = st.sampled_from(
    [
        IMAGE,
        {**IMAGE, "cache_control": {"type": "ephemeral"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
    ]
)
documents = st.just({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}})
thoughts: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "d"},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
    ]
)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What a client of the service holds: alternating messages, results right behind their calls."""
    said = st.lists(text_blocks | image_blocks | documents, min_size=1, max_size=3)
    wire: list[dict[str, Any]] = [{"role": "user", "content": draw(texts | said)}]
    for _ in range(draw(st.integers(0, 3))):
        calls: list[dict[str, Any]] = [
            {"type": "tool_use", "id": draw(ids), "name": "run", "input": draw(st.sampled_from([{}, {"a": [1, None]}]))}
            for _ in range(draw(st.integers(0, 3)))
        ]
        others: list[dict[str, Any]] = draw(st.lists(thoughts | text_blocks, max_size=3))
        blocks = draw(st.permutations(others + calls))
        wire.append({"role": "assistant", "content": [*blocks, draw(text_blocks)]})
        content = draw(texts | st.lists(text_blocks | image_blocks, max_size=2))
        error = st.fixed_dictionaries({"is_error": st.sampled_from([True]), "content": texts})
        fine = st.fixed_dictionaries({"content": st.just(content)}, optional={"is_error": st.sampled_from([False])})
        answered = [block["id"] for block in blocks if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call_id, **draw(fine | error)} for call_id in answered]
        for result in results:
            if result["content"] == []:
                del result["content"]
        wire.append({"role": "user", "content": [*results, draw(text_blocks)]})
    return wire


@given(conversations(), st.none() | texts | st.lists(text_blocks, min_size=1, max_size=2))
def test_what_the_service_was_sent_goes_back_unchanged(wire: list[dict[str, Any]], system: Any) -> None:
    messages = from_anthropic(wire, system)
    expected = {"messages": wire} if system is None else {"system": system, "messages": wire}
    assert to_anthropic(messages) == expected
    assert to_anthropic([decode_message(encode_message(message)) for message in messages]) == expected
    assert to_anthropic(build_context(messages)) == expected


def test_a_reply_is_read_with_its_usage_and_goes_back_as_a_message() -> None:
    from anthropic.types import Message as Reply  # noqa: PLC0415 - see `message_and_system_types`

    block = {"type": "text", "text": "hi", "citations": None}
    reply = Reply.model_validate(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-x",
            "content": [block],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": 3,
                "output_tokens": 5,
                "cache_read_input_tokens": 7,
                "service_tier": "standard",
            },
        }
    ).model_dump(mode="json", exclude_unset=True)
    (message,) = from_anthropic([reply])
    assert (message.model, message.stop_reason, message.text) == ("claude-x", "end_turn", "hi")
    assert message.usage == Usage(3, 5, 7, extra={"anthropic": {"service_tier": "standard"}})
    assert message.extra == {"anthropic": {"id": "msg_1", "type": "message", "stop_sequence": None}}
    assert to_anthropic([Message.user("x"), message])["messages"][1] == {"role": "assistant", "content": [block]}


def test_text_blocks_and_images_become_parts() -> None:  # document 003, section 5.2
    url = {"type": "image", "source": {"type": "url", "url": "https://example.org"}}
    (message,) = from_anthropic([{"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE, url]}])
    assert message.content == (TextPart("see"), ImagePart("image/png", "QUJD"), ImagePart(url="https://example.org"))


@pytest.mark.parametrize(
    "wire",
    [
        {"content": "no role"},
        {"role": "user"},
        {"role": "critic", "content": "x"},
        {"role": "user", "content": [7]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [{"type": "tool_result"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": 7}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "x", "input": "{}"}]},
        {"role": "assistant", "content": [{"type": "image", "source": 7}]},
    ],
)
def test_what_is_not_a_message_is_refused(wire: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage):
        from_anthropic([wire])


# --- the checker -----------------------------------------------------------------------------------------------------

USER = {"role": "user", "content": "hi"}
USE = {"type": "tool_use", "id": "a", "name": "x", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "y"}


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [USER, USER],
        [{"role": "assistant", "content": "hi"}],
        [{"role": "user", "content": " "}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": "hi", "id": "x"}],
        [USER, {"role": "assistant", "content": [USE]}],
        [USER, {"role": "assistant", "content": [USE]}, USER],
        [
            USER,
            {"role": "assistant", "content": [USE]},
            {"role": "user", "content": [{"type": "text", "text": "x"}, RESULT]},
        ],
        [USER, {"role": "assistant", "content": [{**USE, "id": "a|b"}]}, {"role": "user", "content": [RESULT]}],
        [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": "s"}]}],
        [USER, {"role": "assistant", "content": "x "}],
        [{"role": "user", "content": [RESULT]}],
    ],
)
def test_the_checker_finds_what_the_service_refuses(messages: list[Any]) -> None:
    assert rejects_anthropic({"messages": messages})
