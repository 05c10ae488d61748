"""A TypeScript client that is generated from the OpenAPI document talks to a real daemon."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from miniclaw_sessions.service.api.table import document
from tests.here import HERE, free_ports
from tests.service.gateway.daemons import TOKEN, Process, on_tcp, with_token

pytestmark = [
    pytest.mark.proof,
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("npm") is None, reason="NOT RUN: there is no npm for the TypeScript client"),
    pytest.mark.timeout(600),
]

PROGRAM = Path(__file__).parents[1] / "typescript"


def run(directory: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def compiled(source: Path, directory: Path) -> Path:
    """A directory with what `source` has, installed and compiled: its types fit those of the OpenAPI document."""
    shutil.copytree(source, directory, dirs_exist_ok=True)
    (directory / "openapi.json").write_bytes(orjson.dumps(document()))
    run(directory, "npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts")
    names = ("openapi.json", "--output", "schema.d.ts")
    run(directory, "npx", "openapi-typescript", *names, "--default-non-nullable=false")
    run(directory, "npx", "tsc")
    return directory


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the programs, compiled with the generated types."""
    return compiled(PROGRAM, tmp_path_factory.mktemp("typescript")) / "out"


async def test_a_generated_client_chats_pages_and_tails(short_path: Path, program: Path) -> None:
    async with on_tcp(short_path) as url:
        command = ["node", str(program / "client.js"), url, TOKEN]
        done = await anyio.run_process(command, check=False)
    assert done.returncode == 0, done.stderr.decode()
    seen = json.loads(done.stdout)
    assert seen["answer"].startswith("(offline)")
    assert seen["streamed"]["text"] == seen["streamed"]["answer"]
    assert seen["appended"] == 2
    assert seen["refused"] == [412, "leaf_moved"]
    assert seen["missing"] == [404, "session_not_found"]
    assert seen["tailed"] == ["one", "two"]
    chatted = ["Good morning", seen["answer"], "And again", seen["streamed"]["answer"]]
    assert seen["paged"] == [*chatted, "one", "two"]


async def test_it_loses_and_doubles_nothing_while_the_daemon_is_killed_all_the_time(
    short_path: Path, program: Path
) -> None:
    (port,), lives = free_ports(1), 0
    environ: dict[str, Any] = {"MINICLAW_LISTEN_TCP": f"{HERE}:{port}", **with_token(short_path)}
    over = anyio.Event()

    async def live() -> None:
        nonlocal lives
        while not over.is_set():
            async with Process(short_path, **environ) as daemon:
                await daemon.notice("READY=1")
                lives += 1
                with anyio.move_on_after(0.3):
                    await over.wait()
                await daemon.killed()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(live)
        command = ["node", str(program / "killed.js"), f"http://{HERE}:{port}", TOKEN]
        done = await anyio.run_process(command, check=False)
        over.set()
    assert done.returncode == 0, done.stderr.decode()
    seen = json.loads(done.stdout)
    assert lives > 1
    said = [text for role, text in seen["read"] if role == "user"]
    assert said == seen["acknowledged"]
    assert len([role for role, _ in seen["read"] if role == "assistant"]) == len(said) // 3
    assert seen["heard"] == list(range(1, seen["entries"] + 1))
