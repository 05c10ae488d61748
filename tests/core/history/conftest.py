"""A real session of another program as canonical messages, and random histories."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from miniclaw_sessions.core.protocol.messages import Message, Part, Role, TextPart, ThinkingPart, ToolCall

_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "toolResult": Role.TOOL_RESULT}


@pytest.fixture(scope="session")
def large_session() -> list[Message]:
    """The 914 messages of a coding session of November 2025: interrupted calls, empty replies and all."""
    file = Path(__file__).parents[2] / "data" / "pi-v1-large-session.jsonl"
    lines = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    return [_message(line["message"]) for line in lines if line["type"] == "message"]


def _message(fields: dict[str, Any]) -> Message:
    return Message(
        role=_ROLES[fields["role"]],
        content=tuple(part for part in map(_part, fields["content"]) if part is not None),
        timestamp=datetime.fromtimestamp(fields["timestamp"] / 1000, UTC),
        tool_calls=tuple(_call(part) for part in fields["content"] if part["type"] == "toolCall") or None,
        tool_call_id=fields.get("toolCallId"),
        name=fields.get("toolName"),
        is_error=fields.get("isError", False),
        stop_reason=fields.get("stopReason"),
    )


def _part(fields: dict[str, Any]) -> Part | None:
    match fields["type"]:
        case "text":
            return TextPart(fields["text"])
        case "thinking":
            return ThinkingPart(fields["thinking"], fields.get("thinkingSignature"))
        case _:
            return None


def _call(fields: dict[str, Any]) -> ToolCall:
    partial = {"partialJson": fields["partialJson"]} if "partialJson" in fields else None
    return ToolCall(fields["id"], fields["name"], orjson.dumps(fields["arguments"]).decode(), extra=partial)
