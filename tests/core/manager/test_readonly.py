"""Looking at a workspace needs no lock, changes nothing, and loads what is asked for."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from anyio import run_process
from msgspec.structs import replace

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import ReadOnlySessions, SessionManager, open_readonly
from miniclaw_sessions.core.manager.reading import read_transcript
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.stores.positions import ListPosition
from miniclaw_sessions.core.stores.sqlite import reader as reading
from miniclaw_sessions.core.stores.sqlite.files import connect
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import NotAWorkspace, ReadOnlyWorkspace, SessionNotFound, TranscriptNotKept
from miniclaw_sessions.files.transfer.backup import back_up, restore, verify_backup
from miniclaw_sessions.statistics import SessionSummary
from miniclaw_sessions.testing import FakeClock
from tests.sampled import sampled
from tests.texts import texts

pytestmark = pytest.mark.anyio


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below but SQLite's index of its -wal file, in which readers leave their marks."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file() and not path.name.endswith("-shm"))
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


async def say(manager: SessionManager, *said: str, chat_id: str = "1") -> Session:
    session = await manager.get_or_create("telegram", chat_id)
    for text in said:
        await session.add_message(Message.user(text))
    return session


@pytest.fixture(params=sampled(["sqlite:", "jsonl:", "none:"], every=3))
def settings(request: pytest.FixtureRequest) -> SessionSettings:
    return SessionSettings(store=request.param, window=4)


async def test_what_is_saved_can_be_read_beside_the_process_that_holds_it(
    tmp_path: Path, settings: SessionSettings
) -> None:
    async with SessionManager(tmp_path, settings=settings) as manager:
        await say(manager, *map(str, range(9)))
        await say(manager, "other", chat_id="2")
        await manager.flush()
        if settings.store != "none:":
            await say(manager, "not in the file yet", chat_id="2")
        before = contents(tmp_path)
        async with open_readonly(tmp_path, settings=settings) as reader:
            assert texts(await reader.find("telegram_1")) == ["5", "6", "7", "8"]
            newest = [] if settings.store == "none:" else ["not in the file yet"]
            assert texts(await reader.get("telegram", 2)) == ["other", *newest]
            assert {row.session_id for row in await reader.list()} == {"telegram_1", "telegram_2"}
            with pytest.raises(SessionNotFound):
                await reader.find("telegram_3")
        assert contents(tmp_path) == before


async def test_the_whole_transcript_is_read_from_the_store(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, settings=SessionSettings(window=4)) as manager:
        session = await say(manager, *map(str, range(700)))
        here = [entry.id async for entry in read_transcript(manager, "telegram_1")]
        async with open_readonly(tmp_path, settings=SessionSettings(window=4)) as reader:
            assert [entry.id async for entry in read_transcript(reader, "telegram_1")] == here
            there = await reader.find("telegram_1")
            assert await there.tree.get_entry(here[3]) == await session.tree.get_entry(here[3])
            assert (await reader.check()).problems == []


async def test_what_is_read_cannot_be_changed(tmp_path: Path, settings: SessionSettings) -> None:
    async with SessionManager(tmp_path, settings=settings) as manager:
        await say(manager, "hello")
    before = contents(tmp_path)
    async with open_readonly(tmp_path, settings=settings) as reader:
        session = await reader.find("telegram_1")
        for attempt in (
            session.add_message(Message.user("more")),
            session.save_turn([Message.user("more")]),
            session.fork(),
            session.tree.set_label(session.leaf_id or "", "here"),
        ):
            with pytest.raises((ReadOnlyWorkspace, TranscriptNotKept), match=r"read only|cannot keep a label"):
                await attempt
        for change in (lambda: session.append(Message.user("more")), session.clear, lambda: session.update(title="t")):
            with pytest.raises(ReadOnlyWorkspace):
                change()
        assert texts(session) == ["hello"]
    assert contents(tmp_path) == before


async def test_a_directory_that_is_no_workspace_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    for directory in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotAWorkspace):
            await open_readonly(directory).__aenter__()
    assert contents(tmp_path) == {"other": b"mine"}


async def test_the_backup_of_an_empty_workspace_can_be_read_and_what_is_restored_from_it(
    tmp_path: Path,
) -> None:
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    async with SessionManager(tmp_path / "live") as manager:
        await back_up(manager, backup)
    await restore(backup, restored, SessionSettings())
    for workspace in (backup, restored):
        before = contents(workspace)
        async with open_readonly(workspace) as reader:
            assert await reader.list() == []
            assert (await reader.check()).problems == []
            assert (await reader.statistics()).sessions == 0
            assert (await reader.sweep(dry_run=True)).scanned == 0
        assert contents(workspace) == before


async def test_a_store_without_any_session_file_is_read(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        await say(manager, "hello")
    shutil.rmtree(tmp_path / "sessions")
    async with open_readonly(tmp_path) as reader:
        assert texts(await reader.find("telegram_1")) == ["hello"]
        assert [row.session_id for row in await reader.list()] == ["telegram_1"]
        assert (await reader.check()).notes == ["1 sessions are in the store and have no snapshot yet"]
    assert not (tmp_path / "sessions").exists()


async def test_a_damaged_file_is_read_from_the_store_and_stays_where_it_is(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        await say(manager, "hello", "again")
    file = tmp_path / "sessions" / "telegram_1.json"
    file.write_bytes(file.read_bytes()[:50])
    before = contents(tmp_path)
    async with open_readonly(tmp_path) as reader:
        assert texts(await reader.find("telegram_1")) == ["hello", "again"]
    assert contents(tmp_path) == before


async def test_half_an_import_is_no_session_for_a_reader_either(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        key = (await say(manager, "hello")).key._replace(chat_id="half")
        async with manager._registry.new_journal(key, purpose="import") as half:
            half.append(Message.user("half"))
            await half.saved()
            async with open_readonly(tmp_path) as reader:
                with pytest.raises(SessionNotFound):
                    await reader.find("telegram_half")


async def test_an_encrypted_workspace_is_read_with_its_key(tmp_path: Path) -> None:
    keys = KeyRing([bytes(range(32))])
    async with SessionManager(tmp_path, encryption=keys) as manager:
        await say(manager, "secret")
        async with open_readonly(tmp_path, encryption=keys) as reader:
            assert texts(await reader.find("telegram_1")) == ["secret"]


@pytest.mark.parametrize("has_log", [True, False])
async def test_a_copy_that_nobody_can_write_is_read_with_what_its_log_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_log: bool
) -> None:
    """SQLite makes files beside a database in order to read it, which it cannot on a disk that is only read."""
    live, copy = tmp_path / "live", tmp_path / "copy"
    async with SessionManager(live) as manager:
        await say(manager, "hello")
        if has_log:
            shutil.copytree(live, copy, ignore=shutil.ignore_patterns("*-shm"))
    if not has_log:
        shutil.copytree(live, copy)
    before, refusals = contents(copy), list[Path]()

    def refused(path: Path, *, writing: bool) -> sqlite3.Connection:
        if path.parent == copy:
            refusals.append(path)
            raise sqlite3.OperationalError("unable to open database file")
        return connect(path, writing=writing)

    monkeypatch.setattr(reading, "connect", refused)
    async with open_readonly(copy) as reader:
        assert texts(await reader.find("telegram_1")) == ["hello"]
        assert len(await reader.store.read("telegram_1")) == 1
    assert contents(copy) == before
    assert bool(refusals) == has_log  # without one SQLite needs no file beside it


async def test_a_writer_that_starts_meanwhile_is_noticed(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        await say(manager, "hello")
    async with open_readonly(tmp_path) as reader:
        assert texts(await reader.find("telegram_1")) == ["hello"]
        async with SessionManager(tmp_path) as manager:
            await say(manager, "again")
            assert texts(await reader.find("telegram_1")) == ["hello", "again"]
        assert texts(await reader.find("telegram_1")) == ["hello", "again"]


async def test_a_page_goes_on_where_the_page_before_ended_and_in_the_order_of_a_daemon(
    tmp_path: Path, settings: SessionSettings
) -> None:
    async with SessionManager(tmp_path, settings=settings) as manager:
        for chat_id in "2143":
            await say(manager, "hi", chat_id=chat_id)
        held = await manager.list()
    async with open_readonly(tmp_path, settings=settings) as reader:
        assert await reader.list() == [replace(row, dirty=False) for row in held]
        await expect_pages(reader, held)
    async with SessionManager(tmp_path, settings=settings) as manager:
        assert [row.session_id for row in await manager.list()] == [row.session_id for row in held]


async def expect_pages(reader: ReadOnlySessions, held: list[SessionSummary]) -> None:
    """One row at a time gives every row once, in order."""
    found: list[SessionSummary] = []
    after: ListPosition | None = None
    for _ in range(len(held) + 1):
        page = await reader.list(limit=1, after=after)
        found += page
        after = ListPosition(page[0].last_accessed, page[0].session_id) if page else after
    assert [row.session_id for row in found] == [row.session_id for row in held]


async def test_sessions_without_a_file_and_files_with_any_time_are_paged_too(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        for chat_id in "123":
            await say(manager, "hi", chat_id=chat_id)
        await manager.flush()
        os.utime(tmp_path / "sessions" / "telegram_1.json", ns=(5_123_456_789, 5_123_456_789))
        await say(manager, "not in a file yet", chat_id="4")
        async with open_readonly(tmp_path) as reader:
            rows = await reader.list()
            assert [row.session_id for row in rows] == ["telegram_4", "telegram_3", "telegram_2", "telegram_1"]
            await expect_pages(reader, rows)


async def test_a_backup_keeps_when_each_session_was_last_used(tmp_path: Path) -> None:
    async with SessionManager(tmp_path / "live") as manager:
        for chat_id in "213":
            await say(manager, "hi", chat_id=chat_id)
        held = await manager.list()
        await back_up(manager, tmp_path / "backup")
    async with open_readonly(tmp_path / "backup") as reader:
        assert [row.last_accessed for row in await reader.list()] == [row.last_accessed for row in held]


async def test_numbers_and_what_would_expire_are_read_and_nothing_changes(
    tmp_path: Path, settings: SessionSettings
) -> None:
    clock = FakeClock()
    async with SessionManager(tmp_path, settings=settings, clock=clock) as manager:
        await say(manager, "old", chat_id="1")
    await clock.advance(31 * 86_400)
    async with SessionManager(tmp_path, settings=settings, clock=clock) as manager:
        await say(manager, "new", chat_id="2")
    before = contents(tmp_path)
    async with open_readonly(tmp_path, settings=settings, clock=clock) as reader:
        numbers = await reader.statistics()
        assert (numbers.sessions, numbers.store) == (2, settings.store.removesuffix(":"))
        swept = await reader.sweep(dry_run=True)
        assert (swept.scanned, swept.sessions, swept.dry_run) == (2, ["telegram_1"], True)
        with pytest.raises(ReadOnlyWorkspace):
            await reader.sweep()
    assert contents(tmp_path) == before


@pytest.mark.parametrize("days", [0, 300])
async def test_a_dry_run_on_a_copy_lists_what_a_sweep_takes_whatever_times_its_files_have(
    tmp_path: Path, settings: SessionSettings, days: int
) -> None:
    clock, copy = FakeClock(), tmp_path / "copy"
    async with SessionManager(tmp_path / "live", settings=settings, clock=clock) as manager:
        await say(manager, "old", chat_id="1")
    await clock.advance(31 * 86_400)
    async with SessionManager(tmp_path / "live", settings=settings, clock=clock) as manager:
        await say(manager, "new", chat_id="2")
    shutil.copytree(tmp_path / "live", copy)
    modified = (clock.now() - timedelta(days=days)).timestamp()
    for file in (copy / "sessions").iterdir():
        os.utime(file, (modified, modified))
    async with open_readonly(copy, settings=settings, clock=clock) as reader:
        told = await reader.sweep(dry_run=True)
    assert (told.sessions, told.postponed) == (["telegram_1"], None)
    async with SessionManager(copy, settings=settings, clock=clock) as manager:
        assert (await manager.sweep()).sessions == told.sessions


@pytest.mark.proof
@pytest.mark.parametrize("store", ["sqlite:", "jsonl:", "none:"])
async def test_a_read_only_mount_is_listed_counted_checked_and_backed_up(tmp_path: Path, store: str) -> None:
    workspace, backup = tmp_path / "w", tmp_path / "b"
    async with SessionManager(workspace, settings=SessionSettings(store=store)) as manager:
        await say(manager, "one", "two")
    before = contents(workspace)
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    program = [sys.executable, "-m", "miniclaw_sessions"]
    for command in (["list"], ["stats"], ["sweep", "--dry-run"], ["check"], ["backup", str(backup)]):
        done = await run_process(
            ["unshare", "-rm", "sh", "-c", mount, str(workspace), *program, *command, "--workspace", str(workspace)],
            env={**os.environ, "MINICLAW_SESSIONS_STORE": store},
            check=False,
        )
        assert (done.returncode, done.stderr.count(b"error")) == (0, 0), done
    assert contents(workspace) == before
    assert (await verify_backup(backup)).problems == []
