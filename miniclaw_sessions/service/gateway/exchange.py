"""One request and its reply: what was asked, its body as it comes, and what goes back, at once or piece by piece."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, MutableMapping
from contextlib import aclosing
from typing import Any, NamedTuple, TypeVar

import anyio
import orjson
from anyio.lowlevel import checkpoint

from miniclaw_sessions.log import get_logger
from miniclaw_sessions.service.api.access import Scope as AccessScope
from miniclaw_sessions.service.api.context import Context
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
        at_end: called when a reply that was made piece by piece is over, however it ended.
    """

    status: int
    body: bytes | AsyncGenerator[bytes, None]
    media_type: str = "application/json"
    headers: Mapping[str, str] = {}
    at_end: Callable[[], None] = lambda: None

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
        operation: what is asked, as it is counted.
        context: what its handler works with, once it is known who asks; None: it was refused before that.
        scope: what is needed for what is asked.
        sharing: further headers of the reply, whatever it is: which web pages may read it.
        status: the reply's; 0 until it has begun.
        outcome: the status that is written down where the reply's says only that there is a reply; 0: the reply's.
        request_id: what the answer and the log call the request: what the client calls it, if that is short and plain.
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
        """The first header of this name; empty where there is none."""
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

    async def gone(self) -> None:
        """Return when the client has gone away; the request's body must have been read."""
        while (await self._next())["type"] != "http.disconnect":
            pass

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
        await self.gone()
        scope.cancel()

    # --- the reply ---------------------------------------------------------------------------------------------------

    async def reply(self, reply: Reply) -> None:
        """Send it; what is made piece by piece is made as fast as it is taken."""
        if isinstance(reply.body, bytes):
            await self._begin(reply, None if reply.status == NOT_MODIFIED else b"%d" % len(reply.body))
            await self._send({"type": "http.response.body", "body": reply.body})
            return
        try:
            async with aclosing(reply.body), anyio.create_task_group() as tasks:
                tasks.start_soon(self._cancel_when_gone, tasks.cancel_scope, name="client watch")
                await self._send_all_or_break_off(reply, reply.body)
                tasks.cancel_scope.cancel()
        finally:
            reply.at_end()

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

    async def _send_all_or_break_off(self, reply: Reply, pieces: AsyncGenerator[bytes, None]) -> None:
        """Too late for an error reply: the client sees a broken end."""
        try:
            await self._begin(reply, None)
            async for piece in pieces:
                await self._send_piece(piece, more=True)
            await self._send_piece(b"", more=False)
        except Exception as error:  # noqa: BLE001 - an edge: nobody above could still answer
            log.error("a reply broke off", action="http.broke_off", error_type=type(error).__name__)
            self.break_off()

    async def _send_piece(self, piece: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})
        await checkpoint()  # a client that takes everything at once must not keep the others waiting

    def break_off(self) -> None:
        """End the connection at once."""
        self._state["abort"]()
