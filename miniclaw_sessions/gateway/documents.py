"""Sessions, messages and events as JSON documents: what the HTTP interface answers, and the command line prints."""

from __future__ import annotations

from typing import Any

import msgspec

from miniclaw_sessions.agent.loop import AgentEvent, ToolFinished, ToolStarted
from miniclaw_sessions.agent.provider import TextDelta
from miniclaw_sessions.protocol.encoding import message_to_dict
from miniclaw_sessions.protocol.entries import MessageEntry
from miniclaw_sessions.protocol.messages import Message, Usage
from miniclaw_sessions.session import Session

Document = dict[str, Any]


def session_document(session: Session) -> Document:
    """Everything about a session but its messages."""
    statistics = session.statistics()
    return {
        "session_id": session.session_id,
        "channel": session.channel,
        "chat_id": session.chat_id,
        "title": session.title,
        "agent_id": session.agent_id,
        "messages": statistics.messages,
        "window": statistics.window,
        "message_count": session.message_count,
        "event_count": session.event_count,
        "entries": session.last_sequence,
        "leaf_id": session.leaf_id,
        "usage": _usage_document(session.total_usage),
        "committed_sequence": session.committed_sequence,
        "dirty": statistics.dirty,
        "created_at": msgspec.to_builtins(session.created_at),
        "last_accessed": msgspec.to_builtins(session.last_accessed),
        "updated_at": msgspec.to_builtins(session.updated_at),
        "incarnation": session.incarnation,
        "metadata": dict(session.metadata),
    }


def message_document(message: Message) -> Document:
    """A message like its stored form, but with its content also where that is empty."""
    return {"content": "", **message_to_dict(message)}


def entry_document(entry: MessageEntry) -> Document:
    """A message with its entry's id and sequence, which win over fields of these names in the message."""
    return {**message_document(entry.message), "id": entry.id, "sequence": entry.sequence}


def event_document(event: AgentEvent) -> tuple[str, Document]:
    """An event of a turn: its name (text, tool_started, tool_finished or done) and its data."""
    if isinstance(event, TextDelta):
        return "text", {"text": event.text}
    if isinstance(event, ToolStarted):
        call = event.call
        return "tool_started", {"id": call.id, "name": call.name, "arguments": call.arguments}
    if isinstance(event, ToolFinished):
        return "tool_finished", {"id": event.call.id, "name": event.call.name, "is_error": event.is_error}
    return "done", {"message": message_document(event.message), "usage": _usage_document(event.usage)}


def _usage_document(usage: Usage) -> Document:
    fields = {name: getattr(usage, name) for name in usage.__struct_fields__ if name != "extra"}
    return {**fields, "total_tokens": usage.total}
