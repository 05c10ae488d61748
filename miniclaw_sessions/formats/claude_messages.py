"""The messages within Claude Code's transcript lines, which have the shape of Anthropic's Messages API.

Tool calls become the assistant's calls, their input as JSON text; tool results become messages of their own. A content
block that has no canonical part is kept as it came, and so is every field without a place, under
`extra["claude-code"]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from miniclaw_sessions.protocol.messages import (
    ImagePart,
    Message,
    OtherPart,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    Usage,
)

KEPT = "claude-code"
"""The key of `extra` under which fields without a canonical place are kept."""

_PART_TYPES = frozenset({"text", "image", "thinking"})
_TOKENS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_input_tokens": "cache_read_tokens",
    "cache_creation_input_tokens": "cache_write_tokens",
}
_encode = msgspec.json.Encoder(decimal_format="number").encode


def read_content(content: Any) -> str | tuple[Part, ...]:
    """Content as text or parts; what is neither is kept as a part of our own."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return tuple(read_part(block) for block in (content if isinstance(content, list) else [content]))


def read_part(block: Any) -> Part:  # noqa: PLR0911 - one return for each type of block
    """One content block."""
    match block:
        case str():
            return TextPart(block)
        case {"type": "text", "text": str(text)}:
            return TextPart(text, extra=_extra(block, ("type", "text")))
        case {"type": "thinking", "thinking": str(text), "signature": str() | None as signature}:
            return ThinkingPart(text, signature, extra=_extra(block, ("type", "thinking", "signature")))
        case {"type": "redacted_thinking", "data": str(data)}:
            return ThinkingPart("", data, redacted=True, extra=_extra(block, ("type", "data")))
        case {"type": "image", "source": {"type": "base64", "media_type": str(media_type), "data": str(data)}}:
            return ImagePart(media_type, data, extra=_extra(block, ("type", "source")))
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return ImagePart(url=url, extra=_extra(block, ("type", "source")))
        case {"type": str(kind)} if kind not in _PART_TYPES:
            return OtherPart(block)
        case _:
            return OtherPart({"type": KEPT, "block": block})


def read_call(block: Any) -> ToolCall | None:
    """The tool call that a block is; None if it is none."""
    match block:
        case {"type": "tool_use", "id": str(call_id), "name": str(name), **rest}:
            arguments = _encode(rest["input"]).decode() if "input" in rest else ""
            return ToolCall(call_id, name, arguments, extra=_extra(block, ("type", "id", "name", "input")))
        case _:
            return None


def is_result(block: Any) -> bool:
    """Whether a block of a user's message is a tool's result."""
    return isinstance(block, dict) and block.get("type") == "tool_result"


def read_result(block: Mapping[str, Any]) -> Message:
    """A tool's result as a message; without an id it answers by its place."""
    call_id = block.get("tool_use_id")
    return Message(
        Role.TOOL_RESULT,
        read_content(block.get("content")),
        tool_call_id=call_id if isinstance(call_id, str) and call_id else None,
        is_error=block.get("is_error") is True,
        extra=_extra(block, ("type", "tool_use_id", "content", "is_error")),
    )


def read_usage(usage: Any) -> Usage | None:
    """What a reply cost; None if nothing is said of it."""
    if not isinstance(usage, dict):
        return None
    counts = {
        ours: count
        for theirs, ours in _TOKENS.items()
        if isinstance(count := usage.get(theirs), int) and not isinstance(count, bool)
    }
    known = [theirs for theirs, ours in _TOKENS.items() if ours in counts or usage.get(theirs) is None]
    return Usage(**counts, extra=_extra(usage, known))


def _extra(block: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any] | None:
    """The fields that have no place, and a value."""
    kept = {name: value for name, value in block.items() if name not in known and value is not None}
    return {KEPT: kept} if kept else None


def as_text(blocks: str | Sequence[Part]) -> str:
    """The text of content, its parts on lines of their own."""
    return blocks if isinstance(blocks, str) else "\n".join(_texts(blocks))


def _texts(parts: Iterable[Part]) -> Iterable[str]:
    return (part.text for part in parts if isinstance(part, TextPart))
