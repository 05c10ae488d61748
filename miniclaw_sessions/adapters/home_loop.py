"""The event loop that a session lives on, and the way there from other threads and loops.

A session belongs to one loop: between two of its awaits no other task runs. Frameworks call from any place (a worker
thread, a second loop that a synchronous wrapper started), so an adapter brings every call to that loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from miniclaw_sessions.core.session import Session
from miniclaw_sessions.service.client import ClientSession

P = ParamSpec("P")
T = TypeVar("T")


class HomeLoop:
    """The loop that runs where this is made; where none runs, calls are run wherever they come from.

    Args:
        loop: another one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or _running_loop()

    @classmethod
    def of(cls, session: Session | ClientSession) -> HomeLoop:
        """The loop of a session's manager, or of its client; None for a session that is in memory only."""
        return cls(
            getattr(session.journal.home.committer, "loop", None) if isinstance(session, Session) else session.loop
        )

    @property
    def is_elsewhere(self) -> bool:
        """Whether the caller runs outside of the loop, so that a synchronous call may wait for it."""
        return self._loop is not None and _running_loop() is not self._loop

    async def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await a call on the loop, from any loop.

        Raises:
            RuntimeError: the loop is closed.
        """
        if self._loop is None or not self.is_elsewhere:
            return await call()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), self._loop))

    def wait(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a call on the loop and block until it is done; only where `is_elsewhere`.

        Raises:
            RuntimeError: this is the loop itself, which would wait for ever; or it is closed.
        """
        if self._loop is None or not self.is_elsewhere:
            raise RuntimeError("a synchronous call cannot wait on the session's own event loop; use the async method")
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()


class HasHome(Protocol):
    """An object whose calls are brought to a loop."""

    _home: HomeLoop


S = TypeVar("S", bound=HasHome)
_Async = Callable[Concatenate[S, P], Coroutine[Any, Any, T]]


def at_home(method: _Async[S, P, T]) -> _Async[S, P, T]:
    """The same method, which runs on the object's home loop from wherever it is awaited."""

    @wraps(method)
    async def awaited(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._home.run(lambda: method(self, *args, **kwargs))

    return awaited


def waiting(method: _Async[S, P, T]) -> Callable[Concatenate[S, P], T]:
    """The same method for synchronous callers on other threads: it blocks until the call on the home loop is done.

    As a decorator it makes a method that is written as a coroutine, and called like a function.
    """

    @wraps(method)
    def waited(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._home.wait(lambda: method(self, *args, **kwargs))

    return waited


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
