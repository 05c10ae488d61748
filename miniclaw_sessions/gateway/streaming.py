"""Replies that are sent piece by piece, and clients that go away meanwhile."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from miniclaw_sessions.api.operation import PIECE_BYTES
from miniclaw_sessions.log import get_logger

log = get_logger(__name__)

T = TypeVar("T")


class ByteStream(Response):
    """A response whose body is produced while it is sent.

    A client that goes away ends the production; one that takes nothing for `stall_s` seconds is disconnected. In
    every case `at_end` is called.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        media_type: str,
        *,
        stall_s: float,
        status: int = 200,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(None, status, {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}, media_type)
        del self.headers["content-length"]
        self._chunks = chunks
        self._stall_s = stall_s
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, unless the client goes away."""
        try:
            async with aclosing(self._chunks), anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_when_gone, receive, tasks.cancel_scope, name="client watch")
                await self._send_all_or_break_off(scope, send)
                tasks.cancel_scope.cancel()
        finally:
            self._at_end()

    async def _send_all_or_break_off(self, scope: Scope, send: Send) -> None:
        """Too late for an error reply: the client sees a broken end."""
        try:
            await self._send_all(send)
        except TimeoutError:
            log.info("a client did not take its reply and was disconnected", action="http.stalled")
            scope["state"]["abort"]()
        except Exception as error:  # noqa: BLE001 - an edge: nobody above could still answer
            log.error("a reply broke off", action="http.broke_off", error_type=type(error).__name__)
            scope["state"]["abort"]()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._chunks:
            await self._send_piece(send, chunk, more=True)
        await self._send_piece(send, b"", more=False)

    async def _send_piece(self, send: Send, chunk: bytes, *, more: bool) -> None:
        with anyio.fail_after(self._stall_s):
            await send({"type": "http.response.body", "body": chunk, "more_body": more})
            await checkpoint()  # a client that takes everything at once must not keep the others waiting


async def cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    """Wait for the client to go away, and cancel what is done for it."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def with_first(first: bytes, rest: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """A first chunk that had to be seen before the reply could begin, and then the others."""
    yield first
    async for chunk in rest:
        yield chunk


async def sliced(encoded: bytes) -> AsyncGenerator[bytes, None]:
    """A long document in pieces."""
    for start in range(0, len(encoded), PIECE_BYTES):
        yield encoded[start : start + PIECE_BYTES]


async def while_client_waits(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What may take as long as the session is large, or the model is slow: it ends when the client goes away.

    The request's body must have been read.

    Raises:
        ClientDisconnect: the client has gone, and the work was cancelled.
    """
    done: list[T] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel_when_gone, request.receive, tasks.cancel_scope, name="client watch")
        try:
            done.append(await work)
        except Exception as error:  # noqa: BLE001 - raised again below: a task group would wrap it
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not done:
        raise ClientDisconnect
    return done[0]
