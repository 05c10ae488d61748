"""HTTP over a Unix socket, for measuring servers: one connection, one request at a time.

A full client costs as much time as the daemon that it measures, and would take one of two cores from it.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import anyio
import httptools
import orjson
from anyio.abc import ByteStream


class Reply(NamedTuple):
    """The status and the whole body of a reply."""

    status: int
    body: bytes


class Connection:
    """A kept-alive connection; an async context manager. After any error it is of no use any more."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._body = bytearray()
        self._is_complete = False

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Connect.

        Raises:
            OSError: no process listens there.
        """
        return cls(await anyio.connect_unix(path))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await anyio.aclose_forcefully(self._stream)

    async def get(self, path: str) -> Reply:
        """Ask for something. Raises as `post`."""
        return await self._exchange(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())

    async def post(self, path: str, document: object) -> Reply:
        """Send a document as JSON.

        Raises:
            OSError, anyio.BrokenResourceError, anyio.EndOfStream: the connection ended before the reply was complete.
        """
        body = orjson.dumps(document)
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: "
        return await self._exchange(f"{head}{len(body)}\r\n\r\n".encode() + body)

    async def _exchange(self, request: bytes) -> Reply:
        self._body.clear()
        self._is_complete = False
        parser = httptools.HttpResponseParser(self)
        await self._stream.send(request)
        while not self._is_complete:
            parser.feed_data(await self._stream.receive())
        return Reply(parser.get_status_code(), bytes(self._body))

    # --- what the parser calls ---------------------------------------------------------------------------------------

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._body += data

    def on_message_complete(self) -> None:
        """The reply's end."""
        self._is_complete = True
