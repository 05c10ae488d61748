"""What goes back to a client: JSON, and errors."""

from __future__ import annotations

import orjson
from starlette.responses import Response

from miniclaw_sessions.api.error_table import RequestError, error_document


def error_reply(error: RequestError) -> Response:
    """The error as a response."""
    headers = {**error.headers, "Connection": "close"} if error.close else error.headers
    return encoded_reply(orjson.dumps(error_document(error)), status=error.status, headers=headers)


def encoded_reply(
    encoded: bytes, *, status: int = 200, headers: dict[str, str] | None = None, media_type: str = "application/json"
) -> Response:
    """JSON as a response that no cache keeps and no browser interprets as something else."""
    safe = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})}
    return Response(encoded, status, safe, media_type)
