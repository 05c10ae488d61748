"""Startup: either side heals the other, evidence is kept, and what cannot be understood is not touched."""
# ruff: noqa: PT012 - a manager that fails to close is a block

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.history.state import Snapshot
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.manager.reading import read_transcript
from miniclaw_sessions.core.persistence import recovery
from miniclaw_sessions.core.persistence.snapshot_file import decode_snapshot
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.core.stores.base import Store
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.errors import (
    ConfigError,
    QuarantineFull,
    SchemaTooNew,
    SessionNotFound,
    SnapshotUnreadable,
    StoreUnavailable,
)
from miniclaw_sessions.testing import FakeClock, FaultyStore
from tests.strange_files import plant_link, plant_socket
from tests.texts import texts

pytestmark = pytest.mark.anyio


class Home:
    """A workspace and its store, opened again and again."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.sessions = workspace / "sessions"
        self.store: str | Store = FaultyStore(MemoryStore())
        self.clock = FakeClock()

    @property
    def faults(self) -> FaultyStore:
        assert isinstance(self.store, FaultyStore)
        return self.store

    def open(self, **settings: Any) -> SessionManager:
        return SessionManager(self.workspace, settings=SessionSettings(**settings), store=self.store, clock=self.clock)

    async def say(self, *texts: str, chat_id: str = "1") -> None:
        async with self.open() as manager:
            session = await manager.get_or_create("telegram", chat_id)
            for text in texts:
                await session.add_message(Message.user(text))
            session.update(title="title")

    async def check_sound(self) -> None:
        async with self.open() as manager:
            assert (await manager.check()).problems == []

    def files(self, folder: str = "sessions") -> dict[str, bytes]:
        path = self.workspace / folder
        return {one.name: one.read_bytes() for one in path.iterdir() if one.is_file()} if path.exists() else {}

    def quarantined(self) -> dict[str, str]:
        """File to reason."""
        records = [
            orjson.loads(data)
            for name, data in self.files("quarantine").items()
            if b'"quarantined_as"' in data and name
        ]
        return {record["file"]: record["reason"] for record in records}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


# --- each side heals the other ---------------------------------------------------------------------------------------


async def test_when_both_agree_nothing_is_read_written_or_dirty(home: Home) -> None:
    await home.say("1", "2")
    before = home.files()
    home.faults.calls.clear()
    async with home.open() as manager:
        assert manager.statistics().dirty == 0
        assert (manager.recovery.from_snapshots, manager.recovery.brought_up, manager.recovery.rebuilt) == (1, 0, 0)
        assert home.faults.calls["read"] == home.faults.calls["append"] == 0
    assert home.files() == before


async def test_a_start_decodes_no_sound_file_and_asks_the_store_once(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        await home.say("1", "2", chat_id=str(number))
    decoded = []

    def decode(data: bytes, *, stem: str, **given: Any) -> Snapshot:
        decoded.append(stem)
        return decode_snapshot(data, stem=stem, **given)

    monkeypatch.setattr(recovery, "decode_snapshot", decode)
    home.faults.calls.clear()
    async with home.open() as manager:
        assert (decoded, home.faults.calls["heads"], home.faults.calls["head"]) == ([], 1, 0)
        assert texts(await manager.get("telegram", "3")) == ["1", "2"]
        assert decoded == ["telegram_3"]


async def test_a_start_knows_the_sessions_that_it_has_not_loaded(home: Home) -> None:
    for number in range(3):
        await home.say("1", "2", chat_id=str(number))
        await home.clock.advance(60)
    async with home.open() as manager:
        numbers = manager.statistics()
        assert (numbers.sessions, numbers.recovered, numbers.cached) == (3, 3, 0)
        assert (len(manager), manager.recovery.from_snapshots, manager.recovery.messages) == (3, 3, 6)
        assert [row.chat_id for row in await manager.list()] == ["2", "1", "0"]
        assert (await manager.continue_recent()).key.chat_id == "2"
        assert manager.statistics().dirty == 0


async def test_what_looks_like_the_rest_of_a_file_within_messages_and_metadata_is_not_taken_for_it(home: Home) -> None:
    arguments = {"ids": [1], "schema_version": 1, "incarnation": "other", "last_sequence": 7}
    async with home.open() as manager:
        session = await manager.get_or_create("telegram", "1", metadata={"note": {"messages": [1], **arguments}})
        await session.add_message(Message.user("1"))
        other = await manager.get_or_create("telegram", "2")
        await other.add_message(msgspec.structs.replace(Message.user("2"), extra={"more": arguments}))
    async with home.open() as manager:
        assert (manager.recovery.from_snapshots, manager.recovery.brought_up, manager.statistics().dirty) == (2, 0, 0)
        (message,) = (await manager.get("telegram", "2")).messages()
        assert (message.text, message.extra) == ("2", {"more": arguments})
        assert (await manager.get("telegram", "1")).metadata["note"] == {"messages": [1], **arguments}


async def test_a_damaged_file_that_cannot_be_moved_is_a_clear_error_and_stays(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    await home.say("1")
    (home.sessions / "telegram_1.json").write_bytes(b"{damaged")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Directory, "move", fail)
    with pytest.raises(ConfigError, match="No space left on device"):
        async with home.open():
            pass
    assert home.files()["telegram_1.json"] == b"{damaged"
    monkeypatch.undo()
    async with home.open() as manager:
        assert texts(await manager.get("telegram", "1")) == ["1"]


async def test_a_snapshot_that_is_behind_is_brought_up(home: Home) -> None:
    await home.say("1", "2")
    old = home.files()["telegram_1.json"]
    await home.say("3")
    (home.sessions / "telegram_1.json").write_bytes(old)
    async with home.open() as manager:
        session = await manager.get("telegram", "1")
        assert texts(session) == ["1", "2", "3"]
        assert manager.recovery.brought_up == 1
        assert session.journal.checkpoint.is_dirty
    assert len(orjson.loads(home.files()["telegram_1.json"])["messages"]) == 3
    await home.check_sound()


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\0" * 300,
        b"{",
        b"[]",
        b"null",
        b'"telegram_1"',
        b"\xef\xbb\xbf{}",
        b'{"session_id": "telegram_1"}',
        b'{"session_id":"telegram_1","channel":"telegram","chat_id":"1"}',
        b'{"session_id":"telegram_1","channel":"telegram","chat_id":"1","messages":{}}',
        b'{"session_id":"telegram_1","channel":"telegram","chat_id":1,"messages":[]}',
        b'{"session_id":"telegram_2","channel":"telegram","chat_id":"2","messages":[]}',
        b'{"session_id":"x","channel":"telegram","chat_id":"1","messages":[]}',
        b'{"session_id":"telegram_1","channel":"telegram","chat_id":"1","messages":[{"content":"x"}]}',
        b'{"session_id":"telegram_1","channel":"telegram","chat_id":"1","messages":[],"schema_version":"1"}',
        b'{"session_id":"telegram_1","channel":"telegram","chat_id":"1","messages":[],"created_at":"yesterday"}',
        b'{"channel":"telegram","chat_id":"1","messages":[' + b"[" * 5000,
    ],
)
async def test_a_damaged_snapshot_is_quarantined_whole_with_its_reason_and_rebuilt(home: Home, damage: bytes) -> None:
    await home.say("1", "2")
    (home.sessions / "telegram_1.json").write_bytes(damage)
    async with home.open() as manager:
        session = await manager.get("telegram", "1")
        assert texts(session) == ["1", "2"]
        assert session.title == "title"
        assert manager.recovery.rebuilt == 1
        assert manager.statistics().quarantined == 1
    reasons = home.quarantined()
    assert list(reasons) == ["telegram_1.json"]
    assert reasons["telegram_1.json"]
    assert damage in home.files("quarantine").values()
    await home.check_sound()


@pytest.mark.parametrize("max_cached", [1000, 1])
@pytest.mark.parametrize("store", ["memory", "sqlite:", "jsonl:"])
async def test_a_flipped_bit_in_a_text_is_noticed_and_healed_from_the_store(
    home: Home, store: str, max_cached: int
) -> None:
    if store != "memory":
        home.store = store
    for chat_id in ("1", "2"):
        await home.say("transfer 100", "yes", chat_id=chat_id)
    sound = home.files()
    flipped = sound["telegram_1.json"].replace(b"transfer 100", b"transfer 900")
    assert flipped != sound["telegram_1.json"]
    (home.sessions / "telegram_1.json").write_bytes(flipped)
    async with home.open(max_cached=max_cached) as manager:
        for chat_id in ("1", "2"):
            assert texts(await manager.get("telegram", chat_id)) == ["transfer 100", "yes"]
    assert "checksum" in home.quarantined()["telegram_1.json"]
    assert flipped in home.files("quarantine").values()
    healed, whole = (orjson.loads(files["telegram_1.json"])["messages"] for files in (home.files(), sound))
    assert healed == whole
    await home.check_sound()


async def test_without_a_store_a_flipped_bit_in_a_text_is_never_served_and_kept_as_evidence(home: Home) -> None:
    home.store = "none:"
    await home.say("transfer 100")
    flipped = home.files()["telegram_1.json"].replace(b"transfer 100", b"transfer 900")
    (home.sessions / "telegram_1.json").write_bytes(flipped)
    async with home.open() as manager:
        with pytest.raises(SessionNotFound):
            await manager.get("telegram", "1")
    assert flipped in home.files("quarantine").values()
    assert "checksum" in home.quarantined()["telegram_1.json"]


async def test_files_of_an_older_version_without_a_checksum_are_believed_once_they_are_validated(home: Home) -> None:
    await home.say("1", "2")
    sound = home.files()["telegram_1.json"]
    old = sound[: sound.index(b',"crc32"')] + b"}"
    (home.sessions / "telegram_1.json").write_bytes(old)
    async with home.open() as manager:
        assert manager.recovery.from_snapshots == 1
        assert not manager.recovery.quarantined
        session = await manager.get("telegram", "1")
        assert texts(session) == ["1", "2"]
        session.update(title="other")
    assert b',"crc32":"' in home.files()["telegram_1.json"]


async def test_a_snapshot_cut_at_any_byte_never_costs_a_message(home: Home) -> None:
    await home.say("1", "2")
    whole = home.files()["telegram_1.json"]
    for length in range(0, len(whole), 7):
        (home.sessions / "telegram_1.json").write_bytes(whole[:length])
        async with home.open() as manager:
            assert texts(await manager.get("telegram", "1")) == ["1", "2"]


async def test_one_damaged_snapshot_does_not_stop_the_others(home: Home) -> None:
    for number in range(3):
        await home.say("hi", chat_id=str(number))
    (home.sessions / "telegram_1.json").write_bytes(b"{")
    async with home.open() as manager:
        assert len(await manager.list()) == 3
        assert (manager.recovery.from_snapshots, manager.recovery.rebuilt) == (2, 1)


async def test_without_a_store_a_damaged_snapshot_is_gone_but_kept_as_evidence(home: Home) -> None:
    home.store = "none:"
    await home.say("1")
    (home.sessions / "telegram_1.json").write_bytes(b"{")
    async with home.open() as manager:
        with pytest.raises(SessionNotFound):
            await manager.get("telegram", "1")
        assert home.files() == {}  # no empty replacement is written
        assert texts(await manager.get_or_create("telegram", "1")) == []
    assert b"{" in home.files("quarantine").values()


async def test_a_lost_snapshot_is_rebuilt(home: Home) -> None:
    await home.say("1", "2")
    shutil.rmtree(home.sessions)
    async with home.open() as manager:
        assert texts(await manager.get("telegram", "1")) == ["1", "2"]
        assert manager.recovery.quarantined == []
    assert list(home.files()) == ["telegram_1.json"]
    await home.check_sound()


async def test_a_lost_store_is_filled_from_the_snapshots_and_goes_on(home: Home) -> None:
    async with home.open(window=4) as manager:
        session = await manager.get_or_create("telegram", "1")
        for number in range(10):
            await session.add_message(Message.user(str(number)), idempotency_key=f"update-{number}")
        session.update(title="title")
        last_accessed = session.last_accessed
    home.store = FaultyStore(MemoryStore())
    await home.clock.advance(1000)
    async with home.open(window=4) as manager:
        session = await manager.get("telegram", "1")
        assert texts(session) == ["6", "7", "8", "9"]
        assert session.last_accessed == last_accessed
        assert manager.recovery.written_back == 1
        assert (await session.add_message(Message.user("9"), idempotency_key="update-9")).sequence == 10
        await session.add_message(Message.user("10"))
        assert await manager.acknowledge_losses() == 1  # what the window had pushed out is gone
    await home.check_sound()
    shutil.rmtree(home.sessions)
    async with home.open(window=4) as manager:
        session = await manager.get("telegram", "1")
        assert texts(session)[-2:] == ["9", "10"]
        assert session.title == "title"


async def test_a_store_that_was_set_back_is_filled_up_from_the_snapshot(home: Home) -> None:
    memory = MemoryStore()
    home.store = memory
    await home.say("1", "2")
    entries = memory._sessions["telegram_1"].entries
    del entries[1:]
    async with home.open() as manager:
        session = await manager.get("telegram", "1")
        assert texts(session) == ["1", "2"]
        await session.add_message(Message.user("3"))
    await home.check_sound()
    shutil.rmtree(home.sessions)
    async with home.open() as manager:
        assert texts(await manager.get("telegram", "1")) == ["1", "2", "3"]


async def test_a_damaged_store_is_set_aside_whole_and_filled_from_the_snapshots(home: Home) -> None:
    home.store = "sqlite:"
    await home.say("1", "2")
    damaged = b"this is no database" * 1000
    (home.workspace / "sessions.db").write_bytes(damaged)
    async with home.open() as manager:
        assert texts(await manager.get("telegram", "1")) == ["1", "2"]
        assert manager.recovery.written_back == 1
    assert damaged in home.files("quarantine").values()
    assert "sessions.db" in home.quarantined()
    await home.check_sound()


async def test_a_file_of_an_earlier_session_of_the_name_is_set_aside(home: Home) -> None:
    await home.say("private")
    old = home.files()["telegram_1.json"]
    async with home.open() as manager:
        await manager.delete("telegram_1")
    await home.say("new")
    (home.sessions / "telegram_1.json").write_bytes(old)
    async with home.open() as manager:
        assert texts(await manager.get("telegram", "1")) == ["new"]
    assert "earlier session" in home.quarantined()["telegram_1.json"]


async def test_a_damaged_entry_in_the_store_is_passed_over_and_the_rest_comes_back(home: Home) -> None:
    memory = MemoryStore()
    home.store = memory
    await home.say("1", "2", "3")
    entries = memory._sessions["telegram_1"].entries
    entries[1] = type(entries[1])(2, entries[1].entry_id, b"{damaged")
    shutil.rmtree(home.sessions)
    async with home.open() as manager:
        session = await manager.get("telegram", "1")
        assert texts(session) == ["1", "3"]
        await session.add_message(Message.user("4"))
        assert any("damaged" in problem for problem in (await manager.check()).problems)


def damage_sqlite(workspace: Path) -> None:
    connection = sqlite3.connect(workspace / "sessions.db")
    connection.execute("UPDATE entries SET encoded = CAST(replace(encoded, 'two', 'tvo') AS BLOB) WHERE sequence = 2")
    connection.commit()
    connection.close()


def damage_jsonl(workspace: Path) -> None:
    transcript = workspace / "transcripts" / "telegram_1.jsonl"
    transcript.write_bytes(transcript.read_bytes().replace(b"two", b"tvo"))


@pytest.mark.parametrize(("store", "damage"), [("sqlite:", damage_sqlite), ("jsonl:", damage_jsonl)])
async def test_the_key_of_a_damaged_entry_that_was_passed_over_stays_used(
    home: Home, store: str, damage: Callable[[Path], None]
) -> None:
    home.store = store
    async with home.open() as manager:
        session = await manager.get_or_create("telegram", "1")
        said = {"a": "one", "b": "two", "c": "three"}
        ids = {key: (await session.add_message(Message.user(said[key]), idempotency_key=key)).id for key in said}
    shutil.rmtree(home.sessions)
    damage(home.workspace)
    async with home.open() as manager:
        session = await manager.get("telegram", "1")
        assert texts(session) == ["one", "three"]
        again = await session.add_message(Message.user("two"), idempotency_key="b")
        assert (again.id, session.last_sequence) == (ids["b"], 3)


# --- nothing is touched ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EMFILE])
async def test_a_file_that_cannot_be_read_stops_the_start_and_nothing_is_touched(
    home: Home, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    await home.say("1")
    await home.say("2", chat_id="2")
    (home.sessions / "telegram_3.json").write_bytes(b"{damaged")
    before = home.files()
    read = Directory.read

    def unreadable(directory: Directory, name: str, *, limit: int, tighten: bool) -> bytes:
        if name == "telegram_2.json":
            raise OSError(number, os.strerror(number), name)
        return read(directory, name, limit=limit, tighten=tighten)

    monkeypatch.setattr(Directory, "read", unreadable)
    with pytest.raises(SnapshotUnreadable, match="nothing was changed"):
        await home.open().__aenter__()
    assert home.files() == before
    assert not (home.workspace / "quarantine").exists()
    monkeypatch.undo()
    async with home.open() as manager:
        assert len(await manager.list()) == 2


async def test_a_directory_that_cannot_be_listed_stops_the_start(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    await home.say("1")

    names = Directory.names

    def fail(directory: Directory) -> list[str]:
        if directory.path == home.sessions:
            raise OSError(errno.EIO, "Input/output error")
        return names(directory)

    monkeypatch.setattr(Directory, "names", fail)
    with pytest.raises(SnapshotUnreadable):
        await home.open().__aenter__()


async def test_a_file_of_a_newer_version_stops_the_start_and_nothing_is_touched(home: Home) -> None:
    await home.say("1")
    newer = {**orjson.loads(home.files()["telegram_1.json"]), "schema_version": 2, "what": "is this"}
    (home.sessions / "telegram_1.json").write_bytes(orjson.dumps(newer))
    (home.sessions / "telegram_0.json").write_bytes(b"{damaged")
    before = home.files()
    with pytest.raises(SchemaTooNew, match="upgrade"):
        await home.open().__aenter__()
    assert home.files() == before
    assert not (home.workspace / "quarantine").exists()


@pytest.mark.parametrize("method", ["heads", "read"])
async def test_a_store_that_cannot_be_read_stops_the_start(home: Home, method: Any) -> None:
    await home.say("1")
    (home.sessions / "telegram_1.json").unlink()
    home.faults.fail(method=method)
    with pytest.raises(StoreUnavailable):
        await home.open().__aenter__()
    home.faults.heal()
    async with home.open() as manager:
        assert texts(await manager.get("telegram", "1")) == ["1"]


async def test_a_full_quarantine_refuses_to_start_and_leaves_the_damaged_file_where_it_is(home: Home) -> None:
    await home.say("1")
    for number in range(3):
        (home.sessions / f"telegram_{number}x.json").write_bytes(b"{damaged %d" % number)
    with pytest.raises(QuarantineFull):
        await home.open(quarantine_max_files=2).__aenter__()
    kept = [*home.files().values(), *home.files("quarantine").values()]
    assert all(b"{damaged %d" % number in kept for number in range(3))


# --- strangers in the directory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir, plant_link, plant_socket])
async def test_what_is_no_file_is_left_alone_and_does_not_block(home: Home, plant: Callable[[Path], None]) -> None:
    await home.say("1")
    plant(home.sessions / "telegram_2.json")
    status = (home.sessions / "telegram_2.json").lstat()
    async with home.open() as manager:
        assert len(await manager.list()) == 1
        assert manager.recovery.ignored == ["telegram_2.json"]
    assert (home.sessions / "telegram_2.json").lstat() == status


async def test_other_names_are_none_of_our_business(home: Home) -> None:
    await home.say("1")
    for name in ("notes.txt", "telegram_1.json~", ".hidden.json", "telegram_1.json.corrupted", ".telegram_1.json.swp"):
        (home.sessions / name).write_bytes(b"mine")
    before = home.files()
    async with home.open() as manager:
        assert len(await manager.list()) == 1
    assert home.files() == before


async def test_a_file_of_ten_gigabytes_is_set_aside_without_reading_it(home: Home) -> None:
    await home.say("1")
    with (home.sessions / "telegram_1.json").open("r+b") as file:
        file.truncate(10 * 2**30)
    async with home.open() as manager:
        assert texts(await manager.get("telegram", "1")) == ["1"]
    [found] = [path for path in (home.workspace / "quarantine").iterdir() if path.stat().st_size > 2**30]
    found.unlink()


async def test_half_written_files_are_removed_only_by_the_holder_of_the_lock(home: Home) -> None:
    await home.say("1")
    leftover = home.sessions / f".{'0' * 24}.tmp"
    leftover.write_bytes(b"half")
    home.faults.fail(method="heads")
    with pytest.raises(StoreUnavailable):
        await home.open().__aenter__()
    assert leftover.exists()
    home.faults.heal()
    async with home.open():
        assert not leftover.exists()
        leftover.write_bytes(b"a running flush")
        with pytest.raises(Exception, match="holds it"):
            await home.open().__aenter__()
        assert leftover.exists()


# --- files of the original systems -----------------------------------------------------------------------------------

RUST = b"""{"session_id":"telegram_123","channel":"telegram","chat_id":"123",
"created_at":"2025-12-01T10:00:00.123456789Z",
"last_accessed":"2025-12-01T10:00:05.987654321Z","messages":[
{"role":"user","content":"hi","timestamp":"2025-12-01T10:00:01.000000001Z"},
{"role":"assistant","content":"","timestamp":"2025-12-01T10:00:02Z","tool_calls":[{"id":"c","name":"t","arguments":"{}"}]},
{"role":"tool_result","content":"r","timestamp":"2025-12-01T10:00:03Z","tool_call_id":"c"}]}"""


async def test_a_file_of_the_rust_original_is_taken_over(home: Home) -> None:
    home.sessions.mkdir(mode=0o700)
    (home.sessions / "telegram_123.json").write_bytes(RUST)
    async with home.open() as manager:
        session = await manager.get("telegram", "123")
        assert [message.role.value for message in session.messages()] == ["user", "assistant", "tool_result"]
        await session.add_message(Message.user("on"))
    await home.check_sound()
    async with home.open() as manager:
        assert len((await manager.get("telegram", "123")).messages()) == 4
        assert manager.recovery.quarantined == []


async def test_a_crash_before_the_first_flush_does_not_estrange_a_file_from_elsewhere(home: Home) -> None:
    home.sessions.mkdir(mode=0o700)
    (home.sessions / "telegram_123.json").write_bytes(RUST.replace(b'"chat_id"', b'"colour":"red","chat_id"'))
    async with home.open():
        pass
    for _ in range(2):  # the store has it; the file is as it came
        (home.sessions / "telegram_123.json").write_bytes(RUST.replace(b'"chat_id"', b'"colour":"red","chat_id"'))
        async with home.open() as manager:
            session = await manager.get("telegram", "123")
            assert len(session.messages()) == 3
            assert manager.recovery.quarantined == []
            assert (await manager.check()).problems == []
        assert orjson.loads(home.files()["telegram_123.json"])["colour"] == "red"


async def test_a_raw_name_of_the_rust_original_becomes_the_canonical_one(home: Home) -> None:
    home.sessions.mkdir(mode=0o700)
    raw = RUST.replace(b"telegram_123", b"my_bot_a b").replace(b'"telegram"', b'"my_bot"').replace(b'"123"', b'"a b"')
    (home.sessions / "my_bot_a b.json").write_bytes(raw)
    async with home.open() as manager:
        session = await manager.get("my_bot", "a b")
        assert len(session.messages()) == 3
        canonical = session.session_id + ".json"
    assert list(home.files()) == [canonical]
    assert canonical != "my_bot_a b.json"


@pytest.mark.parametrize("chat_id", ["a b", "é"])  # the raw name sorts before and behind the canonical one
async def test_of_two_files_for_one_session_the_canonical_one_wins_and_the_other_is_kept(
    home: Home, chat_id: str
) -> None:
    home.store = "none:"
    await home.say("ours", chat_id=chat_id)
    [canonical] = home.files()
    raw = f"telegram_{chat_id}.json"
    other = RUST.replace(b"telegram_123", f"telegram_{chat_id}".encode()).replace(b'"123"', f'"{chat_id}"'.encode())
    (home.sessions / raw).write_bytes(other)
    async with home.open() as manager:
        assert texts(await manager.get("telegram", chat_id)) == ["ours"]
    assert list(home.files()) == [canonical]
    assert "another file" in home.quarantined()[raw]
    assert other in home.files("quarantine").values()


# --- doing it again --------------------------------------------------------------------------------------------------


async def make_a_mess(home: Home) -> None:
    """One session of each kind: behind, ahead, damaged, lost, foreign."""
    memory = MemoryStore()
    home.store = memory
    for number in range(5):
        await home.say("1", "2", chat_id=str(number))
    old = home.files()["telegram_0.json"]
    await home.say("3", chat_id="0")
    (home.sessions / "telegram_0.json").write_bytes(old)
    del memory._sessions["telegram_1"].entries[1:]
    (home.sessions / "telegram_2.json").write_bytes(b"{damaged")
    (home.sessions / "telegram_3.json").unlink()
    del memory._sessions["telegram_4"]
    (home.sessions / "telegram_123.json").write_bytes(RUST)


async def test_recovery_twice_gives_the_same_bytes(home: Home) -> None:
    await make_a_mess(home)
    async with home.open():
        pass
    first, evidence = home.files(), home.files("quarantine")
    async with home.open() as manager:
        assert manager.statistics().dirty == 0
    assert home.files() == first
    assert home.files("quarantine") == evidence
    await home.check_sound()


async def test_a_crash_right_after_recovery_changes_nothing_for_the_next_one(home: Home, tmp_path: Path) -> None:
    await make_a_mess(home)
    async with home.open() as manager:
        expected = {one.session_id: texts(await manager.find(one.session_id)) for one in await manager.list()}
        crashed = tmp_path / "crashed"
        shutil.copytree(home.workspace, crashed, ignore=shutil.ignore_patterns("crashed"))
    again = Home(crashed)
    again.store = home.store  # a memory store is what it was at the crash: closing only wrote snapshots
    for _ in range(2):
        async with again.open() as manager:
            found = {one.session_id: texts(await manager.find(one.session_id)) for one in await manager.list()}
            assert found == expected
    assert len(again.quarantined()) == 1
    await again.check_sound()


async def test_recovery_renews_nobody(home: Home) -> None:
    await make_a_mess(home)
    async with home.open() as manager:
        first = {one.session_id: one.last_accessed for one in await manager.list()}
    await home.clock.advance(86_400 * 10)
    async with home.open() as manager:
        assert {one.session_id: one.last_accessed for one in await manager.list()} == first
        assert all(one.last_accessed < home.clock.now() for one in await manager.list())


# --- the window ------------------------------------------------------------------------------------------------------


async def test_a_larger_window_on_disk_is_trimmed_by_units(home: Home) -> None:
    call = ToolCall("c", "t")
    async with home.open(window=100) as manager:
        session = await manager.get_or_create("telegram", "1")
        for number in range(30):
            session.append(Message.user(str(number)))
            session.append(Message.assistant("", (call,)))
            session.append(Message.tool_result(call, "r"))
    async with home.open(window=50) as manager:
        window = (await manager.get("telegram", "1")).messages()
        assert len(window) <= 50
        assert not window[0].is_tool_result
        assert manager.statistics().dirty == 0
    async with home.open(window=5) as manager:
        window = (await manager.get("telegram", "1")).messages()
        assert [message.role.value for message in window][-3:] == ["user", "assistant", "tool_result"]
        assert len(window) <= 5


async def test_more_messages_than_fit_are_read_from_the_store_a_page_at_a_time(home: Home) -> None:
    async with home.open() as manager:
        session = await manager.get_or_create("telegram", "1")
        for number in range(1300):
            session.append(Message.user(str(number)))
    shutil.rmtree(home.sessions)
    async with home.open() as manager:
        session = await manager.get("telegram", "1")
        assert texts(session) == [str(number) for number in range(1250, 1300)]
        assert session.last_sequence == 1300


# --- what a snapshot may say -----------------------------------------------------------------------------------------


async def test_a_snapshot_written_while_the_store_fails_is_never_ahead_and_never_empties_a_window(home: Home) -> None:
    with pytest.raises(StoreUnavailable):
        async with home.open(window=4) as manager:
            session = await manager.get_or_create("telegram", "1")
            for number in range(4):
                await session.add_message(Message.user(str(number)))
            session.update(title="title")
            await session.saved()
            await manager.flush()
            home.faults.fail()
            for number in range(4, 10):
                session.append(Message.user(str(number)))
                await manager.flush()
                written = orjson.loads(home.files()["telegram_1.json"])
                assert written["last_sequence"] == 5
                assert written["messages"]
    home.faults.heal()
    async with home.open(window=4) as manager:
        session = await manager.get("telegram", "1")
        entry = await session.add_message(Message.user("on"))
        transcript = [one async for one in read_transcript(manager, "telegram_1")]
        assert entry.parent_id == transcript[-2].id
        assert transcript[-2].sequence == 5
