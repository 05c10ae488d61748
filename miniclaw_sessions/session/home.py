"""What a session needs of the place where it lives: what saves it, and the thread that it belongs to."""

from __future__ import annotations

from asyncio import _get_running_loop
from threading import get_ident
from typing import Protocol

from miniclaw_sessions.errors import WrongThread
from miniclaw_sessions.persistence.committer import SessionLog
from miniclaw_sessions.persistence.flusher import Flushable
from miniclaw_sessions.stores.base import StoredEntry


class Commits(Protocol):
    """What a session needs of the committer."""

    def check_room(self, size: int) -> None:
        """Raise if `size` more bytes may not be accepted."""
        ...

    def check_store(self) -> None:
        """Raise if the store did not take what it was given last."""
        ...

    def submit(self, session: SessionLog, entry: StoredEntry) -> None:
        """Accept an entry."""
        ...

    async def wait(self, session: SessionLog, sequence: int) -> None:
        """Return when the entries up to this one are acknowledged."""
        ...


class Flushes(Protocol):
    """What a session needs of the flusher."""

    def add(self, session: Flushable) -> None:
        """The session changed."""
        ...


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
        if self._loop is not None and _get_running_loop() not in (self._loop, None):
            raise WrongThread("sessions belong to the event loop of their manager; open another manager in this one")
