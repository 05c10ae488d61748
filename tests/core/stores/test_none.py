"""`none:`, the bare card: what is in memory is all there is, and the files follow it every 30 seconds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.testing import FakeClock

pytestmark = pytest.mark.anyio


async def choose(session: Session) -> None:
    await session.tree.append_model_change("openai", "gpt-5")


async def think(session: Session) -> None:
    await session.tree.append_thinking_level_change("high")


async def name(session: Session) -> None:
    await session.tree.append_session_info("title")


async def update(session: Session) -> None:
    session.update(title="title", colour="green")


async def texts(session: Session) -> list[str]:
    branch = await session.tree.get_branch()
    walked = [entry async for entry in session.tree.walk()]
    assert walked[::-1] == branch
    return [entry.message.text for entry in branch if isinstance(entry, MessageEntry)]


@pytest.mark.parametrize("change", [choose, think, name, update])
async def test_the_branch_is_there_whatever_is_appended_last_and_after_a_restart(
    tmp_path: Path, change: Callable[[Session], Awaitable[None]]
) -> None:
    async with SessionManager(tmp_path, store="none:") as manager:
        session = await manager.get_or_create("telegram", 1)
        await change(session)
        assert await texts(session) == []
        await session.add_messages([Message.user("one"), Message.assistant("two")])
        await change(session)
        assert await texts(session) == ["one", "two"]
        other = await manager.get_or_create("telegram", 2)
        await other.add_message(Message.user("another"))
    async with SessionManager(tmp_path, store="none:") as manager:
        session = await manager.get_or_create("telegram", 1)
        assert await texts(session) == ["one", "two"]
        await session.add_message(Message.user("three"))
        assert await texts(session) == ["one", "two", "three"]


async def test_a_turn_that_has_ended_is_in_its_file_with_the_next_flush_and_not_before(tmp_path: Path) -> None:
    clock, file = FakeClock(), tmp_path / "sessions" / "telegram_1.json"
    async with SessionManager(tmp_path, store="none:", clock=clock) as manager:
        session = await manager.get_or_create("telegram", 1)
        async with session.turn(Message.user("question")) as turn:
            turn.append(Message.assistant("answer"))
        await clock.advance(29)
        assert not file.exists()
        await clock.advance(1)
        with anyio.fail_after(60):
            while session.journal.checkpoint.is_dirty:  # until the thread that writes has done so
                await checkpoint()
        assert b"answer" in file.read_bytes()
        async with session.turn(Message.user("again")) as turn:
            turn.append(Message.assistant("at once"))
        await manager.flush()
        assert b"at once" in file.read_bytes()
