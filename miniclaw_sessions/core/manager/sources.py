"""Where sessions are read from: what every reader of them needs, and how an open manager gives it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from anyio import to_thread

from miniclaw_sessions.core.history.search import Found, Search
from miniclaw_sessions.core.manager.archived import forget_copy, restore_if_archived
from miniclaw_sessions.core.manager.cache import Listing, moment_of
from miniclaw_sessions.core.manager.registry import SessionRegistry
from miniclaw_sessions.core.persistence.losses import Loss
from miniclaw_sessions.core.persistence.storage import Storage
from miniclaw_sessions.core.session import Journal, Session
from miniclaw_sessions.core.session.searching import search_windows
from miniclaw_sessions.core.stores.base import Store
from miniclaw_sessions.core.stores.positions import ListPosition
from miniclaw_sessions.errors import SessionExpired, SessionNotFound

FEW = 10_000
"""Up to this many sessions on disk are put in order on the event loop; more would hold it up."""


class SessionSource(Protocol):
    """Where sessions are read from: nothing is created or renewed."""

    @property
    def store(self) -> Store:
        """The store that is open."""
        ...

    @property
    def losses(self) -> Mapping[str, Loss]:
        """What older messages were lost with a former store, by session id."""
        ...

    async def load(self, session_id: str) -> Journal | None:
        """A session's journal, loaded if need be; None if there is no such session."""
        ...

    async def newest(  # noqa: PLR0913 - each can be left out
        self,
        *,
        channel: str | None = None,
        only: Callable[[str], bool] | None = None,
        behind: ListPosition | None = None,
        since: datetime | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[ListPosition]:
        """A part of all sessions, the most recently used first: `Listing.newest`. Loads none of them."""
        ...

    async def load_listed(self, session_ids: Sequence[str]) -> dict[str, Session]:
        """Those of these sessions that exist, loaded if need be."""
        ...

    async def search_for(self, search: Search) -> Found:
        """The newest hits of a search: `Store.search`."""
        ...

    async def missing(self, session_id: str) -> SessionNotFound:
        """What to raise for a session that does not exist."""
        ...


class LiveSource:
    """The sessions of an open manager.

    Attributes:
        store: the transcripts.
        exists: whether there is a session of an id: `SessionRegistry.exists`.
        new_journal: makes a session of what comes from elsewhere: `SessionRegistry.new_journal`.
        was_mirrored, note_mirrored: which sessions mirror another program's: see `Storage`.
    """

    def __init__(self, registry: SessionRegistry, storage: Storage) -> None:
        self._registry = registry
        self._storage = storage
        self.store: Store = registry.store
        self.exists = registry.exists
        self.new_journal = registry.new_journal
        self.was_mirrored = storage.was_mirrored
        self.note_mirrored = storage.note_mirrored

    @property
    def losses(self) -> Mapping[str, Loss]:
        """What older messages were lost with a former store, by session id."""
        return self._storage.losses

    async def load(self, session_id: str) -> Journal | None:
        """The live session, loaded if need be: see `SessionRegistry.load`."""
        return await self._registry.load(session_id)

    async def newest(self, **part: Any) -> list[ListPosition]:
        """A part of all sessions: see `SessionSource.newest`."""
        return await self._registry.mode.newest(**part)

    async def load_listed(self, session_ids: Sequence[str]) -> dict[str, Session]:
        """Those of these sessions that exist."""
        return await self._registry.mode.load_listed(session_ids, self._registry)

    async def search_for(self, search: Search) -> Found:
        """The newest hits of a search."""
        return await search_in(self, search)

    async def missing(self, session_id: str) -> SessionNotFound:
        """SessionExpired where the archive has the session, or else SessionNotFound."""
        return (SessionExpired if await self._storage.archive.has(session_id) else SessionNotFound)(session_id)

    async def restore_if_archived(self, session_id: str) -> None:
        """Bring an expired session back, if the archive has it."""
        await restore_if_archived(self._registry, self._storage.archive, session_id)

    async def forget_copy(self, file: str) -> bool:
        """Delete one archived file; False if it was restored or deleted meanwhile."""
        return await forget_copy(self._registry, self._storage.archive, file)


async def newest_of(listing: Listing, **part: Any) -> list[ListPosition]:
    """A part of all sessions of a listing; put in order in a thread where there are many."""
    choose = partial(listing.newest, **part)
    chosen = choose() if len(listing.on_disk) < FEW else await to_thread.run_sync(choose)
    return [ListPosition(moment_of(used), session_id) for used, session_id in chosen]


async def load_each(load: Callable[[str], Awaitable[Journal | None]], session_ids: Sequence[str]) -> dict[str, Session]:
    """Those of these sessions that exist, loaded one after the other."""
    found = {}
    for session_id in reversed(session_ids):  # so that the newest stays in memory longest
        if (journal := await load(session_id)) is not None:
            found[session_id] = Session.of(journal)
    return found


async def search_in(source: SessionSource, search: Search) -> Found:
    """The newest hits of a search: the store's, or where it keeps no transcripts those in memory."""
    if source.store.keeps_entries:
        return await source.store.search(search)
    return await search_windows(search, _journals(source))


async def _journals(source: SessionSource) -> AsyncIterator[Journal]:
    for _, session_id in await source.newest():
        if (journal := await source.load(session_id)) is not None:
            yield journal
