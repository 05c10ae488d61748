"""The newest JavaScript clients of the OpenAI API, over a kill -9 in the middle of an answer: nothing is doubled."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.agent.providers.all_providers import KEY
from tests.agent.providers.strict_server import Answer, Asked, StrictServer
from tests.here import HERE, free_ports
from tests.sampled import PART, PART_NUMBER
from tests.service.gateway.daemons import TOKEN, Process

pytestmark = [
    pytest.mark.proof,
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("npm") is None, reason="NOT RUN: there is no npm for the JavaScript clients"),
    pytest.mark.skipif(PART_NUMBER % PART != 1 % PART, reason="in another part of the proofs (PROOF_PART_NUMBER)"),
    pytest.mark.timeout(600),
]

PROGRAM = Path(__file__).parents[1] / "javascript"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The clients, as npm installs them."""
    directory = tmp_path_factory.mktemp("javascript")
    shutil.copytree(PROGRAM, directory, dirs_exist_ok=True)
    command = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory / "clients.mjs"


def secret(directory: Path, name: str, text: str) -> str:
    file = directory / name
    file.touch(mode=0o600)
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize("which", ["openai", "vercel"])
async def test_what_a_kill_cut_off_is_asked_again_and_is_there_once(
    short_path: Path, program: Path, which: str
) -> None:
    asked_with: list[list[str]] = []

    def answer(asked: Asked) -> Answer:
        asked_with.append([message.text for message in asked.messages if message.is_user])
        is_first = len(asked_with) == 1
        return Answer(text="late", ending="stall", ending_after=2) if is_first else Answer(text=f"{len(asked_with)}")

    (port,) = free_ports(1)
    async with StrictServer(answer, key=KEY) as server:
        environ: dict[str, Any] = {
            "MINICLAW_MODEL_BASE_URL": server.url_for("openai"),
            "MINICLAW_MODEL_MODEL": "m",
            "MINICLAW_MODEL_API_KEY_FILE": secret(short_path, "key", KEY),
            "MINICLAW_LISTEN_TCP": f"{HERE}:{port}",
            "MINICLAW_LISTEN_TOKEN_FILE": secret(short_path, "token", TOKEN),
        }
        async with Process(short_path, **environ) as one:
            await one.notice("READY=1")
            command = ["node", str(program), which, f"http://{HERE}:{port}", TOKEN]
            client = await anyio.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            await server.streaming.wait()
            await one.killed()
        async with Process(short_path, **environ) as two, client:
            await two.notice("READY=1")
            assert client.stdout is not None
            printed = b"".join([piece async for piece in client.stdout])
            assert await client.wait() == 0
    seen = json.loads(printed)
    assert seen == {"answers": ["2", "3"], "said": ["hello?", "2", "and now?", "3"]}
    assert asked_with == [["hello?"], ["hello?"], ["hello?", "and now?"]]
