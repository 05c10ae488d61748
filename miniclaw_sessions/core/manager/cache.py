"""Which sessions are in memory, and which are on disk only: a cache of at most `limit` of what may be a million.

The cache has journals; callers hold the `Session` of one. Beyond the limit the least recently used sessions are
evicted, as soon as their file and the store have all of them; a later use loads them again. A session that is evicted
while a caller still holds it stays the same object at its next use: the cache remembers it for as long as it lives, so
that there are never two live objects for one key. What its holder appends is saved as ever, because the flusher holds
what is dirty. The registry evicts when it adds a session, and after each flush, when what was dirty may go.

`Names` knows the sessions that are not in memory: by name, or not at all where the store has them.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary

from miniclaw_sessions.core.protocol.keys import of_channel
from miniclaw_sessions.core.session import Journal
from miniclaw_sessions.core.stores.positions import ListPosition

LOOK = 16
"""How many sessions are looked at when one must go; if all of these are dirty, the next flush lets some go."""

_NOT_KNOWN = 0.0


class Listing(NamedTuple):
    """All sessions and when they were last used, at one moment; to be put in order in a thread, where there are many.

    Times are in seconds since the epoch; that of a session on disk may not be known, and is then 0.
    """

    in_memory: Sequence[tuple[float, str, str]]  # with the channel
    on_disk: Sequence[str]
    used: Sequence[float]

    def newest(  # noqa: PLR0913 - each can be left out
        self,
        *,
        channel: str | None = None,
        only: Callable[[str], bool] | None = None,
        behind: ListPosition | None = None,
        since: datetime | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[tuple[float, str]]:
        """A part of them, the most recently used first: when each was last used, and its id.

        Args:
            channel: only this channel's; one on disk whose id is shortened may be of another.
            only: only those whose id this is true of.
            behind: only those that stand behind this position.
            since: only those that were used then or later.
            limit: at most this many.
            offset: after this many others.
        """
        is_asked_for = of_channel(channel) if channel is not None else bool
        everybody: Iterable[tuple[float, str]] = chain(
            # the last ones first: most of those behind them are then no candidates
            ((used, session_id) for used, session_id, its in reversed(self.in_memory) if channel in (None, its)),
            (one for one in zip(self.used, self.on_disk, strict=True) if is_asked_for(one[1])),
        )
        if only is not None:
            everybody = (one for one in everybody if only(one[1]))
        if since is not None:
            first = since.timestamp()
            everybody = (one for one in everybody if one[0] >= first)
        if behind is not None:
            last = (behind.last_accessed.timestamp(), behind.session_id)
            everybody = (one for one in everybody if one < last)
        chosen = sorted(everybody, reverse=True) if limit is None else heapq.nlargest(offset + limit, everybody)
        return chosen[offset:]

    def on_disk_since(self, moment: datetime) -> list[str]:
        """Those on disk only that were not used since, and those of which it is not known."""
        limit = moment.timestamp()
        return [session_id for used, session_id in zip(self.used, self.on_disk, strict=True) if used < limit]


class Names(Protocol):
    """What is known of the sessions that are not in memory.

    Attributes:
        used: those that are known by name, and when each was last used, in seconds since the epoch; 0: not known.
    """

    used: dict[str, float]

    def may_have(self, session_id: str) -> bool:
        """Whether there is such a session, or may be."""
        ...

    def total(self, cached: int) -> int:
        """How many sessions exist, as far as known, with this many in memory."""
        ...

    def note(self, session_id: str, used: float) -> None:
        """A session leaves the memory, and was last used at this time."""
        ...

    def removed(self) -> None:
        """A session was removed from the store."""
        ...


class NamesOnDisk:
    """The names of all sessions that are not in memory: this process alone makes and removes them."""

    def __init__(self) -> None:
        self.used: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<NamesOnDisk, {len(self.used)}>"

    def may_have(self, session_id: str) -> bool:
        """Whether it is one of them."""
        return session_id in self.used

    def total(self, cached: int) -> int:
        """How many there are, with those in memory."""
        return cached + len(self.used)

    def note(self, session_id: str, used: float) -> None:
        """It is on disk only."""
        self.used[session_id] = used

    def removed(self) -> None:
        """Nothing: `SessionCache.remove` forgets the name itself."""


class SessionCache:
    """The sessions of an open manager by id; synchronous, so no other task runs in between.

    Attributes:
        limit: how many may be in memory.
        names: what is known of the sessions that are not in memory.
        making: sessions that are being put together by a fork or an import: not among those in memory, and in no list.
        loads: how many were loaded from disk after the start.
        evictions: how many left the memory.
        knows_times: whether the last uses of all sessions on disk were looked up.
        newest_on_disk: the newest of these uses, from before the start; None until the times are known.
    """

    def __init__(self, limit: int, names: Names) -> None:
        self.limit = limit
        self.names = names
        self.making: dict[str, Journal] = {}
        self.loads = 0
        self.evictions = 0
        self._cached: OrderedDict[str, Journal] = OrderedDict()
        self._on_disk = names.used
        self._held: WeakValueDictionary[str, Journal] = WeakValueDictionary()  # evicted, but a caller has the object
        self.knows_times = True
        self.newest_on_disk: datetime | None = None
        self._forgiven = timedelta(0)

    def __repr__(self) -> str:
        return f"<SessionCache {len(self._cached)} of at most {self.limit}, {len(self._on_disk)} on disk>"

    def __len__(self) -> int:
        return self.names.total(len(self._cached))

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._cached or session_id in self._on_disk

    @property
    def cached(self) -> int:
        """How many sessions are in memory."""
        return len(self._cached)

    def in_memory(self) -> Iterator[Journal]:
        """Every session that is in memory, evicted ones that callers hold included."""
        return chain(self._cached.values(), self._held.values())

    def get(self, session_id: str) -> Journal | None:
        """The live session, which counts as the one used last; None if it must be loaded, or does not exist."""
        journal = self._cached.get(session_id)
        if journal is not None:
            self._cached.move_to_end(session_id)
        elif self._held and (journal := self._held.get(session_id)) is not None:
            self.add(journal)
        return journal

    def must_load(self, session_id: str) -> bool:
        """True if there is such a session, or may be, and not in memory."""
        return session_id not in self._cached and session_id not in self._held and self.names.may_have(session_id)

    def add(self, journal: Journal) -> bool:
        """Cache a session. Returns False if the cache is over its limit, and what it looked at may not go."""
        self._on_disk.pop(journal.session_id, None)
        if self._held:  # at the start it is empty, and each look costs
            self._held.pop(journal.session_id, None)
        self._cached[journal.session_id] = journal
        return len(self._cached) <= self.limit or self.evict(LOOK)

    def remove(self, session_id: str) -> None:
        """Forget a session: it no longer exists."""
        self._cached.pop(session_id, None)
        self._on_disk.pop(session_id, None)
        self._held.pop(session_id, None)

    def evict(self, look: int | None = None) -> bool:
        """Let clean sessions go, those used longest ago first, never the newest. Returns True if `limit` is kept.

        Args:
            look: look at this many at most; None: at all of them.
        """
        others = len(self._cached) - 1
        for _ in range(others if look is None else min(look, others)):
            if len(self._cached) <= self.limit:
                return True
            session_id, journal = self._cached.popitem(last=False)
            is_saved = not journal.checkpoint.is_dirty and journal.queue.rejected is None
            if is_saved and not journal.is_deleted:  # else a task is about to remove it
                self.evictions += 1
                self.names.note(session_id, journal.last_accessed.timestamp())
                self._held[session_id] = journal
            else:
                self._cached[session_id] = journal
        return len(self._cached) <= self.limit

    # --- those on disk only ------------------------------------------------------------------------------------------

    def learn_names(self, session_ids: Iterable[str]) -> None:
        """Note sessions that are on disk, not knowing when they were last used."""
        before = len(self._on_disk)
        self._on_disk.update(dict.fromkeys(session_ids, _NOT_KNOWN))
        self.knows_times = self.knows_times and len(self._on_disk) == before

    def learn_uses(self, used: Mapping[str, float]) -> None:
        """Note sessions that are on disk, and when each was last used, in seconds since the epoch; 0: not known."""
        self._on_disk.update(used)
        self.knows_times = self.knows_times and _NOT_KNOWN not in used.values()

    def learn_times(self, modified: Iterable[tuple[str, float]]) -> None:
        """Take the times of their files for those of which nothing better is known.

        Args:
            modified: session ids, and seconds since the epoch.
        """
        newest, shift = _NOT_KNOWN, self._forgiven.total_seconds()
        for session_id, time in modified:
            if self._on_disk.get(session_id) == _NOT_KNOWN:
                newest = max(newest, time)
                self._on_disk[session_id] = time + shift
        if newest != _NOT_KNOWN:
            self.newest_on_disk = max(moment_of(newest), self.newest_on_disk or moment_of(newest))

    def unknown(self) -> list[str]:
        """Those on disk of which it is not known when they were last used."""
        return [session_id for session_id, known in self._on_disk.items() if known == _NOT_KNOWN]

    def newest_use(self) -> datetime | None:
        """When a session was last used; None if there are none, or that is not known of those on disk."""
        if not self.knows_times:
            return None
        in_memory = [journal.last_accessed for journal in self.in_memory()]
        on_disk = [moment_of(max(self._on_disk.values()))] if self._on_disk else []
        return max([*in_memory, *on_disk], default=None)

    def last_use(self, session_id: str, on_disk: datetime) -> datetime:
        """When a session that is being loaded was last used; its file has what was known when it was written."""
        known = self._on_disk.get(session_id, _NOT_KNOWN)
        return on_disk + self._forgiven if known == _NOT_KNOWN else max(on_disk, moment_of(known))

    def forgive(self, jump: timedelta, *, before: datetime) -> None:
        """Let those on disk that were not used since age by no jump of the wall clock."""
        self._forgiven += jump
        limit, shift = before.timestamp(), jump.total_seconds()
        for session_id, known in self._on_disk.items():
            if known != _NOT_KNOWN and known <= limit:
                self._on_disk[session_id] = known + shift

    def listing(self) -> Listing:
        """All of them as they are at this moment."""
        states = [(one.session_id, one.conversation.state) for one in self.in_memory()]
        in_memory = [(state.last_accessed.timestamp(), session_id, state.channel) for session_id, state in states]
        if not self._held:
            return Listing(in_memory, list(self._on_disk), list(self._on_disk.values()))
        on_disk = [(one, used) for one, used in self._on_disk.items() if one not in self._held]
        return Listing(in_memory, [one for one, _ in on_disk], [used for _, used in on_disk])


def moment_of(seconds: float) -> datetime:
    """A time of a listing as a `datetime`; the same to the microsecond."""
    return datetime.fromtimestamp(seconds, UTC)
