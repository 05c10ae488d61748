"""Work in a task of its own: it leaves no thread behind, and belongs to no caller.

asyncio's own cancellation ends a coroutine at once, also where it waits for a thread; the thread's locks, open
files and writes would then have no owner. A task group waits for its tasks even then, and cancels them in a way that
waits for threads.

Task groups and cancel scopes belong to the task that entered them. What stays open is entered by one task and left by
another: test fixtures, hooks of web servers and exit stacks of supervisors do that.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Generic, ParamSpec, TypeVar

import anyio
from anyio.abc import TaskGroup

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.errors import ConfigError, ManagerClosed, first_cause

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


class HeldOpen(Generic[T]):
    """An async context manager that any task may enter, and any other leave: a task of its own holds it meanwhile.

    Both wait for that task, so nothing runs on behind them. A caller that is cancelled while it waits cancels what
    is held, and hears of it when that has ended. What fails while it is held is raised where it is left.

    Args:
        context: what is held; entered once.
        name: of the task.

    Raises:
        ConfigError: no event loop of asyncio runs.
    """

    def __init__(self, context: AbstractAsyncContextManager[T], *, name: str) -> None:
        require_asyncio()
        self._context = context
        self._name = name
        self._scope = anyio.CancelScope()
        self._values: list[T] = []
        self._settled, self._leaving = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "not entered" if self._task is None else "over" if self._task.done() else "held"
        return f"<HeldOpen {self._name}, {state}>"

    async def __aenter__(self) -> T:
        """Enter it, in a task of its own. Raises the same."""
        self._task = asyncio.create_task(self._hold(), name=self._name)
        self._task.add_done_callback(lambda _: self._settled.set())
        try:
            await self._settled.wait()
        except BaseException:
            self._cut_off()
            await self.ended()
            raise
        if not self._values:
            await self.ended()
            raise asyncio.CancelledError  # only the event loop has cancelled it, because it closes
        return self._values.pop()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave it, cancelled where the block has failed. Raises what has failed in it."""
        if error is not None:
            self._cut_off()
        self._leaving.set()
        await self.ended()

    async def ended(self) -> None:
        """Wait until it is over, and raise what has failed in it: of several the first.

        A caller that is cancelled here cancels what is held, and waits for its end all the same.
        """
        cancelled: asyncio.CancelledError | None = None
        with anyio.CancelScope() as waiting:
            while True:
                try:
                    await self.watch()
                    break
                except asyncio.CancelledError as error:  # more may come: the shield stops anyio's, the loop asyncio's
                    cancelled, waiting.shield = error, True
                    self._cut_off()
        if cancelled is not None:
            raise cancelled

    async def watch(self) -> None:
        """Wait until it is over, and raise what has failed in it. A caller that is cancelled here does not end it."""
        if self._task is None:
            return
        await asyncio.wait([self._task])
        if not self._task.cancelled() and (failure := self._task.exception()) is not None:
            cause = first_cause(failure)
            raise cause from cause.__cause__

    def _cut_off(self) -> None:
        """Cancel what is held, and let its block end: one that is shielded does not feel the cancellation."""
        self._scope.cancel()
        self._leaving.set()

    async def _hold(self) -> None:
        with self._scope:
            async with self._context as value:
                self._values.append(value)
                self._settled.set()
                await self._leaving.wait()


class Background:
    """The long-lived tasks of one manager. Each ends when its `close` is called.

    Cancelling the scope around the manager does not end them: the committer must live until its last commit.

    Attributes:
        closed: whether they were cut off.
        failure: what a task has raised; only a defect of this program makes one raise.
        failed_at: the monotonic second at which it raised.
    """

    def __init__(self, tasks: TaskGroup, clock: Clock) -> None:
        self.closed = False
        self.failure: Exception | None = None
        self.failed_at = math.inf
        self._clock = clock
        self._tasks = tasks
        self._running: list[tuple[anyio.CancelScope, anyio.Event]] = []

    def start(self, run: Callable[[], Awaitable[None]], *, name: str) -> None:
        """Start a task; cancelling the scope around it does not end it, `run` returns when its `close` is called."""
        scope, ended = anyio.CancelScope(shield=True), anyio.Event()
        self._running.append((scope, ended))
        self._tasks.start_soon(self._run, run, scope, ended, name=name)

    async def complete(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run a step to its end in a task of its own, and raise what it raised.

        Unlike a shielded scope this also holds when asyncio itself cancels the caller, who then merely stops waiting.
        """
        if self.closed:
            raise ManagerClosed("the session manager was closed meanwhile; what was to be done was not begun")
        failures: list[Exception] = []
        done = anyio.Event()

        async def run() -> None:
            try:
                with anyio.CancelScope(shield=True):
                    await step()
            except Exception as error:  # noqa: BLE001 - it belongs to the caller
                failures.append(error)
            finally:
                done.set()

        self._tasks.start_soon(run, name="complete")
        with anyio.CancelScope(shield=True):
            await done.wait()
        if failures:
            raise failures[0]

    async def ended(self) -> None:
        """Return when all tasks have ended."""
        for _, ended in self._running:
            await ended.wait()

    def cut_off(self) -> None:
        """Cancel every task that has not ended, and begin nothing more; what blocks in its thread finishes first."""
        self.closed = True
        for scope, _ in self._running:
            scope.cancel()

    async def _run(self, run: Callable[[], Awaitable[None]], scope: anyio.CancelScope, ended: anyio.Event) -> None:
        try:
            with scope:
                await run()
        except Exception as error:
            self.failure, self.failed_at = error, self._clock.monotonic()
            raise
        finally:
            ended.set()


def require_asyncio() -> None:
    """Raise ConfigError unless an event loop of asyncio runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigError("sessions run on asyncio: use asyncio.run, or anyio.run without another backend") from None
