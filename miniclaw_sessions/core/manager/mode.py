"""The seam between a directory that one process has for itself and a store that several processes share.

A manager chooses one of two modes once: `LocalMode` (in `local`) or `SharedMode` (in `miniclaw_sessions.core.sharing`).
Registry, sessions and turns ask the mode, and never which one it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from miniclaw_sessions.core.events.events import MakeFeed
from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.persistence.committer import CommitQueue, Shrunk
from miniclaw_sessions.core.persistence.retention import ClockGuard, Looked, Retention
from miniclaw_sessions.core.persistence.storage import Storage
from miniclaw_sessions.core.session import Home, Journal, Session
from miniclaw_sessions.core.session.home import ManagedHome, Ownership
from miniclaw_sessions.core.stores.positions import ListPosition
from miniclaw_sessions.errors import StoreConflict

Task = Callable[[], Awaitable[None]]


class Population(Protocol):
    """The sessions of a manager as far as they may expire."""

    async def find_idle(self, at: datetime) -> Looked:
        """Which sessions will be idle for too long at that moment."""
        ...

    async def held(self, session_ids: Sequence[str]) -> list[str]:
        """Those of these sessions that are under legal hold."""
        ...

    async def remove(self, idle: list[str]) -> dict[str, int]:
        """Archive and delete those that are still idle; logs what cannot be done.

        Returns:
            Those that were removed, and how many bytes their entries had.
        """
        ...

    async def doubt(self) -> str | None:
        """Why nothing should expire now, or None."""
        ...

    def forgive(self, jump: timedelta, *, before: datetime) -> None:
        """The wall clock jumped ahead: let no session age by it that was not used since `before`."""
        ...

    async def keep_forgiven(self) -> None:
        """After `forgive`: let the sessions be so young after a restart, too."""
        ...

    async def renewed(self, session_id: str, used_before: datetime) -> None:
        """A session is used again: let every process that may expire it know.

        Args:
            session_id: which session.
            used_before: when it was last used before.
        """
        ...


class Mode(Protocol):
    """What differs between a store that one process has and a store that several write.

    It is made before the store is opened. All but `new_storage` may be used once that is open.

    Attributes:
        absence_is_deletion: whether a session that is not in the store was deleted.
        make_feed: makes the feed of events where other processes write the store, too; None: they do not.
        look_s: how often the search index asks the store for entries of other processes; None: never.
    """

    absence_is_deletion: bool
    look_s: float | None

    @property
    def make_feed(self) -> MakeFeed | None:
        """See above."""
        ...

    def new_storage(self) -> Storage:
        """What the sessions are kept in, to be opened."""
        ...

    # --- a session that is in memory ---------------------------------------------------------------------------------

    def journal(self, conversation: Conversation, home: Home[Journal]) -> Journal:
        """The journal of a session, all of which is stored."""
        ...

    def ownership(self, journal: Journal) -> Ownership:
        """Who may answer a session during one turn."""
        ...

    async def resolve(self, refused: CommitQueue, conflict: StoreConflict) -> Shrunk:
        """Make what waits of a session fit for the next commit; see `Committer.on_conflict`."""
        ...

    async def refresh(self, journal: Journal) -> bool:
        """Let a session be as it is stored now. Returns False if it was deleted.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        ...

    async def give_way(self, journal: Journal, conflict: StoreConflict) -> bool:
        """`refresh` a session that could not be deleted because of a conflict; raises it if there is nothing to learn.

        Raises:
            StoreError: as it says.
        """
        ...

    # --- lists -------------------------------------------------------------------------------------------------------

    async def count(self) -> int:
        """Count the sessions, those of other processes too."""
        ...

    async def newest(self, **part: Any) -> list[ListPosition]:
        """A part of all sessions, the most recently used first: `part` is as for `Listing.newest`."""
        ...

    async def load_listed(self, session_ids: Sequence[str], home: ManagedHome[Journal]) -> dict[str, Session]:
        """Those of these sessions that there are."""
        ...

    def population(self, home: ManagedHome[Journal], retention: Retention, guard: ClockGuard) -> Population:
        """The sessions as far as they may expire."""
        ...

    # --- a session that is being made --------------------------------------------------------------------------------

    async def begin(self, journal: Journal) -> bool:
        """Make sure that a new session may be used. Returns False if there is another one of its name."""
        ...

    async def undo(self, journal: Journal) -> None:
        """Take back what `begin` did."""
        ...

    async def begin_long(self, journal: Journal) -> bool:
        """As `begin`, for a session that takes a while: until then it is in the cache's `making`."""
        ...

    def complete(self, journal: Journal) -> None:
        """Let the next commit of a session say that it is made."""
        ...

    async def is_being_made(self, session_id: str) -> bool:
        """Whether a session that could not be loaded is there, because another process is putting it together."""
        ...

    # --- at work -----------------------------------------------------------------------------------------------------

    def tasks(self) -> Iterator[tuple[str, Task]]:
        """What runs in the background until `close`, each with its name."""
        ...

    def close(self) -> None:
        """Let the tasks return."""
        ...
