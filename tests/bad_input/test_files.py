"""Every bad file in the place of every file of ours: set aside whole, left alone, or refused with what to do.

In each case the neighbour's messages are as they were, and nothing that was acknowledged is lost where another file
still has it.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from miniclaw_sessions.config import SessionSettings, load_settings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import ConfigError, ImportRefused, SchemaTooNew, SessionsError, StoreCorrupt
from miniclaw_sessions.files.transfer.importing import import_file
from miniclaw_sessions.secret import read_secret
from miniclaw_sessions.service.gateway.listeners import listen_unix
from tests.bad_input.file_damage import BAD_FILES, SPARSE_BYTES, without_privilege
from tests.sampled import sampled

pytestmark = pytest.mark.anyio

SAID = ["one", "two", "three"]
EVERY_FILE = pytest.mark.parametrize("name", BAD_FILES)
MANY_FILES = pytest.mark.parametrize("name", sampled(BAD_FILES, every=3))
"""For tests that meet each of them in many places: they take turns in the round."""
NOT_A_FILE = ("FIFO", "directory", "symlink to itself")


class Place(NamedTuple):
    """A kind of file of ours, the store that has it, and for what is no damage the words of the refusal, or None."""

    path: str
    store: str
    refused: dict[str, str | None]


PLACES = {
    "snapshot": Place(
        "sessions/telegram_1.json",
        "jsonl:",
        {
            "FIFO": None,
            "directory": "1 snapshots could not be written",
            "symlink to itself": None,
            "no read permission": "nothing was changed",
        },
    ),
    "transcript": Place(
        "transcripts/telegram_1.jsonl",
        "jsonl:",
        {
            **dict.fromkeys(NOT_A_FILE, "is not a regular file"),
            "no read permission": "Permission denied",
        },
    ),
    "database": Place(
        "sessions.db",
        "sqlite:",
        {
            "0 bytes": None,  # a database that was never written to
            "FIFO": "it is not a regular file",
            "directory": "Is a directory",
            "symlink to itself": "Too many levels of symbolic links",
            "no read permission": "Permission denied",
        },
    ),
}


def opened(workspace: Path, store: str) -> SessionManager:
    return SessionManager(workspace, settings=SessionSettings(store=store))


async def begin(workspace: Path, store: str) -> None:
    """Two sessions, written and closed."""
    async with opened(workspace, store) as manager:
        for chat_id in ("1", "2"):
            session = await manager.get_or_create("telegram", chat_id)
            for text in SAID:
                await session.add_message(Message.user(text))


def seen_as(name: str, place: Path) -> AbstractContextManager[None]:
    """Who looks at a bad file: where modes are what is bad about it, nobody but an ordinary user."""
    return without_privilege(place) if name == "no read permission" else nullcontext()


def files_below(workspace: Path) -> dict[str, bytes]:
    """The files, but for the lock, whose pid comes and goes, and huge ones."""
    regular = (path for path in workspace.rglob("*") if stat.S_ISREG(path.lstat().st_mode) and path.name != ".lock")
    return {str(path): path.read_bytes() for path in regular if path.stat().st_size < SPARSE_BYTES}


async def check_sessions(workspace: Path, store: str) -> None:
    """Both sessions are whole and go on."""
    async with opened(workspace, store) as manager:
        for chat_id in ("1", "2"):
            session = await manager.get("telegram", chat_id)
            assert [message.text for message in session.messages()] == SAID
            await session.add_message(Message.user("four"))
    async with opened(workspace, store) as manager:
        for chat_id in ("1", "2"):
            session = await manager.get("telegram", chat_id)
            assert [message.text for message in session.messages()] == [*SAID, "four"]
        assert manager.recovery.quarantined == []
        assert (await manager.check()).problems == []


@MANY_FILES
@pytest.mark.parametrize("kind", PLACES)
async def test_in_a_workspace(place: Path, kind: str, name: str) -> None:
    path, store, refused = PLACES[kind]
    workspace = place / "workspace"
    await begin(workspace, store)
    bad = workspace / path
    BAD_FILES[name](bad)
    status, before = bad.lstat(), files_below(workspace)
    with anyio.fail_after(60):
        if (words := refused.get(name)) is not None:
            with seen_as(name, place), pytest.raises(SessionsError, match=words):
                async with opened(workspace, store):
                    pass
            assert stat.S_IFMT(bad.lstat().st_mode) == stat.S_IFMT(status.st_mode)
            now = files_below(workspace)
            assert {one: now.get(one) for one in before} == before
            return
        await check_sessions(workspace, store)
    aside = list((workspace / "quarantine").glob(f"*-{bad.name}"))
    assert [one.stat().st_size for one in aside] == ([] if name in refused else [status.st_size])
    assert all(one.read_bytes() == before[str(bad)] for one in aside if status.st_size < SPARSE_BYTES)


@EVERY_FILE
async def test_as_the_lock(place: Path, name: str) -> None:
    await begin(place / "w", "none:")
    BAD_FILES[name](place / "w" / ".lock")
    if name in ("directory", "symlink to itself", "no read permission", "FIFO"):
        with seen_as(name, place), pytest.raises(ConfigError, match="cannot be used"):
            await opened(place / "w", "none:").__aenter__()
    else:
        await check_sessions(place / "w", "none:")


@EVERY_FILE
async def test_as_a_file_to_import(place: Path, name: str) -> None:
    path = place / "file.jsonl"
    path.write_bytes(b"{}")
    BAD_FILES[name](path)
    status = path.lstat()
    async with opened(place / "w", "none:") as manager:
        with anyio.fail_after(60), seen_as(name, path), pytest.raises(ImportRefused, match=r"file|session"):
            await import_file(manager, path)
        assert await manager.list() == []
    assert (path.lstat().st_ino, path.lstat().st_size) == (status.st_ino, status.st_size)


def load(path: Path) -> None:
    load_settings(path)


def read_token(path: Path) -> None:
    read_secret(str(path), "token", {})


def listen(path: Path) -> None:
    listen_unix(path).close()


@EVERY_FILE
@pytest.mark.parametrize("use", [load, read_token, listen])
def test_as_configuration_token_and_socket(place: Path, name: str, use: Callable[[Path], None]) -> None:
    path = place / "x"
    path.write_bytes(b"")
    path.chmod(0o600)
    BAD_FILES[name](path)
    kind = stat.S_IFMT(path.lstat().st_mode)
    if use is load and name == "0 bytes":
        load(path)  # nothing is set
        return
    if use is read_token and name in ("valid JSON of the wrong shape", "a JSON list", "an integer of 4301 digits"):
        read_token(path)  # a token may be any line of printable ASCII
        return
    with seen_as(name, place), pytest.raises(ConfigError, match=str(path)):
        use(path)
    assert stat.S_IFMT(path.lstat().st_mode) == kind


# --- by content ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["jsonl:", "none:"])
async def test_a_snapshot_of_another_session_is_set_aside(place: Path, store: str) -> None:
    await begin(place, store)
    one, two = (place / "sessions" / f"telegram_{chat_id}.json" for chat_id in ("1", "2"))
    mismatched = one.read_bytes()
    two.write_bytes(mismatched)
    async with opened(place, store) as manager:
        assert [message.text for message in (await manager.get("telegram", "1")).messages()] == SAID
        assert len(await manager.list()) == (2 if store == "jsonl:" else 1)
    (aside,) = (place / "quarantine").glob("*-telegram_2.json")
    assert aside.read_bytes() == mismatched


async def test_a_transcript_of_another_session_is_left_alone_and_its_name_is_told(place: Path) -> None:
    await begin(place, "jsonl:")
    one, two = (place / "transcripts" / f"telegram_{chat_id}.jsonl" for chat_id in ("1", "2"))
    two.write_bytes(one.read_bytes())
    before = files_below(place)
    with pytest.raises(SessionsError, match="the file of session telegram_1"):
        await opened(place, "jsonl:").__aenter__()
    assert files_below(place) == before


@pytest.mark.parametrize("file", ["sessions/telegram_1.json", "transcripts/telegram_1.jsonl"])
async def test_a_file_of_a_future_version_stops_the_start_and_is_not_touched(place: Path, file: str) -> None:
    await begin(place, "jsonl:")
    path = place / file
    data = path.read_bytes().replace(b'"schema_version":1', b'"schema_version":2')
    data = data.replace(b'"version":1', b'"version":2')
    path.write_bytes(re.sub(rb',"crc32":"[0-9a-f]{8}"}', b"}", data))
    before = files_below(place)
    with pytest.raises((SchemaTooNew, StoreCorrupt), match=r"(?i)nothing was changed"):
        await opened(place, "jsonl:").__aenter__()
    assert files_below(place) == before


@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=pytest.mark.proof)])
@pytest.mark.parametrize("cut", ["sessions/{}.json", "transcripts/{}.jsonl"])
async def test_files_that_are_truncated_at_each_byte_cost_nobody_a_message(place: Path, cut: str, stride: int) -> None:
    """Hundreds of sessions side by side, of each of which another file is cut off at another byte."""
    async with opened(place / "first", "jsonl:") as manager:
        await (await manager.get_or_create("telegram", "chat0000")).add_message(Message.user("one"))
    paths = ("sessions/{}.json", "transcripts/{}.jsonl")
    whole = {path: (place / "first" / path.format("telegram_chat0000")).read_bytes() for path in paths}
    lengths = range(0, len(whole[cut]), stride)
    for length in lengths:
        chat_id = f"chat{length:04}"
        for path, data in whole.items():
            file = place / "second" / path.format(f"telegram_{chat_id}")
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            written = re.sub(rb',"crc32":"[0-9a-f]{8}"}', b"}", data.replace(b"chat0000", chat_id.encode()))
            file.write_bytes(written[:length] if path == cut else written)
    (place / "second" / ".lock").touch(mode=0o600)  # a directory of ours: of others nothing is set aside
    settings = SessionSettings(store="jsonl:", quarantine_max_files=10_000)
    async with SessionManager(place / "second", settings=settings) as manager:
        sessions = await manager.list()
        assert len(sessions) == len(lengths)
        for summary in sessions:
            session = await manager.find(summary.session_id)
            assert [message.text for message in session.messages()] == ["one"], summary.session_id


def test_the_sparse_file_takes_no_room(place: Path) -> None:
    path = place / "sparse"
    path.write_bytes(b"")
    BAD_FILES["sparse 10 GB"](path)
    assert (path.stat().st_size, path.stat().st_blocks) == (SPARSE_BYTES, 0)
