"""The chat routes: a message in, the agent's answer out, at once or as a stream of events; and stopping it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from urllib.parse import unquote

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from miniclaw_sessions.agent.events import TurnStopped, TurnSuspended
from miniclaw_sessions.api.error_table import RequestError
from miniclaw_sessions.channels.asked import Asked
from miniclaw_sessions.channels.base import Accepted, Answered, Incoming, Last, NotAnswered, Outgoing, StopObeyed
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.config import Settings
from miniclaw_sessions.gateway.documents import event_document
from miniclaw_sessions.gateway.replies import as_reply, json_reply
from miniclaw_sessions.gateway.requests import (
    Chat,
    checked_idempotency_key,
    idempotency_header,
    read_json,
    shaped,
)
from miniclaw_sessions.gateway.streaming import ByteStream, cancel_when_gone, server_sent_event
from miniclaw_sessions.manager import SessionManager
from miniclaw_sessions.protocol.keys import SessionKey

HEARTBEAT_S = 15.0
"""A stream that has nothing to say sends a comment this often, so that nobody on the way takes it for dead."""

_STATUS_WAIT_S = 1.0


class ChatApi:
    """Chats with one assistant.

    Args:
        dispatcher: takes what is said.
        manager: whose sessions can be stopped.
        settings: sizes and times; an answer that nobody waits for any more goes on for `model.timeout_s`.
    """

    def __init__(self, dispatcher: Dispatcher, manager: SessionManager, settings: Settings) -> None:
        self._dispatcher = dispatcher
        self._manager = manager
        self._limits = settings.listen
        self._patience_s = settings.model.timeout_s

    def routes(self) -> list[Route]:
        """Saying something, and stopping the answer."""
        return [
            Route("/v1/chat", self.chat, methods=["POST"]),
            Route("/v1/sessions/{session_id}/stop", self.stop, methods=["POST"]),
        ]

    async def stop(self, request: Request) -> Response:
        """Stop the turn under way in a session, whoever asked for it."""
        session = await self._manager.find(unquote(request.path_params["session_id"]))
        stopped = self._dispatcher.stop(session.session_id) or session.stop_turn()
        return json_reply({"stopped": stopped})

    async def chat(self, request: Request) -> Response:
        """Answer a message; the turn is finished and saved even if the client goes away."""
        header_key = idempotency_header(request)
        wanted = shaped(await read_json(request, self._limits), Chat)
        key = checked_idempotency_key(wanted.idempotency_key) or header_key
        message = wanted.user_message()
        chat = SessionKey.of(wanted.channel, wanted.chat_id)
        asked = self._dispatcher.ask(Incoming(chat.chat_id, message, message_id=key, channel=chat.channel))
        if wanted.stream:
            return await self._stream(asked)
        return await self._answer(asked, request)

    async def _answer(self, asked: Asked, request: Request) -> Response:
        """Wait for the end of the turn, as long as the client does."""
        last: Outgoing | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_when_gone, request.receive, tasks.cancel_scope, name="client watch")
                async for outgoing in asked:
                    last = outgoing
                tasks.cancel_scope.cancel()
        finally:
            asked.abandon(self._patience_s)
        session_id = asked.session_id
        match last:
            case NotAnswered(error=error):
                raise error
            case StopObeyed(stopped=stopped):
                return json_reply({"stopped": stopped, "session_id": session_id})
            case Answered(event=TurnSuspended() as event):
                return json_reply({"suspended": event_document(event)[1], "session_id": session_id}, status=202)
            case Answered(event=event):
                _, data = event_document(event)
                reply = {"reply": data["message"], "usage": data["usage"], "session_id": session_id}
                return json_reply({**reply, "stopped": True} if isinstance(event, TurnStopped) else reply)
            case _:
                raise RequestError(503, "turn_cut_off", "the turn ended without a reply; its steps are saved")

    async def _stream(self, asked: Asked) -> Response:
        """Begin the stream; what fails at once still becomes a status."""
        first: list[Outgoing] = []
        begun = False
        try:
            with anyio.move_on_after(_STATUS_WAIT_S):
                async for outgoing in asked:
                    first.append(outgoing)
                    if not isinstance(outgoing, Accepted):
                        break
            begun = not (first and isinstance(first[-1], NotAnswered))
        finally:
            if not begun:
                asked.abandon(self._patience_s)
        if first and isinstance(first[-1], NotAnswered):
            raise first[-1].error
        return ByteStream(
            _events(asked, first),
            "text/event-stream",
            stall_s=self._limits.request_timeout_s,
            at_end=lambda: asked.abandon(self._patience_s),
        )


async def _events(asked: Asked, first: list[Outgoing]) -> AsyncGenerator[bytes, None]:
    yield b"".join(map(_encode, first)) or _HEARTBEAT
    outgoing = first[-1] if first else None
    while not isinstance(outgoing, Last):
        outgoing = None
        with anyio.move_on_after(HEARTBEAT_S):
            outgoing = await anext(asked)
        yield _HEARTBEAT if outgoing is None else _encode(outgoing)


_HEARTBEAT = b": still here\n\n"


def _encode(outgoing: Outgoing) -> bytes:
    match outgoing:
        case NotAnswered(error=error):
            refused = as_reply(error)
            return server_sent_event("error", {"message": refused.message, "type": refused.kind, **refused.details})
        case StopObeyed(stopped=stopped):
            return server_sent_event("stop", {"stopped": stopped})
        case _:
            return server_sent_event(*event_document(outgoing.event))
