"""A store that fails on a test's request."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from miniclaw_sessions.core.stores.base import Append, Store, StoredHead
from miniclaw_sessions.core.stores.wrapping import WrappingStore
from miniclaw_sessions.errors import StoreConflict, StoreError, StoreUnavailable

T = TypeVar("T")


class FaultyStore(WrappingStore):
    """A real store with faults on request; without any it behaves like the real one.

    Attributes:
        calls: how often each method was called.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.calls: Counter[str] = Counter()
        self._failures: dict[str, list[tuple[Exception, bool]]] = {}
        self._failing: dict[str, Exception] = {}
        self._refused: dict[str, StoreError] = {}
        self._hold: Hold | None = None

    # --- faults ------------------------------------------------------------------------------------------------------

    def fail_next(
        self, count: int = 1, error: Exception | None = None, *, method: str = "append", stored: bool = False
    ) -> None:
        """Let the next calls of a method raise.

        Args:
            count: how many calls.
            error: what they raise; None is a StoreUnavailable.
            method: which method.
            stored: True: the call does its work and only the answer is lost.
        """
        self._failures.setdefault(method, []).extend([(error or _unavailable(), stored)] * count)

    def fail(self, error: Exception | None = None, *, method: str = "append") -> None:
        """Let a method raise until `heal`."""
        self._failing[method] = error or _unavailable()

    def refuse(self, session_id: str, error: StoreError | None = None) -> None:
        """Let appends to one session have this outcome, a StoreConflict if None, until `heal`; others succeed."""
        self._refused[session_id] = error or StoreConflict(f"session {session_id} is refused, as the test wants")

    def hold(self) -> Hold:
        """Let the appends from now on wait until the hold is released."""
        self._hold = Hold()
        return self._hold

    def heal(self) -> None:
        """No more faults; what is held goes on."""
        self._failures.clear()
        self._failing.clear()
        self._refused.clear()
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    # --- the contract ------------------------------------------------------------------------------------------------

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        """Append, or fail as requested."""
        hold = self._hold
        if hold is not None:
            hold.reached.set()
            await hold.released.wait()
        after = self._begin("append")
        refused = dict(self._refused)  # a copy: the test may heal the store meanwhile
        taken = [item for item in appends if item.head.session_id not in refused]
        outcomes = iter(await self._store.append(taken))
        if after is not None:
            raise after
        return [refused.get(item.head.session_id) or next(outcomes) for item in appends]

    async def heads(self) -> AsyncIterator[StoredHead]:
        """The real store's result, or the requested fault."""
        after = self._begin("heads")
        async for stored in self._store.heads():
            yield stored
        if after is not None:
            raise after

    async def _forward(self, method: str, call: Callable[[], Awaitable[T]]) -> T:
        after = self._begin(method)
        result = await call()
        if after is not None:
            raise after
        return result

    def _begin(self, method: str) -> Exception | None:
        """Count the call and raise its fault, or return a fault to raise when the work is done."""
        self.calls[method] += 1
        if (failing := self._failing.get(method)) is not None:
            raise failing
        if not (planned := self._failures.get(method)):
            return None
        error, stored = planned.pop(0)
        if not stored:
            raise error
        return error


class Hold:
    """Appends that wait; `reached` is set as soon as one does."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self.released = anyio.Event()

    def release(self) -> None:
        """Let them proceed."""
        self.released.set()


def _unavailable() -> StoreUnavailable:
    return StoreUnavailable("the store fails, as the test wants; heal it")
