"""A workspace moves from one store to another and keeps every entry."""

from __future__ import annotations

from pathlib import Path

import pytest

from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import ConfigError
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
