"""Gemini's contents survive the way through the canonical form, and canonical ones come out acceptable."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

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
from miniclaw_sessions.files.formats.codec import Sample
from miniclaw_sessions.files.formats.google import (
    GOOGLE,
    SKIP_VALIDATION,
    from_google,
    from_google_reply,
    to_google,
)
from miniclaw_sessions.files.formats.message_list import NOTHING_TO_SHOW
from tests.files.formats.codec_files import dumped, read
from tests.files.formats.legal_contexts import SYSTEM_IN_THE_MIDDLE, legal_contexts, rejects_google

CALL = ToolCall("call_1", "weather", '{"city":  "Paris"}')
SECOND = ToolCall("call_2", "camera", "{}")
IMAGE = {"inline_data": {"mime_type": "image/png", "data": "QUJD"}}
HI = {"role": "user", "parts": [{"text": "hi"}]}


def contents(*messages: Message) -> list[dict[str, Any]]:
    wire: list[dict[str, Any]] = to_google(messages)["contents"]
    return wire


# --- acceptable ------------------------------------------------------------------------------------------------------


@given(legal_contexts())
def test_every_legal_context_is_acceptable(context: list[Message]) -> None:
    request = orjson.loads(orjson.dumps(to_google(context)))
    assert rejects_google(request) == []
    for content in [
        *request["contents"],
        *([request["system_instruction"]] if "system_instruction" in request else []),
    ]:
        read = types.Content.model_validate(content)  # the SDK's models refuse unknown fields
        assert read.model_dump(mode="json", exclude_none=True) == types.Content.model_validate_json(
            orjson.dumps(content)
        ).model_dump(mode="json", exclude_none=True)


@given(legal_contexts())
def test_every_legal_context_is_acceptable_to_models_that_want_signatures(context: list[Message]) -> None:
    request = to_google(context, stand_in=SKIP_VALIDATION)
    assert rejects_google(request, signatures_required=True) == []


@given(legal_contexts())
def test_what_was_written_is_read_and_written_the_same(context: list[Message]) -> None:
    request = to_google(context)
    assert to_google(from_google(**request)) == request


def test_system_messages_are_apart_wherever_they_stood() -> None:
    request = to_google(SYSTEM_IN_THE_MIDDLE)
    assert request["system_instruction"] == {"parts": [{"text": "be kind"}, {"text": "be brief"}]}
    assert [content["role"] for content in request["contents"]] == ["user", "model", "user"]
    assert "system_instruction" not in to_google([Message.user("hi")])


def test_responses_of_one_turn_are_one_content_and_images_follow_them() -> None:
    wire = contents(
        Message.user("hi"),
        Message.assistant("let me see", (CALL, SECOND)),
        Message.tool_result(CALL, "sunny"),
        Message.tool_result(SECOND, (TextPart("a photo"), ImagePart("image/png", "QUJD")), is_error=True),
        Message.user("and?"),
    )
    assert wire == [
        HI,
        {
            "role": "model",
            "parts": [
                {"text": "let me see"},
                {"function_call": {"id": "call_1", "name": "weather", "args": {"city": "Paris"}}},
                {"function_call": {"id": "call_2", "name": "camera", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"function_response": {"id": "call_1", "name": "weather", "response": {"output": "sunny"}}},
                {"function_response": {"id": "call_2", "name": "camera", "response": {"error": "a photo"}}},
            ],
        },
        {"role": "user", "parts": [{"text": "(images from the tool results above)"}, IMAGE, {"text": "and?"}]},
    ]


def test_a_response_has_the_name_of_its_call_even_if_the_result_lost_it() -> None:
    result = Message(Role.TOOL_RESULT, "sunny", tool_call_id="call_1")
    wire = contents(Message.user("hi"), Message.assistant("", (CALL,)), result)
    assert wire[2]["parts"][0]["function_response"]["name"] == "weather"


def test_two_replies_in_a_row_are_one_turn_of_the_model() -> None:  # a call may only follow a user's turn
    wire = contents(Message.user("hi"), Message.assistant("so"), Message.assistant("", (CALL,)))
    assert [content["role"] for content in wire] == ["user", "model"]
    assert len(wire[1]["parts"]) == 2


@pytest.mark.parametrize(
    ("name", "sent"), [("git commit", "git_commit"), ("9lives", "_9lives"), ("a.b:c", "a.b:c"), ("", "_")]
)
def test_names_are_made_to_fit_for_call_and_response_alike(name: str, sent: str) -> None:
    call = ToolCall("1", name)
    wire = contents(Message.user("hi"), Message.assistant("", (call,)), Message.tool_result(call, "x"))
    assert wire[1]["parts"][0]["function_call"]["name"] == sent
    assert wire[2]["parts"][0]["function_response"]["name"] == sent


def test_thoughts_and_signatures_stay_verbatim_at_their_places() -> None:
    wire = {
        "role": "model",
        "parts": [
            {"text": "hm", "thought": True, "thought_signature": "QQ=="},
            {"function_call": {"id": "1", "name": "x", "args": {}}, "thought_signature": "Qg=="},
            {"text": "and", "thought": True},
            {"text": "", "thought_signature": "Qw=="},
            {"executable_code": {"code": "1", "language": "PYTHON"}},
            {"function_call": {"id": "2", "name": "x", "args": {"a": None}}},
        ],
    }
    (message,) = from_google([wire])
    assert message.content[0] == ThinkingPart("hm", "QQ==", extra={"google": {}})
    assert contents(message) == [wire]
    assert contents(decode_message(encode_message(message))) == [wire]


@pytest.mark.parametrize(
    "thinking", [ThinkingPart("x"), ThinkingPart("x", "s"), ThinkingPart("x", "s", extra={"openai-items": {}})]
)
def test_thinking_of_others_is_left_out(thinking: ThinkingPart) -> None:
    wire = contents(Message.user("hi"), Message.assistant((thinking, TextPart("yes"))))
    assert wire[1]["parts"] == [{"text": "yes"}]


def test_only_the_first_of_parallel_calls_gets_a_stand_in_for_its_signature() -> None:
    reply = Message.assistant("", (CALL, SECOND))
    wire = to_google([Message.user("hi"), reply], stand_in=SKIP_VALIDATION)["contents"]
    assert [part.get("thought_signature") for part in wire[1]["parts"]] == [SKIP_VALIDATION, None]


def test_a_message_with_nothing_to_show_is_stood_in_for() -> None:
    wire = contents(Message.user((OtherPart({"type": "foreign"}),)), Message.assistant("x"), Message.user(""))
    assert [content["parts"][0]["text"] for content in wire] == [NOTHING_TO_SHOW, "x", NOTHING_TO_SHOW]


# --- both ways -------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=10).map("x{}".format)
ids = st.uuids().map(lambda value: value.hex)
signed = st.just("c2ln")
text_parts = st.fixed_dictionaries({"text": texts}, optional={"thought_signature": signed})
shown = st.sampled_from(
    [
        IMAGE,
        {"inline_data": {"mime_type": "image/png", "data": "QUJD", "display_name": "a.png"}},
        {"inline_data": {"mime_type": "audio/ogg", "data": "QUJD"}},
        {
            "file_data": {"mime_type": "image/png", "file_uri": "gs://x/a.png"},
            "media_resolution": {"level": "MEDIA_RESOLUTION_LOW"},
        },
        {"file_data": {"mime_type": "video/mp4", "file_uri": "gs://x"}, "video_metadata": {"fps": 2.0}},
    ]
)
made = st.sampled_from(
    [
        {"text": "hm", "thought": True},
        {"executable_code": {"code": "1", "language": "PYTHON"}},
        {"code_execution_result": {"outcome": "OUTCOME_OK", "output": "1"}},
        {"inline_data": {"mime_type": "image/png", "data": "QUJD"}, "thought_signature": "c2ln"},
    ]
)
responses = st.sampled_from(
    [{"output": "x"}, {"error": "no"}, {}, {"result": [1, {"a": None}]}, {"output": {"a": 1}}, {"output": "x", "n": 1}]
)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What a client of the service holds: roles in turn, responses right behind their calls."""
    wire: list[dict[str, Any]] = [{"role": "user", "parts": draw(st.lists(text_parts | shown, min_size=1, max_size=3))}]
    for _ in range(draw(st.integers(0, 3))):
        has_ids = draw(st.booleans())
        arguments = draw(st.lists(st.sampled_from([{}, {"a": [1, None]}]), max_size=3))
        calls = [{"name": "run", "args": args} | ({"id": draw(ids)} if has_ids else {}) for args in arguments]
        parts: list[Any] = [
            {"function_call": call, **draw(st.sampled_from([{}, {"thought_signature": "c2ln"}]))} for call in calls
        ]
        parts = draw(st.permutations([*parts, *draw(st.lists(made | text_parts, max_size=2))]))
        wire.append({"role": "model", "parts": [*parts, draw(text_parts)]})
        answers: list[dict[str, Any]] = []
        for part in (part for part in parts if "function_call" in part):
            named = {name: value for name, value in part["function_call"].items() if name != "args"}
            inside: dict[str, Any] = draw(st.sampled_from([{}, {"parts": [IMAGE]}, {"scheduling": "SILENT"}]))
            answers.append({"function_response": {**named, "response": draw(responses), **inside}})
        if answers:
            wire.append({"role": "user", "parts": answers})
        if not answers or draw(st.booleans()):
            wire.append({"role": "user", "parts": [draw(text_parts)]})
    return wire


def camel(value: Any) -> Any:
    """The same content as the REST API has it: camelCase, but for what is the functions' own."""
    if isinstance(value, list):
        return [camel(item) for item in value]
    if not isinstance(value, dict):
        return value
    head_and_tail = {name: name.split("_") for name in value}
    names = {name: words[0] + "".join(map(str.title, words[1:])) for name, words in head_and_tail.items()}
    return {names[name]: item if name in ("args", "response") else camel(item) for name, item in value.items()}


@given(conversations())
def test_what_the_service_was_sent_goes_back_unchanged(wire: list[dict[str, Any]]) -> None:
    messages = from_google(wire)
    assert contents(*messages) == wire
    assert contents(*[decode_message(encode_message(message)) for message in messages]) == wire
    assert contents(*build_context(messages)) == wire


@given(conversations())
def test_camel_case_and_the_sdks_own_dumps_say_the_same(wire: list[dict[str, Any]]) -> None:
    messages = from_google(wire)
    assert from_google(camel(wire)) == messages
    dumped = [types.Content.model_validate(content).model_dump() for content in wire]
    parsed = [types.Content.model_validate(content).model_dump(exclude_none=True) for content in wire]
    assert [message.text for message in from_google(dumped)] == [message.text for message in messages]
    again = [types.Content.model_validate(content) for content in contents(*from_google(dumped))]
    assert [content.model_dump(exclude_none=True) for content in again] == parsed


def test_text_and_inline_data_become_parts_in_both_spellings() -> None:  # document 003, section 5.2
    snake = [{"parts": [{"text": "see"}, IMAGE]}]
    rest = [{"parts": [{"text": "see"}, {"inlineData": {"mimeType": "image/png", "data": "QUJD"}}]}]
    for wire in (snake, rest):
        (message,) = from_google(wire)
        assert message == Message.user((TextPart("see"), ImagePart("image/png", "QUJD")))


def test_a_response_without_an_id_answers_the_first_waiting_call_of_its_name() -> None:
    calls: list[dict[str, Any]] = [{"function_call": {"name": name, "args": {}}} for name in ("a", "b", "a")]
    answers = [{"function_response": {"name": name, "response": {"output": name}}} for name in ("b", "a", "a")]
    messages = from_google([{"role": "model", "parts": calls}, {"role": "user", "parts": answers}])
    assert [call.id for call in messages[0].tool_calls or ()] == ["a-1", "b-2", "a-3"]
    assert [message.tool_call_id for message in messages[1:]] == ["b-2", "a-1", "a-3"]


def test_a_reply_is_read_with_its_usage() -> None:
    reply = types.GenerateContentResponse.model_validate(
        {
            "candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}, "finish_reason": "STOP"}],
            "model_version": "gemini-x",
            "usage_metadata": {
                "prompt_token_count": 10,
                "cached_content_token_count": 4,
                "candidates_token_count": 3,
                "thoughts_token_count": 2,
                "total_token_count": 15,
            },
        }
    )
    for wire in (reply.model_dump(mode="json"), reply.model_dump(mode="json", by_alias=True, exclude_none=True)):
        (message,) = from_google_reply(wire)
        assert (message.text, message.model, message.stop_reason) == ("hi", "gemini-x", "STOP")
        assert message.usage == Usage(6, 5, 4, total_tokens=15)
        assert message.usage.total == 15
    assert from_google_reply({"candidates": []}) == []


@pytest.mark.parametrize(
    "wire",
    [
        {"role": "critic", "parts": []},
        {"role": "user", "parts": "hi"},
        {"role": "user", "content": "hi"},
        {"role": "user", "parts": [7]},
        {"role": "model", "parts": [{"function_call": {"name": 7}}]},
        {"role": "model", "parts": [{"functionCall": {"name": "x", "args": "{}"}}]},
        {"role": "user", "parts": [{"function_response": {"name": "x", "response": "text"}}]},
    ],
)
def test_what_is_not_a_content_is_refused(wire: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage):
        from_google([wire])


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", ["system_instruction", "systemInstruction"])
def test_a_request_is_imported_and_exported_with_its_other_fields(system: str) -> None:
    document = {"model": "gemini-x", system: {"parts": [{"text": "be kind"}]}, "contents": [HI]}
    assert GOOGLE.recognize(Sample(document=document))
    found = read(GOOGLE, [document])
    assert [message.role for message in found.messages] == [Role.SYSTEM, Role.USER]
    assert orjson.loads(dumped(GOOGLE, found.messages, found.facts)) == {
        "model": "gemini-x",
        "system_instruction": {"parts": [{"text": "be kind"}]},
        "contents": [HI],
    }


# --- the checker -----------------------------------------------------------------------------------------------------

USE = {"role": "model", "parts": [{"function_call": {"name": "x", "args": {}}}]}
ANSWER = {"function_response": {"name": "x", "response": {}}}


@pytest.mark.parametrize(
    "wire",
    [
        [],
        [USE],
        [HI, USE],
        [HI, USE, HI],
        [HI, USE, {"role": "user", "parts": [ANSWER, ANSWER]}],
        [HI, USE, {"role": "user", "parts": [ANSWER, {"text": "x"}]}],
        [HI, USE, {"role": "user", "parts": [{"function_response": {"name": "y", "response": {}}}]}],
        [{"role": "user", "parts": [ANSWER]}],
        [{"role": "user", "parts": []}],
        [{"role": "user", "parts": [{"text": ""}]}],
        [{"role": "user", "parts": [{"text": "x", "inline_data": {}}]}],
        [HI, {"role": "model", "parts": [{"text": "x"}]}, USE, {"role": "user", "parts": [ANSWER]}],
    ],
)
def test_the_checker_finds_what_the_service_refuses(wire: list[Any]) -> None:
    assert rejects_google({"contents": wire})


def test_the_checker_wants_signatures_only_of_the_current_turn() -> None:
    turn = [HI, USE, {"role": "user", "parts": [ANSWER]}]
    assert rejects_google({"contents": turn}) == []
    assert rejects_google({"contents": turn}, signatures_required=True)
    assert rejects_google({"contents": [*turn, HI]}, signatures_required=True) == []
