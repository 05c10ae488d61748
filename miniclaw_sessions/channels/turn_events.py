"""The events of an answer as JSON documents: for event streams, the command line, and followers of the session.

`api.events` describes the same documents for the interface's description; a test compares the two.
"""

from __future__ import annotations

from typing import Any

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
from miniclaw_sessions.channels.base import Answered, Last, NotAnswered
from miniclaw_sessions.core.events.listeners import TYPING, Topic, TurnEvent
from miniclaw_sessions.core.protocol.encoding import message_document
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Usage
from miniclaw_sessions.errors import snake_case

Document = dict[str, Any]


class TurnPublisher:
    """Publishes one answer to those who follow its session, or watch all sessions.

    Args:
        turns: the topic that the events go to.
        key: the session's key.
    """

    def __init__(self, turns: Topic[TurnEvent], key: SessionKey) -> None:
        self._turns = turns
        self._key = key
        self._has_begun = False

    def publish(self, event: AgentEvent) -> None:
        """Publish an event of the turn; its message is acknowledged before the first one."""
        if isinstance(event, MessageAccepted):
            self._has_begun = True
            self._publish(TYPING, {})
        self._publish(*event_document(event))

    def end(self, last: Last) -> None:
        """Publish how the answer ended, if it has begun."""
        if not self._has_begun:
            return
        if isinstance(last, Answered):
            self._publish(*event_document(last.event))
        elif isinstance(last, NotAnswered):
            failure = {"message": last.text, "type": snake_case(type(last.error).__name__)}
            self._publish("error", failure)

    def _publish(self, kind: str, data: Document) -> None:
        self._turns.publish(TurnEvent(self._key, kind, data))


def event_document(event: AgentEvent) -> tuple[str, Document]:  # noqa: PLR0911 - one for each kind of event
    """An event's name and its data.

    The names: accepted, text, tool_started, tool_finished, usage, compacted; at the end suspended, stopped or done.
    """
    match event:
        case MessageAccepted(entry=entry):
            return "accepted", {"entry_id": entry.id}
        case TextDelta(text=text):
            return "text", {"text": text}
        case ToolStarted(call=call):
            return "tool_started", {"id": call.id, "name": call.name, "arguments": call.arguments}
        case ToolFinished(call=call):
            return "tool_finished", {"id": call.id, "name": call.name, "is_error": event.result.is_error}
        case ReplyFinished(message=message):
            return "usage", {"usage": _usage_document(message.usage or Usage()), "model": message.model}
        case SessionCompacted(outcome=outcome):
            return "compacted", {"status": outcome.status.value, "detail": outcome.detail}
        case TurnSuspended(pending=pending, usage=usage):
            calls = [one.waiting.document_of(one.call) for one in pending]
            return "suspended", {"pending": calls, "usage": _usage_document(usage)}
        case TurnStopped(message=message, usage=usage):
            return "stopped", {"message": message_document(message), "usage": _usage_document(usage)}
        case TurnFinished(message=message, usage=usage):
            return "done", {"message": message_document(message), "usage": _usage_document(usage)}


def _usage_document(usage: Usage) -> Document:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "total_tokens": usage.total,
        "cost": usage.cost,
    }
