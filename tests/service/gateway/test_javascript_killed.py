"""The newest JavaScript clients of the OpenAI API, over a kill -9 in the middle of an answer: nothing is doubled."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import MessageEntry
from tests.agent.providers.all_providers import KEY
from tests.agent.providers.strict_server import Answer, Asked, Call, StrictServer
from tests.here import HERE, free_ports
from tests.sampled import in_part
from tests.service.gateway.daemons import TOKEN, Process

pytestmark = [
    pytest.mark.proof,
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("npm") is None, reason="NOT RUN: there is no npm for the JavaScript clients"),
    in_part(1),
    pytest.mark.timeout(600),
]

PROGRAM = Path(__file__).parents[1] / "javascript"
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The clients, as npm installs them."""
    directory = tmp_path_factory.mktemp("javascript")
    shutil.copytree(PROGRAM, directory, dirs_exist_ok=True)
    command = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory / "clients.mjs"


@pytest.fixture
async def talking(short_path: Path) -> AsyncIterator[tuple[StrictServer, dict[str, Any], str]]:
    """A model's service, the settings of daemons that ask it, and the address where they listen."""
    (port,) = free_ports(1)
    async with StrictServer(key=KEY) as server:
        yield server, environ_of(short_path, server, port), f"http://{HERE}:{port}"


def environ_of(directory: Path, server: StrictServer, port: int) -> dict[str, Any]:
    return {
        "MINICLAW_MODEL_BASE_URL": server.url_for("openai"),
        "MINICLAW_MODEL_MODEL": "m",
        "MINICLAW_MODEL_API_KEY_FILE": secret(directory, "key", KEY),
        "MINICLAW_LISTEN_TCP": f"{HERE}:{port}",
        "MINICLAW_LISTEN_TOKEN_FILE": secret(directory, "token", TOKEN),
    }


def secret(directory: Path, name: str, text: str) -> str:
    file = directory / name
    file.touch(mode=0o600)
    file.write_text(text)
    return str(file)


async def all_of(client: anyio.abc.Process) -> bytes:
    """What a client prints; it ends well."""
    assert client.stdout is not None
    assert client.stderr is not None
    printed = b"".join([piece async for piece in client.stdout])
    assert await client.wait() == 0, b"".join([piece async for piece in client.stderr]).decode()
    return printed


@pytest.mark.parametrize("which", ["openai", "vercel"])
async def test_what_a_kill_cut_off_is_asked_again_and_is_there_once(
    short_path: Path, program: Path, which: str, talking: tuple[StrictServer, dict[str, Any], str]
) -> None:
    asked_with: list[list[str]] = []

    def answer(asked: Asked) -> Answer:
        asked_with.append([message.text for message in asked.messages if message.is_user])
        is_first = len(asked_with) == 1
        return Answer(text="late", ending="stall", ending_after=2) if is_first else Answer(text=f"{len(asked_with)}")

    server, environ, url = talking
    server.script = answer
    async with Process(short_path, **environ) as one:
        await one.notice("READY=1")
        command = ["node", str(program), which, url, TOKEN]
        client = await anyio.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        await server.streaming.wait()
        await one.killed()
    async with Process(short_path, **environ) as two, client:
        await two.notice("READY=1")
        printed = await all_of(client)
    seen = json.loads(printed)
    assert seen == {"answers": ["2", "3"], "said": ["hello?", "2", "and now?", "3"]}
    assert asked_with == [["hello?"], ["hello?"], ["hello?", "and now?"]]


TURNS, KILLS = 10, (3, 7)


async def test_ten_turns_of_completions_go_on_over_kills_in_an_answer_and_are_there_once(
    short_path: Path, program: Path, talking: tuple[StrictServer, dict[str, Any], str]
) -> None:
    """Two clients at once: tools, a picture, every second turn streamed, and the daemon killed in two of the others."""
    server, environ, url = talking
    left = {f"openai {number}" for number in KILLS}
    pictures = 0

    def answer(asked: Asked) -> Answer:
        nonlocal pictures
        last, users = asked.messages[-1], [message.text for message in asked.messages if message.is_user]
        pictures += last.is_user and not isinstance(last.content, str) and len(last.content) > 1
        if users[-1] in left:
            left.remove(users[-1])
            return Answer(text="late", ending="stall", ending_after=2)
        if last.is_user and "weather" in last.text:
            return Answer(calls=(Call("weather", {"city": "Oslo"}),))
        return Answer(text=" | ".join(users))

    server.script = answer
    clients = ("openai", "vercel")
    printed: list[list[str]] = []
    async with AsyncExitStack() as stack:
        running: list[anyio.abc.Process] = []
        for kill in (*KILLS, None):
            async with Process(short_path, **environ) as daemon:
                await daemon.notice("READY=1")
                if not running:
                    for which in clients:
                        command = ["node", str(program.with_name("completions.mjs")), which, url, TOKEN, which]
                        process = await anyio.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                        running.append(await stack.enter_async_context(process))
                if kill is None:
                    printed = [json.loads(await all_of(one)) for one in running]
                else:
                    await server.streaming.wait()
                    server.streaming = anyio.Event()
                    await daemon.killed()
    said = {which: [f"{which} {'weather ' if n % 4 == 1 else ''}{n}" for n in range(TURNS)] for which in clients}
    assert printed == [[" | ".join(said[which][: n + 1]) for n in range(TURNS)] for which in clients]
    assert (server.problems, pictures) == ([], len(clients))
    async with SessionManager(Process(short_path).workspace) as manager:
        sessions = await manager.list()
        assert len(sessions) == len(clients)
        for one in sessions:
            session = await manager.find(one.session_id)
            branch = [entry for entry in await session.tree.get_branch() if isinstance(entry, MessageEntry)]
            assert [entry.message.text for entry in branch if entry.message.is_user] in said.values()
            assert len(branch) == 2 * TURNS + 2 * 3  # three turns call a tool


async def test_the_documented_route_of_the_vercel_sdk_keeps_a_chat_over_a_kill(
    short_path: Path, program: Path, talking: tuple[StrictServer, dict[str, Any], str]
) -> None:
    route = program.with_name("chat_route.mjs").read_text()
    assert route in (ROOT / "docs/how-to/use-other-clients.md").read_text()
    server, environ, url = talking
    server.script = lambda asked: Answer(text=f"{sum(message.is_user for message in asked.messages)} questions")
    command = ["node", str(program.with_name("chat.mjs"))]
    seen: list[dict[str, Any]] = []
    for _ in range(2):
        async with Process(short_path, **environ) as daemon:
            await daemon.notice("READY=1")
            known = {**os.environ, "DAEMON_URL": url, "DAEMON_TOKEN": TOKEN}
            seen.append(json.loads((await anyio.run_process(command, env=known)).stdout))
            await daemon.killed()
    first, second = seen
    said = [["user", "I am Ada."], ["assistant", "1 questions"], ["user", "Who am I?"], ["assistant", "2 questions"]]
    assert first == {"before": [], "said": said, "after": said}
    assert second["before"] == said
    assert second["after"] == [*said, said[0], ["assistant", "3 questions"], said[2], ["assistant", "4 questions"]]
