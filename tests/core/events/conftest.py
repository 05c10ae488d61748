"""What the tests of events watch: a manager with a store in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from miniclaw_sessions.core.manager import SessionManager


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[SessionManager]:
    async with SessionManager(tmp_path, store="memory:") as manager:
        yield manager
