"""The mode of a manager whose store other processes write, too; as `miniclaw_sessions.core.manager.mode` has it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.core.events.heartbeat import Heartbeat
from miniclaw_sessions.core.events.listeners import Topics
from miniclaw_sessions.core.events.tail import Tails
from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.persistence.committer import CommitQueue, Shrunk
from miniclaw_sessions.core.persistence.retention import ClockGuard, Retention
from miniclaw_sessions.core.session.home import Home, ManagedHome
from miniclaw_sessions.core.session.journal import Journal
from miniclaw_sessions.core.session.session import Session
from miniclaw_sessions.core.sharing.census import Census, StoredNames
from miniclaw_sessions.core.sharing.database import Database
from miniclaw_sessions.core.sharing.expiry import SharedPopulation
from miniclaw_sessions.core.sharing.feed import SharedFeed
from miniclaw_sessions.core.sharing.lists import newest_in, sessions_in
from miniclaw_sessions.core.sharing.queue import Claim, append_alone, shared_journal, shared_queue
from miniclaw_sessions.core.sharing.rebasing import rebase, refresh
from miniclaw_sessions.core.sharing.turns import ClaimedTurn, TurnKeeper
from miniclaw_sessions.core.stores.base import Append, StoredHead, TurnClaim
from miniclaw_sessions.core.stores.positions import ListPosition
from miniclaw_sessions.errors import StoreConflict

LOOK_S = 10.0
"""How often the search index asks the store: another process may have died before it indexed what it wrote."""


class SharedMode:
    """Other processes write the store, too: it decides which sessions there are, how they go on, and whose turn it is.

    Args:
        new_database: makes the storage, to be opened.
        names: gets how many sessions there are.
        in_memory: every session that is in memory.
        making: sessions that are being put together, by id.
        clock: time and ids.
        lease_s: how long a turn stays ours without a sign of life.

    Attributes:
        census: how many sessions there are, and which are used; from `new_storage` on.
        keeper: prolongs the turns of this process; from `new_storage` on.
    """

    absence_is_deletion = True
    look_s: float | None = LOOK_S
    census: Census
    keeper: TurnKeeper
    _database: Database

    def __init__(  # noqa: PLR0913 - what it joins
        self,
        new_database: Callable[[], Database],
        names: StoredNames,
        in_memory: Callable[[], Iterator[Journal]],
        making: Mapping[str, Journal],
        *,
        clock: Clock,
        lease_s: float,
    ) -> None:
        self._new_database = new_database
        self._names = names
        self._in_memory = in_memory
        self._making = making
        self._clock = clock
        self._lease_s = lease_s

    def __repr__(self) -> str:
        return f"<SharedMode, {self._names!r}>"

    def make_feed(
        self, topics: Topics, making: Collection[str], clock: Clock, heartbeat: Heartbeat, tails: Tails
    ) -> SharedFeed:
        """One that polls the store."""
        return SharedFeed(topics, making, clock, heartbeat, tails, self._database)

    def new_storage(self) -> Database:
        """The store alone: there is no directory."""
        self._database = database = self._new_database()
        self.census = Census(database, self._names, self._in_memory, self._clock)
        self.keeper = TurnKeeper(database, self._clock, self._in_memory, self._making, lease_s=self._lease_s)
        return database

    # --- a session that is in memory ---------------------------------------------------------------------------------

    def journal(self, conversation: Conversation, home: Home[Journal]) -> Journal:
        """The journal of a session."""
        return shared_journal(conversation, home)

    def ownership(self, journal: Journal) -> ClaimedTurn:
        """A turn is claimed in the store."""
        return ClaimedTurn(journal, lease_s=self._lease_s)

    async def resolve(self, refused: CommitQueue, conflict: StoreConflict) -> Shrunk:
        """Others were first: what waits goes on behind them."""
        return await rebase(refused, conflict)

    async def refresh(self, journal: Journal) -> bool:
        """Fold in what others have stored."""
        return await refresh(journal)

    async def give_way(self, journal: Journal, conflict: StoreConflict) -> bool:  # noqa: ARG002 - the mode's
        """Others have gone on with it: fold that in."""
        return await refresh(journal)

    # --- lists -------------------------------------------------------------------------------------------------------

    async def count(self) -> int:
        """Ask the store."""
        return await self.census.take()

    async def newest(self, **part: Any) -> list[ListPosition]:
        """A part of all sessions, the most recently used first; uses of which only this process knows count here."""
        return await newest_in(self._database, own=self.census.unsaved_uses(), **part)

    async def load_listed(self, session_ids: Sequence[str], home: Home[Journal]) -> dict[str, Session]:
        """Those of these sessions that there are, as they are stored; none of them is cached."""
        folded: list[Conversation] = []
        found = await sessions_in(self._database, session_ids, home, folded)
        if folded:  # once is enough; a list waits for nothing that is written
            self.census.soon(partial(self._database.write_checkpoints, folded))
        return found

    def population(self, home: ManagedHome[Journal], retention: Retention, guard: ClockGuard) -> SharedPopulation:
        """The sessions as far as they may expire."""
        return SharedPopulation(home, self._database, self.census, retention, guard)

    # --- a session that is being made --------------------------------------------------------------------------------

    async def begin(self, journal: Journal) -> bool:
        """Write the session down, before anything is accepted for it.

        So no append ever makes a session: one that is not there any more was deleted, also where the answer to the
        first append never came.
        """
        return await self._begin(journal, None)

    async def undo(self, journal: Journal) -> None:
        """Delete it, unless another process has used it meanwhile."""
        with suppress(StoreConflict):
            if await self._database.store.delete(journal.session_id, known=StoredHead(journal.queue.head, 0)):
                self._names.removed()

    async def begin_long(self, journal: Journal) -> bool:
        """Write the session down and hold its turn: one that is incomplete and in no turn was cut off."""
        claim, queue = Claim(TurnClaim(1, self._clock.new_id(), self._lease_s)), shared_queue(journal)
        if not await self._begin(journal, claim.turn):
            return False
        claim.is_held, queue.claim, queue.fence = True, claim, claim.turn.fence
        return True

    def complete(self, journal: Journal) -> None:
        """Let the next commit end the turn."""
        if (claim := shared_queue(journal).claim) is not None:
            claim.end()

    async def is_being_made(self, session_id: str) -> bool:
        """Whether it is there all the same."""
        return await self._database.store.head(session_id) is not None

    async def _begin(self, journal: Journal, turn: TurnClaim | None) -> bool:
        begun = Append(journal.queue.head, (), turn=turn)
        outcome = await append_alone(self._database.store, begun, self._clock)
        if isinstance(outcome, StoreConflict):
            return False
        if outcome is not None:
            raise outcome
        self._names.made()
        return True

    # --- at work -----------------------------------------------------------------------------------------------------

    def tasks(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        """Turns are prolonged, sessions counted."""
        yield "turns", self.keeper.run
        yield "count", self.census.run

    def close(self) -> None:
        """Let both return."""
        self.keeper.close()
        self.census.close()
