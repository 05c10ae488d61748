"""Messages as callers give them: ours, with a role as text or with parts as dicts, or whole as a dict.

What is meant without a doubt is taken, also in the spelling of other interfaces (OpenAI's, Anthropic's, MCP's). What a
model would never be shown, because a part of a known type lacks what it needs or has a field that no such part has, is
refused with a word on what to write.
What is read from files does not come through here: that is kept as it came.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

import msgspec

from miniclaw_sessions.core.protocol.encoding import call_from, gather, in_utc, is_bare, message_from_dict, part_from
from miniclaw_sessions.core.protocol.messages import (
    PARTS,
    ImagePart,
    Message,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    Usage,
    construct,
)
from miniclaw_sessions.errors import InvalidMessage

DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
"""An address that holds what it is of: its type, and the data."""

_FIELDS = {
    kind.__struct_config__.tag: ("type", *kind.__struct_encode_fields__[:-1])
    for kind in (TextPart, ImagePart, ThinkingPart)
}
"""The fields of each of our parts, without what they keep of others."""

_MEDIA_TYPE = ("mime_type", "mimeType", "mimetype", "mediaType", "content_type", "contentType")
"""What an image's `media_type` is called elsewhere."""

_OF_OTHERS = frozenset(
    # what OpenAI's, Anthropic's and MCP's parts have beside what we understand: kept, and said to them again
    {"annotations", "logprobs", "detail", "cache_control", "citations", "_meta"}
)

_ROLES = ", ".join(role.value for role in (Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL_RESULT))
_TEXT = '{"type": "text", "text": "..."}'
_IMAGE = '{"type": "image", "media_type": "image/png", "data": "(base64)"}'
_FORMS = {
    "text": f"write {_TEXT}",
    "input_text": f"write {_TEXT}",
    "output_text": f"write {_TEXT}",
    "thinking": 'write {"type": "thinking", "thinking": "..."}',
    "image": f'write {_IMAGE}, or "url" in place of both',
    "image_url": f'write {{"type": "image_url", "image_url": {{"url": "https://..."}}}}, or {_IMAGE}',
    "input_image": f'write {{"type": "input_image", "image_url": "https://..."}}, or {_IMAGE}',
}
"""What to write for a part of each type that is understood, and is not understood as it came."""


def as_message(said: Message | Mapping[str, Any]) -> Message:
    """A message as callers give it: our own, or a dict such as `{"role": "user", "content": "hello"}`.

    A dict may be one of OpenAI's chat completions; a role in it that nobody knows is kept (`Role.OTHER`). In our own, a
    role that is a text becomes the role that it names, a part, a tool call or a usage that is a dict the value that it
    says, and empty `tool_calls` and `tool_call_id` become absent ones.

    Raises:
        InvalidMessage: it is neither, its role is none, one of its fields has a wrong type, or a part of a known type
            lacks what it needs.
    """
    if isinstance(said, Mapping):
        return message_of(said)
    if not isinstance(said, Message):
        raise InvalidMessage(
            f"a message cannot be a {type(said).__name__}: write Message.user(...), Message.assistant(...), or a dict "
            'with "role" and "content"'
        )
    changes: dict[str, Any] = {}
    usage: Any = said.usage
    if type(said.role) is not Role:
        changes["role"] = _role_named(said.role)
    if type(said.content) is not str and not _is_made(said.content, PARTS):
        changes["content"] = _content_of(said.content)
    if said.tool_calls is not None and not (said.tool_calls and _is_made(said.tool_calls, (ToolCall,))):
        changes["tool_calls"] = _calls_of(said.tool_calls) or None
    if isinstance(usage, Mapping):
        changes["usage"] = gather(Usage, dict(usage))
    if said.tool_call_id is not None and not said.tool_call_id:
        changes["tool_call_id"] = None
    if said.timestamp is not None and not isinstance(said.timestamp, datetime):
        raise InvalidMessage(f"a message's timestamp is a datetime, not a {type(said.timestamp).__name__}")
    return msgspec.structs.replace(said, **changes) if changes else said


def message_of(said: Mapping[str, Any]) -> Message:
    """A message from JSON that a client sends now.

    Raises:
        InvalidMessage: it has no role, a field has a wrong type, or a part of a known type lacks what it needs.
    """
    fields, content = dict(said), said.get("content")
    if content is None or isinstance(content, str):
        return message_from_dict(fields)
    return msgspec.structs.replace(message_from_dict({**fields, "content": ""}), content=_content_of(content))


def dated(said: Message | Mapping[str, Any], now: datetime) -> Message:
    """A message as callers give it (`as_message`), with a time in UTC: its own, or `now`.

    Raises:
        InvalidMessage: as for `as_message`.
    """
    if type(said) is Message and is_bare(said):  # the usual case, without looking at each field
        return construct(Message, said.role, said.content, now)
    message = as_message(said)
    if message.timestamp is None:
        return msgspec.structs.replace(message, timestamp=now)
    if message.timestamp.tzinfo is not UTC:
        return msgspec.structs.replace(message, timestamp=in_utc(message.timestamp))
    return message


def _role_named(text: Any) -> Role:
    try:
        return Role(text)
    except ValueError:
        raise InvalidMessage(f"there is no role {text!r}: a message's role is one of {_ROLES}") from None


def _is_made(values: Any, kinds: tuple[type, ...]) -> bool:
    return type(values) is tuple and all(type(value) in kinds for value in values)


def _content_of(content: Any) -> str | tuple[Part, ...]:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list | tuple):
        raise InvalidMessage(f"a message's content is a text or a list of parts, such as [{_TEXT}]; write one of these")
    return tuple(_part_of(part) for part in content)


def _part_of(part: Any) -> Part:
    if isinstance(part, Mapping):
        return part_from(_with_known_fields(_in_our_words(_with_media_type(dict(part)))))
    if isinstance(part, str):
        return TextPart(part)
    if type(part) not in PARTS:
        raise InvalidMessage(f"a content part cannot be a {type(part).__name__}: write {_TEXT}, or {_IMAGE}")
    return part  # type: ignore[no-any-return]


def _in_our_words(part: dict[str, Any]) -> dict[str, Any]:  # noqa: PLR0911 - one for each spelling
    """A part as our own parts are written; one of a type that is not ours stays as it is.

    Raises:
        InvalidMessage: it lacks what its type needs.
    """
    match part:
        case {"type": "text" | "input_text" | "output_text", "text": str()}:
            return {**part, "type": "text"}
        case {"type": "image_url", "image_url": {"url": str(url), **rest}, **more}:
            return _image_at(url, {**more, **rest})
        case {"type": "image_url" | "input_image", "image_url": str(url), **rest}:
            return _image_at(url, rest)
        case {"type": "image", "source": {"type": "base64", "media_type": str(kind), "data": str(data)}, **rest}:
            return _image(rest, media_type=kind, data=data)
        case {"type": "image", "source": {"type": "url", "url": str(url)}, **rest}:
            return _image(rest, url=url)
        case (
            {"type": "image", "data": str(), "media_type": str()}
            | {"type": "image", "url": str()}
            | {"type": "thinking", "thinking": str()}
        ):
            return part
        case {"type": str(kind)} if kind in _FORMS:
            _with_known_fields(part)  # or else it has what it needs, by another name
            raise InvalidMessage(f"this part of type {kind!r} lacks what it needs: {_FORMS[kind]}")
    return part


def _with_media_type(part: dict[str, Any]) -> dict[str, Any]:
    """The part; an image that says its type in another interface's word says it in ours."""
    if part.get("type") != "image" or part.get("media_type"):
        return part
    name = next((name for name in _MEDIA_TYPE if isinstance(part.get(name), str)), "media_type")
    kind = part.pop(name, None)
    return {**part, "media_type": kind} if kind else part


def _with_known_fields(part: dict[str, Any]) -> dict[str, Any]:
    """The part, all of whose fields are known: to its type, to other interfaces, or as an object of its sender's.

    Raises:
        InvalidMessage: it has another one, which nobody would ever look at; so it may be a mistake.
    """
    known = _FIELDS.get(str(part.get("type")))
    if known is None:
        return part
    for name, value in part.items():
        if name not in known and name not in _OF_OTHERS and not isinstance(value, Mapping):
            kind, near = part["type"], get_close_matches(str(name), known, 1)
            hint = f", but {near[0]!r}" if near else ""
            raise InvalidMessage(
                f"a part of type {kind!r} has no field {str(name)[:60]!r}{hint}: {_FORMS[kind]}; what is yours alone "
                "goes into an object under your program's name"
            )
    return part


def _image_at(url: str, rest: Mapping[Any, Any]) -> dict[str, Any]:
    inline = DATA_URL.fullmatch(url)
    return _image(rest, url=url) if inline is None else _image(rest, media_type=inline[1], data=inline[2])


def _image(rest: Mapping[Any, Any], **own: str) -> dict[str, Any]:
    return {**rest, "type": "image", **own}


def _calls_of(calls: Any) -> tuple[ToolCall, ...]:
    if not isinstance(calls, list | tuple):
        raise InvalidMessage("a message's tool_calls are a tuple of ToolCall; write one, or None")
    return tuple(call if type(call) is ToolCall else call_from(call) for call in calls)
