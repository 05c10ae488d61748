"""Turns in a store that several processes write: each is claimed there, with a number that fences off earlier ones.

A turn is taken by the commit of the user's message, and prolonged by each later commit. While its model thinks, nothing
is committed, and `TurnKeeper` prolongs it. A process that learns there that another one has taken over stops at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TypeVar

import anyio

from miniclaw_sessions.clock import Clock, sleep_unless
from miniclaw_sessions.core.protocol.entries import EntryBase
from miniclaw_sessions.core.session.journal import Journal
from miniclaw_sessions.core.sharing.database import Database
from miniclaw_sessions.core.sharing.queue import Claim, append_alone, shared_queue
from miniclaw_sessions.core.sharing.rebasing import refresh
from miniclaw_sessions.core.stores.base import Append, TurnClaim
from miniclaw_sessions.errors import SessionDeleted, SessionsError, StoreConflict, StoreError, TurnTaken
from miniclaw_sessions.log import get_logger

LOOK_AGAIN_S = 0.3
"""How often a turn that another process has is looked at, until it is over."""

TRIES = 3
"""How many times a turn is prolonged before it would run out: a store that is gone for a moment costs no turn."""

T = TypeVar("T")

log = get_logger(__name__)


class ClaimedTurn:
    """The ownership of one turn of a session (`session.home.Ownership`).

    Args:
        journal: of the session.
        lease_s: how long the turn stays ours without a sign of life.

    Attributes:
        claim: what is claimed; None: nothing yet, or it was given back.
    """

    is_contested = True

    def __init__(self, journal: Journal, *, lease_s: float) -> None:
        self._journal = journal
        self._queue = shared_queue(journal)
        self._lease_s = lease_s
        self.claim: Claim | None = None

    def __repr__(self) -> str:
        return f"<ClaimedTurn of {self._journal.session_id}, {'claimed' if self.claim else 'not claimed'}>"

    async def is_held(self) -> bool:
        """Whether a process has the session's turn, and has not timed out."""
        stored = await self._journal.home.store.head(self._journal.session_id)
        return stored is not None and stored.turn is not None and not stored.turn.is_over

    async def wait_for_others(self) -> None:
        """Return when no process has the session's turn any more."""
        clock = self._journal.home.clock
        while await self.is_held():
            await clock.sleep(clock.jitter(LOOK_AGAIN_S))

    async def begin(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Call `begin`, with a claim for its commit, until no other process is first."""
        journal = self._journal
        while True:
            await journal.saved()  # what waits of a former turn goes in that one or not at all, never in this one
            if not await refresh(journal):
                raise SessionDeleted(f"session {journal.session_id} was deleted by another process")
            owner = journal.home.clock.new_id()
            self.claim = Claim(TurnClaim(self._queue.fence + 1, owner, self._lease_s))
            try:
                return await begin()
            except TurnTaken:
                await self.give_back()
                await self.wait_for_others()

    async def take(self) -> None:
        """Claim the turn without an entry; see `Ownership.take`."""
        if (claim := self.claim) is None:
            return
        outcome = await self._append(claim)
        if isinstance(outcome, StoreConflict):
            raise TurnTaken(self._journal.session_id) from outcome
        if outcome is not None:
            raise outcome
        claim.granted(claim.turn)
        self._queue.claim = claim
        await refresh(self._journal)

    def include(self, entries: Iterable[EntryBase]) -> None:
        """Entries that are being accepted belong to the turn, and the next commit asks for it."""
        if (claim := self.claim) is None:
            return
        if claim.error is not None:
            raise TurnTaken(self._journal.session_id) from claim.error
        claim.ids.update(entry.id for entry in entries)
        self._queue.claim = claim

    def check(self) -> None:
        """Raise TurnTaken unless the turn is ours."""
        if (claim := self.claim) is not None and (claim.error is not None or not claim.is_held):
            raise TurnTaken(self._journal.session_id) from claim.error

    def end_with_next_commit(self) -> None:
        """Let the commit of what is accepted next give the turn back."""
        if self.claim is not None:
            self.claim.end()

    async def give_back(self) -> None:
        """Release the turn; if the store cannot be reached now, its time runs out."""
        claim, self.claim = self.claim, None
        if claim is None:
            return
        if self._queue.claim is claim and self._queue.sending:  # what is on its way would take it, or prolong it
            with suppress(SessionsError):
                await self._journal.saved()
        if self._queue.claim is claim and self._queue.pending:  # what waits goes in this turn or not at all
            claim.end()
            return
        if self._queue.claim is claim:
            self._queue.claim = None
        if claim.is_held and not claim.is_over and claim.error is None:
            claim.end()
            with suppress(SessionsError):
                await self._append(claim)

    async def _append(self, claim: Claim) -> StoreError | None:
        append = Append(self._queue.head, (), turn=claim.turn, must_exist=True)
        return await append_alone(self._journal.home.store, append, self._journal.home.clock)


class TurnKeeper:
    """Prolongs the turns of this process.

    Args:
        database: where they are claimed.
        clock: time.
        in_memory: the sessions that may have one.
        making: sessions that are being imported or forked here: no other process takes them for abandoned meanwhile.
        lease_s: how long a turn stays ours without a sign of life.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        in_memory: Callable[[], Iterator[Journal]],
        making: Mapping[str, Journal],
        *,
        lease_s: float,
    ) -> None:
        self._database = database
        self._clock = clock
        self._in_memory = in_memory
        self._making = making
        self._lease_s = lease_s
        self._stop = anyio.Event()

    def __repr__(self) -> str:
        return f"<TurnKeeper, every {self._lease_s / TRIES:g} s>"

    async def run(self) -> None:
        """Prolong them now and then until `close`; never raises for what the store does."""
        while not await sleep_unless(self._clock, self._lease_s / TRIES, self._stop):
            await self.prolong()

    def close(self) -> None:
        """Make `run` return."""
        self._stop.set()

    async def prolong(self) -> None:
        """Prolong all turns that this process has, and stop those that it has no more."""
        kept = [*self._making.values(), *(one for one in self._in_memory() if one.turn_lock.turn is not None)]
        claims = [(one, shared_queue(one).claim) for one in kept]
        held = [(one, claim) for one, claim in claims if claim is not None and claim.turn.seconds > 0]
        if not held:
            return
        try:
            outcomes = await self._database.store.append(
                [Append(one.queue.head, (), turn=claim.turn, must_exist=True) for one, claim in held]
            )
        except StoreError as error:
            log.warning("turns were not prolonged", action="turn.not_prolonged", turns=len(held), error=str(error))
            return
        for (journal, claim), outcome in zip(held, outcomes, strict=True):
            if isinstance(outcome, StoreConflict) and shared_queue(journal).claim is claim and not claim.is_over:
                log.warning("another process has the turn", action="turn.lost", session_id=journal.session_id)
                claim.error = TurnTaken(journal.session_id)
                if journal.turn_lock.turn is not None:
                    journal.turn_lock.turn.stop()
