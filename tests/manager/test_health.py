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
