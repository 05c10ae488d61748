"""One HTTP request and its reply: headers, a bounded body of strict JSON, and a reply sent at once or in pieces.

A parsed body can be stored and read back equal (rules S8-S12). Refused are: too many bytes or elements, deep nesting,
anything but UTF-8, a byte order mark, duplicate keys, NaN and infinities, numbers beyond 64-bit integers and doubles,
and lone surrogates. One JSON parser or another silently alters each of these.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import aclosing, suppress
from typing import Any, NamedTuple, NoReturn, TypeVar

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
Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
"""As ASGI has them."""

NOT_MODIFIED = 304
"""Who asks has it already; the reply has no body, and a length would be taken for the length of what he has."""

_NO_BODY = (b"content-length", b"0")


REQUEST_ID = b"x-request-id"
"""The header by which client and log name the same request."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")

MAX_DEPTH = 32
"""Levels of nesting; the interpreter's own limit differs between its versions."""

MAX_ELEMENTS = 100_000
"""Objects, lists and commas; three bytes of `{}` and a comma cost 70 bytes of memory each."""

MIN_RATE = 256
"""Bytes per second that a client must send of a long body while it is waited for."""

_MAX_INTEGER_DIGITS = 20
_DRAIN_S = 1.0
_DRAIN_FACTOR = 4
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{},"))

RawHeaders = Sequence[tuple[bytes, bytes]]

JSON = ("application/json",)
FILES = ("application/octet-stream", "application/x-ndjson", "application/json")
"""What a request's body may be: JSON for us to read, or a file of any kind."""


def values_of(headers: RawHeaders, name: bytes) -> list[bytes]:
    """The values of all headers of this name."""
    return [value for header, value in headers if header == name]


def request_id_of(given: bytes = b"") -> str:
    """The id that a client gave its request; one that is made, where it gave none, or one that could forge a log."""
    return given.decode() if _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


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


class Exchange:
    """One request over ASGI, until its reply is sent.

    A reply that is sent before the request's body was read ends the connection: the rest of the body would be taken
    for the next request.

    Attributes:
        method: in capitals.
        path: undecoded: an encoded slash in a session id must not look like the end of it.
        query: undecoded.
        headers: in order, their names in lower case.
        operation: the name of the operation, for metrics and audit.
        context: what its handler works with, once the caller is known; None: it was refused before that.
        scope: the scope that the operation needs.
        sharing: headers that every reply gets, also an error: which web pages may read it.
        status: the reply's; 0 until it has begun.
        outcome: the status for the audit log, where it is not the reply's; 0: the reply's.
        request_id: the request's id in reply and log: the client's own, if that is short and plain.
        form_of_errors: makes an error one that the request's clients understand.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["raw_path"].decode("ascii")
        self.query: bytes = scope["query_string"]
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.operation = "none"
        self.context: Context | None = None
        self.request_id = request_id_of(self.header(REQUEST_ID))
        self.scope: AccessScope = "read"
        self.sharing: Mapping[str, str] = {}
        self.status = 0
        self.outcome = 0
        self.form_of_errors: Callable[[RequestError], RequestError] = lambda error: error
        self._state: dict[str, Any] = scope.get("state", {})
        self._receive = receive
        self._send = send
        names = {name for name, _ in self.headers}
        self._is_unread = b"transfer-encoding" in names or (b"content-length" in names and _NO_BODY not in self.headers)

    @property
    def is_trusted(self) -> bool:
        """Whether it came by a Unix socket."""
        return self._state.get("trusted") is True

    def header(self, name: bytes) -> bytes:
        """The first header of this name; empty where it is missing."""
        return next((value for one, value in self.headers if one == name), b"")

    # --- the request -------------------------------------------------------------------------------------------------

    async def _next(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            self._is_unread = False
        return message

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes.

        Raises:
            ClientGone: it did not come to its end.
        """
        is_last = False
        while not is_last:
            message = await self._next()
            if message["type"] == "http.disconnect":
                raise ClientGone
            is_last = not message.get("more_body", False)
            if body := message.get("body", b""):
                yield body

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
        while (await self._next())["type"] != "http.disconnect":
            pass
        scope.cancel()

    # --- the reply ---------------------------------------------------------------------------------------------------

    async def reply(self, reply: Reply) -> None:
        """Send it; what is made piece by piece is made as fast as it is taken."""
        if isinstance(reply.body, bytes):
            await self._begin(reply, None if reply.status == NOT_MODIFIED else b"%d" % len(reply.body))
            await self._send({"type": "http.response.body", "body": reply.body})
            return
        async with aclosing(reply.body), anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_when_gone, tasks.cancel_scope, name="client watch")
            try:
                await self._begin(reply, None)
                for piece in reply.begun:
                    await self._send_piece(piece, more=True)
                async for piece in reply.body:
                    await self._send_piece(piece, more=True)
                await self._send_piece(b"", more=False)
            except Exception as error:  # noqa: BLE001 - the status is sent already: the client sees a broken end
                log.error("a reply broke off", action="http.broke_off", error_type=type(error).__name__)
                self.break_off()
            tasks.cancel_scope.cancel()

    async def _begin(self, reply: Reply, length: bytes | None) -> None:
        """Send the head, which no browser takes for something else, and no cache keeps unless the reply says so."""
        self.status = reply.status
        media_type = reply.media_type.encode()
        if media_type.startswith(b"text/") and b"charset" not in media_type:
            media_type += b"; charset=utf-8"
        given = {**reply.headers, **self.sharing}
        own = {name.lower().encode("latin-1"): value.encode("latin-1") for name, value in given.items()}
        common = {
            REQUEST_ID: self.request_id.encode(),
            b"content-type": media_type,
            b"cache-control": b"no-store",
            b"x-content-type-options": b"nosniff",
        }
        headers = [*{**common, **own}.items()]
        if length is not None:
            headers.append((b"content-length", length))
        if self._is_unread and "Connection" not in reply.headers:
            headers.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": reply.status, "headers": headers})

    async def _send_piece(self, piece: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})
        await checkpoint()  # a client that takes everything at once must not keep the others waiting

    def break_off(self) -> None:
        """End the connection at once."""
        self._state["abort"]()


# --- the body --------------------------------------------------------------------------------------------------------


def body_refusal(headers: RawHeaders, accepted: Sequence[str] = JSON) -> RequestError | None:
    """Why a body is not what a route takes, by its headers, or None.

    A browser sends forms and plain text to anybody for any web page, and asks the server first for all other types; so
    neither of those, nor a body without a type, is ever among the accepted ones.

    Args:
        headers: the request's.
        accepted: the media types, in lower case; where they are text, it is UTF-8.
    """
    types = values_of(headers, b"content-type")
    media_type, *parameters = (types[0] if len(types) == 1 else b"").lower().split(b";")
    pairs = [(name.strip(), value.strip(b' "')) for name, _, value in (p.partition(b"=") for p in parameters)]
    wrong_charset = any(name == b"charset" and value not in (b"utf-8", b"utf8") for name, value in pairs)
    if media_type.strip().decode("latin-1") not in accepted or wrong_charset:
        sentence = f"send the body as `Content-Type: {' or '.join(accepted)}`, in UTF-8"
        return RequestError(415, "unsupported_media_type", sentence, param="Content-Type", close=True)
    if any(encoding.strip().lower() != b"identity" for encoding in values_of(headers, b"content-encoding")):
        sentence = "send the body uncompressed"
        return RequestError(415, "unsupported_media_type", sentence, param="Content-Encoding", close=True)
    return None


async def read_body(exchange: Exchange, *, limit: int) -> bytes:
    """The whole body, at most `limit` bytes.

    Raises:
        RequestError: it is too long (413).
        ClientGone: it did not come to its end.
    """
    chunks = exchange.pieces()
    declared = exchange.header(b"content-length")
    size = int(declared) if declared.isdigit() else 0
    body = bytearray()
    while size <= limit:
        if not (chunk := await anext(chunks, b"")):  # pieces are never empty
            return bytes(body)
        body += chunk
        size = max(size, len(body))
    if not exchange.header(b"expect"):  # a client that asked first need not send it
        await drain(chunks, most=limit * _DRAIN_FACTOR)
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
