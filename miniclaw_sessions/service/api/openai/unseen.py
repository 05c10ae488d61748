"""Answers that are kept, and of which the client has seen nothing: it went away before, or the daemon was killed.

A client that sends the same request again without a mark either repeats it, or wants another answer. It cannot want
another one than an answer of which it has seen nothing: so the kept answer is right for both. Seen ones are made again.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import timedelta
from typing import Any

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.service.api.openai.stored_responses import REMEMBERED

_MOST = 1_000
"""Requests whose clients went away, and answers that were given again."""


class Unseen:
    """Knows which answers were not seen, as far as this process can know it."""

    def __init__(self) -> None:
        self._left: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._given: OrderedDict[str, None] = OrderedDict()
        self._clock = SystemClock()
        self._started = self._clock.monotonic()

    def left(self, session_id: str, digest: str) -> None:
        """The client of a request went away before it had anything of the answer."""
        self._left[session_id, digest] = None
        _bound(self._left)

    def may_be(self, session_id: str, digest: str) -> bool:
        """Whether it is worth while to look for an answer that was not seen."""
        return (session_id, digest) in self._left or self._age() <= REMEMBERED

    def is_unseen(self, session_id: str, digest: str, mark_id: str, age: timedelta) -> bool:
        """Whether an answer was not seen; one from before this process counts as unseen, once.

        Args:
            session_id: the session.
            digest: the request's.
            mark_id: the entry that the response begins with.
            age: for how long it is complete.
        """
        if (session_id, digest) in self._left:
            return True
        return self._age() < age <= REMEMBERED and mark_id not in self._given

    def given(self, session_id: str, digest: str, mark_id: str) -> None:
        """The kept answer goes to the request that was sent again."""
        self._left.pop((session_id, digest), None)
        self._given[mark_id] = None
        _bound(self._given)

    def _age(self) -> timedelta:
        return timedelta(seconds=self._clock.monotonic() - self._started)


def _bound(remembered: OrderedDict[Any, None]) -> None:
    while len(remembered) > _MOST:
        remembered.popitem(last=False)
