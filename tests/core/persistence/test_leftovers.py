"""What a crash left half-written is removed wherever files are written, by the holder of the lock (rules R4, R21)."""

from __future__ import annotations

from pathlib import Path

import pytest

from miniclaw_sessions import SessionManager
from miniclaw_sessions.errors import DirectoryInUse

pytestmark = pytest.mark.anyio

HALF = f".{'0123456789ab' * 2}.tmp"
PLACES = ["", "sessions", "archive", "quarantine", "transcripts", "transcripts/torn"]


@pytest.mark.parametrize("place", PLACES)
async def test_half_a_file_is_gone_after_the_next_start(tmp_path: Path, place: str) -> None:
    async with SessionManager(tmp_path / "w", store="jsonl:"):
        pass
    leftover = tmp_path / "w" / place / HALF
    leftover.parent.mkdir(exist_ok=True)
    leftover.write_bytes(b"half")
    async with SessionManager(tmp_path / "w", store="jsonl:"):
        assert not leftover.exists()
        leftover.write_bytes(b"somebody is writing this")
        with pytest.raises(DirectoryInUse):
            await SessionManager(tmp_path / "w", store="jsonl:").__aenter__()
        assert leftover.exists()
