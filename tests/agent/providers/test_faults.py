"""What a service's refusal means: its class, and when the service wants to be asked again."""

from __future__ import annotations

from typing import Any

import pytest

from miniclaw_sessions import errors
from miniclaw_sessions.agent.providers.faults import MAX_RETRY_AFTER_S, fault_of, named_status, retry_after_of

DATE = "Wed, 21 Oct 2026 07:28:00 GMT"


class Refused(Exception):
    """An error as the services' packages raise it.

    Attributes:
        headers: of the reply; pydantic-ai keeps them so, the others in `response`.
        body: what the service said.
    """

    def __init__(self, headers: dict[str, str] | None = None, body: Any = None) -> None:
        self.headers = headers
        self.body = body


class OfAReply(Refused):
    """One that keeps the reply itself."""

    def __init__(self, headers: dict[str, str]) -> None:
        super().__init__()
        self.response = Refused(headers)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"retry-after": " 2.5 "}, 2.5),
        ({"retry-after": "0"}, 0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": DATE, "date": "Wed, 21 Oct 2026 07:27:00 GMT"}, 60),
        ({"retry-after": DATE, "date": "Wed, 21 Oct 2026 09:00:00 GMT"}, 0),
        ({"retry-after": "999999999999"}, MAX_RETRY_AFTER_S),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, MAX_RETRY_AFTER_S),
        ({"retry-after": "Wed, 21 Oct 1999 07:28:00 GMT"}, 0),
        *(({"retry-after": wrong}, None) for wrong in ("", "-1", "nan", "inf", "1e9", "soon", "\u0667", "9" * 400)),
        ({"retry-after": "Wed, 99 Oct 2026 07:28:00 GMT"}, None),
        ({"retry-after": "Mon, 1 Jan 99999 00:00:00 GMT"}, None),
        ({}, None),
    ],
)
def test_a_wait_is_read_however_a_service_spells_it(headers: dict[str, str], seconds: float | None) -> None:
    raised = Refused()
    raised.__cause__ = OfAReply(headers)
    for error in (Refused(headers), OfAReply(headers), raised):
        assert retry_after_of(error) == seconds


@pytest.mark.parametrize(("delay", "seconds"), [("34s", 34), ("34.07s", 34.07), ("soon", None), (34, None)])
def test_googles_wait_stands_in_the_body(delay: Any, seconds: float | None) -> None:
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}
    assert retry_after_of(Refused(body={"error": {"code": 429, "details": [{"links": []}, info]}})) == seconds


def test_every_status_has_a_meaning() -> None:
    meant = {status: fault_of(status) for status in range(400, 1000)}
    assert {kind for status, kind in meant.items() if status < 500} == {
        errors.ModelRefused,
        errors.ModelAccessDenied,
        errors.ModelTimeout,
        errors.ModelRateLimited,
    }
    assert {kind for status, kind in meant.items() if status >= 500} == {
        errors.ModelUnavailable,
        errors.ModelTimeout,
        errors.ModelOverloaded,
    }
    assert [status for status, kind in meant.items() if issubclass(kind, errors.ModelOverloaded)] == [429, 503, 529]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"type": "overloaded_error"}, 529),
        ({"type": "error", "code": "rate_limit_exceeded"}, 429),
        ({"type": "something", "code": None}, None),
        ({"code": 429, "type": ["api_error"]}, None),
    ],
)
def test_what_ends_a_reply_is_known_by_its_name(fields: dict[str, Any], status: int | None) -> None:
    assert named_status(fields) == status
