"""The lock of a session's turn: one turn at a time, and no task waits for its own."""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType
from typing import Protocol

import anyio

from miniclaw_sessions.errors import TurnInProgress


class OpenTurn(Protocol):
    """What holds a session's turn."""

    @property
    def is_open(self) -> bool:
        """Whether it has begun and is not over."""
        ...

    def stop(self) -> bool:
        """Cancel its work, if it does something that can be stopped."""
        ...


_open_turns: ContextVar[tuple[OpenTurn, ...]] = ContextVar("open_turns", default=())


class TurnLock:
    """Held by the open turn of a session, and not by a task: another task may end the turn.

    Attributes:
        turn: the turn that holds it; None where none does, or where it is held without a turn.
    """

    __slots__ = ("_lock", "_session_id", "turn")

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._lock: anyio.Semaphore | None = None  # made when it is needed: most sessions sleep
        self.turn: OpenTurn | None = None

    def __repr__(self) -> str:
        return f"<TurnLock of {self._session_id}, {'held' if self.is_held else 'free'}>"

    @property
    def is_held(self) -> bool:
        """Whether a turn is open or waited for."""
        return self._lock is not None and not self._lock.value

    @property
    def waiting(self) -> int:
        """How many tasks wait for it."""
        return 0 if self._lock is None else self._lock.statistics().tasks_waiting

    async def acquire(self) -> None:
        """Return when it is held; first come, first served."""
        if self._lock is None:
            self._lock = anyio.Semaphore(1, max_value=1, fast_acquire=True)
        await self._lock.acquire()

    def release(self) -> None:
        """Let the next one have it."""
        assert self._lock is not None  # noqa: S101 - it is held
        self._lock.release()

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def refuse_reentry(self) -> None:
        """Return if waiting for the turn is not waiting for oneself.

        Raises:
            TurnInProgress: this very task, or one that started it, holds the session's turn.
        """
        if any(turn.is_open and turn is self.turn for turn in _open_turns.get()):
            raise TurnInProgress(
                f"session {self._session_id} is in a turn that this task belongs to; "
                "use that turn, or start the other work from a task that was there before the turn"
            )

    def began(self, turn: OpenTurn) -> None:
        """This turn holds the lock, and this task is part of the turn."""
        self.turn = turn
        _open_turns.set((*_still_open(), turn))

    def ended(self) -> None:
        """The turn is over; `release` comes next."""
        self.turn = None
        _open_turns.set(_still_open())


def _still_open() -> tuple[OpenTurn, ...]:
    """The turns of this task; one that another task has ended would stay in memory with it."""
    return tuple(turn for turn in _open_turns.get() if turn.is_open)
