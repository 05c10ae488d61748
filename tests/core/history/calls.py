"""Calls of a tool and their results, as messages."""

from __future__ import annotations

from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall


def calling(*ids: str, text: str = "") -> Message:
    """A reply that calls the tool `read` once for each id."""
    return Message.assistant(text, tuple(ToolCall(each, "read", "{}") for each in ids))


def result(call_id: str | None, content: str = "ok") -> Message:
    return Message(Role.TOOL_RESULT, content, tool_call_id=call_id, name="read")
