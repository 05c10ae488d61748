"""One HTTP request and its reply: headers, a bounded body of strict JSON, and a reply sent at once or in pieces.

A parsed body can be stored and read back equal (rules S8-S12). Refused are: too many bytes or elements, deep nesting,
anything but UTF-8, a byte order mark, duplicate keys, NaN and infinities, numbers beyond 64-bit integers and doubles,
and lone surrogates. One JSON parser or another silently alters each of these.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from http import HTTPStatus
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

import anyio
import orjson
from anyio.lowlevel import checkpoint

from miniclaw_sessions.config import ListenSettings
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.service.api.context import Context
from miniclaw_sessions.service.api.context import Scope as AccessScope
from miniclaw_sessions.service.api.error_table import RequestError, error_document

log = get_logger(__name__)

T = TypeVar("T")
NOT_MODIFIED = 304
"""Who asks has it already; the reply has no body, and a length would be taken for the length of what he has."""

REQUEST_ID = b"x-request-id"
"""The header by which client and log name the same request."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")

MAX_DEPTH = 32
"""Levels of nesting; the interpreter's own limit differs between its versions."""

MAX_ELEMENTS = 100_000
"""Objects, lists and commas; three bytes of `{}` and a comma cost 70 bytes of memory each."""

MIN_RATE = 256
"""Bytes per second that a client must send of a long body while it is waited for."""

READ_AHEAD_BYTES = 65_536
"""So much of a body may wait to be read; then the client waits."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_STATUS_LINES = {status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode() for status in range(100, 600)}
_MAX_INTEGER_DIGITS = 20
_DRAIN_S = 1.0
_DRAIN_FACTOR = 4
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{},"))

RawHeaders = Sequence[tuple[bytes, bytes]]

JSON = ("application/json",)
_PLAIN_JSON = [b"application/json"]
FILES = ("application/octet-stream", "application/x-ndjson", "application/json")
"""What a request's body may be: JSON for us to read, or a file of any kind."""


def values_of(headers: RawHeaders, name: bytes) -> list[bytes]:
    """The values of all headers of this name."""
    return [value for header, value in headers if header == name]


def request_id_of(given: bytes = b"") -> str:
    """The id that a client gave its request; one that is made, where it gave none, or one that could forge a log."""
    return given.decode() if given and _REQUEST_ID.fullmatch(given) else f"req_{os.urandom(12).hex()}"


class ClientGone(Exception):
    """The client went away before its request, or the reply to it, was complete."""


class Reply(NamedTuple):
    """What goes back.

    Attributes:
        status: the HTTP status.
        body: all of it; or what makes it while it is sent, and is closed when the client goes away.
        media_type: what the body is.
        headers: further ones.
        begun: what was made of the body already, and goes before the rest.
    """

    status: int
    body: bytes | AsyncGenerator[bytes, None]
    media_type: str = "application/json"
    headers: Mapping[str, str] = {}
    begun: Sequence[bytes] = ()

    @classmethod
    def of_error(cls, error: RequestError) -> Reply:
        """What is sent for an error."""
        headers = {**error.headers, "Connection": "close"} if error.close else error.headers
        return cls(error.status, orjson.dumps(error_document(error)), headers=headers)


class Link(Protocol):
    """The connection that a request came by, as its exchange sees it."""

    is_trusted: bool
    """Whether it came by a Unix socket."""

    @property
    def address(self) -> str:
        """The client's IP address, without its port; empty: it came by a Unix socket."""
        ...

    @property
    def date(self) -> bytes:
        """The `Date` header's line."""
        ...

    def write(self, data: bytes) -> None:
        """Send this; what is written to a connection that is gone goes nowhere."""

    async def taken(self) -> None:
        """Return when the client has taken almost all that was written, or is gone."""

    def pause_reading(self) -> None:
        """Let what the client sends wait in its socket."""

    def resume_reading(self) -> None:
        """Go on reading."""

    def answered(self) -> None:
        """The reply is complete."""

    def abort(self) -> None:
        """Break the connection off."""


class Request(NamedTuple):
    """The head of a request.

    Attributes:
        method: in capitals.
        path: undecoded: an encoded slash in a session id must not look like the end of it.
        query: undecoded.
        headers: in order, their names in lower case.
        is_old: whether it is HTTP/1.0, which knows no chunks.
        keeps_alive: whether its client wants to ask more on this connection.
    """

    method: str
    path: str
    query: bytes = b""
    headers: Sequence[tuple[bytes, bytes]] = ()
    is_old: bool = False
    keeps_alive: bool = True


class Exchange:
    """One request, until its reply is sent.

    A reply that is sent before the request's body was read ends the connection: the rest of the body would be taken
    for the next request.

    Attributes:
        method, path, query, headers: the request's.
        operation: the name of the operation, for metrics and audit.
        context: what its handler works with, once the caller is known; None: it was refused before that.
        scope: the scope that the operation needs.
        sharing: headers that every reply gets, also an error: which web pages may read it.
        status: the reply's; 0 until it has begun.
        outcome: the status for the audit log, where it is not the reply's; 0: the reply's.
        request_id: the request's id in reply and log: the client's own, if that is short and plain.
        form_of_errors: makes an error one that the request's clients understand.
        keeps_alive: whether the connection goes on after the reply.
        is_whole: whether the request's body has come to its end.
        is_unread: whether some of the body was not read.
        is_over: whether the reply was sent.
        is_gone: whether the client went away.
    """

    sharing: Mapping[str, str] = {}
    context: Context | None = None
    scope: AccessScope = "read"
    operation = "none"
    status = 0
    outcome = 0
    is_whole = is_over = is_gone = False

    def __init__(self, request: Request, link: Link) -> None:
        self.method, self.path, self.query, self.headers, self._is_old, self.keeps_alive = request
        self._first = dict(reversed(self.headers))
        self.request_id = request_id_of(self._first.get(REQUEST_ID, b""))
        self.form_of_errors: Callable[[RequestError], RequestError] = _as_it_is
        self.is_unread = b"transfer-encoding" in self._first or self._first.get(b"content-length", b"0") != b"0"
        self._asks_first = self._first.get(b"expect", b"").lower() == b"100-continue"
        self._link = link
        self._body = bytearray()
        self._news: asyncio.Future[None] | None = None

    @property
    def is_trusted(self) -> bool:
        """Whether it came by a Unix socket."""
        return self._link.is_trusted

    @property
    def address(self) -> str:
        """The IP address of the connection that it came by, without its port; empty: it is a Unix socket."""
        return self._link.address

    def header(self, name: bytes) -> bytes:
        """The first header of this name; empty where it is missing."""
        return self._first.get(name, b"")

    def has(self, name: bytes) -> bool:
        """Whether there is a header of this name."""
        return name in self._first

    # --- what happens on the connection ------------------------------------------------------------------------------

    def feed(self, piece: bytes) -> None:
        """A piece of the body has come."""
        if not self.is_over:
            self._body += piece
            if len(self._body) > READ_AHEAD_BYTES:
                self._link.pause_reading()
            self._wake()

    def end(self) -> None:
        """The body is here as a whole."""
        self.is_whole = True
        self._wake()

    def lose(self) -> None:
        """The client went away."""
        self.is_gone = True
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _wait(self) -> None:
        """Wait until anything has happened; one task at a time."""
        self._link.resume_reading()
        self._news = asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._news = None

    # --- the request -------------------------------------------------------------------------------------------------

    @property
    def declared(self) -> int:
        """How many bytes the body has, as its header says; 0: it has none, or does not say."""
        length = self.header(b"content-length")
        return int(length) if length.isdigit() else 0

    async def piece(self) -> bytes:
        """What has come of the body since the last call; empty at its end.

        Raises:
            ClientGone: it did not come to its end.
        """
        if self._asks_first:
            self._asks_first = False
            self._link.write(_CONTINUE)
        while not (self._body or self.is_whole or self.is_gone):
            await self._wait()
        if self.is_gone:
            raise ClientGone
        piece = bytes(self._body)
        self._body.clear()
        self.is_unread = not self.is_whole
        return piece

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes.

        Raises:
            ClientGone: it did not come to its end.
        """
        while piece := await self.piece():
            yield piece

    async def while_waited_for(self, work: Coroutine[Any, Any, T]) -> T:
        """What may take as long as the session is large, or the model is slow: it ends when the client goes away.

        The request's body must have been read.

        Raises:
            ClientGone: the work was cancelled.
        """
        done: list[T] = []
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_when_gone, tasks.cancel_scope, name="client watch")
            try:
                done.append(await work)
            except Exception as error:  # noqa: BLE001 - raised again below: a task group would wrap it
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if not done:
            raise ClientGone
        return done[0]

    async def _cancel_when_gone(self, scope: anyio.CancelScope) -> None:
        while not self.is_gone:
            self._body.clear()  # a body that is not read would fill the memory
            await self._wait()
        scope.cancel()

    # --- the reply ---------------------------------------------------------------------------------------------------

    async def reply(self, reply: Reply) -> None:
        """Send it; what is made piece by piece is made as fast as it is taken."""
        self.status = reply.status
        if isinstance(reply.body, bytes):
            length = None if reply.status == NOT_MODIFIED else len(reply.body)
            head = self._head(reply, length)
            await self._link.taken()
            self._link.write(head if self.method == "HEAD" else head + reply.body)
            self._end()
            return
        async with aclosing(reply.body), anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_when_gone, tasks.cancel_scope, name="client watch")
            try:
                framed = self._framing(reply)
                head = self._head(reply, None)
                await self._link.taken()
                self._link.write(head + framed(b"".join(reply.begun)))  # in one, so that a client wakes once
                async for piece in reply.body:
                    await self._link.taken()
                    self._link.write(framed(piece))
                    await checkpoint()  # a client that takes everything at once must not keep the others waiting
                await self._link.taken()
                self._link.write(b"0\r\n\r\n" if framed is _chunk else b"")
                self._end()
            except Exception as error:  # noqa: BLE001 - the status is sent already: the client sees a broken end
                log.error("a reply broke off", action="http.broke_off", error_type=type(error).__name__)
                self.break_off()
            tasks.cancel_scope.cancel()

    def _framing(self, reply: Reply) -> Callable[[bytes], bytes]:
        """How a piece of a reply without a length is sent."""
        if self.method == "HEAD" or reply.status == NOT_MODIFIED:
            return _nothing
        return bytes if self._is_old else _chunk  # there the end of the connection is the end of the reply

    def _head(self, reply: Reply, length: int | None) -> bytes:
        """The head, which no browser takes for something else, and no cache keeps unless the reply says so.

        Raises:
            ValueError: a header would end its line.
        """
        given = {**reply.headers, **self.sharing} if self.sharing else reply.headers
        if self.is_unread or "Connection" in given:
            self.keeps_alive = False
        lines = [_STATUS_LINES[reply.status], self._link.date, b"x-request-id: ", self.request_id.encode(), b"\r\n"]
        lines.append(_about(reply.media_type))
        if "Cache-Control" not in given:
            lines.append(b"cache-control: no-store\r\n")
        for name, value in given.items():
            if _CONTROL.search(value):
                raise ValueError(f"the header {name} has control characters")
            lines.append(f"{name.lower()}: {value}\r\n".encode("latin-1"))
        if length is not None:
            lines.append(b"content-length: %d\r\n" % length)
        elif self._framing(reply) is _chunk:
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keeps_alive and "Connection" not in given:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def _end(self) -> None:
        self.is_over = True
        self._link.answered()

    def break_off(self) -> None:
        """End the connection at once."""
        self._link.abort()


def _as_it_is(error: RequestError) -> RequestError:
    return error


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""  # an empty chunk would be the end


def _nothing(piece: bytes) -> bytes:
    del piece
    return b""


@functools.lru_cache(maxsize=64)
def _about(media_type: str) -> bytes:
    """The header lines that say what a body is; there are few of them."""
    if media_type.startswith("text/") and "charset" not in media_type:
        media_type += "; charset=utf-8"
    return f"content-type: {media_type}\r\nx-content-type-options: nosniff\r\n".encode()


# --- the body --------------------------------------------------------------------------------------------------------


def body_refusal(headers: RawHeaders, accepted: Sequence[str] = JSON) -> RequestError | None:
    """Why a body is not what a route takes, by its headers, or None.

    A browser sends forms and plain text to anybody for any web page, and asks the server first for all other types; so
    neither of those, nor a body without a type, is ever among the accepted ones.

    Args:
        headers: the request's.
        accepted: the media types, in lower case; where they are text, it is UTF-8.
    """
    types, encodings = values_of(headers, b"content-type"), values_of(headers, b"content-encoding")
    if types == _PLAIN_JSON and not encodings and accepted is JSON:
        return None  # the usual case, without looking at its parts
    media_type, *parameters = (types[0] if len(types) == 1 else b"").lower().split(b";")
    pairs = [(name.strip(), value.strip(b' "')) for name, _, value in (p.partition(b"=") for p in parameters)]
    wrong_charset = any(name == b"charset" and value not in (b"utf-8", b"utf8") for name, value in pairs)
    if media_type.strip().decode("latin-1") not in accepted or wrong_charset:
        sentence = f"send the body as `Content-Type: {' or '.join(accepted)}`, in UTF-8"
        return RequestError(415, "unsupported_media_type", sentence, param="Content-Type", close=True)
    if any(encoding.strip().lower() != b"identity" for encoding in encodings):
        sentence = "send the body uncompressed"
        return RequestError(415, "unsupported_media_type", sentence, param="Content-Encoding", close=True)
    return None


async def read_body(exchange: Exchange, *, limit: int) -> bytes:
    """The whole body, at most `limit` bytes.

    Raises:
        RequestError: it is too long (413).
        ClientGone: it did not come to its end.
    """
    size, received, pieces = exchange.declared, 0, list[bytes]()
    while size <= limit:
        pieces.append(await exchange.piece())
        received += len(pieces[-1])
        size = max(size, received)
        if exchange.is_whole and size <= limit:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if not exchange.has(b"expect"):  # a client that asked first need not send it
        await drain(exchange.pieces(), most=limit * _DRAIN_FACTOR)
    raise RequestError(413, "body_too_large", f"the body is longer than {limit} bytes", close=True)


async def read_body_in_time(exchange: Exchange, limits: ListenSettings) -> bytes:
    """The whole body, within the bounds of the settings.

    Raises:
        RequestError: it is too long (413), or did not come in time (408).
        ClientGone: it did not come to its end.
    """
    timeout_s = limits.request_timeout_s
    with anyio.move_on_after(timeout_s):
        return await read_body(exchange, limit=limits.max_body_bytes)
    raise RequestError(408, "timeout", f"the body did not arrive within {timeout_s:g} s", close=True)


async def body_pieces(exchange: Exchange, *, stall_s: float) -> AsyncGenerator[bytes, None]:
    """A body of any size, piece by piece: none is taken before the one before it was worked on.

    A client that is faster than that is slowed down by its own connection.

    Args:
        exchange: whose body it is.
        stall_s: how long a piece is waited for. After as long in sum, a client that was slower than `MIN_RATE` is
            given up, too: a few that send a byte now and then would keep all others out.

    Raises:
        RequestError: nothing, or too little, came for `stall_s` seconds, though it was waited for (408).
        ClientGone: it did not come to its end.
    """
    chunks = exchange.pieces()
    received, waited_s = 0, 0.0
    while True:
        begun = anyio.current_time()
        piece = None
        with anyio.move_on_after(stall_s) as patience:
            piece = await anext(chunks, None)
        waited_s += anyio.current_time() - begun
        if patience.cancelled_caught or (waited_s > stall_s and received < MIN_RATE * waited_s):
            raise RequestError(408, "timeout", f"too little of the body came in {waited_s:.3g} s", close=True)
        if piece is None:
            return
        received += len(piece)
        yield piece


async def drain(chunks: AsyncIterator[bytes], *, most: int) -> None:
    """Read on for a moment: a client that is still sending when the connection closes never sees the reply.

    Args:
        chunks: what is left of the body.
        most: how many bytes are read at most.
    """
    with suppress(RequestError, ClientGone), anyio.move_on_after(_DRAIN_S):
        async for chunk in chunks:
            most -= len(chunk)
            if most < 0:
                return


def parse_strictly(body: bytes) -> Any:
    """JSON from a stranger, as dicts and lists.

    Raises:
        RequestError: it is not strict JSON (400); the text says which rule it breaks and where.
    """
    if not body:
        _refuse("the body is empty; send JSON")
    _check_structure(body)
    try:
        parsed = orjson.loads(body)
        if orjson.dumps(parsed) == body:  # nothing in it was altered or lost; most clients write as orjson does
            return parsed
    except ValueError:
        pass  # said better below
    try:
        text = body.decode("utf-8")
        parsed = _decoder.decode(text)
        if b"\\u" in body:
            orjson.loads(body)  # refuses lone surrogates, which the standard library lets through
    except UnicodeDecodeError as error:
        _refuse(f"the body is not UTF-8 (byte {error.start})")
    except ValueError as error:  # both parsers' errors; their text holds positions, not content
        _refuse(f"the body is not valid JSON: {error}")
    except RecursionError:
        _refuse(f"the JSON nests deeper than {MAX_DEPTH} levels")
    return parsed


def _check_structure(body: bytes) -> None:
    """Count elements and levels outside of strings, without parsing: a bomb is refused before it goes off."""
    if body.count(b"[") + body.count(b"{") + body.count(b",") <= MAX_DEPTH:
        return  # cannot be too deep or too many
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = b"".join(unescaped.split(b'"')[::2]).translate(None, _NOT_STRUCTURE)
    if len(structure) - structure.count(b"]") - structure.count(b"}") > MAX_ELEMENTS:
        _refuse(f"the JSON has more than {MAX_ELEMENTS} elements; send it in parts")
    depth = 0
    for byte in structure.replace(b",", b""):
        depth += 1 if byte in b"[{" else -1
        if depth > MAX_DEPTH:
            _refuse(f"the JSON nests deeper than {MAX_DEPTH} levels")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        _refuse("the JSON names a key twice in one object")
    return fields


def _integer(digits: str) -> int:
    number = int(digits) if len(digits) <= _MAX_INTEGER_DIGITS else 2**64
    if not -(2**63) <= number < 2**64:
        _refuse("the JSON holds an integer that does not fit in 64 bits; send it as a string")
    return number


def _number(digits: str) -> float:
    number = float(digits)
    vanished = number == 0 and digits.lower().partition("e")[0].strip("-0.") != ""
    if vanished or not math.isfinite(number):
        _refuse("the JSON holds a number that a 64-bit float cannot hold; send it as a string")
    return number


def _constant(name: str) -> NoReturn:
    _refuse(f"the JSON holds {name}, which is not JSON")


def _refuse(message: str) -> NoReturn:
    raise RequestError(400, "invalid_json", message, param="body")


_decoder = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_number, parse_constant=_constant
)
