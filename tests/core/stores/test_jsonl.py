"""What only files can get wrong: torn ends, damaged lines, foreign files, failing disks, other programs."""

# ruff: noqa: ASYNC240 - nothing else runs on the loop while a test looks at its files

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from structlog.testing import capture_logs

from miniclaw_sessions import disk
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.manager.reading import read_transcript
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.stores.base import Append, StoredEntry, StoredHead, is_damaged
from miniclaw_sessions.core.stores.jsonl import descriptors, directory
from miniclaw_sessions.core.stores.jsonl import file as transcript_file
from miniclaw_sessions.core.stores.jsonl.file import Stream
from miniclaw_sessions.core.stores.jsonl.lines import lines_of
from miniclaw_sessions.core.stores.jsonl.reader import JSONLReader
from miniclaw_sessions.core.stores.jsonl.store import JSONLStore
from miniclaw_sessions.core.stores.reading import read_all
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.errors import (
    ConfigError,
    DirectoryInUse,
    SchemaTooNew,
    SessionUnavailable,
    StoreConflict,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from miniclaw_sessions.testing import sample_entries, sample_head
from tests.core.stores.durable import append
from tests.system_errors import failing

pytestmark = pytest.mark.anyio

NAME = "telegram_1.jsonl"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "transcripts"


async def filled(path: Path, *appends: tuple[int, int], chat_id: int = 1) -> Path:
    """A closed store with one session, whose entries were appended in these groups; the session's file."""
    async with JSONLStore(path) as store:
        for first, last in appends:
            assert await append(store, chat_id, first, last) is None
    return path / f"telegram_{chat_id}.jsonl"


async def found(path: Path, session_id: str = "telegram_1") -> list[StoredEntry]:
    """What a session's transcript holds when the store is opened anew."""
    async with JSONLStore(path) as store:
        return await store.read(session_id)


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(directory)): file.read_bytes()
        for file in directory.rglob("*")
        if file.is_file() and not file.is_symlink() and file.name != ".lock"
    }


def torn_pieces(path: Path) -> list[bytes]:
    return [data for name, data in contents(path).items() if name.startswith("torn/")]


def modes(path: Path) -> dict[str, str]:
    return {str(file.relative_to(path.parent)): oct(stat.S_IMODE(file.stat().st_mode)) for file in path.rglob("*")}


# --- the files -------------------------------------------------------------------------------------------------------


async def test_a_file_is_a_header_and_the_entries_as_they_were_given(path: Path) -> None:
    file = await filled(path, (1, 1), (2, 2))
    header, *lines = file.read_bytes().split(b"\n")
    said = json.loads(header)
    assert len(said.pop("crc32")) == 8
    assert said == {
        "type": "session",
        "id": "telegram_1",
        "version": 1,
        "timestamp": "2026-01-01T12:00:00.123456Z",
        "channel": "telegram",
        "chat_id": "1",
        "incarnation": "first",
    }
    assert lines == [*(lines_of([entry])[:-1] for entry in sample_entries(1, 2)), b""]
    for line, entry in zip(lines, sample_entries(1, 2), strict=False):
        assert {**json.loads(entry.encoded), "crc32": line[-10:-2].decode()} == json.loads(line)


async def test_lines_that_were_appended_together_are_json_lines_too(path: Path) -> None:
    file = await filled(path, (1, 3), (4, 4), (5, 6))
    lines = file.read_bytes().splitlines()[1:]
    assert [line.endswith(b" ") for line in lines] == [True, True, False, False, True, False]
    assert [json.loads(line)["sequence"] for line in lines] == [1, 2, 3, 4, 5, 6]


async def test_an_editor_that_strips_spaces_at_the_ends_of_lines_does_no_harm(path: Path) -> None:
    file = await filled(path, (1, 3), (4, 6))
    file.write_bytes(b"\n".join(line.rstrip() for line in file.read_bytes().split(b"\n")))
    assert await found(path) == sample_entries(1, 6)
    assert torn_pieces(path) == []


@pytest.mark.parametrize("umask", [0, 0o777])
async def test_files_are_0600_and_directories_0700_whatever_the_umask(umask: int, path: Path) -> None:
    before = os.umask(umask)
    try:
        file = await filled(path, (1, 2), (3, 3))
        with file.open("ab") as torn:
            torn.write(b'{"torn')
        assert await found(path) == sample_entries(1, 3)
    finally:
        os.umask(before)
    found_modes = modes(path)
    (piece,) = (name for name in found_modes if name.endswith(f"-{NAME}"))
    assert found_modes == {
        "transcripts/.lock": "0o600",
        f"transcripts/{NAME}": "0o600",
        "transcripts/torn": "0o700",
        piece: "0o600",
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


async def test_two_stores_cannot_have_one_directory_open(path: Path) -> None:
    async with JSONLStore(path):
        with pytest.raises(DirectoryInUse):
            async with JSONLStore(path):
                pass
    await filled(path, (1, 1))


async def test_somebodys_other_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match="neither empty"):
        async with JSONLStore(tmp_path):
            pass
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]


async def test_a_backup_without_the_lock_file_is_opened(path: Path) -> None:
    file = await filled(path, (1, 3))
    restored = path.with_name("restored")
    restored.mkdir()
    (restored / NAME).write_bytes(file.read_bytes())
    assert await found(restored) == sample_entries(1, 3)


async def test_what_a_crash_left_half_made_is_removed(path: Path) -> None:
    await filled(path, (1, 1))
    with Directory(path) as directory:
        name, fd = directory.open_temporary()
        os.close(fd)
    await filled(path, (2, 2))
    assert not (path / name).exists()


def open_files() -> list[str]:
    names = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own descriptor
            names.append(str(link.readlink()))
    return names


async def test_few_files_are_open_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "MAX_DESCRIPTORS", 4)
    async with JSONLStore(path) as store:
        for sequence in (1, 2, 3):
            appends = [Append(sample_head(chat_id), sample_entries(sequence, sequence)) for chat_id in range(30)]
            assert await store.append(appends) == [None] * 30
        assert len([name for name in open_files() if name.startswith(str(path)) and name.endswith(".jsonl")]) == 4
        assert await store.check() == []


# --- torn ends -------------------------------------------------------------------------------------------------------


async def assert_goes_on(path: Path, whole: bytes, kept: int, entries: int) -> None:
    """The file holds so many bytes and entries, what followed them is set aside, and appending goes on from there."""
    torn = (path / NAME).read_bytes()[kept:]
    async with JSONLStore(path) as store:
        assert await store.read("telegram_1") == sample_entries(1, entries)
        assert (path / NAME).read_bytes() == whole[:kept]
        assert b"".join(torn_pieces(path)) == torn
        assert await append(store, 1, entries + 1, entries + 2) is None
    assert await found(path) == sample_entries(1, entries + 2)


def copied(path: Path, data: bytes) -> Path:
    path.mkdir()
    (path / NAME).write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("last", "stride"), [((3, 3), 5), ((3, 5), 11), pytest.param((3, 5), 1, marks=pytest.mark.proof)]
)
async def test_an_append_that_was_cut_off_anywhere_is_not_there_and_nothing_else_is_lost(
    last: tuple[int, int], stride: int, tmp_path: Path
) -> None:
    file = await filled(tmp_path / "original", (1, 2))
    before = len(file.read_bytes())
    await filled(tmp_path / "original", last)
    whole = file.read_bytes()
    near_ends = {end + more for end, byte in enumerate(whole) if byte == 10 for more in (-1, 0, 1)}
    for end in range(before, len(whole)):
        if end % stride == 0 or end in near_ends:
            await assert_goes_on(copied(tmp_path / str(end), whole[:end]), whole, before, 2)
    await assert_goes_on(copied(tmp_path / "whole", whole), whole, len(whole), last[1])


async def test_a_session_that_was_cut_off_behind_its_header_is_there_and_empty(path: Path) -> None:
    file = await filled(path, (1, 2))
    whole = file.read_bytes()
    header = whole.index(b"\n") + 1
    file.write_bytes(whole[: header + 40])
    await assert_goes_on(path, whole, header, 0)


@pytest.mark.parametrize("last", [(3, 3), (3, 6)])
async def test_holes_of_nuls_in_the_last_append_take_that_append_and_no_other(
    last: tuple[int, int], tmp_path: Path
) -> None:
    file = await filled(tmp_path / "original", (1, 1), (2, 2))
    before = len(file.read_bytes())
    await filled(tmp_path / "original", last)
    whole = file.read_bytes()
    for begin in range(before, len(whole), 23):
        for end in (begin + 1, begin + 170, len(whole), len(whole) + 5000):  # within a line, across lines, to the end
            damaged = whole[:begin] + bytes(end - begin) + whole[end:]
            await assert_goes_on(copied(tmp_path / f"{begin}-{end}", damaged), whole, before, 2)


async def test_nuls_behind_a_whole_append_are_cut_off(path: Path) -> None:
    file = await filled(path, (1, 2))
    whole = file.read_bytes()
    file.write_bytes(whole + bytes(100_000))
    await assert_goes_on(path, whole, len(whole), 2)


async def test_last_lines_that_nobody_can_read_are_set_aside_and_logged(path: Path) -> None:
    file = await filled(path, (1, 2), (3, 3))
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"id":\n\xff\xfe\n')
    with capture_logs() as logs:
        await assert_goes_on(path, whole, len(whole), 3)
    (record,) = logs
    assert (record["action"], record["session_id"]) == ("store.torn", "telegram_1")
    assert (path / "torn" / record["file"]).read_bytes() == b'{"id":\n\xff\xfe\n'


async def test_pieces_that_were_set_aside_never_replace_each_other(path: Path) -> None:
    file = await filled(path, (1, 1))
    for number in range(3):
        with file.open("ab") as torn:
            torn.write(b"torn %d" % number)
        assert await found(path) == sample_entries(1, 1)
    assert sorted(torn_pieces(path)) == [b"torn 0", b"torn 1", b"torn 2"]


async def test_a_torn_line_of_megabytes_is_set_aside_whole(path: Path) -> None:
    file = await filled(path, (1, 1))
    whole, torn = file.read_bytes(), b'{"' + b"x" * 3_000_001
    file.write_bytes(whole + torn)
    await assert_goes_on(path, whole, len(whole), 1)
    assert torn_pieces(path) == [torn]


async def test_a_hole_of_gigabytes_is_not_searched_for_its_beginning(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript_file, "LONGEST_LINE", 2**20)
    file = await filled(path, (1, 1))
    os.truncate(file, 10 * 2**30)
    before = bytes_read()
    store = JSONLStore(path)
    with pytest.raises(StoreCorrupt, match="longer than any"):
        async with store:
            pass
    assert bytes_read() - before < 2**22
    assert store.files == [file]


async def test_what_cannot_be_set_aside_stays_and_nothing_is_appended_to_it(path: Path) -> None:
    file = await filled(path, (1, 2))
    with file.open("ab") as torn:
        torn.write(b"torn")
    (path / "torn").touch()  # where the directory should be
    async with JSONLStore(path) as store:
        assert await store.read("telegram_1") == await store.read_newest("telegram_1", 5) == sample_entries(1, 2)
        with pytest.raises(StoreUnavailable):
            await append(store, 1, 3, 3)
        assert file.read_bytes().endswith(b"\ntorn")
        (path / "torn").unlink()
        assert await append(store, 1, 3, 3) is None
        assert await store.read("telegram_1") == sample_entries(1, 3)
    assert torn_pieces(path) == [b"torn"]
    assert await found(path) == sample_entries(1, 3)


async def test_a_deleted_session_takes_its_own_pieces_along(path: Path) -> None:
    for name in (1, 11):
        file = await filled(path, (1, 1), chat_id=name)
        with file.open("ab") as torn:
            torn.write(b"torn %d" % name)
    async with JSONLStore(path) as store:
        assert len(torn_pieces(path)) == 2
        assert await store.delete("telegram_1") is True
        assert torn_pieces(path) == [b"torn 11"]
    assert contents(path).keys() == {
        "telegram_11.jsonl",
        *(f"torn/{piece.name}" for piece in (path / "torn").iterdir()),
    }


# --- damage in the middle --------------------------------------------------------------------------------------------


def replaced(line: bytes) -> dict[str, bytes]:
    return {
        "garbage": b"\x00\xffgarbage",
        "cut": line[: len(line) // 2],
        "NULs": bytes(len(line)),
        "another number": line.replace(b'"sequence":3', b'"sequence":9'),
        "a smaller number": line.replace(b'"sequence":3', b'"sequence":1'),
        "not UTF-8": line.replace(b"hello", b"h\xffllo"),
        "no entry": b'{"id":"entry-3","sequence":3}',
        "a list": b"[3]",
    }


@pytest.mark.parametrize("how", replaced(b"").keys())
@pytest.mark.parametrize("appends", [((1, 1), (2, 2), (3, 3), (4, 4), (5, 5)), ((1, 4), (5, 5))])
async def test_a_damaged_line_in_the_middle_costs_only_itself(
    how: str, appends: Sequence[tuple[int, int]], path: Path
) -> None:
    file = await filled(path, *appends)
    lines = file.read_bytes().split(b"\n")
    lines[3] = replaced(lines[3])[how]
    file.write_bytes(b"\n".join(lines))
    before = contents(path)
    expected = sample_entries(1, 5)
    async with JSONLStore(path) as store:
        read = await store.read("telegram_1")
        assert [entry.sequence for entry in read] == [1, 2, 3, 4, 5]
        assert read[:2] + read[3:] == expected[:2] + expected[3:]
        assert is_damaged(read[2].encoded) or how == "no entry"  # which is somebody's, without a checksum
        for after in range(6):
            assert await store.read("telegram_1", after=after, limit=2) == read[after : after + 2]
            assert await store.read_newest("telegram_1", after) == read[5 - after :]
        assert len([text for text in await store.check() if "telegram_1" in text]) == 1
        assert contents(path) == before
        assert await append(store, 1, 6, 6) is None
        assert await store.read("telegram_1") == [*read, *sample_entries(6, 6)]


async def test_lines_too_many_cost_nothing_but_are_reported(path: Path) -> None:
    file = await filled(path, (1, 1), (2, 2), (3, 3))
    header, first, second, third, _ = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([header, b"", first, b"junk", second, second, b"\r", third + b"\r", b""]))
    async with JSONLStore(path) as store:
        assert await store.read("telegram_1") == sample_entries(1, 3)
        assert await store.read_newest("telegram_1", 2) == sample_entries(2, 3)
        (problem,) = await store.check()
    assert "2 damaged lines have no place" in problem


async def test_a_conversation_goes_on_past_a_damaged_line(tmp_path: Path) -> None:
    settings = SessionSettings(store="jsonl:")
    async with SessionManager(tmp_path / "workspace", settings=settings) as manager:
        session = await manager.get_or_create("telegram", 1)
        for number in range(5):
            await session.add_message(Message.user(f"message {number}"))
    file = tmp_path / "workspace" / "transcripts" / NAME
    file.write_bytes(file.read_bytes().replace(b"message 2", b"mess\x00ge 2"))
    (tmp_path / "workspace" / "sessions" / "telegram_1.json").unlink()
    async with SessionManager(tmp_path / "workspace", settings=settings) as manager:
        session = await manager.get("telegram", 1)
        assert [message.text for message in session.messages()][-2:] == ["message 3", "message 4"]
        assert not (await manager.check()).sound


# --- the first line --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda header: header[:40] + b"\x00" * 20 + header[60:],
        lambda header: header[:0],
        lambda header: header[:-10],
        lambda header: bytes(len(header)),
        lambda header: header.replace(b'"chat_id":"1"', b'"chat_id":"2"'),
        lambda header: header.replace(b'"version":1', b'"version":"one"'),
        lambda header: header.replace(b'"session"', b'"sessjon"'),
    ],
)
async def test_without_its_first_line_a_session_keeps_its_name_and_every_entry(
    damage: Callable[[bytes], bytes], path: Path
) -> None:
    file = await filled(path, (1, 2), (3, 3))
    header, rest = file.read_bytes().split(b"\n", 1)
    file.write_bytes(damage(header) + b"\n" + rest)
    before = contents(path)
    heads = []
    for _ in range(2):
        with capture_logs() as logs:
            async with JSONLStore(path) as store:
                heads.append(await store.head("telegram_1"))
                assert await store.read("telegram_1") == sample_entries(1, 3)
                assert any("first line" in problem for problem in await store.check())
                (outcome,) = await store.append([Append(sample_head(), sample_entries(4, 4))])
                assert isinstance(outcome, StoreConflict), "nobody knows that it is the incarnation that it was"
        assert [record["action"] for record in logs] == ["store.header_lost"]
    assert contents(path) == before
    first, second = heads
    assert first is not None
    assert first == second
    assert first.head.key == sample_head().key
    assert first.head.incarnation != "first"
    assert first.head.created_at == decode_entry(sample_entries(1, 1)[0].encoded).timestamp
    async with JSONLStore(path) as store:
        assert await store.append([Append(first.head, sample_entries(4, 4))]) == [None]
    assert await found(path) == sample_entries(1, 4)


async def test_a_file_that_lost_only_its_first_line_begins_with_an_entry(path: Path) -> None:
    file = await filled(path, (1, 2))
    file.write_bytes(file.read_bytes().split(b"\n", 1)[1])
    assert await found(path) == sample_entries(1, 2)


async def test_a_conversation_whose_header_is_lost_goes_on_from_its_transcript(tmp_path: Path) -> None:
    settings, workspace = SessionSettings(store="jsonl:"), tmp_path / "workspace"
    async with SessionManager(workspace, settings=settings) as manager:
        session = await manager.get_or_create("telegram", 1)
        for number in range(70):
            await session.add_message(Message.user(f"message {number}"))
    file = workspace / "transcripts" / NAME
    file.write_bytes(b"#" + file.read_bytes())
    async with SessionManager(workspace, settings=settings) as manager:
        session = await manager.get("telegram", 1)
        assert len(session.messages()) == settings.window
        await session.add_message(Message.user("and on"))
        assert len([entry async for entry in read_transcript(manager, "telegram_1")]) == 71


DAMAGED = {
    "empty": b"",
    "a text": b"hello world",
    "NULs": bytes(5000),
    "no entries": b"#damaged header\n",
    "foreign lines": b'{"a": 1}\n{"id": "x", "sequence": 1}\n',
    "JSON": b'{"type":"message"}\n',
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
async def test_a_file_of_which_nothing_is_known_is_never_taken_for_a_new_session(content: bytes, path: Path) -> None:
    await filled(path, (1, 1), chat_id=2)
    (path / NAME).write_bytes(content)
    before = contents(path)
    store = JSONLStore(path)
    with pytest.raises(StoreCorrupt, match=NAME):
        async with store:
            pass
    assert store.files == [path / NAME]
    assert contents(path) == before
    (path / NAME).rename(path / "aside")
    assert store.files == []
    assert await found(path, "telegram_2") == sample_entries(1, 1)


async def test_a_shortened_name_does_not_tell_whose_a_damaged_file_is(path: Path) -> None:
    head = sample_head("x" * 300)
    async with JSONLStore(path) as store:
        assert await store.append([Append(head, sample_entries(1, 2))]) == [None]
    file = path / f"{head.session_id}.jsonl"
    file.write_bytes(b"#" + file.read_bytes())
    with pytest.raises(StoreCorrupt, match="does not identify its session"):
        async with JSONLStore(path):
            pass


async def test_only_the_damaged_file_is_set_aside_and_its_conversation_goes_on_from_its_snapshot(
    tmp_path: Path,
) -> None:
    settings, workspace = SessionSettings(store="jsonl:"), tmp_path / "workspace"
    async with SessionManager(workspace, settings=settings) as manager:
        for chat_id in (1, 2):
            session = await manager.get_or_create("telegram", chat_id)
            await session.add_message(Message.user(f"hello {chat_id}"))
    damaged = workspace / "transcripts" / NAME
    damaged.write_bytes(b"no transcript any more")
    async with SessionManager(workspace, settings=settings) as manager:
        for chat_id in (1, 2):
            session = await manager.get("telegram", chat_id)
            assert [message.text for message in session.messages()] == [f"hello {chat_id}"]
            await session.add_message(Message.user("and on"))
        assert (await manager.check()).problems == []
    kept = [file.read_bytes() for file in (workspace / "quarantine").iterdir()]
    assert b"no transcript any more" in kept


async def test_a_newer_version_is_refused_and_left_byte_for_byte(path: Path) -> None:
    file = await filled(path, (1, 2))
    await filled(path, (1, 2), chat_id=2)
    others = file.with_name("telegram_2.jsonl")
    for one in (file, others):
        one.write_bytes(newer(one.read_bytes()) + b"torn?")
    before = contents(path)
    with pytest.raises(SchemaTooNew, match=rf"{NAME}.*format 2"):
        async with JSONLStore(path):
            pass
    assert contents(path) == before


def newer(content: bytes) -> bytes:
    """A file as a newer version writes it, as far as this one can tell."""
    header, rest = content.split(b"\n", 1)
    header = header[: header.index(b',"crc32"')] + b"}"
    return lines_of_header(header.replace(b'"version":1', b'"version":2')) + rest


def lines_of_header(header: bytes) -> bytes:
    return header[:-1] + b',"crc32":"%08x"}\n' % zlib.crc32(header)


async def test_one_file_of_a_newer_version_is_refused_alone(path: Path) -> None:
    file = await filled(path, (1, 2))
    await filled(path, (1, 2), chat_id=2)
    file.write_bytes(newer(file.read_bytes()))
    before = file.read_bytes()
    async with JSONLStore(path) as store:
        with pytest.raises(StoreCorrupt, match="newer version"):
            await store.read("telegram_1")
        assert await store.read("telegram_2") == sample_entries(1, 2)
        assert await append(store, 2, 3, 3) is None
        assert isinstance(await append(store, 1, 3, 3), StoreCorrupt)
    assert file.read_bytes() == before


async def test_no_flipped_bit_in_a_header_stops_the_start_or_loses_an_entry(path: Path) -> None:
    file = await filled(path, (1, 2))
    await filled(path, (1, 2), chat_id=2)
    sound = file.read_bytes()
    for bit in range(0, 8 * (sound.index(b"\n") + 1), 11):
        flipped = bytearray(sound)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        async with JSONLStore(path) as store:
            assert await store.read("telegram_2") == sample_entries(1, 2)
            read = await store.read("telegram_1")
            assert read[-1:] == sample_entries(2, 2)  # where the first line has lost its end, it takes the next along
            noticed = await store.check()
            assert len(read) == 2 or noticed
            assert noticed or (await store.head("telegram_1")) == StoredHead(sample_head(), 2)


@pytest.mark.parametrize("which", [1, 2, 3])
async def test_a_flipped_bit_in_a_line_costs_that_line_and_is_mended(which: int, path: Path) -> None:
    file = await filled(path, (1, 1), (2, 3))
    sound = file.read_bytes()
    for bit in range(8 * len(b"hello")):
        at = [n for n in range(len(sound)) if sound.startswith(b"hello", n)][which - 1]
        flipped = bytearray(sound)
        flipped[at + bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        async with JSONLStore(path) as store:
            read = await store.read("telegram_1")
            assert [is_damaged(entry.encoded) for entry in read] == [n == which for n in (1, 2, 3)]
            assert len(await store.check()) == 1
            forged = sample_entries(1, 3, text="forged")
            forged[which - 1] = sample_entries(1, 3)[which - 1]
            assert await store.mend("telegram_1", forged) == 1
            assert await store.read("telegram_1") == sample_entries(1, 3)
            assert await append(store, 1, 4, 4) is None
            assert await store.check() == []
        file.write_bytes(file.read_bytes()[: len(sound)])
        assert file.read_bytes() == sound


async def test_what_crashes_left_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "MAX_TORN_FILES", 3)
    file = await filled(path, (1, 2))
    for number in range(6):
        with file.open("ab") as torn:
            torn.write(b"torn %d" % number)
        async with JSONLStore(path):
            pass
    assert sorted(piece.read_bytes() for piece in (path / "torn").iterdir()) == [b"torn 3", b"torn 4", b"torn 5"]


async def test_where_no_more_files_may_be_opened_others_are_closed_for_them(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with JSONLStore(path) as store:
        for chat_id in range(20):
            assert await append(store, chat_id, 1, 1) is None
            assert await append(store, chat_id, 2, 2) is None
        open_file = Directory.open_file
        closed: list[int] = []
        close = os.close

        def crowded(self: Directory, name: str, flags: int = os.O_RDONLY) -> int:
            if flags & os.O_APPEND and len(closed) < 5:
                raise OSError(errno.EMFILE, "Too many open files")
            return open_file(self, name, flags)

        monkeypatch.setattr(Directory, "open_file", crowded)

        def noted(fd: int) -> None:
            closed.append(fd)
            close(fd)

        monkeypatch.setattr(os, "close", noted)
        store_outcome = await append(store, 21, 1, 1), await append(store, 21, 2, 2)
        assert store_outcome == (None, None)
        assert len(closed) >= 5


async def test_a_directory_that_was_replaced_is_noticed(path: Path) -> None:
    async with JSONLStore(path) as store:
        assert await append(store, 1, 1, 1) is None
        await store.still_there()
        path.rename(path.with_name("moved"))
        with pytest.raises(StoreUnavailable, match="deleted or replaced"):
            await store.still_there()


# --- what is not ours ------------------------------------------------------------------------------------------------

DOCUMENT_003 = b"""\
{"type":"session","id":"5f3e","version":1,"timestamp":"2026-01-01T10:00:00Z"}
{"type":"message","id":"a1","parent_id":null,"timestamp":"2026-01-01T10:00:01Z","message":{"role":"user","content":"hi"}}
"""
PI = DOCUMENT_003.replace(b'"version":1', b'"version":3,"cwd":"/"').replace(b"parent_id", b"parentId")


def plant_link(file: Path) -> None:
    file.symlink_to(file.parent / "telegram_2.jsonl")


def plant_another_sessions_file(file: Path) -> None:
    file.write_bytes(file.with_name("telegram_2.jsonl").read_bytes())


PLANTS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a directory": os.mkdir,
    "a link": plant_link,
    "a copy of another session's file": plant_another_sessions_file,
    "document 003": lambda file: file.write_bytes(DOCUMENT_003),
    "pi": lambda file: file.write_bytes(PI),
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS.keys())
async def test_what_is_not_ours_is_left_alone_and_its_name_is_refused(
    plant: Callable[[Path], object], path: Path
) -> None:
    await filled(path, (1, 2), chat_id=2)
    plant(path / NAME)
    before = contents(path)
    with capture_logs() as logs:
        async with JSONLStore(path) as store:
            assert [stored.head.session_id async for stored in store.heads()] == ["telegram_2"]
            assert await append(store, 2, 3, 3) is None
            outcome = await append(store, 1, 1, 1)
            assert isinstance(outcome, StoreCorrupt)
            assert NAME in str(outcome)
            for refused in (store.head, store.read, store.delete):
                with pytest.raises(StoreCorrupt, match=NAME):
                    await refused("telegram_1")
            (problem,) = await store.check()
            assert "telegram_1" in problem
    assert logs == [
        {
            "action": "store.ignored",
            "event": "not the files of sessions of ours; left alone",
            "files": [NAME],
            "log_level": "warning",
        }
    ]
    after = contents(path)
    assert after.pop("telegram_2.jsonl").startswith(before.pop("telegram_2.jsonl"))
    assert after == before
    assert len(await found(path, "telegram_2")) == 3


async def test_files_that_no_session_could_have_are_ignored(path: Path) -> None:
    await filled(path, (1, 1), chat_id=2)
    for name in ("5f3e.jsonl", "telegram_1.jsonl.bak", "notes", ".hidden_1.jsonl", "a b_1.jsonl"):
        (path / name).write_bytes(DOCUMENT_003)
    before = contents(path)
    async with JSONLStore(path) as store:
        assert [stored.head.session_id async for stored in store.heads()] == ["telegram_2"]
        assert await store.check() == []
        assert await append(store, 1, 1, 1) is None
    after = contents(path)
    del after[NAME]
    assert after == before


async def test_a_name_that_could_leave_the_directory_is_refused(path: Path) -> None:
    for name in ("../telegram_1", "/tmp/a_b", "", "a_b/c", ".a_b"):
        head = sample_head().__class__(name, sample_head().key, "first", sample_head().created_at)
        async with JSONLStore(path) as store:
            (outcome,) = await store.append([Append(head, sample_entries(1, 1))])
            assert isinstance(outcome, StoreError)
            assert await store.read(name) == []
            assert await store.delete(name) is False
    assert contents(path.parent) == {}


# --- a failing disk --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sessions", [1, 3, disk.SYNC_ONE_BY_ONE + 5])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_after_a_failed_sync_nothing_is_acknowledged_and_the_descriptor_is_never_used_again(
    sessions: int, number: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with JSONLStore(path) as store:
        ids = range(1, sessions + 1)
        for first, last in ((1, 2), (3, 3)):
            assert (
                await store.append([Append(sample_head(n), sample_entries(first, last)) for n in ids])
                == [None] * sessions
            )
        before = contents(path)
        more = [Append(sample_head(chat_id), sample_entries(4, 5)) for chat_id in ids]
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", failing(number))
            patch.setattr(Directory, "_sync_file_system", failing(number))
            for _ in range(2):
                with pytest.raises(StoreFull if number == errno.ENOSPC else StoreUnavailable) as caught:
                    await store.append(more)
                assert isinstance(caught.value, StoreFull) is (number == errno.ENOSPC)
                assert not [name for name in open_files() if name.startswith(str(path)) and name.endswith(".jsonl")]
                assert contents(path) == before
                assert await store.read("telegram_1") == sample_entries(1, 3)
        assert await store.append(more) == [None] * sessions
        assert await store.check() == []
    assert await found(path) == sample_entries(1, 5)
    assert torn_pieces(path) == [], "what we could not write is no evidence of anything"


async def test_what_could_not_be_taken_back_is_taken_back_before_the_next_append(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await filled(path, (1, 3))
    whole = file.read_bytes()
    async with JSONLStore(path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", failing(errno.EIO))
            patch.setattr(os, "ftruncate", failing(errno.EROFS))
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    await append(store, 1, 4, 6)
            assert len(file.read_bytes()) > len(whole)
            assert await store.read("telegram_1") == await store.read_newest("telegram_1", 9) == sample_entries(1, 3)
            assert await store.head("telegram_1") == StoredHead(sample_head(), 3)
        assert await append(store, 1, 4, 4, text="another") is None
        expected = [*sample_entries(1, 3), *sample_entries(4, 4, text="another")]
        assert await store.read("telegram_1") == expected
    assert await found(path) == expected


async def test_a_write_that_fails_half_way_leaves_nothing_of_itself(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await filled(path, (1, 1))
    whole = file.read_bytes()
    write = os.write

    def write_some(fd: int, data: bytes) -> int:
        if len(data) < 60:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, bytes(data[:50]))

    async with JSONLStore(path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write_some)
            for _ in range(2):
                with pytest.raises(StoreFull, match="free space"):
                    await append(store, 1, 2, 4)
                assert file.read_bytes() == whole
        assert await append(store, 1, 2, 4) is None
    assert await found(path) == sample_entries(1, 4)


async def test_one_file_that_cannot_be_written_holds_no_other_session_up(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with JSONLStore(path) as store:
        assert await append(store, 1, 1, 1) is None
        assert await append(store, 2, 1, 1) is None
        appends = [Append(sample_head(n), sample_entries(first, 3)) for n, first in ((1, 2), (2, 2), (3, 1))]
        written: list[int] = []
        fdatasync = os.fdatasync

        def fail_second(fd: int) -> None:
            written.append(fd)
            if len(written) == 2:
                raise OSError(errno.EIO, "Input/output error")
            fdatasync(fd)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail_second)
            outcomes = await store.append(appends)
        assert [type(outcome) for outcome in outcomes] == [type(None), StoreUnavailable, type(None)]
        assert "telegram_2" in str(outcomes[1])
        assert [(await store.read(f"telegram_{n}"))[-1].sequence for n in (1, 2, 3)] == [3, 1, 3]
        assert await store.append(appends) == [None] * 3
        assert [len(await store.read(f"telegram_{n}")) for n in (1, 2, 3)] == [3, 3, 3]


async def test_a_new_session_whose_name_could_not_be_made_safe_is_not_acknowledged_until_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with JSONLStore(path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(Directory, "sync", failing(errno.EIO))
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    await append(store, 1, 1, 2)
                assert await store.head("telegram_1") is None
        assert await append(store, 1, 1, 2) is None
        assert await append(store, 1, 3, 3) is None
        assert await store.check() == []
    assert await found(path) == sample_entries(1, 3)


@pytest.mark.parametrize("call", ["unlink", "sync"])
async def test_a_deletion_that_failed_can_be_tried_again(
    call: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(path, (1, 2))
    async with JSONLStore(path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", failing(errno.EIO)) if call == "unlink" else patch.setattr(
                Directory, "sync", failing(errno.EIO)
            )
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    await store.delete("telegram_1")
            assert len(await store.read("telegram_1")) == (2 if call == "unlink" else 0)
        assert await store.delete("telegram_1") is (call == "unlink")
        assert await store.head("telegram_1") is None
        assert await append(store, 1, 1, 1) is None
    assert await found(path) == sample_entries(1, 1)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE])
async def test_a_file_that_cannot_be_read_stops_the_opening_because_it_is_not_absent(
    number: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(path, (1, 1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", failing(number))
        with pytest.raises(StoreUnavailable, match="cannot open"):
            async with JSONLStore(path):
                pass
    assert await found(path) == sample_entries(1, 1)


# --- other programs --------------------------------------------------------------------------------------------------


LINE = sample_entries(3, 3)[0].encoded + b"\n"


@pytest.mark.parametrize(
    "more", [LINE, LINE + b'{"torn', LINE[:-1]], ids=["a line", "a line and a torn one", "a torn line"]
)
@pytest.mark.parametrize("replaced_by_another", [False, True])
async def test_what_another_program_did_to_a_file_is_noticed_before_the_next_append(
    more: bytes, replaced_by_another: bool, path: Path
) -> None:
    async with JSONLStore(path) as store:
        assert await append(store, 1, 1, 2) is None
        assert await append(store, 1, 2, 2) is None
        if replaced_by_another:
            (path / "new").write_bytes((path / NAME).read_bytes() + more)
            (path / "new").rename(path / NAME)
        else:
            with (path / NAME).open("ab") as file:
                file.write(more)
        with capture_logs() as logs:
            (outcome,) = await store.append([Append(sample_head(), sample_entries(3, 3, prefix="other"))])
        assert isinstance(outcome, StoreConflict) is more.startswith(LINE)
        assert logs[0]["action"] == "store.changed"
        entries = [*sample_entries(1, 2), *sample_entries(3, 3, prefix="entry" if outcome else "other")]
        assert await store.read("telegram_1") == entries
    assert await found(path) == entries
    assert torn_pieces(path) == ([] if more == LINE else [more.removeprefix(LINE)])


@pytest.mark.parametrize("how", ["removed", "moved"])
async def test_nothing_is_acknowledged_into_a_file_that_is_no_longer_there(how: str, path: Path) -> None:
    async with JSONLStore(path) as store:
        assert await append(store, 1, 1, 2) is None
        if how == "removed":
            (path / NAME).unlink()
        else:
            (path / NAME).rename(path / "moved")
        assert isinstance(await append(store, 1, 3, 4), StoreConflict)  # behind what is no longer there
        assert await store.head("telegram_1") is None
        assert await append(store, 1, 1, 4) is None
    assert await found(path) == sample_entries(1, 4)


async def test_a_file_that_was_cut_under_our_hands_is_not_filled_up(path: Path) -> None:
    async with JSONLStore(path) as store:
        assert await append(store, 1, 1, 1) is None
        assert await append(store, 1, 2, 2) is None
        os.truncate(path / NAME, (path / NAME).stat().st_size - 10)
        assert await store.read("telegram_1") == sample_entries(1, 1)
        assert "ends at entry 1, and had 2" in str(store.damage)
        assert await store.check() == store.damage
        assert await append(store, 1, 2, 3) is None
        assert await store.read("telegram_1") == sample_entries(1, 3)
        assert (store.damage, await store.check()) == ([], [])


async def test_a_file_that_became_something_else_is_refused_until_it_is_back(path: Path) -> None:
    async with JSONLStore(path) as store:
        assert await append(store, 1, 1, 1) is None
        assert await append(store, 2, 1, 1) is None
        (path / NAME).rename(path / "aside")
        os.mkfifo(path / NAME)
        outcomes = await store.append([Append(sample_head(n), sample_entries(2, 2)) for n in (1, 2)])
        assert [type(outcome) for outcome in outcomes] == [SessionUnavailable, type(None)]
        for refused in (store.read, store.head, store.delete):
            with pytest.raises(StoreUnavailable, match=NAME):
                await refused("telegram_1")
        assert NAME in str(store.damage)
        (problem,) = await store.check()
        assert [problem] == store.damage
        (path / "aside").rename(path / NAME)
        assert await store.head("telegram_1") == StoredHead(sample_head(), 1)
        assert store.damage == []
        assert await append(store, 1, 2, 2) is None
        assert await store.check() == []


async def test_a_name_that_was_taken_at_the_start_is_free_when_nothing_is_there_any_more(path: Path) -> None:
    await filled(path, (1, 1), chat_id=2)
    (path / NAME).mkdir()
    async with JSONLStore(path) as store:
        assert isinstance(await append(store, 1, 1, 1), StoreCorrupt)
        (path / NAME).rmdir()
        assert await store.check() == []
        assert await append(store, 1, 1, 1) is None
        assert await store.read("telegram_1") == sample_entries(1, 1)


# --- reading ---------------------------------------------------------------------------------------------------------


def bytes_read() -> int:
    """By this process so far, from wherever."""
    return int(Path("/proc/self/io").read_text().split()[1])


async def test_a_page_of_a_long_transcript_reads_little_more_than_the_page(path: Path) -> None:
    entries, page = 30_000, 500
    async with JSONLStore(path) as store:
        for first in range(1, entries, 10_000):
            assert await append(store, 1, first, first + 9_999) is None
    async with JSONLStore(path) as store:
        size = (path / NAME).stat().st_size
        assert size > 4_000_000
        for after in (1, 333, 15_000, 22_222, 29_900, 12_345):
            before = bytes_read()
            read = await store.read("telegram_1", after=after, limit=page)
            assert [entry.sequence for entry in read] == list(range(after + 1, min(after + page, entries) + 1))
            assert bytes_read() - before < 600_000
        before = bytes_read()
        assert await store.read_newest("telegram_1", 50) == sample_entries(entries - 49, entries)
        assert bytes_read() - before < 100_000
        before = bytes_read()
        assert await store.head("telegram_1") == StoredHead(sample_head(), entries)
        assert await store.read("telegram_1", after=entries) == []
        assert bytes_read() - before < 1_000
        before = bytes_read()
        assert [entry.sequence async for entry in read_all(store, "telegram_1")] == list(range(1, entries + 1))
        assert bytes_read() - before < 4 * size


async def test_a_session_that_is_deleted_and_made_again_is_never_read_as_a_mixture(path: Path) -> None:
    done = anyio.Event()

    def life(number: int) -> list[StoredEntry]:
        return sample_entries(1, 40 + number, prefix=str(number), text="x" * 40 * number)

    async def change(store: JSONLStore) -> None:
        for number in range(15):
            head = sample_head(incarnation=str(number))
            assert await store.append([Append(head, life(number))]) == [None]
            assert await store.delete("telegram_1")
        done.set()

    async def look(store: JSONLStore) -> None:
        while not done.is_set():
            for read in (await store.read("telegram_1", after=7), await store.read_newest("telegram_1", 500)):
                if read:
                    expected = life(int(read[0].entry_id.split("-")[0]))
                    assert read in (expected, expected[7:])

    async with JSONLStore(path) as store, anyio.create_task_group() as tasks:
        tasks.start_soon(change, store, name="change")
        for number in range(4):
            tasks.start_soon(look, store, name=f"look {number}")


# --- cancellation and crashes ----------------------------------------------------------------------------------------


async def test_an_append_whose_caller_is_cancelled_runs_to_its_end_and_closing_waits_for_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(path, (1, 1))
    begun, go_on, fdatasync = threading.Event(), threading.Event(), os.fdatasync

    def wait_and_sync(fd: int) -> None:
        begun.set()
        assert go_on.wait(10)
        fdatasync(fd)

    async with JSONLStore(path) as store:
        monkeypatch.setattr(os, "fdatasync", wait_and_sync)
        call = asyncio.create_task(append(store, 1, 2, 100), name="append")
        await anyio.to_thread.run_sync(begun.wait)
        assert await store.read("telegram_1") == sample_entries(1, 1), "what is not safe yet is not read"
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        go_on.set()
    assert await found(path) == sample_entries(1, 100)


async def test_a_cancelled_reader_leaves_no_file_open(path: Path) -> None:
    async with JSONLStore(path) as store:
        assert await append(store, 1, 1, 3_000, text="x" * 300) is None
        for delay in range(12):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.read, "telegram_1", name="read")
                for _ in range(delay):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        assert len(await store.read("telegram_1")) == 3_000
        assert await store.delete("telegram_1")
        assert [name for name in open_files() if "telegram_1" in name] == []


async def test_a_transcript_that_vanishes_under_our_hands_is_written_back_from_memory(tmp_path: Path) -> None:
    settings = SessionSettings(store="jsonl:")
    async with SessionManager(tmp_path / "w", settings=settings) as manager:
        session = await manager.get_or_create("telegram", 1)
        for number in range(5):
            await session.add_message(Message.user(str(number)))
        await manager.flush()
        (tmp_path / "w" / "transcripts" / NAME).unlink()
        await session.add_message(Message.user("after"))
        assert [message.text for message in session.messages()] == ["0", "1", "2", "3", "4", "after"]
        await manager.flush()
        assert (await manager.check()).problems == []
    async with SessionManager(tmp_path / "w", settings=settings) as manager:
        session = await manager.find("telegram_1")
        assert [message.text for message in session.messages()] == ["0", "1", "2", "3", "4", "after"]


# --- reading beside whoever writes -----------------------------------------------------------------------------------


async def test_a_reader_needs_no_lock_changes_nothing_and_sees_what_is_appended_later(path: Path) -> None:
    async with JSONLStore(path) as store, JSONLReader(path) as reader:
        assert await reader.session_ids() == []
        await append(store, 1, 1, 700)
        path.chmod(0o500)
        (path / NAME).chmod(0o444)
        before = contents(path), modes(path)
        assert await reader.head("telegram_1") == StoredHead(sample_head(), 700)
        assert [entry async for entry in read_all(reader, "telegram_1")] == sample_entries(1, 700)
        assert await reader.read_newest("telegram_1", 3) == sample_entries(698, 700)
        assert await reader.find("telegram_1", "entry-7") == sample_entries(7, 7)[0]
        assert (contents(path), modes(path)) == before
        path.chmod(0o700)
        (path / NAME).chmod(0o600)
        await append(store, 1, 701, 701)
        assert await reader.read("telegram_1", after=699) == sample_entries(700, 701)
        assert await store.delete("telegram_1")
        assert await reader.head("telegram_1") is None
        assert [stored async for stored in reader.heads()] == []


async def test_a_reader_reads_up_to_the_last_whole_append(path: Path) -> None:
    file = await filled(path, (1, 2))
    whole = file.read_bytes()
    file.write_bytes(whole + lines_of(sample_entries(3, 4))[:-20])
    async with JSONLReader(path) as reader:
        assert await reader.read("telegram_1") == sample_entries(1, 2)
        assert await reader.check() == []
    assert file.read_bytes().startswith(whole)
    assert len(file.read_bytes()) > len(whole)


async def test_what_is_not_ours_is_no_session_for_a_reader_and_stops_no_list(path: Path) -> None:
    await filled(path, (1, 2))
    (path / "telegram_2.jsonl").write_bytes((path / NAME).read_bytes())
    (path / "telegram_3.jsonl").mkdir()
    async with JSONLReader(path) as reader:
        assert [stored.head.session_id async for stored in reader.heads()] == ["telegram_1"]
        assert await reader.head("telegram_2") is None
        assert len(await reader.check()) == 2


async def test_a_reader_of_a_directory_that_is_not_there_finds_nothing_and_makes_nothing(path: Path) -> None:
    async with JSONLReader(path) as reader:
        assert await reader.session_ids() == []
        assert await reader.read("telegram_1") == []
        with pytest.raises(StoreUnavailable, match="read only"):
            await reader.delete("telegram_1")
    assert not path.exists()


@pytest.mark.parametrize("cancelled_at", ["opening", "reading"])
async def test_whoever_is_cancelled_while_a_thread_reads_leaves_no_descriptor(
    cancelled_at: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio's own cancellation leaves the thread behind: it closes what it has opened."""
    file = await filled(path, (1, 3))
    begun, may_go_on, left = threading.Event(), threading.Event(), threading.Event()
    step = Stream._step

    def wait(self: Stream, do: Callable[[], Any]) -> object:
        if self._fd >= 0 or cancelled_at == "opening":
            begun.set()
            may_go_on.wait(10)
        try:
            return step(self, do)
        finally:
            if may_go_on.is_set():
                left.set()

    monkeypatch.setattr(Stream, "_step", wait)
    async with JSONLStore(path) as store:
        reading = asyncio.create_task(store.read("telegram_1"))
        assert await anyio.to_thread.run_sync(begun.wait, 10)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        may_go_on.set()
        assert await anyio.to_thread.run_sync(left.wait, 10)
        assert file not in [descriptor.resolve() for descriptor in Path("/proc/self/fd").iterdir()]
        assert await store.read("telegram_1") == sample_entries(1, 3)


async def test_without_a_sync_of_the_file_system_no_file_is_closed_before_it_is_synced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS; a descriptor that was closed may be another file's when it is synced."""
    monkeypatch.setattr(disk, "SYNCS_TOGETHER", False)
    synced: list[str] = []
    fdatasync = os.fdatasync

    def noted(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        fdatasync(fd)

    async with JSONLStore(path) as store:
        ids = range(1, descriptors.MAX_DESCRIPTORS + 12)
        await store.append([Append(sample_head(n), sample_entries(1, 1)) for n in ids])
        monkeypatch.setattr(os, "fdatasync", noted)
        assert await store.append([Append(sample_head(n), sample_entries(2, 3)) for n in ids]) == [None] * len(ids)
        assert await store.read("telegram_11") == sample_entries(1, 3)
    assert sorted(synced) == sorted(f"telegram_{n}.jsonl" for n in ids)
