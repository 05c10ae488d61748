"""Chat-completions messages survive the way through the canonical form, and canonical ones come out acceptable."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam
from pydantic import TypeAdapter

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
from miniclaw_sessions.files.formats.openai_chat import OPENAI_CHAT, from_openai, to_openai
from tests.files.formats.codec_files import read
from tests.files.formats.legal_contexts import (
    everything_consumed,
    legal_contexts,
    rejects_openai,
)

CALL = ToolCall("call_1", "weather", '{"city":  "Paris"}')
MESSAGE_TYPE: TypeAdapter[Any] = TypeAdapter(ChatCompletionMessageParam)

# --- both ways -------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=20)
names = st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True)
urls = st.one_of(names.map("https://example.org/{}".format), names.map("data:image/png;base64,{}".format))
wire_parts = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": texts}),
    st.fixed_dictionaries(
        {
            "type": st.just("image_url"),
            "image_url": st.fixed_dictionaries({"url": urls}, optional={"detail": st.sampled_from(["low", "high"])}),
        }
    ),
    st.just({"type": "file", "file": {"file_id": "file-1"}}),
)
wire_images = st.just({"type": "image_url", "image_url": {"url": "https://example.org/image.png"}})
wire_calls = st.fixed_dictionaries(
    {
        "id": names,
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": names, "arguments": st.sampled_from(["{}", '{"a": 1}', '{"a":'])}),
    },
    optional={"extra_content": st.just({"google": {"thought_signature": "c2lnbg=="}})},
)
wire_messages = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "developer"]), "content": texts}),
    st.fixed_dictionaries({"role": st.just("user"), "content": texts}, optional={"name": names}),
    st.fixed_dictionaries(
        {"role": st.just("user"), "content": st.builds(lambda a, b: [*a, b], st.lists(wire_parts), wire_images)}
    ),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": texts},
        optional={"refusal": st.none() | texts, "audio": st.just({"id": "audio_1"}), "name": names},
    ),
    st.fixed_dictionaries(
        {
            "role": st.just("assistant"),
            "content": st.none() | texts.filter(bool),
            "tool_calls": st.lists(wire_calls, min_size=1, max_size=3),
        }
    ),
    st.fixed_dictionaries({"role": st.just("tool"), "content": texts, "tool_call_id": names}),
)


@given(st.lists(wire_messages, max_size=6))
def test_what_the_service_sent_goes_back_unchanged(wire: list[dict[str, Any]]) -> None:
    messages = from_openai(wire)
    assert to_openai(messages) == wire
    assert to_openai([decode_message(encode_message(message)) for message in messages]) == wire


canonical_messages = st.one_of(
    st.builds(Message, role=st.just(Role.SYSTEM), content=texts),
    st.builds(Message, role=st.just(Role.USER), content=texts, name=st.none() | names),
    st.builds(
        Message,
        role=st.just(Role.USER),
        content=st.builds(
            lambda text, image: (text, image),
            st.builds(TextPart, texts),
            st.builds(ImagePart, media_type=st.just("image/png"), data=names)
            | st.builds(ImagePart, url=names.map("https://example.org/{}".format)),
        ),
    ),
    st.builds(
        Message,
        role=st.just(Role.ASSISTANT),
        content=texts,
        tool_calls=st.none()
        | st.lists(st.builds(ToolCall, names, names, st.just("{}")), min_size=1, max_size=3).map(tuple),
    ),
    st.builds(Message, role=st.just(Role.TOOL_RESULT), content=texts, tool_call_id=names),
)


@given(st.lists(canonical_messages, max_size=6))
def test_canonical_messages_come_back_as_they_were(messages: list[Message]) -> None:
    wire = orjson.loads(orjson.dumps(to_openai(messages)))
    assert from_openai(wire) == messages


# --- the exact wire form ---------------------------------------------------------------------------------------------


def test_calls_are_nested_and_their_arguments_verbatim() -> None:
    assert to_openai([Message.assistant("", (CALL,)), Message.tool_result(CALL, "sunny")]) == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":  "Paris"}'},
                }
            ],
        },
        {"role": "tool", "content": "sunny", "tool_call_id": "call_1"},
    ]


def test_a_call_without_arguments_is_sent_with_an_empty_object() -> None:
    (wire,) = to_openai([Message.assistant("", (ToolCall("call_1", "time"),))])
    assert wire["tool_calls"][0]["function"]["arguments"] == "{}"


def test_what_only_we_know_of_a_message_is_not_sent() -> None:
    message = Message(
        Role.ASSISTANT,
        "hi",
        model="m",
        usage=Usage(1, 2),
        stop_reason="stop",
        author="agent",
        extra={"api": "anthropic-messages", "textSignature": "x"},
    )
    assert to_openai([message]) == [{"role": "assistant", "content": "hi"}]


def test_thinking_and_unknown_parts_are_left_out() -> None:
    content = (ThinkingPart("hm"), TextPart("a"), OtherPart({"type": "document"}), TextPart("b"))
    assert to_openai([Message.assistant(content), Message.user(content)]) == [
        {"role": "assistant", "content": "ab"},
        {"role": "user", "content": "ab"},
    ]


def test_images_of_tool_results_follow_all_results_of_the_reply() -> None:
    second = ToolCall("call_2", "camera", "{}")
    image = ImagePart("image/jpeg", "QUJD")
    wire = to_openai(
        [
            Message.assistant("", (CALL, second)),
            Message.tool_result(CALL, (TextPart("one"), image)),
            Message.tool_result(second, (image,)),
            Message.assistant("done"),
        ]
    )
    assert [message["role"] for message in wire] == ["assistant", "tool", "tool", "user", "assistant"]
    assert [message["content"] for message in wire[1:3]] == ["one", ""]
    assert [part["type"] for part in wire[3]["content"]] == ["text", "image_url", "image_url"]
    assert wire[3]["content"][1]["image_url"]["url"] == "data:image/jpeg;base64,QUJD"


@pytest.mark.parametrize("call_id", ["call_1|fc_2", "x" * 41, "é", " "])
def test_an_id_of_another_service_that_would_be_refused_is_replaced_for_call_and_result_alike(call_id: str) -> None:
    call = ToolCall(call_id, "weather", "{}")
    asked, answered = to_openai([Message.assistant("", (call,)), Message.tool_result(call, "sunny")])
    written = asked["tool_calls"][0]["id"]
    assert re.fullmatch(r"call_[0-9a-f]{24}", written)
    assert answered["tool_call_id"] == written


def test_a_tools_name_that_would_be_refused_is_fitted() -> None:
    (wire,) = to_openai([Message.assistant("", (ToolCall("1", "default_api:run" + "x" * 64, "{}"),))])
    assert re.fullmatch(r"default_api_runx{49}", wire["tool_calls"][0]["function"]["name"])


@pytest.mark.parametrize(
    "image", [ImagePart("image/bmp", "QUJD"), ImagePart(), ImagePart(url="file:///a.png"), ImagePart(url="a.png")]
)
def test_a_text_stands_for_an_image_that_cannot_be_shown(image: ImagePart) -> None:
    (wire,) = to_openai([Message.user((TextPart("look: "), image))])
    assert wire == {"role": "user", "content": "look: (an image that cannot be shown here)"}


def test_an_image_that_a_server_took_goes_back_to_it() -> None:
    wire = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/bmp;base64,QUJD"}}]}]
    assert to_openai(from_openai(wire)) == wire


@pytest.mark.parametrize("name", ["Jane Doe", "a/b", "<x>", "", "x" * 65])
def test_a_name_that_the_service_refuses_is_left_out(name: str) -> None:
    assert to_openai([Message(Role.USER, "hi", name=name)]) == [{"role": "user", "content": "hi"}]


def test_a_developers_message_stays_one() -> None:
    wire = [{"role": "developer", "content": "be kind"}]
    (message,) = from_openai(wire)
    assert message.role is Role.SYSTEM
    assert to_openai([message]) == wire


def test_an_unknown_role_is_kept_and_written_as_the_users() -> None:
    (message,) = from_openai([{"role": "critic", "content": "no"}])
    assert (message.role, message.role_text) == (Role.OTHER, "critic")
    assert to_openai([message]) == [{"role": "user", "content": "no"}]


@pytest.mark.parametrize(
    "wire",
    [
        {"content": "no role"},
        {"role": "", "content": "x"},
        {"role": "other", "content": "x"},
        {"role": "user", "content": 7},
        {"role": "user", "content": [7]},
        {"role": "user", "content": "x", "name": 7},
        {"role": "assistant", "tool_calls": 7},
        {"role": "assistant", "tool_calls": [{"id": "call_1"}]},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "x", "arguments": {}}}]},
    ],
)
def test_what_is_not_a_chat_completions_message_is_refused(wire: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage):
        from_openai([wire])


# --- acceptable ------------------------------------------------------------------------------------------------------


@given(legal_contexts())
def test_every_legal_context_is_acceptable(context: list[Message]) -> None:
    wire = orjson.loads(orjson.dumps(to_openai(context)))
    assert rejects_openai(wire) == []
    for message in wire:
        assert everything_consumed(MESSAGE_TYPE.validate_python(message)) == message


USE = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "x", "arguments": ""}}]}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "y"}
HI = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    "wire",
    [
        [],
        [{"role": "critic", "content": "x"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": []}],
        [{**HI, "author": "x"}],
        [{**HI, "name": "a b"}],
        [HI, {"role": "assistant", "content": None}],
        [HI, RESULT],
        [HI, USE],
        [HI, USE, HI, RESULT],
        [HI, USE, RESULT, RESULT],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}]}],
    ],
)
def test_the_checker_finds_what_the_service_refuses(wire: list[Any]) -> None:
    assert rejects_openai(wire)


# --- files -----------------------------------------------------------------------------------------------------------


def test_every_role_can_be_stored_or_is_set_aside() -> None:
    roles = ["function", "critic", "tool_result", "model", "bashExecution", "", "other"]
    found = read(OPENAI_CHAT, [[{"role": role, "content": "x"} for role in roles]])
    assert [decode_message(encode_message(message)).role for message in found.messages] == [
        Role.TOOL_RESULT,
        Role.OTHER,
        Role.TOOL_RESULT,
        Role.ASSISTANT,
        Role.BASH_EXECUTION,
    ]
    assert [finding.line for finding in found.findings] == [6, 7]
