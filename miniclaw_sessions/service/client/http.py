"""The handlers over HTTP: through a Unix socket, or to a URL with a token.

A request whose connection broke is sent again where that is safe: it only looks, it makes a session unless that is
there, or it carries an idempotency key. A daemon that restarts is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from miniclaw_sessions.errors import ManagerClosed, SessionsError, TurnCutOff, Unreachable
from miniclaw_sessions.service.api.chat import Chat, chat
from miniclaw_sessions.service.api.error_table import UNREACHABLE, error_of, invalid
from miniclaw_sessions.service.api.event_stream import EVENT_STREAM
from miniclaw_sessions.service.api.operation import BODY, HEADERS, Operation
from miniclaw_sessions.service.api.service import HealthReply
from miniclaw_sessions.service.api.shapes import ChatEvent, ChatRequest
from miniclaw_sessions.service.client.connection import (
    CONNECT_TIMEOUT_S,
    Connection,
    Connections,
    NoReplyInTime,
    NotConnected,
)
from miniclaw_sessions.service.client.events import RequestFailed, server_sent_events

ANSWER_TIMEOUT_S = 60.0
"""Longer than the daemon's heartbeat in a stream, and than its own limit for a request."""

PATIENT_TIMEOUT_S = 3600.0
"""For what takes as long as there is much of it, or as a model is slow."""

PATIENCE_S = 10.0
"""How long a daemon that does not answer is waited for: one that restarts comes back within it."""

MAX_ADDRESS_BYTES = 60_000
"""What the address and the headers of a request may have together; a daemon takes some more (`MAX_HEAD_BYTES`)."""

_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_SUCCESS = range(200, 300)  # what lies elsewhere is not followed
_ENDS = ("done", "stopped", "suspended", "obeyed")

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R")


class HttpTransport:
    """Asks a daemon.

    Args:
        connections: to the daemon; their owner closes them.
        where: what people call the place.
        patience_s: how long a daemon that does not answer is waited for.
    """

    def __init__(self, connections: Connections, where: str, *, patience_s: float = PATIENCE_S) -> None:
        self._connections = connections
        self._where = where
        self._patience_s = patience_s

    def __repr__(self) -> str:
        return f"<daemon at {self._where}>"

    async def call(self, operation: Operation[Q, R], request: Q) -> R:
        """What the daemon replies.

        Raises:
            Unreachable: it does not answer, and the request may have been carried out.
            SessionsError: as the operation raises there; or the reply is not a daemon's.
        """
        content = await self._answered(operation, request)
        try:
            reply: R = msgspec.json.decode(content, type=operation.reply)
        except msgspec.MsgspecError as error:
            raise SessionsError(f"what answers at {self._where} is no daemon of this version ({error})") from error
        return reply

    async def _answered(self, operation: Operation[Q, R], request: Q) -> bytes:
        """Send until there is an answer, as long as that is safe."""
        asked = asked_for(operation, request)
        repeats = operation.repeats or "Idempotency-Key" in asked.headers
        give_up = asyncio.get_running_loop().time() + self._patience_s
        pause_s = _PAUSE_S
        while True:
            failure: SessionsError
            try:
                status, content = await self._connections.answer(
                    asked.method, asked.target, headers=asked.headers, body=asked.body, wait_s=asked.wait_s
                )
            except RequestFailed as error:
                failure = self._unreachable(error)
                may_repeat = isinstance(error, NotConnected) or (repeats and not isinstance(error, NoReplyInTime))
            else:
                refused = _refusal(status, content)
                if refused is None:
                    return content
                failure, may_repeat = refused, isinstance(refused, ManagerClosed)
            if not may_repeat or operation.uploads or asyncio.get_running_loop().time() + pause_s > give_up:
                raise failure
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    @asynccontextmanager
    async def stream(self, operation: Operation[Q, Any], request: Q) -> AsyncIterator[AsyncIterator[bytes]]:
        """The reply as it arrives.

        Raises:
            Unreachable: it broke off in the middle.
        """
        asked = asked_for(operation, request)
        try:
            async with self._connections.request(**asked._asdict()) as reply:
                if reply.status not in _SUCCESS:
                    raise error_of(reply.status, _document(await reply.read(ANSWER_TIMEOUT_S)))
                yield _pieces(reply)
        except NotConnected as error:
            raise Unreachable(f"{self._unreachable(error)}; nothing was sent") from error
        except RequestFailed as error:
            raise self._unreachable(error) from error

    @asynccontextmanager
    async def chat(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[ChatEvent]]:
        """The events of the answer, as they arrive."""
        async with self.stream(chat, Chat(msgspec.structs.replace(request, stream=True))) as pieces:
            yield _events(pieces)

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(
            f"the daemon at {self._where} does not answer ({error}): start it again if it has stopped, "
            "or look into its log"
        )


class Asked(NamedTuple):
    """A request of an operation, as it is sent."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes | AsyncIterator[bytes]
    wait_s: float
    is_endless: bool


def asked_for(operation: Operation[Any, Any], request: msgspec.Struct) -> Asked:
    """A request as it is sent.

    Raises:
        RequestError: its idempotency key cannot stand in a header, or what stands in its address is too long for one.
    """
    values = msgspec.structs.asdict(request)
    target = operation.path
    for name in operation.in_path:
        target = target.replace(f"{{{name}}}", quote(values[name], safe="", errors="surrogatepass"))
    if query := {name: _in_query(values[name]) for name in operation.in_query if values[name] is not None}:
        target = f"{target}?{urlencode(query, errors='surrogatepass')}"
    headers: dict[str, str] = {}
    for name in operation.in_headers:
        header, text = HEADERS[name], values[name]
        if text is None:
            continue
        if not text.isprintable() or text != text.strip():
            raise invalid(f"the header {header} holds no control characters, and no spaces at its ends", header)
        headers[header] = text
    if len(target) + sum(map(len, headers.values())) > MAX_ADDRESS_BYTES:
        lengths = {name: len(str(value)) for name, value in values.items() if name != BODY}
        name = max(lengths, key=lengths.__getitem__)
        sentence = f"{name} has {lengths[name]:,} characters; the address and the headers of a request"
        raise invalid(f"{sentence} have room for {MAX_ADDRESS_BYTES:,} bytes, with everything else in them", name)
    body: bytes | AsyncIterator[bytes] = b""
    if BODY in values:
        headers["Content-Type"] = "application/octet-stream" if operation.uploads else "application/json"
        body = values[BODY] if operation.uploads else msgspec.json.encode(values[BODY])
    wait_s = PATIENT_TIMEOUT_S if operation.patient else ANSWER_TIMEOUT_S
    is_endless = operation.media_types == (EVENT_STREAM,)  # the events of an answer have another form, and an end
    return Asked(operation.method, target, headers, body, wait_s, is_endless)


def _in_query(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refusal(status: int, content: bytes) -> SessionsError | None:
    """The error that a reply carries; None where it succeeded."""
    if status in _SUCCESS:
        return None
    document = _document(content)
    if "error" not in document and status == UNREACHABLE and "status" in document:
        return None  # a bad health report has an error's status
    return error_of(status, document)


def _document(content: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


async def _pieces(reply: Connection) -> AsyncIterator[bytes]:
    while piece := await reply.piece(ANSWER_TIMEOUT_S):
        yield piece


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[ChatEvent]:
    async for kind, encoded, _ in server_sent_events(pieces):
        data = _document(encoded)
        if kind == "error":
            raise error_of(UNREACHABLE, {"error": data})
        yield ChatEvent(kind, data)
        if kind in _ENDS:
            return
    raise TurnCutOff("the daemon ended the answer in the middle; what it had completed is saved")


async def health_of(connections: Connections) -> HealthReply | None:
    """The daemon's health; None: nothing answers there, or another program does."""
    try:
        async with connections.request("GET", "/health", wait_s=CONNECT_TIMEOUT_S) as reply:
            return msgspec.json.decode(await reply.read(CONNECT_TIMEOUT_S), type=HealthReply)
    except (RequestFailed, msgspec.MsgspecError):
        return None
