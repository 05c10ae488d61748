"""What health says of a store that is no longer what it was."""
# ruff: noqa: PT012 - a manager that fails to close is a block

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.manager.reading import read_transcript
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.errors import StoreConflict, StoreCorrupt, StoreError, StoreUnavailable
from miniclaw_sessions.testing import FakeClock, FaultyStore
from tests.core.stores.test_damaged_page import damaged_home
from tests.postgresql import PostgreSQLServer, open_transaction

pytestmark = pytest.mark.anyio


async def test_a_database_that_is_deleted_while_it_runs_is_noticed_at_the_next_flush(tmp_path: Path) -> None:
    clock = FakeClock()
    manager = SessionManager(tmp_path, clock=clock)
    with pytest.raises(StoreUnavailable, match="deleted or replaced"):
        async with manager:
            session = await manager.get_or_create("telegram", "1")
            await session.add_message(Message.user("saved"))
            await manager.flush()
            for name in ("sessions.db", "sessions.db-wal"):
                (tmp_path / name).unlink()
            assert manager.health().ok
            while manager.health().ok:  # what runs in threads is not the clock's
                await clock.advance(30)
            assert "deleted or replaced" in manager.health().problems[0]
            with pytest.raises(StoreUnavailable, match="deleted or replaced"):
                await session.add_message(Message.user("never acknowledged"))
            with pytest.raises(StoreUnavailable, match="deleted or replaced"):
                await manager.flush()
            session.append(Message.user("accepted, and told at the end that it is not saved"))
    async with SessionManager(tmp_path, clock=clock) as manager:
        messages = await manager.get_session_history("telegram", "1")
        assert [message.text for message in messages] == ["saved"]
        assert manager.health().ok


async def test_health_is_red_while_the_database_is_malformed(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, settings=SessionSettings(window=2)) as manager:
        session = await manager.get_or_create("telegram", "1")
        for number in range(300):
            session.append(Message.user(f"{number} " + "x" * 1000))
        await session.saved()
    async with SessionManager(tmp_path, settings=SessionSettings(window=2)) as manager:
        session = await manager.get("telegram", "1")
        database = tmp_path / "sessions.db"
        os.truncate(database, database.stat().st_size // 2)
        assert manager.health().ok
        with pytest.raises(StoreCorrupt):
            [entry async for entry in read_transcript(manager, "telegram_1")]
        health = manager.health()
        assert not health.ok
        assert "damaged" in health.problems[0]
        assert health.store_state == "failing"


async def test_older_messages_that_a_store_took_with_it_are_told_of_until_somebody_acknowledges_it(
    tmp_path: Path,
) -> None:
    settings = SessionSettings(window=2)
    async with SessionManager(tmp_path, settings=settings) as manager:
        for chat_id, count in (("long", 5), ("short", 2)):
            session = await manager.get_or_create("telegram", chat_id)
            for number in range(count):
                await session.add_message(Message.user(str(number)))
    (tmp_path / "sessions.db").unlink()

    for _ in range(2):  # a restart forgets nothing
        async with SessionManager(tmp_path, settings=settings) as manager:
            lost = {session_id: loss.messages for session_id, loss in manager.source.losses.items()}
            assert lost == {"telegram_long": 3}
            assert {row.session_id: row.lost for row in await manager.list()} == {
                "telegram_long": 3,
                "telegram_short": 0,
            }
            (problem,) = (await manager.check()).problems
            assert "telegram_long: 3 older messages were lost" in problem
            assert manager.health().losses == [problem]
    async with SessionManager(tmp_path, settings=settings) as manager:
        assert await manager.acknowledge_losses("telegram_short") == 0
        assert await manager.acknowledge_losses() == 1
        assert manager.health().losses == []
    async with SessionManager(tmp_path, settings=settings) as manager:
        assert (await manager.check()).sound


async def test_the_first_start_on_plain_files_tells_of_no_losses(tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    said = ",".join(f'{{"role": "user", "content": "{number}"}}' for number in range(3))
    plain = f'{{"session_id": "telegram_1", "channel": "telegram", "chat_id": "1", "messages": [{said}]}}'
    (tmp_path / "sessions" / "telegram_1.json").write_text(plain)
    async with SessionManager(tmp_path) as manager:
        assert manager.recovery.written_back == 1
        assert manager.source.losses == {}
        await manager.flush()
        assert (await manager.check()).sound


# --- commits that are refused ----------------------------------------------------------------------------------------


@asynccontextmanager
async def hasty_manager(url: str) -> AsyncIterator[SessionManager]:
    """A manager for which time passes fifty times as fast, so that it soon has no more patience with its server."""
    clock = FakeClock(datetime.now(UTC))

    async def pass_time() -> None:
        while True:
            await anyio.sleep(0.02)
            await clock.advance(1)

    async with SessionManager(store=url, clock=clock) as manager, anyio.create_task_group() as tasks:
        tasks.start_soon(pass_time)
        yield manager
        tasks.cancel_scope.cancel()


async def test_health_tells_of_messages_that_a_server_refuses_and_forgets_it_once_they_are_taken(
    postgresql: PostgreSQLServer, postgresql_url: str
) -> None:
    async with hasty_manager(postgresql_url) as manager:
        session = await manager.get_or_create("telegram", "1")
        await session.add_message(Message.user("before"))
        async with open_transaction(postgresql, postgresql_url, "LOCK TABLE entries IN ACCESS EXCLUSIVE MODE"):
            with pytest.raises(StoreUnavailable):
                await session.add_message(Message.user("while it is locked"))
            health = manager.health()
            assert (health.ok, health.store_state, manager.statistics().store_state) == (False, "failing", "failing")
            assert re.match(r"messages of session telegram_1 are not acknowledged since \d{4}-", health.problems[0])
        await manager.flush()
        await session.saved()
        assert manager.health().ok
        assert [message.text for message in session.messages()] == ["before", "while it is locked"]


async def test_health_tells_of_a_server_on_which_no_session_can_be_made(
    postgresql: PostgreSQLServer, postgresql_url: str
) -> None:
    async with hasty_manager(postgresql_url) as manager:
        async with open_transaction(postgresql, postgresql_url, "LOCK TABLE sessions IN SHARE MODE"):
            with pytest.raises(StoreUnavailable):
                await manager.get_or_create("telegram", "1")
            assert not manager.health().ok
        await manager.get_or_create("telegram", "1")
        assert manager.health().ok


async def test_health_names_at_most_ten_of_the_sessions_that_are_refused(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    clock = FakeClock()
    async with SessionManager(tmp_path, store=store, clock=clock) as manager:
        for number in range(12):
            store.refuse(f"telegram_{number}", StoreUnavailable("not now"))
            session = await manager.get_or_create("telegram", number)
            with pytest.raises(StoreUnavailable, match="not now"):
                await session.add_message(Message.user("hello"))
        *named, rest = manager.health().problems
        assert len(named) == 10
        assert named[0] == (
            "messages of session telegram_0 are not acknowledged since 2026-01-01 00:00:00 UTC: not now"
        )
        assert rest == "nor are those of 2 more sessions"
        store.heal()
        await manager.flush()
        assert manager.health().ok


async def test_a_message_that_is_refused_for_its_own_sake_is_no_problem_of_the_store(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with SessionManager(tmp_path, store=store) as manager:
        for chat, error in (("1", StoreConflict("somebody was first")), ("2", StoreError("a value that cannot be"))):
            store.refuse(f"telegram_{chat}", error)
            with pytest.raises(type(error), match=str(error)):
                await (await manager.get_or_create("telegram", chat)).add_message(Message.user("hello"))
        assert manager.health().problems == []
        store.heal()
        for chat in "12":  # go on from what the store has
            await manager.get_or_create("telegram", chat)


async def test_a_session_that_is_deleted_is_no_problem_any_more(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with SessionManager(tmp_path, store=store) as manager:
        await (await manager.get_or_create("telegram", "1")).add_message(Message.user("hello"))
        store.refuse("telegram_1", StoreCorrupt("its file is another program's"))
        store.fail(StoreCorrupt("its file is another program's"), method="head")
        session = await manager.get_or_create("telegram", "1")
        with pytest.raises(StoreCorrupt):
            await session.add_message(Message.user("refused"))
        await manager.flush()
        assert "its file is another program's" in manager.health().problems[0]
        store.heal()
        await manager.delete("telegram_1")
        assert not [one for one in manager.health().problems if "not acknowledged" in one]


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("met_by", ["the start", "a read", "a check"])
async def test_damage_is_a_problem_from_when_it_is_met_until_a_start_has_made_the_database_anew(
    met_by: str, tmp_path: Path
) -> None:
    home, lost = await damaged_home(tmp_path)
    if met_by == "the start":
        for file in (home.workspace / "sessions").iterdir():  # so that the start reads all of the store
            file.unlink()
    async with home.open(None) as manager:
        assert manager.health().ok == (met_by != "the start")
        if met_by == "a read":
            for row in await manager.list():
                [entry async for entry in read_transcript(manager, row.session_id)]
        elif met_by == "a check":
            assert not (await manager.check()).sound
        health = manager.health()
        assert (health.ok, health.store_state) == (False, "failing")
        assert "the store is damaged" in health.problems[0]
    async with home.open(None) as manager:
        assert manager.health().problems == []
        assert sum(loss.messages for loss in manager.source.losses.values()) == lost


async def test_a_damaged_entry_is_a_problem_until_it_is_mended(tmp_path: Path) -> None:
    settings = SessionSettings(store="jsonl:")
    transcript = tmp_path / "transcripts" / "telegram_1.jsonl"
    async with SessionManager(tmp_path, settings=settings) as manager:
        session = await manager.get_or_create("telegram", "1")
        for text in ("one", "two", "three"):
            await session.add_message(Message.user(text))
    transcript.write_bytes(transcript.read_bytes().replace(b'"two"', b'"t\0o"'))
    async with SessionManager(tmp_path, settings=settings) as manager:
        assert manager.health().ok
        [entry async for entry in read_transcript(manager, "telegram_1")]
        (problem,) = manager.health().problems
        assert "entry 2 of session telegram_1 cannot be read" in problem
        await manager.repair()
        assert manager.health().problems == []
        assert [message.text for message in session.messages()] == ["one", "two", "three"]
