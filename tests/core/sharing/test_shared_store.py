"""A manager over a database that several share: without a directory, with all that is beside the entries in there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import asyncpg
import pytest
from structlog.testing import capture_logs

from miniclaw_sessions import Message, SessionManager, SessionSettings
from miniclaw_sessions.core.manager import open_readonly, registry
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.positions import ListPosition
from miniclaw_sessions.core.stores.postgresql.connections import Connections
from miniclaw_sessions.core.stores.postgresql.store import PostgreSQLStore
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import (
    KeyNeeded,
    NotAWorkspace,
    NotEncrypted,
    ReadOnlyWorkspace,
    SessionDeleted,
    SessionExists,
    SessionLimit,
    SessionNotFound,
    StoreConflict,
    StoreUnavailable,
    WrongKey,
)
from miniclaw_sessions.service.client import connect
from miniclaw_sessions.testing import FakeClock
from tests.command_line import Cli
from tests.core.sharing.modes import shared_mode
from tests.postgresql import PostgreSQLServer
from tests.texts import texts_of

pytestmark = pytest.mark.anyio


class Database:
    """A database, and managers on it as gateways have them."""

    def __init__(self, server: PostgreSQLServer, url: str) -> None:
        self.url = url
        self._server = server
        self._managers: list[SessionManager] = []

    async def execute(self, statement: str) -> list[tuple[Any, ...]]:
        rows = await self._server.execute(statement, urlsplit(self.url).path.strip("/"))
        return [tuple(row) for row in rows]

    @asynccontextmanager
    async def managers(self, count: int = 2, **settings: Any) -> AsyncIterator[list[SessionManager]]:
        async with AsyncExitStack() as stack:
            self._managers = [
                await stack.enter_async_context(SessionManager(store=self.url, settings=SessionSettings(**settings)))
                for _ in range(count)
            ]
            yield self._managers

    async def make_idle(self, *session_ids: str, days: int = 40) -> None:
        for manager in self._managers:  # has seen that somebody was there not long ago: it does not doubt the clock
            await manager.sweep(dry_run=True)
        names = ", ".join(f"'{one}'" for one in session_ids)
        await self.execute(
            f"UPDATE sessions SET used_at = used_at - INTERVAL '{days} days' WHERE session_id IN ({names})"
        )


@pytest.fixture
def database(postgresql: PostgreSQLServer, postgresql_url: str) -> Database:
    return Database(postgresql, postgresql_url)


def files_in(directory: Path) -> list[Path]:
    return list(directory.rglob("*"))


async def say(manager: SessionManager, chat: int | str, *said: str) -> None:
    session = await manager.get_or_create("telegram", chat)
    await session.add_messages([Message.user(text) for text in said])


# --- no directory ----------------------------------------------------------------------------------------------------


async def test_no_file_of_ours_is_made_anywhere(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    async with database.managers() as (one, other):
        assert one.workspace is None
        await say(one, 1, "hello")
        await one.flush()
        assert texts_of((await other.get("telegram", 1)).messages()) == ["hello"]
        await other.delete("telegram_1")
    assert files_in(tmp_path) == []


async def test_a_database_is_named_where_a_directory_is(database: Database, tmp_path: Path) -> None:
    async with SessionManager(database.url) as manager:
        await say(manager, 1, "hello")
    async with SessionManager(tmp_path / "not-made", store=database.url) as manager:
        assert texts_of((await manager.get("telegram", 1)).messages()) == ["hello"]
        assert manager.workspace is None
    assert not (tmp_path / "not-made").exists()


# --- checkpoints -----------------------------------------------------------------------------------------------------


async def test_a_session_is_loaded_from_its_checkpoint_in_one_round_trip(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [str(number) for number in range(120)]
    async with database.managers(1) as (one,):
        await say(one, 1, *said[:100])
        await one.flush()
        await say(one, 1, *said[100:])
        assert await database.execute("SELECT sequence FROM checkpoints") == [(100,)]
        async with database.managers(1) as (other,):
            asked = []
            fetch = Connections.fetch
            is_ours = ContextVar("is_ours", default=False)  # and not of a task that was there before, in the background

            async def counted(self: Connections, statement: Any, **values: Any) -> list[Any]:
                rows = await fetch(self, statement, **values)
                if is_ours.get():
                    asked.append(len(rows))
                return rows

            monkeypatch.setattr(Connections, "fetch", counted)
            is_ours.set(True)
            session = await other.get("telegram", 1)
            assert asked == [1 + 20]  # the session with its checkpoint, and what is behind that
            assert texts_of(session.messages()) == said[-50:]
            assert session.message_count == 120


@pytest.mark.parametrize(
    "spoilt",
    [
        "UPDATE checkpoints SET encoded = overlay(encoded placing '\\x00'::bytea from 20)",
        "UPDATE checkpoints SET incarnation = 'another'",
        "UPDATE checkpoints SET sequence = 1000",
        "DELETE FROM checkpoints",
    ],
)
async def test_a_checkpoint_that_is_of_no_use_is_passed_over_and_written_anew(database: Database, spoilt: str) -> None:
    said = [str(number) for number in range(60)]
    async with database.managers(1) as (one,):
        await say(one, 1, *said)
    await database.execute(spoilt)
    async with database.managers(1) as (other,):
        session = await other.get("telegram", 1)
        assert texts_of(session.messages()) == said[-50:]
        assert session.message_count == 60
    if "1000" not in spoilt:
        assert await database.execute("SELECT sequence FROM checkpoints") == [(60,)]


async def test_an_older_checkpoint_does_not_replace_a_newer_one(database: Database) -> None:
    async with database.managers() as (one, other):
        await say(one, 1, "one")
        await say(other, 1, "two")
        await other.flush()
        await one.flush()  # which knows of the first message only
        assert await database.execute("SELECT sequence FROM checkpoints") == [(2,)]


async def test_a_checkpoint_brings_no_deleted_session_back(database: Database) -> None:
    async with database.managers() as (one, other):
        await say(one, 1, "one")
        await other.delete("telegram_1")
        await one.flush()
        assert await database.execute("SELECT session_id FROM checkpoints") == []
        assert await database.execute("SELECT session_id FROM sessions") == []
        with pytest.raises(SessionNotFound):
            await one.get("telegram", 1)


# --- absence is deletion ---------------------------------------------------------------------------------------------


async def test_an_append_whose_answer_never_came_does_not_bring_a_deleted_session_back(database: Database) -> None:
    async with database.managers() as (one, other):
        mine = await one.get_or_create("telegram", 1)
        await other.delete("telegram_1")
        with pytest.raises((StoreConflict, SessionDeleted)):
            await mine.add_message(Message.user("the very first"))  # as it would be sent again
        assert await database.execute("SELECT session_id FROM sessions") == []
        again = await one.get_or_create("telegram", 1)
        assert again.journal.incarnation != mine.journal.incarnation
        await again.add_message(Message.user("anew"))
        assert texts_of((await other.get("telegram", 1)).messages()) == ["anew"]


async def test_two_who_make_a_session_at_the_same_time_have_the_same_one(database: Database) -> None:
    async with database.managers(3) as managers:
        made = []

        async def make(manager: SessionManager) -> None:
            made.append((await manager.get_or_create("telegram", 1)).journal.incarnation)

        async with anyio.create_task_group() as tasks:
            for number, manager in enumerate(managers):
                tasks.start_soon(make, manager, name=f"make {number}")
        assert len(made) == 3
        assert len(set(made)) == 1


async def test_what_another_gateway_is_still_importing_is_no_session_and_is_left_alone(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MAKING_S", 0.0)
    async with database.managers() as (one, other):
        async with one._registry.new_journal(SessionKey("telegram", "1"), purpose="import") as journal:
            journal.append(Message.user("imported"))
            await journal.saved()
            with pytest.raises(SessionNotFound):
                await other.get("telegram", 1)
            with pytest.raises(SessionExists):
                await other.get_or_create("telegram", 1)
            with pytest.raises(StoreUnavailable):  # or else it would be there afterwards
                await other.delete("telegram_1")
            assert await other.list() == []
        assert texts_of((await other.get_or_create("telegram", 1)).messages()) == ["imported"]


async def test_what_a_killed_gateway_has_left_unfinished_keeps_nobody_from_the_chat(database: Database) -> None:
    making = "UPDATE sessions SET turn_until = clock_timestamp() - INTERVAL '1 second'"
    async with database.managers() as (one, other):
        with suppress(StoreConflict, SessionDeleted):
            async with one._registry.new_journal(SessionKey("telegram", "1"), purpose="import") as journal:
                journal.append(Message.user("half of it"))
                await journal.saved()
                one._cache.making.clear()  # as if it was killed here
                await database.execute(making)
                await say(other, 1, "hello")
                journal.append(Message.user("a late word"))
        assert texts_of((await other.get("telegram", 1)).messages()) == ["hello"]
        assert texts_of((await one.get("telegram", 1)).messages()) == ["hello"]
        assert (await one.check()).problems == []


async def test_who_speaks_while_another_gateway_restores_the_chat_waits_for_it(database: Database) -> None:
    async with database.managers() as (one, other):
        async with (
            anyio.create_task_group() as tasks,
            one._registry.new_journal(SessionKey("telegram", "1"), purpose="import") as journal,
        ):
            journal.append(Message.user("restored"))
            await journal.saved()
            tasks.start_soon(say, other, 1, "hello", name="say")
            await database.execute("SELECT pg_sleep(0.1)")
        assert texts_of((await one.get("telegram", 1)).messages()) == ["restored", "hello"]


# --- lists and counts ------------------------------------------------------------------------------------------------


async def test_lists_and_counts_are_those_of_the_database(database: Database) -> None:
    async with database.managers() as (one, other):
        for chat in range(5):
            await say(one, chat, "hello")
        await say(other, "x_y", "hello")
        assert [row.chat_id for row in await other.list()] == ["x_y", "4", "3", "2", "1", "0"]
        assert [row.chat_id for row in await one.list(limit=2)] == ["x_y", "4"]
        (_, row) = await one.list(limit=2)
        behind = ListPosition(row.last_accessed, row.session_id)
        assert [row.chat_id for row in await one.list(after=behind, limit=2)] == ["3", "2"]
        assert [row.chat_id for row in await one.list(offset=4)] == ["1", "0"]
        assert await one.list(channel="signal") == []
        assert await other.count() == len(other) == 6
        await other.get_or_create("telegram", 0)  # a use, of which one is not told by any commit
        assert (await other.continue_recent()).key.chat_id == "0"
        await one.get_or_create("telegram", 2)
        assert [row.chat_id for row in await one.list(limit=2)] == ["2", "x_y"]
        await shared_mode(one).census.write_uses()  # as it does once a minute
        assert [row.chat_id for row in await other.list(limit=2)] == ["2", "0"]


async def test_a_list_can_be_read_though_nothing_can_be_written(database: Database) -> None:
    async with database.managers(1) as (one,):
        for chat in range(3):
            await say(one, chat, "hello")
        holder = await asyncpg.connect(database.url)
        async with holder.transaction():
            await holder.execute("LOCK TABLE sessions, checkpoints IN EXCLUSIVE MODE")  # as a standby is
            assert [row.chat_id for row in await one.list()] == ["2", "1", "0"]
            assert (await one.continue_recent()).key.chat_id == "2"
            assert (await one.sweep(dry_run=True)).sessions == []
        await holder.close()


async def test_a_list_folds_a_session_without_a_checkpoint_only_once(database: Database) -> None:
    async with database.managers(1) as (one,):
        await say(one, 1, *(str(number) for number in range(40)))
    await database.execute("DELETE FROM checkpoints")
    before = await database.execute("SELECT used_at FROM sessions")
    async with database.managers(1) as (other,):
        assert [row.message_count for row in await other.list()] == [40]
        while await database.execute("SELECT sequence FROM checkpoints") != [(40,)]:
            await database.execute("SELECT pg_sleep(0.01)")
    assert await database.execute("SELECT used_at FROM sessions") == before


async def test_sessions_that_left_the_memory_are_loaded_again(database: Database) -> None:
    async with database.managers(1, max_cached=2) as (one,):
        for chat in range(6):
            await say(one, chat, "hello")
            await one.flush()
        assert one.statistics().cached <= 2
        for chat in range(6):
            assert texts_of((await one.get("telegram", chat)).messages()) == ["hello"]
        assert await one.count() == 6


async def test_the_limit_of_sessions_counts_those_of_all_gateways(database: Database) -> None:
    async with database.managers(max_sessions=3) as (one, other):
        await say(one, 1, "hello")
        await say(other, 2, "hello")
        await say(one, 3, "hello")
        for manager in (one, other):
            await manager.count()  # which each does once a minute
            with pytest.raises(SessionLimit):
                await manager.get_or_create("telegram", 4)
        await other.delete("telegram_1")
        await say(one, 4, "hello")


# --- expiry ----------------------------------------------------------------------------------------------------------


async def test_sweeps_of_ten_gateways_remove_and_archive_each_session_once(database: Database) -> None:
    async with database.managers(10, restore_archived=False) as managers:
        for chat in range(30):
            await say(managers[chat % 10], chat, "hello")
        await say(managers[0], "busy", "hello")
        for manager in managers:
            await manager.flush()
        await database.make_idle(*(f"telegram_{chat}" for chat in range(30)))
        [(size,)] = await database.execute(
            "SELECT sum(octet_length(encoded)) FROM entries WHERE session_id != 'telegram_busy'"
        )
        gone: list[str] = []
        freed: list[int] = []

        async def sweep(manager: SessionManager) -> None:
            report = await manager.sweep()
            gone.extend(report.sessions)
            freed.append(report.freed_bytes)

        async with anyio.create_task_group() as tasks:
            for number, manager in enumerate(managers):
                tasks.start_soon(sweep, manager, name=f"sweep {number}")
        assert sorted(gone) == sorted(f"telegram_{chat}" for chat in range(30))
        assert sum(freed) == size
        archived = await database.execute("SELECT session_id, count(*) FROM archive GROUP BY session_id")
        assert sorted(archived) == sorted((session_id, 1) for session_id in gone)
        for manager in managers:
            assert [row.chat_id for row in await manager.list()] == ["busy"]
            assert (await manager.check()).problems == []
        back = await managers[1].restore("telegram_7")
        assert texts_of(back.messages()) == ["hello"]
        assert await database.execute("SELECT 1 FROM archive WHERE session_id = 'telegram_7'") == []


async def test_a_session_whose_turn_runs_anywhere_or_that_is_used_is_not_swept(database: Database) -> None:
    async with database.managers() as (one, other):
        await say(one, 1, "hello")
        await say(one, 2, "hello")
        await say(one, 3, "hello")
        await one.flush()
        answering = await one.get_or_create("telegram", 1)
        async with answering.turn(Message.user("question")) as turn:
            await database.make_idle("telegram_1", "telegram_2", "telegram_3")
            await one.get_or_create("telegram", 2)
            assert (await other.sweep(dry_run=True)).sessions == ["telegram_2", "telegram_3"]
            await shared_mode(one).census.write_uses()  # as it does once a minute
            assert (await other.sweep()).sessions == ["telegram_3"]
            turn.append(Message.assistant("answer"))
        assert texts_of((await other.get("telegram", 1)).messages()) == ["hello", "question", "answer"]


async def test_where_two_clocks_differ_nothing_expires(database: Database) -> None:
    clock = FakeClock(datetime.now(UTC) + timedelta(days=31))
    async with database.managers(1) as (one,), SessionManager(database.url, clock=clock) as other:
        await other.sweep(dry_run=True)  # has seen that there was nobody: else the long silence is what it doubts
        await say(one, 1, "hello")
        await one.flush()
        await database.make_idle("telegram_1")
        report = await other.sweep()
        assert report.expired == 0
        assert report.postponed is not None
        assert "differ" in report.postponed
        assert (await other.sweep(dry_run=True)).sessions == ["telegram_1"]
        assert (await one.sweep()).sessions == ["telegram_1"]


class Ahead(PostgreSQLStore):
    """Its server's clock shows `time`, if there is one."""

    time: datetime | None = None

    async def now(self) -> datetime:
        return await super().now() if self.time is None else self.time


async def test_after_a_jump_of_both_clocks_people_get_a_while_to_come_back(database: Database) -> None:
    clock, store = FakeClock(datetime.now(UTC)), Ahead(database.url)
    async with SessionManager(store=store, clock=clock) as manager:
        await say(manager, 1, "hello")
        await manager.flush()
        await database.make_idle("telegram_1")
        clock.jump(31 * 86_400)
        store.time = clock.now()
        assert "jumped" in str((await manager.sweep()).postponed)
        assert await manager.count() == 1


async def test_a_chat_that_speaks_again_goes_on_with_what_the_archive_has(database: Database) -> None:
    async with database.managers() as (one, other):
        await say(one, 1, "hello")
        await database.make_idle("telegram_1")
        await one.sweep()
        await say(other, 1, "again")
        assert texts_of((await one.get("telegram", 1)).messages()) == ["hello", "again"]
        assert await database.execute("SELECT 1 FROM archive") == []


async def test_without_an_archive_nothing_is_left_of_what_expires(database: Database) -> None:
    async with database.managers(archive_expired=False) as (one, other):
        await say(one, 1, "hello")
        await one.flush()
        await database.make_idle("telegram_1")
        assert (await other.sweep()).expired == 1
        for table in ("sessions", "entries", "idempotency_keys", "checkpoints", "archive"):
            assert await database.execute(f"SELECT 1 FROM {table}") == []


async def test_the_log_does_not_lay_an_expiry_of_our_own_to_another_process(database: Database) -> None:
    async with database.managers(1) as (manager,):
        await say(manager, 1, "hello")
        await manager.flush()
        await database.make_idle("telegram_1")
        with capture_logs() as logs:
            assert (await manager.sweep()).sessions == ["telegram_1"]
        assert [line["action"] for line in logs] == ["sweep.done"]


async def test_a_use_is_known_to_the_others_though_the_sessions_cannot_be_counted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with database.managers() as (one, other):
        await say(one, 1, "hello")
        await one.flush()
        await database.make_idle("telegram_1")
        await one.get_or_create("telegram", 1)
        census, written = shared_mode(one).census, anyio.Event()

        async def unavailable() -> int:
            raise StoreUnavailable("not now")

        async def write_uses() -> None:
            await type(census).write_uses(census)
            written.set()

        monkeypatch.setattr(census, "take", unavailable)
        monkeypatch.setattr(census, "write_uses", write_uses)
        census.soon(unavailable)  # which wakes it
        with anyio.fail_after(10):
            await written.wait()
        assert (await other.sweep()).sessions == []


# --- reading only ----------------------------------------------------------------------------------------------------


async def test_it_is_read_beside_those_who_write_and_nothing_is_changed(
    postgresql: PostgreSQLServer, empty_postgresql_url: str
) -> None:
    database = Database(postgresql, empty_postgresql_url)
    with pytest.raises(NotAWorkspace):
        await open_readonly(database.url).__aenter__()
    assert await database.execute("SELECT 1 FROM pg_tables WHERE schemaname = 'public'") == []
    async with database.managers(1) as (one,):
        await say(one, 1, "hello")
        await say(one, 2, "words")
        async with open_readonly(database.url) as reader:
            assert [row.chat_id for row in await reader.list()] == ["2", "1"]
            await say(one, 1, "again")
            assert texts_of((await reader.get("telegram", 1)).messages()) == ["hello", "again"]
            assert (await reader.check()).problems == []
            assert (await reader.statistics()).sessions == 2
            await one.flush()
            await database.make_idle("telegram_2")
            assert (await reader.sweep(dry_run=True)).sessions == ["telegram_2"]
            with pytest.raises(ReadOnlyWorkspace):
                await reader.sweep()
            with pytest.raises(StoreUnavailable):
                await reader.store.delete("telegram_1")
            assert await one.count() == 2


async def test_a_client_opens_it_by_its_url(database: Database) -> None:
    async with connect(database.url) as client:
        session = await client.get_or_create("telegram", "1")
        await session.add_message(Message.user("hello"))
    async with connect(database.url, readonly=True) as client:
        assert [row.session_id for row in await client.list()] == ["telegram_1"]


# --- encryption ------------------------------------------------------------------------------------------------------


async def test_what_is_stored_is_sealed_and_the_keys_must_fit(database: Database) -> None:
    keys, others = KeyRing([b"k" * 32]), KeyRing([b"o" * 32])

    def opened(ring: KeyRing | None) -> SessionManager:
        return SessionManager(database.url, encryption=ring)

    async with opened(keys) as manager:
        await say(manager, 1, "a secret word")
        await say(manager, 2, "a secret word")
        await manager.flush()
        await database.make_idle("telegram_2")
        await manager.sweep()
    for table in ("entries", "checkpoints", "archive"):
        rows = await database.execute(f"SELECT encoded FROM {table}")
        assert rows
        assert not [row for row in rows if b"secret" in row[0]]
    before = await database.execute("SELECT * FROM sessions")
    for wrong, error in ((others, WrongKey), (None, KeyNeeded)):
        with pytest.raises(error):
            await opened(wrong).__aenter__()
        with pytest.raises(error):
            await open_readonly(database.url, encryption=wrong).__aenter__()
    assert await database.execute("SELECT * FROM sessions") == before
    async with opened(keys) as manager:
        assert texts_of((await manager.get("telegram", 1)).messages()) == ["a secret word"]
        assert texts_of((await manager.restore("telegram_2")).messages()) == ["a secret word"]
        assert (await manager.check()).problems == []


async def test_a_database_that_is_not_encrypted_takes_no_key(database: Database) -> None:
    async with database.managers(1) as (one,):
        await say(one, 1, "hello")
    with pytest.raises(NotEncrypted):
        await SessionManager(database.url, encryption=KeyRing([b"k" * 32])).__aenter__()


# --- the command line ------------------------------------------------------------------------------------------------


def test_commands_take_a_database_where_they_take_a_workspace(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    exported = tmp_path.parent / "exported.json"
    exported.write_text('[{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]')
    cli = Cli(tmp_path / "nothing", monkeypatch)
    there = ("--workspace", database.url)
    assert cli("import", str(exported), "--format", "openai", "--as", "telegram_1", *there).status == 0
    assert [row["session_id"] for row in cli("list", "--json", *there).document["sessions"]] == ["telegram_1"]
    assert "hello" in cli("show", "telegram_1", *there).out
    assert "hello" in cli("export", "telegram_1", *there).out
    assert "sound: 1 session" in cli("check", *there).out
    assert cli("stats", "--json", *there).document["sessions"] == 1
    assert cli("sweep", "--dry-run", *there).status == 0
    assert "migrate" in cli("rekey", "--key-file", _key_file(tmp_path.parent), *there).error
    assert cli("delete", "telegram_1", "--yes", *there).status == 0
    assert cli("list", "--json", *there).document["sessions"] == []
    assert files_in(tmp_path) == []


def _key_file(directory: Path) -> str:
    file = directory / "key"
    file.write_text("00" * 32)
    file.chmod(0o600)
    return str(file)
