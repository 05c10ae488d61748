"""A thread for an object that only one thread may use.

Calls run one after the other, in order. A call that was made runs to its end, even if its caller is cancelled. It costs
about 60 us less than a call in a pool of threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")
_Call = tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


class SerialThread:
    """Runs functions for coroutines. The thread starts in the constructor, and `stop` ends it."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        Thread(target=self._run, name=name, daemon=True).start()

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function after all earlier calls. Returns what it returns, and raises what it raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._calls.put((loop, future, function, arguments))
        return await future

    def stop(self) -> None:
        """End the thread after the calls so far. Make no further calls."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            loop, future, function, arguments = call
            result, failure = None, None
            try:
                result = function(*arguments)
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                failure = error
            with suppress(RuntimeError):  # the loop is closed, so no caller waits
                loop.call_soon_threadsafe(_settle, future, result, failure)
            del call, function, arguments, result, failure


def _settle(future: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if future.done():
        return  # the caller was cancelled
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)
