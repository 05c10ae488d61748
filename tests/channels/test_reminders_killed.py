"""Two daemons on one PostgreSQL: what was set at one is said by the other, once, when the one was killed."""

from __future__ import annotations

import signal
import time
from contextlib import AsyncExitStack, closing
from pathlib import Path

import anyio
import pytest

from miniclaw_sessions import SessionManager
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.reminders.reminders import Reminders
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.channels.reminding import Reminding
from tests.channels.rooms import Doors, Room
from tests.channels.telegram_server import TOKEN, BotServer
from tests.service.gateway.daemons import PATIENCE_S, Process

pytestmark = [pytest.mark.anyio, pytest.mark.proof]


def gateway(directory: Path, store: str, server: BotServer) -> Process:
    directory.mkdir()
    return Process(
        directory,
        MINICLAW_SESSIONS_STORE=store,
        MINICLAW_CHANNELS_TELEGRAM_TYPE="telegram",
        MINICLAW_CHANNELS_TELEGRAM_ALLOW="42",
        MINICLAW_CHANNELS_TELEGRAM_API_URL=server.url,
        TELEGRAM_BOT_TOKEN=TOKEN,
    )


async def test_a_reminder_outlives_the_gateway_at_which_it_was_set(postgresql_url: str, short_path: Path) -> None:
    async with BotServer() as server, gateway(short_path / "a", postgresql_url, server) as one:
        await one.notice("READY=1")
        server.say("/remind every 1m drink")
        await server.until(lambda: len(server.texts()) == 1)
        server.say("/reminders delete 1")
        await server.until(lambda: len(server.texts()) == 2)
        async with gateway(short_path / "b", postgresql_url, server) as other:
            await other.notice("READY=1")
            set_at = time.monotonic()
            server.say("/remind 4s tea")
            await server.until(lambda: len(server.texts()) == 3 and not server.updates)  # else it is answered again
            one.send(signal.SIGKILL)
            await one.exited()
            await server.until(lambda: len(server.texts()) == 4)
            said_at = time.monotonic()
            server.say("/reminders")
            await server.until(lambda: len(server.texts()) == 5)
            with anyio.fail_after(PATIENCE_S):
                async with other.client() as client:
                    session = (await client.get("/v1/sessions/telegram_42")).json()
    assert server.texts()[3] == "Reminder: tea"
    assert "no reminders" in server.texts()[4]
    assert said_at - set_at >= 4
    assert session["message_count"] == 2
    assert server.problems == []


class Announcing(Room):
    """What was said by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.announced: list[tuple[str, str]] = []

    async def announce(self, chat_id: str, text: str, key: str) -> None:
        del key
        self.announced.append((chat_id, text))
        self._changes.note()


async def test_two_gateways_that_are_there_say_each_reminder_once(postgresql_url: str) -> None:
    room, chats = Announcing(), [f"chat {number}" for number in range(40)]
    async with AsyncExitStack() as stack:
        stack.enter_context(closing(room))
        gateways: list[Reminding] = []
        for _ in range(2):
            manager = await stack.enter_async_context(SessionManager(store=postgresql_url))
            reminders = Reminders(manager, networks=["room"])
            agent = Agent(Doors())
            dispatcher = Dispatcher(manager, Assistant(agent), reminders=reminders)
            await stack.enter_async_context(dispatcher)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            gateways.append(Reminding(manager, dispatcher, reminders, [room], poll_s=0.1))
            tasks.start_soon(gateways[-1].run)
            for number, chat in enumerate(chats):
                if number % 2 == len(gateways) % 2:
                    await reminders.set(await manager.get_or_create("room", chat), "3s tea")
        await room.until(lambda: len(room.announced) >= len(chats))
        for gateway in gateways:
            await gateway.finished()
        assert sorted(room.announced) == sorted((chat, "Reminder: tea") for chat in chats)
