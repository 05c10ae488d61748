"""`manager.put`: what is put is stored, wherever the session came from, or it is said that it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import ManagerClosed, SessionExists
from tests.texts import texts

pytestmark = pytest.mark.anyio


async def test_a_session_in_memory_that_is_forked_and_put_keeps_the_conversation(tmp_path: Path) -> None:
    """Document 001: open, fork, put."""
    begun = Session.new("app_1")
    begun.append(Message.user("hello"))
    fork = await begun.fork("app_2")
    fork.append(Message.assistant("hi"))
    async with SessionManager(tmp_path) as manager:
        kept = await manager.put(fork)
        assert kept is await manager.get_or_create("app", "2")
        assert texts(kept) == ["hello", "hi"]
        await kept.add_message(Message.user("and on"))
        with pytest.raises(SessionExists):
            await manager.put(fork)
    async with SessionManager(tmp_path) as manager:
        assert texts(await manager.find("app_2")) == ["hello", "hi", "and on"]
        assert len(manager) == 1


async def test_a_session_of_another_manager_is_copied(tmp_path: Path) -> None:
    async with SessionManager(tmp_path / "a") as here, SessionManager(tmp_path / "b") as there:
        session = await here.get_or_create("telegram", "1")
        await session.add_message(Message.user("hello"))
        assert await here.put(session) is session
        copy = await there.put(session)
        await copy.add_message(Message.user("there"))
        assert texts(session) == ["hello"]
        assert texts(await there.find("telegram_1")) == ["hello", "there"]


async def test_a_manager_that_is_closed_says_so(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", "1")
    for one in (session, Session.new("app_1")):
        with pytest.raises(ManagerClosed):
            await manager.put(one)
