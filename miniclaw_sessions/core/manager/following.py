"""Following sessions: what the store has acknowledged, in order, whoever has written it, and the answers under way.

What this process stores wakes its followers at once. What others store is found by one poll of the store for all
sessions that are followed here, so that nothing has to be told between processes.

What is told of an answer stands in one row with the places that the store has acknowledged meanwhile. So whoever
follows is given the pieces of a text before the entry that holds it, and the entries of an answer before its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from itertools import islice
from typing import Any, NamedTuple

import anyio

from miniclaw_sessions.clock import Clock, sleep_unless
from miniclaw_sessions.core.manager.waiting import Waiters, Waiting, wake
from miniclaw_sessions.core.stores.base import SessionHead, Store, StoredEntry, StoredHead
from miniclaw_sessions.errors import ManagerClosed, StoreUnavailable

RETRY_S = 0.3
"""How long a store that cannot be read is left alone."""

PAGE = 50
"""How many entries are read at a time: a follower that does not take them holds them for a while."""

STEPS = 1000
"""So many steps of a followed session are kept for those who are slow; who is slower is told the whole anew."""

TYPING, TEXT, USAGE = "typing", "text", "usage"
ENDS = frozenset({"done", "stopped", "suspended", "error"})
"""What is told last of an answer."""


class Told(NamedTuple):
    """Something that happened in an answer under way: what it is called, and what is said of it."""

    kind: str
    data: dict[str, Any]


class _Answer:
    """An answer under way: what of it is not in the store yet, for those who begin to follow it in the middle."""

    def __init__(self) -> None:
        self._told: list[Told] = []
        self._text = StringIO()  # what was said since; a service that sends single characters makes millions of pieces

    def tell(self, told: Told) -> None:
        if told.kind == TEXT:
            self._text.write(told.data["text"])
        else:
            self._told = [*self.so_far(), told]
            self._text = StringIO()

    def stored(self) -> None:
        """Entries were acknowledged: each reply that was complete by now is one of them."""
        complete = max((place for place, one in enumerate(self._told) if one.kind == USAGE), default=-1)
        if complete >= 0:
            self._told = [*self._told[:2], *self._told[max(2, complete + 1) :]]  # that it began, and with which message

    def so_far(self) -> list[Told]:
        """What was told of it, its text as one piece."""
        text = self._text.getvalue()
        return [*self._told, Told(TEXT, {"text": text})] if text else self._told


class Followed:
    """A session that somebody follows.

    Attributes:
        followers: how many do.
        incarnation: of the session that is followed; None: it is not in the store yet.
        last: the newest sequence that the store is known to have.
        end: how many steps there were so far: things told, and places that the store has acknowledged.
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
        self._steps: deque[int | Told] = deque(maxlen=STEPS)

    def seen(self, head: SessionHead | None, last: int) -> None:
        """The store has it, up to this sequence; None: it has not."""
        if self.incarnation is None and head is not None:
            self.incarnation = head.incarnation
        if (None if head is None else head.incarnation) != self.incarnation:
            self.gone()
        elif last > self.last:
            self.last = last
            self.add(last)

    def add(self, step: int | Told) -> None:
        """One more step."""
        self._steps.append(step)
        self.end += 1
        wake(self.waiting)

    def since(self, place: int) -> list[int | Told] | None:
        """The steps from a place on; None if they are no longer kept."""
        count = self.end - place
        return None if count > len(self._steps) else list(islice(self._steps, len(self._steps) - count, None))

    def gone(self) -> None:
        """Nothing more comes."""
        self.is_gone = True
        wake(self.waiting)


class Following:
    """Who follows what.

    Args:
        store: what is followed.
        clock: time.
        waiting: who waits.
    """

    def __init__(self, store: Store, clock: Clock, waiting: Waiting) -> None:
        self._store = store
        self._clock = clock
        self._waiting = waiting
        self._followed: dict[str, Followed] = {}
        self._answers: dict[str, _Answer] = {}
        self._stop = anyio.Event()

    def __repr__(self) -> str:
        return f"<Following {len(self._followed)} sessions>"

    @property
    def followers(self) -> int:
        """How many follow a session now."""
        return sum(one.followers for one in self._followed.values())

    async def follow(
        self, session_id: str, after: int, incarnation: str | None = None
    ) -> AsyncGenerator[Sequence[StoredEntry | Told], None]:
        """The entries with a sequence greater than `after`, as they are acknowledged, and what is told, in lists.

        A list is empty when nothing has come for a while, or the store cannot be read. It ends when the session is
        deleted.

        Args:
            session_id: which session.
            after: the sequence behind which to begin.
            incarnation: the session's; None: the store does not have it yet.

        Raises:
            ManagerClosed: `close` was called.
        """
        with self._following(session_id) as followed:
            followed.incarnation = followed.incarnation or incarnation
            transcript = _Transcript(self._store, session_id, after, self._pause)
            place: int | None = None
            while not followed.is_gone:
                steps = None if place is None else followed.since(place)
                if steps is None:  # at the beginning, or too slow: what is stored, and then what was told so far
                    place = followed.end
                    async for page in _caught_up(transcript, followed):
                        yield page
                    if (answer := self._answers.get(session_id)) is not None:
                        place = followed.end
                        yield answer.so_far()
                elif steps:
                    place = followed.end
                    async for told in _told(steps, transcript):
                        yield told
                elif not await self._waiting.news(followed.waiting):
                    yield ()
        if self._stop.is_set():
            raise ManagerClosed(f"session {session_id} is followed no longer: the session manager is closing")

    async def _pause(self) -> None:
        """Leave a store alone that cannot be read."""
        await sleep_unless(self._clock, RETRY_S, self._stop)

    def tell(self, session_id: str, told: Told) -> None:
        """Tell whoever follows a session of the answer under way in it."""
        if told.kind == TYPING:
            self._answers[session_id] = _Answer()
        answer = self._answers.get(session_id)
        if answer is not None:
            answer.tell(told)
        if told.kind in ENDS:
            self._answers.pop(session_id, None)
        if (followed := self._followed.get(session_id)) is not None:
            followed.add(told)

    def appended(self, head: SessionHead, last: int) -> None:
        """This process has stored entries of a session, up to this sequence."""
        if (answer := self._answers.get(head.session_id)) is not None:
            answer.stored()
        if (followed := self._followed.get(head.session_id)) is not None:
            followed.seen(head, last)

    def gone(self, session_id: str) -> None:
        """A session was deleted."""
        if (followed := self._followed.get(session_id)) is not None:
            followed.gone()

    def close(self) -> None:
        """Nothing is followed any more."""
        self._stop.set()
        for followed in self._followed.values():
            followed.gone()

    @property
    def incarnations(self) -> dict[str, tuple[Followed, str | None]]:
        """What is followed now, and which incarnation of it."""
        return {session_id: (one, one.incarnation) for session_id, one in self._followed.items()}

    def polled(
        self,
        before: Mapping[str, tuple[Followed, str | None]],
        found: Mapping[str, StoredHead],
        asked: Collection[str],
        deleted: Collection[str],
    ) -> None:
        """The store was asked what has happened in all that was followed before.

        Args:
            before: what was followed, and which incarnation of it.
            found: what has changed, and what is there of those that were `asked` for.
            asked: sessions that are gone if they were not found.
            deleted: incarnations that are gone.
        """
        for session_id, (followed, incarnation) in before.items():
            if followed.incarnation != incarnation:  # it was stored here meanwhile, and the answer is older
                continue
            if (stored := found.get(session_id)) is not None:
                followed.seen(stored.head, stored.last_sequence)
            elif session_id in asked or incarnation in deleted:
                followed.seen(None, 0)

    @contextmanager
    def _following(self, session_id: str) -> Iterator[Followed]:
        followed = self._followed.get(session_id)
        if followed is None or followed.is_gone:
            followed = self._followed[session_id] = Followed()
        followed.is_gone |= self._stop.is_set()
        followed.followers += 1
        try:
            yield followed
        finally:
            followed.followers -= 1
            if not followed.followers and self._followed.get(session_id) is followed:
                del self._followed[session_id]


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


async def _caught_up(transcript: _Transcript, followed: Followed) -> AsyncGenerator[Sequence[StoredEntry], None]:
    """All that is stored; at its end nothing was stored since the last look."""
    known = -1
    while known != followed.last:
        known = followed.last
        while (page := await transcript.read()) is None or page:
            yield page or ()


async def _told(
    steps: Sequence[int | Told], transcript: _Transcript
) -> AsyncGenerator[Sequence[StoredEntry | Told], None]:
    """What was told, and what was stored, in order; of answers whose entries were read already, only the end."""
    read = max(
        (place for place, one in enumerate(steps) if isinstance(one, int) and one <= transcript.after), default=0
    )
    ends = [one for one in steps[:read] if isinstance(one, Told) and one.kind in ENDS]
    for step in _grouped((*ends, *steps[read:])):
        if not isinstance(step, int):
            yield step
            continue
        while step > transcript.after and ((page := await transcript.read()) is None or page):
            yield page or ()


def _grouped(steps: Iterable[int | Told]) -> Iterator[int | list[Told]]:
    """What was told between two places as one list, its text as one piece."""
    told: list[Told] = []
    for step in steps:
        if isinstance(step, Told):
            told.append(step)
        else:
            if told:
                yield _joined(told)
                told = []
            yield step
    if told:
        yield _joined(told)


def _joined(told: Iterable[Told]) -> list[Told]:
    joined: list[Told] = []
    texts: list[str] = []
    for one in (*told, None):
        if one is not None and one.kind == TEXT:
            texts.append(one.data["text"])
            continue
        if texts:
            joined.append(Told(TEXT, {"text": "".join(texts)}))
            texts = []
        if one is not None:
            joined.append(one)
    return joined
