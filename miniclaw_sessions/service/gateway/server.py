"""uvicorn as a guest in our own task group: it handles neither sockets nor signals nor logs nor files.

`GatewayProtocol` adds what uvicorn leaves open: a bound on the bytes and on the time that a request's head may take, on
the requests that wait for the one before them, a cap on connections, and an end to replies that no client reads (rule
S14). `EmbeddedServer` accepts the clients itself, because the event loops turn clients away, and say nothing, when
there are no descriptors for them.
"""

from __future__ import annotations

import asyncio
import errno
import math
import resource
import select
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, cast

import anyio
import httptools
import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from miniclaw_sessions.log import get_logger
from miniclaw_sessions.service.gateway.exchange import REQUEST_ID, request_id_of

MAX_HEAD_BYTES = 65_536
"""Request line and headers together."""

MAX_PIPELINED = 64
"""How many requests of one connection may wait for the reply to the one before them."""

KEEP_ALIVE_S = 75
"""How long an idle connection is kept for the next request."""

IDLE_GRACE_S = 2.0
"""How long an idle connection outlives the order to stop; a client that is about to ask again asks within this time."""

BACKLOG = 2048
"""How many clients may wait to be accepted; the kernel may allow fewer."""

HURRIED_S = 1.0
"""How long, after a second signal, a turn that is cut off may take to be saved and reported."""

_LAST_WORDS_S = 5.0  # turns are cut off when the grace is over; a busy machine needs a while to save that and tell it
_REPLY_S = 1.0
_RETRY_S = 1.0  # until it is tried again to accept a client
_PROBLEM_FOR_S = 5.0  # a shortage of descriptors is a problem of health so long after it was last seen
_LOGGED_EVERY_S = 60.0
_RESERVED_DESCRIPTORS = 32  # for the store and the logs
_UPGRADE_TOKENS = frozenset({b"upgrade", b"http2-settings"})
_HEADER_OVERHEAD = len(": \r\n")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

log = get_logger(__name__)


class _Refusal(NamedTuple):
    """A reply without the application."""

    status: str
    kind: str
    message: str


BAD_REQUEST = _Refusal("400 Bad Request", "bad_request", "this is not a valid HTTP request")
TIMED_OUT = _Refusal("408 Request Timeout", "timeout", "the request did not arrive in time")
HEAD_TOO_LARGE = _Refusal(
    "431 Request Header Fields Too Large", "head_too_large", "the request's headers or trailers are too long"
)
UNKNOWN_CODING = _Refusal(
    "501 Not Implemented", "unknown_transfer_coding", "the only transfer coding that is known here is chunked"
)
TOO_MANY_CONNECTIONS = _Refusal(
    "503 Service Unavailable", "too_many_connections", "too many connections; try again later"
)


class GatewayProtocol(HttpToolsProtocol):
    """One connection.

    `scope["state"]["trusted"]` says whether it came by a Unix socket; `scope["state"]["abort"]` breaks it off.
    """

    timeout_s = 30.0
    """How long a request's head may take, and what waits of its reply may stay untaken."""
    max_connections = 512
    connected: ClassVar[Counter[bool]] = Counter()
    """How many are connected, by whether they are trusted."""
    on_gone: Callable[[], None] = staticmethod(lambda: None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, or turn it away at once when there are too many."""
        super().connection_made(transport)
        self._in_head = False
        self._is_last = False
        self._head_bytes = 0
        self._bytes_beside_body = 0
        self._refused = BAD_REQUEST
        self._head_timer: asyncio.TimerHandle | None = None
        self._reply_timer: asyncio.TimerHandle | None = None
        self._answered: RequestResponseCycle | None = None
        peer: Any = transport.get_extra_info("socket")
        self.app_state = {
            **self.app_state,
            "trusted": peer is not None and peer.family == socket.AF_UNIX,
            "abort": transport.abort,
        }
        # Counted apart, so that strangers who fill the TCP port do not lock out those who own the Unix socket.
        self.connected[self.app_state["trusted"]] += 1
        if self.connected[self.app_state["trusted"]] > self.max_connections:
            self._refuse(TOO_MANY_CONNECTIONS)
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.connected[self.app_state["trusted"]] -= 1
        self._head_arrived()
        self._reply_taken()
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True  # uvicorn informs the newest request only; this one may wait before it
            self._answered.message_event.set()
        super().connection_lost(exc)
        self.pipeline.clear()
        self.cycle = self._answered = None  # type: ignore[assignment]  # they refer to this connection
        self.on_gone()

    def eof_received(self) -> None:
        """The client sends nothing more: what is written already is still sent."""
        self._close()

    def data_received(self, data: bytes) -> None:
        """Parse what came, as long as the head, and what is sent beside the body, stays within its bound."""
        cycle: RequestResponseCycle | None = self.cycle
        has_last = cycle is not None and not (cycle.keep_alive or cycle.more_body or cycle.response_complete)
        if self.transport.is_closing() or has_last:  # what comes behind a connection's last request means nothing
            return
        if self._is_idle or self._in_head:
            self._head_bytes += len(data)
        else:
            self._bytes_beside_body += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        is_head = self._is_idle or self._in_head
        if self._is_idle and self._head_timer is None and not self.transport.is_closing():  # else it is here already
            self._await_head()
        if (self._head_bytes if is_head else self._bytes_beside_body) > MAX_HEAD_BYTES:  # the latter: trailers
            self._refuse(HEAD_TOO_LARGE)

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(HEAD_TOO_LARGE if self._head_bytes > MAX_HEAD_BYTES else self._refused)
        except httptools.HttpParserUpgrade as upgrade:
            if self.parser.get_method() == b"CONNECT":
                self._refuse(BAD_REQUEST)
                return
            # RFC 9110, 7.8: who does not speak the other protocol answers in this one, as if nothing had been said.
            # The parser has no call for that: it starts again, with a head that does not ask.
            head = self._head_without_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn sets it for its own
            self._parse(head + data[upgrade.args[0] :])

    def _head_without_upgrade(self) -> bytes:
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + self.parser.get_http_version().encode()]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(token for token in tokens if token.lower() not in _UPGRADE_TOKENS)  # noqa: PLW2901
            if name not in _UPGRADE_TOKENS and (value or name != b"connection"):
                lines.append(name + b": " + value)
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def on_message_begin(self) -> None:
        """A request's first bytes are here."""
        super().on_message_begin()
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; trailers are of no use to anybody here."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete; one that is too large or not to be understood is refused before anything sees it."""
        size = sum(len(name) + len(value) + _HEADER_OVERHEAD for name, value in self.headers) + len(self.url)
        if size > MAX_HEAD_BYTES:
            self._head_bytes = size
            raise ValueError("the head is too large")
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            raise ValueError("not a version that has headers")
        coding = b", ".join(value for name, value in self.headers if name == b"transfer-encoding")
        if coding.strip().lower() not in (b"", b"chunked"):
            self._refused = UNKNOWN_CODING
            raise ValueError("not a transfer coding that is known here")
        if self._is_upgrade:
            return
        self._in_head = False
        self._head_bytes = 0
        self._head_arrived()
        if len(self.pipeline) >= MAX_PIPELINED:  # each reply lets uvicorn read on, however many wait already
            raise ValueError("too many requests wait")
        super().on_headers_complete()
        # In time: the application answers in the next turn of the loop.
        self.cycle.transport = cast("Any", _HeadWithBody(self.transport, self._close))
        if self._is_last:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._bytes_beside_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is here as a whole."""
        if not self._is_upgrade:
            self._bytes_beside_body = 0
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def pause_writing(self) -> None:
        """The client takes its reply more slowly than it is made, or not at all."""
        super().pause_writing()
        self._await_taking()

    def resume_writing(self) -> None:
        """The client took almost all that waited."""
        super().resume_writing()
        if not self.transport.is_closing():  # else nothing would limit how long the rest takes
            self._reply_taken()

    def shutdown(self) -> None:
        """Answer the request in progress, or else the next one, as the last of this connection."""
        self._is_last = True
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def close_if_idle(self) -> None:
        """Close the connection unless a request is being answered, has begun, or waits in the socket unread."""
        if not self._is_idle or self._in_head:
            return
        peer: Any = self.transport.get_extra_info("socket")
        if peer is not None and peer.fileno() >= 0:  # else it is closing already
            poll = select.poll()
            poll.register(peer.fileno(), select.POLLIN)
            if poll.poll(0):
                return
        self._close()

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection, also if its client does not take the last reply."""
        self._close()

    @property
    def _is_upgrade(self) -> bool:
        """Whether the head that has come asks for another protocol."""
        return bool(self.parser.should_upgrade())

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.timeout_s, self._head_timed_out)

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timed_out(self) -> None:
        self._head_timer = None
        self._refuse(TIMED_OUT)

    def _await_taking(self) -> None:
        if self._reply_timer is None:
            self._reply_timer = self.loop.call_later(self.timeout_s, self._stalled)

    def _reply_taken(self) -> None:
        if self._reply_timer is not None:
            self._reply_timer.cancel()
            self._reply_timer = None

    def _stalled(self) -> None:
        log.info("a client did not take its reply and was disconnected", action="http.stalled")
        self.transport.abort()

    def _close(self) -> None:
        """Close when what was written is taken, or its time is up: until then it holds one of the connections."""
        if not self.transport.is_closing():
            self.transport.close()
            self._await_taking()

    def _refuse(self, refusal: _Refusal) -> None:
        """Answer without the application, and close."""
        self._head_arrived()
        if self.transport.is_closing():
            return
        if not self._is_idle:  # its reply would be mixed with this one
            self.transport.abort()
            return
        error = {"message": refusal.message, "type": refusal.kind, "code": None, "param": None}
        body = orjson.dumps({"error": error})
        head = f"HTTP/1.1 {refusal.status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        head += f"{REQUEST_ID.decode()}: {request_id_of()}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self._close()


class _HeadWithBody:
    """A reply's way to its connection: its head goes with the first piece of its body, so that a client wakes once.

    A head that nothing follows goes in the next turn of the loop.
    """

    __slots__ = ("_close", "_has_head", "_head", "_transport")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self._close = close
        self._head = b""
        self._has_head = False

    def is_closing(self) -> bool:
        """Whether nothing reaches the client any more."""
        return self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """First the head (before it only `_CONTINUE`), and then the body."""
        if self._has_head:
            head, self._head = self._head, b""
            self._transport.write(head + data if head else data)
        elif data == _CONTINUE:
            self._transport.write(data)
        else:
            self._has_head, self._head = True, data
            asyncio.get_running_loop().call_soon(self._flush)

    def close(self) -> None:
        """End the connection after what was written."""
        self._flush()
        self._close()

    def _flush(self) -> None:
        if self._head and not self._transport.is_closing():
            self.write(b"")


class EmbeddedServer(uvicorn.Server):
    """Serves an application on sockets that are already bound.

    Args:
        app: the application, as ASGI calls it.
        max_connections: how many clients may be connected at once by TCP, and as many by Unix sockets.
        request_timeout_s: how long a request's head may take, and a client that does not take its reply.
        graceful_timeout_s: how long requests in flight may take to finish once the server stops; then they are
            cancelled.
    """

    def __init__(self, app: Any, *, max_connections: int, request_timeout_s: float, graceful_timeout_s: float) -> None:
        limits = {
            "timeout_s": request_timeout_s,
            "max_connections": max_connections,
            "connected": Counter(),
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
        self.on_stopping: Callable[[], object] = lambda: None
        """Called when every connection knows that its next reply is its last: what has no end by itself ends now."""
        self.listening = anyio.Event()
        self.stopped = anyio.Event()
        self._told_to_stop = anyio.Event()
        self._one_gone = anyio.Event()
        self._grace_s = graceful_timeout_s
        self._grace = anyio.CancelScope()
        self._last_words = anyio.CancelScope()
        self._short_of_room_at = -math.inf

    async def serve_until_stopped(self, sockets: Sequence[socket.socket]) -> None:
        """Serve until `stop`; on return no request is running any more."""
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        async with anyio.create_task_group() as tasks:
            for listening in sockets:
                listening.setblocking(False)  # noqa: FBT003 - its only argument
                listening.listen(BACKLOG)
                tasks.start_soon(self._accept, listening, name="accept")
            self.listening.set()
            await self.main_loop()
            tasks.cancel_scope.cancel()
        await self.shutdown(list(sockets))
        self.stopped.set()

    def problems(self) -> list[str]:
        """What keeps new clients away, or did a moment ago, one sentence each."""
        if anyio.current_time() - self._short_of_room_at > _PROBLEM_FOR_S:
            return []
        return ["there are not enough file descriptors for all clients; raise LimitNOFILE, or look for what holds them"]

    async def _accept(self, listening: socket.socket) -> None:
        """Accept one client after the other; where there is no descriptor for one, it waits, and is not turned away.

        Waiting is all that can be cancelled here: who is accepted is served.
        """
        while True:
            await anyio.wait_readable(listening)
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                continue
            except OSError as error:
                await self._wait_for_room(error.errno)
                continue
            connection.setblocking(False)  # noqa: FBT003 - its only argument
            with anyio.CancelScope(shield=True):
                await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if connection.fileno() >= soft - min(_RESERVED_DESCRIPTORS, soft // 4):
                await self._wait_for_room(errno.EMFILE)

    def _protocol(self) -> asyncio.Protocol:
        protocol: Any = self.config.http_protocol_class
        made: asyncio.Protocol = protocol(config=self.config, server_state=self.server_state, app_state={})
        return made

    async def _wait_for_room(self, reason: int | None) -> None:
        """Wait until a connection has gone, or for a moment: other code may have freed a descriptor."""
        if anyio.current_time() - self._short_of_room_at > _LOGGED_EVERY_S:
            log.error("clients wait: there is no room to accept them", action="server.no_room", errno=reason)
        self._short_of_room_at = anyio.current_time()
        with anyio.move_on_after(_RETRY_S):
            await self._one_gone.wait()

    async def main_loop(self) -> None:
        """Keep the Date header right until the server stops: one wake-up per second instead of uvicorn's ten."""
        while not await self.on_tick(0):
            with anyio.move_on_after(1.0):
                await self._told_to_stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more; let requests in flight finish, cancel them when time is up; break off what is left.

        An idle connection stays open until its next request has been answered with `connection: close`, or for
        `IDLE_GRACE_S`: that request may be on its way already.
        """
        for listening in sockets or ():
            listening.close()
        connections = self.server_state.connections
        for connection in list(connections):
            connection.shutdown()
        self.on_stopping()
        self._grace.deadline = anyio.current_time() + self._grace_s
        with self._grace:
            with anyio.move_on_after(IDLE_GRACE_S):
                await self._all_gone()
            self._close_idle()
            await self._all_gone()
        self._close_idle()
        self._last_words.deadline = min(self._last_words.deadline, anyio.current_time() + _LAST_WORDS_S)
        with self._last_words:  # turns are cut off now: their clients hear it
            await self._all_gone()
        for task in self.server_state.tasks:
            task.cancel()
        with anyio.move_on_after(_REPLY_S):
            await self._all_gone()
        for connection in list(connections):
            connection.transport.abort()

    def _close_idle(self) -> None:
        for connection in list(self.server_state.connections):
            cast("GatewayProtocol", connection).close_if_idle()

    async def _all_gone(self) -> None:
        """Wait for the requests and their replies."""
        while tasks := self.server_state.tasks:
            await asyncio.wait(tasks)
        while self.server_state.connections:
            await self._one_gone.wait()

    def _connection_gone(self) -> None:
        gone, self._one_gone = self._one_gone, anyio.Event()
        gone.set()

    def stop(self) -> None:
        """Stop accepting and let the requests in flight finish."""
        self.should_exit = True
        self._told_to_stop.set()

    def hurry(self) -> None:
        """Wait no longer for the requests in flight."""
        self._grace.cancel()
        self._last_words.deadline = min(self._last_words.deadline, anyio.current_time() + HURRIED_S)
        self.stop()
