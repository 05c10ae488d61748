"""The thread and the event loop that sessions belong to, and the refusal of calls from others.

Between two awaits no other task runs, so a session needs no locks. A second thread or a second loop would.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from functools import wraps
from inspect import getattr_static, isasyncgenfunction, iscoroutinefunction, isfunction
from threading import get_ident
from typing import Any, TypeVar

from miniclaw_sessions.errors import WrongThread

C = TypeVar("C")
_Call = Callable[..., Any]

_ENTERING = ("__aenter__", "__aexit__")


class Owner:
    """The thread, and the event loop if one runs, that it was made in."""

    __slots__ = ("_loop", "_thread")

    def __init__(self) -> None:
        self._thread = get_ident()
        self._loop = _get_running_loop()

    def check(self) -> None:
        """Raise unless called from the same thread, and from no other event loop.

        Raises:
            WrongThread: it is another one; nothing was done.
        """
        if get_ident() != self._thread:
            raise WrongThread(
                "sessions belong to the thread of their manager; call them there, for example with "
                "anyio.from_thread.run, or asyncio.run_coroutine_threadsafe"
            )
        loop = self._loop
        if loop is None or loop.is_running():  # in this thread, where no other loop can run then
            return
        if _get_running_loop() is not None:  # asked for last: it asks the system for the process's id every time
            raise WrongThread("sessions belong to the event loop of their manager; open another manager in this one")


def guarded(
    owner_of: Callable[[Any], Owner | None], *, anywhere: Collection[str] = (), by_itself: Collection[str] = ()
) -> Callable[[type[C]], type[C]]:
    """A class decorator: every public method, and entering and leaving, raises WrongThread where it does not belong.

    A coroutine raises when it is awaited, and not when it is called: `asyncio.run_coroutine_threadsafe` is given
    coroutines that another thread has made. Properties stay as they are; they only read.

    Args:
        owner_of: the owner of an object of the class; None: no owner now.
        anywhere: the methods that only read what is in memory: they may be called from anywhere.
        by_itself: the methods that begin with `Owner.check`: the most frequent ones, which a wrapper would slow down.
    """

    def guard(cls: type[C]) -> type[C]:
        for name in dir(cls):
            method = getattr_static(cls, name)
            is_public = not name.startswith("_") or name in _ENTERING
            if is_public and isfunction(method) and name not in (*anywhere, *by_itself):
                setattr(cls, name, _guarded(method, owner_of))
        return cls

    return guard


def _guarded(method: _Call, owner_of: Callable[[Any], Owner | None]) -> _Call:
    async def awaited(self: Any, /, *args: Any, **options: Any) -> Any:
        if (owner := owner_of(self)) is not None:
            owner.check()
        return await method(self, *args, **options)

    async def iterated(self: Any, /, *args: Any, **options: Any) -> AsyncGenerator[Any, None]:
        if (owner := owner_of(self)) is not None:
            owner.check()
        async with aclosing(method(self, *args, **options)) as items:
            async for item in items:
                yield item

    def called(self: Any, /, *args: Any, **options: Any) -> Any:
        if (owner := owner_of(self)) is not None:
            owner.check()
        return method(self, *args, **options)

    if iscoroutinefunction(method):
        return wraps(method)(awaited)
    return wraps(method)(iterated if isasyncgenfunction(method) else called)
