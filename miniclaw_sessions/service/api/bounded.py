"""A manager's sessions for a caller with bounds: all others are as if they did not exist.

Calls that are not about single sessions, such as the manager's numbers or its store, are refused: what this view lacks
cannot be asked of it by mistake.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import msgspec

from miniclaw_sessions.core.events.events import Events
from miniclaw_sessions.core.events.feed import Event, Only, everything
from miniclaw_sessions.core.events.listeners import TurnEvent
from miniclaw_sessions.core.history.search import Found, Search
from miniclaw_sessions.core.manager import reading
from miniclaw_sessions.core.manager.manager import SessionManager
from miniclaw_sessions.core.manager.sources import load_each, search_in
from miniclaw_sessions.core.persistence.losses import Loss
from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.core.protocol.keys import KeyBounds, SessionKey
from miniclaw_sessions.core.session import Journal, Session
from miniclaw_sessions.core.stores.base import Store
from miniclaw_sessions.core.stores.positions import ListPosition
from miniclaw_sessions.errors import InvalidKey, NotArchived, NotPermitted, SessionNotFound


@dataclass(frozen=True)
class _Within:
    """Which sessions' events come within bounds; not those of one whose key is not known any more."""

    bounds: KeyBounds
    only: Only

    def __call__(self, session_id: str, key: SessionKey | None) -> bool:
        """Whether it is one of them."""
        return key is not None and self.bounds.covers(key) and self.only(session_id, key)


class BoundedEvents:
    """The events of a manager within bounds.

    Args:
        events: all of them.
        bounds: of which sessions they come.
        find: finds a session within bounds; raises SessionNotFound.
    """

    def __init__(self, events: Events, bounds: KeyBounds, find: Callable[[str], Awaitable[Session]]) -> None:
        self._events = events
        self._bounds = bounds
        self._find = find

    async def watch(
        self, session_id: str, *, after: int | None = None
    ) -> AsyncGenerator[list[Entry | TurnEvent], None]:
        """`Events.watch`."""
        await self._find(session_id)
        async with aclosing(self._events.watch(session_id, after=after)) as watched:
            async for one in watched:
                yield one

    def watch_all(self, *, only: Only = everything, **asked: Any) -> AsyncGenerator[list[Event], None]:
        """`Events.watch_all`."""
        return self._events.watch_all(only=_Within(self._bounds, only), **asked)


class BoundedSource:
    """The sessions of a manager within bounds, to be read; for all others it has nothing, not even their absence."""

    def __init__(self, manager: SessionManager, bounds: KeyBounds) -> None:
        self._source = manager.source
        self._bounds = bounds
        self._visible: frozenset[str] | None = None

    @property
    def store(self) -> Store:
        """The store that is open."""
        return self._source.store

    @property
    def losses(self) -> Mapping[str, Loss]:
        """What older messages were lost with a former store, by session id."""
        return {one: loss for one, loss in self._source.losses.items() if self.owns(one)}

    def owns(self, session_id: str) -> bool:
        """Whether an id is within bounds; no for a shortened one, which only its session can resolve."""
        try:
            return self._bounds.covers(SessionKey.parse(session_id))
        except InvalidKey:
            return False

    async def load(self, session_id: str) -> Journal | None:
        """A session's journal; None if it is out of bounds or does not exist."""
        if not self._bounds.may_cover(session_id):  # nothing is loaded, so that the time reveals nothing
            return None
        journal = await self._source.load(session_id)
        return journal if journal is not None and self._bounds.covers(journal.key) else None

    async def newest(  # noqa: PLR0913 - those of `SessionSource`
        self,
        *,
        channel: str | None = None,
        only: Callable[[str], bool] | None = None,
        behind: ListPosition | None = None,
        since: datetime | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[ListPosition]:
        """A part of all sessions within bounds."""

        def is_visible(session_id: str) -> bool:
            return self._bounds.may_cover(session_id) and (only is None or only(session_id))

        channels = self._bounds.channels
        if channel is None and channels is not None and len(channels) == 1:
            (channel,) = channels  # which a database can look for itself
        wanted = None if limit is None else offset + limit
        found: list[ListPosition] = []
        while True:
            page = await self._source.newest(channel=channel, only=is_visible, behind=behind, since=since, limit=wanted)
            found += [one for one in page if "~" not in one.session_id or await self.load(one.session_id)]
            if wanted is None or len(page) < wanted or len(found) >= wanted:
                return found[offset:wanted]
            behind = page[-1]

    async def load_listed(self, session_ids: Sequence[str]) -> dict[str, Session]:
        """Those of these sessions that are within bounds."""
        return await load_each(self.load, session_ids)

    async def search_for(self, search: Search) -> Found:
        """Search the sessions within bounds and no others: a cursor would reveal what was skipped."""
        if search.session_ids is None:
            if self._visible is None:
                self._visible = frozenset(one.session_id for one in await self.newest())
            search = msgspec.structs.replace(search, session_ids=self._visible)
        return await search_in(self, search)

    async def missing(self, session_id: str) -> SessionNotFound:
        """`LiveSource.missing`; a session out of bounds is never called expired."""
        return await self._source.missing(session_id) if self.owns(session_id) else SessionNotFound(session_id)


class BoundedSessions:
    """The sessions of a manager within bounds; made for one request.

    Args:
        manager: an open one.
        bounds: which of its sessions there are.
        permit: raises where a session of a key must not be made.
    """

    def __init__(self, manager: SessionManager, bounds: KeyBounds, permit: Callable[[SessionKey], None]) -> None:
        self.clock, self.settings = manager.clock, manager.settings
        self.events = BoundedEvents(manager.events, bounds, self.find)
        self.source = BoundedSource(manager, bounds)
        self._manager = manager
        self._bounds = bounds
        self._permit = permit
        self._deleted: set[str] = set()

    get = reading.get
    find = reading.find
    list = reading.list_sessions
    search = reading.search
    usage = reading.usage
    get_session_history = reading.get_session_history

    def __repr__(self) -> str:
        return f"<{self._bounds} of {self._manager!r}>"

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse every other call: it is about all sessions."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotPermitted(f"this is about all sessions, and this token is for {self._bounds}")

    # --- making and removing -----------------------------------------------------------------------------------------

    async def get_or_create(self, channel: str, chat_id: str | int, **given: Any) -> Session:
        """`SessionManager.get_or_create`.

        Raises:
            NotPermitted: such a session must not be made here.
        """
        self._permit(SessionKey.of(channel, chat_id))
        return await self._manager.get_or_create(channel, chat_id, **given)

    async def restore(self, session_id: str) -> Session:
        """`SessionManager.restore`; a session whose id is shortened is not found in the archive."""
        if not self.source.owns(session_id):
            raise NotArchived(session_id)
        return await self._manager.restore(session_id)

    async def delete(self, session_id: str, *, if_sequence: int | None = None) -> bool:
        """`SessionManager.delete`."""
        if not self.source.owns(session_id) and await self.source.load(session_id) is None:
            return False
        self._deleted.add(session_id)
        return await self._manager.delete(session_id, if_sequence=if_sequence)

    async def purge(self, *session_ids: str) -> builtins.list[str]:
        """`SessionManager.purge`, of what `delete` has just removed."""
        for session_id in session_ids:
            if not self.source.owns(session_id) and session_id not in self._deleted:
                raise SessionNotFound(session_id)
        return await self._manager.purge(*session_ids)
