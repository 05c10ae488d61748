"""The routes for session files: in from every format, out in every format, both as streams of any size.

Nothing is held: a file is read as fast as it can be stored, and written as fast as the client takes it. Whatever ends
an import before it is complete, its client included, leaves nothing of it behind.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from miniclaw_sessions.errors import ImportRefused, SessionsError
from miniclaw_sessions.gateway.body import body_pieces, drain
from miniclaw_sessions.gateway.documents import import_document
from miniclaw_sessions.gateway.replies import RETRY_AFTER_S, RequestError, json_reply
from miniclaw_sessions.gateway.requests import query_flag, query_text
from miniclaw_sessions.gateway.security import FILES, body_refusal
from miniclaw_sessions.gateway.sessions import ServedSessions
from miniclaw_sessions.gateway.streaming import PIECE_BYTES, ByteStream, with_first
from miniclaw_sessions.protocol.keys import MAX_SESSION_ID_LENGTH, SessionKey

if TYPE_CHECKING:
    from miniclaw_sessions.formats.foreign import Format

MAX_IMPORTS = 8
"""Imports under way at once: each may hold a file that is one document, or a very long line."""

DEFAULT_FORMAT = "jsonl"
MAX_NAME = 255
UNNAMED = "upload"
"""What an import is called that names neither itself nor its session."""

_DRAINED_BYTES = 268_435_456
_MAX_FILE_NAME = 120
_TYPES = {
    ".jsonl": "application/x-ndjson",
    ".json": "application/json",
    ".md": "text/markdown; charset=utf-8",
    ".html": "text/html; charset=utf-8",
}


class TransferApi:
    """Imports and exports of one manager's sessions."""

    def __init__(self, sessions: ServedSessions) -> None:
        self._sessions = sessions
        self._manager = sessions.manager
        self._stall_s = sessions.limits.request_timeout_s
        self._importing = 0

    def routes(self) -> list[Route]:
        """Everything about files."""
        return [
            Route("/v1/formats", self.list_formats),
            Route("/v1/import", self.import_session, methods=["POST"]),
            Route("/v1/sessions/{session_id}/export", self.export_session),
        ]

    async def list_formats(self, request: Request) -> Response:
        """Every format by its name, and whether it is read and written."""
        del request
        from miniclaw_sessions.formats.registry import FORMATS, READABLE, WRITABLE  # noqa: PLC0415 - heavy

        formats = [
            {
                "name": form.name,
                "about": form.about,
                "suffix": form.suffix,
                "read": form in READABLE,
                "write": form in WRITABLE,
            }
            for form in FORMATS
        ]
        return json_reply({"formats": formats})

    # --- in ----------------------------------------------------------------------------------------------------------

    async def import_session(self, request: Request) -> Response:
        """A new session from a file, or a report of what it would become."""
        pieces = body_pieces(request, stall_s=self._stall_s)
        begun = False
        try:
            self._check_room(request)
            options = _import_options(request)
            begun = True
            return await self._import(pieces, options)
        except (RequestError, SessionsError):
            if begun or "expect" not in request.headers:  # a client that asked first is told without sending it
                await drain(pieces, most=_DRAINED_BYTES)
            raise

    def _check_room(self, request: Request) -> None:
        if (refused := body_refusal(request.scope["headers"], FILES)) is not None:
            raise refused
        if self._importing >= MAX_IMPORTS:
            retry = {"Retry-After": str(RETRY_AFTER_S)}
            sentence = "too many imports are under way; try again later"
            raise RequestError(503, "too_many_imports", sentence, headers=retry)

    async def _import(self, pieces: AsyncIterator[bytes], options: dict[str, Any]) -> Response:
        self._importing += 1
        try:
            report = await self._manager.import_stream(pieces, **options)
        finally:
            self._importing -= 1
        return json_reply(import_document(report), status=200 if report.dry_run else 201)

    # --- out ---------------------------------------------------------------------------------------------------------

    async def export_session(self, request: Request) -> Response:
        """A session as a file."""
        session = await self._sessions.find(request)
        form = _format_to_write(request)
        chunks = self._written(session.session_id, form)
        first = await anext(chunks, b"")  # what cannot be read or written is known before the reply begins
        reply = ByteStream(with_first(first, chunks), _TYPES.get(form.suffix, FILES[0]), stall_s=self._stall_s)
        reply.headers["Content-Disposition"] = f'attachment; filename="{file_name(session.session_id, form.suffix)}"'
        return reply

    async def _written(self, session_id: str, form: Format) -> AsyncGenerator[bytes, None]:
        """The file in small pieces: a format without a tree is written in one."""
        async for chunk in self._manager.export(session_id, form):
            for start in range(0, len(chunk), PIECE_BYTES):
                yield chunk[start : start + PIECE_BYTES]


def file_name(session_id: str, suffix: str) -> str:
    """What an exported file is called: safe in a header and on any disk, whatever the session is called."""
    plain = re.sub(r"[^A-Za-z0-9@+=,._-]", "_", session_id)[:_MAX_FILE_NAME].lstrip(".-")
    return f"{plain or 'session'}{suffix}"


def _import_options(request: Request) -> dict[str, Any]:
    """What the query says about an import, as `SessionManager.import_stream` takes it.

    Raises:
        RequestError: there is no such format, or something has not the form that it must have (422).
        InvalidKey: the new session's id is none.
    """
    session_id = query_text(request, "session_id", most=MAX_SESSION_ID_LENGTH)
    form = query_text(request, "format", most=MAX_NAME)
    return {
        "name": query_text(request, "name", most=MAX_NAME) or UNNAMED,
        "key": None if session_id is None else SessionKey.parse(session_id),
        "form": None if form is None else _format(form),
        "dry_run": query_flag(request, "dry_run"),
    }


def _format_to_write(request: Request) -> Format:
    from miniclaw_sessions.formats.registry import WRITABLE  # noqa: PLC0415 - heavy

    form = _format(query_text(request, "format", most=MAX_NAME) or DEFAULT_FORMAT)
    if form not in WRITABLE:
        raise RequestError(422, "import_refused", f"the format {form.name} is only read", param="format")
    return form


def _format(name: str) -> Format:
    from miniclaw_sessions.formats.registry import format_named  # noqa: PLC0415 - heavy

    try:
        return format_named(name)
    except ImportRefused as error:
        raise RequestError(422, "import_refused", str(error), param="format") from None
