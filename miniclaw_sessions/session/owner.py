"""The thread and the event loop that sessions belong to."""

from __future__ import annotations

from asyncio import _get_running_loop
from threading import get_ident

from miniclaw_sessions.errors import WrongThread


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
