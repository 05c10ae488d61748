"""Bringing sessions back from the archive: all that is sound in a file comes back, and its tree stays whole."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from miniclaw_sessions import Message, Session, SessionManager, SessionSettings
from miniclaw_sessions.core.persistence import archive as persistence_archive
from miniclaw_sessions.core.persistence.archive import ArchiveDirectory, write_archived_file
from miniclaw_sessions.core.protocol.entries import INCOMPLETE, METADATA, Custom
from miniclaw_sessions.core.session.copying import NOT_STORED
from miniclaw_sessions.errors import ImportRefused, NotArchived
from miniclaw_sessions.testing import FakeClock

pytestmark = pytest.mark.anyio

SETTINGS = SessionSettings(ttl_days=1.0, restore_archived=False, flush_interval_s=5e6)


async def archive(directory: Path, *texts: str, settings: SessionSettings = SETTINGS) -> Path:
    """A session of these messages in the archive of a workspace; its file."""
    clock = FakeClock()
    async with SessionManager(directory, settings=settings, clock=clock) as manager:
        session = await manager.get_or_create("telegram", "1", metadata={"title": "Weather"})
        for text in texts:
            await session.add_message(Message.user(text))
        await clock.advance(2 * 86_400.0)
        await manager.sweep()
    (file,) = (directory / "archive").iterdir()
    return file


def changed(file: Path, change: Callable[[list[bytes]], None]) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    change(lines)
    file.write_bytes(b"".join(lines))


async def restored(directory: Path, settings: SessionSettings = SETTINGS) -> tuple[Session, list[str]]:
    async with SessionManager(directory, settings=settings, clock=FakeClock()) as manager:
        session = await manager.restore("telegram_1")
        assert list((directory / "archive").iterdir()) == []
        branch = await session.tree.read_branch()
        return session, [message.text for message in branch.messages()]


def place_of(lines: list[bytes], text: bytes) -> int:
    return next(place for place, line in enumerate(lines) if text in line)


async def test_a_damaged_line_is_left_out_and_those_behind_it_follow_what_stands_before(tmp_path: Path) -> None:
    file = await archive(tmp_path, "one", "two", "three")
    changed(file, lambda lines: lines.__setitem__(place_of(lines, b'"two"'), b'{"type":"message","id":\n'))
    session, texts = await restored(tmp_path)
    assert texts == ["one", "three"]
    assert session.title == "Weather"


async def test_a_spoiled_character_costs_nothing_but_itself(tmp_path: Path) -> None:
    file = await archive(tmp_path, "one", "tw\N{LATIN SMALL LETTER O WITH DIAERESIS}")
    file.write_bytes(file.read_bytes().replace(b"tw\xc3\xb6", b"tw\xc3\x36"))
    _, texts = await restored(tmp_path)
    assert texts == ["one", "tw\N{REPLACEMENT CHARACTER}6"]


async def test_a_line_that_stands_twice_is_taken_once(tmp_path: Path) -> None:
    file = await archive(tmp_path, "one", "two")
    changed(file, lambda lines: lines.append(lines[-1]))
    _, texts = await restored(tmp_path)
    assert texts == ["one", "two"]


async def test_a_session_goes_by_its_id_where_the_first_line_is_damaged(tmp_path: Path) -> None:
    file = await archive(tmp_path, "one")
    changed(file, lambda lines: lines.__setitem__(0, b"{\n"))
    session, texts = await restored(tmp_path)
    assert (session.key, texts) == (("telegram", "1"), ["one"])


async def test_a_file_that_holds_no_session_stays_and_is_refused(tmp_path: Path) -> None:
    file = await archive(tmp_path, "one")
    file.write_bytes(b"nothing of ours\n")
    async with SessionManager(tmp_path, settings=SETTINGS, clock=FakeClock()) as manager:
        with pytest.raises(ImportRefused, match="holds nothing"):
            await manager.restore("telegram_1")
        assert len(manager) == 0
        with pytest.raises(NotArchived):
            await manager.restore("telegram_2")
    assert file.exists()


async def test_an_entry_that_is_too_large_by_now_leaves_a_note_in_its_place(tmp_path: Path) -> None:
    await archive(tmp_path, "one", "x" * 5_000, "three")
    settings = SessionSettings(ttl_days=1.0, restore_archived=False, max_message_bytes=2_000, flush_interval_s=5e6)
    async with SessionManager(tmp_path, settings=settings, clock=FakeClock()) as manager:
        session = await manager.restore("telegram_1")
        assert [message.text for message in session.messages()] == ["one", "three"]
        entries = [entry async for entry in session.tree.read_entries()]
        assert [entry.custom_type for entry in entries if isinstance(entry, Custom)].count(NOT_STORED) == 1


async def test_what_said_that_it_was_unfinished_once_is_not_brought_back(tmp_path: Path) -> None:
    """A crash in the middle would leave half of a session that says that it is finished."""
    clock = FakeClock()
    async with SessionManager(tmp_path, settings=SETTINGS, clock=clock) as manager:
        source = await manager.get_or_create("telegram", "0")
        await source.add_message(Message.user("one"))
        fork = await source.fork("telegram_1")
        await clock.advance(2 * 86_400.0)
        await manager.sweep()
        session = await manager.restore(fork.session_id)
        entries = [entry async for entry in session.tree.read_entries()]
        notes = [one for one in entries if isinstance(one, Custom) and one.custom_type == METADATA]
        assert sum(INCOMPLETE in one.data for one in notes) == 2  # the restore's own, at both ends
        assert [message.text for message in session.messages()] == ["one"]


@pytest.mark.parametrize("is_begun", [False, True])
async def test_what_was_deleted_while_its_chat_spoke_again_is_in_no_session_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    await archive(tmp_path, "secret")
    is_open, go_on = anyio.Event(), anyio.Event()
    async with SessionManager(tmp_path, clock=FakeClock()) as manager:
        read = manager.archive.read

        async def read_slowly(name: str) -> AsyncIterator[bytes]:
            head, *entries = b"".join([piece async for piece in read(name)]).splitlines(keepends=True)
            if is_begun:
                yield head  # the session is begun before the file goes
            is_open.set()
            await go_on.wait()
            yield b"".join(entries if is_begun else [head, *entries])

        monkeypatch.setattr(manager.archive, "read", read_slowly)

        async def delete() -> None:
            assert await manager.delete("telegram_1")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(manager.get_or_create, "telegram", "1")
            await is_open.wait()
            async with anyio.create_task_group() as deletion:
                deletion.start_soon(delete)
                if is_begun:  # it waits then
                    await anyio.wait_all_tasks_blocked()
                    go_on.set()
            go_on.set()
        assert (await manager.get_or_create("telegram", "1")).messages() == []
    async with SessionManager(tmp_path, clock=FakeClock()) as manager:
        assert (await manager.get_or_create("telegram", "1")).messages() == []


async def test_a_chat_gets_its_words_back_that_expired_while_the_archive_was_first_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, settings = FakeClock(), SessionSettings(ttl_days=1.0, sweep_interval_s=1e9, flush_interval_s=5e6)
    async with SessionManager(tmp_path, settings=settings, clock=clock) as manager:
        await (await manager.get_or_create("telegram", "1")).add_message(Message.user("one"))
    await clock.advance(40_000)  # less than a day, or the clock is doubted
    async with SessionManager(tmp_path, settings=settings, clock=clock) as manager:
        await clock.advance(60_000)
        is_listed, go_on = threading.Event(), threading.Event()
        is_written = anyio.Event()
        listed = ArchiveDirectory._listed

        async def write(path: Path, name: str, blocks: AsyncIterator[bytes]) -> None:
            await write_archived_file(path, name, blocks)
            is_written.set()

        monkeypatch.setattr(persistence_archive, "write_archived_file", write)

        def slowly(directory: ArchiveDirectory) -> dict[str, set[str]]:
            found = listed(directory)
            is_listed.set()
            go_on.wait(10)
            return found

        monkeypatch.setattr(ArchiveDirectory, "_listed", slowly)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(manager.get_or_create, "telegram", "2")
            assert await to_thread.run_sync(is_listed.wait, 10)
            monkeypatch.setattr(ArchiveDirectory, "_listed", listed)
            tasks.start_soon(manager.sweep)
            with anyio.fail_after(10):
                await is_written.wait()
            go_on.set()
        session = await manager.get_or_create("telegram", "1")
        assert [message.text for message in session.messages()] == ["one"]
