"""HTTP/1.1 as far as a client of the daemon needs it: connections that are kept, and a bounded number of them.

httptools parses. Nothing is sent twice, followed elsewhere or decompressed here.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from types import TracebackType
from typing import NamedTuple, Self, cast
from urllib.parse import urlsplit

import httptools

from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.service.client.events import MAX_REPLY_BYTES, RequestFailed

CONNECT_TIMEOUT_S = 2.0
MAX_CONNECTIONS = 64
_MAX_BESIDE_BODY = 65_536  # a head, or what else comes between two pieces of a body
_UNREAD_BYTES = 1_048_576  # then the server waits until its reply is read
_BEGIN_OF_REPLIES = 200  # what has a lower status only says that there will be one
_PORTS = {"http": 80, "https": 443}


class NotConnected(RequestFailed):
    """There was no connection, and so nothing was sent."""


class NoReplyInTime(RequestFailed):
    """Nothing came for as long as it was waited for."""


class Address(NamedTuple):
    """Where a server listens: a Unix socket, or a host; `prefix` stands before every path."""

    socket: str | None = None
    host: str = "localhost"
    port: int = 0
    is_tls: bool = False
    prefix: str = ""

    @classmethod
    def of(cls, url: str) -> Address:
        """`unix:/path/of/a.sock`, or an http(s) URL.

        Raises:
            ConfigError: it is neither, or holds what is not sent.
        """
        if url.startswith("unix:"):
            return cls(socket=url.removeprefix("unix:").removeprefix("//"))
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS[parts.scheme]
            host = parts.hostname or ""
        except (ValueError, KeyError):
            parts, port, host = urlsplit(""), 0, ""
        if not host or not url.isascii() or not url.isprintable() or " " in url:
            raise ConfigError(f"{url!r} is no address of a daemon; write http://HOST:PORT, https://HOST or unix:/PATH")
        if parts.query or parts.fragment or parts.username is not None:
            raise ConfigError("a daemon's URL has neither a name nor a query; a token is given apart")
        return cls(host=host, port=port, is_tls=parts.scheme == "https", prefix=parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """The Host header."""
        if self.socket is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.is_tls else "http"] else f"{host}:{self.port}"


class Connection(asyncio.Protocol):
    """One connection, and the reply that arrives on it.

    Attributes:
        status: the reply's; 0 until its head is there.
        headers: the reply's; names in lower case.
        is_open: whether it can be written to.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.is_open = False
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._unread = 0
        self._beside_body = 0
        self._is_asked = True  # a server that has no room says so before it is asked
        self._is_used = self._is_complete = self._is_kept = self._is_all_sent = False
        self._is_full = self._is_paused = False
        self._failure: RequestFailed | None = None
        self._news: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._wait_s = self._patient_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def can_be_asked(self) -> bool:
        """Whether another request may follow: the one before was sent and answered to its end."""
        return self.is_open and self._is_kept and self._is_all_sent and not self._is_asked and not self._pieces

    # --- for who asks ------------------------------------------------------------------------------------------------

    async def ask(self, request: bytes, body: AsyncIterator[bytes] | None, wait_s: float) -> None:
        """Send a request and wait for the head of the reply; a reply that comes early ends the sending.

        Args:
            request: the head, with the body if that is at hand.
            body: one that comes in pieces.
            wait_s: how long the server may take nothing and say nothing, in seconds.

        Raises:
            RequestFailed: there is no reply.
        """
        if self._is_used:
            self.status, self.headers = 0, {}
            self._is_complete, self._is_asked = False, True
        self._is_used, self._is_kept, self._is_all_sent = True, False, body is None
        if not self.status:  # else it was turned away as soon as it was open
            self._transport.write(request)
            if body is not None:
                await self._send(body, wait_s)
        while not self.status:
            await self._wait(wait_s)

    async def _send(self, body: AsyncIterator[bytes], wait_s: float) -> None:
        async for piece in body:
            while self._is_full and not self.status:
                await self._wait(wait_s)
            if self.status or self._failure is not None:
                return
            if piece:
                self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self._transport.write(b"0\r\n\r\n")
        self._is_all_sent = True

    async def piece(self, wait_s: float) -> bytes:
        """What has come of the reply's body since the last call; empty at its end.

        Raises:
            RequestFailed: it broke off.
        """
        while not self._pieces and not self._is_complete:
            await self._wait(wait_s)
        piece = b"".join(self._pieces)
        self._pieces.clear()
        self._unread = 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return piece

    async def read(self, wait_s: float) -> bytes:
        """The reply's whole body.

        Raises:
            RequestFailed: it broke off, or is longer than `MAX_REPLY_BYTES`.
        """
        body = await self.piece(wait_s)
        if self._is_complete and not self._pieces:
            return body
        whole = bytearray(body)
        while piece := await self.piece(wait_s):
            whole += piece
            if len(whole) > MAX_REPLY_BYTES:
                raise RequestFailed(f"the reply is longer than {MAX_REPLY_BYTES} bytes")
        return bytes(whole)

    async def _wait(self, wait_s: float) -> None:
        """Wait until anything has happened."""
        if self._failure is not None:
            raise self._failure
        self._news = self._loop.create_future()
        self._wait_s, self._patient_until = wait_s, self._loop.time() + wait_s
        if self._timer is None or self._timer.when() > self._patient_until:
            self._look_at(self._patient_until)
        try:
            await self._news
        finally:
            self._news = None

    def _look_at(self, when: float) -> None:
        self._forget_timer()
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        """End a wait that took long enough; one timer serves many waits, of which almost all end long before."""
        self._timer = None
        if self._news is None:
            return
        if self._loop.time() < self._patient_until:
            self._look_at(self._patient_until)
        else:
            self._fail(NoReplyInTime(f"nothing came for {self._wait_s:g} s"))

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Break it off."""
        self.is_open = False
        self._transport.abort()

    # --- what happens on it ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed; that is also how a reply ends that does not say how long it is."""
        self.is_open = False
        self._forget_timer()
        is_end = bool(self.status) and exc is None and self.headers.keys().isdisjoint(_FRAMING)
        if self._is_asked and is_end:
            self._complete()
        self._fail(
            RequestFailed(f"the connection broke ({type(exc).__name__})" if exc else "the connection was closed")
        )

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        self._beside_body += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(RequestFailed("what came is not HTTP"))
        if self._beside_body > _MAX_BESIDE_BODY:
            self._fail(RequestFailed("the reply's head is too long"))
        if self._unread > _UNREAD_BYTES and not self._is_paused and self.is_open:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def pause_writing(self) -> None:
        """The server takes less than is sent."""
        self._is_full = True

    def resume_writing(self) -> None:
        """It goes on."""
        self._is_full = False
        self._wake()

    def _fail(self, failure: RequestFailed) -> None:
        self._failure = self._failure or failure
        if self.is_open:
            self.close()
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _complete(self) -> None:
        self._is_asked, self._is_complete = False, True

    # --- what the parser finds ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A reply begins; there is one for each request."""
        if not self._is_asked:
            self._fail(RequestFailed("a reply came without a request"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header of a reply, or one of its trailers."""
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """A head has ended."""
        status = self._parser.get_status_code()
        if status < _BEGIN_OF_REPLIES:
            self.headers = {}
        elif self._is_asked:
            self.status = status

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._beside_body = 0
        if self._is_asked:
            self._unread += len(body)
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        """A reply has ended."""
        self._beside_body = 0
        if self.status and self._is_asked:
            self._is_kept = self._parser.should_keep_alive()
            self._complete()


def _reason(error: OSError) -> str:
    if error.errno is not None and error.errno > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__


_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


class Connections:
    """The connections to one server; an async context manager, within one event loop.

    Args:
        address: where it listens.
        token: what it asks for.
        most: how many there may be; further requests wait. Endless ones are not counted: they never make room.

    Raises:
        ConfigError: the token cannot be sent.
    """

    def __init__(self, address: Address, token: str | None = None, *, most: int = MAX_CONNECTIONS) -> None:
        headers = {"Host": address.authority, "Accept-Encoding": "identity"}
        if token is not None:
            if not (token.isascii() and token.isprintable()):
                raise ConfigError("a token consists of printable ASCII characters")
            headers["Authorization"] = f"Bearer {token}"
        self._address = address
        self._always = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")
        self._room = asyncio.Semaphore(most)
        self._idle: list[Connection] = []
        self._tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._idle:
            self._idle.pop().close()

    async def answer(
        self, method: str, target: str, *, headers: Mapping[str, str], body: bytes | AsyncIterator[bytes], wait_s: float
    ) -> tuple[int, bytes]:
        """Ask, and read the whole reply: its status and its body.

        Args:
            method: in capitals.
            target: path and query, percent-encoded.
            headers: further ones.
            body: at hand, or in pieces.
            wait_s: how long the server may take nothing and say nothing, in seconds.

        Raises:
            NotConnected, NoReplyInTime, RequestFailed: there is no reply, or not all of it.
        """
        head, pieces = self._head(method, target, headers, body)
        async with self._room:
            connection = self._idle_one() or await self._connected()
            try:
                await connection.ask(head, pieces, wait_s)
                return connection.status, await connection.read(wait_s)
            finally:
                self._let_go(connection)

    @asynccontextmanager
    async def request(  # noqa: PLR0913 - each can be left out
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | AsyncIterator[bytes] = b"",
        wait_s: float,
        is_endless: bool = False,
    ) -> AsyncIterator[Connection]:
        """Ask, and take the reply from the connection within the block; leaving it early breaks the connection.

        Args:
            method: in capitals.
            target: path and query, percent-encoded.
            headers: further ones.
            body: at hand, or in pieces.
            wait_s: how long the server may take nothing and say nothing, in seconds.
            is_endless: whether the reply goes on until its reader leaves.

        Raises:
            NotConnected, NoReplyInTime, RequestFailed: there is no reply, or not all of it.
        """
        head, pieces = self._head(method, target, headers or {}, body)
        async with nullcontext() if is_endless else self._room:
            connection = self._idle_one() or await self._connected()
            try:
                await connection.ask(head, pieces, wait_s)
                yield connection
            finally:
                self._let_go(connection)

    def _head(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | AsyncIterator[bytes]
    ) -> tuple[bytes, AsyncIterator[bytes] | None]:
        """A request's head, with its body if that is at hand; and the body if it comes in pieces."""
        at_hand, pieces = (body, None) if isinstance(body, bytes) else (b"", body)
        length = f"Content-Length: {len(at_hand)}\r\n" if pieces is None else "Transfer-Encoding: chunked\r\n"
        given = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        first = f"{method} {self._address.prefix}{target} HTTP/1.1\r\n"
        return b"%b%b%b\r\n%b" % (first.encode("ascii"), self._always, f"{given}{length}".encode(), at_hand), pieces

    def _let_go(self, connection: Connection) -> None:
        if connection.can_be_asked:
            self._idle.append(connection)
        else:
            connection.close()

    def _idle_one(self) -> Connection | None:
        """The idle connection that was used last, or None."""
        while self._idle:
            if (connection := self._idle.pop()).is_open:
                return connection
        return None

    async def _connected(self) -> Connection:
        """A new connection."""
        loop, address = asyncio.get_running_loop(), self._address
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if address.socket is not None:
                    return (await loop.create_unix_connection(Connection, address.socket))[1]
                if address.is_tls and self._tls is None:
                    self._tls = await asyncio.to_thread(ssl.create_default_context)
                return (await loop.create_connection(Connection, address.host, address.port, ssl=self._tls))[1]
        except TimeoutError:
            raise NotConnected(f"no connection within {CONNECT_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise NotConnected(_reason(error)) from error
