"""A gateway over a manager of this process, as the daemon has it, and a client that asks it over its Unix socket."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.summarizing import summarizer_of
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.config import ListenSettings, ModelSettings, Settings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.service.api.kept_tokens import TokenKeeper
from miniclaw_sessions.service.client import Client, connect
from miniclaw_sessions.service.gateway.http import make_app
from miniclaw_sessions.service.gateway.listeners import listen_unix
from miniclaw_sessions.service.gateway.server import Server
from miniclaw_sessions.testing.provider import ScriptedProvider


@asynccontextmanager
async def serving(
    manager: SessionManager,
    socket: Path,
    agent: Agent,
    model: ModelSettings | None = None,
    tokens: TokenKeeper | None = None,
) -> AsyncIterator[Server]:
    """The gateway, for as long as the block lasts."""
    settings = Settings(listen=ListenSettings(request_timeout_s=5.0))
    listener = listen_unix(socket)
    async with (
        Dispatcher(manager, Assistant(agent, model)) as dispatcher,
        anyio.create_task_group() as tasks,
    ):
        app = make_app(manager, dispatcher, settings, None, summarizer_of(agent.provider))
        app.context.tokens = tokens
        server = Server(app, max_connections=100, request_timeout_s=5.0, graceful_timeout_s=1.0)
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


@asynccontextmanager
async def asked(manager: SessionManager) -> AsyncIterator[Client]:
    """The sessions of a manager over HTTP."""
    with tempfile.TemporaryDirectory(prefix="mc") as name:
        socket = Path(name) / "s"
        async with serving(manager, socket, Agent(ScriptedProvider([]))), connect(f"unix:{socket}") as client:
            yield client
