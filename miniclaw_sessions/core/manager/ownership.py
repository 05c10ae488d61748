"""Keeping the turns of this process while they run, where other processes write the same store.

A turn is taken by the commit of the user's message, and prolonged by each later commit. While its model thinks it says
nothing, and this task prolongs it. Who learns in this way that somebody else has taken over stops at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import anyio

from miniclaw_sessions.clock import Clock, sleep_unless
from miniclaw_sessions.core.session import Journal
from miniclaw_sessions.core.stores.base import Append, Store
from miniclaw_sessions.errors import StoreConflict, StoreError, TurnTaken
from miniclaw_sessions.log import get_logger

TRIES = 3
"""So many times a turn is prolonged before it would run out: a store that is gone for a moment costs none."""

log = get_logger(__name__)


class TurnKeeper:
    """Prolongs the turns that are open.

    Args:
        store: where they are claimed.
        clock: time.
        journals: the sessions that may have one.
        lease_s: how long a turn stays ours without a sign of life.
    """

    def __init__(
        self, store: Store, clock: Clock, journals: Callable[[], Iterator[Journal]], *, lease_s: float
    ) -> None:
        self._store = store
        self._clock = clock
        self._journals = journals
        self._lease_s = lease_s
        self.making: set[Journal] = set()
        """Sessions that are being imported or forked here: nobody takes them for abandoned while they are kept."""
        self._stop = anyio.Event()

    async def run(self) -> None:
        """Prolong them now and then until `close`; never raises for what the store does."""
        while not await sleep_unless(self._clock, self._lease_s / TRIES, self._stop):
            await self.prolong()

    def close(self) -> None:
        """Make `run` return."""
        self._stop.set()

    async def prolong(self) -> None:
        """Prolong all turns that this process has, and stop those that it has no more."""
        kept = [*self.making, *(one for one in self._journals() if one.turn is not None)]
        held = [(one, claim) for one in kept if (claim := one.log.claim) is not None and claim.turn.seconds > 0]
        if not held:
            return
        try:
            outcomes = await self._store.append(
                [Append(one.log.head, (), turn=claim.turn, must_exist=True) for one, claim in held]
            )
        except StoreError as error:
            log.warning("turns were not prolonged", action="turn.not_prolonged", turns=len(held), error=str(error))
            return
        for (journal, claim), outcome in zip(held, outcomes, strict=True):
            if isinstance(outcome, StoreConflict) and journal.log.claim is claim and not claim.is_over:
                log.warning("another process has the turn", action="turn.lost", session_id=journal.session_id)
                claim.error = TurnTaken(journal.session_id)
                if journal.turn is not None:
                    journal.turn.stop()
