"""Retention by channel, forgetting by rule, everything about a person, legal holds: in every store."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import anyio
import msgspec
import pytest

from miniclaw_sessions.config import RetentionSettings, SessionSettings
from miniclaw_sessions.core.manager import SessionManager, open_readonly, reading
from miniclaw_sessions.core.manager.local import LocalPopulation
from miniclaw_sessions.core.manager.reading import Reader
from miniclaw_sessions.core.persistence.archive import ArchiveDirectory
from miniclaw_sessions.core.protocol.entries import LEGAL_HOLD, SUSPENDED
from miniclaw_sessions.core.protocol.keys import KeyBounds
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.sharing import lists
from miniclaw_sessions.core.stores.copying import copy_store
from miniclaw_sessions.errors import InvalidSearch, NotPermitted, SessionHeld, SessionNotFound, StoreUnavailable
from miniclaw_sessions.files.formats.registry import format_named
from miniclaw_sessions.files.transfer import backup, copying, forgetting
from miniclaw_sessions.files.transfer.forgetting import (
    Seen,
    SelectedSession,
    Selection,
    compare_with_seen,
    forget,
    select_sessions,
)
from miniclaw_sessions.files.transfer.importing import import_stream
from miniclaw_sessions.files.transfer.person import person_archive
from miniclaw_sessions.service.api.bounded import BoundedSessions
from miniclaw_sessions.testing import FakeClock
from tests.postgresql import PostgreSQLServer
from tests.sampled import sampled

pytestmark = pytest.mark.anyio
DAY = 86_400.0
WORDS = "xylophone"
IN_FILES = pytest.mark.parametrize("home", ["sqlite:", "jsonl:"], indirect=True)
"""For what a database that others have, too, knows nothing of: this machine's clock, and directories of backups."""


NOT_INDEXED = """SELECT FROM sessions LEFT JOIN searched USING (session_id)
    WHERE last_sequence > coalesce(searched.sequence, 0)"""


class Home:
    """Sessions in a store of some kind, and a way to let time pass for it."""

    def __init__(self, directory: Path, store: str, server: PostgreSQLServer | None) -> None:
        self.directory = directory
        self.store = store
        self.server = server
        self.clock = FakeClock()

    @property
    def settings(self) -> dict[str, Any]:
        return {"store": self.store, "sweep_interval_s": 9 * 365 * DAY, "flush_interval_s": 9 * 365 * DAY}

    @asynccontextmanager
    async def open(self, **settings: Any) -> AsyncIterator[SessionManager]:
        chosen = SessionSettings(**{**self.settings, **settings})
        clock = self.clock if self.server is None else None
        async with SessionManager(self.directory, settings=chosen, clock=clock) as manager:
            yield manager

    async def wait(self, manager: SessionManager, days: float) -> None:
        """Nobody comes for so many days."""
        await manager.flush()
        await manager.sweep(dry_run=True)  # has seen that somebody was there: the clock is not doubted
        if self.server is None:
            await self.clock.advance(days * DAY)
            return
        database = self.store.rpartition("/")[2].partition("?")[0]
        with anyio.fail_after(60):  # what is just indexed is locked, and expires only at the sweep after this one
            while await self.server.execute(NOT_INDEXED, database):  # noqa: ASYNC110 - another task's work in a database
                await anyio.sleep(0.01)
        await self.server.execute(f"UPDATE sessions SET used_at = used_at - INTERVAL '{days} days'", database)


@pytest.fixture(params=sampled(["sqlite:", "jsonl:", "postgresql:"], every=3))
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    if request.param != "postgresql:":
        return Home(tmp_path / "w", request.param, None)
    url = request.getfixturevalue("postgresql_url")
    return Home(tmp_path / "w", url, request.getfixturevalue("postgresql"))


async def say(manager: SessionManager, channel: str, chat_id: str, *said: str, author: str | None = None) -> Session:
    session = await manager.get_or_create(channel, chat_id)
    for text in said or ("hello",):
        await session.add_message(msgspec.structs.replace(Message.user(text), author=author))
    return session


async def ids(manager: SessionManager) -> set[str]:
    return {row.session_id for row in await manager.list()}


async def found(manager: SessionManager, **which: Any) -> list[SelectedSession]:
    return [one async for one in select_sessions(manager, Selection(**which))]


async def names(manager: SessionManager, **which: Any) -> set[str]:
    return {one.session_id for one in await found(manager, **which)}


def files_with(directory: Path, words: str) -> list[str]:
    return [file.name for file in directory.rglob("*") if file.is_file() and words.encode() in file.read_bytes()]


# --- retention -------------------------------------------------------------------------------------------------------


async def test_each_channel_is_kept_for_as_long_as_its_rule_says(home: Home) -> None:
    rules = {
        "telegram": RetentionSettings(ttl_days=7, archive_expired=False),
        "law": RetentionSettings(ttl_days=0),
    }
    async with home.open(retention=rules) as manager:
        for channel in ("telegram", "law", "web"):
            await say(manager, channel, "1")
        await home.wait(manager, 8)
        listed = await manager.sweep(dry_run=True)
        assert (listed.sessions, listed.expired) == (["telegram_1"], 0)
        done = await manager.sweep()
        assert (done.sessions, done.archived) == (["telegram_1"], 0)
        assert await manager.archive.names() == []
        await home.wait(manager, 30)
        done = await manager.sweep()
        assert (done.sessions, done.archived) == (["web_1"], 1)
        await home.wait(manager, 900)
        assert (await manager.sweep()).sessions == []
        assert await ids(manager) == {"law_1"}


@IN_FILES
async def test_the_archive_forgets_after_its_time(home: Home) -> None:
    rules = {"telegram": RetentionSettings(archive_days=10)}
    async with home.open(retention=rules) as manager:
        await say(manager, "telegram", "1", WORDS)
        await say(manager, "web", "1")
        await home.wait(manager, 31)
        assert (await manager.sweep()).archived == 2
        await home.clock.advance(9 * DAY)
        assert (await manager.sweep()).forgotten == []
        await home.clock.advance(2 * DAY)
        (name,) = (await manager.sweep(dry_run=True)).forgotten
        gone = list[str]()
        manager.events.swept.subscribe(gone.append)
        assert (await manager.sweep()).forgotten == [name]
        assert gone == ["telegram_1"]
        assert [one.partition("-")[2] for one in await manager.archive.names()] == ["web_1.jsonl"]
    assert files_with(home.directory / "archive", WORDS) == []


@IN_FILES
async def test_a_jump_of_the_clock_takes_nothing_from_the_archive(home: Home) -> None:
    async with home.open(archive_days=10, sweep_interval_s=DAY) as manager:
        await say(manager, "telegram", "1", WORDS)
        await home.wait(manager, 31)
        await manager.sweep()
        (name,) = await manager.archive.names()
        home.clock.jump(365 * DAY)
        for _ in range(2):
            assert (await manager.sweep()).forgotten == []
        home.clock.jump(-365 * DAY)
        await manager.sweep()
        assert await manager.archive.names() == [name]
        await home.clock.advance(11 * DAY)
        assert await manager.archive.names() == []


async def test_whoever_only_reads_lists_the_same(home: Home) -> None:
    rules = {"telegram": RetentionSettings(ttl_days=7)}
    async with home.open(retention=rules) as manager:
        for chat_id in ("1", "2"):
            await say(manager, "telegram", chat_id)
        await manager.hold("telegram_2", "case 12")
        await say(manager, "web", "1")
        await home.wait(manager, 8)
        listed = await manager.sweep(dry_run=True)
        assert (listed.sessions, listed.held) == (["telegram_1"], ["telegram_2"])
        settings = SessionSettings(**{**home.settings, "retention": rules})
        clock = home.clock if home.server is None else None
        async with open_readonly(home.directory, settings=settings, clock=clock) as reader:
            report = await reader.sweep(dry_run=True)
            assert (report.sessions, report.held) == (listed.sessions, listed.held)
            assert [one.session_id async for one in select_sessions(reader, Selection(channel="web"))] == ["web_1"]


# --- legal hold ------------------------------------------------------------------------------------------------------


async def test_nothing_deletes_what_is_held_until_that_ends(home: Home) -> None:
    async with home.open() as manager:
        await say(manager, "telegram", "1")
        await say(manager, "telegram", "2")
        await manager.hold("telegram_1", "case 12")
    async with home.open() as manager:  # it is as durable as a message
        with pytest.raises(SessionHeld, match="case 12"):
            await manager.delete("telegram_1")
        await home.wait(manager, 40)
        report = await manager.sweep()
        assert (report.sessions, report.held) == (["telegram_2"], ["telegram_1"])
        done = await forget(manager, await found(manager, channel="telegram"))
        assert ([one.session_id for one in done.gone], [one.held for one in done.held]) == (["telegram_2"], ["case 12"])
        assert await ids(manager) == {"telegram_1"}
        await manager.hold("telegram_1", None)
        assert await manager.delete("telegram_1")
        assert await ids(manager) == set()


async def test_a_hold_that_comes_while_a_session_is_deleted_is_kept(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with home.open() as manager:
        session = await say(manager, "telegram", "1")
        complete = manager._background.complete

        async def meanwhile(step: Callable[[], Awaitable[None]]) -> None:
            session.journal.note({LEGAL_HOLD: "case 12"})
            await complete(step)

        with monkeypatch.context() as patch:
            patch.setattr(manager._background, "complete", meanwhile)
            with pytest.raises(SessionHeld):
                await manager.delete("telegram_1")
        assert session.journal.legal_hold == "case 12"
        await session.add_message(Message.user("still here"))
        assert [message.text for message in (await manager.find("telegram_1")).messages()] == ["hello", "still here"]


async def test_nobody_else_can_set_or_end_a_hold(home: Home) -> None:
    async with home.open() as manager:
        session = await say(manager, "telegram", "1")
        with pytest.raises(Exception, match="are ours"):
            session.update(**{"session.legal_hold": "mine"})
        await manager.hold("telegram_1", "case 12")
        with pytest.raises(Exception, match="are ours"):
            session.update(**{"session.legal_hold": None})


async def test_what_is_not_there_cannot_be_held(home: Home) -> None:
    async with home.open() as manager:
        with pytest.raises(SessionNotFound):
            await manager.hold("telegram_1", "case 12")


# --- by rule ---------------------------------------------------------------------------------------------------------


async def test_a_rule_means_what_all_of_it_is_true_of(home: Home) -> None:
    async with home.open() as manager:
        await say(manager, "telegram", "1")
        await say(manager, "web", "1")
        await home.wait(manager, 10)
        await say(manager, "telegram", "2", "from Anna", author="Anna")
        assert await names(manager, channel="telegram") == {"telegram_1", "telegram_2"}
        assert await names(manager, older_than_s=5 * DAY) == {"telegram_1", "web_1"}
        assert await names(manager, channel="telegram", older_than_s=5 * DAY) == {"telegram_1"}
        assert await names(manager, user="1") == {"telegram_1", "web_1"}
        assert await names(manager, user="Anna") == {"telegram_2"}
        assert await names(manager, user="Ann") == set()
        assert await names(manager, user="1", channel="web", older_than_s=5 * DAY) == {"web_1"}
        assert await names(manager, older_than_s=50 * DAY) == set()
        with pytest.raises(InvalidSearch, match="say which sessions"):
            await found(manager)


async def test_a_person_is_found_who_only_agreed_to_a_call(home: Home) -> None:
    async with home.open() as manager:
        session = await say(manager, "telegram", "group", "look", author="Anna")
        answer = {"approved": ["call_1"], "refused": [], "author": "4711"}
        await session.tree.append_custom_entry(SUSPENDED, {"calls": [], "answer": answer, "key": "7"})
        await session.tree.append_custom_entry(SUSPENDED, {"calls": [], "answer": "4711"})  # nobody's form
        assert [(one.session_id, one.messages) for one in await found(manager, user="4711")] == [("telegram_group", 1)]


async def test_a_person_is_found_in_what_was_cleared_and_in_what_has_expired(home: Home) -> None:
    async with home.open() as manager:
        cleared = await say(manager, "telegram", "group", "from Anna", author="Anna")
        cleared.clear()
        await cleared.saved()
        await say(manager, "telegram", "old", "from Anna", "and again", author="Anna")
        await say(manager, "telegram", "Anna", "to the bot")
        await home.wait(manager, 40)
        await manager.get_or_create("telegram", "group")
        assert (await manager.sweep()).archived == 2
        one = {each.session_id: each for each in await found(manager, user="Anna")}
        assert {name: (each.is_chat, each.messages) for name, each in one.items()} == {
            "telegram_group": (False, 1),
            "telegram_old": (False, 2),
            "telegram_Anna": (True, 0),
        }
        assert one["telegram_group"].archived is None
        assert one["telegram_old"].archived is not None


async def test_what_is_used_or_begun_while_others_are_read_is_found_and_is_no_longer_old(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "PAGE", 2)
    async with home.open() as manager:

        async def busy(reader: Reader, session_id: str) -> Session:
            monkeypatch.setattr(forgetting, "find", reading.find)
            for chat_id in ("0", f"new-{session_id}"):
                await say(manager, "web", chat_id, author="Anna")
            return await reading.find(reader, session_id)

        everybody = {(await say(manager, "web", str(number), author="Anna")).session_id for number in range(5)}
        monkeypatch.setattr(forgetting, "find", busy)
        assert await names(manager, user="Anna") == everybody | {"web_new-web_4"}
        await home.wait(manager, 10)
        monkeypatch.setattr(forgetting, "find", busy)
        old = await names(manager, older_than_s=5 * DAY)
        assert len(old) == 5
        assert "web_0" not in old


async def test_a_person_is_found_whose_expired_session_comes_back_meanwhile(home: Home) -> None:
    async with home.open() as manager:
        await say(manager, "telegram", "1", "from Anna", author="Anna")
        await say(manager, "telegram", "2", "from Anna", author="Anna")
        await home.wait(manager, 40)
        assert (await manager.sweep()).archived == 2
        await say(manager, "web", "1", "from Anna", author="Anna")
        chosen = dict[str, bool]()
        async for one in select_sessions(manager, Selection(user="Anna")):
            chosen[one.session_id] = one.archived is not None
            if one.session_id != "telegram_2" and await manager.archive.has("telegram_2"):
                await manager.restore("telegram_2")  # the lists were read
        assert chosen == {"web_1": False, "telegram_1": True, "telegram_2": False}
        assert "telegram_2" not in await names(manager, older_than_s=20 * DAY)


async def test_nothing_is_older_than_the_calendar(home: Home) -> None:
    async with home.open() as manager:
        await say(manager, "web", "1")
        await home.wait(manager, 10)
        for seconds in (6.2e10, 1e11, 1e300):
            assert await found(manager, older_than_s=seconds) == []


async def test_what_is_forgotten_is_gone_from_store_files_archive_and_search(home: Home) -> None:
    async with home.open() as manager:
        await say(manager, "telegram", "1", WORDS)
        await say(manager, "telegram", "2", "something else")
        await home.wait(manager, 40)
        await manager.sweep()
        await say(manager, "web", "1", f"{WORDS} by Anna", author="Anna")
        await say(manager, "web", "2", "what stays")
        await manager.flush()
        done = await forget(manager, [*await found(manager, channel="telegram"), *await found(manager, user="Anna")])
        assert {one.session_id for one in done.gone} == {"telegram_1", "telegram_2", "web_1"}
        assert [sentence.partition(",")[0] for sentence in done.remains] == (
            [] if home.server is None else ["the server's own files and log"]
        )
        assert list((await manager.search(WORDS)).results) == []
        assert await manager.archive.names() == []
        assert await ids(manager) == {"web_2"}
        assert files_with(home.directory, WORDS) == []
        with pytest.raises(SessionNotFound):
            await manager.restore("telegram_1")
        assert await found(manager, user="Anna") == []
    if home.server is not None:
        database = home.store.rpartition("/")[2].partition("?")[0]
        for table in ("entries", "checkpoints", "archive"):
            rows = await home.server.execute(f"SELECT {table}::text FROM {table}", database)
            assert not any(WORDS.encode().hex() in str(row) or WORDS in str(row) for row in rows)


@IN_FILES
async def test_the_archive_keeps_a_copy_of_what_is_in_use_again_and_held(home: Home) -> None:
    settings: dict[str, Any] = {"ttl_days": 2, "archive_days": 5, "restore_archived": False}
    async with home.open(**settings) as manager:
        await say(manager, "law", "1", "evidence")
        await home.wait(manager, 4)
        assert (await manager.sweep()).archived == 1
        (name,) = await manager.archive.names()
        await say(manager, "law", "1", "again")
        await manager.hold("law_1", "case 12")
        await home.clock.advance(6 * DAY)
        for dry_run in (True, False):
            swept = await manager.sweep(dry_run=dry_run)
            assert (swept.held, swept.forgotten) == (["law_1"], [])
        assert await manager.archive.names() == [name]
        await manager.flush()
        chosen = SessionSettings(**{**home.settings, **settings})
        async with open_readonly(home.directory, settings=chosen, clock=home.clock) as reader:
            swept = await reader.sweep(dry_run=True)
            assert (swept.held, swept.forgotten) == (["law_1"], [])
        await manager.hold("law_1", None)
        assert name in (await manager.sweep()).forgotten


@IN_FILES
async def test_the_archive_keeps_a_copy_of_what_is_held_while_a_sweep_runs(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with home.open(ttl_days=2, archive_days=5, restore_archived=False) as manager:
        await say(manager, "law", "1", "evidence")
        await home.wait(manager, 4)
        assert (await manager.sweep()).archived == 1
        (name,) = await manager.archive.names()
        await say(manager, "law", "1", "again")
        await home.clock.advance(6 * DAY)
        remove = LocalPopulation.remove

        async def meanwhile(population: LocalPopulation, idle: list[str]) -> dict[str, int]:
            await manager.hold("law_1", "case 12")
            return await remove(population, idle)

        monkeypatch.setattr(LocalPopulation, "remove", meanwhile)
        swept = await manager.sweep()
        assert (swept.sessions, swept.held, swept.forgotten) == ([], ["law_1"], [])
        assert await manager.archive.names() == [name]


async def test_an_archived_copy_stays_where_its_session_is_held_since_it_was_chosen(home: Home) -> None:
    async with home.open(restore_archived=False) as manager:
        await say(manager, "telegram", "1", WORDS)
        await home.wait(manager, 40)
        await manager.sweep()
        await say(manager, "telegram", "1", "anew")
        chosen = await found(manager, user="1")
        await manager.hold("telegram_1", "case 12")
        done = await forget(manager, chosen)
        assert (done.gone, len(done.held), len(done.changed)) == ([], 1, 1)
        assert len(await manager.archive.names()) == 1


@IN_FILES
async def test_a_hold_that_comes_while_a_session_is_archived_keeps_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with home.open() as manager:
        await say(manager, "law", "1", "evidence")
        await home.wait(manager, 40)
        write = ArchiveDirectory.write

        async def meanwhile(archive: ArchiveDirectory, *asked: Any) -> str:
            name = await write(archive, *asked)
            await manager.hold("law_1", "case 12")
            return name

        monkeypatch.setattr(ArchiveDirectory, "write", meanwhile)
        assert (await manager.sweep()).sessions == []
        assert await manager.archive.names() == []
        with pytest.raises(SessionHeld):
            await manager.delete("law_1")


async def test_what_was_seen_is_still_meant_when_it_has_expired_since_and_not_when_it_has_grown(home: Home) -> None:
    async with home.open() as manager:
        for chat_id in ("1", "2"):
            await say(manager, "telegram", chat_id)
        seen = {one.session_id: Seen(one.entries, one.incarnation) for one in await found(manager, channel="telegram")}
        await home.wait(manager, 40)
        await say(manager, "telegram", "2", "again")
        assert (await manager.sweep()).sessions == ["telegram_1"]
        await say(manager, "telegram", "3")
        same, changed = await compare_with_seen(manager, await found(manager, channel="telegram"), seen)
        assert [(one.session_id, one.archived is None) for one in same] == [("telegram_1", False)]
        assert [one.session_id for one in changed] == ["telegram_2"]
        assert await compare_with_seen(manager, [], seen) == ([], changed)


async def test_what_was_seen_is_not_the_session_that_was_made_after_it_with_as_many_entries(home: Home) -> None:
    async with home.open() as manager:
        await say(manager, "telegram", "1")
        (before,) = await found(manager, channel="telegram")
        await manager.delete("telegram_1")
        await say(manager, "telegram", "1", "something new")
        chosen = await found(manager, channel="telegram")
        for incarnation, is_meant in ((before.incarnation, False), (chosen[0].incarnation, True), (None, True)):
            seen = {"telegram_1": Seen(before.entries, incarnation)}
            same, changed = await compare_with_seen(manager, chosen, seen)
            assert (same, changed) == ((chosen, []) if is_meant else ([], chosen))


async def test_what_is_used_meanwhile_stays(home: Home) -> None:
    async with home.open() as manager:
        session = await say(manager, "telegram", "1")
        chosen = await found(manager, channel="telegram")
        await session.add_message(Message.user("wait"))
        done = await forget(manager, chosen)
        assert (done.gone, [one.session_id for one in done.changed]) == ([], ["telegram_1"])
        assert await ids(manager) == {"telegram_1"}


@IN_FILES
async def test_an_archived_session_whose_chat_speaks_again_meanwhile_is_not_said_to_be_forgotten(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with home.open() as manager:
        await say(manager, "telegram", "1", WORDS)
        await home.wait(manager, 40)
        await manager.sweep()
        chosen = await found(manager, channel="telegram")
        is_begun, go_on = anyio.Event(), anyio.Event()
        read = manager.archive.read

        async def read_slowly(name: str) -> AsyncIterator[bytes]:
            head, *entries = b"".join([piece async for piece in read(name)]).splitlines(keepends=True)
            yield head
            is_begun.set()
            await go_on.wait()
            yield b"".join(entries)

        monkeypatch.setattr(manager.archive, "read", read_slowly)
        reports = list[forgetting.Forgotten]()

        async def forget_it() -> None:
            reports.append(await forget(manager, chosen))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say, manager, "telegram", "1", "again")
            await is_begun.wait()
            tasks.start_soon(forget_it)
            await anyio.wait_all_tasks_blocked()
            go_on.set()
        assert [(one.gone, [each.session_id for each in one.changed]) for one in reports] == [([], ["telegram_1"])]
        session = await manager.get_or_create("telegram", "1")
        assert [message.text for message in session.messages()] == [WORDS, "again"]


async def test_an_archived_copy_of_what_is_held_stays_with_it(home: Home) -> None:
    async with home.open(restore_archived=False) as manager:
        await say(manager, "telegram", "1", WORDS)
        await home.wait(manager, 40)
        await manager.sweep()
        await say(manager, "telegram", "1", "anew")
        await manager.hold("telegram_1", "case 12")
        done = await forget(manager, await found(manager, user="1"))
        assert (done.gone, len(done.held)) == ([], 2)
        assert len(await manager.archive.names()) == 1


async def test_a_deletion_that_fails_leaves_the_archived_copies_and_they_go_when_it_is_tried_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with home.open(restore_archived=False) as manager:
        await in_use_and_archived(home, manager)
        for failing, name, left in (
            (manager._registry.store, "delete", {"telegram_1"}),
            (manager.archive, "forget", set[str]()),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(failing, name, unavailable)
                with pytest.raises(StoreUnavailable):
                    await manager.delete("telegram_1")
            assert await ids(manager) == left
            assert len(await manager.archive.names()) == 1
        assert await manager.delete("telegram_1")
        assert await manager.archive.names() == []


async def test_who_speaks_while_a_session_is_deleted_is_not_given_an_archived_copy_of_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with home.open(restore_archived=False) as manager:
        await in_use_and_archived(home, manager)
    async with home.open() as manager, anyio.create_task_group() as tasks:
        forget_archived = manager.archive.forget

        async def meanwhile(session_id: str, *, look_again: bool = False) -> int:
            tasks.start_soon(say, manager, "telegram", "1", "after")
            await anyio.wait_all_tasks_blocked()
            return await forget_archived(session_id, look_again=look_again)

        monkeypatch.setattr(manager.archive, "forget", meanwhile)
        assert await manager.delete("telegram_1")
        session = await manager.get_or_create("telegram", "1")
        assert WORDS not in {message.text for message in session.messages()}


async def in_use_and_archived(home: Home, manager: SessionManager) -> None:
    """A session that has expired, and whose chat has begun anew."""
    await say(manager, "telegram", "1", WORDS)
    await home.wait(manager, 40)
    await manager.sweep()
    await say(manager, "telegram", "1", "anew")


async def unavailable(*_: object, **__: object) -> None:
    raise StoreUnavailable("not now")


@IN_FILES
async def test_backups_are_named(home: Home, tmp_path: Path) -> None:
    async with home.open() as manager:
        await say(manager, "telegram", "1", WORDS)
        await backup.back_up(manager, tmp_path / "backup")
        done = await forget(manager, await found(manager, user="1"))
        assert any(str(tmp_path / "backup") in sentence for sentence in done.remains)


@pytest.mark.parametrize("comes_back", [False, True], ids=["expires", "comes-back"])
async def test_a_session_that_expires_or_comes_back_while_a_backup_is_made_is_in_it(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    async with home.open() as manager:

        async def copy_meanwhile(*arguments: Any, **options: Any) -> Any:
            if not comes_back:
                assert (await manager.sweep()).archived == 1
            copied = await copy_store(*arguments, **options)
            if comes_back:
                await manager.restore("telegram_1")
            return copied

        await say(manager, "telegram", "1", WORDS)
        await home.wait(manager, 40)
        await say(manager, "telegram", "2", "another")
        if comes_back:
            assert (await manager.sweep()).archived == 1
        monkeypatch.setattr(copying, "copy_store", copy_meanwhile)
        await backup.back_up(manager, tmp_path / "backup")
        monkeypatch.undo()
    assert (await backup.verify_backup(tmp_path / "backup")).problems == []
    settings = SessionSettings(store="sqlite:")
    await backup.restore(tmp_path / "backup", tmp_path / "again", settings)
    async with SessionManager(tmp_path / "again", settings=settings) as manager:
        assert [message.text for message in (await manager.get_or_create("telegram", "1")).messages()] == [WORDS]


async def test_whoever_sees_only_some_sessions_forgets_none_by_rule(home: Home) -> None:
    async with home.open() as manager:
        await say(manager, "telegram", "1")
        bounded = BoundedSessions(manager, KeyBounds(frozenset({"telegram"})), lambda _: None)
        with pytest.raises(NotPermitted):
            await found(bounded, channel="telegram")  # type: ignore[arg-type]


# --- everything about a person ---------------------------------------------------------------------------------------


async def test_everything_about_a_person_is_one_archive_that_can_be_read_and_taken_in_again(home: Home) -> None:
    async with home.open() as manager:
        await say(manager, "telegram", "a_b", "the old words", author="Anna")
        await home.wait(manager, 40)
        await manager.sweep()
        session = await say(manager, "web", "1", f"{WORDS} <b>", author="Anna")
        session.update(title="Tea & <cake>")
        await session.saved()
        await say(manager, "web", "2", "nothing of hers")
        chosen = await found(manager, user="Anna")
        packed = b"".join([piece async for piece in person_archive(manager, "Anna", chosen)])
        made = ZipFile(io.BytesIO(packed))
        assert made.testzip() is None
        (archived,) = await manager.archive.names()
        assert made.namelist() == [
            "index.html",
            "index.json",
            "sessions/web_1.html",
            "sessions/web_1.jsonl",
            f"archive/{archived}",
        ]
        index = made.read("index.html").decode()
        assert "Everything about Anna" in index
        assert "Tea &amp; &lt;cake&gt;" in index
        assert json.loads(made.read("index.json"))["sessions"][0]["messages"] == 1
        assert WORDS in made.read("sessions/web_1.html").decode()
        assert b"the old words" in made.read(f"archive/{archived}")

        async def whole() -> AsyncIterator[bytes]:
            yield made.read("sessions/web_1.jsonl")

        report = await import_stream(
            manager, whole(), name="again", key=(await manager.get_or_create("x", "y")).key._replace(chat_id="z")
        )
        again = await manager.find(report.session_id)
        assert [message.text for message in again.messages()] == [f"{WORDS} <b>"]
        assert format_named("jsonl").suffix == ".jsonl"
        assert chosen[0].last_used - chosen[1].last_used > timedelta(0)


async def test_no_date_keeps_a_session_for_ever_or_breaks_a_persons_archive(
    home: Home,
) -> None:
    async with home.open() as manager:
        for year in ("9999", "1970"):
            lines = [
                {"type": "session", "version": 1, "id": year},
                {"type": "message", "id": "a1", "parent_id": None, "timestamp": f"{year}-01-01T00:00:01Z"}
                | {"message": {"role": "user", "content": WORDS, "author": "Anna"}},
            ]

            async def file(lines: Any = lines) -> AsyncIterator[bytes]:
                yield "\n".join(map(json.dumps, lines)).encode()

            report = await import_stream(manager, file(), name=year)
            assert (await manager.find(report.session_id)).last_accessed <= manager.clock.now()
        chosen = [
            msgspec.structs.replace(one, last_used=one.last_used.replace(year=year))
            for year in (1970, 9999)
            for one in await found(manager, user="Anna")
        ]
        packed = b"".join([piece async for piece in person_archive(manager, "Anna", chosen[1:3])])
        assert ZipFile(io.BytesIO(packed)).testzip() is None
        await home.wait(manager, 40)
        assert len((await manager.sweep()).sessions) == 2
