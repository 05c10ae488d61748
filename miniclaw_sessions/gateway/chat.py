"""The chat route: a message in, the agent's answer out, at once or as a stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from miniclaw_sessions.agent.loop import AgentEvent, TurnFinished, TurnSuspended
from miniclaw_sessions.config import ListenSettings
from miniclaw_sessions.gateway.documents import event_document
from miniclaw_sessions.gateway.replies import RequestError, as_request_error, json_reply
from miniclaw_sessions.gateway.requests import (
    Chat,
    checked_idempotency_key,
    idempotency_header,
    read_json,
    shaped,
)
from miniclaw_sessions.gateway.streaming import ByteStream, RunningTurn, Turns, cancel_when_gone, server_sent_event
from miniclaw_sessions.manager import SessionManager

HEARTBEAT_S = 15.0
"""A stream that has nothing to say sends a comment this often, so that nobody on the way takes it for dead."""

_STATUS_WAIT_S = 1.0


class ChatApi:
    """The chat over one manager and one agent."""

    def __init__(self, manager: SessionManager, turns: Turns, limits: ListenSettings) -> None:
        self._manager = manager
        self._turns = turns
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
        session = await self._manager.get_or_create(wanted.channel, wanted.chat_id)
        turn = self._turns.start(session, message, idempotency_key=key)
        if wanted.stream:
            return await self._stream(turn)
        return await self._answer(turn, request, session.session_id)

    async def _answer(self, turn: RunningTurn, request: Request, session_id: str) -> Response:
        """Wait for the end of the turn, as long as the client does."""
        last: AgentEvent | Exception | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_when_gone, request.receive, tasks.cancel_scope, name="client watch")
                async for event in turn:
                    last = event
                tasks.cancel_scope.cancel()
        finally:
            self._turns.abandon(turn)
        if isinstance(last, Exception):
            raise last
        if isinstance(last, TurnSuspended):
            return json_reply({"suspended": event_document(last)[1], "session_id": session_id}, status=202)
        if not isinstance(last, TurnFinished):
            raise RequestError(503, "turn_cut_off", "the turn ended without a reply; its steps are saved")
        _, data = event_document(last)
        return json_reply({"reply": data["message"], "usage": data["usage"], "session_id": session_id})

    async def _stream(self, turn: RunningTurn) -> Response:
        """Begin the stream; what fails at once still becomes a status."""
        first: AgentEvent | Exception | None = None
        begun = False
        try:
            first = await turn.next_within(_STATUS_WAIT_S)
            begun = not isinstance(first, Exception)
        finally:
            if not begun:
                self._turns.abandon(turn)
        if isinstance(first, Exception):
            raise first
        return ByteStream(
            _events(turn, first),
            "text/event-stream",
            stall_s=self._limits.request_timeout_s,
            at_end=lambda: self._turns.abandon(turn),
        )


async def _events(turn: RunningTurn, event: AgentEvent | Exception | None) -> AsyncGenerator[bytes, None]:
    yield _encode_event(event)
    try:
        while not isinstance(event, TurnFinished | TurnSuspended | Exception):
            event = await turn.next_within(HEARTBEAT_S)
            yield _encode_event(event)
    except anyio.EndOfStream:
        yield server_sent_event("error", {"message": "the stream was read too slowly", "type": "too_slow"})


def _encode_event(event: AgentEvent | Exception | None) -> bytes:
    if event is None:
        return b": still here\n\n"
    if isinstance(event, Exception):
        refused = as_request_error(event)
        return server_sent_event("error", {"message": refused.message, "type": refused.kind, **refused.details})
    return server_sent_event(*event_document(event))
