"""What the agent's tests work in: a session of a manager with the default store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.session import Session


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[SessionManager]:
    async with SessionManager(tmp_path) as opened:
        yield opened


@pytest.fixture
async def session(manager: SessionManager) -> Session:
    return await manager.get_or_create("telegram", 1)
