"""Requests to a real server on a Unix socket.

A case of `requests` is an HTTP request without its length, which is added, so that many share one connection. A case of
`raw-requests` is everything that a client sends on a connection of its own before it says that it is done.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from random import Random
from typing import Any, ClassVar, Self

import anyio
import httptools
import orjson
from anyio.abc import SocketStream

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.providers.offline import OfflineProvider
from miniclaw_sessions.agent.summarizing import summarizer_of
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.config import ChannelSettings, ListenSettings, ModelSettings, SessionSettings, Settings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.service.gateway.http import make_app
from miniclaw_sessions.service.gateway.listeners import listen_unix
from miniclaw_sessions.service.gateway.server import Server
from tests.fuzz.mutations import damaged
from tests.fuzz.reader import SECRET, Reader
from tests.fuzz.seeds import conversation

_SERVER_ERROR = 500
_PATIENCE_S = 0.02  # an answer that is on its way comes sooner; for half a request none comes at all
_ABOUT_IDS = ("entry_not_found", "session_not_found", "invalid_key", "duplicate_message")
"""Errors that repeat an id; a damaged case may well have a word that was said in its place."""

_NEW_EVERY = 250
"""After so many cases the sessions are made anew: a conversation that grew long would make every case slow."""

_ONLY_BODY = 0.6
_ONLY_PATH = 0.8

_JSON = "content-type: application/json"
_SEEDS: tuple[tuple[str, Any], ...] = (
    ("GET /health", None),
    ("GET /metrics", None),
    ("GET /v1/statistics", None),
    ("GET /v1/formats", None),
    ("GET /v1/sessions?limit=5&cursor=x&channel=fuzz", None),
    ("POST /v1/sessions", {"channel": "fuzz", "chat_id": 2, "title": "t", "agent_id": "a", "metadata": {"k": [1]}}),
    ("GET /v1/sessions/fuzz_1", None),
    ("PATCH /v1/sessions/fuzz_1", {"title": "t", "model": None, "provider": "p", "metadata": {"k": {"deep": [1]}}}),
    ("DELETE /v1/sessions/fuzz_2", None),
    ("GET /v1/sessions/fuzz_1/messages?limit=10", None),
    ("POST /v1/sessions/fuzz_1/messages", {"role": "user", "content": SECRET, "idempotency_key": "k1"}),
    (
        "POST /v1/sessions/fuzz_1/messages",
        {
            "messages": [
                {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "n", "arguments": "{}"}]},
                {
                    "role": "tool",
                    "content": [{"type": "text", "text": SECRET}],
                    "tool_call_id": "c",
                    "x": {"y": [None]},
                },
            ]
        },
    ),
    ("GET /v1/sessions/fuzz_1/context", None),
    ("GET /v1/sessions/fuzz_1/transcript", None),
    ("POST /v1/chat", {"channel": "fuzz", "chat_id": "1", "message": SECRET, "idempotency_key": "k2"}),
    ("POST /v1/chat", {"channel": "fuzz", "chat_id": "1", "message": {"content": "6 * 7"}, "stream": True}),
    ("POST /v1/chat", {"channel": "fuzz", "chat_id": "1", "resume": True}),
    ("POST /v1/flush", {}),
    ("POST /v1/check", {}),
    ("GET /v1/sessions/fuzz_1/tree", None),
    ("GET /v1/sessions/fuzz_1/branch?limit=3", None),
    ("POST /v1/sessions/fuzz_1/branch", {"entry_id": None, "summary": SECRET}),
    ("GET /v1/sessions/fuzz_1/entries/x", None),
    ("POST /v1/sessions/fuzz_1/entries", {"type": "custom", "custom_type": "note", "data": {"a": [1, {"b": SECRET}]}}),
    ("POST /v1/sessions/fuzz_1/entries", {"type": "model_change", "provider": "p", "model_id": "m"}),
    ("POST /v1/sessions/fuzz_1/labels", {"entry_id": "x", "label": "here"}),
    ("POST /v1/sessions/fuzz_1/fork", {"session_id": "fuzz_3", "leaf_id": None}),
    ("POST /v1/sessions/fuzz_1/compact", {"keep_tokens": 1, "summary": SECRET, "tokens_before": 5}),
    (
        "POST /v1/sessions/fuzz_1/turns",
        {"messages": [{"role": "user", "content": SECRET}], "usage": {"input_tokens": 1}},
    ),
    ("GET /v1/sessions/fuzz_1/export?format=pi", None),
    ("GET /v1/sessions/fuzz_1/export?format=html", None),
)


class _ServerReader(Reader):
    """Runs the server."""

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        self._cases = 0
        self.manager = await self._stack.enter_async_context(_served(self.scratch))
        await self._begin_anew()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._begin_anew()
        await self._stack.aclose()

    async def connect(self) -> SocketStream:
        """A connection to the server."""
        return await anyio.connect_unix(str(self.scratch / "socket"))

    async def count(self) -> None:
        """Another case is to be read."""
        self._cases += 1
        if self._cases % _NEW_EVERY == 0:
            await self._begin_anew()

    async def _begin_anew(self) -> None:
        """Two sessions as they were at first; the neighbour, of whom no case speaks, must be so still."""
        neighbour = await self.manager.get_or_create("neighbour", "1")
        if self._cases:
            assert [message.text for message in neighbour.messages()] == ["untouched"]
            assert (await self.manager.flush()).failed == 0
            assert (await self.manager.check()).problems == []
        else:
            await neighbour.add_message(Message.user("untouched"))
        for summary in await self.manager.list():
            if summary.session_id != neighbour.session_id:
                await self.manager.delete(summary.session_id)
        for chat_id in ("1", "2"):
            session = await self.manager.get_or_create("fuzz", chat_id)
            await session.add_message(Message.user(f"{SECRET}?"))
            await session.add_message(Message.assistant(f"{SECRET}!"))


class RequestReader(_ServerReader):
    """Requests that are framed as HTTP wants it, one after the other."""

    name: ClassVar[str] = "requests"
    share: ClassVar[int] = 10_000

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._stream: SocketStream | None = None
        self.seeds = [*_requests(), _import_request()]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._disconnect()
        await super().__aexit__()

    def case(self, random: Random, number: int) -> bytes:
        """Mostly only the body is damaged, or only the path: a damaged head is refused before anything is looked at."""
        seed = random.choice(self.seeds)
        head, blank, body = seed.partition(b"\r\n\r\n")
        how = random.random()
        if body and how < _ONLY_BODY:
            return head + blank + damaged(random, body, self.seeds)
        if how < _ONLY_PATH:
            method, _, rest = head.partition(b" ")
            path, _, others = rest.partition(b" ")
            path = damaged(random, path, [path]).translate(None, b" \r\n")
            return method + b" " + path + b" " + others + blank + body
        return super().case(random, number)

    async def read(self, case: bytes) -> bool:
        await self.count()
        head, _, body = case.partition(b"\r\n\r\n")
        length = b"\r\ncontent-length: %d" % len(body) if body else b""
        try:
            reply = await self._ask(head + length + b"\r\n\r\n" + body)
        except BaseException:
            await self._disconnect()
            raise
        return _checked(reply, head)

    async def _ask(self, data: bytes) -> _Reply:
        self._stream = self._stream or await self.connect()
        reply = _Reply()
        try:
            await self._stream.send(data)
            while not reply.is_complete:
                reply.feed(await self._stream.receive())
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            reply.is_last = True
        if reply.is_last:
            await self._disconnect()
        return reply

    async def _disconnect(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()


class RawRequestReader(_ServerReader):
    """Whatever may come on a connection."""

    name: ClassVar[str] = "raw-requests"
    share: ClassVar[int] = 5_000

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        good = [_with_length(request) for request in _requests()]
        body = b"5\r\n" + b'{"cha\r\n14\r\nnnel":"f","chat_id":"1"}\r\n0\r\nx: y\r\n\r\n'
        chunked = b"POST /v1/sessions HTTP/1.1\r\nhost: x\r\n%s\r\ntransfer-encoding: chunked\r\n\r\n" % _JSON.encode()
        expecting = chunked.replace(b"host: x", b"host: x\r\nexpect: 100-continue")
        self.seeds = [*good, chunked + body, expecting + body, good[0] + good[1]]
        return self

    async def read(self, case: bytes) -> bool:
        await self.count()
        received = b""
        async with await self.connect() as stream:
            with suppress(anyio.BrokenResourceError, OSError):  # answered and closed before everything was sent
                await stream.send(case)
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                with anyio.move_on_after(_PATIENCE_S):
                    received += await stream.receive()
                with suppress(OSError):
                    await stream.send_eof()
                while True:
                    received += await stream.receive()
        answers = received.replace(SECRET.encode(), b"").replace(b"HTTP/1.1 501", b"")  # that coding nobody has to know
        assert b"HTTP/1.1 5" not in answers, received[:500]
        return received.startswith((b"HTTP/1.1 2", b"HTTP/1.1 100"))


class _Reply:
    """One reply as it comes in; the methods named on_... are httptools'."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.is_complete = False
        self.is_last = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.is_last = not self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = self.status >= 200  # 100 is followed by another one


def _checked(reply: _Reply, head: bytes) -> bool:
    """Whether the request was answered with what it asked for; else it was refused, which is checked."""
    if reply.status == 0 or head.startswith(b"HEAD"):
        return False  # what is no HTTP may be answered by the end of the connection
    assert reply.status < _SERVER_ERROR, (reply.status, reply.body[:500])
    if reply.status < 400:
        return True
    error = orjson.loads(reply.body)["error"]
    assert error["message"]
    assert error["type"]
    is_named = error["type"] in _ABOUT_IDS or SECRET.encode() in head
    assert is_named or SECRET.encode() not in reply.body, reply.body[:500]
    return False


def _requests() -> list[bytes]:
    return [_request(line, None if body is None else orjson.dumps(body)) for line, body in _SEEDS]


def _request(line: str, body: bytes | None, content_type: str = _JSON) -> bytes:
    headers = ["host: x", *([content_type] if body is not None else [])]
    return "\r\n".join([f"{line} HTTP/1.1", *headers, "", ""]).encode() + (body or b"")


def _import_request() -> bytes:
    return _request(
        "POST /v1/import?name=x&dry_run=1", conversation().exports["jsonl"], "content-type: application/octet-stream"
    )


def _with_length(request: bytes) -> bytes:
    head, _, body = request.partition(b"\r\n\r\n")
    return head + b"\r\ncontent-length: %d\r\n\r\n" % len(body) + body


@asynccontextmanager
async def _served(scratch: Any) -> AsyncIterator[SessionManager]:
    """The server, as the daemon puts it together, on `scratch`/socket."""
    limits = ListenSettings(request_timeout_s=0.5, graceful_timeout_s=1.0, max_body_bytes=100_000)
    listener = listen_unix(scratch / "socket")
    provider = OfflineProvider()
    settings = SessionSettings(store="memory:", max_sessions=200)
    async with (
        SessionManager(scratch / "served", settings=settings) as manager,
        Dispatcher(manager, Assistant(Agent(provider), ModelSettings()), limits=ChannelSettings()) as dispatcher,
        anyio.create_task_group() as tasks,
    ):
        server = Server(
            make_app(
                manager,
                dispatcher,
                Settings(listen=limits, model=ModelSettings(timeout_s=2.0)),
                None,
                summarizer_of(provider),
            ),
            max_connections=limits.max_connections,
            request_timeout_s=limits.request_timeout_s,
            graceful_timeout_s=limits.graceful_timeout_s,
        )
        tasks.start_soon(server.serve_until_stopped, [listener.socket])
        await server.listening.wait()
        yield manager
        dispatcher.cut_off(anyio.current_time())
        server.hurry()
        await server.stopped.wait()
        listener.close()
