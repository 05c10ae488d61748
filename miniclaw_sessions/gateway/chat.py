"""Chats of the HTTP interface: what is said there goes to the dispatcher, like what any channel hands over.

The events of an answer become documents here: what a stream of events sends, and what the command line shows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

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
from miniclaw_sessions.api.chat import user_message
from miniclaw_sessions.api.messages import message_document
from miniclaw_sessions.api.sessions import usage_reply
from miniclaw_sessions.api.shapes import ChatEvent, ChatRequest
from miniclaw_sessions.channels.asked import Asked
from miniclaw_sessions.channels.base import Incoming, NotAnswered, StopObeyed
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.protocol.keys import SessionKey
from miniclaw_sessions.protocol.messages import Usage
from miniclaw_sessions.session import Session

Document = dict[str, Any]


class DispatchedChats:
    """Chats with the assistant of a dispatcher, as `api.context.Chats` wants them.

    Args:
        dispatcher: takes what is said.
        patience_s: how long an answer that nobody waits for any more goes on, in seconds.
    """

    def __init__(self, dispatcher: Dispatcher, patience_s: float) -> None:
        self._dispatcher = dispatcher
        self._patience_s = patience_s

    @asynccontextmanager
    async def ask(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[ChatEvent]]:
        """Hand a message over and follow its answer."""
        chat = SessionKey.of(request.channel, request.chat_id)
        message, key = user_message(request), request.idempotency_key
        asked = self._dispatcher.ask(Incoming(chat.chat_id, message, message_id=key, channel=chat.channel))
        try:
            yield _Events(asked)
        finally:
            asked.abandon(self._patience_s)

    def stop(self, session: Session) -> bool:
        """Stop the session's open turn, and what waits there; False when there is none."""
        return self._dispatcher.stop(session.session_id) or session.stop_turn()


class _Events:
    """What becomes of a message, as events; it raises what it ended with, if that was an error."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChatEvent:
        match await anext(self._asked):
            case NotAnswered(error=error):
                raise error
            case StopObeyed(stopped=stopped):
                return ChatEvent("stop", {"stopped": stopped})
            case outgoing:
                return ChatEvent(*event_document(outgoing.event))


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
