"""Sessions without a manager: everything a session can do, in memory, acknowledged at once, and gone with the process.

For agents that need no more than the conversation at hand, for notebooks, and for tests.
"""

from __future__ import annotations

from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.history.conversation import Conversation
from miniclaw_sessions.persistence.committer import SessionLog
from miniclaw_sessions.persistence.flusher import Flushable
from miniclaw_sessions.protocol.keys import SessionKey
from miniclaw_sessions.session.copying import copy_session, key_of_fork
from miniclaw_sessions.session.core import Services
from miniclaw_sessions.session.live import Session
from miniclaw_sessions.stores.base import Append, StoredEntry
from miniclaw_sessions.stores.memory import MemoryStore


def detached(kind: type[Session], key: SessionKey | None, *, window: int, clock: Clock | None) -> Session:
    """A session of its own; see `Session.new`."""
    clock = clock or SystemClock()
    key = key or SessionKey.of("memory", clock.new_id())
    memory = _Memory()

    async def fork(source: Session, wanted: SessionKey | None, leaf_id: str | None) -> Session:
        copy = detached(kind, wanted or key_of_fork(source.key, clock), window=window, clock=clock)
        await copy_session(source, copy, leaf_id)
        return copy

    services = Services(clock, memory, memory, memory.store, 2**62, fork)
    conversation = Conversation(key, incarnation=clock.new_id(), created_at=clock.now(), capacity=window)
    return kind(conversation, services, committed=0, dirty=False)


class _Memory:
    """Committer and flusher of a session that is never written: what is accepted is acknowledged."""

    def __init__(self) -> None:
        self.store = MemoryStore()

    def check_room(self, size: int) -> None:
        """There is always room."""

    def check_store(self) -> None:
        """It never fails."""

    def submit(self, session: SessionLog, entry: StoredEntry) -> None:
        """Keep an entry."""
        self.store.add(Append(session.head, (entry,)))
        session.committed = entry.sequence

    async def wait(self, session: SessionLog, sequence: int) -> None:
        """All of it is kept already."""

    def add(self, session: Flushable) -> None:
        """There is no file."""
