"""The HTTP client for the model services' packages, with a bound on the size of one reply.

It asks for uncompressed replies, and refuses compressed ones: a small one could expand to any size. Each line and the
whole reply are bounded while they are read, because the packages buffer a line until it ends.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Sequence
from functools import cache
from typing import Any

import httpx2

from miniclaw_sessions.agent.providers.trace_headers import trace_headers

WIRE_FACTOR = 16
"""A reply has at most this many times `max_reply_bytes` on the wire: each word of it comes in a document."""

_LIMITS = httpx2.Limits(max_connections=1000, max_keepalive_connections=100)  # the packages' own values


class ReplyTooLarge(httpx2.TransportError):
    """The reply exceeded its bound, and was not read to its end."""


def bounded_client(max_reply_bytes: int, *, hooks: Sequence[Any] = ()) -> httpx2.AsyncClient:
    """A client whose replies are bounded.

    Args:
        max_reply_bytes: of one line; the whole may have `WIRE_FACTOR` times as many.
        hooks: further hooks for responses, called before their bodies are read.
    """

    async def bound(response: httpx2.Response) -> None:
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise ReplyTooLarge(f"the reply is compressed ({encoding}) though that was not asked for")
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Bounded(response.stream, max_reply_bytes)

    async def add(request: httpx2.Request) -> None:
        request.headers.update(trace_headers.get())

    return httpx2.AsyncClient(
        headers={"Accept-Encoding": "identity"},
        follow_redirects=True,
        limits=_LIMITS,
        verify=trusted(),
        event_hooks={"request": [add], "response": [bound, *hooks]},
    )


def trusted() -> ssl.SSLContext:
    """The certificate authorities, one object for all clients: reading them takes 50 ms."""
    return _trusted(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _trusted(file: str | None, directory: str | None) -> ssl.SSLContext:
    """The authorities that httpx trusts by default while its variables have these values."""
    del file, directory
    return httpx2.create_ssl_context()


class _Bounded(httpx2.AsyncByteStream):
    """The same bytes, up to the bound."""

    def __init__(self, stream: httpx2.AsyncByteStream, max_line: int) -> None:
        self._stream = stream
        self._max_line = max_line
        self._line = 0
        self._whole = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._whole += len(chunk)
            end = chunk.rfind(b"\n")
            self._line = self._line + len(chunk) if end < 0 else len(chunk) - end - 1
            if self._line > self._max_line or self._whole > WIRE_FACTOR * self._max_line:
                raise ReplyTooLarge(f"the reply passed the bound of model.max_reply_bytes, {self._max_line} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
