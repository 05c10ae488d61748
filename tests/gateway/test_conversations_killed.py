"""Conversations over kill -9: what was acknowledged is there, and what is asked again is done once."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.gateway.daemons import Process
from tests.gateway.lossy import lossy
from tests.gateway.test_conversations import every, package_at, texts, user

pytestmark = [pytest.mark.anyio, pytest.mark.proof]


async def killed(daemon: Process) -> None:
    daemon.send(signal.SIGKILL)
    await daemon.exited()


async def test_a_conversation_that_was_made_is_there_after_a_kill(short_path: Path) -> None:
    async with Process(short_path) as daemon:
        await daemon.notice("READY=1")
        async with package_at(daemon.socket) as client:
            empty = await client.conversations.create()
            made = await client.conversations.create(items=[user("hello", id="msg_1")], metadata={"a": "b"})
            await client.conversations.items.create(made.id, items=[user("more"), user("and more")])
            items = await every(client, made.id)
            await client.conversations.items.delete(items[1].id, conversation_id=made.id)
        await killed(daemon)
    async with Process(short_path) as daemon:
        await daemon.notice("READY=1")
        async with package_at(daemon.socket) as client:
            assert await client.conversations.retrieve(empty.id) == empty
            assert await client.conversations.retrieve(made.id) == made
            assert await every(client, made.id) == [items[0], items[2]]
            assert await client.conversations.items.retrieve("msg_1", conversation_id=made.id) == items[2]


async def test_a_daemon_that_is_killed_before_its_answer_is_asked_again_and_doubles_nothing(short_path: Path) -> None:
    """The package sends the request again by itself, to the daemon that comes in the place of the killed one."""
    daemons: list[Process] = []

    async def begin() -> None:
        daemons.append(Process(short_path))
        await daemons[-1].__aenter__()
        await daemons[-1].notice("READY=1")

    async def kill_and_begin() -> None:
        await killed(daemons[-1])
        await begin()

    await begin()
    try:
        async with lossy(daemons[0].socket, is_cut=True) as (address, way), package_at(address) as client:
            made = await client.conversations.create()
            way.on_loss = kill_and_begin
            batch: list[Any] = [user("one"), {"role": "assistant", "content": "1"}, user("two")]
            with anyio.fail_after(120):
                added = await client.conversations.items.create(made.id, items=batch)
                before = await every(client, made.id, order="asc")
                assert [item.id for item in added.data] == [item.id for item in before]
                assert texts(before) == ["one", "1", "two"]
                await client.conversations.items.delete(before[0].id, conversation_id=made.id)
                assert [item.id for item in await every(client, made.id, order="asc")] == [one.id for one in before[1:]]
                assert (await client.conversations.delete(made.id)).deleted
            assert way.losses == 4
    finally:
        for daemon in daemons:
            await daemon.__aexit__()
