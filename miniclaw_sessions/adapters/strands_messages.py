"""The messages of Strands Agents, which are those of Amazon Bedrock's Converse API, from and to canonical ones.

Bytes are base64 here, as Strands itself writes them into files. A message with tool results becomes one message for
each of them. A content block that others could not read is kept verbatim and comes back at its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from miniclaw_sessions.adapters.verbatim import kept_verbatim, verbatim
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
from miniclaw_sessions.files.formats.codec import has_kept, in_order, kept_fields, plain, taken_apart
from miniclaw_sessions.files.formats.message_list import NOTHING_TO_SHOW
from miniclaw_sessions.files.formats.tool_calls import arguments_object, arguments_text

KEPT = "strands"
"""The key of `extra` under which fields without a canonical place are kept."""

BLOCK = "strands_block"
"""The type of a part that is a content block without a canonical form, kept verbatim."""

_BYTES = "__bytes_encoded__"  # how Strands marks bytes in JSON


# --- from Strands ----------------------------------------------------------------------------------------------------


def from_strands(message: Mapping[str, Any]) -> list[Message]:
    """One message of Strands, its bytes encoded, as canonical ones; at least one.

    Raises:
        InvalidMessage: it is not JSON, or not a message.
    """
    blocks = message.get("content")
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise InvalidMessage('a message of Strands has a list of blocks as its "content"')
    if message.get("role") == "assistant":
        parts, calls = taken_apart([_read_block(block) for block in blocks])
        return [Message(Role.ASSISTANT, plain(parts), tool_calls=calls)]
    results = [_read_result(block["toolResult"]) for block in blocks if _is_result(block)]
    rest = [(block, _read_block(block)) for block in blocks if not _is_result(block)]
    said = tuple(_whole(block) if isinstance(piece, ToolCall) else piece for block, piece in rest)
    return [*results, Message(Role.USER, plain(said))] if said or not results else results


def _is_result(block: Mapping[str, Any]) -> bool:
    return isinstance(block.get("toolResult"), dict) and isinstance(block["toolResult"].get("toolUseId"), str)


def _read_block(block: dict[str, Any]) -> Part | ToolCall:
    match block:
        case {"text": str(text)} if len(block) == 1:
            return TextPart(text)
        case {"image": {"format": str(form), "source": {"bytes": {"__bytes_encoded__": True, "data": str(data)}}}}:
            return ImagePart(f"image/{form}", data)
        case {"reasoningContent": {"reasoningText": {"text": str(text), "signature": str(signature)}}}:
            return ThinkingPart(text, signature, extra={KEPT: {}})
        case {"reasoningContent": {"reasoningText": {"text": str(text)}}}:
            return ThinkingPart(text, extra={KEPT: {}})
        case {"toolUse": {"toolUseId": str(call_id), "name": str(name), "input": given, **rest}}:
            return ToolCall(call_id, name, arguments_text(given), extra={KEPT: rest} if rest else None)
        case _:
            return _whole(block)


def _whole(block: Any) -> OtherPart:
    return OtherPart({"type": BLOCK, **kept_verbatim({"block": block})})


def _read_result(result: Mapping[str, Any]) -> Message:
    content = result.get("content")
    parts: list[Part] = []
    for block in content if isinstance(content, list) else []:
        if isinstance(block, dict) and block.keys() == {"json"}:
            parts.append(TextPart(arguments_text(block["json"])))
            continue
        piece = _read_block(block) if isinstance(block, dict) else None
        parts.append(_whole(block) if piece is None or isinstance(piece, ToolCall) else piece)
    return Message(
        Role.TOOL_RESULT,
        plain(tuple(parts)),
        tool_call_id=result["toolUseId"],
        is_error=result.get("status") == "error",
    )


# --- to Strands ------------------------------------------------------------------------------------------------------


def to_strands(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """A legal history as messages of Strands, bytes encoded; results that follow each other are one message."""
    written: list[dict[str, Any]] = []
    answering = False
    for message in messages:
        if message.is_tool_result:
            if not answering:
                written.append({"role": "user", "content": []})
            written[-1]["content"].append(_write_result(message))
        else:
            role = "assistant" if message.is_assistant else "user"
            written.append({"role": role, "content": _write_blocks(in_order(message)) or [{"text": NOTHING_TO_SHOW}]})
        answering = message.is_tool_result
    return written


def _write_blocks(pieces: Sequence[Part | ToolCall]) -> list[dict[str, Any]]:
    return [block for piece in pieces if (block := _write_block(piece)) is not None]


def _write_block(piece: Part | ToolCall) -> dict[str, Any] | None:
    match piece:
        case TextPart(text=text):
            return {"text": text}
        case ImagePart(data=str(data)):
            form = piece.media_type.partition("/")[2] or "png"
            return {"image": {"format": form, "source": {"bytes": {_BYTES: True, "data": data}}}}
        case ThinkingPart(thinking=text, signature=signature) if has_kept(piece.extra, KEPT):
            signed = {} if signature is None else {"signature": signature}
            return {"reasoningContent": {"reasoningText": {"text": text, **signed}}}
        case ToolCall():
            rest = kept_fields(piece.extra, KEPT)
            given = arguments_object(piece.arguments)
            return {"toolUse": {"toolUseId": piece.id, "name": piece.name, "input": given, **rest}}
        case OtherPart(fields={"type": "strands_block"} as kept):
            block = (verbatim(kept) or {}).get("block")
            return block if isinstance(block, dict) else None
        case _:
            return None  # an image elsewhere, and another service's thinking


def _write_result(message: Message) -> dict[str, Any]:
    pieces: Sequence[Part] = (TextPart(message.content),) if isinstance(message.content, str) else message.content
    return {
        "toolResult": {
            "toolUseId": message.tool_call_id or "",
            "status": "error" if message.is_error else "success",
            "content": _write_blocks(pieces) or [{"text": ""}],
        }
    }
