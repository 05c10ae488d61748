"""An encrypted workspace: nothing in it can be read, wrong keys change nothing, damage costs what is damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson
import pytest

from miniclaw_sessions import Message
from miniclaw_sessions.core.persistence.marker import DamagedMarker
from miniclaw_sessions.core.persistence.whole_files import opened_file
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import ConfigError, KeyNeeded, NotEncrypted, SchemaTooNew, WrongKey
from tests.core.persistence.encrypted_homes import BOTH, NEW_KEY, OLD_KEY, SECRET, Home
from tests.sampled import sampled

pytestmark = pytest.mark.anyio


@pytest.fixture(params=sampled(["sqlite:", "jsonl:"], every=2))
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    return Home(tmp_path / "w", request.param)


@pytest.fixture
def jsonl_home(tmp_path: Path) -> Home:
    return Home(tmp_path / "w", "jsonl:")


@pytest.fixture
def sqlite_home(tmp_path: Path) -> Home:
    return Home(tmp_path / "w")


# --- nothing can be read ---------------------------------------------------------------------------------------------


async def test_no_file_of_the_workspace_shows_what_was_said(home: Home) -> None:
    await home.fill(OLD_KEY)
    assert home.showing() == []
    async with home.open(OLD_KEY) as manager:
        await home.say(manager, "live")
        assert home.showing() == []  # the -wal file, too
        await manager.flush()
    assert home.showing() == []
    assert {name.split("/")[0] for name in home.contents()} >= {"archive", "quarantine", "sessions", "encryption.json"}
    assert len((await home.said(OLD_KEY))["telegram_live"]) == 6


async def test_the_search_finds_everything_when_nothing_is_encrypted(home: Home) -> None:
    await home.fill(None)
    assert {name.split("/")[0] for name in home.showing()} >= {"archive", "quarantine", "sessions"}


async def test_without_a_store_the_session_files_are_encrypted_all_the_same(tmp_path: Path) -> None:
    home = Home(tmp_path / "w", "none:")
    async with home.open(OLD_KEY) as manager:
        await home.say(manager, 1)
    assert home.showing() == []
    assert isinstance(await home.refusal(NEW_KEY), WrongKey)
    assert len((await home.said(OLD_KEY))["telegram_1"]) == 4


async def test_an_archived_transcript_can_be_read_with_the_key(home: Home) -> None:
    await home.fill(OLD_KEY)
    lines = b"".join(opened_file(OLD_KEY, home.only("archive"))).splitlines()[1:]
    texts = [entry.message.text for entry in map(decode_entry, lines) if isinstance(entry, MessageEntry)]
    assert texts == [f"{SECRET} expired/{number}" for number in range(6)]
    with pytest.raises(WrongKey):
        list(opened_file(NEW_KEY, home.only("archive")))


# --- keys that do not go with it -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("keys", "error"), [(NEW_KEY, WrongKey), (None, KeyNeeded)])
async def test_a_wrong_key_stops_the_start_and_changes_not_one_byte(
    home: Home, keys: KeyRing | None, error: type[ConfigError]
) -> None:
    await home.fill(OLD_KEY)
    refusal = await home.refusal(keys)
    assert type(refusal) is error
    if keys is not None:
        assert OLD_KEY.ids[0] in str(refusal)
        assert keys.ids[0] in str(refusal)


@pytest.mark.parametrize("keys", [NEW_KEY, None])
async def test_the_same_after_a_crash_with_files_half_written(sqlite_home: Home, keys: KeyRing | None) -> None:
    async with sqlite_home.open(OLD_KEY) as manager:
        await sqlite_home.say(manager, 1)
        crashed = Home(sqlite_home.workspace.with_name("crashed"))
        shutil.copytree(sqlite_home.workspace, crashed.workspace)
    assert "sessions.db-wal" in crashed.contents()
    await crashed.refusal(keys)
    assert len((await crashed.said(OLD_KEY))["telegram_1"]) == 6


@pytest.mark.parametrize(("keys", "error"), [(NEW_KEY, WrongKey), (None, KeyNeeded)])
async def test_where_the_marker_is_lost_the_files_themselves_tell(
    home: Home, keys: KeyRing | None, error: type[ConfigError]
) -> None:
    await home.fill(OLD_KEY)
    marker = home.workspace / "encryption.json"
    told = marker.read_bytes()
    marker.unlink()
    assert type(await home.refusal(keys)) is error
    assert await home.said(OLD_KEY)
    assert marker.read_bytes() == told  # it is there again


async def test_a_damaged_or_newer_marker_stops_the_start(jsonl_home: Home) -> None:
    await jsonl_home.fill(OLD_KEY)
    marker = jsonl_home.workspace / "encryption.json"
    for content, error in ((b"", DamagedMarker), (b'{"version":1}', DamagedMarker), (b'{"version":2}', SchemaTooNew)):
        marker.write_bytes(content)
        assert type(await jsonl_home.refusal(OLD_KEY)) is error


async def test_a_key_for_a_workspace_that_is_not_encrypted_is_refused_with_what_to_do(home: Home) -> None:
    await home.fill(None)
    refusal = await home.refusal(OLD_KEY)
    assert isinstance(refusal, NotEncrypted)
    assert "miniclaw-sessions rekey" in str(refusal)
    assert await home.said(None)


async def test_a_file_that_somebody_put_there_unencrypted_is_not_believed(home: Home) -> None:
    await home.fill(OLD_KEY)
    fields = orjson.loads(b"".join(opened_file(OLD_KEY, home.file(1))))
    fields["messages"][0]["content"] = "I owe you a million."
    home.file(1).write_bytes(b" \n" + orjson.dumps(fields))
    refusal = await home.refusal(OLD_KEY)
    assert isinstance(refusal, NotEncrypted)
    assert "telegram_1.json" in str(refusal)


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 5, 41, 300, -1], ids=["magic", "key id", "checksum", "content", "tag"])
async def test_a_changed_byte_in_a_session_file_costs_nothing(jsonl_home: Home, place: int) -> None:
    await jsonl_home.fill(OLD_KEY)
    said = await jsonl_home.said(OLD_KEY)
    data = bytearray(jsonl_home.file(1).read_bytes())
    data[place] ^= 0x55
    jsonl_home.file(1).write_bytes(data)
    async with jsonl_home.open(OLD_KEY) as manager:
        (aside,) = manager.recovery.quarantined
        assert (jsonl_home.workspace / "quarantine" / aside).read_bytes() == data
        assert manager.recovery.rebuilt == 1
    assert await jsonl_home.said(OLD_KEY) == said


async def test_two_session_files_that_changed_places_are_both_noticed(jsonl_home: Home) -> None:
    await jsonl_home.fill(OLD_KEY)
    said = await jsonl_home.said(OLD_KEY)
    one, two = jsonl_home.file(1).read_bytes(), jsonl_home.file(2).read_bytes()
    jsonl_home.file(1).write_bytes(two)
    jsonl_home.file(2).write_bytes(one)
    async with jsonl_home.open(OLD_KEY) as manager:
        assert len(manager.recovery.quarantined) == 2
    assert await jsonl_home.said(OLD_KEY) == said


async def test_an_older_version_of_a_session_file_is_brought_up_from_the_store(home: Home) -> None:
    await home.fill(OLD_KEY)
    older = home.file(1).read_bytes()
    async with home.open(OLD_KEY) as manager:
        session = await manager.get_or_create("telegram", 1)
        await session.add_message(Message.user("later"))
    home.file(1).write_bytes(older)
    async with home.open(OLD_KEY) as manager:
        assert (await manager.get_or_create("telegram", 1)).messages()[-1].text == "later"
        assert manager.recovery.brought_up == 1


async def test_the_check_finds_what_does_not_open(jsonl_home: Home) -> None:
    await jsonl_home.fill(OLD_KEY)
    async with jsonl_home.open(OLD_KEY) as manager:
        jsonl_home.file(1).write_bytes(jsonl_home.file(2).read_bytes())
        (problem,) = (await manager.check()).problems
        assert "telegram_1.json: it is encrypted, and damaged" in problem


# --- keys that change ------------------------------------------------------------------------------------------------


async def test_a_new_first_key_writes_and_the_old_one_still_reads(jsonl_home: Home) -> None:
    await jsonl_home.fill(OLD_KEY)
    async with jsonl_home.open(BOTH) as manager:
        session = await manager.get_or_create("telegram", 1)
        await session.add_message(Message.user("with the new key"))
    assert NEW_KEY.is_current(jsonl_home.file(1).read_bytes())
    assert OLD_KEY.is_current(jsonl_home.file(2).read_bytes())
    assert isinstance(await jsonl_home.refusal(NEW_KEY), WrongKey)
    assert (await jsonl_home.said(BOTH))["telegram_1"][-1] == "with the new key"


async def test_the_file_of_another_program_gets_its_canonical_name_once_it_is_encrypted(sqlite_home: Home) -> None:
    async with sqlite_home.open(None) as manager:
        await sqlite_home.say(manager, 1)
    fields = {"channel": "a b", "chat_id": "1", "messages": [{"role": "user", "content": "from elsewhere"}]}
    raw = sqlite_home.workspace / "sessions" / "a b_1.json"
    raw.write_bytes(orjson.dumps(fields))
    await sqlite_home.rekey(OLD_KEY)
    async with sqlite_home.open(OLD_KEY) as manager:
        assert (await manager.get_or_create("a b", "1")).messages()[0].text == "from elsewhere"
        assert manager.recovery.quarantined == []
    assert not raw.exists()
