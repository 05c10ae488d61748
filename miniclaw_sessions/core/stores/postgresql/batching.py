"""Lookups that are made at the same time, sent to the store as one query."""

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


class BatchedLookup(Generic[K, V]):
    """All lookups in one iteration of the event loop share one query, which begins after the last of them.

    Args:
        ask: looks up some keys; the result lacks the keys that are not found.
    """

    def __init__(self, ask: Callable[[Collection[K]], Awaitable[Mapping[K, V]]]) -> None:
        self._ask = ask
        self._open: _Question[K, V] | None = None

    async def get(self, key: K) -> V | None:
        """The value of a key, or None.

        Raises:
            StoreError: the query failed.
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
        """Let other lookups join, and query. If this task is cancelled, one of the others queries again."""
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
