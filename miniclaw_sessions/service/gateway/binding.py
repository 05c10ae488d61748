"""The table of operations as an HTTP interface: from a request to a handler, and from what that returns to a reply.

A request is read into the operation's shape, handed to its handler, and what that returns is sent: a short document at
once, anything longer piece by piece, so that a client that does not read holds no more than one piece.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import anyio
import msgspec

from miniclaw_sessions.config import ListenSettings
from miniclaw_sessions.errors import InvalidKey, LeafMoved, SessionsError
from miniclaw_sessions.service.api.context import Context
from miniclaw_sessions.service.api.error_table import RETRY_AFTER_S, RequestError, invalid
from miniclaw_sessions.service.api.openai.shapes import in_openai_form
from miniclaw_sessions.service.api.operation import (
    BODY,
    FILLED_IN,
    HEADERS,
    IF_MATCH,
    PIECE_BYTES,
    Content,
    Operation,
    Stream,
    shaped,
)
from miniclaw_sessions.service.gateway.exchange import (
    FILES,
    NOT_MODIFIED,
    Exchange,
    Reply,
    body_pieces,
    body_refusal,
    drain,
    parse_strictly,
    read_body,
    values_of,
)

MAX_UPLOADS = 8
"""Uploads under way at once: each may hold a file that is one document, or a very long line."""

LONG_BODIES = 16
"""Bodies above `LONG_BYTES` that are in memory at once while they are read; the others wait."""

LONG_BYTES = 2_097_152
SLOW_RATE = 65_536
"""Bytes per second that a client must send of what a body has above `LONG_BYTES`: a file, perhaps from a phone."""

DOCUMENT = "application/json"
"""The type of replies that are no streams of events, lines or files."""

_RAW_HEADERS = {name: header.lower().encode() for name, header in HEADERS.items()}
_DRAINED_BYTES = 268_435_456


class Asked(NamedTuple):
    """An operation that is asked for, and the names in the path."""

    operation: Operation[Any, Any]
    names: Mapping[str, str]


class _Route(NamedTuple):
    """A path: which of its parts are names, and the operations there by method."""

    names: dict[int, str]
    methods: dict[str, Operation[Any, Any]]


_NAME = "/"  # stands for any name in a path; no part of a path is that


class Binding:
    """Operations by method and path, and what is done with a request for one of them."""

    def __init__(self, operations: Iterable[Operation[Any, Any]], limits: ListenSettings) -> None:
        self._routes: dict[tuple[str, ...], _Route] = {}
        shapes: dict[int, set[tuple[int, ...]]] = {}
        for one in operations:
            parts = one.path.split("/")
            names = {place: part[1:-1] for place, part in enumerate(parts) if part.startswith("{")}
            key = tuple(_NAME if place in names else part for place, part in enumerate(parts))
            route = self._routes.setdefault(key, _Route(names, {}))
            route.methods[one.method] = one
            if one.method == "GET":
                route.methods["HEAD"] = one
            shapes.setdefault(len(parts), set()).add(tuple(names))
        self._shapes = {count: sorted(places) for count, places in shapes.items()}  # of two that fit, the one in words
        self._limits = limits
        self._uploads = 0
        self._long_bodies = anyio.Semaphore(LONG_BODIES)

    def find(self, exchange: Exchange) -> Asked | RequestError:
        """What is asked for; or that there is nothing at this path (404), or that it has no such method (405)."""
        parts = exchange.path.split("/")
        for places in self._shapes.get(len(parts), ()):
            words = parts.copy()
            for place in places:
                words[place] = _NAME
            route = self._routes.get(tuple(words))
            if route is None or not all(map(parts.__getitem__, places)):
                continue
            if (refused := method_refusal(exchange, route.methods)) is not None:
                return refused
            operation = route.methods[exchange.method]
            exchange.operation = operation.name
            if operation.openai:
                exchange.form_of_errors = in_openai_form
            return Asked(operation, {name: parts[place] for place, name in route.names.items()})
        return RequestError(404, "not_found", "there is nothing at this path; GET /docs lists what there is")

    async def reply(self, asked: Asked, exchange: Exchange, context: Context) -> Reply:
        """Do what is asked, for the context's caller.

        Raises:
            RequestError: the request is wrong.
            SessionsError: as the operation does.
        """
        operation = asked.operation
        if operation.uploads:
            return await self._upload(asked, exchange, context)
        given = fields_given(operation, exchange, asked.names)
        excess = min(exchange.declared, self._limits.max_body_bytes) - LONG_BYTES
        timeout_s = self._limits.request_timeout_s + max(excess, 0) / SLOW_RATE
        deadline = asyncio.get_running_loop().time() + timeout_s
        with anyio.CancelScope(deadline=deadline) as patience:  # one for body and work: each takes a tenth of a request
            if BODY in operation.fields:
                if (refused := body_refusal(exchange.headers)) is not None:
                    raise refused
                async with self._long_bodies if excess > 0 else nullcontext():
                    body = parse_strictly(await read_body(exchange, limit=self._limits.max_body_bytes))
                    given[BODY] = shaped(body, operation.fields[BODY])
            if operation.patient:
                patience.deadline = math.inf
            work = self._done(context, operation, exchange, operation.request(**given))
            return await (exchange.while_waited_for(work) if operation.patient else work)
        if BODY in operation.fields and BODY not in given:
            raise RequestError(408, "timeout", f"the body did not arrive within {timeout_s:g} s", close=True)
        raise TimeoutError  # a client learns that the store, or a turn, takes long

    async def _upload(self, asked: Asked, exchange: Exchange, context: Context) -> Reply:
        operation = asked.operation
        pieces = body_pieces(exchange, stall_s=self._limits.request_timeout_s)
        begun = False
        try:
            if (refused := body_refusal(exchange.headers, operation.accepts or FILES)) is not None:
                raise refused
            if self._uploads >= MAX_UPLOADS:
                retry = {"Retry-After": str(RETRY_AFTER_S)}
                raise RequestError(503, "too_many_imports", "too many imports are under way; try later", headers=retry)
            given = fields_given(operation, exchange, asked.names)
            begun = True
            self._uploads += 1
            try:
                return await self._done(context, operation, exchange, operation.request(**given, body=pieces))
            finally:
                self._uploads -= 1
        except SessionsError:
            if begun or not exchange.header(b"expect"):  # a client that asked first need not send it
                await drain(pieces, most=_DRAINED_BYTES)
            raise

    @staticmethod
    async def _done(context: Context, operation: Operation[Any, Any], exchange: Exchange, wanted: Any) -> Reply:
        is_head = exchange.method == "HEAD"
        try:
            reply = await operation.handler(context, wanted)
        except LeafMoved as error:
            if getattr(wanted, IF_MATCH, None) is None:
                raise
            raise RequestError(412, "leaf_moved", str(error), param="If-Match") from error
        if isinstance(reply, Stream):
            return await _streamed(reply, is_head=is_head)
        if isinstance(reply, Content):
            return content_reply(reply, exchange)
        etag = getattr(reply, "etag", None)
        headers = {} if etag is None else {"ETag": etag}
        if etag is not None and is_known(etag, exchange):
            return Reply(NOT_MODIFIED, b"", headers=headers)
        encoded = msgspec.json.encode(reply)
        body = encoded if len(encoded) <= PIECE_BYTES or is_head else _sliced(encoded)
        return Reply(operation.status_of(reply), body, headers=headers)


def is_known(etag: str, exchange: Exchange) -> bool:
    """Whether the client has this version already, by its `If-None-Match` (RFC 9110, 13.1.2)."""
    if exchange.method not in ("GET", "HEAD"):
        return False
    known = exchange.header(b"if-none-match").decode("latin-1")
    tags = {tag.strip().removeprefix("W/") for tag in known.split(",")}
    return not tags.isdisjoint({etag.removeprefix("W/"), "*"})


def content_reply(content: Content, exchange: Exchange) -> Reply:
    """The content, or a 304 with its headers where the client has it already."""
    status, body = (NOT_MODIFIED, b"") if is_known(content.etag, exchange) else (200, content.body)
    return Reply(status, body, content.media_type, {"ETag": content.etag, **content.headers})


async def _streamed(stream: Stream, *, is_head: bool) -> Reply:
    """A reply whose beginning is there: what cannot be read is known before the status is sent.

    HEAD gets no length, as GET does not: nothing is made to find it out (RFC 9110, 8.6).
    """
    if is_head:
        await stream.chunks.aclose()
    begun = [await anext(stream.chunks, b"")]
    headers = {}
    if stream.file_name is not None:
        headers["Content-Disposition"] = f'attachment; filename="{stream.file_name}"'
    if stream.media_type == DOCUMENT and not is_head:  # most are short: then the reply is not in pieces
        second = await anext(stream.chunks, None)
        if second is None:
            return Reply(200, begun[0], stream.media_type, headers)
        begun.append(second)
    return Reply(200, stream.chunks, stream.media_type, headers, begun)


async def _sliced(encoded: bytes) -> AsyncGenerator[bytes, None]:
    """A long document in pieces."""
    for start in range(0, len(encoded), PIECE_BYTES):
        yield encoded[start : start + PIECE_BYTES]


def method_refusal(exchange: Exchange, methods: Iterable[str]) -> RequestError | None:
    """The error for a method that the path has not (405), or None."""
    if exchange.method in methods:
        return None
    allowed = {"Allow": ", ".join(sorted(methods))}
    return RequestError(405, "method_not_allowed", "this path has no such method", headers=allowed)


def fields_given(operation: Operation[Any, Any], exchange: Exchange, names: Mapping[str, str]) -> dict[str, Any]:
    """What path, query and headers say, by the names of the request's fields.

    Raises:
        RequestError: a parameter is unknown, comes twice, or has not the form that it must have (422).
        InvalidKey: a name in the path is not percent-encoded UTF-8.
    """
    given: dict[str, Any] = {}
    for name, text in names.items():
        try:
            # exactly once: an id may itself hold percent signs
            given[name] = unquote(text, errors="strict") if "%" in text else text
        except UnicodeDecodeError:
            where = name.replace("_", " ")
            raise InvalidKey(f"the {where} in the path is not percent-encoded UTF-8") from None
    query = parse_qsl(exchange.query.decode("latin-1"), keep_blank_values=True) if exchange.query else ()
    for name, text in query:
        if name not in operation.in_query and operation.openai:
            continue
        if name not in operation.in_query:
            known = ", ".join(operation.in_query) or "none"
            raise invalid(f"{name[:100]!r} is no parameter of this request; there are: {known}", param=name[:100])
        if name in given:
            raise invalid(f"send {name} once", param=name)
        given[name] = _from_query(name, text, operation.fields[name])
    if missing := [name for name in operation.required if name not in given]:
        raise invalid(f"the parameter {missing[0]!r} is missing", param=missing[0])
    for name in operation.in_headers:
        raw = _RAW_HEADERS[name]
        is_empty = name in FILLED_IN and not any(values_of(exchange.headers, raw))
        if exchange.has(raw) and not is_empty:
            given[name] = _from_header(exchange, name)
    return given


def _from_header(exchange: Exchange, name: str) -> str:
    """A header that may stand once."""
    (value, *others), shown = values_of(exchange.headers, _RAW_HEADERS[name]), HEADERS[name]
    if others or not value:
        raise invalid(f"send {shown} once, and not empty", param=shown)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise invalid(f"{shown} is not UTF-8", param=shown) from None


def _from_query(name: str, text: str, kind: Any) -> Any:
    try:
        return msgspec.convert(text, kind)  # a text is a text, also where it spells null or a number
    except msgspec.ValidationError:
        is_plain = re.fullmatch("-?[0-9]{1,16}|true|false", text) is not None  # not 1e3, nor digits of other scripts
        return shaped(text, kind, strict=not is_plain, name=name)
