"""LlamaIndex' messages, from and to canonical ones: one for one.

A block that others could not read is kept verbatim and comes back at its place.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

import msgspec
from llama_index.core.llms import ChatMessage
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from miniclaw_sessions.adapters.verbatim import kept_verbatim, verbatim
from miniclaw_sessions.core.protocol.json_values import parse_json
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
from miniclaw_sessions.files.formats.codec import has_kept, in_order, kept_fields, plain, role_named, taken_apart
from miniclaw_sessions.files.formats.histories import traced
from miniclaw_sessions.files.formats.tool_calls import arguments_object, arguments_text

KEPT = "llama_index"
"""The key of `extra` under which fields without a canonical place are kept."""

BLOCK = "llama_index_block"
"""The type of a part that is a block without a canonical form, kept verbatim."""

_CALL = "tool_call"
_IS_TEXT = "is_text"  # of a call: its arguments were no object
_IN_FIELDS = "in_fields"  # of a call: it stands in `additional_kwargs`, as older models' classes put it
_ID = "tool_call_id"
_ROLES = {"developer": Role.SYSTEM, "chatbot": Role.ASSISTANT}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "image": {"image": None, "path": None, "url": None, "image_mimetype": None, "detail": None},
    "thinking": {"num_tokens": None, "additional_information": {}},
}


# --- from LlamaIndex -------------------------------------------------------------------------------------------------


def from_llama_index(messages: Iterable[ChatMessage]) -> list[Message]:
    """LlamaIndex' messages as canonical ones.

    Raises:
        InvalidMessage: a message is not JSON.
    """
    return [_read(message) for message in messages]


def _read(message: ChatMessage) -> Message:
    try:
        fields = dict(parse_json(message.model_dump_json().encode()))
    except (PydanticSerializationError, UnicodeEncodeError, ValueError) as error:
        raise InvalidMessage(f"a message of LlamaIndex is not JSON; {type(error).__name__}") from None
    blocks, more = fields.pop("blocks"), fields["additional_kwargs"]
    role = role_named(fields["role"], _ROLES)
    extra = {KEPT: kept_verbatim(fields)}
    if role is Role.ASSISTANT:
        parts, calls = taken_apart(map(_read_block, blocks))
        said = calls or tuple(_calls_in(more)) or None
        return Message(role, _content_of(parts), tool_calls=said, extra=extra)
    content = _content_of(tuple(_whole(one) if isinstance(it := _read_block(one), ToolCall) else it for one in blocks))
    if role is Role.TOOL_RESULT and isinstance(more.get(_ID), str):
        name = more.get("name")
        named = name if isinstance(name, str) else None
        return Message(role, content, tool_call_id=more[_ID], name=named, extra=extra)
    return Message(role if role in (Role.USER, Role.SYSTEM) else Role.CUSTOM, content, extra=extra)


def _content_of(parts: tuple[Part, ...]) -> str | tuple[Part, ...]:
    """Parts as text where they are nothing else; an empty text stays a part, as no blocks are another message."""
    return plain(parts) or parts or ""


def _read_block(block: Mapping[str, Any]) -> Part | ToolCall:
    """A block as a part, or a call, that gives it back exactly."""
    piece: Part | ToolCall
    match block:
        case {"block_type": "text", "text": str(text)}:
            piece = TextPart(text)
        case {"block_type": "image", "image": str(data), "image_mimetype": str(kind)}:
            piece = ImagePart(kind, data, extra=_rest(block, "image", "image_mimetype"))
        case {"block_type": "image", "url": str(url), "image": None}:
            piece = ImagePart(block["image_mimetype"] or "", url=url, extra=_rest(block, "url", "image_mimetype"))
        case {"block_type": "thinking", "content": str(text)}:
            piece = ThinkingPart(text, extra=_rest(block, "content") or {KEPT: {}})
        case {"block_type": "tool_call", "tool_name": str(name), "tool_kwargs": given}:
            is_text = isinstance(given, str)
            kept = {_IS_TEXT: True} if is_text else {}
            piece = ToolCall(block[_ID] or "", name, given if is_text else arguments_text(given), extra={KEPT: kept})
        case _:
            return _whole(block)
    if _written(piece) == block:
        return piece
    if isinstance(piece, ToolCall):
        return msgspec.structs.replace(piece, extra={KEPT: {_CALL: kept_verbatim(block)}})
    return _whole(block)


def _whole(block: Mapping[str, Any]) -> OtherPart:
    return OtherPart({"type": BLOCK, **kept_verbatim(block)})


def _rest(block: Mapping[str, Any], *known: str) -> dict[str, Any] | None:
    """The fields of a block that have no canonical place and no default, as an `extra`."""
    usual = _DEFAULTS[block["block_type"]]
    said = {name: value for name, value in block.items() if name not in (*known, "block_type")}
    said = {name: value for name, value in said.items() if name not in usual or usual[name] != value}
    return {KEPT: kept_verbatim(said)} if said else None


def _calls_in(fields: Mapping[str, Any]) -> Iterable[ToolCall]:
    """The calls that older classes of models put beside the blocks, in the form of OpenAI's chat completions."""
    listed = fields.get("tool_calls")
    for call in listed if isinstance(listed, list) else ():
        match call:
            case {"id": str(call_id), "function": {"name": str(name), "arguments": str(text)}}:
                yield ToolCall(call_id, name, text, extra={KEPT: {_IN_FIELDS: True}})


# --- to LlamaIndex ---------------------------------------------------------------------------------------------------


def to_llama_index(messages: Iterable[Message], *, open_calls: Container[str] = ()) -> list[ChatMessage]:
    """A history as LlamaIndex' messages: its own as they were, those of others made legal.

    Args:
        messages: the history.
        open_calls: the ids of calls at its end that are still being answered; no others are left open.
    """
    return [as_llama_index(message) for message, _ in traced(messages, KEPT, open_calls=open_calls)]


def as_llama_index(message: Message) -> ChatMessage:
    """One message, as it was or as it is: nothing is made legal."""
    kept = verbatim(kept_fields(message.extra, KEPT))
    fields = _plain(message) if kept is None else kept
    if message.is_tool_result:  # the id of a call that is not its own is another one here
        fields = {**fields, "additional_kwargs": {**fields["additional_kwargs"], _ID: message.tool_call_id or ""}}
    blocks = [block for piece in in_order(message) if (block := _written(piece)) is not None]
    try:
        return ChatMessage.model_validate({**fields, "blocks": blocks})
    except ValidationError:  # a block with a path whose file is gone, or of another version
        return ChatMessage(message.text, **_plain(message))


def _plain(message: Message) -> dict[str, Any]:
    roles = {Role.SYSTEM: "system", Role.ASSISTANT: "assistant", Role.TOOL_RESULT: "tool"}
    named = {"name": message.name} if message.is_tool_result and message.name else {}
    return {"role": roles.get(message.role, "user"), "additional_kwargs": named}


def _written(piece: Part | ToolCall) -> dict[str, Any] | None:
    """A piece as the block that it was, or says; None for what only its writer can use."""
    if isinstance(piece, OtherPart):
        return verbatim(piece.fields) if piece.fields.get("type") == BLOCK else None
    kept = kept_fields(piece.extra, KEPT)
    block: dict[str, Any] | None = None
    match piece:
        case TextPart(text=text):
            block = {"block_type": "text", "text": text}
        case ImagePart():
            where = {"url": piece.url} if piece.data is None else {"image": piece.data}
            block = {"block_type": "image", **_DEFAULTS["image"], **where, "image_mimetype": piece.media_type or None}
        case ThinkingPart(thinking=text) if has_kept(piece.extra, KEPT):
            block = {"block_type": "thinking", "content": text, **_DEFAULTS["thinking"]}
        case ToolCall() if kept.get(_IN_FIELDS) is not True:
            given = piece.arguments if kept.get(_IS_TEXT) is True else arguments_object(piece.arguments)
            said = {"block_type": _CALL, _ID: piece.id, "tool_name": piece.name, "tool_kwargs": given}
            block = verbatim(kept_fields(kept, _CALL)) or said
    return None if block is None else {**block, **(verbatim(kept) or {})}
