"""Connections to an MCP server, with bounds: its output is not trusted.

The official package has both ways; its pipe to a program, though, reads a line of any length, and as many messages as
come. The ends of a program (its standard input closed, then SIGTERM, then SIGKILL) are those of the specification.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
import httpx2
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCRequest, jsonrpc_message_adapter

from miniclaw_sessions.errors import AgentError
from miniclaw_sessions.secret import Secret

MAX_MESSAGE_BYTES = 8 * 2**20
"""How large one message of a server may be, and one reply over HTTP."""

MAX_UNASKED = 2_000
"""How many messages a program may send while nothing is asked of it; an answer to it is no question."""

_GRACE_S = 2.0
_TAIL_BYTES = 2_000
_CONNECT_S, _READ_S = 30.0, 300.0
_NOT_ALLOWED = (401, 403)
_SHOWN_ADDRESS = 200
_BROKEN = (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream, OSError)

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


class ServerEnded(AgentError):
    """What a server did ends the connection; the text says what."""


class Program:
    """A server that is started here: `async with program.running() as streams`.

    Args:
        command: the program.
        arguments: for it.
        environment: beside the few variables that every program is given (`PATH`, `HOME`, ...).
        on_end: called when it says nothing more.

    Attributes:
        ended: why the connection is over; None while it is not.
    """

    def __init__(
        self,
        command: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.ended: str | None = None
        self._command = [command, *arguments]
        self._environment = {**get_default_environment(), **environment}
        self._on_end = on_end
        self._tail = b""  # what it wrote last to standard error
        self._unasked = 0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Streams, None]:
        """Start it; at the end of the block it has ended.

        Raises:
            ServerEnded: it cannot be started.
        """
        try:
            process = await anyio.open_process(self._command, env=self._environment, start_new_session=True)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ServerEnded(f"{self._command[0]} cannot be started: {reason}") from None
        to_client, received = anyio.create_memory_object_stream[Incoming](0)
        sent, from_client = anyio.create_memory_object_stream[SessionMessage](0)
        with received, sent:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read, process, to_client, name="mcp output")
                tasks.start_soon(self._write, process, from_client, name="mcp input")
                tasks.start_soon(self._listen_to_errors, process, name="mcp errors")
                try:
                    yield received, sent
                finally:
                    with anyio.CancelScope(shield=True):
                        await _end(process, grace_s=_GRACE_S if self.ended is None else 0.0)
                    tasks.cancel_scope.cancel()

    async def _read(self, process: Process, to_client: MemoryObjectSendStream[Incoming]) -> None:
        """Hand over each line, until there are no more, or too much comes."""
        with to_client, suppress(*_BROKEN):
            async for line in self._lines(process.stdout):
                self._unasked += 1
                if self._unasked > MAX_UNASKED:
                    self.ended = f"it sent more than {MAX_UNASKED} messages without a request"
                    break
                try:
                    await to_client.send(SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False)))
                except ValueError:  # some print what is no message; it is passed over
                    await anyio.lowlevel.checkpoint()
        self._on_end()

    async def _lines(self, output: ByteReceiveStream | None) -> AsyncIterator[bytes]:
        if output is None:
            return
        waiting = bytearray()
        with suppress(*_BROKEN):
            async for piece in output:
                *lines, rest = piece.split(b"\n")
                if lines:
                    yield bytes(waiting + lines[0])
                    waiting.clear()
                for line in lines[1:]:
                    yield line
                waiting += rest
                if len(waiting) > MAX_MESSAGE_BYTES:
                    self.ended = f"it sent a line of more than {MAX_MESSAGE_BYTES} bytes"
                    return

    async def _write(self, process: Process, from_client: MemoryObjectReceiveStream[SessionMessage]) -> None:
        with suppress(*_BROKEN):
            async with from_client:
                async for message in from_client:
                    if process.stdin is not None:
                        text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                        await process.stdin.send(text.encode() + b"\n")
                    if isinstance(message.message, JSONRPCRequest):
                        self._unasked = 0

    async def _listen_to_errors(self, process: Process) -> None:
        """Keep the end of its error output, which may say why it did not start."""
        with suppress(*_BROKEN):
            if process.stderr is not None:
                async for piece in process.stderr:
                    self._tail = (self._tail + piece)[-_TAIL_BYTES:]

    @property
    def last_words(self) -> str:
        """The last line that it wrote to standard error."""
        lines = self._tail.decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


async def _end(process: Process, *, grace_s: float) -> None:
    """As the specification has it: close its input, and wait; then end it with all that it has started."""
    with suppress(*_BROKEN):
        if process.stdin is not None:
            await process.stdin.aclose()
    await _has_ended(process, grace_s)
    await terminate_posix_process_tree(process, _GRACE_S)
    await _has_ended(process, _GRACE_S)
    with suppress(*_BROKEN):
        await process.aclose()


async def _has_ended(process: Process, patience_s: float) -> None:
    with anyio.move_on_after(patience_s):
        while process.returncode is None:  # noqa: ASYNC110 - `wait` also waits for those who inherited its pipes
            await anyio.sleep(0.01)


@asynccontextmanager
async def at_address(url: str, token: Secret | None) -> AsyncGenerator[Streams, None]:
    """A server over HTTP; what it replies with is bounded.

    Args:
        url: where it is.
        token: a bearer token that it asks for.
    """
    headers = {"Accept-Encoding": "identity"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token.reveal()}"
    timeout = httpx2.Timeout(_CONNECT_S, read=_READ_S)
    client = httpx2.AsyncClient(headers=headers, timeout=timeout, transport=_Bounded(), follow_redirects=False)
    async with client, streamable_http_client(url, http_client=client) as streams:
        yield streams  # type: ignore[misc]  # streams that also carry the sender's context


class _Bounded(httpx2.AsyncHTTPTransport):
    """Breaks off replies that are larger than they may be, or compressed: these may expand to any size.

    A redirection is not followed: a server could have us send requests of its making to addresses of our network.
    """

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise ReplyRefused("it sent a compressed reply, which was not asked for", request=request)
        if response.status_code in _NOT_ALLOWED:
            await response.aclose()
            raise ReplyRefused(f"it answers HTTP {response.status_code}; is the token in token_file right?")
        if response.has_redirect_location:
            await response.aclose()
            address = response.headers["location"][:_SHOWN_ADDRESS]
            raise ReplyRefused(f"it sends us to {address!r} instead; if that is right, name that address in url")
        response.stream = _Counted(response.stream, request)
        return response


class ReplyRefused(httpx2.ReadError):
    """A reply is not read any further."""


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, stream: object, request: httpx2.Request) -> None:
        self._stream = stream
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:  # type: ignore[attr-defined]
            size += len(piece)
            if size > MAX_MESSAGE_BYTES:
                raise ReplyRefused(f"it sent a reply of more than {MAX_MESSAGE_BYTES} bytes", request=self._request)
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()  # type: ignore[attr-defined]
