"""A pytest plugin for the Agents SDK's own test suite: wherever a test makes a `SQLiteSession`, it gets one of ours.

It is loaded by the suite's own process (`-p openai_suite`). The sessions live in managers on one event loop in a thread
of its own, because the suite makes them anywhere and uses them from loops that come and go. It also runs the suite's
coroutine tests, so that nothing but pytest is needed.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import agents
import agents.memory
import agents.memory.sqlite_session
import pytest
from agents import SessionSettings

from miniclaw_sessions.adapters.openai_agents import MiniclawSession
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.service.client import Client, ClientSession, connect

T = TypeVar("T")


class Host:
    """An event loop in a thread, with the sessions: in a workspace, in a database, or asked of a daemon.

    `MINICLAW_SUITE_PLACE` says where: empty, the URL of the database, or the daemon's.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._databases: dict[str, int] = {}
        self._opened: asyncio.Task[SessionManager | Client] | None = None
        self._stack = AsyncExitStack()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout=30)

    async def session(self, database: str, session_id: str) -> Session | ClientSession:
        """A session; each database that the suite names is a channel of its own."""
        if self._opened is None:
            self._opened = asyncio.create_task(self._open())
        sessions = await asyncio.shield(self._opened)
        number = self._databases.setdefault(database, len(self._databases))
        return await sessions.get_or_create(f"suite{number}", session_id)

    async def _open(self) -> SessionManager | Client:
        place = os.environ.get("MINICLAW_SUITE_PLACE", "")
        if place.startswith("unix:"):
            return await self._stack.enter_async_context(connect(place))
        return await self._stack.enter_async_context(SessionManager(place or WORKSPACE))

    async def close(self) -> None:
        await self._stack.aclose()


HOST = Host()
WORKSPACE = Path(tempfile.mkdtemp(prefix="openai-suite-"))  # not the suite's own directories: those vanish under it


class SQLiteSession(MiniclawSession):
    """Ours, made as the suite makes a `SQLiteSession`."""

    _made = 0

    def __init__(
        self,
        session_id: str,
        db_path: str | Path = ":memory:",
        *_: object,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        SQLiteSession._made += 1
        name = f"{db_path}" if f"{db_path}" != ":memory:" else f"memory {SQLiteSession._made}"
        HOST.run(self._open(name, session_id, session_settings))
        self.session_id = session_id

    async def _open(self, name: str, session_id: str, settings: Any) -> None:
        MiniclawSession.__init__(self, await HOST.session(name, session_id), settings)

    def close(self) -> None:
        """The manager stays open: another session of the same test may use it."""


agents.SQLiteSession = SQLiteSession  # type: ignore[misc, assignment]
agents.memory.SQLiteSession = SQLiteSession  # type: ignore[misc, assignment]
agents.memory.sqlite_session.SQLiteSession = SQLiteSession  # type: ignore[misc, assignment]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "asyncio: a coroutine test")


def pytest_unconfigure() -> None:
    HOST.run(HOST.close())
