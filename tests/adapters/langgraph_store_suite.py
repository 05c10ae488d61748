"""A pytest plugin for LangGraph's own tests of its stores: its `InMemoryStore` is ours, and each is a channel.

It is loaded by the suite's own process (`-p langgraph_store_suite`). The sessions live on an event loop in a thread of
its own, because the suite makes stores anywhere. It gives the suite as much of pytest-mock as its tests use.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import langgraph.store.memory
import pytest

from miniclaw_sessions.adapters.langgraph import MiniclawStore
from miniclaw_sessions.core.manager import SessionManager

LOOP = asyncio.new_event_loop()
WORKSPACE = Path(tempfile.mkdtemp(prefix="langgraph-store-suite-"))
threading.Thread(target=LOOP.run_forever, daemon=True).start()


def run(coroutine: Any) -> Any:
    return asyncio.run_coroutine_threadsafe(coroutine, LOOP).result(timeout=60)


async def opened() -> SessionManager:
    return await SessionManager(WORKSPACE).__aenter__()


MANAGER: SessionManager = run(opened())


class InMemoryStore(MiniclawStore):
    """Ours, made as the suite makes one."""

    _made = 0

    def __init__(self) -> None:
        InMemoryStore._made += 1
        run(self._open(f"store{InMemoryStore._made}"))

    async def _open(self, channel: str) -> None:
        MiniclawStore.__init__(self, MANAGER, channel=channel)


langgraph.store.memory.InMemoryStore = InMemoryStore  # type: ignore[misc, assignment]
sys.modules["pytest_mock"] = ModuleType("pytest_mock")
vars(sys.modules["pytest_mock"])["MockerFixture"] = Any


class Mocker:
    """Watches methods."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def spy(self, owner: type, name: str) -> mock.MagicMock:
        real = getattr(owner, name)
        watched: mock.MagicMock = self._stack.enter_context(
            mock.patch.object(owner, name, autospec=True, side_effect=real)
        )
        return watched


@pytest.fixture
def mocker() -> Iterator[Mocker]:
    with ExitStack() as stack:
        yield Mocker(stack)


def pytest_unconfigure() -> None:
    run(MANAGER.__aexit__(None, None, None))
