"""Which sessions are awake, in memory, and which are asleep, on disk only: so many of a million can be resident.

At most `limit` sessions are awake. Beyond that those that were used longest ago are let go, as soon as their file and
the store have all of them; whoever asks for one again wakes it. A session that was let go while somebody still holds it
is the same object when it is asked for again: it is remembered for as long as it lives, so that there are never two
live objects for one key. What such a holder appends is saved as ever, because the flusher holds what is dirty.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import NamedTuple
from weakref import WeakValueDictionary

from miniclaw_sessions.protocol.keys import of_channel
from miniclaw_sessions.session import Journal, Session

LOOK = 16
"""How many sessions are looked at when one must go: where all of them are dirty, the next flush settles it."""

_NOT_KNOWN = -1.0


class Place(NamedTuple):
    """Where a session stands in a list, the most recently used first: when it was last used, and its id."""

    last_accessed: datetime
    session_id: str


class Queue(NamedTuple):
    """All sessions and when they were last used, at one moment; to be put in order in a thread, where there are many.

    Times are in seconds since the epoch; that of a sleeping session may not be known, and is then the oldest.
    """

    live: Sequence[tuple[float, str, str]]  # with the channel
    asleep: Sequence[str]
    used: Sequence[float]

    def newest(
        self, *, channel: str | None = None, behind: Place | None = None, limit: int | None = None, offset: int = 0
    ) -> list[str]:
        """The ids of a part of them, the most recently used first.

        Args:
            channel: only this channel's; a sleeping one whose id is shortened may be of another.
            behind: only those that stand behind this place.
            limit: at most so many.
            offset: after so many others.
        """
        is_asked_for = of_channel(channel) if channel is not None else bool
        everybody: Iterable[tuple[float, str]] = chain(
            ((used, session_id) for used, session_id, its in self.live if channel is None or its == channel),
            (one for one in zip(self.used, self.asleep, strict=True) if is_asked_for(one[1])),
        )
        if behind is not None:
            last = (behind.last_accessed.timestamp(), behind.session_id)
            everybody = (one for one in everybody if one < last)
        chosen = sorted(everybody, reverse=True) if limit is None else heapq.nlargest(offset + limit, everybody)
        return [session_id for _, session_id in chosen[offset:]]

    def asleep_since(self, moment: datetime) -> list[str]:
        """Those that are asleep and were not used since, and those of which it is not known."""
        limit = moment.timestamp()
        return [session_id for used, session_id in zip(self.used, self.asleep, strict=True) if used < limit]


class Residents:
    """The sessions of an open manager by id; synchronous, so nobody else runs in between."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.woken = 0
        self.let_go = 0
        self._awake: OrderedDict[str, Session] = OrderedDict()
        self._asleep: dict[str, float] = {}  # when each was last used, in seconds since the epoch
        self._held: WeakValueDictionary[str, Journal] = WeakValueDictionary()  # asleep, but in somebody's hands
        self.knows_times = True
        """Whether it was looked up when the sleeping ones were last used."""
        self.newest_on_disk: datetime | None = None
        """When the session was last used that was used last before the start, once the times are known."""
        self._forgiven = timedelta(0)

    def __repr__(self) -> str:
        return f"<Residents {len(self._awake)} awake of at most {self.limit}, {len(self._asleep)} asleep>"

    def __len__(self) -> int:
        return len(self._awake) + len(self._asleep)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._awake or session_id in self._asleep

    @property
    def awake(self) -> int:
        """How many sessions are in memory."""
        return len(self._awake)

    def live(self) -> Iterator[Session]:
        """Every session that is in memory, whoever holds it."""
        return chain(self._awake.values(), map(Session.of, self._held.values()))

    def get(self, session_id: str) -> Session | None:
        """The live session, which counts as the one used last; None when it is asleep or there is none."""
        session = self._awake.get(session_id)
        if session is not None:
            self._awake.move_to_end(session_id)
        elif self._held and (journal := self._held.get(session_id)) is not None:
            session = Session.of(journal)
            self.add(session)
        return session

    def is_asleep(self, session_id: str) -> bool:
        """Whether there is such a session, and it must be loaded before it can be used."""
        return session_id in self._asleep and session_id not in self._held

    def add(self, session: Session) -> bool:
        """A session is awake; whether no more than `limit` are."""
        self._asleep.pop(session.session_id, None)
        if self._held:  # at the start it is empty, and each look costs
            self._held.pop(session.session_id, None)
        self._awake[session.session_id] = session
        return len(self._awake) <= self.limit or self.shrink(LOOK)

    def remove(self, session_id: str) -> None:
        """There is no such session any more."""
        self._awake.pop(session_id, None)
        self._asleep.pop(session_id, None)
        self._held.pop(session_id, None)

    def shrink(self, look: int | None = None) -> bool:
        """Let go of clean sessions, those used longest ago first, never the newest; whether at most `limit` are left.

        Args:
            look: at most this many are looked at; None: as many as are awake.
        """
        others = len(self._awake) - 1
        for _ in range(others if look is None else min(look, others)):
            if len(self._awake) <= self.limit:
                return True
            session_id, session = self._awake.popitem(last=False)
            if _may_sleep(session):
                self.let_go += 1
                self._asleep[session_id] = session.last_accessed.timestamp()
                self._held[session_id] = session.journal
            else:
                self._awake[session_id] = session
        return len(self._awake) <= self.limit

    # --- those that are asleep ---------------------------------------------------------------------------------------

    def put_to_sleep(self, session_ids: Iterable[str]) -> None:
        """There are these sessions on disk; it is not known when they were last used."""
        before = len(self._asleep)
        self._asleep.update(dict.fromkeys(session_ids, _NOT_KNOWN))
        self.knows_times = self.knows_times and len(self._asleep) == before

    def learn_times(self, modified: Iterable[tuple[str, float]]) -> None:
        """Take the times of their files for those of which nothing better is known.

        Args:
            modified: session ids, and seconds since the epoch.
        """
        newest, shift = _NOT_KNOWN, self._forgiven.total_seconds()
        for session_id, time in modified:
            if self._asleep.get(session_id) == _NOT_KNOWN:
                newest = max(newest, time)
                self._asleep[session_id] = time + shift
        if newest != _NOT_KNOWN:
            self.newest_on_disk = max(_moment(newest), self.newest_on_disk or _moment(newest))

    def last_use(self, session_id: str, on_disk: datetime) -> datetime:
        """When a session that is being woken was last used; its file tells what it knew when it was written."""
        known = self._asleep.get(session_id, _NOT_KNOWN)
        return on_disk + self._forgiven if known == _NOT_KNOWN else max(on_disk, _moment(known))

    def forgive(self, jump: timedelta, *, before: datetime) -> None:
        """The wall clock jumped: those that were not used since are as idle as they were."""
        self._forgiven += jump
        limit, shift = before.timestamp(), jump.total_seconds()
        for session_id, known in self._asleep.items():
            if known != _NOT_KNOWN and known <= limit:
                self._asleep[session_id] = known + shift

    def queue(self) -> Queue:
        """All of them as they are at this moment."""
        live = [(one.last_accessed.timestamp(), one.session_id, one.key.channel) for one in self.live()]
        if not self._held:
            return Queue(live, list(self._asleep), list(self._asleep.values()))
        asleep = [(one, used) for one, used in self._asleep.items() if one not in self._held]
        return Queue(live, [one for one, _ in asleep], [used for _, used in asleep])


def _may_sleep(session: Session) -> bool:
    """Whether nothing is lost when its object goes: all of it is on disk, and nobody is about to remove it."""
    return not session.journal.is_dirty and not session.journal.is_deleted and session.journal.log.rejected is None


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
