"""One client's connection: its requests come in, and each is answered when the one before it was.

httptools parses. What it leaves open is bounded here: the bytes and the time that a request's head may take, the
requests that wait for the one before them, and the time that a client may leave its reply untaken (rule S14).
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import httptools
import orjson

from miniclaw_sessions.log import get_logger
from miniclaw_sessions.service.api.error_table import as_reply
from miniclaw_sessions.service.gateway.exchange import REQUEST_ID, Exchange, Reply, Request, request_id_of

MAX_HEAD_BYTES = 65_536
"""Request line and headers together."""

MAX_PIPELINED = 64
"""How many requests of one connection may wait for the reply to the one before them."""

KEEP_ALIVE_S = 75.0
"""How long an idle connection is kept for the next request."""

_UPGRADE_TOKENS = frozenset({b"upgrade", b"http2-settings"})
_KNOWN_CODINGS = (b"", b"chunked;")  # of one header, as `on_header` notes it
_HEADER_OVERHEAD = len(": \r\n")

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


@dataclass(eq=False)
class ServerState:
    """What all connections of a server share.

    Attributes:
        app: answers a request.
        timeout_s: how long a request's head may take, and what waits of its reply may stay untaken.
        max_connections: how many there may be that are trusted, and how many that are not.
        on_gone: called when a connection is gone.
        connections: those that are open.
        connected: how many are connected, by whether they are trusted.
        tasks: the requests that are being answered.
        answered: how many replies were sent.
        date: the line of the `Date` header.
    """

    app: Callable[[Exchange], Awaitable[None]]
    timeout_s: float
    max_connections: int
    on_gone: Callable[[], None]
    connections: set[Connection] = field(default_factory=set)
    connected: Counter[bool] = field(default_factory=Counter)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    answered: int = 0
    date: bytes = b""


class Connection(asyncio.Protocol):
    """One connection, and the exchanges on it.

    Attributes:
        transport: sends and receives.
        is_trusted: whether it came by a Unix socket.
        is_last: whether the request in progress, or else the next one, is the last.
        exchange: the newest request; None: there was none yet.
    """

    def __init__(self, state: ServerState) -> None:
        self.transport: asyncio.Transport
        self.is_trusted = False
        self.is_last = False
        self.exchange: Exchange | None = None
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._parser = _new_parser(self)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._coding = b""
        self._size = 0
        self._in_head = False
        self._head_bytes = self._bytes_beside_body = 0
        self._refused = BAD_REQUEST
        self._answering: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._is_paused = False
        self._is_full = False
        self._room: asyncio.Future[None] | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._reply_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    # --- what happens on it ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or turn it away at once when there are too many."""
        state, self.transport = self._state, cast("asyncio.Transport", transport)
        peer: Any = transport.get_extra_info("socket")
        self.is_trusted = peer is not None and peer.family == socket.AF_UNIX
        state.connections.add(self)
        # Counted apart, so that strangers who fill the TCP port do not lock out those who own the Unix socket.
        state.connected[self.is_trusted] += 1
        if state.connected[self.is_trusted] > state.max_connections:
            self._refuse(TOO_MANY_CONNECTIONS)
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        del exc
        self._state.connections.discard(self)
        self._state.connected[self.is_trusted] -= 1
        self._head_arrived()
        self._reply_taken()
        self._not_idle()
        for exchange in (self._answering, self.exchange):
            if exchange is not None and not exchange.is_over:
                exchange.lose()
        self._make_room()
        self._waiting.clear()
        self.exchange = self._answering = None  # they refer to this connection
        del self._parser  # so does this
        self._state.on_gone()

    def eof_received(self) -> None:
        """The client sends nothing more: what is written already is still sent."""
        self._close()

    def data_received(self, data: bytes) -> None:
        """Parse what came, as long as the head, and what is sent beside the body, stays within its bound."""
        exchange = self.exchange
        has_last = exchange is not None and exchange.is_whole and not (exchange.keeps_alive or exchange.is_over)
        if self.transport.is_closing() or has_last:  # what comes behind a connection's last request means nothing
            return
        if self._is_idle or self._in_head:
            self._head_bytes += len(data)
        else:
            self._bytes_beside_body += len(data)
        self._not_idle()
        self._parse(data)
        is_idle = self._is_idle
        if is_idle and self._head_timer is None and not self.transport.is_closing():  # else it is here already
            self._await_head()
        size = self._head_bytes if is_idle or self._in_head else self._bytes_beside_body  # the latter: trailers
        if size > MAX_HEAD_BYTES:
            self._refuse(HEAD_TOO_LARGE)

    def pause_writing(self) -> None:
        """The client takes its reply more slowly than it is made, or not at all."""
        self._is_full = True
        self._await_taking()

    def resume_writing(self) -> None:
        """The client took almost all that waited."""
        self._make_room()
        if not self.transport.is_closing():  # else nothing would limit how long the rest takes
            self._reply_taken()

    # --- what the parser finds ---------------------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(HEAD_TOO_LARGE if self._head_bytes > MAX_HEAD_BYTES else self._refused)
        except httptools.HttpParserUpgrade as upgrade:
            if self._parser.get_method() == b"CONNECT":
                self._refuse(BAD_REQUEST)
                return
            # RFC 9110, 7.8: who does not speak the other protocol answers in this one, as if nothing had been said.
            # The parser has no call for that: it starts again, with a head that does not ask.
            head = self._head_without_upgrade()
            self._parser = _new_parser(self)
            self._parse(head + data[upgrade.args[0] :])

    def _head_without_upgrade(self) -> bytes:
        lines = [self._parser.get_method() + b" " + self._url + b" HTTP/" + self._parser.get_http_version().encode()]
        for name, value in self._headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(token for token in tokens if token.lower() not in _UPGRADE_TOKENS)  # noqa: PLW2901
            if name not in _UPGRADE_TOKENS and (value or name != b"connection"):
                lines.append(name + b": " + value)
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def on_message_begin(self) -> None:
        """A request's first bytes are here."""
        self._url = b""
        self._headers = []
        self._coding = b""
        self._size = 0
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        """The request's target, or a part of it."""
        self._url += url
        self._size += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; trailers are of no use to anybody here."""
        if self._in_head:
            name = name.lower()
            self._headers.append((name, value))
            self._size += len(name) + len(value) + _HEADER_OVERHEAD
            if name == b"transfer-encoding":
                self._coding += value.strip().lower() + b";"

    def on_headers_complete(self) -> None:
        """The head is complete; one that is too large or not to be understood is refused before anything sees it."""
        if self._size > MAX_HEAD_BYTES:
            self._head_bytes = self._size
            raise ValueError("the head is too large")
        version = self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise ValueError("not a version that has headers")
        if self._coding not in _KNOWN_CODINGS:
            self._refused = UNKNOWN_CODING
            raise ValueError("not a transfer coding that is known here")
        if self._parser.should_upgrade():
            return
        self._in_head = False
        self._head_bytes = 0
        self._head_arrived()
        if len(self._waiting) >= MAX_PIPELINED:  # each reply lets the connection read on, however many wait already
            raise ValueError("too many requests wait")
        self._begin(is_old=version == "1.0")

    def _begin(self, *, is_old: bool) -> None:
        """Answer the request whose head is here, or let it wait for the one before it."""
        path, query = _target(self._url)
        keeps_alive = not is_old and not self.is_last and self._parser.should_keep_alive()
        method = self._parser.get_method().decode("ascii")
        is_idle = self._is_idle
        self.exchange = Exchange(Request(method, path, query, self._headers, is_old, keeps_alive), self)
        if is_idle:
            self._answer(self.exchange)
        else:
            self.pause_reading()
            self._waiting.append(self.exchange)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._bytes_beside_body = 0
        if self.exchange is not None:
            self.exchange.feed(body)

    def on_message_complete(self) -> None:
        """The request is here as a whole."""
        if self.exchange is not None and not self._parser.should_upgrade():
            self._bytes_beside_body = 0
            self.exchange.end()

    # --- answering ---------------------------------------------------------------------------------------------------

    def _answer(self, exchange: Exchange) -> None:
        self._answering = exchange
        # in a context of its own: the reply before it, which may have let it begin, had another name and span
        task = self._loop.create_task(self._answered_by_app(exchange), context=self._context.copy())
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    async def _answered_by_app(self, exchange: Exchange) -> None:
        try:
            await self._state.app(exchange)
        except asyncio.CancelledError:  # the server's time is up
            if not exchange.status:
                exchange.keeps_alive = False
                await exchange.reply(Reply.of_error(as_reply(TimeoutError())))
        except Exception as error:  # noqa: BLE001 - its text may be a message's
            log.error("a request was not answered", action="http.failed", error_type=type(error).__name__)
        if not (exchange.is_over or exchange.is_gone):
            self.abort()

    @property
    def address(self) -> str:
        """The client's IP address, without its port; empty where it has none, as on a Unix socket."""
        peer = self.transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else ""

    @property
    def date(self) -> bytes:
        """The `Date` header's line."""
        return self._state.date

    def write(self, data: bytes) -> None:
        """Send this; what is written to a connection that is gone goes nowhere."""
        if not self.transport.is_closing():
            self.transport.write(data)

    async def taken(self) -> None:
        """Return when the client has taken almost all that was written, or is gone."""
        while self._is_full:
            self._room = self._loop.create_future()
            await self._room

    def pause_reading(self) -> None:
        """Let what the client sends wait in its socket."""
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on reading."""
        if self._is_paused and not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()

    def answered(self) -> None:
        """The reply is complete: the next request is answered, or waited for."""
        self._state.answered += 1
        if self._answering is not None and not self._answering.keeps_alive:
            self._close()
        if self.transport.is_closing():
            return
        self.resume_reading()
        if self._waiting:
            self._answer(self._waiting.popleft())
        else:
            self._not_idle()
            self._idle_timer = self._loop.call_later(KEEP_ALIVE_S, self._close)

    def abort(self) -> None:
        """Break the connection off."""
        self.transport.abort()

    # --- the end -----------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Answer the request in progress, or else the next one, as the last of this connection."""
        self.is_last = True
        if self.exchange is not None:
            self.exchange.keeps_alive = False

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

    # --- who is waited for -------------------------------------------------------------------------------------------

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.exchange is None or self.exchange.is_over

    def _not_idle(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _make_room(self) -> None:
        self._is_full = False
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _await_head(self) -> None:
        self._head_timer = self._loop.call_later(self._state.timeout_s, self._head_timed_out)

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timed_out(self) -> None:
        self._head_timer = None
        self._refuse(TIMED_OUT)

    def _await_taking(self) -> None:
        if self._reply_timer is None:
            self._reply_timer = self._loop.call_later(self._state.timeout_s, self._stalled)

    def _reply_taken(self) -> None:
        if self._reply_timer is not None:
            self._reply_timer.cancel()
            self._reply_timer = None

    def _stalled(self) -> None:
        log.info("a client did not take its reply and was disconnected", action="http.stalled")
        self.transport.abort()


def _new_parser(connection: Connection) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(connection)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # what is behind a last request does not matter
    return parser


def _target(url: bytes) -> tuple[str, bytes]:
    """Path and query of a request's target, undecoded.

    Raises:
        ValueError: it has no path, or one that is not ASCII.
    """
    if url.startswith(b"/") and b"#" not in url:
        path, _, query = url.partition(b"?")
    else:  # with the name of a server, or the star
        parsed = httptools.parse_url(url)
        path, query = parsed.path or b"", parsed.query or b""
        if not path:
            raise ValueError("there is no path")
    return path.decode("ascii"), query
