"""A socket before the daemon's on which answers to first requests are lost: what was asked was done all the same."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

LOST = b"HTTP/1.1 500 Lost\r\nretry-after-ms: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Lossy:
    """Passes on requests of the `openai` package.

    Attributes:
        losses: how many answers were lost.
        on_loss: what happens then, before the client hears of it.
    """

    def __init__(self, daemon: Path, *, is_cut: bool) -> None:
        self.losses = 0
        self.on_loss: Callable[[], Awaitable[None]] | None = None
        self._daemon = daemon
        self._is_cut = is_cut

    async def serve(self, stream: Any) -> None:
        """Pass on one request of a connection."""
        async with stream, await anyio.connect_unix(str(self._daemon)) as onwards:
            request = b""
            while not _is_whole(request):
                request += await stream.receive()
            await onwards.send(request.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
            reply = b"".join([piece async for piece in onwards])
            is_first = b"x-stainless-retry-count: 0" in request.lower() and not request.startswith(b"GET")
            if is_first and reply.startswith(b"HTTP/1.1 200"):
                self.losses += 1
                reply = b"" if self._is_cut else LOST
                if self.on_loss is not None:
                    await self.on_loss()
            if reply:
                await stream.send(reply)


def _is_whole(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    return end != b"" and len(body) == int(length[1] if length else 0)


@asynccontextmanager
async def lossy(daemon: Path, *, is_cut: bool) -> AsyncIterator[tuple[Path, Lossy]]:
    """Where such a socket is, and what it does.

    Args:
        daemon: the daemon's own socket.
        is_cut: whether the connection ends instead of an answer; else there is a 500.
    """
    way = Lossy(daemon, is_cut=is_cut)
    address = daemon.parent / "lossy"
    async with await anyio.create_unix_listener(str(address)) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, way.serve)
        yield address, way
        tasks.cancel_scope.cancel()
