"""What happens in all sessions, as one row of events that any number of watchers read at their own pace.

The row is kept once, however many watch, and is bounded. It has a name that no other row has, in this process or
another, and its events are numbered: name and number are the place from which a watcher goes on. Who comes with a place
that is no longer kept, or of another row, has to look where each session ends: sequences are the sessions' own, and
there is no number for what happens in all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from itertools import takewhile
from typing import Any

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.core.manager.waiting import Waiters, Waiting, wake
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.errors import ManagerClosed

KEPT_EVENTS = 8192
"""How many events are kept for watchers that are slow, or were cut off and come back."""

KEPT_S = 60.0
"""How long the row goes on when nobody watches."""

TOGETHER = 64
"""At most so many events are given at a time: a watcher that does not take them holds them for a while."""

_NAME_LENGTH = 12

Only = Callable[[str, SessionKey | None], bool]
"""Whether a watcher is told of the session with this id and key (None: only the id is known). Those that are equal, and
have the same hash, are asked once."""


class Event:
    """Something that happened in a session.

    Attributes:
        kind: what it is called.
        session_id: in which session.
        key: the session's; None: it is not known any more.
        data: what is said of it.
        place: the event's own, from which a watcher goes on behind it; empty: it has none.
        number: its number in the row; 0: it is in none.
        encoded: for whoever sends it to many: it is made once.
    """

    __slots__ = ("data", "encoded", "key", "kind", "number", "place", "session_id")

    def __init__(  # noqa: PLR0913, PLR0917 - what an event has
        self,
        kind: str,
        data: dict[str, Any],
        session_id: str = "",
        key: SessionKey | None = None,
        place: str = "",
        number: int = 0,
    ) -> None:
        self.kind = kind
        self.data = data
        self.session_id = session_id
        self.key = key
        self.place = place
        self.number = number
        self.encoded: bytes | None = None

    def __repr__(self) -> str:
        return f"<Event {self.place} {self.kind} {self.session_id}>"


class Feed:
    """The row of events.

    Args:
        clock: time, and the row's name.
        waiting: who waits.

    Attributes:
        end: the number of the next event.
    """

    def __init__(self, clock: Clock, waiting: Waiting) -> None:
        self._clock = clock
        self._waiting = waiting
        self._name = ""
        self._secret = b""
        self.end = 1
        self._kept: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._kept_until: float | None = None
        self._views: dict[Only, _View] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<Feed {self._name} up to {self.end}>"

    @property
    def is_kept(self) -> bool:
        """Whether anybody watches, or did until a moment ago; else nothing has to be told."""
        return bool(self._views) or (self._kept_until is not None and self._clock.monotonic() < self._kept_until)

    @property
    def watchers(self) -> int:
        """How many watch now."""
        return sum(view.watchers for view in self._views.values())

    def tell(self, kind: str, data: dict[str, Any], session_id: str, key: SessionKey | None) -> None:
        """Add an event, and wake whoever is told of this session."""
        if not self.is_kept:
            return
        event = Event(kind, data, session_id, key, self.place_of(self.end), self.end)
        self._kept.append(event)
        self.end += 1
        for view in self._views.values():
            view.add(event)

    def close(self) -> None:
        """Nobody is told anything any more."""
        self._closed = True
        for view in self._views.values():
            wake(view.waiting)

    @contextmanager
    def watching(self, after: str | None, only: Only) -> Iterator[Watch]:
        """Watch from a place on; from now on where it is not kept, or None."""
        if not self.is_kept:
            self._name = self._clock.new_id()[-_NAME_LENGTH:]
            self._secret = self._clock.new_id().encode()
            self._kept.clear()
        number = self._number(after)
        begin = self.end if number is None else number
        if (view := self._views.get(only)) is None:
            view = self._views[only] = _View(only, self.end)
        view.reach_back(begin, self._kept)
        view.watchers += 1
        try:
            yield Watch(self, view, begin, resumed=number is not None)
        finally:
            view.watchers -= 1
            if not view.watchers:
                del self._views[only]
            self._kept_until = self._clock.monotonic() + KEPT_S

    def _number(self, after: str | None) -> int | None:
        """The number of the event behind a place, if that event is kept, or is the next one."""
        if after is None or not after.startswith(f"{self._name}:"):
            return None
        first = self.end - len(self._kept)
        return next((number for number in range(self.end, first - 1, -1) if self.place_of(number - 1) == after), None)

    def place_of(self, number: int) -> str:
        """The place of the event of this number, which does not tell the number: others' events are counted in it."""
        return f"{self._name}:{blake2b(b'%d' % number, key=self._secret, digest_size=8).hexdigest()}"

    @property
    def is_closed(self) -> bool:
        """Whether nothing more comes."""
        return self._closed

    async def wait(self, among: Waiters) -> None:
        """Return when there are news for these, or after a while without any."""
        await self._waiting.news(among)


class _View:
    """Those who are told of the same sessions, and the events of these that are kept.

    Kept apart from all others, so that a watcher of few sessions neither looks through what happens in the rest, nor is
    too slow because much happens there.
    """

    def __init__(self, only: Only, end: int) -> None:
        self.watchers = 0
        self.waiting: Waiters = set()
        self._only = only
        self._begin = end
        self._kept: deque[Event] = deque()

    def add(self, event: Event) -> None:
        """Something has happened: keep it and wake the watchers, if they are told of it."""
        if self._only(event.session_id, event.key):
            self._kept.append(event)
            if len(self._kept) > KEPT_EVENTS:
                self._begin = self._kept.popleft().number + 1
            wake(self.waiting)

    def reach_back(self, begin: int, kept: Iterable[Event]) -> None:
        """Have the events from this number on too, of all that are kept."""
        if begin < self._begin:
            self._begin = begin
            self._kept = deque(one for one in kept if one.number >= begin and self._only(one.session_id, one.key))

    def since(self, number: int) -> list[Event] | None:
        """The events from this number on; None if they are no longer kept."""
        if number < self._begin:
            return None
        found = list(takewhile(lambda one: one.number >= number, reversed(self._kept)))
        found.reverse()
        return found


class Watch:
    """One watcher's way along the row.

    Attributes:
        resumed: whether everything since the place that was given will be told; else it begins now.
    """

    def __init__(self, feed: Feed, view: _View, number: int, *, resumed: bool) -> None:
        self.resumed = resumed
        self._feed = feed
        self._view = view
        self._number = number

    @property
    def place(self) -> str:
        """From where on a watcher goes on that has seen all that it was given."""
        return self._feed.place_of(self._number - 1)

    async def events(self) -> list[Event] | None:
        """The next events; none when nothing came for a while. None: it was too slow.

        Raises:
            ManagerClosed: nothing more comes.
        """
        for is_patient in (True, False):
            if self._feed.is_closed:
                raise ManagerClosed("events are told no longer: the session manager is closing")
            found = self._view.since(self._number)
            if found is None:
                return None
            told = found[:TOGETHER]
            self._number = self._feed.end if len(told) == len(found) else told[-1].number + 1
            if told or not is_patient:
                return told
            await self._feed.wait(self._view.waiting)
        return []
