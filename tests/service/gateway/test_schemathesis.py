"""schemathesis makes requests of the OpenAPI document, right and wrong ones, and looks at what a real daemon replies.

By hand, for as long as wanted: `python -m tests.service.gateway.test_schemathesis EXAMPLES [SEED]`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
import httpx2
import orjson
import pytest

from miniclaw_sessions import SessionManager
from miniclaw_sessions.service.api.event_stream import EVENT_STREAM
from miniclaw_sessions.service.api.table import OPERATIONS
from tests.here import HERE
from tests.sampled import in_part
from tests.service.gateway.daemons import TOKEN, Process, on_tcp, with_token

pytestmark = [pytest.mark.proof, pytest.mark.anyio, pytest.mark.timeout(300)]

SEED = 12
LIFE_S = 2.0
FEWEST_LIVES = 3
NOT_ASKED = {
    "back_up": "it would copy the workspace to wherever it is told on this machine",
    **{one.name: "its stream does not end" for one in OPERATIONS if one.media_types == (EVENT_STREAM,)},
}
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "unsupported_method",
    "ignored_auth",
)


async def asked_all(directory: Path, *, examples: int, seed: int) -> subprocess.CompletedProcess[bytes]:
    """What schemathesis says of a daemon of its own, in which there is something to ask for."""
    async with on_tcp(directory) as url:
        return await _asked_at(url, directory, await _filled(url), examples=examples, seed=seed)


async def _asked_at(
    url: str, directory: Path, known: dict[str, list[str]], *, examples: int, seed: int
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"]
    command += ["--header", f"Authorization: Bearer {TOKEN}", "--seed", str(seed), "--max-examples", str(examples)]
    command += ["--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing", "--no-color"]
    command += ["--generation-database", "none", "--request-timeout", "20"]
    for name in NOT_ASKED:
        command += ["--exclude-operation-id", name]
    environ = {
        **os.environ,
        "HOME": str(directory),
        "SCHEMATHESIS_HOOKS": "tests.service.gateway.schemathesis_hooks",
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "KNOWN_IDS": orjson.dumps(known).decode(),
    }
    return await anyio.run_process(command, check=False, cwd=directory, env=environ)


async def _filled(url: str) -> dict[str, list[str]]:
    """Ids of what was put into the daemon."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
        return await _filled_by(client)


async def _filled_by(client: httpx2.AsyncClient) -> dict[str, list[str]]:
    said = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good morning"}]
    sessions, entries = [f"web_{number}" for number in range(5)], []
    for name in sessions:
        reply = await client.post(f"/v1/sessions/{name}/messages", json={"messages": said * 5})
        entries += [entry["id"] for entry in reply.json()["entries"]]
    conversation = (await client.post("/v1/conversations", json={"items": said})).json()["id"]
    items = (await client.get(f"/v1/conversations/{conversation}/items")).json()["data"]
    responses = [(await client.post("/v1/responses", json={"input": "hello"})).json()["id"] for _ in range(3)]
    return {
        "session_id": sessions,
        "entry_id": entries,
        "conversation_id": [conversation, *sessions],
        "item_id": [item["id"] for item in items],
        "response_id": responses,
    }


async def test_no_request_gets_an_undocumented_reply(short_path: Path) -> None:
    done = await asked_all(short_path, examples=3, seed=SEED)
    assert done.returncode == 0, done.stdout.decode()[-8000:]


@in_part(5)
async def test_nor_with_a_daemon_that_is_killed_all_the_time_and_is_sound_in_the_end(short_path: Path) -> None:
    written: list[bytes] = []
    with socket.create_server((HERE, 0)) as listening:  # what comes while there is no daemon waits for the next one
        url, filled, asked = f"http://{HERE}:{listening.getsockname()[1]}", anyio.Event(), anyio.Event()

        async def live() -> None:
            while not asked.is_set():
                async with Process(short_path, inherited=listening, **with_token(short_path)) as daemon:
                    await filled.wait()
                    await daemon.notice("READY=1")
                    with anyio.move_on_after(LIFE_S):
                        await asked.wait()
                    await (daemon.stopped() if asked.is_set() else daemon.killed())
                    written.append(daemon._written())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(live)
            known = await _filled(url)
            filled.set()
            done = await _asked_at(url, short_path, known, examples=3, seed=SEED)
            asked.set()
    assert done.returncode == 0, done.stdout.decode()[-8000:]
    assert len(written) > FEWEST_LIVES
    assert b"Traceback" not in b"".join(written)
    async with SessionManager(short_path / "w") as manager:
        assert (await manager.check()).sound


async def _by_hand(examples: int, seed: int) -> Any:
    with tempfile.TemporaryDirectory(prefix="mc") as name:
        done = await asked_all(Path(name), examples=examples, seed=seed)
    print(done.stdout.decode(), done.stderr.decode())  # noqa: T201 - a program
    return done.returncode


if __name__ == "__main__":
    wanted, seed, *_ = [*map(int, sys.argv[1:]), *(100, SEED)[len(sys.argv) - 1 :]]
    sys.exit(anyio.run(_by_hand, wanted, seed))
