"""Bodies of requests and replies, as tests of the HTTP API write and check them."""

from __future__ import annotations

from typing import Any


def user(text: str) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": text}


def check_refusal(reply: Any, status: int, kind: str, param: str | None = None) -> None:
    """Assert that a reply refuses with this error, and says why."""
    assert (reply.status_code, reply.json()["error"]["type"]) == (status, kind), reply.text
    assert reply.json()["error"]["param"] == param
    assert reply.json()["error"]["message"]
