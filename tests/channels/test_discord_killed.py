"""The daemon is killed while servers, threads and people write to it, beside what the contract proves of one chat."""

from __future__ import annotations

from pathlib import Path

import pytest

from miniclaw_sessions import SessionManager
from tests.channels.daemon import serving
from tests.channels.discord_server import ANN, BOB, BOT, PRIVATE, ROOM, THREAD, TOKEN, DiscordServer, Json

pytestmark = [pytest.mark.anyio, pytest.mark.proof]

ASKED = 12
CHATS = (PRIVATE[ANN["id"]], PRIVATE[BOB["id"]], ROOM, THREAD)


async def test_every_question_in_every_kind_of_chat_is_answered_once_through_kill_9(tmp_path: Path) -> None:
    asked: list[Json] = []
    environment = {"DISCORD_BOT_TOKEN": TOKEN, "MINICLAW_CHANNELS_DISCORD_ALLOW": "42,43"}

    def ask(server: DiscordServer) -> None:
        for _ in range(ASKED // 2):
            chat = CHATS[len(asked) % len(CHATS)]
            name = f"<@{BOT['id']}> " if chat in (ROOM, THREAD) else ""
            person = BOB if chat == PRIVATE[BOB["id"]] else ANN
            asked.append(server.say(f"{name}{len(asked)} * 2", person, chat))

    def answered(server: DiscordServer) -> int:
        return sum(map(server.is_answered, asked))

    async with DiscordServer() as server:
        environment["MINICLAW_CHANNELS_DISCORD_API_URL"] = server.url
        ask(server)  # while no bot listens
        async with serving("discord", tmp_path, environment):
            await server.until(lambda: server.is_listened_to)
            ask(server)
            await server.until(lambda: answered(server) >= ASKED // 4)
        async with serving("discord", tmp_path, environment):
            await server.until(lambda: answered(server) == ASKED)
        assert [len(server.answers_to(one)) for one in asked] == [1] * ASKED
        assert sum(len(server.said(chat)) for chat in CHATS) == ASKED
    assert server.problems == []
    assert TOKEN not in (tmp_path / "log").read_text()
    async with SessionManager(tmp_path / "workspace") as manager:
        for number, chat in enumerate(CHATS):
            session = await manager.find(f"discord_{chat}")
            said = [one.text for one in session.messages() if one.role == "user"]
            assert said == [f"{one} * 2" for one in range(number, ASKED, len(CHATS))]
