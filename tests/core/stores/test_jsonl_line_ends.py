"""Lines end at the byte 0x0A and nowhere else, whatever else a person may call the end of a line (rule R13)."""

from __future__ import annotations

from pathlib import Path

import pytest

from miniclaw_sessions.core.stores.base import Append
from miniclaw_sessions.core.stores.jsonl.store import JSONLStore
from miniclaw_sessions.testing import sample_entries, sample_head

pytestmark = pytest.mark.anyio

ENDS = ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r", "\r\n", "\n"]


@pytest.mark.parametrize("header_is_lost", [False, True])
@pytest.mark.parametrize("end", ENDS, ids=ascii)
async def test_a_message_that_holds_it_comes_back(tmp_path: Path, end: str, header_is_lost: bool) -> None:
    entries = sample_entries(1, 3, text=f"one{end}{end}two") + sample_entries(4, 4, text=end)
    async with JSONLStore(tmp_path / "t") as store:
        assert await store.append([Append(sample_head(), entries[:3])]) == [None]
        assert await store.append([Append(sample_head(), entries[3:])]) == [None]
    file = tmp_path / "t" / "telegram_1.jsonl"
    header, *lines = file.read_bytes().removesuffix(b"\n").split(b"\n")
    assert len(lines) == len(entries)
    if header_is_lost:
        file.write_bytes(file.read_bytes()[len(header) + 1 :])
    async with JSONLStore(tmp_path / "t") as store:
        assert await store.read("telegram_1") == entries
        assert await store.read("telegram_1", after=2, limit=1) == entries[2:3]
        assert await store.read_newest("telegram_1", 2) == entries[2:]
    assert not (tmp_path / "t" / "torn").exists()
