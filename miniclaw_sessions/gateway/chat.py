"""The chat route: a message in, the agent's answer out, at once or as a stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from miniclaw_sessions.agent.events import TurnSuspended
from miniclaw_sessions.api.error_table import RequestError
from miniclaw_sessions.channels.base import Accepted, Answered, Incoming, NotAnswered, Outgoing
from miniclaw_sessions.channels.http import Asked, HttpChannel
from miniclaw_sessions.config import ListenSettings
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
from miniclaw_sessions.protocol.keys import SessionKey

HEARTBEAT_S = 15.0
"""A stream that has nothing to say sends a comment this often, so that nobody on the way takes it for dead."""

_STATUS_WAIT_S = 1.0


class ChatApi:
    """The chat over one channel."""

    def __init__(self, channel: HttpChannel, limits: ListenSettings) -> None:
        self._channel = channel
        self._limits = limits

    def routes(self) -> list[Route]:
        """The one route."""
        return [Route("/v1/chat", self.chat, methods=["POST"])]

    async def chat(self, request: Request) -> Response:
        """Answer a message; the turn is finished and saved even if the client goes away."""
        header_key = idempotency_header(request)
        wanted = shaped(await read_json(request, self._limits), Chat)
        key = checked_idempotency_key(wanted.idempotency_key) or header_key
        message = wanted.user_message()
        chat = SessionKey.of(wanted.channel, wanted.chat_id)
        asked = self._channel.ask(Incoming(chat.chat_id, message, message_id=key, channel=chat.channel))
        if wanted.stream:
            return await self._stream(asked)
        return await self._answer(asked, request, chat.session_id)

    async def _answer(self, asked: Asked, request: Request, session_id: str) -> Response:
        """Wait for the end of the turn, as long as the client does."""
        last: Outgoing | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_when_gone, request.receive, tasks.cancel_scope, name="client watch")
                async for outgoing in asked:
                    last = outgoing
                tasks.cancel_scope.cancel()
        finally:
            self._channel.abandon(asked)
        if isinstance(last, NotAnswered):
            raise last.error
        if not isinstance(last, Answered):
            raise RequestError(503, "turn_cut_off", "the turn ended without a reply; its steps are saved")
        _, data = event_document(last.event)
        if isinstance(last.event, TurnSuspended):
            return json_reply({"suspended": data, "session_id": session_id}, status=202)
        return json_reply({"reply": data["message"], "usage": data["usage"], "session_id": session_id})

    async def _stream(self, asked: Asked) -> Response:
        """Begin the stream; what fails at once still becomes a status."""
        first: Outgoing | None = None
        begun = False
        try:
            with anyio.move_on_after(_STATUS_WAIT_S):
                async for first in asked:
                    if not isinstance(first, Accepted):
                        break
            begun = not isinstance(first, NotAnswered)
        finally:
            if not begun:
                self._channel.abandon(asked)
        if isinstance(first, NotAnswered):
            raise first.error
        return ByteStream(
            _events(asked, first),
            "text/event-stream",
            stall_s=self._limits.request_timeout_s,
            at_end=lambda: self._channel.abandon(asked),
        )


async def _events(asked: Asked, outgoing: Outgoing | None) -> AsyncGenerator[bytes, None]:
    yield _encode(outgoing)
    try:
        while not isinstance(outgoing, Answered | NotAnswered):
            outgoing = None
            with anyio.move_on_after(HEARTBEAT_S):
                outgoing = await anext(asked)
            if not isinstance(outgoing, Accepted):
                yield _encode(outgoing)
    except StopAsyncIteration:
        yield server_sent_event("error", {"message": "the stream was read too slowly", "type": "too_slow"})


def _encode(outgoing: Outgoing | None) -> bytes:
    if outgoing is None or isinstance(outgoing, Accepted):
        return b": still here\n\n"
    if isinstance(outgoing, NotAnswered):
        refused = as_reply(outgoing.error)
        return server_sent_event("error", {"message": refused.message, "type": refused.kind, **refused.details})
    return server_sent_event(*event_document(outgoing.event))
