"""What is published, and its listeners: one `Topic` for each kind of event.

    manager.events.commits.subscribe(lambda commit: print(commit.entries))

The committer looks at `listeners` first, and makes no event for an empty tuple: a commit without a listener costs
nothing. So a listener that is only needed for a while subscribes for that while.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.errors import named
from miniclaw_sessions.log import get_logger

if TYPE_CHECKING:  # a client has these events, and no store
    from miniclaw_sessions.core.stores.base import SessionHead, StoredEntry

E = TypeVar("E")

log = get_logger(__name__)


class Topic(Generic[E]):
    """One kind of event, and its listeners.

    Attributes:
        listeners: they are called with each event, the one that subscribed first at the front.
    """

    __slots__ = ("listeners",)

    def __init__(self) -> None:
        self.listeners: tuple[Callable[[E], object], ...] = ()

    def __repr__(self) -> str:
        return f"<Topic with {len(self.listeners)} listeners>"

    def subscribe(self, listener: Callable[[E], object]) -> None:
        """Call `listener` with each event from now on, on the event loop; subscribe it once.

        What it raises is logged with its name, and harms neither other listeners nor what has happened.
        """
        self.listeners = (*self.listeners, listener)

    def unsubscribe(self, listener: Callable[[E], object]) -> None:
        """Call `listener` no longer; does nothing where it has not subscribed."""
        self.listeners = tuple(one for one in self.listeners if one != listener)

    def publish(self, event: E) -> None:
        """Call each listener; those that subscribe or unsubscribe meanwhile change nothing for this event."""
        for listener in self.listeners:
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - else it would end the committer, and nothing is saved any more
                name = getattr(listener, "__qualname__", type(listener).__name__)
                log.error("a listener failed", action="event.listener_failed", listener=name, error=named(error))


class Commit(NamedTuple):
    """The store has acknowledged a group of entries.

    Attributes:
        appended: each session that the store has taken entries of, and those entries in order.
        entries: how many entries that is.
        seconds: how long the commit took.
    """

    appended: Sequence[tuple[SessionHead, Sequence[StoredEntry]]]
    entries: int
    seconds: float


class Flush(NamedTuple):
    """A flush is over.

    Attributes:
        written: how many snapshots it wrote.
        seconds: how long it took.
    """

    written: int
    seconds: float


class SessionCreated(NamedTuple):
    """There is a new session; `last` is the sequence of its newest entry in the store, 0 for none."""

    head: SessionHead
    last: int = 0


EndKind = Literal["deleted", "expired"]
"""How a session ends."""


class SessionEnded(NamedTuple):
    """A session was deleted, or has expired; `key` is None where only the id is known."""

    session_id: str
    key: SessionKey | None
    kind: EndKind


class TurnEvent(NamedTuple):
    """Something happened in a turn: its first event is `TYPING`, its last one of `ENDS`.

    Attributes:
        key: the session's.
        kind: the name of an event of `POST /v1/chat`.
        data: its data; they are not changed any more.
    """

    key: SessionKey
    kind: str
    data: dict[str, Any]


TYPING, THINKING, TEXT, USAGE = "typing", "thinking", "text", "usage"
PIECES = frozenset({THINKING, TEXT})
"""Events with a further piece of a text: those that follow each other are as good as one."""
ENDS = frozenset({"done", "stopped", "suspended", "error"})


class Topics:
    """All that is published of the sessions of one manager.

    Attributes:
        commits: by the committer, after each commit.
        flushes: by the flusher, after each flush.
        created: by the registry, when there is a new session; one that is put together, when it is complete.
        ended: by the registry, when a session is gone, whichever process has removed it.
        swept: by the expiry, with the id of each session that a sweep of this process has removed, and of each that the
            archive has forgotten.
        turns: by the channels, while they answer in a session.
    """

    def __init__(self) -> None:
        self.commits: Topic[Commit] = Topic()
        self.flushes: Topic[Flush] = Topic()
        self.created: Topic[SessionCreated] = Topic()
        self.ended: Topic[SessionEnded] = Topic()
        self.swept: Topic[str] = Topic()
        self.turns: Topic[TurnEvent] = Topic()
