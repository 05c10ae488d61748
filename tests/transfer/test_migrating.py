"""A workspace moves from one store to another and keeps every entry."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.manager import open_readonly
from miniclaw_sessions.transfer.backup import back_up_closed
from miniclaw_sessions.transfer.migrating import migrate
from tests.persistence.encrypted_homes import OLD_KEY, Home

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("keys", [None, OLD_KEY], ids=["plain", "encrypted"])
@pytest.mark.parametrize(("before", "after"), [("sqlite:", "jsonl:"), ("jsonl:", "sqlite:")])
async def test_every_entry_moves_to_the_other_store(
    before: str, after: str, keys: KeyRing | None, tmp_path: Path
) -> None:
    home = Home(tmp_path / "w", before)
    await home.fill(keys)
    said = await home.said(keys)
    copied = await migrate(home.workspace, home.settings, after, keys)
    assert (copied.entries, copied.problems) == (3 * 7, [])
    assert await Home(home.workspace, after).said(keys) == said
    with pytest.raises(ConfigError, match="there are sessions in it already"):
        await migrate(home.workspace, home.settings, after, keys)


@pytest.mark.parametrize("to", ["sqlite:", "none:", "memory:"])
async def test_a_store_that_makes_no_sense_is_refused(to: str, tmp_path: Path) -> None:
    home = Home(tmp_path / "w", "sqlite:")
    await home.fill(None)
    with pytest.raises(ConfigError, match="two different stores"):
        await migrate(home.workspace, home.settings, to, None)


async def test_salvaging_that_was_cut_off_goes_on_beside_the_old_store(tmp_path: Path) -> None:
    home = Home(tmp_path / "w", "jsonl:")
    await home.fill(None)
    await migrate(home.workspace, home.settings, "sqlite:", None)
    said = await home.said(None)
    (home.workspace / ".salvage").mkdir(mode=0o700)
    (home.workspace / "sessions.db").rename(home.workspace / ".salvage" / "sessions.db")
    assert await Home(home.workspace, "sqlite:").said(None) == said
    (home.workspace / "sessions.db").unlink()
    with pytest.raises(ConfigError, match="to 'jsonl:'"):
        await Home(home.workspace, "sqlite:").said(None)


@pytest.mark.parametrize("sessions", [0, 2], ids=["which was empty", "which was emptied"])
async def test_a_store_without_a_session_is_used_beside_the_old_one(sessions: int, tmp_path: Path) -> None:
    before, after = Home(tmp_path / "w", "sqlite:"), Home(tmp_path / "w", "jsonl:")
    async with before.open(None) as manager:
        for number in range(sessions):
            await before.say(manager, number)
    await migrate(before.workspace, before.settings, "jsonl:", None)
    async with after.open(None) as manager:
        for number in range(sessions):
            await manager.delete(f"telegram_{number}")
    assert await after.said(None) == {}
    async with open_readonly(after.workspace, settings=after.settings) as sessions_only_read:
        assert await sessions_only_read.list() == []
    report = await back_up_closed(after.workspace, after.settings, tmp_path / "backup")
    assert (report.sessions, report.problems) == (0, [])
    assert (await after.rekey(OLD_KEY)).entries == 0
    assert await after.said(OLD_KEY) == {}


async def test_a_directory_of_transcripts_that_is_gone_is_not_begun_anew(tmp_path: Path) -> None:
    home = Home(tmp_path / "w", "sqlite:")
    await home.fill(None)
    await migrate(home.workspace, home.settings, "jsonl:", None)
    shutil.rmtree(home.workspace / "transcripts")
    assert "to 'sqlite:'" in str(await Home(home.workspace, "jsonl:").refusal(None))
