"""The canonical message: what documents 000 and 002 ask of roles, messages and tool calls."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

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

CALL = ToolCall("call_1", "read_file", '{"path":  "a.txt"}')


def as_json(message: Message) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(encode_message(message))
    return loaded


# --- roles -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "text"),
    [
        (Role.SYSTEM, "system"),
        (Role.USER, "user"),
        (Role.ASSISTANT, "assistant"),
        (Role.TOOL_RESULT, "tool_result"),
        (Role.BASH_EXECUTION, "bashExecution"),
        (Role.CUSTOM, "custom"),
        (Role.BRANCH_SUMMARY, "branchSummary"),
        (Role.COMPACTION_SUMMARY, "compactionSummary"),
        (Role.OTHER, "other"),
    ],
)
def test_every_role_is_written_as_its_text_and_read_as_the_enum(role: Role, text: str) -> None:
    encoded = encode_message(Message(role, "hello"))
    assert json.loads(encoded)["role"] == text
    assert decode_message(encoded).role is role


def test_the_json_of_a_user_message_contains_its_role_as_plain_text() -> None:
    assert b'"role":"user"' in encode_message(Message.user("hi"))


@pytest.mark.parametrize(
    ("alias", "role"),
    [
        ("tool", Role.TOOL_RESULT),
        ("function", Role.TOOL_RESULT),
        ("toolResult", Role.TOOL_RESULT),
        ("model", Role.ASSISTANT),
    ],
)
def test_the_other_programs_spellings_of_a_role_are_understood(alias: str, role: Role) -> None:
    encoded = json.dumps({"role": alias, "content": "x"}).encode()
    assert decode_message(encoded) == Message(role, "x")
    with_more = json.dumps({"role": alias, "content": "x", "unknown": 1}).encode()
    assert decode_message(with_more).role is role


@pytest.mark.parametrize("text", ["developer", "SYSTEM", "System", "system ", "s\u0443stem", "", "Other"])
def test_an_unknown_role_is_never_taken_for_a_known_one_and_keeps_its_text(text: str) -> None:
    encoded = json.dumps({"role": text, "content": "x"}).encode()
    if not text:
        with pytest.raises(InvalidMessage, match="role"):
            decode_message(encoded)
        return
    message = decode_message(encoded)
    assert (message.role, message.role_text) == (Role.OTHER, text)
    assert as_json(message) == {"role": text, "content": "x"}


def test_the_role_text_counts_for_an_unknown_role_only() -> None:
    assert Message(Role.USER, "x", extra={"role": "system"}).role_text is None
    with pytest.raises(InvalidMessage, match="'role'"):
        encode_message(Message(Role.USER, "x", extra={"role": "system"}))


# --- messages --------------------------------------------------------------------------------------------------------


def test_a_message_without_tool_data_has_no_tool_keys() -> None:
    assert as_json(Message.user("hi")) == {"role": "user", "content": "hi"}


def test_role_and_content_are_always_written() -> None:
    assert as_json(Message.assistant(tool_calls=(CALL,)))["content"] == ""
    assert as_json(Message(Role.OTHER)) == {"role": "other", "content": ""}


def test_a_tool_call_is_flat_and_its_arguments_stay_the_model_s_own_text() -> None:
    message = Message.assistant("", (CALL,))
    assert as_json(message)["tool_calls"] == [{"id": "call_1", "name": "read_file", "arguments": '{"path":  "a.txt"}'}]
    assert decode_message(encode_message(message)) == message


@pytest.mark.parametrize("arguments", ["", "{}", "{not json", '{"a": 1.0, "a": 2}', "\u2028", "9" * 400, "null"])
def test_arguments_are_never_parsed_and_written_again(arguments: str) -> None:
    message = Message.assistant("", (ToolCall("1", "f", arguments),))
    (call,) = decode_message(encode_message(message)).tool_calls or ()
    assert call.arguments == arguments


def test_a_tool_result_names_the_call_that_it_answers() -> None:
    result = Message.tool_result(CALL, '{"result": "..."}', is_error=True)
    assert as_json(result) == {
        "role": "tool_result",
        "content": '{"result": "..."}',
        "tool_call_id": "call_1",
        "name": "read_file",
        "is_error": True,
    }
    assert decode_message(encode_message(result)) == result
    assert "is_error" not in as_json(Message.tool_result(CALL, "fine"))


def test_the_output_that_a_source_keeps_on_the_call_survives_byte_for_byte() -> None:
    output = '{"b": 1,  "a": [1.50, "\\u00e9"]}'
    message = Message(Role.TOOL_RESULT, "", tool_calls=(ToolCall("fn_1", "search", "", output),), tool_call_id="fn_1")
    (call,) = decode_message(encode_message(message)).tool_calls or ()
    assert (call.id, call.name, call.output) == ("fn_1", "search", output)


def test_the_author_survives_and_is_left_out_when_absent() -> None:
    message = Message(Role.ASSISTANT, "x", author="lango-orchestrator")
    assert decode_message(encode_message(message)).author == "lango-orchestrator"
    assert "author" not in as_json(Message.assistant("x"))


def test_every_field_survives_a_round_trip() -> None:
    message = Message(
        Role.ASSISTANT,
        (
            TextPart("a"),
            ImagePart("image/png", "aGk="),
            ImagePart(url="https://x"),
            ThinkingPart("hm", "sig", redacted=True),
        ),
        timestamp=datetime(2026, 2, 14, 10, 30, 0, 123456, tzinfo=UTC),
        tool_calls=(CALL, ToolCall("2", "g", "{}", "out")),
        tool_call_id="t",
        name="n",
        is_error=True,
        author="a",
        model="m",
        usage=Usage(1, 2, 3, 4, 10, 0.25),
        stop_reason="end_turn",
    )
    assert decode_message(encode_message(message)) == message


def test_a_message_is_immutable_and_so_are_its_lists() -> None:
    message = Message.assistant((TextPart("a"),), (CALL,))
    with pytest.raises(AttributeError):
        message.content = "b"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        message.tool_calls[0].name = "g"  # type: ignore[index, misc]
    assert isinstance(message.tool_calls, tuple)
    assert isinstance(decode_message(encode_message(message)).tool_calls, tuple)
    assert isinstance(decode_message(encode_message(message)).content, tuple)


def test_the_helpers_say_who_speaks() -> None:
    assert Message.user("x").is_user
    assert Message.assistant("x").is_assistant
    assert Message.tool_result(CALL, "x").is_tool_result
    assert Message.system("x").role is Role.SYSTEM
    assert not Message.system("x").is_user


def test_an_assistant_that_calls_nothing_has_no_list_of_calls() -> None:
    assert Message.assistant("x", ()).tool_calls is None


def test_the_text_leaves_out_what_is_not_text() -> None:
    parts = (TextPart("a"), ThinkingPart("secret"), ImagePart(url="u"), OtherPart({"type": "audio"}), TextPart("b"))
    assert Message.user(parts).text == "ab"
    assert Message.user("plain").text == "plain"


def test_usage_adds_up_where_the_provider_gives_no_total() -> None:
    assert Usage(1, 2, 3, 4).total == 10
    assert Usage(1, 2, total_tokens=7).total == 7


# --- tool calls from elsewhere ---------------------------------------------------------------------------------------


def call_from(call: object) -> ToolCall:
    encoded = json.dumps({"role": "assistant", "content": None, "tool_calls": [call]}).encode()
    (decoded,) = decode_message(encoded).tool_calls or ()
    return decoded


def test_the_nested_spelling_of_a_call_becomes_flat() -> None:
    nested = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert call_from(nested) == ToolCall("1", "f", '{"a":1}')


def test_what_the_nested_spelling_holds_besides_is_kept() -> None:
    call = call_from({"id": "1", "type": "custom", "function": {"name": "f", "arguments": None, "strict": True}})
    assert call == ToolCall("1", "f", "", extra={"type": "custom", "function": {"strict": True}})


def test_arguments_given_as_an_object_become_text_once() -> None:
    assert call_from({"id": "1", "name": "f", "arguments": {"a": [1, 2]}}).arguments == '{"a":[1,2]}'
    assert call_from({"id": "1", "name": "f"}).arguments == ""
    assert call_from({"id": "1", "name": "f", "arguments": None}).arguments == ""


@pytest.mark.parametrize(
    "call",
    [
        {},
        {"id": "1"},
        {"name": "f"},
        {"id": 1, "name": "f"},
        {"id": None, "name": "f"},
        {"id": "1", "name": []},
        "f",
        5,
    ],
    ids=json.dumps,
)
def test_a_call_without_an_id_and_a_name_is_refused(call: object) -> None:
    with pytest.raises(InvalidMessage):
        call_from(call)


@pytest.mark.parametrize("calls", ["", "x", 0, 5, {}, {"id": "1"}, True, False], ids=json.dumps)
def test_tool_calls_that_are_no_list_are_refused(calls: object) -> None:
    with pytest.raises(InvalidMessage, match="tool_calls"):
        decode_message(json.dumps({"role": "assistant", "content": "", "tool_calls": calls}).encode())


def test_absent_null_and_empty_tool_calls_mean_none() -> None:
    for calls in ("null", "[]"):
        message = decode_message(b'{"role":"assistant","content":"x","tool_calls":%s,"more":1}' % calls.encode())
        assert not message.tool_calls
