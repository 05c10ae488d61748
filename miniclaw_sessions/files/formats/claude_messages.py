"""The messages within Claude Code's transcript lines, which have the shape of Anthropic's Messages API.

Tool calls become the assistant's calls, their input as JSON text; tool results become messages of their own. A content
block that has no canonical part is kept as it came, and so is every field without a place, under
`extra["claude-code"]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from miniclaw_sessions.core.protocol.messages import Message, Part, Role, TextPart, ToolCall
from miniclaw_sessions.files.formats.blocks import read_block
from miniclaw_sessions.files.formats.codec import content_of, kept_apart, kept_whole, stated, text_of

KEPT = "claude-code"
"""The key of `extra` under which fields without a canonical place are kept."""


def read_content(content: Any) -> str | tuple[Part, ...]:
    """Content as text or parts; what is neither is kept as a part of our own."""
    return content_of(content, read_part)


def read_part(block: Any) -> Part:
    """One content block that is no call, or stands where none can be."""
    piece = read_piece(block)
    return kept_whole(block, KEPT, "block") if isinstance(piece, ToolCall) else piece


def read_piece(block: Any) -> Part | ToolCall:
    """One content block; what is not as its type has it is kept as it came."""
    if isinstance(block, str):
        return TextPart(block)
    fields = stated(block) if isinstance(block, dict) else {}
    piece = read_block({"input": {}, **fields} if fields.get("type") == "tool_use" else fields, KEPT)
    return kept_whole(block, KEPT, "block") if piece is None else piece


def is_result(block: Any) -> bool:
    """Whether a block of a user's message is a tool's result."""
    return isinstance(block, dict) and block.get("type") == "tool_result"


def read_result(block: Mapping[str, Any]) -> Message:
    """A tool's result as a message; without an id it answers by its place."""
    return Message(
        Role.TOOL_RESULT,
        read_content(block.get("content")),
        tool_call_id=text_of(block, "tool_use_id"),
        is_error=block.get("is_error") is True,
        extra=kept_apart(stated(block), ("type", "tool_use_id", "content", "is_error"), KEPT),
    )


def as_text(blocks: str | Sequence[Part]) -> str:
    """The text of content, its parts on lines of their own."""
    return blocks if isinstance(blocks, str) else "\n".join(part.text for part in blocks if isinstance(part, TextPart))
