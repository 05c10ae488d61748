"""The chat route: a message in, the agent's answer out, at once or as a stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from miniclaw_sessions.agent.loop import AgentEvent, ToolFinished, ToolStarted, TurnFinished
from miniclaw_sessions.agent.provider import TextDelta
from miniclaw_sessions.config import ListenSettings
from miniclaw_sessions.gateway.replies import RequestError, as_request_error, json_reply, shown
from miniclaw_sessions.gateway.requests import (
    Chat,
    checked_idempotency_key,
    idempotency_header,
    read_json,
    shaped,
)
from miniclaw_sessions.gateway.streaming import ByteStream, RunningTurn, Turns, server_sent_event
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
        return await self._answer(turn, session.session_id)

    async def _answer(self, turn: RunningTurn, session_id: str) -> Response:
        try:
            async for event in turn:
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, TurnFinished):
                    return json_reply({**_finished(event, "reply"), "session_id": session_id})
        finally:
            self._turns.abandon(turn)
        raise RequestError(503, "turn_cut_off", "the turn ended without a reply; its steps are saved")

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
        while not isinstance(event, TurnFinished | Exception):
            event = await turn.next_within(HEARTBEAT_S)
            yield _encode_event(event)
    except anyio.EndOfStream:
        yield server_sent_event("error", {"message": "the stream was read too slowly", "type": "too_slow"})


def _encode_event(event: AgentEvent | Exception | None) -> bytes:
    match event:
        case None:
            return b": still here\n\n"
        case TextDelta():
            return server_sent_event("text", {"text": event.text})
        case ToolStarted():
            call = event.call
            return server_sent_event("tool_started", {"id": call.id, "name": call.name, "arguments": call.arguments})
        case ToolFinished():
            call = event.call
            return server_sent_event("tool_finished", {"id": call.id, "name": call.name, "is_error": event.is_error})
        case TurnFinished():
            return server_sent_event("done", _finished(event, "message"))
        case Exception():
            refused = as_request_error(event) or RequestError(500, "internal_error", "the turn failed unexpectedly")
            return server_sent_event("error", {"message": refused.message, "type": refused.kind, **refused.details})


def _finished(event: TurnFinished, name: str) -> dict[str, Any]:
    usage = {field: getattr(event.usage, field) for field in event.usage.__struct_fields__ if field != "extra"}
    usage["total_tokens"] = event.usage.total
    return {name: shown(event.message), "usage": usage}
