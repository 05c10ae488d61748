"""A client of a workspace, in this process and over HTTP through a real Unix socket: the same tests for both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.summarizing import summarizer_of
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.service.client import Client, connect
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.serving import serving


@pytest.fixture
def session_settings() -> SessionSettings:
    """Tests override this to bound the manager."""
    return SessionSettings(store="sqlite:")


@pytest.fixture
def model() -> ScriptedProvider:
    """Who answers and summarizes."""
    return ScriptedProvider(["a summary", "another summary"])


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
