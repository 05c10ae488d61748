"""What the processes that share a store know of each other's sessions: how many there are, and which are used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from typing import Any

import anyio

from miniclaw_sessions.clock import Clock, sleep_unless
from miniclaw_sessions.core.session.journal import Journal
from miniclaw_sessions.core.sharing.database import Database
from miniclaw_sessions.core.stores.positions import ListPosition
from miniclaw_sessions.core.stores.shared_store import Use
from miniclaw_sessions.errors import StoreError
from miniclaw_sessions.log import get_logger

COUNT_EVERY_S = 60.0
"""How often the sessions of a shared store are counted; a million takes it a tenth of a second."""

MOST_LATER = 10
"""How many steps may wait; one more is dropped, because what these steps write is only a cache."""

log = get_logger(__name__)


class StoredNames:
    """The names of the sessions that are not in memory: the store has them, and none are kept here.

    Attributes:
        count: how many sessions there are, in memory or not, as far as is known.
        used: empty.
    """

    def __init__(self) -> None:
        self.count = 0
        self.used: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<StoredNames of {self.count} sessions>"

    def may_have(self, session_id: str) -> bool:  # noqa: ARG002 - as where names are kept
        """Any session may be in the store."""
        return True

    def total(self, cached: int) -> int:  # noqa: ARG002 - same
        """How many sessions there are."""
        return self.count

    def note(self, session_id: str, used: float) -> None:
        """The store knows it."""

    def made(self) -> None:
        """One more is there."""
        self.count += 1

    def removed(self) -> None:
        """One is gone."""
        self.count = max(0, self.count - 1)


class Census:
    """Counts the sessions of a shared store, and lets the store know of their uses.

    Args:
        database: has them.
        names: gets how many there are.
        journals: the sessions in memory.
        clock: time.
    """

    def __init__(
        self, database: Database, names: StoredNames, journals: Callable[[], Iterator[Journal]], clock: Clock
    ) -> None:
        self._database = database
        self._names = names
        self._journals = journals
        self._clock = clock
        self._wake = anyio.Event()
        self._closed = False
        self._later: list[Callable[[], Awaitable[Any]]] = []

    def __repr__(self) -> str:
        return f"<Census of {self._names.count} sessions>"

    async def run(self) -> None:
        """Count, and write down uses, now and then until `close`; never raises for what the store does.

        So `max_sessions` means the sessions of all processes, and what is used by one is not idle for another.
        """
        while not self._closed:
            steps, self._later = [*self._later, self.take, self.write_uses], []
            for step in steps:
                try:
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
        """Let something be written in the background, unless much of that waits already."""
        if len(self._later) < MOST_LATER:
            self._later.append(step)
            self._wake.set()

    async def take(self) -> int:
        """Count the sessions.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        self._names.count = await self._database.store.count()
        return self._names.count

    def unsaved_uses(self) -> list[tuple[ListPosition, str]]:
        """Which sessions were used here without the store knowing it yet, and when; each with its channel."""
        return [(ListPosition(at, one.session_id), one.key.channel) for one, at in self._unsaved()]

    async def write_uses(self) -> None:
        """Let other processes know when sessions were used here; else they learn it with the next checkpoint.

        Raises:
            StoreUnavailable: the store cannot be written.
        """
        now, used = self._clock.now(), self._unsaved()
        if used:
            uses = [Use(one.session_id, one.incarnation, max(0.0, (now - at).total_seconds())) for one, at in used]
            await self._database.store.watch(self._database.server.used(uses))
            for one, at in used:
                one.checkpoint.use_saved(at)

    def _unsaved(self) -> list[tuple[Journal, datetime]]:
        return [(one, at) for one in self._journals() if (at := one.checkpoint.unsaved_use) is not None]
