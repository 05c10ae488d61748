"""What the processes that share a database know of each other's sessions: how many there are, and which are used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import anyio

from miniclaw_sessions.clock import Clock, sleep_unless
from miniclaw_sessions.core.manager.cache import SessionCache
from miniclaw_sessions.core.session import Journal
from miniclaw_sessions.core.stores.base import Store
from miniclaw_sessions.core.stores.shared import ListPosition, Use, as_shared
from miniclaw_sessions.errors import StoreError
from miniclaw_sessions.log import get_logger

COUNT_EVERY_S = 60.0
"""How often the sessions of a shared store are counted; a million takes it a tenth of a second."""

MOST_LATER = 10
"""So many steps may wait; what they would write is a cache."""

log = get_logger(__name__)


class Known:
    """Counts the sessions, and tells the store of uses; where nobody else writes the store, it has nothing to do."""

    def __init__(self, store: Store, cache: SessionCache, clock: Clock) -> None:
        self._store = store
        self._cache = cache
        self._clock = clock
        self._wake = anyio.Event()
        self._closed = False
        self._later: list[Callable[[], Awaitable[Any]]] = []

    async def run(self) -> None:
        """Count and tell now and then until `close`; never raises for what the store does.

        So `max_sessions` means the sessions of all processes, and what is used by one is not idle for another.
        """
        while not self._closed:
            steps, self._later = [*self._later, self.count, self.write_uses], []
            try:
                for step in steps:
                    await step()
            except StoreError as error:
                log.debug("sessions were not counted", action="session.not_counted", error=str(error))
            await sleep_unless(self._clock, COUNT_EVERY_S, self._wake)
            if not self._closed:
                self._wake = anyio.Event()

    def close(self) -> None:
        """Make `run` return."""
        self._closed = True
        self._wake.set()

    def soon(self, step: Callable[[], Awaitable[Any]]) -> None:
        """Let something be written that nobody waits for, unless much of that waits already."""
        if len(self._later) < MOST_LATER:
            self._later.append(step)
            self._wake.set()

    async def count(self) -> int:
        """How many sessions there are; where names are not known here, the store counts them."""
        if not self._cache.knows_names:
            self._cache.counted(await self._store.count())
        return len(self._cache)

    def unsaved_uses(self) -> list[tuple[ListPosition, str]]:
        """Which sessions were used here without anybody else knowing it yet, and when; each with its channel."""
        return [(ListPosition(at, one.session_id), one.key.channel) for one, at in self._unsaved()]

    async def write_uses(self) -> None:
        """Let other processes know when sessions were used here; between checkpoints nobody else does.

        Raises:
            StoreUnavailable: the store cannot be written.
        """
        now, used = self._clock.now(), self._unsaved()
        if self._store.shared and used:
            uses = [Use(one.session_id, one.incarnation, max(0.0, (now - at).total_seconds())) for one, at in used]
            await as_shared(self._store).used(uses)
            for one, at in used:
                one.use_saved(at)

    def _unsaved(self) -> list[tuple[Journal, datetime]]:
        return [(one, at) for one in self._cache.in_memory() if (at := one.unsaved_use) is not None]
