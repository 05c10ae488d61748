"""What becomes a workspace, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from miniclaw_sessions import SessionManager
from miniclaw_sessions.errors import ConfigError

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
