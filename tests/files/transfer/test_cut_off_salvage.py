"""As long as a damaged store is not salvaged whole, nobody takes the new one for all that there is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from miniclaw_sessions.core.stores.sqlite.store import SQLiteStore
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.files.transfer.backup import back_up_closed, restore
from miniclaw_sessions.files.transfer.copying import held
from miniclaw_sessions.files.transfer.migrating import location, migrate
from tests.core.persistence.encrypted_homes import BOTH, OLD_KEY, Home, Said
from tests.sampled import sampled

pytestmark = pytest.mark.anyio

SALVAGE = ".salvage"

ENTRIES = 3 * 7


async def cut_off(home: Home, keys: KeyRing | None) -> Said:
    """Leave what a start leaves that is killed when it has set a damaged store aside; returns what was said."""
    await home.fill(keys)
    said = await home.said(keys)
    (home.workspace / SALVAGE).mkdir(mode=0o700)
    (home.workspace / "sessions.db").rename(home.workspace / SALVAGE / "sessions.db")
    async with SQLiteStore(home.workspace / "sessions.db") as store:
        assert await store.session_ids() == []
    return said


async def backed_up(home: Home) -> int:
    return (await back_up_closed(home.workspace, home.settings, home.workspace.with_name("backup"))).entries


async def migrated(home: Home, keys: KeyRing | None = None) -> int:
    del keys  # it needs none
    return (
        await migrate(location(home.settings.store, home.workspace), location("jsonl:", home.workspace))
    ).copied.entries


async def encrypted(home: Home) -> int:
    return (await home.rekey(OLD_KEY)).entries


async def rekeyed(home: Home) -> int:
    return (await home.rekey(BOTH)).entries


async def decrypted(home: Home) -> int:
    return (await home.rekey(OLD_KEY, decrypt=True)).entries


@pytest.mark.parametrize(
    ("run", "keys"),
    [(backed_up, None), (migrated, None), (encrypted, None), (rekeyed, OLD_KEY), (decrypted, OLD_KEY)],
)
async def test_nothing_copies_a_store_before_it_is_salvaged_and_everything_afterwards(
    run: Callable[[Home], Awaitable[int]], keys: KeyRing | None, home: Home
) -> None:
    said = await cut_off(home, keys)
    before = home.contents()
    with pytest.raises(ConfigError, match=r"Start it once, with `miniclaw-sessions serve`"):
        await run(home)
    assert home.contents() == before
    assert not home.workspace.with_name("backup").exists()
    assert await home.said(keys) == said
    assert await run(home) == ENTRIES


@pytest.mark.parametrize("name", sampled([SALVAGE, f"{SALVAGE}.new"], every=2))
@pytest.mark.parametrize("locked", [True, False])
async def test_neither_one_that_can_only_be_read_nor_half_a_copy_is_taken_for_whole(
    locked: bool, name: str, home: Home
) -> None:
    await home.fill(None)
    (home.workspace / name).mkdir(mode=0o700)
    with pytest.raises(ConfigError, match="salvage is finished"):
        async with held(home.workspace, "sqlite:", locked=locked):
            pass


@pytest.mark.parametrize("name", sampled([SALVAGE, f"{SALVAGE}.new"], every=2))
async def test_nothing_is_restored_beside_what_is_still_to_be_salvaged(name: str, home: Home, tmp_path: Path) -> None:
    await home.fill(None)
    await backed_up(home)
    target = Home(tmp_path / "target")
    async with target.open(None):
        pass
    (target.workspace / "sessions.db").unlink()
    (target.workspace / name).mkdir(mode=0o700)
    (home.workspace / "sessions.db").rename(target.workspace / name / "sessions.db")
    before = target.contents()
    with pytest.raises(ConfigError, match=rf"there is a workspace already \(.*{name}\)"):
        await restore(tmp_path / "backup", target.workspace, target.settings)
    assert target.contents() == before
