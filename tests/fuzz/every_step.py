"""Cancelling a call at its first step, at its second, and so on, until it ends before it is cancelled.

A step ends where the call waits for something. It is cancelled while it waits, or just when what it waits for has come.
Which steps there are depends on the call alone, and not on how fast the machine is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import anyio

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.errors import SessionsError
from miniclaw_sessions.files.transfer.backup import back_up, restore
from miniclaw_sessions.testing import FakeClock
from tests.fuzz.cancelling import CALLS, PATIENCE_S, Round, insist, lost, prepare, somebody_else, usable

WAYS = ("native", "scope", "native, on arrival", "scope, on arrival", "native, twice")
MANY = 5_000
"""Messages: larger than what all rounds in one workspace say."""

MOST_STEPS = 64
"""Reading everything takes a step for each page, and each round has more to be read: it is not followed to its end."""

STRIDE = int(os.environ.get("CANCELLING_STRIDE", "1"))
"""Every so many steps one is cancelled; each way begins at another one."""

_GONE = "fuzz_gone"


@dataclass
class Cancelled:
    """A call that is cancelled at one of its steps.

    Attributes:
        way: one of `WAYS`.
        step: which, from 0 on.
        is_reached: whether the call had so many steps.
    """

    way: str
    step: int
    is_reached: bool = False
    _steps: int = 0

    async def run(self, call: Awaitable[object]) -> None:
        """Return when the call has ended, in whatever way."""
        scope = anyio.CancelScope()

        async def cancelled() -> None:
            with scope, suppress(SessionsError):
                await call

        _within.set(self)
        asyncio.get_running_loop().set_task_factory(_stepwise_within)
        try:
            task = asyncio.create_task(cancelled())
            self._cancel = task.cancel if self.way.startswith("native") else scope.cancel
            _within.set(None)
            with suppress(asyncio.CancelledError):
                await task
        finally:
            asyncio.get_running_loop().set_task_factory(None)

    def note_step(self, waits_for: asyncio.Future[Any] | None) -> None:
        """A task of the call begins to wait."""
        self._cancel_at(self._steps, waits_for)
        self._steps += 1

    def _cancel_at(self, step: int, waits_for: asyncio.Future[Any] | None) -> None:
        if step not in (self.step, self.step + ("twice" in self.way)):
            return
        self.is_reached = True
        if waits_for is not None and "on arrival" in self.way:
            waits_for.add_done_callback(lambda _: self._cancel())
        else:
            self._cancel()


_within: ContextVar[Cancelled | None] = ContextVar("within", default=None)
"""Inherited by the tasks that a call starts: their steps are its own."""


def _stepwise_within(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any
) -> asyncio.Task[Any]:
    cancelled = _within.get()

    async def stepwise() -> object:
        assert cancelled is not None
        assert isinstance(work, Coroutine)
        return await _Stepwise(work, cancelled.note_step)

    return asyncio.Task(work if cancelled is None else stepwise(), loop=loop, **options)


class _Stepwise:
    """Awaits something, and tells before each step what it waits for."""

    def __init__(self, work: Awaitable[object], on_step: Callable[[asyncio.Future[Any] | None], None]) -> None:
        self._work = work
        self._on_step = on_step

    def __await__(self) -> Generator[Any, Any, object]:
        work = self._work.__await__()
        go_on: Callable[[Any], Any] = work.send
        argument: Any = None
        while True:
            try:
                waits_for = go_on(argument)
            except StopIteration as end:
                return end.value
            self._on_step(waits_for)
            try:
                argument = yield waits_for
                go_on = work.send
            except BaseException as error:  # noqa: BLE001 - it is the work's
                argument, go_on = error, work.throw


def _first_of(way: str) -> int:
    return WAYS.index(way) % STRIDE


def settings_of(store: str) -> SessionSettings:
    return SessionSettings(store=store, window=MANY, max_cached=3, ttl_days=0)


async def play_call(call: str, store: str, way: str, workspace: Path) -> list[str]:
    """Cancel one of `CALLS` at every step, in one workspace. Returns what is wrong afterwards."""
    problems: list[str] = []
    settings = settings_of(store)
    async with SessionManager(workspace, settings=settings) as manager:
        here = Round(manager)
        for step in range(_first_of(way), MOST_STEPS, STRIDE):
            with anyio.fail_after(PATIENCE_S):
                here.forget("fuzz_new")
                await manager.delete("fuzz_new")
                await prepare(here)
                cancelled = Cancelled(way, step)
                await cancelled.run(CALLS[call](here))
                await somebody_else(here)
                problems += [f"step {step}: {text}" for text in [*await usable(here), *await lost(here, manager)]]
            if problems or not cancelled.is_reached:
                break
        problems += [f"check: {problem}" for problem in (await manager.check()).problems]
    if store != "memory:":
        async with SessionManager(workspace, settings=settings) as manager:
            problems += [f"after a restart: {problem}" for problem in await lost(here, manager)]
    return problems


Scene = Callable[[Path, SessionSettings, Cancelled], Coroutine[Any, Any, Round]]
"""One workspace, in which something is cancelled. Returns what was acknowledged by then."""


async def play_scene(scene: str, store: str, way: str, directory: Path) -> list[str]:
    """Cancel what a scene does at every step, each in a workspace of its own. Returns what is wrong afterwards."""
    for step in count(_first_of(way), STRIDE):
        workspace, settings, cancelled = directory / str(step), settings_of(store), Cancelled(way, step)
        with anyio.fail_after(PATIENCE_S):
            here = await SCENES[scene](workspace, settings, cancelled)
            async with SessionManager(workspace, settings=settings, wait_s=PATIENCE_S) as manager:
                here = replace(here, manager=manager)
                await insist(here, "old")
                problems = [*await lost(here, manager), *(await manager.check()).problems]
        if problems or not cancelled.is_reached:
            return [f"step {step}: {problem}" for problem in problems]
    raise AssertionError


@asynccontextmanager
async def _opened(workspace: Path, settings: SessionSettings, **options: Any) -> AsyncIterator[Round]:
    async with SessionManager(workspace, settings=settings, **options) as manager:
        here = Round(manager)
        for _ in range(3):
            await here.say("old")
        yield here


async def _closing(workspace: Path, settings: SessionSettings, cancelled: Cancelled) -> Round:
    manager = SessionManager(workspace, settings=settings)
    here, begun = Round(manager), list[None]()

    async def open_and_close() -> None:
        await manager.__aenter__()
        for _ in range(3):
            await here.say("old")
        begun.append(None)
        await manager.close()

    skipping = _AfterBeginning(cancelled.way, cancelled.step, begun=begun)
    await skipping.run(open_and_close())
    cancelled.is_reached = skipping.is_reached
    return here


@dataclass
class _AfterBeginning(Cancelled):
    """Counts the steps from when something has begun: what is cancelled is the closing, not the opening."""

    begun: list[None] | None = None
    _first: int | None = None

    def _cancel_at(self, step: int, waits_for: asyncio.Future[Any] | None) -> None:
        if self.begun:
            self._first = step if self._first is None else self._first
            super()._cancel_at(step - self._first, waits_for)


async def _opening(workspace: Path, settings: SessionSettings, cancelled: Cancelled) -> Round:
    async with _opened(workspace, settings) as here:
        pass

    async def open_and_close() -> None:
        async with SessionManager(workspace, settings=settings):
            pass

    await cancelled.run(open_and_close())
    return here


async def _restoring(workspace: Path, settings: SessionSettings, cancelled: Cancelled) -> Round:
    """From the archive, where the chat's session went when it expired."""
    clock = FakeClock()
    expiring = SessionSettings(store=settings.store, window=MANY, ttl_days=1, flush_interval_s=10**7)
    async with SessionManager(workspace, settings=expiring, clock=clock) as manager:
        here = Round(manager)
        for _ in range(3):
            await here.say("gone")
        await clock.advance(2 * 86_400)
        await manager.sweep()
        await cancelled.run(manager.restore(_GONE))
        await insist(here, "gone")
    return here


async def _restoring_a_backup(workspace: Path, settings: SessionSettings, cancelled: Cancelled) -> Round:
    """Cut off, it is run again."""
    backup = workspace.with_name(f"{workspace.name}-backup")
    async with _opened(workspace.with_name(f"{workspace.name}-before"), settings) as here:
        await back_up(here.manager, backup)
    await cancelled.run(restore(backup, workspace, settings))
    with suppress(SessionsError):  # it was whole already
        await restore(backup, workspace, settings)
    return here


async def _backing_up(workspace: Path, settings: SessionSettings, cancelled: Cancelled) -> Round:
    async with _opened(workspace, settings) as here:
        await cancelled.run(back_up(here.manager, workspace.with_name(f"{workspace.name}-backup")))
        await here.say("old")
    return here


SCENES: dict[str, Scene] = {
    "closing": _closing,
    "opening": _opening,
    "restoring from the archive": _restoring,
    "restoring a backup": _restoring_a_backup,
    "backing up": _backing_up,
}
