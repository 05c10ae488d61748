"""Work that leaves no thread behind, however its caller is cancelled.

asyncio's own cancellation ends a coroutine at once, also where it waits for a thread; what that thread has locked,
opened or is writing would be nobody's. A task group waits for its tasks even then, and cancels them in a way that
waits for threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import anyio

from miniclaw_sessions.errors import ConfigError, first_cause

P = ParamSpec("P")
T = TypeVar("T")


def in_own_task(work: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """The coroutine function, run in a task that is waited for when its caller is cancelled. Raises the same."""

    @wraps(work)
    async def wait_for_it(*arguments: P.args, **options: P.kwargs) -> T:
        outcome: list[T] = []

        async def run() -> None:
            outcome.append(await work(*arguments, **options))

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, name=work.__qualname__)
        except BaseExceptionGroup as group:
            error = first_cause(group)
            raise error from error.__cause__
        return outcome[0]

    return wait_for_it


def require_asyncio() -> None:
    """Raise ConfigError unless an event loop of asyncio runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigError("sessions run on asyncio: use asyncio.run, or anyio.run without another backend") from None
