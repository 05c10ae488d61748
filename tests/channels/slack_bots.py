"""Slack bots as the daemon makes them, on a local Slack."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from miniclaw_sessions import SessionManager
from miniclaw_sessions.agent.reading import FileReader
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.channels.base import WebhookRequest
from miniclaw_sessions.channels.slack.channel import SlackChannel, SlackSettings
from tests.channels.clocks import HastyClock
from tests.channels.contract import serving
from tests.channels.rooms import Doors
from tests.channels.slack_server import APP_TOKEN, SECRET, TOKEN, SlackServer


class SlackBots:
    """Makes bots: each a channel that is served by a dispatcher of its own."""

    def __init__(self, server: SlackServer, manager: SessionManager, model: Doors) -> None:
        self.server, self.manager, self.model = server, manager, model
        self.clock = HastyClock(goes=True)
        self.tools: list[Tool] = []
        self.readers: list[FileReader] = []

    def channel(self, tokens: dict[str, str] | None = None, **settings: Any) -> SlackChannel:
        chosen: dict[str, Any] = {"allow": ("*",), "api_url": self.server.url, **settings}
        known = {"SLACK_BOT_TOKEN": TOKEN, "SLACK_APP_TOKEN": APP_TOKEN, "SLACK_SIGNING_SECRET": SECRET}
        return SlackChannel("slack", SlackSettings(**chosen), {**known, **(tokens or {})}, self.clock)

    @asynccontextmanager
    async def serving(self, **settings: Any) -> AsyncIterator[SlackChannel]:
        channel = self.channel(**settings)
        async with serving(channel, self.manager, self.model, self.tools, readers=self.readers):
            if settings.get("webhook"):
                self.server.post = post_to(channel)
            else:
                await self.server.until(lambda: bool(self.server.connections))
            yield channel
        self.server.connections.clear()

    async def said(self, chat_id: str) -> list[str]:
        return [message.text for message in (await self.manager.get_or_create("slack", chat_id)).messages()]


def post_to(channel: SlackChannel) -> Any:
    """How a network's server gets to a channel without a daemon between them."""

    async def post(headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        async def read() -> bytes:
            return body

        reply = await channel.webhook(WebhookRequest("POST", "", {}, headers, read))
        assert isinstance(reply.body, bytes)
        return reply.status, reply.body

    return post
