"""What goes back to a client: JSON, and the one table from an error to its HTTP status.

No reply carries a path, a stack trace or the text of a message (rule S26). Errors that are the server's own affair are
answered with a fixed sentence, because their text may name files. Faults of the store, of the model and of the program
itself are logged here, the one place that sees them all.
"""

from __future__ import annotations

import re
import traceback
from typing import Any

import orjson
import structlog
import uuid_utils
from starlette.responses import Response

from miniclaw_sessions import errors

log = structlog.get_logger(__name__)

RETRY_AFTER_S = 2
"""What a client that was turned away for now should wait, seconds."""


class RequestError(Exception):
    """A request that is answered with an error.

    Attributes:
        status: the HTTP status.
        kind: the error's name for programs, in snake_case (`type` in the reply).
        param: the field or header that is wrong, where one is.
        headers: further response headers.
        details: further fields of the error object.
        close: whether the connection must end with the reply, because the request was not read to its end.
    """

    def __init__(  # noqa: PLR0913 - one argument per field of the reply
        self,
        status: int,
        kind: str,
        message: str,
        *,
        param: str | None = None,
        headers: dict[str, str] | None = None,
        details: dict[str, Any] | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param
        self.headers = headers or {}
        self.details = details or {}
        self.close = close


_OUR_FAULT = 500
_MODELS_FAULT = 502
_LATER = (503, 507)
_NOT_NOW = "the message store cannot be reached or written now; nothing is lost, try again later"
_STATUS: dict[type[errors.SessionsError], tuple[int, str | None]] = {
    # class: (status, the sentence for strangers; None: the error's own)
    errors.SessionNotFound: (404, None),
    errors.EntryNotFound: (404, None),
    errors.SessionLimit: (429, "there are too many sessions; delete some, or raise sessions.max_sessions"),
    errors.InvalidKey: (400, None),
    errors.InvalidMessage: (422, None),
    errors.UnsafeCompaction: (422, None),
    errors.ImportRefused: (422, None),
    errors.SessionExists: (409, None),
    errors.DuplicateMessage: (409, None),
    errors.TurnInProgress: (409, None),
    errors.LeafMoved: (409, None),
    errors.NothingToResume: (409, None),
    errors.MessageUnderWay: (409, None),
    errors.ChatBusy: (429, None),
    errors.TooManyTurns: (503, None),
    errors.TurnCutOff: (503, None),
    errors.SessionDeleted: (410, None),
    errors.ManagerClosed: (503, "the daemon is stopping"),
    errors.StoreFull: (507, "the disk is full; appends are refused until space returns"),
    errors.UnsavedLimit: (503, "too much is waiting to be saved; try again later"),
    errors.StoreUnavailable: (503, _NOT_NOW),
    errors.StoreConflict: (409, "another process appended to this session at the same time; try again"),
    errors.StoreError: (500, "the message store failed; the daemon's log has the details"),
    errors.SnapshotUnreadable: (503, _NOT_NOW),
    errors.AgentError: (_MODELS_FAULT, None),
    errors.SessionsError: (500, "the request failed; the daemon's log has the details"),
}


def as_request_error(error: Exception) -> RequestError:
    """The reply to any error; what the daemon's operator must see to, and not the client, is logged too."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, TimeoutError):
        retry = {"Retry-After": str(RETRY_AFTER_S)}
        return RequestError(503, "timeout", "the request took too long; it may still be completed", headers=retry)
    for kind in type(error).__mro__:
        if kind in _STATUS:
            status, sentence = _STATUS[kind]
            is_for_now = status in _LATER or isinstance(error, errors.Busy)
            retry = {"Retry-After": str(RETRY_AFTER_S)} if is_for_now else {}
            details = {"entry_id": error.entry_id} if isinstance(error, errors.DuplicateMessage) else {}
            name = snake_case(type(error).__name__)
            if status in (_OUR_FAULT, _MODELS_FAULT):
                log.error("a request failed", action="http.failed", error_type=type(error).__name__, error=str(error))
            return RequestError(status, name, sentence or str(error), headers=retry, details=details)
    return _unexpected(error)


def _unexpected(error: Exception) -> RequestError:
    """Log where it happened, without the text, which may be a message's; reply with an id that finds the line."""
    error_id = str(uuid_utils.uuid7())
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    log.error(
        "a request failed unexpectedly",
        action="http.failed",
        error_id=error_id,
        error_type=type(error).__name__,
        where=[f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    )
    return RequestError(_OUR_FAULT, "internal_error", f"unexpected error; the daemon's log has it as {error_id}")


def snake_case(name: str) -> str:
    """A class name as clients know it: SessionNotFound is session_not_found."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def error_reply(error: RequestError) -> Response:
    """The error as a response."""
    body = {"message": error.message, "type": error.kind, "code": None, "param": error.param, **error.details}
    headers = {**error.headers, "Connection": "close"} if error.close else error.headers
    return json_reply({"error": body}, status=error.status, headers=headers)


def json_reply(data: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Data as a JSON response."""
    return encoded_reply(orjson.dumps(data), status=status, headers=headers)


def encoded_reply(encoded: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON as a response that no cache keeps and no browser interprets as something else."""
    safe = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})}
    return Response(encoded, status, safe, "application/json")
