"""Sessions for the adapters' suites, held by the process or asked for over HTTP.

The frameworks' own telemetry is off: tests use no network, whatever keys the environment holds.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.service.client import Client
from tests.serving import asked

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
os.environ["LANGSMITH_TRACING"] = "false"
os.environ["LANGCHAIN_TRACING_V2"] = "false"


@pytest.fixture(params=["sqlite:", "postgresql:"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Where the transcripts are: in a file of this process's own, or in a server's database."""
    url: str = request.param if request.param == "sqlite:" else request.getfixturevalue("postgresql_url")
    return url


@pytest.fixture
async def manager(tmp_path: Path, store_url: str) -> AsyncIterator[SessionManager]:
    """The sessions of this process."""
    async with SessionManager(tmp_path / "workspace", store=store_url) as manager:
        yield manager


@pytest.fixture
async def session(manager: SessionManager) -> Session:
    """One of them, held by the process."""
    return await manager.get_or_create("telegram", 1)


@pytest.fixture(params=["held", "asked"])
async def sessions(request: pytest.FixtureRequest, manager: SessionManager) -> AsyncIterator[SessionManager | Client]:
    """What an adapter is given: the manager of this process, or a client that asks for its sessions over a socket."""
    if request.param == "held":
        yield manager
    else:
        async with asked(manager) as client:
            yield client
