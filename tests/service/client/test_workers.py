"""Several processes append through one daemon; some are killed, the daemon is too: nothing is lost or doubled."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from miniclaw_sessions.service.client import connect
from tests.service.client.worker import SESSIONS

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[3]


class Daemon:
    """`serve` as a process, on a socket in a short directory."""

    def __init__(self, home: Path) -> None:
        self.socket = home / "s"
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        command = [sys.executable, "-m", "miniclaw_sessions", "serve"]
        log = (self._home / "log").open("ab")
        environment = {
            **os.environ,
            "HOME": str(self._home),
            "MINICLAW_WORKSPACE": str(self._home / "w"),
            "MINICLAW_LISTEN_SOCKET": str(self.socket),
        }
        with log:
            self._process = await to_thread.run_sync(
                lambda: subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=ROOT)
            )
        async with connect(f"unix:{self.socket}", patience_s=60) as client:
            await client.health()

    async def end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        await to_thread.run_sync(self._process.wait)


class Workers:
    """Processes that append, and what each was told to be acknowledged."""

    def __init__(self, socket: Path, count: int) -> None:
        self._socket = socket
        self._count = count
        self.acknowledged: dict[str, set[int]] = {}
        self.running: dict[str, Any] = {}
        self._news = anyio.Event()

    async def run(self, name: str) -> None:
        """One worker until it is done; it is started again whenever it was killed."""
        command = [sys.executable, "-m", "tests.service.client.worker", str(self._socket), name, str(self._count)]
        done = self.acknowledged.setdefault(name, set())
        while len(done) < self._count or self.running:
            async with await anyio.open_process(command, stderr=None, cwd=ROOT) as process:
                self.running[name] = process
                assert process.stdout is not None
                rest = b""
                async for chunk in process.stdout:
                    *lines, rest = (rest + chunk).split(b"\n")
                    done |= {int(line) for line in lines}
                    self._news.set()
                status = await process.wait()
                self.running.pop(name, None)
                if status == 0:
                    return
                assert status == -signal.SIGKILL

    async def reach(self, total: int) -> None:
        """Wait until so many appends of all workers together were acknowledged."""
        while sum(map(len, self.acknowledged.values())) < total:
            self._news = anyio.Event()
            await self._news.wait()

    def kill_one(self, chance: random.Random) -> None:
        name = chance.choice(sorted(self.running))
        self.running[name].kill()


async def shared_by_workers(workers: int, count: int, kills: int, *, restarts: int) -> None:
    chance = random.Random(4711)
    with tempfile.TemporaryDirectory(prefix="mc") as name:
        daemon = Daemon(Path(name))
        await daemon.start()
        try:
            group = Workers(daemon.socket, count)
            async with anyio.create_task_group() as tasks:
                for number in range(workers):
                    tasks.start_soon(group.run, f"w{number}")
                steps = [*["kill"] * kills, *["restart"] * restarts]
                chance.shuffle(steps)
                for place, step in enumerate(steps, 1):
                    await group.reach(place * workers * count // (len(steps) + 2))
                    if step == "kill":
                        group.kill_one(chance)
                    else:
                        await daemon.end(chance.choice([signal.SIGKILL, signal.SIGTERM]))
                        await daemon.start()
            assert all(done == set(range(count)) for done in group.acknowledged.values())
            await nothing_is_lost_or_doubled(daemon, sorted(group.acknowledged), count)
        finally:
            await daemon.end(signal.SIGTERM)


async def nothing_is_lost_or_doubled(daemon: Daemon, names: list[str], count: int) -> None:
    found: Counter[str] = Counter()
    async with connect(f"unix:{daemon.socket}") as client:
        assert (await client.check()).sound
        for number in range(SESSIONS):
            transcript = await client.session(f"shared_{number}").tree.get_transcript()
            assert not transcript.problems
            found.update(entry.message.text for entry in transcript.entries if entry.message.is_user)  # type: ignore[union-attr]
    assert found == Counter(f"{name}:{number}" for name in names for number in range(count))


@pytest.mark.timeout(300)
@pytest.mark.proof
async def test_four_workers_share_a_workspace_and_one_that_is_killed_doubles_nothing() -> None:
    with anyio.fail_after(280):
        await shared_by_workers(workers=4, count=12, kills=1, restarts=0)


@pytest.mark.proof
@pytest.mark.timeout(1800)
async def test_workers_and_daemon_are_killed_at_random_and_nothing_acknowledged_is_lost_or_doubled() -> None:
    with anyio.fail_after(1700):
        await shared_by_workers(workers=4, count=400, kills=12, restarts=6)
