"""The mode of a manager that has its store for itself (`miniclaw_sessions.core.manager.mode`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.manager.cache import Listing, SessionCache
from miniclaw_sessions.core.manager.mode import Population, Task
from miniclaw_sessions.core.manager.sources import load_each, newest_of
from miniclaw_sessions.core.persistence.committer import CommitQueue, Shrunk
from miniclaw_sessions.core.persistence.retention import ClockGuard, Looked, Retention
from miniclaw_sessions.core.persistence.workspace import Workspace
from miniclaw_sessions.core.protocol.encoding import encode_entry
from miniclaw_sessions.core.session import Home, Journal, Session
from miniclaw_sessions.core.session.home import ManagedHome
from miniclaw_sessions.core.session.restoring import restore_lost
from miniclaw_sessions.core.session.turn import sole_owner
from miniclaw_sessions.core.stores.positions import ListPosition
from miniclaw_sessions.core.stores.reading import read_all
from miniclaw_sessions.errors import LeafMoved, SessionsError, StoreConflict
from miniclaw_sessions.log import get_logger

LEARNED_AT_ONCE = 10_000
"""How many files' times are noted before others run."""

LOADED_AT_ONCE = 100
"""How many sessions are loaded for a list before others run."""

log = get_logger(__name__)


class LocalMode:
    """This process alone writes the store: what it knows is all there is.

    Attributes:
        cache: the sessions.
    """

    ownership = staticmethod(sole_owner)
    absence_is_deletion = False
    make_feed = None
    look_s: float | None = None
    _workspace: Workspace

    def __init__(self, new_storage: Callable[[], Workspace], cache: SessionCache) -> None:
        self.cache = cache
        self._new_storage = new_storage
        self._learning = anyio.Lock(fast_acquire=True)

    def __repr__(self) -> str:
        return "<LocalMode>"

    def new_storage(self) -> Workspace:
        """A directory."""
        self._workspace = self._new_storage()
        return self._workspace

    def journal(self, conversation: Conversation, home: Home[Journal]) -> Journal:
        """The journal of a session."""
        return Journal(conversation, home, committed=conversation.state.last_sequence)

    async def resolve(self, refused: CommitQueue, conflict: StoreConflict) -> Shrunk:
        """The store lacks what it had acknowledged, or refuses for good; see `restore_lost`."""
        return await restore_lost(self.cache.get, refused, conflict)

    async def refresh(self, journal: Journal) -> bool:  # noqa: ARG002 - the mode's
        """It is as it is stored."""
        return True

    async def give_way(self, journal: Journal, conflict: StoreConflict) -> bool:  # noqa: ARG002 - the mode's
        """No other process needs the turn."""
        raise conflict

    async def count(self) -> int:
        """How many are known."""
        return len(self.cache)

    async def listing(self) -> Listing:
        """All sessions and when they were last used; of those on disk, as their files have it."""
        cache = self.cache
        async with self._learning:  # with half of the times, another list would be in a wrong order
            if not cache.knows_times:
                times = await self._workspace.modified()
                cache.knows_times = True  # not at the end: a name that is learned meanwhile resets it
                try:
                    for start in range(0, len(times), LEARNED_AT_ONCE):
                        cache.learn_times(times[start : start + LEARNED_AT_ONCE])
                        await checkpoint()
                except BaseException:
                    cache.knows_times = False
                    raise
        return cache.listing()

    async def newest(self, **part: Any) -> list[ListPosition]:
        """A part of all sessions, the most recently used first."""
        return await newest_of(await self.listing(), **part)

    async def load_listed(self, session_ids: Sequence[str], home: ManagedHome[Journal]) -> dict[str, Session]:
        """Those of these sessions that there are, loaded if need be, many at once."""
        found: dict[str, Session] = {}
        for end in range(len(session_ids), 0, -LOADED_AT_ONCE):  # so that the newest stays in memory longest
            some = session_ids[max(0, end - LOADED_AT_ONCE) : end]
            loaded = await home.load_together(some)
            found |= await load_each(home.load, some)
            del loaded  # held until here, or it might have been evicted before it was found
        return found

    def population(self, home: ManagedHome[Journal], retention: Retention, guard: ClockGuard) -> Population:
        """Those in memory and those on disk."""
        return LocalPopulation(self, home, self._workspace, retention, guard)

    async def begin(self, journal: Journal) -> bool:  # noqa: ARG002 - the mode's
        """It is stored with its first entry."""
        return True

    async def undo(self, journal: Journal) -> None:
        """Nothing was done."""

    async def begin_long(self, journal: Journal) -> bool:  # noqa: ARG002 - the mode's
        """As `begin`."""
        return True

    def complete(self, journal: Journal) -> None:
        """No other process waits for it."""

    async def is_being_made(self, session_id: str) -> bool:  # noqa: ARG002 - the mode's
        """Not by other processes."""
        return False

    def tasks(self) -> Iterator[tuple[str, Task]]:
        """None."""
        return iter(())

    def close(self) -> None:
        """There is nothing to close."""


class LocalPopulation:
    """The sessions of a directory, which this process alone has."""

    def __init__(
        self,
        mode: LocalMode,
        home: ManagedHome[Journal],
        workspace: Workspace,
        retention: Retention,
        guard: ClockGuard,
    ) -> None:
        self._mode = mode
        self._home = home
        self._cache = mode.cache
        self._store = home.store
        self._clock = home.clock
        self._workspace = workspace
        self._retention = retention
        self._guard = guard

    def __repr__(self) -> str:
        return f"<LocalPopulation, {self._cache!r}>"

    async def find_idle(self, at: datetime) -> Looked:
        """Which sessions will be idle for too long at that moment; those on disk only by the times of their files."""
        listing = await self._mode.listing()
        if self._cache.newest_on_disk is not None:
            self._guard.consider(self._cache.newest_on_disk)
        in_memory = list(self._cache.in_memory())
        idle = [one.session_id for one in in_memory if not one.turn_lock.is_held and self._is_idle(one, at)]
        on_disk = [
            session_id
            for rule in self._retention.rules
            if rule.ttl
            for session_id in listing.on_disk_since(at - rule.ttl)
            if self._retention.of_id(session_id) is rule
        ]
        idle += on_disk
        held = await self.held(idle)
        kept = frozenset(held)
        return Looked(len(in_memory) + len(listing.on_disk), [one for one in idle if one not in kept], held)

    async def held(self, session_ids: Sequence[str]) -> list[str]:
        """Those of these sessions that are under legal hold."""
        held = []
        for session_id in session_ids:
            with suppress(SessionsError):  # `_expire` logs it
                journal = await self._home.load(session_id)
                if journal is not None and journal.legal_hold is not None:
                    held.append(session_id)
        return held

    async def remove(self, idle: list[str]) -> dict[str, int]:
        """Archive and delete those that are still idle, one after the other."""
        freed = {session_id: await self._expire(session_id) for session_id in idle}
        return {session_id: size for session_id, size in freed.items() if size is not None}

    async def _expire(self, session_id: str) -> int | None:
        """Delete one idle session, unless it was used since, and return the size of its entries; None if it stays.

        Its turn is held meanwhile.
        """
        try:
            journal = await self._home.load(session_id)
        except SessionsError as error:  # its neighbours expire all the same
            _log_failure(session_id, error)
            return None
        if journal is None or journal.turn_lock.is_held:
            return None
        async with journal.turn_lock:
            if journal.is_deleted or journal.legal_hold is not None or not self._is_idle(journal, self._clock.now()):
                return None
            copy, freed, last = None, None, journal.last_sequence
            if journal.queue.pending:
                return None  # the archive would lack it
            entries = _Counted(self._encoded_entries(journal))
            try:
                if self._retention.of(journal.key.channel).archives:
                    copy = await self._workspace.archive.write(journal.queue.head, aiter(entries), self._clock.now())
                else:
                    await entries.count()
                if self._is_idle(journal, self._clock.now()):  # it may have been used while it was archived
                    was_removed = await self._home.remove(journal, kind="expired", if_sequence=last)
                    freed = entries.bytes if was_removed else None
            except LeafMoved:
                pass  # it was used at the last moment: it stays
            except (SessionsError, OSError) as error:
                _log_failure(session_id, error)
            if copy is not None and freed is None:  # the session goes on, also as another object
                with suppress(SessionsError):
                    await self._workspace.archive.delete(copy)
            return freed

    async def doubt(self) -> str | None:
        """Why the clock is not to be believed."""
        return self._guard.doubt()

    def forgive(self, jump: timedelta, *, before: datetime) -> None:
        """Add a jump of the clock to the last use of each session."""
        for journal in list(self._cache.in_memory()):
            journal.checkpoint.forgive(jump, before=before)
        self._cache.forgive(jump, before=before)

    async def keep_forgiven(self) -> None:
        """Load those on disk, if all fit into the memory: then the next flush writes their new times."""
        if len(self._cache) <= self._cache.limit:
            on_disk = self._cache.listing().on_disk
            for start in range(0, len(on_disk), LOADED_AT_ONCE):
                await self._home.load_together(on_disk[start : start + LOADED_AT_ONCE])

    async def renewed(self, session_id: str, used_before: datetime) -> None:
        """No other process expires it."""

    def _is_idle(self, journal: Journal, at: datetime) -> bool:
        return self._retention.of(journal.key.channel).is_idle(journal.last_accessed, at)

    async def _encoded_entries(self, journal: Journal) -> AsyncIterator[bytes]:
        """The transcript as it is stored, so that a damaged entry does not keep its session for ever."""
        if not self._store.keeps_entries:
            for entry in journal.conversation.window:
                yield encode_entry(entry)
            return
        async for stored in read_all(self._store, journal.session_id):
            yield stored.encoded


class _Counted:
    """Entries on their way, and how many bytes have passed."""

    def __init__(self, entries: AsyncIterator[bytes]) -> None:
        self.bytes = 0
        self._entries = entries

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for entry in self._entries:
            self.bytes += len(entry)
            yield entry

    async def count(self) -> None:
        """Look at all of them; what cannot be read is not counted, and expires all the same."""
        with suppress(SessionsError):
            async for _ in self:
                pass


def _log_failure(session_id: str, error: Exception) -> None:
    log.error(
        "an expired session could not be removed; it is tried again",
        action="sweep.failed",
        session_id=session_id,
        error=str(error),
    )
