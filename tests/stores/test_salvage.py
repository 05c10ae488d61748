"""What can still be read of a damaged database is kept: at the start, and by whoever opens a damaged backup."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.stores.base import LOST, Append, StoredEntry
from miniclaw_sessions.stores.copying import copy_store
from miniclaw_sessions.stores.memory import MemoryStore
from miniclaw_sessions.stores.sql.salvage import Salvage, make_readable
from miniclaw_sessions.stores.sql.sqlite import SQLiteStore
from miniclaw_sessions.testing import sample_entries, sample_head
from tests.persistence.encrypted_homes import OLD_KEY, Home

pytestmark = pytest.mark.anyio
PAGE = 4096


async def filled(path: Path, sessions: int = 20, entries: int = 100) -> dict[str, list[StoredEntry]]:
    async with SQLiteStore(path) as store:
        for first in range(1, entries, 10):
            appends = [Append(sample_head(n), sample_entries(first, first + 9)) for n in range(sessions)]
            assert await store.append(appends) == [None] * sessions
        return {head.head.session_id: await store.read(head.head.session_id) async for head in store.heads()}


async def salvaged(path: Path) -> dict[str, list[StoredEntry]]:
    target = MemoryStore()
    async with Salvage(path) as rest:
        await copy_store(rest, target)
    return {
        session_id: [entry for entry in await target.read(session_id) if entry.encoded != LOST]
        for session_id in await target.session_ids()
    }


async def test_a_sound_database_is_salvaged_whole(tmp_path: Path) -> None:
    whole = await filled(tmp_path / "sessions.db")
    assert await salvaged(tmp_path / "sessions.db") == whole


async def test_pages_of_garbage_cost_only_what_was_in_them(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    whole = await filled(path)
    data = bytearray(path.read_bytes())
    pages = [n for n in range(len(data) // PAGE) if data[n * PAGE : n * PAGE + PAGE].count(b'"content":"hello"') > 5]
    assert len(pages) > 20
    for page in pages[3:6]:
        data[page * PAGE : page * PAGE + PAGE] = b"\x55" * PAGE
    path.write_bytes(data)
    rest = await salvaged(path)
    assert rest.keys() == whole.keys()
    for session_id, entries in rest.items():
        assert set(entries) < set(whole[session_id]) or entries == whole[session_id]
    lost = sum(map(len, whole.values())) - sum(map(len, rest.values()))
    assert 0 < lost < 200


async def test_a_file_that_ends_too_early_costs_only_its_end(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    whole = await filled(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4 // PAGE * PAGE])
    make_readable(path)
    rest = await salvaged(path)
    assert all(entry in whole[session_id] for session_id, entries in rest.items() for entry in entries)
    assert sum(map(len, rest.values())) > sum(map(len, whole.values())) // 4


@pytest.mark.parametrize("keys", [None, OLD_KEY], ids=["plain", "encrypted"])
async def test_a_start_keeps_what_can_be_read_of_a_damaged_store(tmp_path: Path, keys: KeyRing | None) -> None:
    home = Home(tmp_path / "w")
    async with home.open(keys) as manager:
        for number in range(5):
            await home.say(manager, number, 60)
    whole = await home.said(keys)
    path = home.workspace / "sessions.db"
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'places'").fetchone()
    data = bytearray(path.read_bytes())
    data[(root - 1) * PAGE : (root - 1) * PAGE + 200] = b"\xff" * 200  # an index, which can be made anew
    path.write_bytes(data)
    async with home.open(keys) as manager:
        for session_id, texts in whole.items():
            session = await manager.find(session_id)
            assert session is not None
            kept = [e.message.text for e in (await session.tree.get_transcript()).entries if hasattr(e, "message")]
            assert kept == texts
        assert (await manager.check()).problems == []
    assert list((home.workspace / "quarantine").iterdir())
    assert not (home.workspace / ".salvage").exists()


@pytest.mark.parametrize("table", ["sessions", "entries"])
async def test_a_page_that_only_leads_to_others_costs_no_row(tmp_path: Path, table: str) -> None:
    path = tmp_path / "sessions.db"
    whole = await filled(path, sessions=100, entries=50)
    async with SQLiteStore(path) as store:
        long = sample_entries(51, 51, text="long " * 5_000)  # goes on in pages of its own
        assert await store.append([Append(sample_head(0), long)]) == [None]
    whole["telegram_0"] += long
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    data = bytearray(path.read_bytes())
    assert data[(root - 1) * PAGE] == 5
    data[(root - 1) * PAGE : root * PAGE] = bytes(PAGE)
    path.write_bytes(data)
    assert await salvaged(path) == whole


async def test_what_was_deleted_does_not_come_back_from_pages_that_the_log_replaces(tmp_path: Path) -> None:
    path, copy = tmp_path / "sessions.db", tmp_path / "copy.db"
    whole = await filled(path, sessions=100, entries=50)
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sessions'").fetchone()
    async with SQLiteStore(path) as store:
        assert await store.delete("telegram_5")
        for suffix in ("", "-wal"):  # as a kill leaves them
            copy.with_name(copy.name + suffix).write_bytes(path.with_name(path.name + suffix).read_bytes())
    data = bytearray(copy.read_bytes())
    data[(root - 1) * PAGE : root * PAGE] = bytes(PAGE)
    copy.write_bytes(data)
    del whole["telegram_5"]
    assert await salvaged(copy) == whole
