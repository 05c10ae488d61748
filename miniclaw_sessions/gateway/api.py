"""The handlers: each reads a request, calls the manager, and shapes what it returns.

They hold no state and no policy. A change is acknowledged in the reply only after the store has committed it; a new
session without anything in it is no entry of the store yet, and is written at the next flush.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

import msgspec
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from miniclaw_sessions.errors import SessionNotFound
from miniclaw_sessions.gateway import metrics
from miniclaw_sessions.gateway.documents import entry_document, session_document
from miniclaw_sessions.gateway.replies import RequestError, json_reply
from miniclaw_sessions.gateway.requests import (
    CreateSession,
    UpdateSession,
    checked_metadata,
    idempotency_header,
    incoming_messages,
    query_number,
    read_json,
    session_id_of,
    shaped,
)
from miniclaw_sessions.gateway.sessions import ServedSessions
from miniclaw_sessions.gateway.streaming import PIECE_BYTES, ByteStream, with_first
from miniclaw_sessions.manager.residents import Place
from miniclaw_sessions.protocol.encoding import encode_entry
from miniclaw_sessions.statistics import SessionSummary

MAX_PAGE = 1000
"""Sessions or messages in one reply."""

_EPOCH = datetime.fromtimestamp(0, UTC)
_MAX_PLACE_DIGITS = 18
_LATEST = datetime.max.replace(tzinfo=UTC) - _EPOCH


class Api:
    """The service, the sessions and their messages, over one manager."""

    def __init__(self, sessions: ServedSessions, registry: CollectorRegistry) -> None:
        self._sessions = sessions
        self._manager = sessions.manager
        self._limits = sessions.limits
        self._registry = registry
        self._started = time.monotonic()
        self._version = version("miniclaw-sessions")

    def routes(self) -> list[Route]:
        """Everything but the chat, the tree, and files."""
        one = "/v1/sessions/{session_id}"
        return [
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/v1/sessions", self.list_sessions),
            Route("/v1/sessions", self.create_session, methods=["POST"]),
            Route(one, self.show_session),
            Route(one, self.update_session, methods=["PATCH"]),
            Route(one, self.delete_session, methods=["DELETE"]),
            Route(f"{one}/clear", self.clear_session, methods=["POST"]),
            Route(f"{one}/messages", self.show_messages),
            Route(f"{one}/messages", self.add_messages, methods=["POST"]),
            Route(f"{one}/transcript", self.show_transcript),
            Route("/v1/flush", self.flush, methods=["POST"]),
            Route("/v1/check", self.check, methods=["POST"]),
            Route("/v1/statistics", self.statistics),
        ]

    # --- the service -------------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """Whether messages are accepted and saved."""
        del request
        health = self._manager.health()
        reply = {
            "status": "ok" if health.ok else "failing",
            "problems": self._without_paths(health.problems),
            "version": self._version,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started, 3),
            "sessions": len(self._manager),
            "store": health.store,
            "store_state": health.store_state,
        }
        return json_reply(reply, status=200 if health.ok else 503)

    async def metrics(self, request: Request) -> Response:
        """Numbers for Prometheus."""
        del request
        return Response(metrics.render(self._registry), media_type=metrics.CONTENT_TYPE)

    async def statistics(self, request: Request) -> Response:
        """The manager's numbers."""
        del request
        return json_reply(msgspec.to_builtins(self._manager.statistics()))

    async def flush(self, request: Request) -> Response:
        """Commit and write everything that is dirty."""
        del request
        report = await self._manager.flush()
        return json_reply(
            {
                "written": report.written,
                "failed": report.failed,
                "bytes_written": report.bytes_written,
                "seconds": report.seconds,
            }
        )

    async def check(self, request: Request) -> Response:
        """Compare snapshots and store."""
        del request
        report = await self._manager.check()
        return json_reply(
            {
                "sound": report.sound,
                "sessions": report.sessions,
                "entries": report.entries,
                "problems": self._without_paths(report.problems),
                "notes": self._without_paths(report.notes),
            }
        )

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def list_sessions(self, request: Request) -> Response:
        """A page of sessions, newest first."""
        limit = query_number(request, "limit", default=100, most=MAX_PAGE)
        after = request.query_params.get("after")
        page = await self._manager.list(
            channel=request.query_params.get("channel") or None,
            limit=limit + 1,
            after=None if after is None else _parse_place(after),
        )
        reply = {
            "sessions": [msgspec.to_builtins(summary) for summary in page[:limit]],
            "next": _place(page[limit - 1]) if len(page) > limit else None,
        }
        return json_reply(reply)

    async def create_session(self, request: Request) -> Response:
        """The session of a key, made if there is none."""
        wanted = shaped(await read_json(request, self._limits), CreateSession)
        metadata = checked_metadata(wanted.metadata)
        is_new = not await self._exists(wanted.channel, wanted.chat_id)
        session = await self._manager.get_or_create(wanted.channel, wanted.chat_id, agent_id=wanted.agent_id)
        if is_new:
            session.update(**({} if wanted.title is None else {"title": wanted.title}), **metadata)
            await self._sessions.in_time(session.saved())
        return json_reply(session_document(session), status=201 if is_new else 200)

    async def show_session(self, request: Request) -> Response:
        """One session."""
        return json_reply(session_document(await self._sessions.find(request)))

    async def update_session(self, request: Request) -> Response:
        """Change title, model and other metadata."""
        session = await self._sessions.find(request)
        wanted = shaped(await read_json(request, self._limits), UpdateSession)
        changes = {**wanted.changes(), **checked_metadata(wanted.metadata)}
        if changes:
            session.update(**changes)
            await self._sessions.in_time(session.saved())
        return json_reply(session_document(session))

    async def delete_session(self, request: Request) -> Response:
        """Forget a session and its transcript."""
        session_id = session_id_of(request)
        if not await self._sessions.in_time(self._manager.delete(session_id)):
            raise SessionNotFound(session_id)
        return json_reply({"deleted": True})

    async def clear_session(self, request: Request) -> Response:
        """Empty the window; the transcript stays."""
        session = await self._sessions.find(request)
        session.clear()
        await self._sessions.in_time(session.saved())
        return json_reply(session_document(session))

    # --- messages ----------------------------------------------------------------------------------------------------

    async def show_messages(self, request: Request) -> Response:
        """The newest messages of the window, oldest first."""
        limit = query_number(request, "limit", default=50, most=MAX_PAGE)
        entries = (await self._sessions.find(request)).entries()[-limit:]
        return json_reply({"messages": [entry_document(entry) for entry in entries]})

    async def add_messages(self, request: Request) -> Response:
        """Append one message or several, and reply when they are acknowledged."""
        header_key = idempotency_header(request)
        incoming = incoming_messages(await read_json(request, self._limits), header_key)
        session = await self._sessions.find_or_create(request)
        last = session.last_sequence
        messages, keys = zip(*incoming, strict=True)
        entries = await self._sessions.in_time(session.add_messages(messages, idempotency_keys=keys))
        reply = []
        for entry in entries:
            reply.append({"id": entry.id, "sequence": entry.sequence, "duplicate": entry.sequence <= last})
            last = max(last, entry.sequence)
        return json_reply({"entries": reply}, status=201)

    async def show_transcript(self, request: Request) -> Response:
        """Every entry, one per line."""
        lines = self._transcript_lines(session_id_of(request))
        first = await anext(lines, b"")  # a session that does not exist is known before the reply begins
        stall_s = self._limits.request_timeout_s
        return ByteStream(with_first(first, lines), "application/x-ndjson", stall_s=stall_s)

    async def _transcript_lines(self, session_id: str) -> AsyncGenerator[bytes, None]:
        chunk = bytearray()
        async for entry in self._manager.read_transcript(session_id):
            chunk += encode_entry(entry) + b"\n"
            if len(chunk) >= PIECE_BYTES:
                yield bytes(chunk)
                chunk.clear()
        yield bytes(chunk)

    # --- looking up --------------------------------------------------------------------------------------------------

    async def _exists(self, channel: str, chat_id: str | int) -> bool:
        try:
            await self._manager.get(channel, chat_id)
        except SessionNotFound:
            return False
        return True

    def _without_paths(self, problems: list[str]) -> list[str]:
        return [problem.replace(str(self._manager.workspace), "<workspace>") for problem in problems]


def _place(summary: SessionSummary) -> str:
    """Where a session stands in the list: a place that stays when others are used or deleted between two pages."""
    return f"{(summary.last_accessed - _EPOCH) // timedelta(microseconds=1)}.{summary.session_id}"


def _parse_place(text: str) -> Place:
    number, _, session_id = text.partition(".")
    if not (number.isascii() and number.isdigit() and len(number) <= _MAX_PLACE_DIGITS):
        raise RequestError(422, "invalid_request", "after must be what the page before calls next", param="after")
    return Place(_EPOCH + min(timedelta(microseconds=int(number)), _LATEST), session_id)
