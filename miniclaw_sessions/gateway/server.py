"""uvicorn as a guest in our own task group: it handles neither signals nor logs nor files.

`GatewayProtocol` adds what uvicorn leaves open: a bound on the bytes and on the time that a request's head may take, a
cap on connections, and an end to replies that nobody takes (rule S14).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import anyio
import orjson
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES = 65_536
"""Request line and headers together."""

KEEP_ALIVE_S = 75
"""How long an idle connection is kept for the next request."""

_LINGER_S = 0.1
_REPLY_S = 1.0  # turns are cut off when the grace is over; this is for telling their clients
_HEADER_OVERHEAD = len(": \r\n")


class GatewayProtocol(HttpToolsProtocol):
    """One connection.

    `scope["state"]["trusted"]` says whether it came by a Unix socket; `scope["state"]["abort"]` breaks it off.
    """

    head_timeout_s = 30.0
    max_connections = 512
    on_gone: Callable[[], None] = staticmethod(lambda: None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, or turn it away at once when there are too many."""
        super().connection_made(transport)
        self._in_head = False
        self._is_last = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        peer: Any = transport.get_extra_info("socket")
        self.app_state = {
            **self.app_state,
            "trusted": peer is not None and peer.family == socket.AF_UNIX,
            "abort": transport.abort,
        }
        # Counted apart, so that strangers who fill the TCP port do not lock out those who own the Unix socket.
        alike = sum(one.app_state["trusted"] == self.app_state["trusted"] for one in self.connections)
        if alike > self.max_connections:
            self._send_error("503 Service Unavailable", "too_many_connections", "too many connections; try again later")
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._head_arrived()
        super().connection_lost(exc)
        self.on_gone()

    def data_received(self, data: bytes) -> None:
        """Parse what came, as long as the head stays within its bound."""
        if self.transport.is_closing():
            return
        if self._is_idle and self._head_timer is None:
            self._await_head()
        if self._is_idle or self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if (self._is_idle or self._in_head) and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    def on_message_begin(self) -> None:
        """A request's first bytes are here."""
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        """The head is complete; one that is too large is refused before anything looks at it."""
        size = sum(len(name) + len(value) + _HEADER_OVERHEAD for name, value in self.headers) + len(self.url)
        if size > MAX_HEAD_BYTES:
            self._head_bytes = size
            raise ValueError("the head is too large")
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            raise ValueError("not a version that has headers")
        self._in_head = False
        self._head_bytes = 0
        self._head_arrived()
        super().on_headers_complete()
        if self._is_last:
            self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        del msg
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
        else:
            self._send_error("400 Bad Request", "bad_request", "this is not a valid HTTP request")

    def shutdown(self) -> None:
        """Answer no more than one request: the one in progress, or one that may be on its way already."""
        self._is_last = True
        if self._is_idle:
            self.loop.call_later(_LINGER_S, self._close_if_idle)
        else:
            super().shutdown()

    def _close_if_idle(self) -> None:
        if self._is_idle and not self._in_head:
            self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection, also if its client does not take the last reply."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(self.head_timeout_s, self.transport.abort)

    def _unsupported_upgrade_warning(self) -> None:
        """Somebody asks for another protocol: answer in this one, and close, because theirs may follow."""
        if self.cycle is not None:
            self.cycle.keep_alive = False

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_timed_out)

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timed_out(self) -> None:
        self._head_timer = None
        self._send_error("408 Request Timeout", "timeout", "the request did not arrive in time")

    def _refuse_head(self) -> None:
        self._send_error("431 Request Header Fields Too Large", "head_too_large", "the request's headers are too long")

    def _send_error(self, status: str, kind: str, message: str) -> None:
        """Answer without the application, and close."""
        self._head_arrived()
        if self.transport.is_closing():
            return
        if not self._is_idle:  # its reply would be mixed with this one
            self.transport.abort()
            return
        body = orjson.dumps({"error": {"message": message, "type": kind, "code": None, "param": None}})
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()
        self.loop.call_later(self.head_timeout_s, self.transport.abort)


class EmbeddedServer(uvicorn.Server):
    """Serves an application on sockets that are already bound.

    Args:
        app: the application.
        max_connections: how many clients may be connected at once by TCP, and as many by Unix sockets.
        request_timeout_s: how long a request's head may take.
        graceful_timeout_s: how long requests in flight may take to finish once the server stops; then they are
            cancelled.
    """

    def __init__(
        self, app: ASGIApp, *, max_connections: int, request_timeout_s: float, graceful_timeout_s: float
    ) -> None:
        limits = {
            "head_timeout_s": request_timeout_s,
            "max_connections": max_connections,
            "on_gone": staticmethod(self._connection_gone),
        }
        super().__init__(
            uvicorn.Config(
                app,
                http=type("BoundedProtocol", (GatewayProtocol,), limits),
                ws="none",
                loop="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="critical",  # strangers' errors would flood the log, and tracebacks hold their text
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )
        self.listening = anyio.Event()
        self.stopped = anyio.Event()
        self._told_to_stop = anyio.Event()
        self._one_gone = anyio.Event()
        self._patience_s = graceful_timeout_s + _REPLY_S
        self._patience = anyio.CancelScope()

    async def serve_until_stopped(self, sockets: Sequence[socket.socket]) -> None:
        """Serve until `stop`; on return no request is running any more."""
        await self.serve(list(sockets))
        self.stopped.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen and say so."""
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        """Keep the Date header right until told to stop: one wake-up per second instead of uvicorn's ten."""
        while not await self.on_tick(0):
            with anyio.move_on_after(1.0):
                await self._told_to_stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more; let requests in flight finish, cancel them when time is up; break off what is left."""
        for listening in (*self.servers, *(sockets or ())):
            listening.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        self._patience.deadline = anyio.current_time() + self._patience_s
        with self._patience:
            await self._finished()
        for task in self.server_state.tasks:
            task.cancel()
        with anyio.move_on_after(_REPLY_S):
            await self._finished()
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def _finished(self) -> None:
        """Wait for the requests, and then for their replies to be sent."""
        while tasks := self.server_state.tasks:
            await asyncio.wait(tasks)
        while self.server_state.connections:
            self._one_gone = anyio.Event()
            await self._one_gone.wait()

    def _connection_gone(self) -> None:
        self._one_gone.set()

    def stop(self) -> None:
        """Stop accepting and let the requests in flight finish."""
        self.should_exit = True
        self._told_to_stop.set()

    def hurry(self) -> None:
        """Wait no longer for the requests in flight."""
        self._patience.cancel()
        self.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the daemon."""
        yield
