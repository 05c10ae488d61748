"""What a session needs of the place where it lives: what saves it, and what makes another session beside it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.core.persistence.committer import SessionLog
from miniclaw_sessions.core.persistence.flusher import Flushable
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session.owner import Owner
from miniclaw_sessions.core.stores.base import Store, StoredEntry

if TYPE_CHECKING:
    from miniclaw_sessions.core.session.journal import Journal


class Commits(Protocol):
    """What a session needs of the committer."""

    def check_room(self, size: int) -> None:
        """Raise if `size` more bytes may not be accepted."""
        ...

    def check_store(self) -> None:
        """Raise if the store did not take what it was given last."""
        ...

    def submit(self, session: SessionLog, entry: StoredEntry) -> None:
        """Accept an entry."""
        ...

    async def wait(self, session: SessionLog, sequence: int) -> None:
        """Return when the entries up to this one are acknowledged."""
        ...


class Flushes(Protocol):
    """What a session needs of the flusher."""

    def add(self, session: Flushable) -> None:
        """The session changed."""
        ...


class Home(Protocol):
    """Where sessions live: a manager, or the memory. What saves them, and what makes another one beside them."""

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
    def turn_lease_s(self) -> float:
        """How long a turn stays ours without a sign of life, where other processes answer the same sessions."""
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

    def new_journal(self, key: SessionKey, *, purpose: str) -> AbstractAsyncContextManager[Journal]:
        """A new session that nobody else sees until the block has ended well; else nothing of it is left."""
        ...


class OpenTurn(Protocol):
    """What holds a session's turn."""

    @property
    def is_open(self) -> bool:
        """Whether it has begun and is not over."""
        ...

    def stop(self) -> bool:
        """Cancel its work, if it does something that can be stopped."""
        ...
