"""What one task begins, and another ends: as fixtures of tests, hooks of web servers and supervisors do it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


async def in_a_task(work: Awaitable[T]) -> T:
    """Await it in a task of its own."""

    async def run() -> T:
        return await work

    return await asyncio.create_task(run())


@asynccontextmanager
async def in_two_tasks(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Entered by one task, left by another, and used by a third."""
    entered = await in_a_task(context.__aenter__())
    async with AsyncExitStack() as stack:
        stack.push_async_exit(lambda *error: in_a_task(context.__aexit__(*error)))
        yield entered
