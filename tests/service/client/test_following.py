"""Following a session through a client: what is acknowledged comes as it is, in this process and over HTTP."""

from __future__ import annotations

from contextlib import aclosing

import anyio
import pytest

from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import SessionNotFound
from miniclaw_sessions.service.client import Client

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
