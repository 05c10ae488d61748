"""A real server on a real Unix socket and a real TCP port, in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import msgspec
import pytest

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.provider import ModelEvent, Reply, TextDelta
from miniclaw_sessions.agent.summarizing import summarizer_of
from miniclaw_sessions.agent.tools import Tool, time_tool
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.config import ChannelSettings, ListenSettings, ModelSettings, SessionSettings, Settings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message, ToolCall, Usage
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.service.gateway.http import Gateway, make_app
from miniclaw_sessions.service.gateway.listeners import listen_tcp, listen_unix
from miniclaw_sessions.service.gateway.security import AccessPolicy
from miniclaw_sessions.service.gateway.server import Server
from miniclaw_sessions.service.gateway.token_file import TokenFile
from miniclaw_sessions.service.gateway.token_table import TokenTable
from miniclaw_sessions.testing.clock import FakeClock
from miniclaw_sessions.testing.faults import FaultyStore
from tests.documented import Documented

if TYPE_CHECKING:
    from openai import AsyncOpenAI

TOKEN = "0123456789abcdef0123456789abcdef"


@dataclass(frozen=True)
class Served:
    """A running server and clients for it: `unix` is trusted, `tcp` sends the token."""

    manager: SessionManager
    server: Server
    dispatcher: Dispatcher
    socket: Path
    port: int
    unix: httpx2.AsyncClient
    tcp: httpx2.AsyncClient
    app: Gateway
    faults: FaultyStore
    """Its store, where the settings name `memory:`."""

    async def raw(self, data: bytes, *, by_tcp: bool = False, then_end: bool = False) -> bytes:
        """Send bytes and read until the server closes the connection."""
        stream: Any = (
            await anyio.connect_tcp("127.0.0.1", self.port) if by_tcp else await anyio.connect_unix(str(self.socket))
        )
        received = b""
        async with stream:
            try:
                await stream.send(data)
                if then_end:
                    await stream.send_eof()
            except anyio.BrokenResourceError:
                pass  # the server has answered and closed before everything was sent
            try:
                while True:
                    received += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return received

    async def idle(self) -> None:
        """Wait until no request is being answered."""
        with anyio.fail_after(60):
            while tasks := self.server.state.tasks:
                await asyncio.wait(tasks)

    async def is_alive(self) -> bool:
        """Whether the server still answers."""
        return (await self.unix.get("/health")).status_code == 200


@pytest.fixture
def session_settings() -> SessionSettings:
    """Tests override this to bound the manager."""
    return SessionSettings(store="memory:")


@pytest.fixture
def limits() -> ListenSettings:
    """Tests override this to bound the server."""
    return ListenSettings(max_body_bytes=200_000, request_timeout_s=5.0, graceful_timeout_s=1.0)


@pytest.fixture
def model_settings() -> ModelSettings:
    """Tests override this to bound the model's context."""
    return ModelSettings(timeout_s=5.0)


@pytest.fixture
def channel_settings() -> ChannelSettings:
    """Tests override this to bound what may wait."""
    return ChannelSettings(max_waiting_per_chat=5, max_messages=10)


class EchoProvider:
    """Answers `hello` with `echo: hello`, a word at a time; waits at `gate` where the text says `slow`."""

    name = "test"
    model = "echo"

    def __init__(self) -> None:
        self.gate = anyio.Event()
        self.began = anyio.Event()
        self.asked = 0

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        """One reply."""
        self.asked += 1
        self.began.set()
        text = messages[-1].text
        if messages[-1].is_user and text.startswith("tool"):
            yield Reply(Message.assistant("", (ToolCall("c1", tools[0].name, "{}"),)))
            return
        if text.startswith("fail"):
            raise RuntimeError("the key sk-secret is wrong")
        words = f"echo: {text}".split(" ")
        for place, word in enumerate(words):
            yield TextDelta(word if place == 0 else f" {word}")
            if place == 0 and "slow" in text:
                await self.gate.wait()
        message = Message.assistant(" ".join(words))
        yield Reply(msgspec.structs.replace(message, usage=Usage(input_tokens=2, output_tokens=3)))


@pytest.fixture
def provider(request: pytest.FixtureRequest) -> Any:
    """The model behind the chat; a module may name another one as `MODEL`."""
    return getattr(request.module, "MODEL", EchoProvider)()


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's own package as a client of the server, which sends nothing a second time."""
    from openai import AsyncOpenAI  # noqa: PLC0415 - most tests here do without it, and it takes a second to import

    transport = httpx2.AsyncHTTPTransport(uds=str(served.socket), verify=False)
    http = httpx2.AsyncClient(transport=transport)
    async with AsyncOpenAI(base_url="http://miniclaw/v1", api_key="none", http_client=http, max_retries=0) as one:
        yield one


@pytest.fixture
def agent(request: pytest.FixtureRequest, provider: Any) -> Agent:
    """A real agent with one tool, and the module's `SYSTEM_PROMPT`."""
    prompt = getattr(request.module, "SYSTEM_PROMPT", "")
    return Agent(provider, tools=[time_tool(FakeClock())], system_prompt=prompt)


@pytest.fixture
async def served(  # noqa: PLR0917 - fixtures
    short_path: Path,
    session_settings: SessionSettings,
    limits: ListenSettings,
    model_settings: ModelSettings,
    channel_settings: ChannelSettings,
    agent: Agent,
) -> AsyncIterator[Served]:
    listeners = [listen_unix(short_path / "s"), *listen_tcp("127.0.0.1:0")]
    port = listeners[1].port
    tokens = TokenTable(TOKEN, [short_path / "tokens.json"], SystemClock())
    policy = AccessPolicy.of(tokens, [f"127.0.0.1:{port}"], ["https://good.example"])
    settings = Settings(listen=limits, model=model_settings)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    transport = httpx2.AsyncHTTPTransport(uds=str(short_path / "s"), verify=False)  # no TLS: half a test's time
    faults = FaultyStore(MemoryStore())
    store = faults if session_settings.store == "memory:" else None
    async with (
        SessionManager(short_path / "workspace", settings=session_settings, store=store) as manager,
        httpx2.AsyncClient(transport=transport, base_url="http://miniclaw", timeout=30) as unix,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30, verify=False) as tcp,
        Dispatcher(manager, Assistant(agent, model_settings), limits=channel_settings) as dispatcher,
        anyio.create_task_group() as tasks,
    ):
        app = make_app(manager, dispatcher, settings, policy, summarizer_of(agent.provider))
        app.context.tokens = TokenFile(short_path / "tokens.json", SystemClock())
        documented = Documented(app)
        server = Server(
            documented,
            max_connections=limits.max_connections,
            request_timeout_s=limits.request_timeout_s,
            graceful_timeout_s=limits.graceful_timeout_s,
        )
        app.context.problems = server.problems
        tasks.start_soon(server.serve_until_stopped, [listener.socket for listener in listeners])
        await server.listening.wait()
        tasks.start_soon(app.watch_tokens)
        yield Served(manager, server, dispatcher, short_path / "s", port, unix, tcp, app, faults)
        await unix.aclose()
        await tcp.aclose()
        dispatcher.cut_off(anyio.current_time())
        server.hurry()
        await server.stopped.wait()
        tasks.cancel_scope.cancel()
        for listener in listeners:
            listener.close()
        assert documented.surprises == set(), "add them to the operation's `errors`, `statuses` or `media_types`"
