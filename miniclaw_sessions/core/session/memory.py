"""The memory as a home: everything a session can do, acknowledged at once, and gone with the process.

For agents that need no more than the conversation at hand, for notebooks, and for tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.core.history.branch_memory import BranchMemory
from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.persistence.committer import CommitQueue
from miniclaw_sessions.core.persistence.flusher import Flushable
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session.journal import Journal
from miniclaw_sessions.core.session.owner import Owner
from miniclaw_sessions.core.session.turn import sole_owner
from miniclaw_sessions.core.stores.base import Append, StoredEntry
from miniclaw_sessions.core.stores.memory import MemoryStore


class MemoryHome:
    """The home of sessions that belong to no manager; it is its own committer and flusher."""

    ownership = staticmethod(sole_owner)
    max_message_bytes = max_metadata_bytes = 2**62

    def __init__(self, clock: Clock, window: int) -> None:
        self.clock = clock
        self.owner = Owner()
        self.store = MemoryStore()
        self.branch_memory = BranchMemory()
        self._window = window

    @property
    def committer(self) -> MemoryHome:
        """What is accepted is acknowledged."""
        return self

    @property
    def flusher(self) -> MemoryHome:
        """There are no files."""
        return self

    def journal(self, key: SessionKey) -> Journal:
        """A session without any entries."""
        clock = self.clock
        conversation = Conversation.new(key, incarnation=clock.new_id(), created_at=clock.now(), capacity=self._window)
        return Journal(conversation, self)

    @asynccontextmanager
    async def new_journal(self, key: SessionKey, *, purpose: str) -> AsyncIterator[Journal]:  # noqa: ARG002 - no other task can see it half made
        """A session beside the others, with a store of its own: it is freed with its object."""
        yield MemoryHome(self.clock, self._window).journal(key)

    def check_room(self, size: int) -> None:
        """There is always room."""

    async def check_store(self) -> None:
        """It never fails."""

    def submit(self, queue: CommitQueue, entry: StoredEntry) -> None:
        """Keep an entry."""
        self.store.add(Append(queue.head, (entry,)))
        queue.committed = entry.sequence

    async def wait(self, queue: CommitQueue, sequence: int) -> None:
        """All of it is kept already."""

    def add(self, session: Flushable) -> None:
        """There is no file."""

    async def write(self, session: Flushable) -> None:
        """Nor is one written."""
