"""Content and tool calls as callers and JSON give them, made into our values.

What is clear is taken, also in the spelling of other interfaces (OpenAI's, Anthropic's, MCP's). A part of a known type
that lacks what it needs, or has a field that no such part has, would never reach a model: it is refused, with a
sentence on what to write. What is read from files is not checked that way (`part_from`, `call_from`): it is kept as it
came.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from miniclaw_sessions.core.protocol.json_values import check_json, gather
from miniclaw_sessions.core.protocol.parts import (
    PARTS,
    ImagePart,
    OtherPart,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    known_role,
)
from miniclaw_sessions.errors import InvalidMessage

DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
"""An address that holds the data itself, and its media type."""

_FIELDS = {
    kind.__struct_config__.tag: ("type", *kind.__struct_encode_fields__[:-1])
    for kind in (TextPart, ImagePart, ThinkingPart)
}
"""The fields of each of our parts, without `extra`."""

_MEDIA_TYPE = ("mime_type", "mimeType", "mimetype", "mediaType", "content_type", "contentType")
"""Other names of an image's `media_type`."""

_OF_OTHERS = frozenset(
    # further fields of OpenAI's, Anthropic's and MCP's parts: kept in `extra`, and sent to these services again
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
"""What to write in place of a part that has a known type and lacks what the type needs."""

KNOWN_PARTS: dict[str, type[TextPart | ImagePart | ThinkingPart]] = {
    "text": TextPart,
    "image": ImagePart,
    "thinking": ThinkingPart,
}
"""Our parts, by the type that their JSON states."""


def part_from(part: Any) -> Part:
    """A content part from JSON. A string becomes a text part; a part of an unknown type is kept as it came.

    Raises:
        InvalidMessage: it is neither a string nor an object, or lacks what its type needs.
    """
    if isinstance(part, str):
        return TextPart(part)
    if not isinstance(part, dict):
        raise InvalidMessage("a content part must be an object with a type")
    kind = part.get("type")
    known = KNOWN_PARTS.get(kind) if isinstance(kind, str) else None
    if known is None:
        return OtherPart(check_json(part))
    return gather(known, {name: value for name, value in part.items() if name != "type"})


def call_from(call: Any) -> ToolCall:
    """A tool call from JSON, also in the nested spelling of OpenAI.

    Raises:
        InvalidMessage: it is not a tool call.
    """
    if not isinstance(call, dict):
        raise InvalidMessage("a tool call must be an object with id, name and arguments")
    fields = dict(call)
    if isinstance(function := fields.get("function"), dict) and "name" not in fields:  # OpenAI's nested spelling
        fields["name"], fields["arguments"] = function.get("name"), function.get("arguments")
        fields["function"] = {name: value for name, value in function.items() if name not in ("name", "arguments")}
        if not fields["function"]:
            del fields["function"]
        if fields.get("type") == "function":
            del fields["type"]
    if not isinstance(fields.get("arguments"), str | None):  # some programs store an object; its text is made once
        fields["arguments"] = msgspec.json.encode(check_json(fields["arguments"])).decode()
    return gather(ToolCall, fields)


def role_named(text: Any) -> Role:
    """The role that a text names, also by an alias.

    Raises:
        InvalidMessage: no role has this name.
    """
    role = known_role(text)
    if role is None:
        raise InvalidMessage(f"there is no role {text!r}: a message's role is one of {_ROLES}")
    return role


def is_tuple_of(values: Any, kinds: tuple[type, ...]) -> bool:
    """Whether this is a tuple in which each value has one of these types."""
    return type(values) is tuple and all(type(value) in kinds for value in values)


def content_of(content: Any) -> str | tuple[Part, ...]:
    """A message's content as our values.

    Raises:
        InvalidMessage: it is no text and no list, or a part of a known type lacks what it needs.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list | tuple):
        raise InvalidMessage(f"a message's content is a text or a list of parts, such as [{_TEXT}]; write one of these")
    return tuple(_part_of(part) for part in content)


def _part_of(part: Any) -> Part:
    if isinstance(part, Mapping):
        return part_from(_with_known_fields(_in_our_words(dict(part))))
    if isinstance(part, str):
        return TextPart(part)
    if type(part) not in PARTS:
        raise InvalidMessage(f"a content part cannot be a {type(part).__name__}: write {_TEXT}, or {_IMAGE}")
    return part  # type: ignore[no-any-return]


def _in_our_words(part: dict[str, Any]) -> dict[str, Any]:  # noqa: PLR0911 - one for each spelling
    """A part in the spelling of our own parts; a part of another type stays as it is.

    Raises:
        InvalidMessage: it lacks what its type needs.
    """
    if part.get("type") == "image" and not part.get("media_type"):
        name = next((name for name in _MEDIA_TYPE if isinstance(part.get(name), str)), "media_type")
        kind = part.pop(name, None)
        part = {**part, "media_type": kind} if kind else part
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


def _with_known_fields(part: dict[str, Any]) -> dict[str, Any]:
    """The part, if each of its fields belongs to its type or another interface, or is an object of its sender.

    Raises:
        InvalidMessage: it has another field. No reader would look at it, so it may be a mistake.
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


def calls_of(calls: Any) -> tuple[ToolCall, ...]:
    """A message's tool calls as our values.

    Raises:
        InvalidMessage: it is no list, or an element is no tool call.
    """
    if not isinstance(calls, list | tuple):
        raise InvalidMessage("a message's tool_calls are a tuple of ToolCall; write one, or None")
    return tuple(call if type(call) is ToolCall else call_from(call) for call in calls)
