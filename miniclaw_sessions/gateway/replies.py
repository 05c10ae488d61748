"""What goes back to a client: JSON, and the one table from an error to its HTTP status.

No reply carries a path, a stack trace or the text of a message (rule S26). Errors that are the server's own affair are
answered with a fixed sentence, because their text may name files.
"""

from __future__ import annotations

import re
from typing import Any

import orjson
from starlette.responses import Response

from miniclaw_sessions import errors
from miniclaw_sessions.protocol.encoding import message_to_dict
from miniclaw_sessions.protocol.messages import Message

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


_NOT_NOW = "the message store cannot be reached or written now; nothing is lost, try again later"
_STATUS: dict[type[errors.SessionsError], tuple[int, str | None]] = {
    # class: (status, the sentence for strangers; None: the error's own)
    errors.SessionNotFound: (404, None),
    errors.EntryNotFound: (404, None),
    errors.SessionLimit: (429, "there are too many sessions; delete some, or raise sessions.max_sessions"),
    errors.InvalidKey: (400, None),
    errors.InvalidMessage: (422, None),
    errors.DuplicateMessage: (409, None),
    errors.TurnInProgress: (409, None),
    errors.SessionDeleted: (410, None),
    errors.ManagerClosed: (503, "the daemon is stopping"),
    errors.StoreFull: (507, "the disk is full; appends are refused until space returns"),
    errors.UnsavedLimit: (503, "too much is waiting to be saved; try again later"),
    errors.StoreUnavailable: (503, _NOT_NOW),
    errors.StoreConflict: (409, "another process appended to this session at the same time; try again"),
    errors.StoreError: (500, "the message store failed; the daemon's log has the details"),
    errors.SnapshotUnreadable: (503, _NOT_NOW),
    errors.AgentError: (502, None),
    errors.SessionsError: (500, "the request failed; the daemon's log has the details"),
}


def as_request_error(error: Exception) -> RequestError | None:
    """The reply to an error that the package raises on purpose; None for one that nobody expected."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, TimeoutError):
        retry = {"Retry-After": str(RETRY_AFTER_S)}
        return RequestError(503, "timeout", "the request took too long; it may still be completed", headers=retry)
    for kind in type(error).__mro__:
        if kind in _STATUS:
            status, sentence = _STATUS[kind]
            retry = {"Retry-After": str(RETRY_AFTER_S)} if status in (503, 507) else {}
            details = {"entry_id": error.entry_id} if isinstance(error, errors.DuplicateMessage) else {}
            name = snake_case(type(error).__name__)
            return RequestError(status, name, sentence or str(error), headers=retry, details=details)
    return None


def snake_case(name: str) -> str:
    """A class name as clients know it: SessionNotFound is session_not_found."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def error_reply(error: RequestError) -> Response:
    """The error as a response."""
    body = {"message": error.message, "type": error.kind, "code": None, "param": error.param, **error.details}
    headers = {**error.headers, "Connection": "close"} if error.close else error.headers
    return json_reply({"error": body}, status=error.status, headers=headers)


def shown(message: Message) -> dict[str, Any]:
    """A message as clients see it: like its stored form, but with its content also where that is empty."""
    return {"content": "", **message_to_dict(message)}


def json_reply(data: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Data as a JSON response that no cache keeps and no browser interprets as something else."""
    safe = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})}
    return Response(orjson.dumps(data), status, safe, "application/json")
