"""Four worker processes share a daemon's workspace, or a database, and one is killed.

What was acknowledged is there, once.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

pytest.importorskip("langgraph")
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.legality import is_legal
from tests.serving import serving

pytestmark = [pytest.mark.anyio, pytest.mark.proof, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
TURNS = 6


class Worker:
    """A worker process, and what it was told to be acknowledged."""

    def __init__(self, name: str, killed_after: int | None) -> None:
        self.name = name
        self.killed_after = killed_after
        self.acknowledged: list[tuple[str, str]] = []
        self.code: int | None = None

    async def run(self, place: str) -> None:
        command = [sys.executable, "-m", "tests.adapters.workers", place, self.name, f"{TURNS}"]
        async with await anyio.open_process(command, cwd=ROOT, stderr=None) as process:
            await self._follow(process)
            self.code = await process.wait()

    async def _follow(self, process: Process) -> None:
        assert process.stdout is not None
        rest = ""
        async for text in TextReceiveStream(process.stdout):
            *lines, rest = (rest + text).split("\n")
            for line in lines:
                session_id, _, said = line.partition(" ")
                self.acknowledged.append((session_id, said))
                if len(self.acknowledged) == self.killed_after:
                    process.kill()


@pytest.mark.parametrize("seed", range(2))
async def test_nothing_acknowledged_is_lost_or_doubled_when_one_of_four_workers_is_killed(
    seed: int,
) -> None:
    with tempfile.TemporaryDirectory(prefix="mc") as name:  # short enough for a Unix socket
        await check_workers(Path(name) / "w", seed)


async def test_nothing_acknowledged_is_lost_or_doubled_when_workers_share_a_database_and_one_is_killed(
    postgresql_url: str, tmp_path: Path
) -> None:
    workers, victim = some_workers(2, seed=2)
    await work(workers, postgresql_url)
    await check(workers, victim, tmp_path, postgresql_url)


async def check_workers(workspace: Path, seed: int) -> None:
    workers, victim = some_workers(4, seed)
    async with (
        SessionManager(workspace) as manager,
        serving(manager, workspace / "miniclaw.sock", Agent(ScriptedProvider([]))),
    ):
        await work(workers, str(workspace))
    await check(workers, victim, workspace, "sqlite:")


def some_workers(count: int, seed: int) -> tuple[list[Worker], int]:
    """The workers, and which of them is killed."""
    dice = random.Random(seed)
    victim, moment = dice.randrange(count), dice.randrange(1, 3 * TURNS)
    return [Worker(f"w{number}", moment if number == victim else None) for number in range(count)], victim


async def work(workers: Sequence[Worker], place: str) -> None:
    async with anyio.create_task_group() as tasks:
        for worker in workers:
            tasks.start_soon(worker.run, place)


async def check(workers: Sequence[Worker], victim: int, workspace: Path, store: str) -> None:
    """What was acknowledged is there, once, after a restart."""
    assert [worker.code for worker in workers] == [-9 if number == victim else 0 for number in range(len(workers))]
    async with SessionManager(workspace, store=store) as manager:
        assert (await manager.check()).problems == []
        for session_id in {session_id for worker in workers for session_id, _ in worker.acknowledged}:
            session = await manager.find(session_id)
            entries = [e async for e in session.tree.read_entries() if isinstance(e, MessageEntry)]
            stored = Counter(entry.message.text for entry in entries)
            said = {text for worker in workers for id_, text in worker.acknowledged if id_ == session_id}
            assert said <= stored.keys()
            assert {text: count for text, count in stored.items() if count > 1} == {}
            assert is_legal((await session.get_context()).messages) == []
    assert sum(len(worker.acknowledged) for worker in workers) >= 4 * (len(workers) - 1) * TURNS
