"""Tasks that end when their `close` is called, not when the scope around the manager is cancelled.

Cancelling them with the rest would take the committer away before the last commit.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.errors import ManagerClosed


class Background:
    """The long-lived tasks of one manager.

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
