"""What becomes a workspace, and what does not."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from miniclaw_sessions import SessionManager
from miniclaw_sessions.core.persistence.recognition import recognize
from miniclaw_sessions.core.persistence.recovery import Progress
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.stores import SALVAGE, SALVAGE_PART
from miniclaw_sessions.disk import remove_tree
from miniclaw_sessions.errors import ConfigError, DirectoryInUse, NotAWorkspace
from miniclaw_sessions.files.transfer.backup import back_up_closed, restore
from miniclaw_sessions.files.transfer.migrating import location, migrate
from tests.core.persistence.encrypted_homes import OLD_KEY, Home

pytestmark = pytest.mark.anyio


async def test_somebody_elses_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    (home / "README").write_text("mine")

    with pytest.raises(ConfigError, match="neither empty nor a workspace"):
        await SessionManager(home, store="none:").__aenter__()

    assert [file.name for file in home.iterdir()] == ["README"]
    assert home.stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away")
async def test_a_workspace_of_another_user_is_refused_in_one_sentence(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    os.chown(foreign, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to user 12345") as caught:
        await SessionManager(foreign, store="none:").__aenter__()
    assert str(caught.value).endswith("who runs this; mend it or choose another one")
    assert str(caught.value).count("choose another") == 1


@pytest.mark.parametrize("made", [[], ["sessions"], ["sessions", "memory"]])
async def test_an_empty_directory_and_an_agents_workspace_are_taken_and_made_private(
    tmp_path: Path, made: list[str]
) -> None:
    home = tmp_path / "workspace"
    home.mkdir()
    home.chmod(0o755)
    for name in made:
        (home / name).mkdir()

    async with SessionManager(home, store="none:"):
        assert home.stat().st_mode & 0o777 == 0o700
        assert (home / "sessions").stat().st_mode & 0o777 == 0o700


async def test_files_that_others_could_read_are_made_private_at_the_start(tmp_path: Path) -> None:
    async with SessionManager(tmp_path / "w", store="none:") as manager:
        await manager.get_or_create("telegram", "1")
    file = tmp_path / "w" / "sessions" / "telegram_1.json"
    file.chmod(0o644)

    async with SessionManager(tmp_path / "w", store="none:") as manager:
        assert file.stat().st_mode & 0o777 == 0o600
        assert (await manager.check()).sound


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and directory below, with its mode and content."""
    found = [directory, *sorted(directory.rglob("*"))]
    return {str(path): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"") for path in found}


@pytest.mark.parametrize("create", [True, False])
async def test_another_programs_session_files_are_left_where_and_as_they_are(tmp_path: Path, *, create: bool) -> None:
    home = tmp_path / "project"
    (home / "sessions").mkdir(parents=True)
    home.chmod(0o755)
    (home / "sessions" / "user.json").write_text('{"cart": [1, 2]}')
    (home / ".lock").write_text("held by somebody else")
    before = contents(home)

    with pytest.raises(NotAWorkspace, match="nothing was changed" if create else "there is no workspace"):
        await SessionManager(home, store="none:", create=create).__aenter__()

    assert contents(home) == before


async def foreign(tmp_path: Path) -> tuple[Home, Path]:
    """A directory of another program, and a backup that could be restored."""
    home = Home(tmp_path / "ours")
    async with home.open(None) as manager:
        await home.say(manager, 1)
    await back_up_closed(home.workspace, home.settings, tmp_path / "backup")
    directory = tmp_path / "project"
    (directory / "sessions").mkdir(parents=True)
    directory.chmod(0o755)
    (directory / "sessions" / "x.json").write_text('{"a":1}')
    return Home(directory), tmp_path / "backup"


async def test_no_maintenance_makes_a_workspace_of_another_programs_directory(tmp_path: Path) -> None:
    home, backup = await foreign(tmp_path)
    before = contents(home.workspace)
    refused = "there is no workspace|nothing was changed"
    with pytest.raises(NotAWorkspace, match=refused):
        await back_up_closed(home.workspace, home.settings, tmp_path / "another")
    with pytest.raises(NotAWorkspace, match=refused):
        await migrate(location("sqlite:", home.workspace), location("jsonl:", home.workspace))
    with pytest.raises(NotAWorkspace, match=refused):
        await home.rekey(OLD_KEY)
    with pytest.raises(NotAWorkspace, match=refused):
        await restore(backup, home.workspace, home.settings)
    assert contents(home.workspace) == before
    assert not (tmp_path / "another").exists()


async def test_nothing_is_restored_among_another_programs_files(tmp_path: Path) -> None:
    home, backup = await foreign(tmp_path)
    (home.workspace / "sessions" / "x.json").rename(home.workspace / "README")
    (home.workspace / "sessions").rmdir()
    before = contents(home.workspace)
    with pytest.raises(NotAWorkspace, match="nothing was changed"):
        await restore(backup, home.workspace, home.settings)
    assert contents(home.workspace) == before


async def test_nothing_becomes_a_workspace_that_must_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir(mode=0o755)
    for name in ("missing", "empty"):
        with pytest.raises(NotAWorkspace, match="there is no workspace"):
            await SessionManager(tmp_path / name, create=False).__aenter__()
    assert list(contents(tmp_path)) == [str(tmp_path), str(tmp_path / "empty")]

    async with SessionManager(tmp_path / "empty"):
        pass
    async with SessionManager(tmp_path / "empty", create=False) as manager:
        assert len(manager) == 0


async def test_a_workspace_of_the_original_is_taken_even_beside_an_agents_other_files(tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    (tmp_path / "AGENTS.md").write_text("be kind")
    plain = b'{"session_id": "telegram_1", "channel": "telegram", "chat_id": "1", "messages": []}'
    (tmp_path / "sessions" / "telegram_1.json").write_bytes(plain)
    async with SessionManager(tmp_path) as manager:
        assert [one.session_id for one in await manager.list()] == ["telegram_1"]


async def test_a_workspace_that_lost_its_lock_and_session_files_opens_with_all_that_was_said(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", "1")
        await session.add_message(Message.user("hello"))
        await manager.source.note_mirrored("pi_1")
    (tmp_path / ".lock").unlink()
    remove_tree(tmp_path / "sessions")
    async with SessionManager(tmp_path) as manager:
        assert [message.text for message in (await manager.get("telegram", "1")).messages()] == ["hello"]
        assert await manager.source.was_mirrored("pi_1")


@pytest.mark.parametrize("salvage", [SALVAGE, SALVAGE_PART])
async def test_a_salvage_that_was_cut_off_is_no_other_programs(tmp_path: Path, salvage: str) -> None:
    (tmp_path / salvage).mkdir()
    recognize(tmp_path, create=True)


async def test_a_lock_that_is_a_hard_link_is_not_written(tmp_path: Path) -> None:
    workspace, precious = tmp_path / "workspace", tmp_path / "precious"
    async with SessionManager(workspace):
        pass
    precious.write_text("12345")
    (workspace / ".lock").unlink()
    os.link(precious, workspace / ".lock")
    with pytest.raises(ConfigError):
        await SessionManager(workspace).__aenter__()
    assert precious.read_text() == "12345"


async def test_who_waits_for_the_directory_gets_it_when_it_is_free(tmp_path: Path) -> None:
    stages: list[str] = []
    is_waiting = anyio.Event()

    def note(progress: Progress) -> None:
        stages.append(progress.stage)
        is_waiting.set()

    second = SessionManager(tmp_path, wait_s=60, on_progress=note)

    async def open_second() -> list[Message]:
        async with second:
            return await second.get_session_history("telegram", "1")

    async with SessionManager(tmp_path) as first:
        await (await first.get_or_create("telegram", "1")).add_message(Message.user("hello"))
        with pytest.raises(DirectoryInUse):
            await SessionManager(tmp_path).__aenter__()
        opening = asyncio.create_task(open_second())
        await is_waiting.wait()
    assert [message.text for message in await opening] == ["hello"]
    assert stages[0] == f"waiting for process {os.getpid()}"
