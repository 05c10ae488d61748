"""One damaged page of the database costs the entries on it, and nothing else, whoever reads; and everybody says so."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.core.stores import open_store
from miniclaw_sessions.core.stores.base import StoredEntry, is_damaged
from miniclaw_sessions.core.stores.sqlite.store import SQLiteStore
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.files.transfer.backup import back_up, back_up_closed, restore, verify_backup
from miniclaw_sessions.files.transfer.migrating import location, migrate
from tests.core.persistence.encrypted_homes import OLD_KEY, Home
from tests.sampled import sampled

pytestmark = pytest.mark.anyio
PAGE = 4096
SESSIONS, MESSAGES = 3, 100
ENTRIES = SESSIONS * (MESSAGES + 1)


async def damaged_home(tmp_path: Path, keys: KeyRing | None = None) -> tuple[Home, int]:
    """A workspace of which one leaf page of `entries` is gone, and how many entries were on it."""
    home = Home(tmp_path / "w")
    async with home.open(keys) as manager:
        for chat_id in range(SESSIONS):
            await home.say(manager, chat_id, MESSAGES)
    return home, damage_page(home.workspace / "sessions.db")


def damage_page(path: Path) -> int:
    """Overwrite a leaf page in the middle; how many rows cannot be read any more."""
    with closing(sqlite3.connect(path)) as connection:
        positions = [position for (position,) in connection.execute("SELECT position FROM entries ORDER BY 1")]
        marked = {position: row(connection, position) for position in positions}
    middle = marked[positions[len(positions) // 2]]
    assert middle is not None
    data = bytearray(path.read_bytes())
    page = data.index(middle) // PAGE
    data[page * PAGE : page * PAGE + PAGE] = b"\xff" * PAGE
    path.write_bytes(data)
    with closing(sqlite3.connect(path)) as connection:
        lost = sum(row(connection, position) is None for position in positions)
    assert 0 < lost < 30
    return lost


def row(connection: sqlite3.Connection, position: int) -> bytes | None:
    try:
        (encoded,) = connection.execute("SELECT encoded FROM entries WHERE position = ?", (position,)).fetchone()
    except sqlite3.DatabaseError:
        return None
    return bytes(encoded)


async def entries(home: Home, store: str = "sqlite:", *, read_only: bool) -> list[StoredEntry]:
    async with open_store(store, home.workspace, read_only=read_only) as opened:
        return [entry async for stored in opened.heads() for entry in await opened.read(stored.head.session_id)]


@pytest.mark.parametrize("read_only", sampled([False, True], every=2))
async def test_every_other_entry_is_read(tmp_path: Path, *, read_only: bool) -> None:
    home, lost = await damaged_home(tmp_path)
    found = await entries(home, read_only=read_only)
    assert len(found) == ENTRIES
    assert sum(is_damaged(entry.encoded) for entry in found) == lost
    async with open_store("sqlite:", home.workspace, read_only=read_only) as store:
        ids = await store.session_ids()
        for session_id in ids:
            whole = await store.read(session_id)
            assert await store.read(session_id, after=20, limit=50) == whole[20:70]
            assert await store.read_newest(session_id, 90) == whole[-90:]
            assert await store.read_newest(session_id, 0) == []
            assert await store.find(session_id, whole[-1].entry_id) == whole[-1]
            assert await store.find(session_id, "nobody's") is None


@pytest.mark.parametrize("read_only", sampled([False, True], every=2))
async def test_the_check_names_each_entry_that_is_lost(tmp_path: Path, *, read_only: bool) -> None:
    home, lost = await damaged_home(tmp_path)
    async with open_store("sqlite:", home.workspace, read_only=read_only) as store:
        problems = await store.check()
    assert sum(" is damaged: " in problem and problem.startswith("session ") for problem in problems) == lost, problems
    assert any("malformed" in problem or "database is damaged" in problem for problem in problems), problems


@pytest.mark.parametrize("keys", sampled([None, OLD_KEY], every=2), ids=["plain", "encrypted"])
@pytest.mark.parametrize("is_open", sampled([True, False], every=2))
async def test_a_backup_has_all_that_can_be_read_and_says_what_is_missing(
    tmp_path: Path, keys: KeyRing | None, *, is_open: bool
) -> None:
    home, lost = await damaged_home(tmp_path, keys)
    backup = tmp_path / "backup"
    if is_open:
        async with home.open(keys) as manager:
            made = await back_up(manager, backup)
    else:
        made = await back_up_closed(home.workspace, home.settings, backup)
    assert (made.sessions, made.entries, len(made.problems)) == (SESSIONS, ENTRIES - lost, lost)
    verified = await verify_backup(backup)
    assert (verified.problems, verified.losses) == ([], made.problems)
    other = Home(tmp_path / "restored")
    await restore(backup, other.workspace, other.settings)
    async with other.open(keys) as manager:
        assert await told(manager) == SESSIONS * MESSAGES - lost


async def told(manager: SessionManager) -> int:
    """How many messages the transcripts of all sessions have."""
    transcripts = [await (await manager.find(one.session_id)).tree.get_transcript() for one in await manager.list()]
    return sum(hasattr(entry, "message") for transcript in transcripts for entry in transcript.entries)


@pytest.mark.parametrize("keys", sampled([None, OLD_KEY], every=2), ids=["plain", "encrypted"])
async def test_another_store_gets_all_that_can_be_read(tmp_path: Path, keys: KeyRing | None) -> None:
    home, lost = await damaged_home(tmp_path, keys)
    copied = (await migrate(location(home.settings.store, home.workspace), location("jsonl:", home.workspace))).copied
    assert (copied.entries, len(copied.problems)) == (ENTRIES - lost, lost)
    found = await entries(home, "jsonl:", read_only=False)
    assert sum(not is_damaged(entry.encoded) for entry in found) == ENTRIES - lost


async def test_a_start_and_a_conversation_go_on(tmp_path: Path) -> None:
    home, lost = await damaged_home(tmp_path)
    for _ in range(2):
        async with home.open(None) as manager:
            assert await told(manager) == SESSIONS * MESSAGES - lost
            for chat_id in range(SESSIONS):
                session = await manager.get("telegram", str(chat_id))
                assert len(session.messages()) == home.settings.window
    for file in (home.workspace / "sessions").iterdir():  # so that the start reads all of the store
        file.unlink()
    async with home.open(None) as manager:
        assert await told(manager) == SESSIONS * MESSAGES - lost
        await home.say(manager, 0, 1)


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ("sessions SET session_id = X'FF00' WHERE id = 2", 0),
        ("sessions SET channel = '' WHERE id = 2", 0),
        ("entries SET sequence = 77 WHERE session = 2 AND sequence = 3", 0),  # the index has its place
        ("entries SET sequence = 1.5 WHERE session = 2 AND sequence = 3", 0),
        ("entries SET encoded = 5, checksum = NULL WHERE session = 2 AND sequence = 3", 1),
    ],
)
async def test_a_value_of_a_wrong_kind_costs_at_most_its_own_entry(tmp_path: Path, change: str, lost: int) -> None:
    home = Home(tmp_path / "w")
    async with home.open(None) as manager:
        for chat_id in range(SESSIONS):
            await home.say(manager, chat_id, 20)
    with closing(sqlite3.connect(home.workspace / "sessions.db", isolation_level=None)) as other:
        assert other.execute(f"UPDATE {change}").rowcount == 1
    for _ in range(2):
        async with home.open(None) as manager:
            await manager.repair()
    async with home.open(None) as manager:
        said = 0
        for chat_id in range(SESSIONS):
            history = (await (await manager.find(f"telegram_{chat_id}")).tree.get_transcript()).entries
            said += sum(hasattr(entry, "message") for entry in history)
        assert said == 20 * SESSIONS - lost


@pytest.mark.parametrize("value", ["'x'", *sampled(["X'00'", "1.5"], every=2)])
@pytest.mark.parametrize("table", ["entries", "places"])
async def test_a_sequence_that_is_no_number_costs_its_own_entry_alone(tmp_path: Path, table: str, value: str) -> None:
    home, killed = Home(tmp_path / "w"), Home(tmp_path / "killed")
    async with home.open(None) as manager:
        for chat_id in range(SESSIONS):
            await home.say(manager, chat_id, 5)
        shutil.copytree(home.workspace, killed.workspace)  # as a kill leaves it: no index has its entries
    damaged = home if table == "places" else killed
    with closing(sqlite3.connect(damaged.workspace / "sessions.db", isolation_level=None)) as other:
        assert other.execute(f"UPDATE {table} SET sequence = {value} WHERE session = 2 AND sequence = 3").rowcount
    async with damaged.open(None) as manager:
        await manager.check()  # a start that has not met it goes on with it
    async with damaged.open(None) as manager:
        for chat_id in range(SESSIONS):
            session = await manager.find(f"telegram_{chat_id}")
            history = (await session.tree.get_transcript()).entries
            said = {entry.message.text.rpartition("/")[2] for entry in history if hasattr(entry, "message")}
            is_whole = table == "places" or chat_id != 1
            assert said == {"0", "1", "2", "3", "4"} - (set() if is_whole else {"1"})
            await session.add_message(Message.user("it goes on"))


async def test_the_damage_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home, _ = await damaged_home(tmp_path)
    async with SQLiteStore(home.workspace / "sessions.db") as store:
        for _ in range(3):
            for session_id in await store.session_ids():
                await store.read(session_id)
    assert caplog.text.count("store.damaged") == 1
