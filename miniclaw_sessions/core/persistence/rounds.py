"""The wait for a group's commit."""

from __future__ import annotations

import asyncio


class Round:
    """One group's commit, to be waited for by many.

    Each waiter has a future of its own, so that a cancelled one does not cancel others. This is what `anyio.Event` does
    in three layers; a hundred waiters per commit feel the difference.
    """

    __slots__ = ("_is_over", "_loop", "_waiters")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._is_over = False
        self._loop = loop  # a future that has to look for its loop asks the system for the process's id
        self._waiters: list[asyncio.Future[None]] = []

    def wait(self) -> asyncio.Future[None]:
        """A future that is done when the round is."""
        future: asyncio.Future[None] = asyncio.Future(loop=self._loop)
        if self._is_over:
            future.set_result(None)
        else:
            self._waiters.append(future)
        return future

    async def ended(self) -> None:
        """Return when the round is over."""
        while not self._is_over:
            await self.wait()

    def over(self) -> None:
        """Let everybody go who waits."""
        self._is_over = True
        self.look()

    def look(self) -> None:
        """Let those who wait look whether what they wait for is decided already."""
        for future in self._waiters:
            if not future.done():
                future.set_result(None)
        self._waiters.clear()
