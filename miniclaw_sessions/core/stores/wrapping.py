"""A store around another one: the base of such stores, and the one that remembers what is wrong with the inner one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self, TypeVar

from miniclaw_sessions.core.history.search import Found, Search
from miniclaw_sessions.core.stores.base import (
    LOST,
    Append,
    Store,
    StoredEntry,
    StoredHead,
    StoredSession,
    StorePlace,
    is_damaged,
)
from miniclaw_sessions.core.stores.reading import Transcripts
from miniclaw_sessions.errors import StoreCorrupt, StoreError, StoreUnavailable

LISTED = 10
"""At most this many sessions with damaged entries are named."""

T = TypeVar("T")


class WrappingStore(Store):
    """Promises what the inner store promises."""

    durable: ClassVar[bool] = False
    keeps_entries: ClassVar[bool] = True

    def __init__(self, store: Store) -> None:
        vars(self).update(durable=store.durable, keeps_entries=store.keeps_entries, shared=store.shared)
        self._store = store

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._store!r}>"

    async def _forward(self, method: str, call: Callable[[], Awaitable[T]]) -> T:  # noqa: ARG002 - to override
        """Call a method of the inner store."""
        return await call()

    @property
    def place(self) -> StorePlace:
        """The inner store's."""
        return self._store.place

    @property
    def files(self) -> Sequence[Path]:
        """The inner store's."""
        return self._store.files

    def found_damaged(self) -> bool:
        """Ask the inner store."""
        return self._store.found_damaged()

    @property
    def damage(self) -> Sequence[str]:
        """The inner store's."""
        return self._store.damage

    def rest_of(self, directory: Path) -> AbstractAsyncContextManager[Transcripts] | None:
        """Ask the inner store: what it gives is for the inner store too."""
        return self._store.rest_of(directory)

    async def __aenter__(self) -> Self:
        """Open the inner store."""
        await self._store.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the inner store."""
        await self._store.__aexit__(kind, error, trace)

    async def still_there(self) -> None:
        """Ask the inner store."""
        await self._forward("still_there", self._store.still_there)

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        """Append to the inner store."""
        return await self._forward("append", lambda: self._store.append(appends))

    async def heads(self) -> AsyncIterator[StoredHead]:
        """The inner store's."""
        async for stored in self._store.heads():
            yield stored

    async def session_ids(self) -> list[str]:
        """The inner store's."""
        return await self._forward("session_ids", self._store.session_ids)

    async def head(self, session_id: str) -> StoredHead | None:
        """The inner store's."""
        return await self._forward("head", lambda: self._store.head(session_id))

    async def versions(self, session_ids: Collection[str]) -> Mapping[str, StoredHead]:
        """The inner store's."""
        return await self._forward("versions", lambda: self._store.versions(session_ids))

    async def count(self) -> int:
        """The inner store's."""
        return await self._forward("count", self._store.count)

    async def load(self, session_ids: Sequence[str]) -> list[StoredSession]:
        """The inner store's."""
        return await self._forward("load", lambda: self._store.load(session_ids))

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """Read from the inner store."""
        return await self._forward("read", lambda: self._store.read(session_id, after=after, limit=limit))

    async def read_newest(self, session_id: str, limit: int) -> list[StoredEntry]:
        """Read from the inner store."""
        return await self._forward("read_newest", lambda: self._store.read_newest(session_id, limit))

    async def find(self, session_id: str, entry_id: str) -> StoredEntry | None:
        """Look in the inner store."""
        return await self._forward("find", lambda: self._store.find(session_id, entry_id))

    async def find_by_idempotency_key(self, session_id: str, key: str) -> StoredEntry | None:
        """Look in the inner store."""
        return await self._forward(
            "find_by_idempotency_key", lambda: self._store.find_by_idempotency_key(session_id, key)
        )

    async def mend(self, session_id: str, candidates: Sequence[StoredEntry]) -> int:
        """Mend the inner store."""
        return await self._forward("mend", lambda: self._store.mend(session_id, candidates))

    async def delete(self, session_id: str, *, known: StoredHead | None = None) -> bool:
        """Delete from the inner store."""
        return await self._forward("delete", lambda: self._store.delete(session_id, known=known))

    async def purge(self) -> bool:
        """Purge the inner store."""
        return await self._forward("purge", self._store.purge)

    async def search(self, search: Search) -> Found:
        """Search the inner store."""
        return await self._forward("search", lambda: self._store.search(search))

    async def index(self, limit: int) -> int:
        """Index the inner store."""
        return await self._forward("index", lambda: self._store.index(limit))

    async def drop_index(self) -> None:
        """Drop the inner store's."""
        await self._forward("drop_index", self._store.drop_index)

    async def check(self) -> list[str]:
        """Check the inner store."""
        return await self._forward("check", self._store.check)


class WatchedStore(WrappingStore):
    """A store that remembers damage and failures of the inner one, for the health report.

    It is put around a store as soon as that is open, so it also remembers what the start meets. It forgets damage when
    a check of the whole store finds none. An entry that is `LOST` does not count as damage: `losses.json` has it.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._damage: str | None = None  # of the store as a whole: the text of an error or of a check's finding
        self._damaged_sessions: dict[str, int] = {}  # the sequence of the first damaged entry of each
        self._unreachable: dict[bool, StoreUnavailable] = {}  # True: of appending, False: of all other calls

    @property
    def unreachable(self) -> StoreUnavailable | None:
        """Why appending, or the last other call, failed; only of a `shared` store, whose server may come back."""
        return next(iter(self._unreachable.values()), None)

    @property
    def problems(self) -> list[str]:
        """The damage that calls have met, one sentence each."""
        found = self._damage or next(iter(self.damage), None)
        problems = [] if found is None else [f"the store is damaged: {found}"]
        named = list(self._damaged_sessions.items())[:LISTED]
        problems += [
            f"the store is damaged: entry {place} of session {session_id} cannot be read; `check` names all that is"
            for session_id, place in named
        ]
        if more := len(self._damaged_sessions) - len(named):
            problems.append(f"{more} more sessions have damaged entries")
        return problems

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        """Append. Where a shared store takes none of the appends, it counts as unreachable for appending."""
        outcomes = await self._forward("append", lambda: self._store.append(appends))
        refused = [outcome for outcome in outcomes if isinstance(outcome, StoreUnavailable)]
        if self.shared and refused and len(refused) == len(outcomes):
            self._unreachable[True] = refused[0]
        return outcomes

    async def watch(self, answer: Awaitable[T]) -> T:
        """Wait for the answer to a call that only the inner store has, and remember how it ended."""
        return await self._forward("", lambda: answer)

    async def heads(self) -> AsyncIterator[StoredHead]:
        """All sessions; remembers damage that it meets."""
        try:
            async for stored in super().heads():
                yield stored
        except StoreCorrupt as error:
            self._damage = str(error)
            raise

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """Read, and remember damaged entries."""
        page = await super().read(session_id, after=after, limit=limit)
        self._look_at(session_id, page)
        return page

    async def read_newest(self, session_id: str, limit: int) -> list[StoredEntry]:
        """Read, and remember damaged entries."""
        page = await super().read_newest(session_id, limit)
        self._look_at(session_id, page)
        return page

    async def load(self, session_ids: Sequence[str]) -> list[StoredSession]:
        """Load, and remember damaged entries."""
        loaded = await super().load(session_ids)
        for one in loaded:
            self._look_at(one.stored.head.session_id, one.entries)
        return loaded

    async def mend(self, session_id: str, candidates: Sequence[StoredEntry]) -> int:
        """Mend, and forget the session's damage; what is still damaged is met when it is read again."""
        mended = await super().mend(session_id, candidates)
        if mended:
            self._damaged_sessions.pop(session_id, None)
        return mended

    async def delete(self, session_id: str, *, known: StoredHead | None = None) -> bool:
        """Delete, and forget the session's damage."""
        was_there = await super().delete(session_id, known=known)
        self._damaged_sessions.pop(session_id, None)
        return was_there

    async def check(self) -> list[str]:
        """Check. What is found replaces the damage that was remembered.

        What the inner store reports itself (`damage`) is not remembered here: the store knows when that is right again.
        """
        problems = await super().check()
        self._damaged_sessions.clear()
        known = set(self.damage)
        lasting = [problem for problem in problems if problem not in known]
        more = f" (and {len(lasting) - 1} more problems: see `check`)" if len(lasting) > 1 else ""
        self._damage = f"{lasting[0]}{more}" if lasting else None
        return problems

    def _look_at(self, session_id: str, entries: Iterable[StoredEntry]) -> None:
        damaged = (one.sequence for one in entries if is_damaged(one.encoded) and one.encoded != LOST)
        if (place := next(damaged, None)) is not None:
            self._damaged_sessions.setdefault(session_id, place)

    async def _forward(self, method: str, call: Callable[[], Awaitable[T]]) -> T:
        try:
            result = await call()
        except StoreCorrupt as error:
            self._damage = str(error)
            raise
        except StoreUnavailable as error:
            if self.shared:
                self._unreachable[method == "append"] = error
            raise
        self._unreachable.pop(method == "append", None)
        if method == "still_there":  # this call looks whether everything works
            self._unreachable.clear()
        return result


def innermost(store: Store) -> Store:
    """The store that is wrapped by all the others."""
    return innermost(store._store) if isinstance(store, WrappingStore) else store  # noqa: SLF001 - its own module
