"""The events of an answer as documents: what a stream of events sends, and what the command line shows."""

from __future__ import annotations

from typing import Any

import msgspec

from miniclaw_sessions.agent.events import (
    AgentEvent,
    MessageAccepted,
    ReplyFinished,
    SessionCompacted,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStopped,
    TurnSuspended,
)
from miniclaw_sessions.agent.provider import TextDelta
from miniclaw_sessions.api.messages import message_document
from miniclaw_sessions.api.sessions import usage_reply
from miniclaw_sessions.protocol.messages import Usage

Document = dict[str, Any]


def event_document(event: AgentEvent) -> tuple[str, Document]:  # noqa: PLR0911 - one for each kind of event
    """An event of a turn and its data.

    Its names: accepted, text, tool_started, tool_finished, usage, compacted; at the end suspended, stopped or done.
    """
    match event:
        case MessageAccepted(entry=entry):
            return "accepted", {"entry_id": entry.id}
        case TextDelta(text=text):
            return "text", {"text": text}
        case ToolStarted(call=call):
            return "tool_started", {"id": call.id, "name": call.name, "arguments": call.arguments}
        case ToolFinished(call=call):
            return "tool_finished", {"id": call.id, "name": call.name, "is_error": event.is_error}
        case ReplyFinished(message=message):
            return "usage", {"usage": _usage_document(message.usage or Usage()), "model": message.model}
        case SessionCompacted(outcome=outcome):
            return "compacted", {"status": outcome.status.value, "detail": outcome.detail}
        case TurnSuspended(pending=pending, usage=usage):
            waiting = [{"id": one.call.id, "name": one.call.name, "reason": one.reason} for one in pending]
            return "suspended", {"pending": waiting, "usage": _usage_document(usage)}
        case TurnStopped(message=message, usage=usage):
            return "stopped", {"message": message_document(message), "usage": _usage_document(usage)}
        case TurnFinished(message=message, usage=usage):
            return "done", {"message": message_document(message), "usage": _usage_document(usage)}


def _usage_document(usage: Usage) -> Document:
    document: Document = msgspec.to_builtins(usage_reply(usage))
    return document
