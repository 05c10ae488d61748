"""A client of a workspace, in this process and over HTTP through a real Unix socket: the same tests for both."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.loop import Agent
from miniclaw_sessions.agent.summarizing import summarizer_of
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.client import Client, connect
from miniclaw_sessions.config import ListenSettings, SessionSettings, Settings
from miniclaw_sessions.gateway.http import make_app
from miniclaw_sessions.gateway.listeners import listen_unix
from miniclaw_sessions.gateway.server import EmbeddedServer
from miniclaw_sessions.manager import SessionManager
from miniclaw_sessions.testing.provider import ScriptedProvider


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose name leaves room for a Unix socket's."""
    with tempfile.TemporaryDirectory(prefix="mc") as name:
        yield Path(name)


@pytest.fixture
def session_settings() -> SessionSettings:
    """Tests override this to bound the manager."""
    return SessionSettings(store="sqlite:")


@pytest.fixture
def model() -> ScriptedProvider:
    """Who answers and summarises."""
    return ScriptedProvider(["a summary", "another summary"])


@asynccontextmanager
async def serving(manager: SessionManager, socket: Path, agent: Agent) -> AsyncIterator[EmbeddedServer]:
    """A gateway over a manager, as the daemon has it."""
    settings = Settings(listen=ListenSettings(request_timeout_s=5.0))
    listener = listen_unix(socket)
    async with (
        Dispatcher(manager, Assistant(agent)) as dispatcher,
        anyio.create_task_group() as tasks,
    ):
        app = make_app(manager, dispatcher, settings, None, summarizer_of(agent.provider))
        server = EmbeddedServer(app, max_connections=100, request_timeout_s=5.0, graceful_timeout_s=1.0)
        tasks.start_soon(server.serve_until_stopped, [listener.socket])
        await server.listening.wait()
        try:
            yield server
        finally:
            dispatcher.cut_off(anyio.current_time())
            server.hurry()
            with anyio.CancelScope(shield=True):
                await server.stopped.wait()
            listener.close()


@pytest.fixture(params=["in process", "over HTTP"])
async def client(
    request: pytest.FixtureRequest, short_path: Path, session_settings: SessionSettings, model: ScriptedProvider
) -> AsyncIterator[Client]:
    agent = Agent(model)
    workspace = short_path / "w"
    async with SessionManager(workspace, settings=session_settings) as manager:
        if request.param == "in process":
            async with connect(manager, summarizer=summarizer_of(model)) as client:
                yield client
        else:
            async with serving(manager, workspace / "miniclaw.sock", agent), connect(workspace) as client:
                assert not client.is_local
                yield client
