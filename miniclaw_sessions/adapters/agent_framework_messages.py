"""The messages of the Microsoft Agent Framework, from and to canonical ones.

A message with the results of several calls becomes one canonical message for each. A content that others could not read
is kept verbatim and comes back at its place.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from agent_framework import Message as FrameworkMessage

from miniclaw_sessions.adapters.verbatim import kept_verbatim, verbatim
from miniclaw_sessions.core.protocol.images import address_of, image_at
from miniclaw_sessions.core.protocol.messages import (
    ImagePart,
    Message,
    OtherPart,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
)
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.codec import (
    has_kept,
    in_order,
    in_pieces,
    kept_fields,
    plain,
    role_named,
    taken_apart,
)
from miniclaw_sessions.files.formats.histories import Shown, traced
from miniclaw_sessions.files.formats.tool_calls import arguments_object, arguments_text

KEPT = "agent_framework"
"""The key of `extra` under which fields without a canonical place are kept."""

CONTENT = "agent_framework_content"
"""The type of a part that is a content without a canonical form, kept verbatim."""

_GOES_ON = "goes_on"  # of a canonical message: it belongs to the message of the framework that the one before it begins
_KIND = "media_type"  # of an image by its address
_IS_OBJECT = "is_object"  # of a call: its arguments were no text
_CALL = "function_call"
_RESULT = "function_result"
_UNSAID: dict[str, Any] = {"additional_properties": {}}  # what the framework writes in every content
_ROLES = {"developer": Role.SYSTEM, "tool": Role.CUSTOM}  # a tool's message without a result


# --- from the framework ----------------------------------------------------------------------------------------------


def from_agent_framework(messages: Iterable[FrameworkMessage]) -> list[Message]:
    """The framework's messages as canonical ones.

    Raises:
        InvalidMessage: a message is not JSON.
    """
    return [piece for message in messages for piece in _read(message)]


def _read(message: FrameworkMessage) -> list[Message]:
    """One message as canonical ones; at least one."""
    fields = message.to_dict(exclude={"contents"})
    kept = kept_verbatim(fields)
    contents = [content.to_dict() for content in message.contents]  # the message's own `to_dict` drops what is not JSON
    read: list[Message] = []
    for piece in in_pieces(contents, _is_result) or [[]]:
        extra = {KEPT: {_GOES_ON: True} if read else kept}
        if piece and _is_result(piece[0]):
            read.append(_read_result(piece[0], extra))
        else:
            read.append(_read_said(fields, piece, extra))
    return read


def _is_result(content: Mapping[str, Any]) -> bool:
    return content["type"] == _RESULT and isinstance(content.get("call_id"), str)


def _read_said(fields: Mapping[str, Any], contents: Sequence[Any], extra: dict[str, Any]) -> Message:
    role, name = role_named(fields["role"], _ROLES), fields.get("author_name")
    if role is not Role.ASSISTANT:
        return Message(
            Role.CUSTOM if role is Role.OTHER else role, _content_of(_parts(contents)), name=name, extra=extra
        )
    said, calls = taken_apart(map(_content, contents))
    return Message(Role.ASSISTANT, _content_of(said), tool_calls=calls, author=name, extra=extra)


def _read_result(content: Mapping[str, Any], extra: dict[str, Any]) -> Message:
    items = content.get("items")
    message = Message(
        Role.TOOL_RESULT,
        plain(_parts(items)) if items else f"{content.get('result') or ''}",
        tool_call_id=content["call_id"],
        is_error=content.get("exception") is not None,
        extra=extra,
    )
    if _write_result(message) != content:
        extra[KEPT] = {**extra[KEPT], _RESULT: kept_verbatim(content)}
    return message


def _content_of(parts: tuple[Part, ...]) -> str | tuple[Part, ...]:
    """Parts as text where they are nothing else; an empty text stays a part, as no contents are another message."""
    return plain(parts) or parts or ""


def _parts(contents: Iterable[Mapping[str, Any]]) -> tuple[Part, ...]:
    """The contents of what is no reply: a call among them is none that anybody answers."""
    return tuple(_whole(one) if isinstance(piece := _content(one), ToolCall) else piece for one in contents)


def _content(content: Mapping[str, Any]) -> Part | ToolCall:
    """A content as a part, or a call, that gives it back exactly."""
    piece: Part | ToolCall
    match content:
        case {"type": "text", "text": str(text), **rest}:
            piece = TextPart(text, extra={KEPT: kept} if (kept := _rest(rest)) else None)
        case {"type": "text_reasoning", "text": str(text), **rest}:
            signature = rest.pop("protected_data", None)
            piece = ThinkingPart(text, signature, extra={KEPT: _rest(rest)})
        case {"type": "data" | "uri", "uri": str(address), "media_type": str(kind), **rest} if "image/" in kind:
            piece = image_at(address, {KEPT: {_KIND: kind, **_rest(rest)}})
        case {"type": "function_call", "call_id": str(call_id), "name": str(name), **rest}:
            given = rest.pop("arguments", None)
            kept = _rest(rest) if isinstance(given, str) else {_IS_OBJECT: True, **_rest(rest)}
            text = given if isinstance(given, str) else _text_of(given)
            piece = ToolCall(call_id, name, text, extra={KEPT: kept})
        case _:
            return _whole(content)
    if _written(piece) == content:
        return piece
    if isinstance(piece, ToolCall):
        return ToolCall(piece.id, piece.name, piece.arguments, extra={KEPT: {_CALL: kept_verbatim(content)}})
    return _whole(content)


def _text_of(arguments: Any) -> str:
    try:
        return "" if arguments is None else arguments_text(arguments)
    except (TypeError, ValueError) as error:
        raise InvalidMessage(f"the arguments of a call are not JSON: {error}") from None


def _rest(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields as they are kept, without what every content says."""
    said = {name: value for name, value in fields.items() if _UNSAID.get(name) != value}
    return kept_verbatim(said) if said else {}


def _whole(content: Mapping[str, Any]) -> OtherPart:
    return OtherPart({"type": CONTENT, **kept_verbatim(content)})


# --- to the framework ------------------------------------------------------------------------------------------------


def to_agent_framework(messages: Iterable[Message], *, open_calls: Container[str] = ()) -> list[FrameworkMessage]:
    """A history as the framework's messages: its own as they were, those of others made legal.

    Args:
        messages: the history.
        open_calls: the ids of calls at its end that are still being answered; besides them, those stay open that a
            person is asked to approve.
    """
    history = list(messages)
    asked = {call_id for message in history[-1:] for call_id in _asked_about(message)}
    waiting = {*asked, *_listed(open_calls, history)}
    return as_agent_framework(traced(history, KEPT, open_calls=waiting))


def as_agent_framework(history: Iterable[Shown]) -> list[FrameworkMessage]:
    """Messages as they were or as they are, each with what it was made from: nothing is made legal."""
    given: list[dict[str, Any]] = []
    for shown in history:
        kept = kept_fields(shown.message.extra, KEPT)
        if kept.get(_GOES_ON) is True and given and shown.source is not None:
            given[-1]["contents"] += _contents(shown)
        else:
            given.append({**_fields(shown.message), "contents": _contents(shown)})
    return [FrameworkMessage.from_dict(fields) for fields in given]


def _listed(open_calls: Container[str], history: Sequence[Message]) -> list[str]:
    return [call.id for message in history for call in message.tool_calls or () if call.id in open_calls]


def _asked_about(message: Message) -> list[str]:
    """The ids of the calls that a person is asked to approve by a message."""
    parts = [] if isinstance(message.content, str) else message.content
    kept = [verbatim(part.fields) or {} for part in parts if isinstance(part, OtherPart)]
    calls = [fields.get("function_call") for fields in kept if fields.get("type") == "function_approval_request"]
    return [call["call_id"] for call in calls if isinstance(call, dict) and isinstance(call.get("call_id"), str)]


def _fields(message: Message) -> dict[str, Any]:
    """The message but for its contents: as it was, or as it is."""
    kept = verbatim(kept_fields(message.extra, KEPT))
    if kept is not None:
        return kept
    role = {Role.SYSTEM: "system", Role.ASSISTANT: "assistant", Role.TOOL_RESULT: "tool"}.get(message.role, "user")
    name = message.author if message.is_assistant else message.name
    return {"role": role, **({"author_name": name} if name and not message.is_tool_result else {})}


def _contents(shown: Shown) -> list[dict[str, Any]]:
    message = shown.message
    if not message.is_tool_result:
        return [content for piece in in_order(message) if (content := _written(piece)) is not None]
    whole = verbatim(kept_fields(kept_fields(message.extra, KEPT), _RESULT)) if message is shown.source else None
    return [whole or _write_result(message)]


def _written(piece: Part | ToolCall) -> dict[str, Any] | None:
    """A piece as the content that it was, or says; None for what only its writer can use."""
    if isinstance(piece, OtherPart):
        return verbatim(piece.fields) if piece.fields.get("type") == CONTENT else None
    kept = kept_fields(piece.extra, KEPT)
    content: dict[str, Any] | None = None
    match piece:
        case TextPart(text=text):
            content = {"type": "text", "text": text}
        case ThinkingPart(thinking=text, signature=signature) if has_kept(piece.extra, KEPT):
            signed = {} if signature is None else {"protected_data": signature}
            content = {"type": "text_reasoning", "text": text, **signed}
        case ImagePart():
            kind = kept.get(_KIND) or piece.media_type or ("image/png" if piece.data else "image/*")
            content = {"type": "uri" if piece.data is None else "data", "uri": address_of(piece), _KIND: kind}
        case ToolCall(id=call_id, name=name, arguments=text):
            given = arguments_object(text) if kept.get(_IS_OBJECT) is True else text
            said = {"type": _CALL, "call_id": call_id, "name": name, "arguments": given}
            content = verbatim(kept_fields(kept, _CALL)) or said
    return None if content is None else {**_UNSAID, **content, **(verbatim(kept) or {})}


def _write_result(message: Message) -> dict[str, Any]:
    pieces: Sequence[Part] = (TextPart(message.content),) if isinstance(message.content, str) else message.content
    items = [content for piece in pieces if (content := _written(piece)) is not None]
    said = [item["text"] for item in items if item["type"] == "text" and item["text"]]
    failed = {"exception": "FunctionInvocationError"} if message.is_error else {}
    return {
        "type": _RESULT,
        "call_id": message.tool_call_id or "",
        "result": "\n".join(said),
        "items": items,
        **failed,
        **_UNSAID,
    }
