"""A pytest plugin for the Agents SDK's own test suite: wherever a test makes a `SQLiteSession`, it gets one of ours.

It is loaded by the suite's own process (`-p openai_suite`). The sessions live in managers on one event loop in a thread
of its own, because the suite makes them anywhere and uses them from loops that come and go. It also runs the suite's
coroutine tests, so that nothing but pytest is needed.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import agents
import agents.memory
import agents.memory.sqlite_session
import pytest
from agents import SessionSettings

from miniclaw_sessions.adapters.openai_agents import MiniclawSession
from miniclaw_sessions.core.manager import SessionManager

T = TypeVar("T")


class Host:
    """An event loop in a thread, with a manager for each database that the suite names."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._managers: dict[str, SessionManager] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout=30)

    async def manager(self, name: str, workspace: Path) -> SessionManager:
        if name not in self._managers:
            opened = asyncio.Event()
            self._tasks.append(self.loop.create_task(self._keep(name, workspace, opened)))
            await opened.wait()
        return self._managers[name]

    async def _keep(self, name: str, workspace: Path, opened: asyncio.Event) -> None:
        async with SessionManager(workspace) as manager:
            self._managers[name] = manager
            opened.set()
            await self._closing.wait()

    async def close(self) -> None:
        self._closing.set()
        await asyncio.gather(*self._tasks)


HOST = Host()
WORKSPACES = Path(tempfile.mkdtemp(prefix="openai-suite-"))  # not the suite's own directories: those vanish under it


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
        number = len(HOST._managers)  # of a manager that is not open yet; else it is not used
        manager = await HOST.manager(name, WORKSPACES / f"{number}")
        MiniclawSession.__init__(self, await manager.get_or_create("suite", session_id), settings)

    def close(self) -> None:
        """The manager stays open: another session of the same test may use it."""


agents.SQLiteSession = SQLiteSession  # type: ignore[misc, assignment]
agents.memory.SQLiteSession = SQLiteSession  # type: ignore[misc, assignment]
agents.memory.sqlite_session.SQLiteSession = SQLiteSession  # type: ignore[misc, assignment]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "asyncio: a coroutine test")


def pytest_unconfigure() -> None:
    HOST.run(HOST.close())
