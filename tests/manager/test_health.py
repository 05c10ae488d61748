"""What health says of a store that is no longer what it was."""
# ruff: noqa: PT012 - a manager that fails to close is a block

from __future__ import annotations

import os
from pathlib import Path

import pytest

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.errors import StoreCorrupt, StoreUnavailable
from miniclaw_sessions.manager import SessionManager
from miniclaw_sessions.protocol.messages import Message
from miniclaw_sessions.testing import FakeClock

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
            [entry async for entry in manager.read_transcript("telegram_1")]
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
            assert {session_id: loss.messages for session_id, loss in manager.losses.items()} == {"telegram_long": 3}
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
        assert manager.losses == {}
        await manager.flush()
        assert (await manager.check()).sound
