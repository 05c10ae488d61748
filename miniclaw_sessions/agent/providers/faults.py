"""The meaning of a service's refusal: which of our errors it is, and when the service wants the next request.

The services' packages raise errors of their own classes. All of them keep the reply's status, headers and body, under
one of a few names; only this module knows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.errors import (
    ModelAccessDenied,
    ModelError,
    ModelOverloaded,
    ModelRateLimited,
    ModelRefused,
    ModelTimeout,
    ModelUnavailable,
)

FIRST_ERROR = 400
MAX_RETRY_AFTER_S = 7 * 86_400.0
"""The longest wait, in seconds, that is accepted from a service."""

_FIRST_FAULT = 500
_FAULTS: Mapping[int, type[ModelError]] = {
    401: ModelAccessDenied,
    402: ModelAccessDenied,
    403: ModelAccessDenied,
    407: ModelAccessDenied,
    408: ModelTimeout,
    429: ModelRateLimited,
    503: ModelOverloaded,
    504: ModelTimeout,
    524: ModelTimeout,
    529: ModelOverloaded,
}
_ADVICE = {
    401: "check the API key",
    402: "the account has no credit left: look at its billing",
    403: "the API key may not use this model",
    404: "check base_url and the model's name",
    408: "try again",
    429: "too many requests, or the quota is used up; try again later",
}
_NAMED = {
    **dict.fromkeys(("rate_limit_error", "rate_limit_exceeded", "insufficient_quota"), 429),
    **dict.fromkeys(("overloaded_error", "server_is_overloaded", "slow_down"), 529),
    **dict.fromkeys(("api_error", "server_error"), 500),
    **dict.fromkeys(("invalid_request_error", "invalid_prompt"), 400),
    "timeout_error": 504,
    "authentication_error": 401,
    "permission_error": 403,
    "billing_error": 402,
}
"""The name of an error within a reply that had begun, where no status can say it."""

_NUMBER = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*")
_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)s")


def fault_of(status: int) -> type[ModelError]:
    """The class of our error for a service's status, from 400 on."""
    return _FAULTS.get(status, ModelRefused if status < _FIRST_FAULT else ModelUnavailable)


def advice_for(status: int) -> str:
    """The advice for a service's status, from 400 on."""
    wrong = "it found the request wrong: check the model's name and what it supports"
    return _ADVICE.get(status, wrong if status < _FIRST_FAULT else "try again later")


def status_of(error: Exception) -> int | None:
    """The HTTP status of an error of a service's package; None if it has none."""
    status = getattr(error, "status_code", None) or getattr(error, "code", None)
    return status if isinstance(status, int) else None


def named_status(fields: Mapping[str, Any]) -> int | None:
    """The status that an error within a reply would have had before it; None if its name is not known."""
    named = (fields.get(name) for name in ("code", "type"))
    return next((_NAMED[name] for name in named if isinstance(name, str) and name in _NAMED), None)


def fields_of(error: Exception) -> Mapping[str, Any]:
    """The service's own text for an error, where the packages keep it; empty without one."""
    body = getattr(error, "body", None) or getattr(error, "details", None)
    fields = body.get("error", body) if isinstance(body, dict) else None
    return fields if isinstance(fields, dict) else {}


def sentence_of(error: Exception) -> str:
    """The service's own sentence, from any of its places; empty without one."""
    body = getattr(error, "body", None) or getattr(error, "details", None)
    text = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(text, dict):
        text = next((text[name] for name in ("message", "detail", "error") if isinstance(text.get(name), str)), "")
    return text.strip() if isinstance(text, str) and not text.lstrip().startswith("<") else ""


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """The error, its cause, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def retry_after_of(error: Exception) -> float | None:
    """Seconds after which the service wants the next request; None if it has not said, or not in a known form.

    The headers `retry-after-ms` and `retry-after` say it, there as seconds or as a date. Google says it in the body, as
    the `retryDelay` of its `RetryInfo`, such as "34s".
    """
    headers = _headers_of(error)
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        if found := _NUMBER.fullmatch(headers.get(name, "")):
            return min(float(found[1]) / unit, MAX_RETRY_AFTER_S)
    if (until := _date(headers.get("retry-after"))) is not None:
        now = _date(headers.get("date")) or SystemClock().now()  # the service's own clock, if it is known
        return min(max((until - now).total_seconds(), 0.0), MAX_RETRY_AFTER_S)
    details = fields_of(error).get("details")
    delays = [one.get("retryDelay") for one in details if isinstance(one, dict)] if isinstance(details, list) else []
    stated = next((match for text in delays if isinstance(text, str) and (match := _DURATION.fullmatch(text))), None)
    return None if stated is None else min(float(stated[1]), MAX_RETRY_AFTER_S)


def _headers_of(error: Exception) -> Mapping[str, str]:
    """The headers of the reply behind an error, their names in lower case."""
    for one in causes_of(error):
        for holder in (one, getattr(one, "response", None)):
            headers = getattr(holder, "headers", None)
            if isinstance(headers, Mapping):
                return {str(name).lower(): str(value) for name, value in headers.items()}
    return {}


def _date(text: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(text or "")
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
