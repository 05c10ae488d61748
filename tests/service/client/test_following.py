"""Following a session through a client: what is acknowledged comes as it is, in this process and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import SessionNotFound
from miniclaw_sessions.service.api import live
from miniclaw_sessions.service.client import Client, connect
from miniclaw_sessions.service.client.connection import Address, Connections
from miniclaw_sessions.service.client.following import PATIENCE_S, resumed
from miniclaw_sessions.service.client.http import HttpTransport
from miniclaw_sessions.service.client.transport import Transport
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.serving import serving

pytestmark = pytest.mark.anyio


async def test_entries_come_while_others_write_them_and_end_with_the_session(client: Client) -> None:
    session = await client.get_or_create("a", "1")
    await session.add_message(Message.user("before"))
    seen: list[tuple[int, str]] = []
    came, all_came = anyio.Event(), anyio.Event()

    async def follow() -> None:
        async with aclosing((await client.get("a", "1")).follow(after=0)) as entries:
            async for entry in entries:
                assert isinstance(entry, MessageEntry)
                seen.append((entry.sequence, entry.message.text))
                came.set()
                if len(seen) == 6:
                    all_came.set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow, name="follow")
            await came.wait()
            for count in range(5):
                await session.add_message(Message.user(f"line\n{count}"))
            await all_came.wait()
            await client.delete(session.session_id)
    assert seen == [(1, "before"), *((count + 2, f"line\n{count}") for count in range(5))]


async def test_what_is_not_there_cannot_be_followed(client: Client) -> None:
    session = await client.get_or_create("a", "1")
    await client.delete(session.session_id)
    with pytest.raises(SessionNotFound):
        await anext(session.follow())


async def test_a_daemon_that_starts_again_is_waited_for_however_long_nothing_was_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    clock, ahead = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: clock() + ahead)

    class QuietForLong:
        """Says where it begins, and breaks off a day later."""

        @asynccontextmanager
        async def stream(self, *_: object) -> AsyncIterator[AsyncIterator[bytes]]:
            async def pieces() -> AsyncIterator[bytes]:
                nonlocal ahead
                yield b"id: 7\n\n"
                ahead += 86_400

            yield pieces()

    def ask(place: str | None) -> live.FollowSession:
        return live.FollowSession("a_1", last_event_id=place)

    assert PATIENCE_S < 86_400
    transport = cast("Transport", QuietForLong())
    events: Any = resumed(transport, live.follow_session, ask)
    async with aclosing(events):
        assert [(await anext(events)).kind for _ in range(4)] == ["connected", "message", "connected", "message"]


async def test_what_is_said_before_the_first_connection_stands_is_not_missed(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = HttpTransport.stream

    @asynccontextmanager
    async def broken(*_: object) -> AsyncIterator[AsyncIterator[bytes]]:
        async def pieces() -> AsyncIterator[bytes]:
            nothing: list[bytes] = []
            for piece in nothing:
                yield piece

        monkeypatch.setattr(HttpTransport, "stream", stream)
        await session.add_message(Message.user("meanwhile"))
        yield pieces()

    agent = Agent(ScriptedProvider())
    async with (
        SessionManager(short_path / "w") as manager,
        serving(manager, short_path / "s", agent),
        connect(f"unix:{short_path / 's'}") as client,
    ):
        session = await client.get_or_create("a", "1")
        await session.add_message(Message.user("before"))
        monkeypatch.setattr(HttpTransport, "stream", broken)
        with anyio.fail_after(60):
            async with aclosing(session.follow()) as entries:
                assert (await anext(entries)).sequence == 2


async def test_followers_leave_room_for_other_requests(short_path: Path) -> None:
    agent = Agent(ScriptedProvider())
    async with SessionManager(short_path / "w") as manager, serving(manager, short_path / "s", agent):
        await (await manager.get_or_create("a", "1")).add_message(Message.user("before"))
        async with Connections(Address(socket=str(short_path / "s")), most=1) as connections:
            session = Client(HttpTransport(connections, "here")).session("a_1")
            with anyio.fail_after(60):
                async with aclosing(session.follow(after=0)) as one, aclosing(session.follow(after=0)) as other:
                    assert [(await anext(entries)).sequence for entries in (one, other)] == [1, 1]
                    await session.add_message(Message.user("now"))
                    assert [(await anext(entries)).sequence for entries in (one, other)] == [2, 2]
