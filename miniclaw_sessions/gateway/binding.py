"""The table of operations as an HTTP interface: one application for each path, one way from a request to a reply.

A request is read into the operation's shape, handed to its handler, and what that returns is sent: a short document at
once, anything longer piece by piece, so that a client that does not read holds no more than one piece.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any
from urllib.parse import unquote

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from miniclaw_sessions.api.context import Context
from miniclaw_sessions.api.error_table import RETRY_AFTER_S, RequestError, invalid
from miniclaw_sessions.api.operation import BODY, IDEMPOTENCY_KEY, PIECE_BYTES, Operation, Stream, shaped
from miniclaw_sessions.config import ListenSettings
from miniclaw_sessions.errors import InvalidKey, SessionsError
from miniclaw_sessions.gateway.body import body_pieces, drain, parse_strictly, read_body
from miniclaw_sessions.gateway.replies import encoded_reply
from miniclaw_sessions.gateway.security import FILES, body_refusal
from miniclaw_sessions.gateway.streaming import ByteStream, sliced, while_client_waits, with_first

MAX_UPLOADS = 8
"""Uploads under way at once: each may hold a file that is one document, or a very long line."""

_DRAINED_BYTES = 268_435_456


def routes_of(operations: Iterable[Operation[Any, Any]], context: Context, limits: ListenSettings) -> list[Route]:
    """A route for each path, with all its methods; they are tried in the order of the table."""
    by_path: dict[str, list[Operation[Any, Any]]] = {}
    for one in operations:
        by_path.setdefault(one.path, []).append(one)
    return [Route(path, Path(same, context, limits)) for path, same in by_path.items()]


class Path:
    """The operations of one path, as an ASGI application."""

    _uploads = 0

    def __init__(self, operations: Sequence[Operation[Any, Any]], context: Context, limits: ListenSettings) -> None:
        self._by_method = {one.method: one for one in operations}
        if "GET" in self._by_method:
            self._by_method["HEAD"] = self._by_method["GET"]
        self._context = context
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            RequestError: the path has no such method (405).
            SessionsError: as the operation does.
        """
        operation = self._by_method.get(scope["method"])
        if operation is None:
            allowed = {"Allow": ", ".join(sorted(self._by_method))}
            raise RequestError(405, "method_not_allowed", "this path has no such method", headers=allowed)
        scope["operation"] = operation.name
        request = Request(scope, receive)
        answer = self._upload if operation.uploads else self._answer
        response = await answer(operation, request)
        await response(scope, receive, send)

    async def _answer(self, operation: Operation[Any, Any], request: Request) -> Response:
        given = fields_given(operation, request)
        timeout_s, is_head = self._limits.request_timeout_s, request.method == "HEAD"
        with anyio.move_on_after(timeout_s) as patience:  # one for body and work: each takes a tenth of a request
            if BODY in operation.fields:
                given[BODY] = shaped(await read_json(request, self._limits), operation.fields[BODY])
            if operation.patient:
                patience.deadline = math.inf
            work = self._reply(operation, operation.request(**given), is_head=is_head)
            return await (while_client_waits(request, work) if operation.patient else work)
        if BODY in operation.fields and BODY not in given:
            raise RequestError(408, "timeout", f"the body did not arrive within {timeout_s:g} s", close=True)
        raise TimeoutError  # a client learns that the store, or a turn, takes long

    async def _upload(self, operation: Operation[Any, Any], request: Request) -> Response:
        pieces = body_pieces(request, stall_s=self._limits.request_timeout_s)
        begun = False
        try:
            if (refused := body_refusal(request.scope["headers"], FILES)) is not None:
                raise refused
            if self._uploads >= MAX_UPLOADS:
                retry = {"Retry-After": str(RETRY_AFTER_S)}
                raise RequestError(503, "too_many_imports", "too many imports are under way; try later", headers=retry)
            given = fields_given(operation, request)
            begun = True
            self._uploads += 1
            try:
                return await self._reply(operation, operation.request(**given, body=pieces))
            finally:
                self._uploads -= 1
        except SessionsError:
            if begun or "expect" not in request.headers:  # a client that asked first is told without sending it
                await drain(pieces, most=_DRAINED_BYTES)
            raise

    async def _reply(self, operation: Operation[Any, Any], wanted: Any, *, is_head: bool = False) -> Response:
        reply = await operation.handler(self._context, wanted)
        if isinstance(reply, Stream):
            return await self._streamed(reply, is_head=is_head)
        encoded = msgspec.json.encode(reply)
        status = operation.status_of(reply)
        if len(encoded) <= PIECE_BYTES or is_head:
            return encoded_reply(encoded, status=status)
        return self._in_pieces(sliced(encoded), "application/json", status=status)

    async def _streamed(self, stream: Stream, *, is_head: bool) -> Response:
        """A reply whose beginning is there: what cannot be read is known before the status is sent."""
        if is_head:
            await stream.chunks.aclose()
            stream.at_end()
            return encoded_reply(b"", media_type=stream.media_type)
        first = await anext(stream.chunks, b"")
        response = self._in_pieces(with_first(first, stream.chunks), stream.media_type, at_end=stream.at_end)
        if stream.file_name is not None:
            response.headers["Content-Disposition"] = f'attachment; filename="{stream.file_name}"'
        return response

    def _in_pieces(
        self,
        chunks: AsyncGenerator[bytes, None],
        media_type: str,
        *,
        status: int = 200,
        at_end: Callable[[], None] = lambda: None,
    ) -> ByteStream:
        stall_s = self._limits.request_timeout_s
        return ByteStream(chunks, media_type, stall_s=stall_s, status=status, at_end=at_end)


async def read_json(request: Request, limits: ListenSettings) -> Any:
    """The request's body as parsed JSON.

    Raises:
        RequestError: wrong content type (415), too long (413), not strict JSON (400).
    """
    if (refused := body_refusal(request.scope["headers"])) is not None:
        raise refused
    return parse_strictly(await read_body(request, limit=limits.max_body_bytes))


def fields_given(operation: Operation[Any, Any], request: Request) -> dict[str, Any]:
    """What path, query and headers say, by the names of the request's fields.

    Raises:
        RequestError: a parameter is unknown, comes twice, or has not the form that it must have (422).
        InvalidKey: a name in the path is not percent-encoded UTF-8.
    """
    given: dict[str, Any] = {name: _decoded(request.path_params[name], name) for name in operation.in_path}
    for name, text in request.query_params.multi_items() if request.scope["query_string"] else ():
        if name not in operation.in_query:
            known = ", ".join(operation.in_query) or "none"
            raise invalid(f"{name[:100]!r} is no parameter of this request; there are: {known}", param=name[:100])
        if name in given:
            raise invalid(f"send {name} once", param=name)
        given[name] = _from_query(name, text, operation.fields[name])
    if IDEMPOTENCY_KEY in operation.fields:
        keys = [value for name, value in request.scope["headers"] if name == b"idempotency-key"]
        if len(keys) > 1 or keys == [b""]:
            raise invalid("send one idempotency key", param="Idempotency-Key")
        try:
            given[IDEMPOTENCY_KEY] = keys[0].decode() if keys else None
        except UnicodeDecodeError:
            raise invalid("the idempotency key is not UTF-8", param="Idempotency-Key") from None
    return given


def _from_query(name: str, text: str, kind: Any) -> Any:
    try:
        return msgspec.convert(text, kind)  # a text is a text, also where it spells null or a number
    except msgspec.ValidationError:
        is_plain = re.fullmatch("-?[0-9]{1,16}|true|false", text) is not None  # not 1e3, nor digits of other scripts
        return shaped(text, kind, strict=not is_plain, name=name)


def _decoded(text: str, name: str) -> str:
    """A name in the path, percent-decoded exactly once: an id may itself hold percent signs."""
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise InvalidKey(f"the {name.replace('_', ' ')} in the path is not percent-encoded UTF-8") from None
