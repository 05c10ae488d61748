"""A WhatsApp bot that is killed while Meta posts in any order, beside what the contract proves of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from miniclaw_sessions import SessionManager
from miniclaw_sessions.core.protocol.messages import Role
from tests.channels.daemon import serving
from tests.channels.whatsapp_bots import whatsapp_environment
from tests.channels.whatsapp_server import ANN, BOB, EVE, CloudServer

pytestmark = [pytest.mark.anyio, pytest.mark.proof]

QUESTIONS, KILLS = 12, 2
PEOPLE = (ANN, BOB, EVE)


async def test_what_comes_in_any_order_after_a_kill_is_kept_once_and_each_answer_is_sent(tmp_path: Path) -> None:
    async with CloudServer() as server:
        server.post_to(tmp_path / "workspace/miniclaw.sock")
        server.pace_s = 0.0  # all of it at once, and after a kill in any order, as Meta does it
        environment = whatsapp_environment(server, *PEOPLE)
        for number in range(QUESTIONS):
            server.say(f"{number} * 2", by=PEOPLE[number % 3])
        for kill in range(1, KILLS + 1):
            enough = kill * QUESTIONS // (KILLS + 1)
            async with serving("whatsapp", tmp_path, environment):
                await server.until(lambda enough=enough: len(server.messages) >= enough)  # type: ignore[misc]
        async with serving("whatsapp", tmp_path, environment):
            await server.until(lambda: not server.pending)
    alone = 0
    async with SessionManager(tmp_path / "workspace") as manager:
        for person in PEOPLE:
            kept = (await manager.find(f"whatsapp_{person}")).messages()
            said = [f"{number} * 2" for number in range(QUESTIONS) if PEOPLE[number % 3] == person]
            assert sorted(one.text for one in kept if one.is_user) == sorted(said), "each once"
            answers = [one.text for one in kept if one.role is Role.ASSISTANT and not one.tool_calls]
            assert set(server.texts(person)) == set(answers), "all that the store has was sent"
            assert len(server.texts(person)) - len(answers) <= KILLS, "twice where a kill came before Meta heard of it"
            assert not kept[-1].is_user
            alone += len(said) - len(answers)
    assert alone <= KILLS * len(PEOPLE), "what was interrupted has one answer with what came before it was repeated"
