"""Thousands who come at once, are slow, say half, or go half away: others are served, and nothing of them is left.

The daemon is a process of its own. What is left is counted in sockets, and in memory, which may grow once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.service.client import connect
from tests.service.gateway.daemons import PATIENCE_S, TOKEN, Process

pytestmark = [pytest.mark.anyio, pytest.mark.proof]

SLOW = 1_000
CONNECTIONS = int(os.environ.get("FLOOD", "5000"))
"""How many come beyond those that are let in; 50,000 take some minutes."""

AT_ONCE = 2_500
"""Sockets that this process has open at the same time."""

MOST_MB = 64
"""How much memory may be kept of a flood."""

HEAD = f"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1:%s\r\nAuthorization: Bearer {TOKEN}\r\n"


class Flooded:
    """A daemon by TCP and by its socket, and what it has open."""

    def __init__(self, daemon: Process, port: int) -> None:
        self.daemon = daemon
        self.port = port

    @property
    def sockets(self) -> int:
        links = []
        for one in Path(f"/proc/{self.daemon.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was closed just now
                links.append(str(one.readlink()))
        return sum(link.startswith("socket:") for link in links)

    @property
    def memory_mb(self) -> float:
        lines = Path(f"/proc/{self.daemon.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))

    async def is_well(self) -> None:
        """Its owner is answered, and what he says is stored."""
        async with self.daemon.client() as client:
            said = await client.post("/v1/sessions/a_1/messages", json={"role": "user", "content": "here"})
            assert said.status_code == 201
            assert (await client.get("/health")).json()["status"] == "ok"

    async def opened(self, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that has said this."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(sent)
        return reader, writer

    async def only(self, sockets: int) -> None:
        """Return when it has no more open than these."""
        with anyio.fail_after(PATIENCE_S):
            while self.sockets > sockets:  # noqa: ASYNC110 - another process does it
                await anyio.sleep(0.05)


@asynccontextmanager
async def flooded(directory: Path, **environ: str) -> AsyncIterator[Flooded]:
    token = directory / "token"
    token.touch(mode=0o600)
    token.write_text(TOKEN)
    listen = {"TCP": "127.0.0.1:0", "TOKEN_FILE": str(token), "REQUEST_TIMEOUT_S": "3", **environ}
    named: dict[str, Any] = {f"MINICLAW_LISTEN_{name}": value for name, value in listen.items()}
    async with Process(directory, **named) as daemon:
        ready = await daemon.notice("READY=1")
        here = Flooded(daemon, int(ready.rpartition(":")[2].split(",")[0].split()[0]))
        await here.is_well()
        yield here
        await here.is_well()
        assert await daemon.stopped() == 0


async def status_of(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """What it is answered at last; 0: nothing."""
    with suppress(ConnectionError):
        answer = await reader.read()
        writer.close()
        return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0
    return 0


async def test_a_thousand_slow_heads_and_bodies_are_given_up_in_their_time(short_path: Path) -> None:
    async with flooded(short_path, MAX_CONNECTIONS=str(2 * SLOW)) as here:
        before, memory = here.sockets, here.memory_mb
        head = (HEAD % here.port).encode()
        body = head + b"Content-Type: application/json\r\nContent-Length: 2000\r\n\r\n" + b" " * 1_000
        opened = [await here.opened(one) for _ in range(SLOW // 2) for one in (head, body)]
        await here.is_well()
        found = Counter(await asyncio.gather(*(status_of(*one) for one in opened)))
        assert found == {408: SLOW}
        await here.only(before)
        assert here.memory_mb - memory < MOST_MB


async def test_who_goes_half_away_leaves_nothing_behind(short_path: Path) -> None:
    async with flooded(short_path) as here:
        before = here.sockets
        head = (HEAD % here.port).encode()
        follow = head.replace(b"POST /v1/sessions ", b"GET /v1/sessions/a_1/follow ") + b"\r\n"
        body = head + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"
        opened = [await here.opened(one) for _ in range(100) for one in (b"", b"GET /hea", head, body, follow)]
        for _, writer in opened:
            writer.write_eof()
        await asyncio.gather(*(status_of(*one) for one in opened))
        await here.only(before)


async def test_of_thousands_who_connect_those_beyond_the_bound_are_told_and_the_owner_is_served(
    short_path: Path,
) -> None:
    async with flooded(short_path, MAX_CONNECTIONS="256") as here:
        before, memory = here.sockets, here.memory_mb
        told: Counter[int] = Counter()
        for begin in range(0, CONNECTIONS, AT_ONCE):
            count = min(AT_ONCE, CONNECTIONS - begin)
            opened = await asyncio.gather(*(here.opened(b"") for _ in range(count)))
            await here.is_well()
            told.update(await asyncio.gather(*(status_of(*one) for one in opened)))
        assert told.keys() <= {0, 408, 503}  # a connection that is reset has not read what it was told
        assert told[503] > CONNECTIONS // 2
        await here.only(before)
        assert here.memory_mb - memory < MOST_MB


async def test_a_daemon_that_stands_still_is_waited_for_and_doubles_nothing(short_path: Path) -> None:
    """SIGSTOP in the midst of requests: they were sent, or wait in its socket, and each is answered once it goes on."""
    async with flooded(short_path) as here, connect(f"unix:{here.daemon.socket}") as client:
        session = await client.get_or_create("a", "2")
        await session.add_message(Message.user("before"))
        here.daemon.send(signal.SIGSTOP)
        said: list[int] = []

        async def say(number: int) -> None:
            entry = await session.add_message(Message.user(f"{number}"), idempotency_key=f"k{number % 20}")
            said.append(entry.sequence)

        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(say, number)
            with socket.socket(socket.AF_UNIX) as waiting:  # the kernel still connects
                waiting.connect(str(here.daemon.socket))
            await anyio.wait_all_tasks_blocked()
            here.daemon.send(signal.SIGCONT)
        assert sorted(set(said)) == list(range(2, 22))
        assert len(await session.read_after(1)) == 20
