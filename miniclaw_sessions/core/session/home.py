"""What a session needs of its home, a manager or the memory: what saves it, who may answer it, what makes another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.core.events.listeners import EndKind
from miniclaw_sessions.core.history.branch_memory import BranchMemory
from miniclaw_sessions.core.persistence.committer import CommitQueue
from miniclaw_sessions.core.persistence.flusher import Flushable
from miniclaw_sessions.core.protocol.entries import EntryBase
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session.owner import Owner
from miniclaw_sessions.core.stores.base import Store, StoredEntry

J = TypeVar("J")
T = TypeVar("T")


class Commits(Protocol):
    """What a session needs of the committer."""

    def check_room(self, size: int) -> None:
        """Raise if `size` more bytes may not be accepted."""
        ...

    async def check_store(self) -> None:
        """Raise if the store did not take what it was given last."""
        ...

    def submit(self, queue: CommitQueue, entry: StoredEntry) -> None:
        """Accept an entry."""
        ...

    async def wait(self, queue: CommitQueue, sequence: int) -> None:
        """Return when the entries up to this one are acknowledged."""
        ...


class Flushes(Protocol):
    """What a session needs of the flusher."""

    def add(self, session: Flushable) -> None:
        """The session changed."""
        ...

    async def write(self, session: Flushable) -> None:
        """Write one session now, if it is dirty.

        Raises:
            StoreFull, StoreUnavailable: it cannot be written; it stays dirty.
        """
        ...


class Ownership(Protocol):
    """Who may answer a session while one of its turns is open.

    Either this process alone, or whichever of several processes has claimed the turn in the store.

    Attributes:
        is_contested: whether other processes may answer the session, or add to it.
    """

    @property
    def is_contested(self) -> bool:
        """See above."""
        ...

    async def is_held(self) -> bool:
        """Whether the store says that a process has the session's turn.

        Raises:
            StoreUnavailable: the store cannot be asked.
        """
        ...

    async def wait_for_others(self) -> None:
        """Return when no other process has the session's turn.

        Raises:
            StoreUnavailable: the store cannot be asked.
        """
        ...

    async def begin(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Call `begin`, which commits what the turn begins with, until no other process is first.

        Raises:
            SessionDeleted: another process has deleted the session.
            StoreUnavailable: the store cannot be read.
        """
        ...

    async def take(self) -> None:
        """Claim the turn alone, for a message that is stored already; the session is then as it is stored.

        Raises:
            TurnTaken: another process has it.
            StoreError: it could not be claimed.
        """
        ...

    def include(self, entries: Iterable[EntryBase]) -> None:
        """Entries that are being accepted belong to the turn: they are stored in it, or not at all.

        Raises:
            TurnTaken: another process has taken over.
        """
        ...

    def check(self) -> None:
        """Raise TurnTaken unless the store has granted the turn, and no other process has taken over since."""
        ...

    def end_with_next_commit(self) -> None:
        """Let the commit of what is accepted next give the turn back."""
        ...

    async def give_back(self) -> None:
        """Release the turn, unless a commit has done so; if the store cannot be reached, its time runs out."""
        ...


class Home(Protocol[J]):
    """Where sessions live: a manager, or the memory. `J` is the journal of a session."""

    @property
    def clock(self) -> Clock:
        """Time and ids."""
        ...

    @property
    def committer(self) -> Commits:
        """Takes what was accepted to the store."""
        ...

    @property
    def flusher(self) -> Flushes:
        """Writes the snapshots."""
        ...

    @property
    def store(self) -> Store:
        """Has the transcripts."""
        ...

    @property
    def branch_memory(self) -> BranchMemory:
        """What was read of branches that are longer than the window."""
        ...

    @property
    def max_message_bytes(self) -> int:
        """How large one message may be, as JSON."""
        ...

    @property
    def max_metadata_bytes(self) -> int:
        """How large all metadata of a session may be together, as JSON."""
        ...

    @property
    def owner(self) -> Owner:
        """The thread and the event loop that its sessions may be used from."""
        ...

    def ownership(self, journal: J) -> Ownership:
        """Who may answer a session during one turn."""
        ...

    def new_journal(self, key: SessionKey, *, purpose: str) -> AbstractAsyncContextManager[J]:
        """A new session that stays invisible until the block has ended well; else nothing of it is left."""
        ...


class ManagedHome(Home[J], Protocol[J]):
    """A manager as the home of its sessions: it loads and removes them."""

    async def load(self, session_id: str) -> J | None:
        """The live session, loaded if it is not in memory; None if it does not exist."""
        ...

    async def load_together(self, session_ids: Sequence[str]) -> list[J]:
        """Load those of these sessions that are on disk only, in one go, and return them; `load` finds them then."""
        ...

    async def remove(self, journal: J, *, kind: EndKind = "deleted", if_sequence: int | None = None) -> bool:
        """Remove a session from memory and store; `kind` is the event that followers get.

        Args:
            journal: of the session.
            kind: how it ends.
            if_sequence: only if this is its last sequence number.

        Returns:
            False if it was reloaded meanwhile: another object stands for it now.

        Raises:
            LeafMoved, SessionHeld: it may not be removed.
            StoreError: it could not be.
        """
        ...

    def gone(self, session_ids: Iterable[str]) -> None:
        """Sessions were removed from the store."""
        ...
