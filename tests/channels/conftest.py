"""A manager in memory, and a dispatcher for one room."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from miniclaw_sessions import SessionManager, SessionSettings
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.config import ChannelSettings
from tests.channels.rooms import Doors, Room
from tests.channels.telegram_bots import Bots
from tests.channels.telegram_server import BotServer


@pytest.fixture
def room() -> Iterator[Room]:
    made = Room()
    yield made
    made.close()


@pytest.fixture
def model() -> Doors:
    return Doors()


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[SessionManager]:
    async with SessionManager(tmp_path / "w", settings=SessionSettings(store="memory:")) as opened:
        yield opened


@pytest.fixture
def limits() -> ChannelSettings:
    """Tests override this to bound what may wait."""
    return ChannelSettings()


@pytest.fixture
async def dispatcher(
    manager: SessionManager, model: Doors, limits: ChannelSettings, room: Room
) -> AsyncIterator[Dispatcher]:
    """Serves the room; what a test leaves under way is cut off."""
    async with Dispatcher(
        manager, Assistant(Agent(model)), limits=limits, backoff_s=(0.0, 0.0), last_words_s=1.0
    ) as made:
        made.serve(room)
        yield made
        made.cut_off(anyio.current_time())


@pytest.fixture
async def server() -> AsyncIterator[BotServer]:
    """Telegram, as strict as it is about what a bot may ask."""
    async with BotServer() as made:
        yield made
    assert made.problems == []


@pytest.fixture
def bots(server: BotServer, manager: SessionManager, model: Doors) -> Bots:
    return Bots(server, manager, model)
