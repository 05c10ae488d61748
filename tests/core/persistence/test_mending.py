"""What the session files have whole heals the store: only what was there, and what is lost is named."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.core.protocol.messages import ToolCall
from miniclaw_sessions.core.stores import open_store
from miniclaw_sessions.core.stores.base import is_damaged
from miniclaw_sessions.core.stores.sqlite.files import note_damage
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import StoreCorrupt
from tests.core.persistence.encrypted_homes import OLD_KEY, Home
from tests.core.stores.test_damaged_page import PAGE, damage_page, row
from tests.sampled import sampled

pytestmark = pytest.mark.anyio
KEYS = pytest.mark.parametrize("keys", sampled([OLD_KEY, None], every=2), ids=["encrypted", "plain"])


async def filled(home: Home, keys: KeyRing | None) -> dict[str, list[str]]:
    async with home.open(keys) as manager:
        for number in range(3):
            await home.say(manager, number, 30)
    return await home.said(keys)


def flip(home: Home, sequence: int, chat: int = 1, at: float = 0.5) -> None:
    """Change the row of an entry, as a flipped bit on the disk would."""
    with closing(sqlite3.connect(home.workspace / "sessions.db", isolation_level=None)) as other:
        chosen = "sequence = ? AND session = (SELECT id FROM sessions WHERE chat_id = ?)"
        (encoded,) = other.execute(f"SELECT encoded FROM entries WHERE {chosen}", (sequence, str(chat))).fetchone()
        flipped = bytearray(encoded)
        flipped[int(len(flipped) * at)] ^= 4
        other.execute(f"UPDATE entries SET encoded = ? WHERE {chosen}", (bytes(flipped), sequence, str(chat)))


def flip_line(home: Home, sequence: int, chat: int = 1, at: float = 0.5) -> None:
    file = home.workspace / "transcripts" / f"telegram_{chat}.jsonl"
    lines = file.read_bytes().split(b"\n")
    line = bytearray(lines[sequence])
    line[int(len(line) * at)] ^= 4
    file.write_bytes(b"\n".join([*lines[:sequence], bytes(line), *lines[sequence + 1 :]]))


@KEYS
@pytest.mark.parametrize(
    ("store", "harm"), [("sqlite:", partial(flip, at=0.7)), ("jsonl:", partial(flip_line, at=0.7))]
)
async def test_a_damaged_entry_is_written_anew_from_the_window(
    tmp_path: Path, store: str, harm: Callable[..., None], keys: KeyRing | None
) -> None:
    home = Home(tmp_path / "w", store)
    whole = await filled(home, keys)
    harm(home, 30)
    async with home.open(keys) as manager:
        assert (await manager.check()).problems != []
        assert (await manager.repair()).entries == 1
        assert (await manager.repair()).entries == 0
    assert await home.said(keys) == whole


@pytest.mark.parametrize(("store", "harm"), [("sqlite:", flip), ("jsonl:", flip_line)])
async def test_whichever_byte_of_an_entry_is_damaged_it_is_written_anew(
    tmp_path: Path, store: str, harm: Callable[..., None]
) -> None:
    home = Home(tmp_path / "w", store)
    whole = await filled(home, None)
    for tenth in range(10):
        harm(home, 30, at=tenth / 10)
        async with home.open(None) as manager:
            assert (await manager.repair()).entries == 1
    assert await home.said(None) == whole


@KEYS
@pytest.mark.parametrize(("store", "harm"), [("sqlite:", flip), ("jsonl:", flip_line)])
async def test_what_no_window_has_stays_damaged_and_is_told(
    tmp_path: Path, store: str, harm: Callable[..., None], keys: KeyRing | None
) -> None:
    home = Home(tmp_path / "w", store)
    await filled(home, keys)
    harm(home, 5)
    async with home.open(keys) as manager:
        assert (await manager.repair()).entries == 0
        assert any("entry 5 is damaged" in problem for problem in (await manager.check()).problems)


@pytest.mark.parametrize("column", ["entry_id = 'x'", "checksum = 5", "idempotency_key = 'x'", "session = 99"])
async def test_every_column_of_a_row_is_mended(tmp_path: Path, column: str) -> None:
    home = Home(tmp_path / "w")
    whole = await filled(home, None)
    with closing(sqlite3.connect(home.workspace / "sessions.db", isolation_level=None)) as other:
        other.execute(f"UPDATE entries SET {column} WHERE sequence = 31 AND session = 2")
    async with home.open(None) as manager:
        assert (await manager.repair()).entries == 1
    assert await home.said(None) == whole


async def test_a_shortened_call_is_not_written_over_the_whole_one(tmp_path: Path) -> None:
    home = Home(tmp_path / "w")
    calls = tuple(ToolCall(f"call-{number}", "look", "{}") for number in range(8))
    async with home.open(None) as manager:
        session = await manager.get_or_create("telegram", "1")
        await session.add_message(Message.user("look"))
        await session.add_message(Message.assistant("", tool_calls=calls))
        for call in calls:
            await session.add_message(Message.tool_result(call, "seen"))
        kept = session.messages()[1].tool_calls
        assert kept is not None
        assert len(kept) < len(calls)
    flip(home, 2)
    async with home.open(None) as manager:
        assert (await manager.repair()).entries == 0
        assert any("entry 2 is damaged" in problem for problem in (await manager.check()).problems)


async def test_a_database_in_which_damage_was_met_is_made_anew_by_the_next_start(tmp_path: Path) -> None:
    home = Home(tmp_path / "w")
    whole = await filled(home, None)
    lost = damage_page(home.workspace / "sessions.db")
    async with home.open(None) as manager:
        left = await read_all(manager)
        assert sum(map(len, left.values())) == sum(map(len, whole.values())) - lost
        assert (await manager.repair()).needs_start
    async with home.open(None) as manager:
        assert await read_all(manager) == left
        assert sum(loss.messages for loss in manager.source.losses.values()) == lost
        assert (await manager.check()).problems == [
            loss.sentence(session_id) for session_id, loss in manager.source.losses.items()
        ]
        await manager.acknowledge_losses()
        await home.say(manager, 1, 1)
        assert (await manager.check()).problems == []
        assert await manager.delete("telegram_1")
    names = [file.name for file in (home.workspace / "quarantine").iterdir()]
    assert sum(name.endswith("-sessions.db") for name in names) == 1
    async with home.open(None) as manager:
        assert (await manager.check()).problems == []
    assert sorted(names) == sorted(file.name for file in (home.workspace / "quarantine").iterdir())


@KEYS
async def test_what_was_on_a_damaged_page_comes_back_from_the_window(tmp_path: Path, keys: KeyRing | None) -> None:
    home = Home(tmp_path / "w")
    whole = await filled(home, keys)
    damage_newest_page(home.workspace / "sessions.db")
    async with home.open(keys) as manager:
        assert await read_all(manager) != whole
        await manager.repair()
    async with home.open(keys) as manager:
        assert (await read_all(manager))["telegram_2"][-4:] == whole["telegram_2"][-4:]
        lost = sum(map(len, whole.values())) - sum(map(len, (await read_all(manager)).values()))
        assert sum(loss.messages for loss in manager.source.losses.values()) == lost


async def test_a_session_on_a_damaged_page_is_deleted_after_a_start_and_until_then_is_as_it_was(tmp_path: Path) -> None:
    home = Home(tmp_path / "w")
    await filled(home, None)
    damage_page(home.workspace / "sessions.db")
    async with home.open(None) as manager:
        before = await read_all(manager)
        (session_id,) = [one for one in before if len(before[one]) < 30]
        with pytest.raises(StoreCorrupt, match="start again"):
            await manager.delete(session_id)
        await (await manager.find(session_id)).add_message(Message.user("still there"))
        assert (await read_all(manager))[session_id] == [*before[session_id], "still there"]
    async with home.open(None) as manager:
        for chat in range(3):
            await manager.delete(f"telegram_{chat}")
        assert await manager.list() == []


async def test_a_key_whose_entry_cannot_be_read_is_known_all_the_same(tmp_path: Path) -> None:
    home = Home(tmp_path / "w")
    async with home.open(None) as manager:
        session = await manager.get_or_create("telegram", "1")
        for number in range(100):
            await session.add_message(Message.user(f"message {number}"), idempotency_key=f"key {number}")
    damage_page(home.workspace / "sessions.db")
    async with open_store("sqlite:", home.workspace) as store:
        unreadable = [one.sequence for one in await store.read("telegram_1") if is_damaged(one.encoded)]
        for number in range(100):
            found = await store.find_by_idempotency_key("telegram_1", f"key {number}")
            assert found is not None
            assert is_damaged(found.encoded) == (found.sequence in unreadable)
        assert await store.find_by_idempotency_key("telegram_1", "another") is None


async def test_a_damaged_index_is_made_anew_and_costs_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path / "w")
    whole = await filled(home, None)
    path = home.workspace / "sessions.db"
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE tbl_name = 'idempotency_keys'"
        ).fetchone()
    data = bytearray(path.read_bytes())
    data[(root - 1) * PAGE : root * PAGE] = bytes(PAGE)
    path.write_bytes(data)
    async with home.open(None) as manager:
        assert (await manager.repair()).needs_start
    assert await home.said(None) == whole


async def test_a_sound_database_is_not_set_aside_for_a_read_that_failed_once(tmp_path: Path) -> None:
    home = Home(tmp_path / "w")
    whole = await filled(home, None)
    note_damage(home.workspace / "sessions.db")
    async with home.open(None) as manager:
        assert manager.source.losses == {}
    assert await home.said(None) == whole
    assert not (home.workspace / "quarantine").exists()
    assert not (home.workspace / "sessions.db-damaged").exists()


def damage_newest_page(path: Path) -> None:
    """Overwrite the leaf page with the newest entry."""
    with closing(sqlite3.connect(path)) as connection:
        (newest,) = connection.execute("SELECT max(position) FROM entries").fetchone()
        encoded = row(connection, newest)
    assert encoded is not None
    data = bytearray(path.read_bytes())
    page = data.index(encoded) // PAGE
    data[page * PAGE : page * PAGE + PAGE] = b"\xff" * PAGE
    path.write_bytes(data)


async def read_all(manager: SessionManager) -> dict[str, list[str]]:
    """What the transcripts say."""
    found = {}
    for one in await manager.list():
        history = (await (await manager.find(one.session_id)).tree.get_transcript()).entries
        found[one.session_id] = [entry.message.text for entry in history if hasattr(entry, "message")]
    return found
