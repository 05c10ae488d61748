"""Thirty days, strictly; never in a turn, never because a clock is wrong, never without an archive."""

from __future__ import annotations

import re
import stat
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from anyio import create_task_group
from anyio.lowlevel import checkpoint

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.manager.expiry import FIRST_SWEEP_S
from miniclaw_sessions.core.persistence.archive import ArchiveDirectory
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.stores.base import SessionHead, Store, StoredEntry, StoredHead
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.errors import NotArchived, SessionExists, SessionNotFound, StoreConflict, StoreUnavailable
from miniclaw_sessions.testing import FakeClock, FaultyStore

pytestmark = pytest.mark.anyio
DAY = 86_400.0
YEARS = 5 * 365 * DAY
SLEEPERS = 2


class Home:
    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.store = FaultyStore(MemoryStore())
        self.clock = FakeClock()

    def open(self, store: Store | str | None = None, **settings: Any) -> SessionManager:
        settings = {"sweep_interval_s": 9 * 365 * DAY, "flush_interval_s": 9 * 365 * DAY, **settings}
        chosen = SessionSettings(**settings)
        return SessionManager(self.workspace, settings=chosen, store=store or self.store, clock=self.clock)

    async def passed(self, seconds: float) -> None:
        """Let time pass while flusher and sweeper sleep: what they do in threads is not the clock's."""
        for step in (0, seconds, 0):
            await self.clock.advance(step)
            while self.clock.sleepers < SLEEPERS:
                await self.clock.advance(0)

    def archived(self) -> list[Path]:
        path = self.workspace / "archive"
        return sorted(path.iterdir()) if path.exists() else []


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


async def say(manager: SessionManager, text: str = "hi", chat_id: str = "1") -> Session:
    session = await manager.get_or_create("telegram", chat_id)
    await session.add_message(Message.user(text))
    return session


async def names(manager: SessionManager) -> set[str]:
    return {summary.chat_id for summary in await manager.list()}


# --- when ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("idle", "expires"),
    [(29 * DAY, False), (30 * DAY - 1, False), (30 * DAY, False), (30 * DAY + 1, True), (400 * DAY, True)],
)
async def test_is_expired(home: Home, idle: float, *, expires: bool) -> None:
    async with home.open() as manager:
        await say(manager)
        await home.clock.advance(idle)
        report = await manager.sweep()
        assert (report.scanned, report.expired, report.archived) == (1, int(expires), int(expires))
        assert await names(manager) == (set() if expires else {"1"})
        assert manager.statistics().expired == int(expires)


async def test_ttl_reset_on_session_access(home: Home) -> None:
    async with home.open() as manager:
        await say(manager)
        for _ in range(4):
            await home.clock.advance(29 * DAY)
            await manager.get_or_create("telegram", "1")
            assert (await manager.sweep()).expired == 0


async def test_looking_does_not_keep_a_session_alive(home: Home) -> None:
    async with home.open() as manager:
        await say(manager)
        await home.clock.advance(30 * DAY + 1)
        await manager.get("telegram", "1")
        await manager.list()
        await manager.get_session_history("telegram", "1")
        assert (await manager.sweep()).expired == 1


async def test_zero_turns_expiry_off(home: Home) -> None:
    async with home.open(ttl_days=0) as manager:
        await say(manager)
        await home.clock.advance(900 * DAY)
        assert (await manager.sweep()).expired == 0


async def test_a_sweep_returns_when_what_another_one_was_removing_is_gone(home: Home) -> None:
    async with home.open(sweep_interval_s=DAY) as manager:
        await say(manager)
        await home.clock.advance(31 * DAY)  # in the course of which a background sweep has begun to archive it
        await manager.sweep()
        assert len(manager) == 0
        assert manager.statistics().expired == 1


async def test_a_session_in_a_turn_never_expires(home: Home) -> None:
    async with home.open() as manager:
        session = await say(manager)
        async with session.turn(Message.user("a very long answer")):
            await home.clock.advance(40 * DAY)
            assert (await manager.sweep()).expired == 0
        assert (await manager.sweep()).expired == 0  # the turn's end was a use


async def test_the_sweep_comes_by_itself_first_after_ten_minutes_and_then_every_interval(home: Home) -> None:
    async with home.open(sweep_interval_s=DAY) as manager:
        await say(manager)
        await home.passed(FIRST_SWEEP_S)
        for _ in range(29):
            await home.passed(DAY)
        assert manager.statistics().expired == 0
        await home.passed(DAY)
        assert manager.statistics().expired == 1


async def test_idle_time_counts_across_restarts(home: Home) -> None:
    async with home.open() as manager:
        await say(manager)
        await say(manager, chat_id="2")
    await home.clock.advance(20 * DAY)
    async with home.open() as manager:
        await say(manager, chat_id="2")
    await home.clock.advance(10 * DAY + 1)
    async with home.open(sweep_interval_s=DAY) as manager:
        await home.clock.advance(DAY)  # nobody came for ten days: people get a day to come back
        assert (await manager.sweep()).expired == 1
        assert await names(manager) == {"2"}


# --- races -----------------------------------------------------------------------------------------------------------


async def test_delete_session_toctou_protection(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that is used while it is being archived stays, and its spare archive goes."""
    async with home.open() as manager:
        session = await say(manager)
        await say(manager, chat_id="2")
        await home.clock.advance(31 * DAY)

        write = ArchiveDirectory.write

        async def slowly(self: ArchiveDirectory, head: SessionHead, entries: AsyncIterator[bytes], at: datetime) -> str:
            written = await write(self, head, entries, at)
            if head.session_id == "telegram_1":
                assert await manager.get_or_create("telegram", "1") is session
            return written

        monkeypatch.setattr(ArchiveDirectory, "write", slowly)
        assert (await manager.sweep()).expired == 1
        assert await names(manager) == {"1"}
        await session.add_message(Message.user("still here"))
        assert [path.name.split("-", 1)[1] for path in home.archived()] == ["telegram_2.jsonl"]


async def test_a_session_used_between_scan_and_its_turn_to_go_stays(home: Home) -> None:
    async with home.open(archive_expired=False) as manager:
        await say(manager, chat_id="1")
        await say(manager, chat_id="2")
        await home.clock.advance(31 * DAY)
        real = home.store.delete

        async def delete(session_id: str, *, known: StoredHead | None = None) -> bool:
            other = {"telegram_1": "2", "telegram_2": "1"}[session_id]
            await manager.get_or_create("telegram", other)
            return await real(session_id, known=known)

        home.store.delete = delete  # type: ignore[method-assign]
        assert (await manager.sweep()).expired == 1
        assert len(await names(manager)) == 1


@pytest.mark.parametrize("store", ["sqlite:", "jsonl:", "none:"])
async def test_what_is_acknowledged_while_its_session_expires_is_there_afterwards(home: Home, store: str) -> None:
    async with home.open(store) as manager:
        session = await say(manager, "first")
        await home.passed(31 * DAY)

        async def speak_as_it_goes() -> None:
            while session.session_id not in manager._registry._reserved:
                await checkpoint()
            await session.add_message(Message.user("at the last moment"))

        async with create_task_group() as tasks:
            tasks.start_soon(speak_as_it_goes)
            swept = await manager.sweep()
        assert swept.sessions == []
        assert home.archived() == []
    async with home.open(store) as manager:
        again = await manager.get_or_create("telegram", "1")
        assert [message.text for message in again.messages()] == ["first", "at the last moment"]


async def test_a_session_that_cannot_be_deleted_stays_and_is_tried_again(home: Home) -> None:
    async with home.open() as manager:
        await say(manager)
        await home.clock.advance(31 * DAY)
        home.store.fail(method="delete")
        assert (await manager.sweep()).expired == 0
        assert await names(manager) == {"1"}
        home.store.heal()
        assert (await manager.sweep()).expired == 1


async def test_a_session_that_cannot_be_archived_is_not_deleted(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async with home.open() as manager:
        await say(manager)
        await home.clock.advance(31 * DAY)

        def full(_: Directory) -> tuple[str, int]:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Directory, "open_temporary", full)
        assert (await manager.sweep()).expired == 0
        assert await names(manager) == {"1"}
        monkeypatch.undo()
    assert home.archived() == []


async def test_who_comes_back_to_a_refused_session_while_it_is_archived_keeps_it(home: Home) -> None:
    async with home.open() as manager:
        await say(manager)
        home.store.refuse("telegram_1")
        with pytest.raises(StoreConflict):
            await say(manager, "refused")
        home.store.heal()
        await home.clock.advance(31 * DAY)
        read = home.store.read

        async def read_and_meanwhile(session_id: str, **part: Any) -> list[StoredEntry]:
            home.store.read = read  # type: ignore[method-assign]
            await say(manager, "I am back")
            return await read(session_id, **part)

        home.store.read = read_and_meanwhile  # type: ignore[method-assign]
        assert (await manager.sweep()).expired == 0
        assert [message.text for message in (await manager.get("telegram", "1")).messages()] == ["hi", "I am back"]
    assert home.archived() == []


# --- what is left ----------------------------------------------------------------------------------------------------


async def test_the_archive_holds_every_entry_and_is_private(home: Home) -> None:
    async with home.open(window=2) as manager:
        for number in range(700):
            (await manager.get_or_create("telegram", "1")).append(Message.user(str(number)))
        await home.clock.advance(31 * DAY)
        await manager.sweep()
    [file] = home.archived()
    entries = [decode_entry(line) for line in file.read_bytes().splitlines()[1:]]
    assert [one.message.text for one in entries if isinstance(one, MessageEntry)] == [str(n) for n in range(700)]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


async def test_without_archiving_nothing_is_left(home: Home) -> None:
    async with home.open(archive_expired=False) as manager:
        await say(manager)
        await manager.flush()
        await home.clock.advance(31 * DAY)
        report = await manager.sweep()
        assert (report.expired, report.archived) == (1, 0)
        assert list((home.workspace / "sessions").iterdir()) == []
        assert await home.store.head("telegram_1") is None
    assert home.archived() == []


async def test_after_expiry_the_chat_begins_empty_where_the_setting_says_so(home: Home) -> None:
    async with home.open(restore_archived=False) as manager:
        old = await say(manager, "old")
        await home.clock.advance(31 * DAY)
        await manager.sweep()
        with pytest.raises(SessionNotFound):
            await manager.get("telegram", "1")
        new = await say(manager, "new")
        assert [message.text for message in new.messages()] == ["new"]
        assert new.journal.incarnation != old.journal.incarnation
    async with home.open() as manager:
        assert [message.text for message in await manager.get_session_history("telegram", "1")] == ["new"]


async def test_a_chat_that_speaks_again_after_its_expiry_goes_on_where_it_ended(home: Home) -> None:
    async with home.open() as manager:
        old = await say(manager, "old")
        old.update(title="kept")
        label = await old.tree.set_label(old.entries()[0].id, "here")
        await home.clock.advance(31 * DAY)
        assert (await manager.sweep()).sessions == ["telegram_1"]
        again = await say(manager, "new")
        assert [message.text for message in again.messages()] == ["old", "new"]
        assert again.title == "kept"
        assert (await again.tree.get_entry(label)).id == label
        assert again.created_at == old.created_at
        assert home.archived() == []
        await manager.delete("telegram_1")
        assert (await manager.get_or_create("telegram", "1")).messages() == []


async def test_what_was_deleted_does_not_come_back_from_the_archive(home: Home) -> None:
    async with home.open() as manager:
        await say(manager, "old")
        await home.clock.advance(31 * DAY)
        await manager.sweep()
        assert await manager.delete("telegram_1")
        assert home.archived() == []
        assert (await manager.get_or_create("telegram", "1")).messages() == []


async def test_an_archived_session_is_restored_whole(home: Home) -> None:
    async with home.open(restore_archived=False) as manager:
        await say(manager, "old")
        await home.clock.advance(31 * DAY)
        await manager.sweep()
        with pytest.raises(NotArchived):
            await manager.restore("telegram_2")
        await say(manager, "new")
        with pytest.raises(SessionExists):
            await manager.restore("telegram_1")
        await manager.delete("telegram_1")
        assert home.archived() == []
        await say(manager, "old again")
        await home.clock.advance(31 * DAY)
        await manager.sweep()
        restored = await manager.restore("telegram_1")
        assert [message.text for message in restored.messages()] == ["old again"]
        assert home.archived() == []
        assert (await manager.sweep()).expired == 0
    async with home.open() as manager:
        assert [message.text for message in await manager.get_session_history("telegram", "1")] == ["old again"]


@pytest.mark.parametrize("archives", [True, False])
async def test_the_line_of_a_sweep_says_how_many_bytes_it_has_freed(
    home: Home, caplog: pytest.LogCaptureFixture, *, archives: bool
) -> None:
    """S4.83."""
    caplog.set_level("INFO")
    async with home.open(archive_expired=archives) as manager:
        await say(manager, "x" * 1_000)
        await say(manager, "y" * 500, chat_id="2")
        stored = [*await manager.store.read("telegram_1"), *await manager.store.read("telegram_2")]
        size = sum(len(entry.encoded) for entry in stored)
        await home.clock.advance(31 * DAY)
        assert (await manager.sweep(dry_run=True)).freed_bytes == 0
        report = await manager.sweep()
        assert (report.expired, report.freed_bytes) == (2, size)
        assert size > 1_500
        assert f"freed_bytes={size}" in caplog.text
        assert (await manager.sweep()).freed_bytes == 0


async def test_what_cannot_be_read_expires_uncounted(home: Home) -> None:
    async with home.open(archive_expired=False) as manager:
        await say(manager)
        await home.clock.advance(31 * DAY)
        home.store.fail(method="read")
        report = await manager.sweep()
        assert (report.expired, report.freed_bytes) == (1, 0)


async def test_a_dry_run_lists_what_a_sweep_would_take_and_changes_nothing(home: Home) -> None:
    async with home.open() as manager:
        await say(manager)
        await home.clock.advance(29 * DAY)
        await say(manager, chat_id="2")
        await home.clock.advance(2 * DAY)
        for _ in range(2):
            report = await manager.sweep(dry_run=True)
            assert (report.sessions, report.expired, report.dry_run) == (["telegram_1"], 0, True)
        assert await names(manager) == {"1", "2"}
        assert (await manager.sweep()).sessions == ["telegram_1"]


async def test_the_log_says_beforehand_what_the_next_sweep_will_take(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with home.open(sweep_interval_s=DAY) as manager:
        await say(manager)
        await home.passed(FIRST_SWEEP_S)
        for _ in range(31):
            await home.passed(DAY)
    told, done = caplog.text.index("action='sweep.next'"), caplog.text.index("expired=1")
    assert told < done
    assert "telegram_1" in caplog.text[told:done]
    at = re.search(r"at='(\S+Z)'", caplog.text[told:done])
    assert at is not None, caplog.text[told:done]
    assert datetime.fromisoformat(at[1]).tzinfo is not None


async def test_what_expires_for_good_is_in_no_file_when_the_sweep_is_over(home: Home) -> None:
    async with home.open("sqlite:", archive_expired=False) as manager:
        for number in range(60):
            await say(manager, f"xylophonist {number}")
        await manager.flush()
        await home.passed(FIRST_SWEEP_S)
        await home.passed(31 * DAY)
        assert (await manager.sweep()).expired == 1
        files = [path for path in home.workspace.rglob("*") if path.is_file()]
        assert [path.name for path in files if b"xylophonist" in path.read_bytes()] == []


async def test_what_a_sweep_could_not_empty_the_next_one_does(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [StoreUnavailable("not now"), False, True]
    asked: list[object] = []

    async def purge() -> bool:
        asked.append(answer := answers[len(asked)])
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    monkeypatch.setattr(home.store, "purge", purge)
    async with home.open(archive_expired=False) as manager:
        await say(manager)
        await home.clock.advance(31 * DAY)
        reports = [await manager.sweep() for _ in range(5)]
        assert [report.expired for report in reports] == [1, 0, 0, 0, 0]
        assert asked == answers
        told = ["the store's log, because it is being read: it is emptied by the next deletion"]
        assert [report.remains for report in reports] == [told, told, [], [], []]


async def test_a_sweep_that_cannot_delete_from_the_archive_reports_what_it_has_removed(home: Home) -> None:
    async with home.open(archive_days=40) as manager:
        swept: list[str] = []
        manager.events.swept.subscribe(swept.append)
        await say(manager, chat_id="1")
        await home.passed(31 * DAY)
        await manager.sweep()
        (outdated,) = home.archived()
        content = outdated.read_bytes()
        outdated.unlink()
        (outdated / "in the way").mkdir(parents=True)
        await home.passed(20 * DAY)
        await say(manager, chat_id="2")
        await home.passed(31 * DAY)
        swept.clear()
        report = await manager.sweep()
        assert (report.sessions, report.forgotten, swept) == (["telegram_2"], [], ["telegram_2"])
        (outdated / "in the way").rmdir()
        outdated.rmdir()
        outdated.write_bytes(content)
        report = await manager.sweep()
        assert (report.forgotten, swept) == ([outdated.name], ["telegram_2", "telegram_1"])


# --- wrong clocks ----------------------------------------------------------------------------------------------------


async def test_a_jump_forward_while_running_expires_nobody(home: Home) -> None:
    async with home.open() as manager:
        await say(manager)
        await home.clock.advance(10 * DAY)
        home.clock.jump(YEARS)
        await say(manager, chat_id="2")
        assert (await manager.sweep()).expired == 0
        await home.clock.advance(19 * DAY)
        assert (await manager.sweep()).expired == 0
        await home.clock.advance(2 * DAY)  # 31 days of its own time
        assert (await manager.sweep()).expired == 1
        assert await names(manager) == {"2"}


async def test_a_jump_forward_is_forgiven_for_good_to_sessions_that_sleep(home: Home) -> None:
    async with home.open() as manager:
        await say(manager)
        await home.clock.advance(10 * DAY)
    async with home.open() as manager:
        home.clock.jump(YEARS)
        assert (await manager.sweep()).expired == 0
        await say(manager, chat_id="2")  # so that the next start believes the clock
    async with home.open() as manager:
        assert (await manager.sweep()).expired == 0
        await home.clock.advance(19 * DAY)
        assert (await manager.sweep()).expired == 0
        await home.clock.advance(2 * DAY)
        assert (await manager.sweep()).expired == 1
        assert await names(manager) == {"2"}


async def test_sleeping_sessions_count_as_looked_at_by_a_sweep(home: Home) -> None:
    async with home.open() as manager:
        await say(manager)
        await say(manager, chat_id="2")
    async with home.open() as manager:
        assert (await manager.sweep()).scanned == 2


async def test_a_jump_backward_while_running_expires_nobody_and_flushing_goes_on(home: Home) -> None:
    async with home.open(flush_interval_s=30) as manager:
        await say(manager)
        home.clock.jump(-YEARS)
        await say(manager)
        assert (await manager.sweep()).expired == 0
        await home.clock.advance(31)
        await manager.flush()
        assert manager.statistics().flushes == 2
        home.clock.jump(YEARS)
        assert (await manager.sweep()).expired == 0


async def test_small_corrections_are_no_jump(home: Home) -> None:
    async with home.open() as manager:
        await say(manager)
        await home.clock.advance(30 * DAY - 100)
        home.clock.jump(200)
        assert (await manager.sweep()).expired == 1


@pytest.mark.parametrize("days", [YEARS / DAY, -YEARS / DAY])
async def test_a_clock_that_is_wrong_at_the_start_expires_nobody_before_people_could_come_back(
    home: Home, days: float
) -> None:
    async with home.open() as manager:
        await say(manager, chat_id="1")
        await say(manager, chat_id="2")
    home.clock.jump(days * DAY)
    async with home.open(sweep_interval_s=DAY) as manager:
        report = await manager.sweep()
        assert (report.expired, bool(report.postponed)) == (0, True)
        await say(manager, chat_id="2")
        await home.clock.advance(DAY - 1)
        assert (await manager.sweep()).expired == 0
        await home.clock.advance(2)
        report = await manager.sweep()
        assert report.postponed is None
        assert "2" in await names(manager)


async def test_a_time_in_the_future_counts_as_now(home: Home) -> None:
    home.clock.jump(YEARS)
    async with home.open() as manager:
        await say(manager)
    home.clock.jump(-YEARS)
    async with home.open(sweep_interval_s=DAY) as manager:
        await home.clock.advance(40 * DAY)
        await manager.get_or_create("telegram", "1")
        assert (await manager.sweep()).expired == 0
        assert (await manager.get("telegram", "1")).last_accessed - home.clock.now() > timedelta(days=365)
