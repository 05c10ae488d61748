"""Questions that many ask at the same time, put to the store as one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from miniclaw_sessions.errors import StoreError

K = TypeVar("K")
V = TypeVar("V")


class _Question(Generic[K, V]):
    def __init__(self) -> None:
        self.keys: set[K] = set()
        self.is_over = anyio.Event()
        self.answer: Mapping[K, V] | None = None
        self.error: StoreError | None = None


class Gathering(Generic[K, V]):
    """All who ask within one turn of the event loop share one query, which begins after the last of them has asked.

    Args:
        ask: what is known of some keys; those that nothing is known of are missing.
    """

    def __init__(self, ask: Callable[[Collection[K]], Awaitable[Mapping[K, V]]]) -> None:
        self._ask = ask
        self._open: _Question[K, V] | None = None

    async def get(self, key: K) -> V | None:
        """What is known of one key now, or None.

        Raises:
            StoreError: as the query does.
        """
        while True:
            question = self._open
            if question is None:
                question = self._open = _Question()
                question.keys.add(key)
                await self._put(question)
            else:
                question.keys.add(key)
                await question.is_over.wait()
            if question.error is not None:
                raise question.error
            if question.answer is not None:
                return question.answer.get(key)

    async def _put(self, question: _Question[K, V]) -> None:
        """Let others join, and ask; where this task is cancelled, one of them asks again."""
        try:
            try:
                await checkpoint()
            finally:
                self._open = None
            question.answer = await self._ask(question.keys)
        except StoreError as error:
            question.error = error
        finally:
            question.is_over.set()
