"""A store around another one: everything goes to the inner store, unless a subclass does something else with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

from miniclaw_sessions.core.stores.base import Append, Store, StoredEntry, StoredHead, StoredSession, StorePlace
from miniclaw_sessions.errors import StoreError

if TYPE_CHECKING:
    from miniclaw_sessions.core.history.search import Found, Search
    from miniclaw_sessions.core.stores.copying import Source

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

    def rest_of(self, directory: Path) -> AbstractAsyncContextManager[Source] | None:
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


def innermost(store: Store) -> Store:
    """The store that is wrapped by all the others."""
    return innermost(store._store) if isinstance(store, WrappingStore) else store  # noqa: SLF001 - its own module
