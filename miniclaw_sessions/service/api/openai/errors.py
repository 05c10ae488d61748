"""Errors as the `openai` package expects them: what is wrong with a request is 400, what is gone is 404.

The package asks again after 408, 409, 429 and everything from 500 on, twice, unless it is told not to.
"""

from __future__ import annotations

from miniclaw_sessions.service.api.error_table import RETRY_AFTER_S, RequestError

_STATUS = {410: 404, 412: 409, 422: 400}
UNSUPPORTED = "unsupported_parameter"
"""The `code` of a refusal: nothing here can do what a parameter asks for."""

ATTEMPTS = 10
"""How often something is tried again that others were before."""

_TYPES = {401: "authentication_error", 403: "permission_error", 424: "upstream_error", 429: "rate_limit_error"}
_CODES = {"model_rate_limited": "rate_limit_exceeded", "context_overflow": "context_length_exceeded"}
"""Our names for errors for which the service has a `code` of its own."""

_OF_THE_UPSTREAM = ("upstream_status", "provider_message")
_BAD_REQUEST, _NOT_FOUND, _CONFLICT, _SERVER = 400, 404, 409, 500


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> RequestError:
    """The error for a request that is not what it must be."""
    return RequestError(_BAD_REQUEST, code, message, param=param)


def not_found(kind: str, name: str) -> RequestError:
    """The error for what is not there, or may not be seen: in the words that the service has for it."""
    return RequestError(_NOT_FOUND, "not_found", f"{kind} with id '{name}' not found.")


def contended() -> RequestError:
    """The error for what others were before, again and again: it may be asked again."""
    sentence = "others change this conversation all the time; try again"
    return RequestError(_CONFLICT, "conflict", sentence, headers={"Retry-After": str(RETRY_AFTER_S)})


def code_of_failure(error: RequestError) -> str:
    """Why a response failed, in the service's words: what it has none for is its server's fault."""
    if error.kind == "model_refused":
        return "invalid_prompt"
    return _CODES.get(error.kind, "server_error")


def in_openai_form(error: RequestError) -> RequestError:
    """An error as the package reads it; our own name for it is the `code`, where the service gives one."""
    status = _STATUS.get(error.status, error.status)
    kind = _TYPES.get(status, "invalid_request_error" if status < _SERVER else "server_error")
    headers = dict(error.headers)
    if (wait_s := error.details.get("retry_after_s")) is not None:
        headers["retry-after-ms"] = str(round(wait_s * 1000))  # the package looks at it first
    if status == _CONFLICT and "Retry-After" not in headers:
        headers["x-should-retry"] = "false"  # the same request would meet the same conflict
    code = error.details.get("code", None if status == _NOT_FOUND else _CODES.get(error.kind, error.kind))
    upstream = {name: error.details[name] for name in _OF_THE_UPSTREAM if name in error.details}
    details = {"code": code, **upstream}
    return RequestError(
        status, kind, error.message, param=error.param, headers=headers, details=details, close=error.close
    )
