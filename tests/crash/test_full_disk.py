"""A full disk: messages are refused clearly, reading goes on, and when space returns everything heals by itself."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.manager.reading import read_transcript
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import StoreFull
from tests.crash.account import Account
from tests.crash.filesystem import MEBIBYTE, MountSpace

pytestmark = [pytest.mark.root, pytest.mark.anyio]

SETTINGS = SessionSettings(flush_interval_s=0.05)
HEALED_WITHIN_S = 11.0
"""The longest pause between two attempts is 10 seconds."""


@pytest.fixture
def disk(space: MountSpace) -> Iterator[Path]:
    with space.memory(4 * MEBIBYTE) as path:
        yield path


def fill(directory: Path) -> Path:
    """A file that takes all the space there is."""
    ballast = directory / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096) == 4096:
            pass
    return ballast


def snapshots(workspace: Path) -> dict[str, Any]:
    """Every snapshot, parsed: a file that is cut short would not parse."""
    return {path.name: json.loads(path.read_bytes()) for path in (workspace / "sessions").glob("*.json")}


async def heals(manager: SessionManager) -> None:
    with anyio.fail_after(HEALED_WITHIN_S):
        while not manager.health().ok:  # noqa: ASYNC110 - this is what a monitor does
            await anyio.sleep(0.02)


async def test_a_full_disk_refuses_messages_reads_on_and_heals_by_itself(disk: Path) -> None:
    account, workspace = Account(), disk / "workspace"
    async with SessionManager(workspace, settings=SETTINGS) as manager:
        sessions = [await manager.get_or_create("full", number) for number in range(5)]
        for session in sessions:
            await account.say(session)
        await manager.flush()
        ballast = fill(disk)
        refusal = await account.say_until_refused(sessions[0])
        assert "space" in str(refusal)
        assert not manager.health().ok
        with pytest.raises(StoreFull):
            await sessions[1].add_message(Message.user("refused at once"))
        transcript = [entry.id async for entry in read_transcript(manager, "full_0")]
        assert {line["id"] for line in account.lines if line["session"] == "full_0"} <= set(transcript)
        assert len(sessions[1].messages()) == 1
        assert len(snapshots(workspace)) == 5
        ballast.unlink()
        await heals(manager)
        for session in sessions:
            await account.say(session)
        assert (await manager.check()).problems == []
    await account.assert_kept(workspace)


async def test_closing_on_a_full_disk_fails_and_says_why(disk: Path) -> None:
    account, workspace = Account(), disk / "workspace"
    manager = SessionManager(workspace, settings=SETTINGS)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(manager)
        session = await manager.get_or_create("full", 1)
        await account.say(session)
        await manager.flush()
        ballast = fill(disk)
        await account.say_until_refused(session)
        with pytest.raises(StoreFull, match="unsaved"):
            await manager.close()
    assert len(snapshots(workspace)) == 1
    ballast.unlink()
    await account.assert_kept(workspace)


async def test_a_directory_on_a_full_disk_opens_for_reading_or_says_why_not(disk: Path) -> None:
    account, workspace = Account(), disk / "workspace"
    async with SessionManager(workspace, settings=SETTINGS) as manager:
        await account.say(await manager.get_or_create("full", 1))
    ballast = fill(disk)
    with contextlib.suppress(StoreFull):
        async with SessionManager(workspace, settings=SETTINGS) as manager:
            assert len((await manager.get("full", 1)).messages()) == 1
    ballast.unlink()
    await account.assert_kept(workspace)


async def test_when_only_the_snapshots_have_no_space_messages_are_still_acknowledged(
    space: MountSpace, tmp_path: Path
) -> None:
    account, workspace = Account(), tmp_path / "workspace"
    (workspace / "sessions").mkdir(parents=True)
    with space.memory(64 * 1024, at=workspace / "sessions") as full:
        async with SessionManager(workspace, settings=SETTINGS) as manager:
            sessions = [await manager.get_or_create("full", number) for number in range(3)]
            for session in sessions:
                await account.say(session)
            assert (await manager.flush()).failed == 0
            before = snapshots(workspace)
            ballast = fill(full)
            for session in sessions:
                await account.say(session, size=9000)
            assert (await manager.flush()).failed == 3
            assert not manager.health().ok
            assert snapshots(workspace) == before
            ballast.unlink()
            await heals(manager)
            assert (await manager.flush()).failed == 0
        await account.assert_kept(workspace)


async def test_a_crash_while_the_store_has_no_space_leaves_whole_windows(disk: Path, tmp_path: Path) -> None:
    account, workspace, crashed = Account(), tmp_path / "workspace", tmp_path / "crashed"
    store = f"sqlite://{disk}/sessions.db"
    manager = SessionManager(workspace, settings=SETTINGS, store=store)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(manager)
        session = await manager.get_or_create("full", 1)
        for _ in range(SETTINGS.window):
            await account.say(session)
        await manager.flush()
        ballast = fill(disk)
        await account.say_until_refused(session)
        for _ in range(SETTINGS.window // 2):
            session.append(Message.user("accepted, and never committed"))
        with pytest.raises(StoreFull):  # after writing what is committed
            await manager.flush()
        shutil.copytree(workspace, crashed)
        for name in ("sessions.db", "sessions.db-wal"):
            shutil.copy(disk / name, crashed / name)
        ballast.unlink()
    await account.assert_kept(crashed)
