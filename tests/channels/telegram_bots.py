"""Telegram bots as the daemon makes them, on a local Bot API, and a model that is slow in telling."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.agent.provider import ModelEvent, Reply, TextDelta
from miniclaw_sessions.agent.reading import FileReader
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.channels.telegram.channel import TelegramChannel, TelegramSettings
from miniclaw_sessions.errors import ConfigError
from tests.channels.clocks import HastyClock
from tests.channels.contract import serving
from tests.channels.rooms import Doors
from tests.channels.telegram_server import TOKEN, BotServer


class Bots:
    """Makes bots as the daemon does: each a channel that is served by a dispatcher of its own."""

    def __init__(self, server: BotServer, manager: SessionManager, model: Doors) -> None:
        self.server, self.manager, self.model = server, manager, model
        self.clock = HastyClock()
        self.tools: list[Tool] = []
        self.readers: list[FileReader] = []

    def channel(self, token: str = TOKEN, **settings: Any) -> TelegramChannel:
        chosen: dict[str, Any] = {"allow": ("*",), "api_url": self.server.url, "stream": False, **settings}
        made = TelegramSettings(**chosen)
        return TelegramChannel("telegram", made, {"TELEGRAM_BOT_TOKEN": token}, self.clock)

    @asynccontextmanager
    async def serving(self, **settings: Any) -> AsyncIterator[TelegramChannel]:
        channel = self.channel(**settings)
        async with serving(channel, self.manager, self.model, self.tools, readers=self.readers):
            yield channel

    async def refused(self, channel: TelegramChannel) -> str:
        """The sentence with which a channel gives up listening."""
        with pytest.raises(ConfigError) as caught:
            async for _ in channel.receive():
                pass
        await channel.aclose()
        return str(caught.value)

    async def said(self, chat_id: str = "42") -> list[str]:
        return [message.text for message in (await self.manager.get_or_create("telegram", chat_id)).messages()]


class Storyteller(Doors):
    """Says three words, and waits before each of them."""

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        del messages, tools
        for word in ("one", "two", "three"):
            await self.doors[word].wait()
            yield TextDelta(f"**{word}** ")
        yield Reply(Message.assistant("**one** **two** **three**"))
