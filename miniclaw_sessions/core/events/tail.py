"""The live tail of one session: its entries as the store acknowledges them, in order, and the turns under way.

What this process stores wakes its followers at once. What other processes store is found by one poll of the store for
all sessions that are followed here (`sharing.feed`), so that processes need not speak to each other.

The events of a turn stand in one row with the places that the store has acknowledged meanwhile. So a follower gets the
pieces of a text before the entry that holds it, and the entries of a turn before its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from itertools import groupby, islice

import anyio

from miniclaw_sessions.clock import Clock, sleep_unless
from miniclaw_sessions.core.events.heartbeat import Heartbeat, Waiters, wake
from miniclaw_sessions.core.events.listeners import ENDS, PIECES, TYPING, USAGE, Commit, SessionEnded, Topics, TurnEvent
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.base import SessionHead, Store, StoredEntry, StoredHead
from miniclaw_sessions.errors import ManagerClosed, StoreUnavailable

RETRY_S = 0.3
"""How long a store that cannot be read is left alone."""

PAGE = 50
"""How many entries are read at a time: a follower that does not take them holds them for a while."""

STEPS = 1000
"""How many steps of a tail are kept for slow followers; a slower one gets the turn from its beginning again."""


class _Turn:
    """A turn under way: what of it is not in the store yet, for those who begin to follow in the middle."""

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self._events: list[TurnEvent] = []
        self._kind = ""  # of the text since
        self._text = StringIO()  # that text; a service that sends single characters makes millions of pieces

    def add(self, event: TurnEvent) -> None:
        """One more event."""
        if event.kind != self._kind:
            self._events = self.so_far()
            self._kind, self._text = event.kind, StringIO()
        if event.kind in PIECES:
            self._text.write(event.data["text"])
        else:
            self._events = [*self._events, event]

    def stored(self) -> None:
        """Entries were acknowledged: each reply that was complete by now is one of them."""
        complete = max((place for place, one in enumerate(self._events) if one.kind == USAGE), default=-1)
        if complete >= 0:
            self._events = [*self._events[:2], *self._events[max(2, complete + 1) :]]  # its beginning, and its message

    def so_far(self) -> list[TurnEvent]:
        """Its events, its text as one piece."""
        text = self._text.getvalue()
        return [*self._events, TurnEvent(self.key, self._kind, {"text": text})] if text else self._events


class Tail:
    """A session that has followers.

    Attributes:
        followers: how many.
        incarnation: of the session that is followed; None: it is not in the store yet.
        last: the newest sequence that the store is known to have.
        end: the number of steps so far: events of turns, and places that the store has acknowledged.
        waiting: those who have seen them all.
        is_gone: whether it was deleted, or nothing is followed any more.
    """

    def __init__(self) -> None:
        self.followers = 0
        self.incarnation: str | None = None
        self.last = 0
        self.end = 0
        self.waiting: Waiters = set()
        self.is_gone = False
        self._steps: deque[int | TurnEvent] = deque(maxlen=STEPS)

    def seen(self, head: SessionHead | None, last: int) -> None:
        """The store has it, up to this sequence; None: it has not."""
        if self.incarnation is None and head is not None:
            self.incarnation = head.incarnation
        if (None if head is None else head.incarnation) != self.incarnation:
            self.gone()
        elif last > self.last:
            self.last = last
            self.add(last)

    def add(self, step: int | TurnEvent) -> None:
        """One more step."""
        self._steps.append(step)
        self.end += 1
        wake(self.waiting)

    def since(self, place: int) -> list[int | TurnEvent] | None:
        """The steps from a place on; None if they are no longer kept."""
        count = self.end - place
        return None if count > len(self._steps) else list(islice(self._steps, len(self._steps) - count, None))

    def gone(self) -> None:
        """Nothing more comes."""
        self.is_gone = True
        wake(self.waiting)


class Tails:
    """The tails of one manager's sessions.

    It listens to all turns, because a follower may come in the middle of one; to commits and ends of sessions only
    while there is a turn or a follower.

    Args:
        store: what is followed.
        clock: time.
        heartbeat: wakes those who wait.
        topics: what is published.
    """

    def __init__(self, store: Store, clock: Clock, heartbeat: Heartbeat, topics: Topics) -> None:
        self._store = store
        self._clock = clock
        self._heartbeat = heartbeat
        self._topics = topics
        self._tails: dict[str, Tail] = {}
        self._turns: dict[str, _Turn] = {}
        self._listens = False
        self._stop = anyio.Event()
        topics.turns.subscribe(self._turn_went_on)

    def __repr__(self) -> str:
        return f"<Tails of {len(self._tails)} sessions>"

    @property
    def followers(self) -> int:
        """How many follow a session now."""
        return sum(one.followers for one in self._tails.values())

    @property
    def turns(self) -> Mapping[str, SessionKey]:
        """The ids and keys of the sessions in which this process is answering."""
        return {session_id: turn.key for session_id, turn in self._turns.items()}

    async def follow(
        self, session_id: str, after: int, incarnation: str | None = None
    ) -> AsyncGenerator[Sequence[StoredEntry | TurnEvent], None]:
        """The entries with a sequence greater than `after`, as they are acknowledged, and events of turns, in lists.

        A list is empty when nothing has come for a while, or the store cannot be read. It ends when the session is
        deleted.

        Args:
            session_id: which session.
            after: the sequence behind which to begin.
            incarnation: the session's; None: the store does not have it yet.

        Raises:
            ManagerClosed: `close` was called.
        """
        with self._following(session_id) as tail:
            tail.incarnation = tail.incarnation or incarnation
            transcript = _Transcript(self._store, session_id, after, self._pause)
            place: int | None = None
            while not tail.is_gone:
                steps = None if place is None else tail.since(place)
                if steps is None:  # at the beginning, or too slow: what is stored, and then the turn so far
                    place = tail.end
                    async for page in _caught_up(transcript, tail):
                        yield page
                    if (turn := self._turns.get(session_id)) is not None:
                        place = tail.end  # before the yield: what comes meanwhile is not in `so_far`
                        yield turn.so_far()
                elif steps:
                    place = tail.end  # before the first await: what comes meanwhile is not in `steps`
                    async for part in _in_order(steps, transcript):
                        yield part
                elif not await self._heartbeat.wait(tail.waiting):
                    yield ()
        if self._stop.is_set():
            raise ManagerClosed(f"session {session_id} is followed no longer: the session manager is closing")

    async def _pause(self) -> None:
        """Leave a store alone that cannot be read."""
        await sleep_unless(self._clock, RETRY_S, self._stop)

    def close(self) -> None:
        """End all tails."""
        self._stop.set()
        for tail in self._tails.values():
            tail.gone()

    # --- what happens ------------------------------------------------------------------------------------------------

    def _turn_went_on(self, event: TurnEvent) -> None:
        session_id = event.key.session_id
        if event.kind == TYPING:
            self._turns[session_id] = _Turn(event.key)
            self._listen()
        if (turn := self._turns.get(session_id)) is not None:
            turn.add(event)
        if event.kind in ENDS:
            self._turns.pop(session_id, None)
            self._listen()
        if (tail := self._tails.get(session_id)) is not None:
            tail.add(event)

    def _committed(self, commit: Commit) -> None:
        for head, sent in commit.appended:
            if (turn := self._turns.get(head.session_id)) is not None:
                turn.stored()
            if (tail := self._tails.get(head.session_id)) is not None:
                tail.seen(head, sent[-1].sequence)

    def _ended(self, ended: SessionEnded) -> None:
        if (tail := self._tails.get(ended.session_id)) is not None:
            tail.gone()

    def _listen(self) -> None:
        """Listen to commits and ends while that is needed, and no longer."""
        if (is_needed := bool(self._tails or self._turns)) is self._listens:
            return
        self._listens = is_needed
        if is_needed:
            self._topics.commits.subscribe(self._committed)
            self._topics.ended.subscribe(self._ended)
        else:
            self._topics.commits.unsubscribe(self._committed)
            self._topics.ended.unsubscribe(self._ended)

    @property
    def incarnations(self) -> dict[str, tuple[Tail, str | None]]:
        """What is followed now, and which incarnation of it."""
        return {session_id: (one, one.incarnation) for session_id, one in self._tails.items()}

    def polled(
        self,
        before: Mapping[str, tuple[Tail, str | None]],
        found: Mapping[str, StoredHead],
        asked: Collection[str],
        deleted: Collection[str],
    ) -> None:
        """The store was asked what has happened in all that was followed before.

        Args:
            before: what was followed, and which incarnation of it.
            found: the changed sessions, and those of `asked` that exist.
            asked: sessions that are gone if they were not found.
            deleted: incarnations that are gone.
        """
        for session_id, (tail, incarnation) in before.items():
            if tail.incarnation != incarnation:  # it was stored here meanwhile, and the answer is older
                continue
            if (stored := found.get(session_id)) is not None:
                tail.seen(stored.head, stored.last_sequence)
            elif session_id in asked or incarnation in deleted:
                tail.seen(None, 0)

    @contextmanager
    def _following(self, session_id: str) -> Iterator[Tail]:
        tail = self._tails.get(session_id)
        if tail is None or tail.is_gone:
            tail = self._tails[session_id] = Tail()
        tail.is_gone |= self._stop.is_set()
        tail.followers += 1
        self._listen()
        try:
            yield tail
        finally:
            tail.followers -= 1
            if not tail.followers and self._tails.get(session_id) is tail:
                del self._tails[session_id]
                self._listen()


class _Transcript:
    """A session's entries, read on from a place."""

    def __init__(self, store: Store, session_id: str, after: int, pause: Callable[[], Awaitable[None]]) -> None:
        self.after = after
        self._store = store
        self._session_id = session_id
        self._pause = pause

    async def read(self) -> Sequence[StoredEntry] | None:
        """The next entries; nothing at the end; None, after a pause, where the store cannot be read."""
        try:
            page = await self._store.read(self._session_id, after=self.after, limit=PAGE)
        except StoreUnavailable:
            await self._pause()
            return None
        if page:
            self.after = page[-1].sequence
        return page


async def _caught_up(transcript: _Transcript, tail: Tail) -> AsyncGenerator[Sequence[StoredEntry], None]:
    """All that is stored; at its end nothing was stored since the last look."""
    known = -1
    while known != tail.last:
        known = tail.last
        while (page := await transcript.read()) is None or page:
            yield page or ()


async def _in_order(
    steps: Sequence[int | TurnEvent], transcript: _Transcript
) -> AsyncGenerator[Sequence[StoredEntry | TurnEvent], None]:
    """Events and stored entries, in order; of turns whose entries were read already, only the end."""
    read = max(
        (place for place, one in enumerate(steps) if isinstance(one, int) and one <= transcript.after), default=0
    )
    ends = [one for one in steps[:read] if isinstance(one, TurnEvent) and one.kind in ENDS]
    for step in _grouped((*ends, *steps[read:])):
        if not isinstance(step, int):
            yield step
            continue
        while step > transcript.after and ((page := await transcript.read()) is None or page):
            yield page or ()


def _grouped(steps: Iterable[int | TurnEvent]) -> Iterator[int | list[TurnEvent]]:
    """The events between two places as one list, their text as one piece."""
    events: list[TurnEvent] = []
    for step in steps:
        if isinstance(step, TurnEvent):
            events.append(step)
        else:
            if events:
                yield _joined(events)
                events = []
            yield step
    if events:
        yield _joined(events)


def _joined(events: Iterable[TurnEvent]) -> list[TurnEvent]:
    joined: list[TurnEvent] = []
    for kind, some in groupby(events, lambda one: one.kind):
        alike = list(some)
        if kind in PIECES:
            alike = [TurnEvent(alike[0].key, kind, {"text": "".join(piece.data["text"] for piece in alike)})]
        joined += alike
    return joined
