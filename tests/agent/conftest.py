"""What the agent's tests work in: a session of a manager with the default store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from miniclaw_sessions.manager import SessionManager
from miniclaw_sessions.session import Session


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[SessionManager]:
    async with SessionManager(tmp_path) as opened:
        yield opened


@pytest.fixture
async def session(manager: SessionManager) -> Session:
    return await manager.get_or_create("telegram", 1)
