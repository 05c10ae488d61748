"""One of Dive's messages (`llm.Message`), from and to canonical ones.

Dive has Anthropic's typed content blocks, and puts the results of all calls of a reply into one message of the user.
Such a message is read as several, one for each result; they are joined again when they are written. What the canonical
form has no place for stands under `extra["dive"]`. Dive refuses a whole session for one block of a type that it does
not know, so other services' blocks are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.protocol.json_values import parse_json
from miniclaw_sessions.core.protocol.messages import Message, OtherPart, Part, Role, TextPart, ToolCall, Usage
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.blocks import COUNTS, read_block, written_part
from miniclaw_sessions.files.formats.codec import kept_apart, kept_fields, role_named, without
from miniclaw_sessions.files.formats.tool_calls import NOT_AN_OBJECT, arguments_text, in_order, in_pieces, taken_apart

KEPT = "dive"
"""The key of `extra` under which fields without a canonical place are kept.

It is also the type of a part that keeps a block of a form that is unknown here.
"""

_ROLES = {Role.USER: "user", Role.ASSISTANT: "assistant", Role.SYSTEM: "system", Role.OTHER: "user"}
_ALIASES = {"developer": Role.SYSTEM}
_BLOCKS = (
    *("document", "tool_use", "tool_result", "server_tool_use", "web_search_tool_result", "mcp_tool_use"),
    *("mcp_tool_result", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "refusal", "summary"),
    *("code_execution_tool_result", "bash_code_execution_tool_result", "text_editor_code_execution_tool_result"),
    "reminder",
)
"""The types of blocks that Dive knows, beside those that have a canonical place."""

_ALWAYS_COUNTED = ("input_tokens", "output_tokens")


# --- reading ---------------------------------------------------------------------------------------------------------


def read_message(fields: Any) -> list[Message]:
    """A message of Dive: one, or several where it answers several calls.

    Raises:
        InvalidMessage: it has no role, or content that is neither a list nor text.
    """
    if not isinstance(fields, dict) or not isinstance(role := fields.get("role"), str) or not role:
        raise InvalidMessage('a message must be an object with a "role"')
    blocks = fields.get("content")
    if isinstance(blocks, str):
        blocks = [{"type": "text", "text": blocks}] if blocks else []
    if not isinstance(blocks, list | None):
        raise InvalidMessage('"content" must be a list of blocks')
    unknown = without(fields, "role", "content")
    if blocks is None:
        unknown["content"] = None
    first, *further = in_pieces(blocks or [], _is_result) or [[]]
    message = _read_piece(role, first, {"message": unknown} if unknown else {})
    return [message, *(_read_piece(role, piece, {"piece": True}) for piece in further)]


def _is_result(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result" and isinstance(block.get("tool_use_id"), str)


def _read_piece(role_text: str, blocks: list[Any], kept: dict[str, Any]) -> Message:
    if blocks and _is_result(blocks[0]):
        return _read_result(blocks[0], {**kept, "role": role_text})
    role = role_named(role_text, _ALIASES)
    if _ROLES.get(role) != role_text:
        kept = {**kept, "role": role_text}
    extra: dict[str, Any] = {KEPT: kept} if kept else {}
    if role is Role.OTHER and role_text != Role.OTHER:
        extra["role"] = role_text
    parts, calls = taken_apart(map(_read_block, blocks))
    content: str | tuple[Part, ...] = parts
    if not parts:
        content = ""
    elif len(parts) == 1 and isinstance(parts[0], TextPart) and parts[0].text and parts[0].extra is None:
        content = parts[0].text
    return Message(role, content, tool_calls=calls, extra=extra or None)


def _read_block(block: Any) -> Part | ToolCall:
    piece = read_block(block, KEPT)
    if piece is None or (isinstance(piece, OtherPart) and piece.fields["type"] not in _BLOCKS):
        return OtherPart({"type": KEPT, "block": block})
    return piece


def _read_result(block: dict[str, Any], kept: dict[str, Any]) -> Message:
    rest = without(block, "type", "tool_use_id", "content", "is_error")
    content = _read_result_content(block.get("content"))
    if content is None:  # any JSON may stand there
        rest |= {"content": block["content"]} if "content" in block else {}
        content = _as_text(block.get("content"))
    if (is_error := block.get("is_error")) is not True and "is_error" in block:
        rest["is_error"] = is_error
    if rest:
        kept = {**kept, "result": rest}
    return Message(
        Role.TOOL_RESULT, content, tool_call_id=block["tool_use_id"], is_error=is_error is True, extra={KEPT: kept}
    )


def _as_text(content: Any) -> str:
    return "" if content is None else arguments_text(content)


def _read_result_content(content: Any) -> str | tuple[Part, ...] | None:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    pieces = [_read_block(block) for block in content]
    if any(isinstance(piece, ToolCall) or (isinstance(piece, OtherPart) and KEPT in piece.fields) for piece in pieces):
        return None
    return tuple(piece for piece in pieces if not isinstance(piece, ToolCall))


# --- writing ---------------------------------------------------------------------------------------------------------


def written_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Canonical messages as Dive has them: results that follow each other in one message.

    A message of a role that Dive does not know is the user's, who tells it as `history.context` would; nothing is
    written for one that tells nothing. A result that does not say which call it answers is the user's text.
    """
    written: list[dict[str, Any]] = []
    follows_result = False
    for message in messages:
        for told in _told(message):
            fields = _written(told)
            kept = kept_fields(told.extra, KEPT)
            is_piece = kept.get("piece") is True or (told.is_tool_result and follows_result and not kept)
            if is_piece and written and written[-1]["role"] == fields["role"]:
                written[-1]["content"] = [*(written[-1]["content"] or ()), *fields["content"]]
            else:
                written.append(fields)
            follows_result = told.is_tool_result
    return written


def _told(message: Message) -> Iterable[Message]:
    if message.role in _ROLES or message.is_tool_result or kept_fields(message.extra, KEPT):
        return (message,)
    return build_context([Message.user("?"), message])[1:]


def _written(message: Message) -> dict[str, Any]:
    kept = kept_fields(message.extra, KEPT)
    role = kept.get("role")
    if not isinstance(role, str) or not (message.is_tool_result or role_named(role, _ALIASES) is message.role):
        role = _ROLES.get(message.role, "user")
    if message.is_tool_result and message.tool_calls and not kept:
        blocks = [_written_output(message, call) for call in message.tool_calls]
    elif message.is_tool_result and message.tool_call_id is not None:
        blocks = [_written_result(message, message.tool_call_id)]
    else:
        blocks = _written_blocks(in_order(message))
    theirs = kept_fields(kept, "message")
    was_null = not blocks and "content" in theirs
    return {**theirs, "role": role, "content": None if was_null else blocks}


def _written_output(message: Message, call: ToolCall) -> dict[str, Any]:
    """A result that is kept with its call (document 002)."""
    content = message.content if call.output is None else call.output
    return _written_result(msgspec.structs.replace(message, content=content), call.id)


def _written_result(message: Message, call_id: str) -> dict[str, Any]:
    rest = kept_fields(kept_fields(message.extra, KEPT), "result")
    content = message.content if isinstance(message.content, str) else _written_blocks(message.content)
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id, "content": content}
    if message.is_error:
        result["is_error"] = True
    elif "is_error" in rest and rest["is_error"] is not True:
        result["is_error"] = rest["is_error"]
    if "content" in rest and _as_text(rest["content"]) == message.content:
        result["content"] = rest["content"]
    return {**without(rest, "is_error", "content"), **result}


def _written_blocks(pieces: Iterable[Part | ToolCall]) -> list[Any]:
    return [block for piece in pieces for block in _written_block(piece)]


def _written_block(piece: Part | ToolCall) -> Iterable[Any]:
    """A part or a call as a block; none for what Dive would refuse."""
    if isinstance(piece, OtherPart):
        if piece.fields.get("type") == KEPT and "block" in piece.fields:
            return (piece.fields["block"],)
        return (piece.fields,) if piece.fields.get("type") in _BLOCKS else ()
    if isinstance(piece, ToolCall):
        call = {"type": "tool_use", "id": piece.id, "name": piece.name, "input": _input(piece.arguments)}
        return ({**kept_fields(piece.extra, KEPT), **call},)
    block = written_part(piece, KEPT)
    return () if block is None else (block,)


def _input(arguments: str) -> Any:
    """A call's arguments as Dive has them, which is any JSON; what is none becomes an object that holds its text."""
    if not arguments.strip():
        return {}
    try:
        return parse_json(arguments.encode())
    except (InvalidMessage, UnicodeEncodeError):
        return {NOT_AN_OBJECT: arguments}


# --- usage -----------------------------------------------------------------------------------------------------------


def read_usage(fields: Any) -> Usage | None:
    """A turn's usage; None for what is none."""
    if not isinstance(fields, dict):
        return None
    counts = {ours: fields.get(theirs, 0) for theirs, ours in COUNTS.items()}
    if not all(type(number) is int for number in counts.values()):
        return None
    total = fields["cost"].get("total") if isinstance(fields.get("cost"), dict) else None
    cost = float(total) if isinstance(total, int | float) and not isinstance(total, bool) else None
    written = [name for name in COUNTS if name in _ALWAYS_COUNTED or fields.get(name)]  # else a zero is kept
    return Usage(**counts, cost=cost, extra=kept_apart(fields, written, KEPT))


def written_usage(usages: Sequence[Usage]) -> dict[str, Any]:
    """What the messages of a turn cost together; empty if that is not known."""
    if not usages:
        return {}
    kept = kept_fields(usages[0].extra, KEPT) if len(usages) == 1 else {}
    both = sum(usages, Usage())
    sums = {theirs: getattr(both, ours) for theirs, ours in COUNTS.items()}
    counts = {name: number for name, number in sums.items() if number or name in _ALWAYS_COUNTED}
    costs = [usage.cost for usage in usages if usage.cost is not None]
    cost = {"cost": {"total": sum(costs), "breakdown_unavailable": True}} if costs else {}
    return {**cost, **kept, **counts}
