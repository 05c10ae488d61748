"""A session in the exact words of the kernel, Dive and the Go session manager.

Thin: each object stands for a `Session` and adds nothing of its own. In the documents of these programs
(docs/reference/other-names.md) any text names a session: `SessionKey.named` gives its key. An agent takes these objects
as it takes a `Session`.
"""

from __future__ import annotations

from collections.abc import Sequence

from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message, Part, Role, Usage
from miniclaw_sessions.core.session.compacting import CompactionOutcome, Summarizer
from miniclaw_sessions.core.session.session import Session, SessionContext
from miniclaw_sessions.core.session.tree import SessionTree


class KernelSession:
    """The kernel's `Session`: an id, and messages that are added, read and cleared."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @classmethod
    def new(cls) -> KernelSession:
        """A session in memory with a UUIDv7 for its id."""
        return cls(Session.new())

    @property
    def id(self) -> str:
        """Its name."""
        return self.session.key.name

    def add_message(self, message: Message) -> None:
        """Append a message; see `Session.append` for what it raises."""
        self.session.append(message)

    def messages(self) -> list[Message]:
        """The newest messages, oldest first, in a list of the caller's own; see `Session.messages`."""
        return self.session.messages()

    def clear(self) -> None:
        """Start over; see `Session.clear`."""
        self.session.clear()


class DiveSession:
    """Dive's `Session`: messages, turns with usage, title, fork, compact."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @classmethod
    def new(cls, name: str) -> DiveSession:
        """A session in memory with a name that the caller chooses; see `Session.new` for what it raises."""
        return cls(Session.new(name))

    @property
    def id(self) -> str:
        """Its name."""
        return self.session.key.name

    def title(self) -> str:
        """The display name; empty without one."""
        return self.session.title or ""

    def set_title(self, title: str) -> None:
        """Set the display name; accepted like a message."""
        self.session.update(title=title)

    def event_count(self) -> int:
        """How many turns and compactions there were."""
        return self.session.event_count

    def total_usage(self) -> Usage:
        """What all turns cost together."""
        return self.session.total_usage

    async def messages(self) -> list[Message]:
        """The conversation: everything that is kept of it, behind the summary of what was compacted.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        messages, _ = await self.session.journal.reader.shown()
        return messages

    async def save_turn(self, messages: Sequence[Message], usage: Usage | None = None) -> None:
        """Append a turn as one unit; see `Session.save_turn` for what it raises."""
        await self.session.save_turn(messages, usage)

    async def fork(self, new_id: str) -> DiveSession:
        """A copy under a new id; see `Session.fork` for what it raises."""
        return DiveSession(await self.session.fork(SessionKey.named(new_id)))

    async def compact(self, summarizer: Summarizer) -> CompactionOutcome:
        """Let the summarizer's messages stand for everything; see `Session.compact` for what it raises."""
        return await self.session.compact(summarizer)


class GoSession(SessionTree):
    """The Go manager's `Session`: an append-only tree of entries. Calls that append return the new entry's id.

    `SessionTree` is in its words already; here is what the document asks of a session besides.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session.journal)
        self.session = session

    @property
    def id(self) -> str:
        """Its name."""
        return self.session.key.name

    async def append_message(self, role: Role | str, content: str | Sequence[Part]) -> str:  # type: ignore[override]  # the document's
        """Append a message; see `SessionTree.append_message` for what it raises."""
        said = content if isinstance(content, str) else tuple(content)
        return await super().append_message(Message(Role(role), said))

    async def create_branched_session(self, leaf_id: str, key: SessionKey | str | None = None) -> GoSession:
        """A new session with the path from the root to an entry; see `Session.fork` for what it raises."""
        wanted = SessionKey.named(key) if isinstance(key, str) else key
        return GoSession(await self.session.fork(wanted, leaf_id=leaf_id))

    async def get_context(self) -> SessionContext:
        """What may be sent to a model at the leaf; see `Session.get_context` for what it raises."""
        return await self.session.get_context()

    async def close(self) -> None:
        """Return when all of it is saved. Its manager holds the files, for all of its sessions."""
        await self.session.saved()


def session_of(session: Session | KernelSession | DiveSession | GoSession) -> Session:
    """The session that an object stands for."""
    return session if isinstance(session, Session) else session.session
