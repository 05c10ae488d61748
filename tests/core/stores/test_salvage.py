"""What can still be read of a damaged database is kept: at the start, and by whoever opens a damaged backup."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from miniclaw_sessions.core.stores import copying
from miniclaw_sessions.core.stores.base import LOST, Append, StoredEntry
from miniclaw_sessions.core.stores.copying import copy_store
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.core.stores.sqlite.files import note_damage
from miniclaw_sessions.core.stores.sqlite.salvage import Salvage, make_readable
from miniclaw_sessions.core.stores.sqlite.store import SQLiteStore
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import StoreUnavailable
from miniclaw_sessions.testing import sample_entries, sample_head
from tests.core.persistence.encrypted_homes import OLD_KEY, Home
from tests.sampled import sampled

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


def damage_index(path: Path) -> None:
    """Of the entries' places, which can be found again."""
    root = root_page(path, "places")
    data = bytearray(path.read_bytes())
    data[(root - 1) * PAGE : (root - 1) * PAGE + 200] = b"\xff" * 200
    path.write_bytes(data)


def copy_as_killed(path: Path, copy: Path) -> None:
    """Copy a database that is in use, with its log, as a kill would leave them."""
    for suffix in ("", "-wal"):
        copy.with_name(copy.name + suffix).write_bytes(path.with_name(path.name + suffix).read_bytes())


def root_page(path: Path, table: str) -> int:
    """The number of the first page of a table, or of an index that is one."""
    with closing(sqlite3.connect(path)) as connection:
        (number,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    return int(number)


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


@pytest.mark.parametrize("keys", sampled([None, OLD_KEY], every=2), ids=["plain", "encrypted"])
async def test_a_start_keeps_what_can_be_read_of_a_damaged_store(tmp_path: Path, keys: KeyRing | None) -> None:
    home = Home(tmp_path / "w")
    async with home.open(keys) as manager:
        for number in range(5):
            await home.say(manager, number, 60)
    whole = await home.said(keys)
    damage_index(home.workspace / "sessions.db")
    async with home.open(keys) as manager:
        for session_id, texts in whole.items():
            session = await manager.find(session_id)
            assert session is not None
            kept = [e.message.text for e in (await session.tree.get_transcript()).entries if hasattr(e, "message")]
            assert kept == texts
        assert (await manager.check()).problems == []
    assert list((home.workspace / "quarantine").iterdir())
    assert not (home.workspace / ".salvage").exists()


@pytest.mark.parametrize("table", sampled(["sessions", "entries"], every=2))
async def test_a_page_that_only_leads_to_others_costs_no_row(tmp_path: Path, table: str) -> None:
    path = tmp_path / "sessions.db"
    whole = await filled(path, sessions=100, entries=50)
    async with SQLiteStore(path) as store:
        long = sample_entries(51, 51, text="long " * 5_000)  # goes on in pages of its own
        assert await store.append([Append(sample_head(0), long)]) == [None]
    whole["telegram_0"] += long
    root = root_page(path, table)
    data = bytearray(path.read_bytes())
    assert data[(root - 1) * PAGE] == 5
    data[(root - 1) * PAGE : root * PAGE] = bytes(PAGE)
    path.write_bytes(data)
    assert await salvaged(path) == whole


@pytest.mark.parametrize(
    "damage",
    [
        "channel = 'x'",
        *sampled(["session_id = 'x'", "chat_id = X'00FF'", "created_at = 'x'", "incarnation = NULL"], every=4),
        "NULL",
    ],
)
async def test_a_session_whose_own_row_is_damaged_keeps_its_entries(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "sessions.db"
    whole = await filled(path, sessions=3, entries=50)
    root = root_page(path, "sessions")
    if damage == "NULL":  # and with it all the others that are on its page
        data = bytearray(path.read_bytes())
        data[(root - 1) * PAGE : root * PAGE] = bytes(PAGE)
        path.write_bytes(data)
    else:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '') WHERE name = 'sessions'")
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"UPDATE sessions SET {damage} WHERE id = 2")
    assert await salvaged(path) == whole


async def test_a_session_whose_row_is_gone_is_not_made_again_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    whole = await filled(path, sessions=3, entries=50)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM entries WHERE session = 2")
        connection.execute("UPDATE sessions SET channel = 'x' WHERE id = 2")
    assert await salvaged(path) == {name: entries for name, entries in whole.items() if name != "telegram_1"}


async def test_what_was_deleted_does_not_come_back_from_pages_that_the_log_replaces(tmp_path: Path) -> None:
    path, copy = tmp_path / "sessions.db", tmp_path / "copy.db"
    whole = await filled(path, sessions=100, entries=50)
    root = root_page(path, "sessions")
    async with SQLiteStore(path) as store:
        assert await store.delete("telegram_5")
        copy_as_killed(path, copy)
    data = bytearray(copy.read_bytes())
    data[(root - 1) * PAGE : root * PAGE] = bytes(PAGE)
    copy.write_bytes(data)
    del whole["telegram_5"]
    assert await salvaged(copy) == whole


@pytest.mark.parametrize("again", sampled([True, False], every=2), ids=["damaged again", ""])
async def test_a_salvage_that_was_cut_off_is_begun_again_from_all_there_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    home = Home(tmp_path / "w")
    async with home.open(None) as manager:
        for number in range(3):
            await home.say(manager, number, 30)
    whole = await home.said(None)
    damage_index(home.workspace / "sessions.db")
    append, groups = copying._Copy._append, 0

    async def append_two(*arguments: Any) -> None:
        nonlocal groups
        groups += 1
        if groups > 2:
            raise StoreUnavailable("the disk refuses a write")
        await append(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(copying._Copy, "_append", append_two)
        patched.setattr(copying, "GROUP", 20)
        with pytest.raises(StoreUnavailable):
            await home.open(None).__aenter__()
    if again:
        damage_index(home.workspace / "sessions.db")
    assert await home.said(None) == whole


async def test_an_entry_that_no_index_has_yet_keeps_its_place_when_it_is_lost(tmp_path: Path) -> None:
    path, copy = tmp_path / "sessions.db", tmp_path / "copy.db"
    async with SQLiteStore(path) as store:
        for number in range(1, 41):
            entries = sample_entries(number, number, text=f"m{number} " + "y" * 300)
            assert await store.append([Append(sample_head(0), entries)]) == [None]
        copy_as_killed(path, copy)
    with closing(sqlite3.connect(copy)) as connection:
        (indexed,) = connection.execute("SELECT max(sequence) FROM places").fetchone()
        assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    assert indexed is None or indexed < 30
    data = bytearray(copy.read_bytes())
    page = data.find(b"m30 yyy") // PAGE
    data[page * PAGE : page * PAGE + PAGE] = b"\x55" * PAGE
    copy.write_bytes(data)
    target = MemoryStore()
    async with Salvage(copy) as rest:
        await copy_store(rest, target)
    kept = await target.read("telegram_0")
    assert [entry.sequence for entry in kept] == list(range(1, 41))
    assert 0 < sum(entry.encoded == LOST for entry in kept) < 15


async def test_an_index_that_makes_no_sense_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    whole = await filled(path, sessions=2, entries=200)
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute("UPDATE places SET sequence = 'x' WHERE sequence = 7 AND session = 1").rowcount
    assert await salvaged(path) == whole


async def test_a_database_that_was_copied_without_its_log_is_not_salvaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, killed = Home(tmp_path / "w"), Home(tmp_path / "killed")
    async with home.open(None) as manager:
        for number in range(3):
            await home.say(manager, number)
    async with home.open(None) as manager:
        await manager.delete("telegram_1")
        shutil.copytree(home.workspace, killed.workspace)  # as a kill leaves it: the deletion is in the log
    (killed.workspace / ".lock").unlink()
    note_damage(killed.workspace / "sessions.db")
    copy = Directory.copy

    class Killed(BaseException):
        pass

    def copy_no_log(self: Directory, name: str, *others: Any) -> None:
        if name.endswith("-wal"):
            raise Killed
        copy(self, name, *others)

    with monkeypatch.context() as patched:
        patched.setattr(SQLiteStore, "_own_problems", lambda _: ["a read that the disk refused"])
        patched.setattr(Directory, "copy", copy_no_log)
        with pytest.raises(Killed):
            await killed.open(None).__aenter__()
    assert sorted(await killed.said(None)) == ["telegram_0", "telegram_2"]
    assert not list(killed.workspace.glob(".salvage*"))
