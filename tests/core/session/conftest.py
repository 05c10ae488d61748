"""What the tests of sessions work in: a workspace with a store in memory, and one session of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from miniclaw_sessions.core.session import Session
from tests.core.session.bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "workspace")


@pytest.fixture
async def session(bench: Bench) -> AsyncIterator[Session]:
    async with bench.opened() as session:
        yield session
