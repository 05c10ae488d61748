"""A process without a free descriptor accepts nobody, does not spin over it, and serves those who waited (rule S14)."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from structlog.testing import capture_logs

pytestmark = pytest.mark.anyio

REQUEST = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
CLIENTS = 5
LOOP_TURNS = 300


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    """Not one more file, socket or pipe can be opened in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        largest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (largest + 2, hard))
        while True:
            try:
                stack.callback(os.close, os.dup(0))
            except OSError:
                break
        yield


async def test_nobody_is_accepted_until_descriptors_return_and_then_everybody_is_answered(served: Any) -> None:
    assert await served.is_alive()
    with ExitStack() as stack, capture_logs() as records:
        clients = [stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) for _ in range(CLIENTS)]
        with no_free_descriptor():
            for client in clients:
                client.setblocking(False)  # noqa: FBT003 - its only argument
                client.connect(str(served.socket))
                client.send(REQUEST)
            with anyio.fail_after(60):
                while not records:
                    await checkpoint()
            for _ in range(LOOP_TURNS):
                await checkpoint()
            health = await served.unix.get("/health")  # by a connection that was there before
            assert health.status_code == 503
            assert "file descriptors" in health.json()["problems"][0]
        assert [(record["action"], record["errno"]) for record in records] == [("server.no_room", errno.EMFILE)]
        with anyio.fail_after(60):
            for client in clients:
                reply = await asyncio.get_running_loop().sock_recv(client, 12)
                assert reply in (b"HTTP/1.1 200", b"HTTP/1.1 503")  # the health that was asked for
