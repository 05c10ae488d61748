"""Nobody learns anything of the token from how long a refusal takes (rule S18)."""

from __future__ import annotations

import hmac

import pytest

from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.gateway.security import AccessPolicy
from miniclaw_sessions.service.gateway.token_table import TokenTable
from miniclaw_sessions.testing import FakeClock

TOKEN = "0123456789abcdef0123456789abcdef"
POLICY = AccessPolicy.of(TokenTable(TOKEN, [], FakeClock()), ["localhost:1"])


def refusal(headers: list[tuple[bytes, bytes]]) -> RequestError | None:
    try:
        POLICY.admit(headers, "read")
    except RequestError as error:
        return error
    return None


@pytest.mark.parametrize(
    "sent", [b"", TOKEN.encode(), TOKEN[:-1].encode(), b"x", "é".encode(), b"\xe9", b"x" * 100_000]
)
def test_every_answer_costs_one_comparison_of_equal_lengths_that_takes_the_same_time(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def watching(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", watching)
    headers = [(b"host", b"localhost:1"), (b"authorization", b"Bearer " + sent)]
    assert (refusal(headers) is None) == (sent == TOKEN.encode())
    assert [(type(one), len(one), type(other), len(other)) for one, other in compared] == [(bytes, 32, bytes, 32)]


def test_an_unknown_token_and_none_get_the_same_answer() -> None:
    host = (b"host", b"localhost:1")
    wrong, none = (refusal(headers) for headers in ([host, (b"authorization", b"Bearer x")], [host]))
    assert wrong is not None
    assert none is not None
    assert vars(wrong) == vars(none)
    assert "missing or wrong" in wrong.message
