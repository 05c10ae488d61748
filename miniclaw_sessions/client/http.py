"""The handlers over HTTP: through a Unix socket, or to a URL with a token.

A request whose connection broke is sent again where that is safe: it only looks, or it carries an idempotency key. A
daemon that restarts is waited for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast
from urllib.parse import quote

import anyio
import httpx2
import msgspec

from miniclaw_sessions.api.error_table import UNREACHABLE, error_of
from miniclaw_sessions.api.operation import BODY, IDEMPOTENCY_KEY, Operation
from miniclaw_sessions.api.shapes import ChatEvent, ChatRequest, HealthReply
from miniclaw_sessions.errors import SessionsError, TurnCutOff, Unreachable

CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 60.0
"""Longer than the daemon's heartbeat in a stream, and than its own limit for a request."""

PATIENT_TIMEOUT_S = 3600.0
"""For what takes as long as there is much of it, or as a model is slow."""

PATIENCE_S = 10.0
"""How long a daemon that does not answer is waited for: one that restarts comes back within it."""

MAX_CONNECTIONS = 64

_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_CHAT_PATH = "/v1/chat"
_TIMEOUT = httpx2.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, pool=None)
_PATIENT = httpx2.Timeout(PATIENT_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, pool=None)
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout)
_ENDS = ("done", "stopped", "suspended", "stop")

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R")


def unix_client(socket: str) -> httpx2.AsyncClient:
    """A client of a daemon's Unix socket; there is no TLS: no certificates are loaded."""
    limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS)
    transport = httpx2.AsyncHTTPTransport(uds=socket, verify=False, limits=limits)
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=_TIMEOUT)


def url_client(url: str, token: str | None) -> httpx2.AsyncClient:
    """A client of a daemon's TCP port, or of the TLS proxy before it."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS)
    return httpx2.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT, limits=limits)


class HttpTransport:
    """Asks a daemon.

    Args:
        client: where it is; closed by whoever made it.
        where: what people call the place.
        patience_s: how long a daemon that does not answer is waited for.
    """

    def __init__(self, client: httpx2.AsyncClient, where: str, *, patience_s: float = PATIENCE_S) -> None:
        self._client = client
        self._where = where
        self._patience_s = patience_s

    def __repr__(self) -> str:
        return f"<daemon at {self._where}>"

    async def call(self, operation: Operation[Q, R], request: Q) -> R:
        """What the daemon replies.

        Raises:
            Unreachable: it does not answer, and the request may have been carried out.
            SessionsError: whatever the operation raises there.
        """
        response = await self._sent(operation, request)
        reply: R = msgspec.json.decode(response.content, type=operation.reply)
        return reply

    async def _sent(self, operation: Operation[Q, R], request: Q) -> httpx2.Response:
        """Send until there is an answer, as long as that is safe."""
        options = request_options(operation, request)
        repeats = operation.method == "GET" or IDEMPOTENCY_KEY in options["headers_given"]
        del options["headers_given"]
        give_up = anyio.current_time() + self._patience_s
        pause_s = _PAUSE_S
        while True:
            failure: Exception
            try:
                response = await self._client.request(operation.method, **options)
            except httpx2.TransportError as error:
                failure = self._unreachable(error)
                may_repeat = isinstance(error, _NOT_SENT) or repeats
                may_repeat = may_repeat and not (operation.uploads or isinstance(error, httpx2.ReadTimeout))
            else:
                refused = _refusal(response)
                if refused is None:
                    return response
                failure, may_repeat = refused, _is_stopping(response) and not operation.uploads
            if not may_repeat or anyio.current_time() + pause_s > give_up:
                raise failure
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    @asynccontextmanager
    async def stream(self, operation: Operation[Q, Any], request: Q) -> AsyncIterator[AsyncIterator[bytes]]:
        """The reply as it arrives.

        Raises:
            Unreachable: it broke off in the middle.
        """
        options = request_options(operation, request)
        del options["headers_given"]
        try:
            async with self._client.stream(operation.method, **options) as response:
                await _refuse(response)
                yield response.aiter_bytes()
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error

    @asynccontextmanager
    async def chat(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[ChatEvent]]:
        """The events of the answer, as they arrive."""
        wanted = msgspec.structs.replace(request, stream=True)
        options = {"json": msgspec.to_builtins(wanted), "max_event_size": None}
        try:
            async with self._client.sse(_CHAT_PATH, method="POST", **options) as source:
                await _refuse(source.response)
                yield _events(source)
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(
            f"the daemon at {self._where} does not answer ({type(error).__name__}): start it again if it has stopped, "
            "or look into its log"
        )


def request_options(operation: Operation[Any, Any], request: msgspec.Struct) -> dict[str, Any]:
    """A request as the HTTP client takes it; `headers_given` names the fields that became headers."""
    values = {name: getattr(request, name) for name in operation.fields}
    path = operation.path
    for name in operation.in_path:
        path = path.replace(f"{{{name}}}", quote(values[name], safe=""))
    query = {name: _in_query(values[name]) for name in operation.in_query if values[name] is not None}
    options: dict[str, Any] = {"url": path, "params": query, "headers": {}, "headers_given": ()}
    if values.get(IDEMPOTENCY_KEY) is not None:
        options["headers"]["Idempotency-Key"] = values[IDEMPOTENCY_KEY]
        options["headers_given"] = (IDEMPOTENCY_KEY,)
    if operation.uploads:
        options["content"] = values[BODY]
        options["headers"]["Content-Type"] = "application/octet-stream"
    elif BODY in values:
        options["content"] = msgspec.json.encode(values[BODY])
        options["headers"]["Content-Type"] = "application/json"
    if operation.patient:
        options["timeout"] = _PATIENT
    return options


def _in_query(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refusal(response: httpx2.Response) -> SessionsError | None:
    """The error that a reply tells of; None where it is what was asked for."""
    if response.is_success:
        return None
    document = _document(response)
    if "error" not in document and response.status_code == UNREACHABLE and "status" in document:
        return None  # health, which is told also where it is bad
    return error_of(response.status_code, document)


async def _refuse(response: httpx2.Response) -> None:
    if not response.is_success:
        await response.aread()
        raise error_of(response.status_code, _document(response))


def _document(response: httpx2.Response) -> dict[str, Any]:
    try:
        document = response.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _is_stopping(response: httpx2.Response) -> bool:
    about = _document(response).get("error")
    return isinstance(about, dict) and about.get("type") == "manager_closed"


async def _events(source: httpx2.EventSource) -> AsyncIterator[ChatEvent]:
    async for event in source:
        data = cast("dict[str, Any]", event.json())
        if event.event == "error":
            raise error_of(UNREACHABLE, {"error": data})
        yield ChatEvent(event.event, data)
        if event.event in _ENDS:
            return
    raise TurnCutOff("the daemon ended the answer in the middle; what it had completed is saved")


async def health_of(client: httpx2.AsyncClient) -> HealthReply | None:
    """Who answers there; None: nobody, or another program."""
    try:
        response = await client.get("/health", timeout=CONNECT_TIMEOUT_S)
        return msgspec.json.decode(response.content, type=HealthReply)
    except (httpx2.TransportError, msgspec.MsgspecError):
        return None
