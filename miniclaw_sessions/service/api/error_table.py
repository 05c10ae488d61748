"""Errors over a wire: the one table from an error to its HTTP status, and back from a reply to the same error.

No reply carries a path, a stack trace or the text of a message (rule S26). Errors that are the server's own affair are
answered with a fixed sentence, because their text may name files; `as_reply` logs them, the one place that sees them.
"""

from __future__ import annotations

import functools
import math
import traceback
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from miniclaw_sessions import errors
from miniclaw_sessions.errors import snake_case
from miniclaw_sessions.log import get_logger

log = get_logger(__name__)

RETRY_AFTER_S = 2
"""What a client that was turned away for now should wait, seconds."""

OUR_FAULT = 500
MODELS_FAULT = 502
UNREACHABLE = 503
_LATER = (503, 507)
_SOON_OVER = (errors.Busy, errors.MessageUnderWay, errors.TurnTaken)
_DAMAGED = (
    "the message store is damaged there: restart the daemon, which rebuilds it from what can be read, and try again; "
    "the daemon's log has the details"
)
_NOT_NOW = (
    "the message store cannot be reached or written now; nothing is lost, try again later with the same Idempotency-Key"
)
_NO_SPACE = (
    "the disk is full; what was sent may have been accepted, and is saved when there is space again: "
    "send it again then, with the same Idempotency-Key"
)

STATUS: dict[type[errors.SessionsError], tuple[int, str | None]] = {
    # class: (status, the sentence for strangers; None: the error's own)
    errors.ConfigError: (409, None),
    errors.SessionNotFound: (404, None),
    errors.EntryNotFound: (404, None),
    errors.NotPermitted: (403, None),
    errors.AmbiguousName: (409, None),
    errors.SessionLimit: (429, "there are too many sessions; delete some, or raise sessions.max_sessions"),
    errors.InvalidKey: (400, None),
    errors.InvalidMessage: (422, None),
    errors.UnsafeCompaction: (422, None),
    errors.InvalidSearch: (422, None),
    errors.InvalidReminder: (422, None),
    errors.ImportRefused: (422, None),
    errors.SessionExists: (409, None),
    errors.SessionHeld: (409, None),
    errors.DuplicateMessage: (409, None),
    errors.TurnInProgress: (409, None),
    errors.LeafMoved: (409, None),
    errors.TranscriptNotKept: (409, None),
    errors.NothingToResume: (409, None),
    errors.MessageUnderWay: (409, None),
    errors.MessageStopped: (409, None),
    errors.ChatBusy: (429, None),
    errors.TooManyTurns: (503, None),
    errors.TurnCutOff: (503, None),
    errors.SessionDeleted: (410, None),
    errors.ManagerClosed: (503, "the daemon is stopping"),
    errors.StoreFull: (507, _NO_SPACE),
    errors.UnsavedLimit: (503, "too much is waiting to be saved; try again later"),
    errors.StoreUnavailable: (503, _NOT_NOW),
    errors.TurnTaken: (409, "another gateway answers this session; its answer is in the session soon"),
    errors.StoreConflict: (409, "another process appended to this session at the same time; try again"),
    errors.StoreCorrupt: (500, _DAMAGED),
    errors.StoreError: (500, "the message store failed; the daemon's log has the details"),
    errors.SnapshotUnreadable: (503, _NOT_NOW),
    errors.BudgetSpent: (429, None),
    errors.AgentError: (MODELS_FAULT, None),
    errors.ContextOverflow: (400, None),
    errors.ModelRefused: (400, None),
    errors.ModelAccessDenied: (424, None),  # 401 and 403 are about the token for this daemon
    errors.ModelRateLimited: (429, None),
    errors.ModelOverloaded: (503, None),
    errors.ModelTimeout: (504, None),
    errors.SessionsError: (500, "the request failed; the daemon's log has the details"),
}


ANSWERING = (
    *("duplicate_message", "message_under_way", "message_stopped", "chat_busy", "too_many_turns", "turn_cut_off"),
    *("nothing_to_resume", "agent_error", "iteration_limit", "budget_spent", "model_error", "context_overflow"),
    *("model_refused", "model_access_denied", "model_unavailable", "model_timeout"),
    *("model_overloaded", "model_rate_limited", "file_not_taken"),
)
"""What may become of a message that a model is to answer."""

WITHOUT_CLASS: dict[tuple[int, str], str] = {
    (400, "bad_request"): "the request is not valid HTTP",
    (400, "invalid_json"): "the body is not strict JSON",
    (401, "unauthorized"): "the token is missing or wrong",
    (403, "forbidden"): "this is not served here",
    (403, "forbidden_host"): "the Host header does not name this server",
    (403, "forbidden_origin"): "requests from this web page are not allowed",
    (404, "not_found"): "there is nothing at this path",
    (405, "method_not_allowed"): "this path has no such method",
    (408, "timeout"): "the body did not arrive in time",
    (409, "conflict"): "another request changes the same at this time, and it may be tried again; or the key is taken",
    (409, "response_in_progress"): "the response before is not there yet; wait for it, or cancel it",
    (412, "leaf_moved"): "the session is not any more as `If-Match` demands; nothing was changed",
    (413, "body_too_large"): "the body is longer than `listen.max_body_bytes`",
    (415, "unsupported_media_type"): "the body is of a type that is not taken here",
    (422, "invalid_request"): "a field is missing, unknown, or not what it must be; `param` names it",
    (422, "no_model"): "there is no model that could summarize; send a summary",
    (429, "rate_limited"): "the token was used too often; try later",
    (500, "internal_error"): "unexpected; the daemon's log has it under the id that the message names",
    (503, "flush_incomplete"): "not everything could be written",
    (503, "timeout"): "the request took too long; it may still be completed",
    (503, "too_many_imports"): "too many imports are under way; try later",
}
"""The errors that no class stands for, by status and `type`, and what they mean."""


class RequestError(errors.SessionsError):
    """A request that is refused, or failed, for a reason that has no class of its own.

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


def invalid(sentence: str, param: str | None = None) -> RequestError:
    """The error for a request whose fields are not what they must be."""
    return RequestError(422, "invalid_request", sentence, param=param)


def as_request_error(error: Exception) -> RequestError | None:
    """The reply to an error; None where it is none that the table knows."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, TimeoutError):
        retry = {"Retry-After": str(RETRY_AFTER_S)}
        return RequestError(503, "timeout", "the request took too long; it may still be completed", headers=retry)
    known = next((kind for kind in type(error).__mro__ if kind in STATUS), None)
    if known is None:
        return None
    status, sentence = STATUS[known]
    wait_s: float | None = RETRY_AFTER_S if status in _LATER or isinstance(error, _SOON_OVER) else None
    if isinstance(error, errors.ModelError):
        wait_s = error.retry_after_s  # the model's service sets its own
    retry = {} if wait_s is None else {"Retry-After": str(math.ceil(wait_s))}
    details = {name: getattr(error, name) for name in _DETAILS if getattr(error, name, None) is not None}
    kind = snake_case(type(error).__name__)
    return RequestError(status, kind, sentence or str(error), headers=retry, details=details)


@functools.cache
def known_errors() -> Mapping[tuple[int, str], str]:
    """Every error of a reply, by status and `type`, and its meaning."""
    found = dict(WITHOUT_CLASS)
    for name, kind in _classes().items():
        base = next(one for one in kind.__mro__ if one in STATUS)
        if base is not errors.SessionsError or kind is base:  # others end no request
            status, sentence = STATUS[base]
            found[status, name] = sentence or (kind.__doc__ or "").split("\n")[0].rstrip(".")
    return MappingProxyType(found)


_DETAILS = ("session_id", "entry_id", "candidates", "provider_message", "upstream_status", "retry_after_s")
"""The attributes of errors that go with them."""


def as_reply(error: Exception) -> RequestError:
    """The reply to any error; what the daemon's operator must see to, and not the client, is logged too."""
    if (refused := as_request_error(error)) is not None:
        is_ours = refused.status in (OUR_FAULT, MODELS_FAULT) or isinstance(error, errors.ModelError)
        if is_ours and not isinstance(error, RequestError):
            log.error("a request failed", action="http.failed", error_type=type(error).__name__, error=str(error))
        return refused
    # Logged is where it happened, without the text, which may be a message's; the reply's id finds the line.
    import uuid_utils  # noqa: PLC0415 - a client loads this module too

    error_id = str(uuid_utils.uuid7())
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    log.error(
        "a request failed unexpectedly",
        action="http.failed",
        error_id=error_id,
        error_type=type(error).__name__,
        where=[f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    )
    return RequestError(OUR_FAULT, "internal_error", f"unexpected error; the daemon's log has it as {error_id}")


def error_document(error: RequestError) -> dict[str, Any]:
    """The error as it is sent."""
    about = {"message": error.message, "type": error.kind, "code": None, "param": error.param}
    return {"error": {**about, **error.details}}


def error_of(status: int, document: Any) -> errors.SessionsError:
    """A reply's error, as the class that the other side raised."""
    about = document.get("error") if isinstance(document, dict) else None
    about = about if isinstance(about, dict) else {}
    sentence = str(about.get("message") or f"the server answered with HTTP status {status}")
    kind = str(about.get("type") or "")
    details = {name: value for name, value in about.items() if name not in ("message", "type", "code", "param")}
    known = _classes().get(kind)
    if known is None:
        return RequestError(status, kind, sentence, param=about.get("param"), details=details)
    error = known.__new__(known)
    Exception.__init__(error, sentence)  # not the class's own: its sentence is the other side's
    for name, value in details.items():
        if not hasattr(Exception, name):  # not its class, cause or arguments
            setattr(error, name, value)
    return error


@functools.cache
def _classes() -> dict[str, type[errors.SessionsError]]:
    """The classes of errors by their names on the wire."""
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.SessionsError)]
    return {snake_case(one.__name__): one for one in classes}
