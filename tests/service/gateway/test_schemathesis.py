"""schemathesis makes requests of the OpenAPI document, right and wrong ones, and looks at what a real daemon replies.

By hand, for as long as wanted: `python -m tests.service.gateway.test_schemathesis EXAMPLES [SEED]`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
import httpx2
import orjson
import pytest

from miniclaw_sessions.service.api.event_stream import EVENT_STREAM
from miniclaw_sessions.service.api.table import OPERATIONS
from tests.service.gateway.daemons import TOKEN, on_tcp

pytestmark = [pytest.mark.proof, pytest.mark.anyio, pytest.mark.timeout(300)]

SEED = 12
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


async def asked(directory: Path, *, examples: int, seed: int) -> subprocess.CompletedProcess[bytes]:
    """What schemathesis says of a daemon of its own, in which there is something to ask for."""
    async with on_tcp(directory) as url:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
            known = await _filled(client)
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


async def _filled(client: httpx2.AsyncClient) -> dict[str, list[str]]:
    """Ids of what was put into the daemon."""
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
    done = await asked(short_path, examples=3, seed=SEED)
    assert done.returncode == 0, done.stdout.decode()[-8000:]


async def _by_hand(examples: int, seed: int) -> Any:
    with tempfile.TemporaryDirectory(prefix="mc") as name:
        done = await asked(Path(name), examples=examples, seed=seed)
    print(done.stdout.decode(), done.stderr.decode())  # noqa: T201 - a program
    return done.returncode


if __name__ == "__main__":
    wanted, seed, *_ = [*map(int, sys.argv[1:]), *(100, SEED)[len(sys.argv) - 1 :]]
    sys.exit(anyio.run(_by_hand, wanted, seed))
