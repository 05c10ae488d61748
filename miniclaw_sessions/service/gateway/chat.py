"""Chats of the HTTP interface: what is said there goes to the dispatcher, like what any channel hands over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Self

from msgspec import UnsetType

from miniclaw_sessions.agent.provider import Begun
from miniclaw_sessions.channels.base import Incoming, NotAnswered, Obeyed
from miniclaw_sessions.channels.commands import earlier_answer
from miniclaw_sessions.channels.delivery import Delivery, event_document
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import DuplicateMessage
from miniclaw_sessions.service.api.chat import user_message
from miniclaw_sessions.service.api.shapes import ChatEvent, ChatRequest


class DispatchedChats:
    """Chats with the assistant of a dispatcher, as `api.context.Chats` wants them.

    Args:
        dispatcher: takes what is said.
        patience_s: how long an answer goes on after its reader has left, in seconds.
    """

    def __init__(self, dispatcher: Dispatcher, patience_s: float) -> None:
        self._dispatcher = dispatcher
        self._patience_s = patience_s

    @asynccontextmanager
    async def ask(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[ChatEvent]]:
        """Hand a message over and follow its answer."""
        chat = SessionKey.of(request.channel, request.chat_id)
        message, key, approvals = user_message(request), request.idempotency_key, request.approvals
        given = None if isinstance(approvals, UnsetType) else approvals
        incoming = Incoming(
            chat.chat_id,
            message,
            message_id=key,
            channel=chat.channel,
            approvals=given,
            author=request.author or None,
            is_addressed=request.commands,
            obeys=request.commands,
        )
        delivery = self._dispatcher.ask(incoming)
        try:
            yield _Events(delivery)
        finally:
            delivery.abandon(self._patience_s)

    def stop(self, session: Session) -> bool:
        """Stop the session's open turn, and what waits there; False when nothing is open or waits."""
        return self._dispatcher.stop(session.session_id) or session.stop_turn()

    async def models(self) -> Mapping[str, str]:
        """The models that a chat may choose, and who provides them."""
        return self._dispatcher.assistant.agent.models

    async def takes(self) -> Mapping[str, Collection[str]]:
        """The media types of files that each of these models takes, beside texts."""
        return self._dispatcher.assistant.agent.takes

    async def thinking_levels(self) -> Mapping[str, Sequence[str]]:
        """The levels of thinking that each of them takes."""
        return self._dispatcher.assistant.agent.thinking_levels


class _Events:
    """What becomes of a message, as events; it raises what it ended with, if that was an error.

    A message that was answered before has the same end again, from the session.
    """

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._duplicate: DuplicateMessage | None = None
        self._end: ChatEvent | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChatEvent:
        if self._end is not None:
            return self._end
        if self._duplicate is not None:
            return await self._answered_before(self._duplicate)
        match await anext(self._delivery):
            case NotAnswered(error=DuplicateMessage() as error):
                self._duplicate = error  # also if this wait is given up now
                return await self._answered_before(error)
            case NotAnswered(error=error):
                raise error
            case Obeyed(text=text, stopped=stopped, failed=failed):
                return ChatEvent("obeyed", {"told": text, "stopped": stopped, "failed": failed})
            case outgoing:
                event = outgoing.event
                if isinstance(event, Begun):  # an event of a response only (`gateway.responding`)
                    return await anext(self)
                return ChatEvent(*event_document(event))

    async def _answered_before(self, error: DuplicateMessage) -> ChatEvent:
        session = self._delivery.session
        end = None if session is None else await earlier_answer(session, error.entry_id)
        if end is None:
            raise error
        if isinstance(end, str):
            return ChatEvent("obeyed", {"told": end, "stopped": False, "failed": False})
        self._end = ChatEvent(*event_document(end))
        return ChatEvent("accepted", {"entry_id": error.entry_id})
