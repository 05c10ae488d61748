"""The -wal file cannot grow for ever: it moves to the database, and is cut back after a burst (rule R34)."""

from __future__ import annotations

from pathlib import Path

import pytest

from miniclaw_sessions.core.stores.base import Append
from miniclaw_sessions.core.stores.sqlite import files
from miniclaw_sessions.core.stores.sqlite.store import SQLiteStore
from miniclaw_sessions.testing import sample_entries, sample_head

pytestmark = pytest.mark.anyio

CHECKPOINT_BYTES = 256 * 1024
LIMIT_BYTES = 512 * 1024
ONE_APPEND_BYTES = 64 * 1024


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHECKPOINT_BYTES", CHECKPOINT_BYTES)
    monkeypatch.setattr(files, "WAL_LIMIT_BYTES", LIMIT_BYTES)


async def say(store: SQLiteStore, chat_id: int, size: int) -> None:
    assert await store.append([Append(sample_head(chat_id), sample_entries(1, 1, text="x" * size))]) == [None]


async def test_it_is_used_again_and_again_however_much_is_appended(tmp_path: Path) -> None:
    async with SQLiteStore(tmp_path / "sessions.db") as store:
        wal, largest = files.database_files(tmp_path / "sessions.db")[1], 0
        for chat_id in range(1, 31):
            await say(store, chat_id, ONE_APPEND_BYTES)
            largest = max(largest, wal.stat().st_size)
        assert largest <= CHECKPOINT_BYTES + 3 * ONE_APPEND_BYTES


async def test_one_append_that_was_larger_does_not_leave_it_large(tmp_path: Path) -> None:
    async with SQLiteStore(tmp_path / "sessions.db") as store:
        wal = files.database_files(tmp_path / "sessions.db")[1]
        await say(store, 1, 8 * LIMIT_BYTES)
        assert wal.stat().st_size > 8 * LIMIT_BYTES
        await say(store, 2, 10)  # the log begins anew with it
        assert wal.stat().st_size <= LIMIT_BYTES
