"""schemathesis makes requests of the OpenAPI document, right and wrong ones, and looks at what a real daemon replies.

By hand, for as long as wanted: `python -m tests.gateway.test_schemathesis EXAMPLES [SEED]`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
import pytest

from miniclaw_sessions.api.openapi import EVENTS
from miniclaw_sessions.api.table import OPERATIONS
from tests.gateway.daemons import TOKEN, on_tcp

pytestmark = [pytest.mark.proof, pytest.mark.anyio, pytest.mark.timeout(300)]

SEED = 12
NOT_ASKED = {
    "back_up": "it would copy the workspace to wherever it is told on this machine",
    **{one.name: "its stream does not end" for one in OPERATIONS if one.media_types == (EVENTS,)},
}
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)


async def asked(directory: Path, *, examples: int, seed: int) -> subprocess.CompletedProcess[bytes]:
    """What schemathesis says of a daemon of its own."""
    async with on_tcp(directory) as url:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"]
        command += ["--header", f"Authorization: Bearer {TOKEN}", "--seed", str(seed), "--max-examples", str(examples)]
        command += ["--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing", "--no-color"]
        command += ["--generation-database", "none", "--request-timeout", "20"]
        for name in NOT_ASKED:
            command += ["--exclude-operation-id", name]
        return await anyio.run_process(command, check=False, cwd=directory, env={**os.environ, "HOME": str(directory)})


async def test_no_request_gets_an_undocumented_reply(short_path: Path) -> None:
    done = await asked(short_path, examples=3, seed=SEED)
    assert done.returncode == 0, done.stdout.decode()[-8000:]


async def _by_hand(examples: int, seed: int) -> Any:
    with tempfile.TemporaryDirectory(prefix="mc") as name:
        done = await asked(Path(name), examples=examples, seed=seed)
    print(done.stdout.decode(), done.stderr.decode())  # noqa: T201 - a program
    return done.returncode


if __name__ == "__main__":
    sys.exit(anyio.run(lambda: _by_hand(*(int(word) for word in [*sys.argv[1:], "100", str(SEED)][:2]))))
