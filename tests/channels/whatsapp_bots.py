"""WhatsApp bots as the daemon makes them, on a local Cloud API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from miniclaw_sessions import SessionManager
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.channels.whatsapp.channel import WhatsAppChannel, WhatsAppSettings
from miniclaw_sessions.core.protocol.messages import Message
from tests.channels.clocks import HastyClock
from tests.channels.contract import serving
from tests.channels.rooms import Doors
from tests.channels.whatsapp_server import APP_SECRET, NUMBER_ID, TOKEN, VERIFY_TOKEN, CloudServer

SECRETS = {"WHATSAPP_TOKEN": TOKEN, "WHATSAPP_APP_SECRET": APP_SECRET, "WHATSAPP_VERIFY_TOKEN": VERIFY_TOKEN}


def whatsapp_channel(
    server: CloudServer, clock: HastyClock, secrets: dict[str, str] | None = None, **settings: Any
) -> WhatsAppChannel:
    """The channel as a daemon makes it; the server posts to it from now on."""
    chosen: dict[str, Any] = {"allow": ("*",), "phone_number_id": NUMBER_ID, "api_url": server.url, **settings}
    channel = WhatsAppChannel("whatsapp", WhatsAppSettings(**chosen), secrets or SECRETS, clock)
    server.webhook = channel.webhook
    return channel


class WhatsAppBots:
    """Makes bots as the daemon does: each a channel that is served by a dispatcher of its own."""

    def __init__(self, server: CloudServer, manager: SessionManager, model: Doors) -> None:
        self.server, self.manager, self.model = server, manager, model
        self.clock = HastyClock()
        self.tools: Sequence[Tool] = ()

    @asynccontextmanager
    async def serving(self, **settings: Any) -> AsyncIterator[WhatsAppChannel]:
        channel = whatsapp_channel(self.server, self.clock, **settings)
        async with serving(channel, self.manager, self.model, self.tools):
            yield channel

    async def listens(self) -> None:
        """The bot takes what is posted."""
        self.server.payload()
        await self.done()

    async def done(self) -> None:
        """Everything that was said is taken."""
        await self.server.until(lambda: not self.server.pending)

    async def messages(self, chat_id: str) -> Sequence[Message]:
        return (await self.manager.get_or_create("whatsapp", chat_id)).messages()


def whatsapp_environment(server: CloudServer, *people: str) -> dict[str, str]:
    """The variables with which a daemon serves this channel."""
    return SECRETS | {
        "MINICLAW_CHANNELS_WHATSAPP_ALLOW": ",".join(people),
        "MINICLAW_CHANNELS_WHATSAPP_PHONE_NUMBER_ID": NUMBER_ID,
        "MINICLAW_CHANNELS_WHATSAPP_API_URL": server.url,
    }
