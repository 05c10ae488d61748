"""`serve` on a shared store where nothing can be written: a read-only root, no home, no workspace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from miniclaw_sessions import Message
from miniclaw_sessions.service.client import connect

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.proof,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting the root read-only needs root"),
]

TOKEN = "0123456789abcdef0123"
READ_ONLY = 'mount --make-rprivate / && mount --rbind / / && for at in / /tmp /dev/shm "$DIRECTORY"; do \
mount --bind "$at" "$at" && mount -o remount,ro,bind "$at"; done && cd / && \
if touch "$DIRECTORY/probe" /tmp/probe 2>/dev/null; then exit 99; fi && exec "$@"'
START_LIMIT_S = 60.0


@contextmanager
def served_read_only(url: str, directory: Path) -> Iterator[str]:
    """A daemon in a mount namespace of its own, where nothing can be written; the address that it listens on."""
    token = directory / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    arguments = ["serve", "--store", url, "--tcp", "127.0.0.1:0", "--token-file", str(token), "--log-format", "json"]
    command = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", sys.executable, "-m", "miniclaw_sessions", *arguments]
    environment = {**os.environ, "HOME": "/nonexistent", "DIRECTORY": str(directory)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        said = []
        try:
            for line in process.stdout:
                said.append(line)
                if b"daemon.ready" in line:
                    yield str(json.loads(line)["addresses"][0])
                    break
            else:
                pytest.fail(f"it is not ready: {b''.join(said).decode()}")
        finally:
            process.terminate()
        rest = process.stdout.read()
        assert process.wait() == 0, rest.decode()


async def test_serving_a_shared_store_needs_no_directory_and_writes_no_file(
    postgresql_url: str, tmp_path: Path
) -> None:
    with served_read_only(postgresql_url, tmp_path) as address, anyio.fail_after(START_LIMIT_S):
        async with connect(f"http://{address}", token=TOKEN) as client:
            session = await client.get_or_create("telegram", "1")
            await session.add_message(Message.user("hello"))
            assert [row.session_id for row in await client.list()] == ["telegram_1"]
            assert (await client.health()).status == "ok"
    async with connect(postgresql_url, readonly=True) as client:
        assert [row.message_count for row in await client.list()] == [1]
