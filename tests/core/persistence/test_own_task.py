"""What a task of its own holds open: any task may enter it, and any other leave it; nothing runs on behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from miniclaw_sessions.core.persistence.own_task import HeldOpen
from tests.two_tasks import in_a_task

pytestmark = pytest.mark.anyio


class House:
    """Something with a task group: it says what became of it."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.opens = asyncio.Event()
        self.opens.set()
        self.fails = asyncio.Event()
        self.lets_go = asyncio.Event()
        self.lets_go.set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._work)
            try:
                self.seen.append("opening")
                await self.opens.wait()
                self.seen.append("open")
                yield "the value"
            finally:
                with anyio.CancelScope(shield=True):
                    await self.lets_go.wait()
                self.seen.append("closed")
            tasks.cancel_scope.cancel()

    async def _work(self) -> None:
        await self.fails.wait()
        raise ValueError("in the background")


async def others() -> set[asyncio.Task[Any]]:
    """What runs beside this test."""
    await checkpoint()
    return {task for task in asyncio.all_tasks() if "House" in repr(task.get_coro()) or task.get_name() == "house"}


def held(house: House) -> HeldOpen[str]:
    return HeldOpen(house.open(), name="house")


async def test_one_task_enters_it_and_another_leaves_it() -> None:
    house = House()
    one = held(house)
    assert await in_a_task(one.__aenter__()) == "the value"
    assert await others()
    await in_a_task(one.__aexit__(None, None, None))
    assert house.seen == ["opening", "open", "closed"]
    assert not await others()


async def test_what_fails_while_it_is_opened_is_raised_where_it_is_opened() -> None:
    house = House()
    house.opens.clear()
    house.fails.set()
    with pytest.raises(ValueError, match="in the background"):
        await held(house).__aenter__()
    assert house.seen[-1] == "closed"
    assert not await others()


async def test_what_fails_while_it_is_held_is_raised_where_it_is_left() -> None:
    house = House()
    one = held(house)
    await one.__aenter__()
    house.fails.set()
    with pytest.raises(ValueError, match="in the background"):
        await one.watch()
    with pytest.raises(ValueError, match="in the background"):
        await in_a_task(one.__aexit__(None, None, None))
    assert house.seen[-1] == "closed"
    assert not await others()


async def test_a_block_that_fails_cancels_what_is_held_and_its_own_error_goes_on() -> None:
    house = House()
    with pytest.raises(KeyError, match="of the block"):
        async with held(house):
            raise KeyError("of the block")
    assert house.seen == ["opening", "open", "closed"]
    assert not await others()


@pytest.mark.parametrize("way", ["asyncio", "scope"])
@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("phase", ["opening", "closing"])
async def test_whoever_is_cancelled_while_it_opens_or_closes_leaves_nothing_running(
    way: str, steps: int, phase: str
) -> None:
    house = House()
    one = held(house)
    if phase == "opening":
        house.opens.clear()
    else:
        await one.__aenter__()
        house.lets_go.clear()
    scopes: list[anyio.CancelScope] = []
    ends: list[str] = []

    async def wait_for_it() -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await (one.__aenter__() if phase == "opening" else one.__aexit__(None, None, None))
            ends.append("went on")

    waiting = asyncio.create_task(wait_for_it())
    for _ in range(1 + steps):
        await checkpoint()
    for _ in range(2):  # whoever is impatient cancels once more
        if way == "asyncio":
            waiting.cancel()
        else:
            scopes[0].cancel()
        for _ in range(5):
            await checkpoint()
        assert phase == "opening" or not waiting.done()
    house.lets_go.set()
    with suppress(asyncio.CancelledError):
        await waiting
    assert ends == []
    assert house.seen[-1:] in ([], ["closed"])
    assert not await others()


async def test_who_is_cancelled_when_it_is_just_open_leaves_it_though_it_shields_its_block() -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def shielded() -> AsyncIterator[None]:
        with anyio.CancelScope(shield=True):
            opening.cancel()
            yield
        seen.append("closed")

    opening = asyncio.create_task(HeldOpen(shielded(), name="house").__aenter__())
    with anyio.fail_after(60), pytest.raises(asyncio.CancelledError):
        await opening
    assert seen == ["closed"]
    assert await others() == set()


async def test_what_was_entered_and_forgotten_ends_with_the_event_loop() -> None:
    houses: list[House] = []

    async def forget() -> None:
        houses.append(House())
        await held(houses[0]).__aenter__()

    await anyio.to_thread.run_sync(lambda: asyncio.run(forget()))
    assert houses[0].seen == ["opening", "open", "closed"]
