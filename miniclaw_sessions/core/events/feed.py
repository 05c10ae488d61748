"""What happens in all sessions, as one feed of events that any number of subscriptions read at their own pace.

The feed is kept once, however many subscribe, and is bounded. It has a name that no other feed has, in this process or
another, and its events are numbered: name and number make the cursor behind which a subscription goes on. A cursor that
is no longer kept, or is of another feed, cannot be resumed: its owner looks where each session ends. Sequences are the
sessions' own, and there is no number for what happens in all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from itertools import takewhile
from typing import Any

import msgspec

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.core.events.heartbeat import Heartbeat, Waiters, wake
from miniclaw_sessions.core.events.listeners import (
    ENDS,
    TYPING,
    Commit,
    SessionCreated,
    SessionEnded,
    Topics,
    TurnEvent,
)
from miniclaw_sessions.core.protocol.entries import METADATA
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.base import SessionHead, StoredEntry
from miniclaw_sessions.errors import InvalidKey, ManagerClosed

KEPT_EVENTS = 8192
"""How many events are kept for subscriptions that are slow, or were cut off and come back."""

KEPT_S = 60.0
"""How long the feed goes on without a subscription."""

TOGETHER = 64
"""At most this many events are given at a time: a subscription that does not take them holds them for a while."""

MOST_ENTRIES = 100
"""At most this many entries are described in one event; a reader that needs those before them reads the store."""

_NAME_LENGTH = 12
_ABOUT_SESSION = frozenset({"session_info", "model_change", "thinking_level"})

Only = Callable[[str, SessionKey | None], bool]
"""Whether a subscription gets the events of the session with this id and key (None: only the id is known). Those that
are equal, and have the same hash, are asked once."""


def everything(session_id: str, key: SessionKey | None) -> bool:  # noqa: ARG001 - as `Only` is called
    """Every session."""
    return True


class Event:
    """Something that happened in a session.

    Attributes:
        kind: its name.
        session_id: in which session.
        key: the session's; None: it is not known any more.
        data: what the event says.
        cursor: a subscription goes on behind the event with it; empty: the event has none.
        number: its number in the feed; 0: it is in none.
        encoded: its bytes, made once for all that send it.
    """

    __slots__ = ("cursor", "data", "encoded", "key", "kind", "number", "session_id")

    def __init__(  # noqa: PLR0913, PLR0917 - what an event has
        self,
        kind: str,
        data: dict[str, Any],
        session_id: str = "",
        key: SessionKey | None = None,
        cursor: str = "",
        number: int = 0,
    ) -> None:
        self.kind = kind
        self.data = data
        self.session_id = session_id
        self.key = key
        self.cursor = cursor
        self.number = number
        self.encoded: bytes | None = None

    def __repr__(self) -> str:
        return f"<Event {self.cursor} {self.kind} {self.session_id}>"


class Feed:
    """The feed of one manager's sessions.

    It has what this process does, from the first subscription on, until it finds that it is not kept any more. Where
    this process alone writes the store, that is all that happens.

    Args:
        topics: what is published of this process's sessions.
        making: the ids of sessions that are being put together; their entries are left out.
        clock: time, and the feed's name.
        heartbeat: wakes those who wait.

    Attributes:
        end: the number of the next event.
    """

    def __init__(self, topics: Topics, making: Collection[str], clock: Clock, heartbeat: Heartbeat) -> None:
        self._topics = topics
        self._making = making
        self._listens = False
        self._clock = clock
        self._heartbeat = heartbeat
        self._name = ""
        self._secret = b""
        self.end = 1
        self._kept: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._kept_until: float | None = None
        self._views: dict[Only, _View] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name} up to {self.end}>"

    @property
    def is_kept(self) -> bool:
        """Whether there is a subscription, or was one until a moment ago; else nothing has to be published."""
        return bool(self._views) or (self._kept_until is not None and self._clock.monotonic() < self._kept_until)

    @property
    def subscriptions(self) -> int:
        """How many there are now."""
        return sum(view.subscriptions for view in self._views.values())

    # --- what happens ------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        if not self._listens:
            self._listens = True
            self._topics.commits.subscribe(self._committed)
            self._topics.created.subscribe(self._created)
            self._topics.ended.subscribe(self._ended)
            self._topics.turns.subscribe(self._turn_went_on)

    def _is_needed(self) -> bool:
        """Whether it is kept; else it listens no longer."""
        if self.is_kept:
            return True
        self._listens = False
        self._topics.commits.unsubscribe(self._committed)
        self._topics.created.unsubscribe(self._created)
        self._topics.ended.unsubscribe(self._ended)
        self._topics.turns.unsubscribe(self._turn_went_on)
        return False

    def _committed(self, commit: Commit) -> None:
        if self._is_needed():
            for head, sent in commit.appended:
                if head.session_id not in self._making:
                    self._stored_here(head, sent)

    def _created(self, event: SessionCreated) -> None:
        if self._is_needed():
            self._created_here(event.head, event.last)

    def _ended(self, event: SessionEnded) -> None:
        if self._is_needed():
            key = event.key
            if key is None:
                with suppress(InvalidKey):
                    key = SessionKey.parse(event.session_id)
            self.publish(event.kind, {"session_id": event.session_id}, event.session_id, key)

    def _turn_went_on(self, event: TurnEvent) -> None:
        if (event.kind == TYPING or event.kind in ENDS) and self._is_needed():
            session_id = event.key.session_id
            if event.kind == TYPING:
                self.publish("turn_started", {"session_id": session_id}, session_id, event.key)
            else:
                self.publish("turn_ended", {"session_id": session_id, "outcome": event.kind}, session_id, event.key)

    def _stored_here(self, head: SessionHead, sent: Sequence[StoredEntry]) -> None:
        self.publish_entries(head, sent)

    def _created_here(self, head: SessionHead, last: int) -> None:
        self.publish_created(head, last)

    async def learn(self) -> None:
        """Learn what is needed before the first subscription.

        Raises:
            StoreError: the store cannot be read.
        """

    async def run(self) -> None:
        """See what other processes do, until `close`; never raises for what the store does."""

    async def poll(self) -> None:
        """Ask the store what other processes did.

        Raises:
            StoreError: the store cannot be read.
        """

    # --- what it has -------------------------------------------------------------------------------------------------

    def publish(self, kind: str, data: dict[str, Any], session_id: str, key: SessionKey | None) -> None:
        """Add an event, and wake each subscription that gets this session's events."""
        if not self.is_kept:
            return
        event = Event(kind, data, session_id, key, self.cursor_of(self.end), self.end)
        self._kept.append(event)
        self.end += 1
        for view in self._views.values():
            view.add(event)

    def publish_created(self, head: SessionHead, last: int) -> None:
        """There is a session that was not there before, or was not heard of."""
        session_id, key = head.session_id, head.key
        data = {
            "session_id": session_id,
            "channel": key.channel,
            "chat_id": key.chat_id,
            "incarnation": head.incarnation,
        }
        self.publish("created", data, session_id, key)
        if last:
            self.publish("entries", {"session_id": session_id, "sequence": last, "entries": []}, session_id, key)

    def publish_entries(self, head: SessionHead, stored: Sequence[StoredEntry]) -> None:
        """These entries were acknowledged: which they are, without their content; and whether the session changed."""
        if not stored:
            return
        session_id, key = head.session_id, head.key
        described = [_description(one) for one in stored[-MOST_ENTRIES:]]
        entries = [
            {"id": one.entry_id, "sequence": one.sequence, "type": about.type}
            | ({} if about.message is None else {"role": about.message.role})
            for one, about in zip(stored[-MOST_ENTRIES:], described, strict=True)
        ]
        data = {"session_id": session_id, "sequence": stored[-1].sequence, "entries": entries}
        self.publish("entries", data, session_id, key)
        about_session = [one for one in described if one.type in _ABOUT_SESSION or one.custom_type == METADATA]
        if about_session:
            titles = [{"title": one.name} for one in about_session if one.type == "session_info"]
            self.publish("changed", {"session_id": session_id, **(titles[-1] if titles else {})}, session_id, key)

    # --- subscriptions -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all subscriptions."""
        self._closed = True
        for view in self._views.values():
            wake(view.waiting)

    @contextmanager
    def subscribed(self, after: str | None, only: Only) -> Iterator[Subscription]:
        """Subscribe behind a cursor; from now on where it is not kept, or None."""
        if not self.is_kept:
            self._name = self._clock.new_id()[-_NAME_LENGTH:]
            self._secret = self._clock.new_id().encode()
            self._kept.clear()
        number = self._number(after)
        begin = self.end if number is None else number
        if (view := self._views.get(only)) is None:
            view = self._views[only] = _View(only, self.end)
        view.reach_back(begin, self._kept)
        view.subscriptions += 1
        self._listen()
        try:
            yield Subscription(self, view, begin, resumed=number is not None)
        finally:
            view.subscriptions -= 1
            if not view.subscriptions:
                del self._views[only]
            self._kept_until = self._clock.monotonic() + KEPT_S

    def _number(self, after: str | None) -> int | None:
        """The number of the event behind a cursor, if that event is kept, or is the next one."""
        if after is None or not after.startswith(f"{self._name}:"):
            return None
        first = self.end - len(self._kept)
        return next((number for number in range(self.end, first - 1, -1) if self.cursor_of(number - 1) == after), None)

    def cursor_of(self, number: int) -> str:
        """The cursor of the event of this number; it does not show the number, in which others' events are counted."""
        return f"{self._name}:{blake2b(b'%d' % number, key=self._secret, digest_size=8).hexdigest()}"

    @property
    def is_closed(self) -> bool:
        """Whether nothing more comes."""
        return self._closed

    async def wait(self, among: Waiters) -> None:
        """Return when there are news for these, or after a while without any."""
        await self._heartbeat.wait(among)


class _View:
    """The subscriptions to the same sessions, and the events of these that are kept.

    Kept apart from all others, so that a subscription to few sessions neither looks through what happens in the rest,
    nor is too slow because much happens there.
    """

    def __init__(self, only: Only, end: int) -> None:
        self.subscriptions = 0
        self.waiting: Waiters = set()
        self._only = only
        self._begin = end
        self._kept: deque[Event] = deque()

    def add(self, event: Event) -> None:
        """Keep an event and wake the subscriptions, if they get this session's events."""
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


class Subscription:
    """One reader's way along the feed.

    Attributes:
        resumed: whether every event since the cursor that was given comes; else it begins now.
    """

    def __init__(self, feed: Feed, view: _View, number: int, *, resumed: bool) -> None:
        self.resumed = resumed
        self._feed = feed
        self._view = view
        self._number = number

    @property
    def cursor(self) -> str:
        """A later subscription goes on behind it, after all that this one has got."""
        return self._feed.cursor_of(self._number - 1)

    async def events(self) -> list[Event] | None:
        """The next events; an empty list when nothing came for a while. None: it was too slow.

        Raises:
            ManagerClosed: nothing more comes.
        """
        for is_patient in (True, False):
            if self._feed.is_closed:
                raise ManagerClosed("the feed of events has ended: the session manager is closing")
            found = self._view.since(self._number)
            if found is None:
                return None
            given = found[:TOGETHER]
            self._number = self._feed.end if len(given) == len(found) else given[-1].number + 1
            if given or not is_patient:
                return given
            await self._feed.wait(self._view.waiting)
        return []


class _Speaker(msgspec.Struct):
    role: str | None = None


class _Described(msgspec.Struct):
    """What an event says of an entry."""

    type: str = ""
    name: str | None = None
    custom_type: str | None = None
    message: _Speaker | None = None


_described = msgspec.json.Decoder(_Described)


def _description(stored: StoredEntry) -> _Described:
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _described.decode(stored.encoded)
    return _Described()
