"""OpenAI's chat-completions messages, which most model servers speak, from and to canonical ones.

`to_openai` expects what `history.context.build_context` returns, and gives exactly what the service accepts: nested
function calls, results of role `tool`, images as `image_url` parts; ids, names and images of other services that it
would refuse are fitted. Thinking is left out, because the service refuses it, and so are the fields of other programs.
`from_openai` keeps every field that the canonical form has no place for under `extra["openai"]`, from where `to_openai`
writes it back; the `extra` of other formats is never sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from miniclaw_sessions.core.protocol.images import NOT_SHOWABLE, address_of, image_at, is_showable
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, OtherPart, Part, Role, TextPart, ToolCall
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.attached import Attached, attached
from miniclaw_sessions.files.formats.codec import (
    content_of,
    has_kept,
    keeping,
    kept_apart,
    kept_but,
    kept_fields,
    role_and_extra,
    without,
)
from miniclaw_sessions.files.formats.message_list import (
    IMAGES_OF_RESULTS,
    MessageList,
    OneByOne,
    Request,
    message_list_format,
)
from miniclaw_sessions.files.formats.tool_calls import fitting_id, fitting_name

KEPT = "openai"
"""The key of `extra` under which fields without a canonical place are kept."""

_ROLES = {Role.SYSTEM: "system", Role.USER: "user", Role.ASSISTANT: "assistant", Role.TOOL_RESULT: "tool"}
_ROLE_TEXTS = (*_ROLES.values(), "developer", "function")  # no set: what is no text cannot be looked up in one
_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")
_CALL_FIELDS = ("id", "type", "function")
_PARTS_OF_A_USER = ("input_audio", "file")  # parts that the service knows and we pass on as they are
_PART_TYPES = ("text", "image_url", "refusal", *_PARTS_OF_A_USER)
_FIELDS_OF_ANTHROPIC = frozenset({"system", "anthropic_version"})  # beside messages that could as well be ours
_NAME = re.compile(r"[^\s<|\\/>]{1,64}")  # the service refuses any other name, and with it the whole request
_CALL_ID = re.compile(r"[a-zA-Z0-9_.:-]{1,40}")  # OpenAI refuses longer ones; Kimi's servers make some with dots
_LONGEST_TOOL_NAME = 64


# --- writing ---------------------------------------------------------------------------------------------------------


def to_openai(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """A legal context as the `messages` of a chat-completions request.

    Images within tool results, where the service takes none, follow the results as a user's message. Instead of an
    image of a kind that it cannot show, a text says so.

    Args:
        messages: what `build_context` returns; other roles than its four are written as the user's.
    """
    return _Request().all_of(messages)


class _Request(Request):
    def __init__(self) -> None:
        self._images: list[ImagePart] = []

    def add(self, message: Message) -> list[dict[str, Any]]:
        written = [] if message.is_tool_result else self.end()
        if message.is_tool_result and not isinstance(message.content, str):
            self._images += [part for part in message.content if isinstance(part, ImagePart)]
        role = _ROLES.get(message.role, "user")
        if role == "system" and kept_fields(message.extra, KEPT).get("role") == "developer":
            role = "developer"
        fields: dict[str, Any] = {"role": role, "content": _write_content(message)}
        if message.is_tool_result:
            fields["tool_call_id"] = fitting_id(message.tool_call_id or "", _CALL_ID)
        elif message.name is not None and _NAME.fullmatch(message.name):
            fields["name"] = message.name
        if message.is_assistant and message.tool_calls:
            fields["content"] = fields["content"] or None
            fields["tool_calls"] = [
                {
                    **kept_fields(call.extra, KEPT),
                    "id": fitting_id(call.id, _CALL_ID),
                    "type": "function",
                    "function": {
                        "name": fitting_name(call.name, _LONGEST_TOOL_NAME),
                        "arguments": call.arguments if call.arguments.strip() else "{}",
                    },
                }
                for call in message.tool_calls
            ]
        return [*written, {**kept_but(message.extra, KEPT, *_FIELDS), **fields}]

    def end(self) -> list[dict[str, Any]]:
        images, self._images = self._images, []
        text = {"type": "text", "text": IMAGES_OF_RESULTS}
        return [{"role": "user", "content": [text, *map(_write_part, images)]}] if images else []


def _write_content(message: Message) -> str | list[dict[str, Any]]:
    """Text wherever it suffices, because every server understands it; parts only in a user's message."""
    if isinstance(message.content, str) or message.role in (Role.SYSTEM, Role.ASSISTANT, Role.TOOL_RESULT):
        return message.text
    parts = [written for part in message.content if (written := _write_part(part)) is not None]
    return "".join(part["text"] for part in parts) if all(part["type"] == "text" for part in parts) else parts


def _write_part(part: Part) -> dict[str, Any] | None:
    match part:
        case TextPart():
            return {**kept_fields(part.extra, KEPT), "type": "text", "text": part.text}
        case ImagePart():
            url = address_of(part)
            if not is_showable(url) and not has_kept(part.extra, KEPT):
                return {"type": "text", "text": NOT_SHOWABLE}
            return {"type": "image_url", "image_url": {**kept_fields(part.extra, KEPT), "url": url}}
        case OtherPart(fields=fields):
            if fields.get("type") == "input_audio" or (file := attached(part)) is None:
                return fields if fields.get("type") in _PARTS_OF_A_USER else None
            return _write_file(file)
        case _:
            return None


def _write_file(file: Attached) -> dict[str, Any]:
    if (kind := file.audio_format) is not None:
        return {"type": "input_audio", "input_audio": {"data": file.data, "format": kind}}
    return {"type": "file", "file": {"filename": file.name, "file_data": file.address}}


# --- reading ---------------------------------------------------------------------------------------------------------


def from_openai(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """The messages of a chat-completions request or reply as canonical ones.

    The role `developer` is a system message; our own roles and their aliases (`function`, `model`, ...) are what
    `Role` says. An unknown role becomes `Role.OTHER`.

    Raises:
        InvalidMessage: a message has no role, or one that could not be stored, or content or tool calls of a wrong
            shape.
    """
    return [_read(fields) for fields in messages]


def _read(fields: Mapping[str, Any]) -> Message:
    role_text = fields.get("role")
    if not isinstance(role_text, str) or role_text in ("", Role.OTHER):
        raise InvalidMessage('a chat-completions message needs a "role"')
    role, named = role_and_extra(role_text, {"developer": Role.SYSTEM})
    unknown = without(fields, *_FIELDS)
    if role_text == "developer":
        unknown["role"] = role_text
    calls = fields.get("tool_calls") or ()
    if not isinstance(calls, Sequence):
        raise InvalidMessage('"tool_calls" must be a list')
    content = fields.get("content")
    if not isinstance(content, Sequence | None):
        raise InvalidMessage('"content" must be text or a list of parts')
    return Message(
        role=role,
        content=content_of(content, _read_part),
        tool_calls=tuple(_read_call(call) for call in calls) or None,
        tool_call_id=_text_or_none(fields, "tool_call_id"),
        name=_text_or_none(fields, "name"),
        extra={**(keeping(unknown, KEPT) or {}), **named} or None,
    )


def _read_part(part: Any) -> Part:
    match part:
        case {"type": "text", "text": str(text), **unknown}:
            return TextPart(text, extra=keeping(unknown, KEPT))
        case {"type": "image_url", "image_url": {"url": str(url), **unknown}}:
            # one that is not showable was taken all the same: the mark says that it goes back as it came
            return image_at(url, keeping(unknown, KEPT) if is_showable(url) else {KEPT: unknown})
        case {"type": str()}:
            return OtherPart(dict(part))
        case _:
            raise InvalidMessage("a content part must be an object with a type")


def _read_call(call: Any) -> ToolCall:
    match call:
        case {"id": str(call_id), "function": {"name": str(name), "arguments": str(arguments)}, **unknown}:
            return ToolCall(call_id, name, arguments, extra=kept_apart(unknown, _CALL_FIELDS, KEPT))
        case _:
            raise InvalidMessage("a tool call must have an id and a function with name and arguments")


def _text_or_none(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidMessage(f'"{name}" must be text')
    return value


# --- files -----------------------------------------------------------------------------------------------------------


def _is_ours(found: MessageList) -> bool:
    """Whether all messages have this service's roles, and none has what only another service's messages have."""
    if found.header.keys() & _FIELDS_OF_ANTHROPIC:
        return False
    for fields in found.messages:
        content = fields.get("content")
        if "parts" in fields or not isinstance(content, str | list | None):
            return False
        if fields.get("role") not in _ROLE_TEXTS or fields.get("type", "message") != "message":
            return False
        parts = content if isinstance(content, list) else []
        if not all(isinstance(part, dict) and part.get("type") in _PART_TYPES for part in parts):
            return False
    return True


OPENAI_CHAT = message_list_format(
    name="openai",
    about="OpenAI chat completions, which most model servers speak: a list of messages or a request with one; times, "
    "thinking, and that a result is an error, are lost",
    fields=["messages"],
    is_ours=_is_ours,
    reader=lambda: OneByOne(lambda fields: [_read(fields)]),
    request=_Request,
)
