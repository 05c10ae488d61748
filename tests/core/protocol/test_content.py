"""What callers give as a message: what is meant without a doubt is taken, and what is not says what to write."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

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
    as_message,
)
from miniclaw_sessions.errors import InvalidMessage

PNG = ImagePart("image/png", "aGVsbG8=")
AT = ImagePart(url="https://example.org/a.png")
URL = "data:image/png;base64,aGVsbG8="


def made(*values: Any, **fields: Any) -> Message:
    """A message, made of what type checkers refuse."""
    return Message(*values, **fields)


# --- roles -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("system", Role.SYSTEM),
        ("user", Role.USER),
        ("assistant", Role.ASSISTANT),
        ("model", Role.ASSISTANT),
        ("tool", Role.TOOL_RESULT),
        ("tool_result", Role.TOOL_RESULT),
    ],
)
def test_a_role_as_text_is_that_role_from_the_moment_the_message_is_made(text: str, role: Role) -> None:
    for message in made(text, "hello"), made(role=text, content="hello"), made(text, "hello", name="x"):
        assert message.role is role
    assert made(text, "hello") == Message(role, "hello")


def test_messages_with_their_roles_as_text_give_the_same_context() -> None:
    said = [("system", "be kind"), ("user", "hello"), ("assistant", "hi")]
    assert build_context([made(*one) for one in said]) == build_context([Message(Role(r), text) for r, text in said])
    assert made("assistant", "hi").is_assistant


@pytest.mark.parametrize("role", ["narrator", "Assistant", "", None, 5, ["user"]], ids=repr)
def test_what_is_no_role_is_refused_with_the_roles_that_there_are(role: Any) -> None:
    with pytest.raises(InvalidMessage, match="system, user, assistant, tool_result"):
        made(role, "hello")


def test_messages_are_copied_compared_and_read_as_ever() -> None:
    message = Message.assistant((TextPart("x"), PNG), (ToolCall("1", "f", "{}"),))
    assert copy.deepcopy(message) == pickle.loads(pickle.dumps(message)) == message
    assert decode_message(encode_message(message)) == message
    assert msgspec.structs.replace(message, content="x").content == "x"
    with pytest.raises(TypeError, match="role"):
        Message()  # type: ignore[call-arg]


# --- parts -----------------------------------------------------------------------------------------------------------

SPELLINGS: list[tuple[Any, Any]] = [
    ({"type": "text", "text": "hello"}, TextPart("hello")),
    ({"type": "input_text", "text": "hello"}, TextPart("hello")),
    ({"type": "output_text", "text": "hello", "annotations": []}, TextPart("hello", extra={"annotations": []})),
    ("hello", TextPart("hello")),
    ({"type": "image_url", "image_url": {"url": URL}}, PNG),
    ({"type": "image_url", "image_url": URL}, PNG),
    ({"type": "input_image", "image_url": URL}, PNG),
    ({"type": "image_url", "image_url": {"url": AT.url}}, AT),
    (
        {"type": "image_url", "image_url": {"url": AT.url, "detail": "low"}},
        ImagePart(url=AT.url, extra={"detail": "low"}),
    ),
    ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}, PNG),
    ({"type": "image", "source": {"type": "url", "url": AT.url}}, AT),
    ({"type": "image", "mimeType": "image/png", "data": "aGVsbG8="}, PNG),
    ({"type": "image", "mime_type": "image/png", "data": "aGVsbG8="}, PNG),
    *(
        ({"type": "image", name: "image/png", "data": "aGVsbG8="}, PNG)
        for name in ("media_type", "mediaType", "mimetype", "content_type", "contentType")
    ),
    (
        {"type": "image", "mime_type": "image/png", "url": "https://example.org/a.png"},
        ImagePart("image/png", url="https://example.org/a.png"),
    ),
    (
        {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}},
        TextPart("hello", extra={"cache_control": {"type": "ephemeral"}}),
    ),
    (
        {"type": "text", "text": "hello", "my_program": {"colour": "red"}},
        TextPart("hello", extra={"my_program": {"colour": "red"}}),
    ),
    ({"type": "image", "url": AT.url}, AT),
    ({"type": "thinking", "thinking": "hm"}, ThinkingPart("hm")),
    ({"type": "video", "seconds": 3}, OtherPart({"type": "video", "seconds": 3})),
    (TextPart("hello"), TextPart("hello")),
]


@pytest.mark.parametrize(("given", "part"), SPELLINGS, ids=repr)
def test_a_part_is_understood_in_the_spelling_of_any_interface(given: Any, part: Any) -> None:
    assert made(Role.USER, [given]).content == (part,)
    assert Message.user((given,)) == Message.user((part,))
    if isinstance(given, dict | str):
        assert as_message({"role": "user", "content": [given]}).content == (part,)
    assert decode_message(encode_message(Message.user((given,)))).content == (part,)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([{"type": "text", "content": "hello"}], '"text": '),
        ([{"type": "input_text"}], '"type": "text"'),
        ([{"type": "image_url", "image_url": {"file": "a.png"}}], '"image_url": {"url": '),
        ([{"type": "input_image", "file_id": "f"}], '"image_url": "https'),
        ([{"type": "image", "path": "a.png"}], '"media_type": "image/png", "data"'),
        ([{"type": "image", "source": {"type": "file", "file_id": "f"}}], '"media_type"'),
        ([5], '"type": "text"'),
        ({"type": "text", "text": "hello"}, "list of parts"),
        (5, "list of parts"),
    ],
    ids=repr,
)
def test_what_no_model_would_be_shown_is_refused_with_what_to_write(content: Any, says: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        as_message({"role": "user", "content": content})
    assert says in str(refused.value)
    with pytest.raises(InvalidMessage) as refused:
        Message.user(content)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"type": "text", "text": "hello", "colour": "red"}, "part of type 'text' has no field 'colour': write "),
        ({"type": "image", "media_type": "image/png", "data": "aGk=", "dat": "aGk="}, "has no field 'dat', but 'data'"),
        ({"type": "image", "kind": "image/png", "data": "aGk="}, "of type 'image' has no field 'kind'"),
        ({"type": "image", "data": "aGk="}, '"media_type": "image/png"'),
        ({"type": "image", "data": "aGk=", "mime_type": 5}, "has no field 'mime_type'"),
        ({"type": "image", "url": "https://x/a.png", "alt": "a picture"}, "has no field 'alt'"),
        ({"type": "thinking", "thinking": "hm", "depth": 3}, "of type 'thinking' has no field 'depth'"),
        ({"type": "input_text", "text": "hello", "colour": "red"}, "has no field 'colour'"),
        ({"type": "text", "text": "hello", "x" * 500: 1}, "has no field 'xxx"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_field_that_a_part_has_not_is_refused_by_its_name(part: dict[str, Any], says: str) -> None:
    """It was accepted in silence, and the picture shown to nobody."""
    given: list[Callable[[], Message]] = [
        lambda: as_message({"role": "user", "content": [part]}),
        lambda: made(Role.USER, [part]),
    ]
    for make in given:
        with pytest.raises(InvalidMessage) as refused:
            make()
        assert says in str(refused.value)
        assert len(str(refused.value)) < 400


def test_no_content_is_an_empty_text() -> None:
    assert made("assistant", None).content == as_message({"role": "assistant", "content": None}).content == ""


def test_calls_and_usage_as_dicts_are_those() -> None:
    nested: Any = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    plain: Any = {"id": "1", "name": "f", "arguments": "{}"}
    calls = (ToolCall("1", "f", "{}"),)
    given: Any
    for given in [nested], (nested,), [plain], calls:
        assert Message.assistant("", given).tool_calls == calls
    usage: Any = {"input_tokens": 2, "service": "x"}
    assert made("assistant", "x", usage=usage).usage == Usage(2, extra={"service": "x"})
    for wrong in (5, [5], "f"):
        with pytest.raises(InvalidMessage, match="call"):
            made("assistant", "x", tool_calls=wrong)


def test_what_is_read_from_a_file_is_kept_as_it_came() -> None:
    encoded = b'{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://example.org/a.png"}}]}'
    message = decode_message(encoded)
    assert isinstance(message.content[0], OtherPart)
    assert encode_message(message) == encoded
