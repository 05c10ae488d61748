"""Followed sessions that were deleted here, or have expired: what becomes of them when their programs write on."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from miniclaw_sessions.service.client import connect
from tests.agents import make_database
from tests.files.discovery.test_follower import TALK, Following, block, claude_file, nanobot, put, user
from tests.files.transfer.test_forgetting import Home
from tests.files.transfer.test_forgetting import home as home  # noqa: PLC0414 - a fixture
from tests.sampled import sampled

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def following(home: Home, directory: Path) -> AsyncIterator[Following]:
    """The manager is opened anew each time, as by another process."""
    async with home.open() as manager, connect(manager) as client:
        yield Following(client, directory, home.clock)


async def sessions(ours: Following) -> list[str]:
    return [row.session_id for row in await ours.client.list()]


async def gone(ours: Following) -> int:
    """How many stay away, as the next look tells; nothing else is told."""
    kept = await ours.look()
    assert all(one.is_gone and not one.problem and one.reply is None for one in kept)
    return len(kept)


def written_now(path: Path, home: Home, late_ns: int = 0) -> None:
    """It was written now by the clock of the test, where that is not the machine's; the file's own may be late."""
    now = home.clock.now().timestamp() if home.server is None else time.time()
    at = int(now * 1e9) - late_ns
    os.utime(path, ns=(at, at))


@pytest.mark.parametrize("restarts", [False, True])
async def test_what_was_deleted_stays_away_whatever_its_program_says(
    home: Home, tmp_path: Path, *, restarts: bool
) -> None:
    directory = tmp_path / "home"
    growing = put(claude_file(directory), TALK)
    rewritten = put(directory / ".nanobot/workspace/sessions/telegram_1.jsonl", nanobot("hello"))
    make_database(directory, "opencode")
    async with following(home, directory) as ours:
        assert await ours.taken() == 9
        for session_id in await sessions(ours):
            await ours.client.erase(session_id)
        put(growing, [user("u2", "a1", "two")])
        put(rewritten, nanobot("hello", "hi"), "w")
        if not restarts:
            assert await gone(ours) == 2
            put(growing, [user("u3", "u2", "three")])
            assert await gone(ours) == 1
            assert await sessions(ours) == []
    async with following(home, directory) as ours:
        assert await gone(ours) == 3
        assert await gone(ours) == 0
        assert await sessions(ours) == []
        for session_id in ("import_s", "import_telegram_1"):
            ours.begin(only=session_id)
            (kept,) = await ours.look()
            assert kept.is_new
        ours.begin()
        assert await gone(ours) == 1
        put(growing, [user("u4", "a1", "on")])
        assert await ours.taken() == 1
        assert (await ours.branch("import_s"))[-1] == "on"


@pytest.mark.parametrize("late_ns", sampled([4_000_000, 0, 1_000_000_000], every=3))  # a kernel's tick, a file system's
@pytest.mark.parametrize("restarts", [False, True])
async def test_what_has_expired_goes_on_where_it_ended_when_its_program_writes_on(
    home: Home, tmp_path: Path, *, restarts: bool, late_ns: int
) -> None:
    directory = tmp_path / "home"
    file = put(claude_file(directory), TALK)
    written_now(file, home)
    async with home.open() as manager, connect(manager) as client:
        ours = Following(client, directory, home.clock)
        await ours.taken()
        await home.wait(manager, 40)
        assert (await manager.sweep()).expired == 1
        if restarts:
            ours.begin()
            assert await gone(ours) == 1  # it stays in the archive as long as nothing is said
        assert await gone(ours) == 0
        put(file, [user("u2", "a1", "two"), block("a2", "u2", "2", stop="end_turn"), user("u3", "a2", "three")])
        written_now(file, home, late_ns)
        assert await ours.taken() == 3
        assert await ours.branch("import_s") == ["one", "1", "two", "2", "three"]
        assert await manager.archive.names() == []
