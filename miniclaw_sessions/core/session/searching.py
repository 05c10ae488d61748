"""Searching as people mean it: above what a store finds, what was cleared is left out, and the best comes first.

The best of the newest `WINDOW` hits come first, then the best of the next ones, and so on: so a page costs the same
however much is found, and what is old never hides what is new.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import Annotated

import msgspec
from anyio import to_thread

from miniclaw_sessions.core.history.branches import BranchMap
from miniclaw_sessions.core.history.search import (
    MAX_HITS,
    MAX_SEQUENCE,
    NO_CURSOR,
    TITLE,
    Branch,
    Found,
    Hit,
    Search,
    SearchPage,
    SearchQuery,
    SearchResult,
)
from miniclaw_sessions.core.history.searched import searched, snippet
from miniclaw_sessions.core.protocol.parts import Instant
from miniclaw_sessions.core.session.journal import Journal
from miniclaw_sessions.core.stores.base import decode_stored, stored_entry
from miniclaw_sessions.core.stores.reading import PAGE
from miniclaw_sessions.core.stores.scanning import Newest
from miniclaw_sessions.errors import InvalidMessage, InvalidSearch

WINDOW = 200
"""How many of the newest hits are ranked at a time."""

MAX_WINDOWS = 10
"""After this many with too few visible hits, the page is returned as it is; its cursor goes on."""

LONG_TEXT = 20_000
"""A text of this many characters is searched in a thread."""

Rank = tuple[float, Instant, str, Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE)]]

_TICK = timedelta(microseconds=1)


class _Position(msgspec.Struct, frozen=True, array_like=True):
    """Where a page begins: in which window, from where to where that goes, and behind what in its order.

    So what is deleted meanwhile, or comes with an older time of its own, moves nothing from one window to another. What
    is said after the first page was given is on no page.
    """

    before: Instant | None = None
    window: str | None = None
    until: str | None = None
    rank: Rank | None = None


async def search_page(
    query: SearchQuery,
    *,
    search_for: Callable[[Search], Awaitable[Found]],
    find: Callable[[str], Awaitable[Journal | None]],
    now: datetime,
) -> SearchPage:
    """A page of what was said and may be seen.

    Args:
        query: what is searched for, and the cursor of the page before; the best (`Hit.score`, then the newest) first,
            or the newest.
        search_for: finds hits, the newest first, as `Store.search`.
        find: a session; None: it was deleted, or is still being made.
        now: what is said from now on is on no further page.

    Raises:
        InvalidSearch: there is nothing to search for, or something in it cannot be meant.
        StoreError: a store or a session cannot be read.
    """
    search, order = query.search(), query.order
    position, shown = _position_of(search.cursor), _Shown(find, query.branch, search.terms)
    results: list[SearchResult] = []
    found = Found()
    for _ in range(MAX_WINDOWS):
        begin = position
        found = await search_for(_window(search, begin))
        before = begin.before or max([now, *(hit.said_at + _TICK for hit in found.hits)])
        until = begin.until or found.cursor
        ranks: list[Rank] = [(hit.score if order == "best" else 0.0, *hit.place) for hit in found.hits]
        for rank, hit in sorted(zip(ranks, found.hits, strict=True), reverse=True, key=itemgetter(0)):
            if begin.rank is not None and rank >= begin.rank:
                continue
            if len(results) == search.limit:
                return _page(results, position, found)
            position = _Position(before, begin.window, until, rank)
            if (result := await shown.result(hit)) is not None:
                results.append(result)
        if found.cursor is None:
            return _page(results, None, found)
        is_whole = found.cursor == until
        position = _Position(before, found.cursor, *(() if is_whole else (until, begin.rank)))
        if len(results) == search.limit:
            break
    return _page(results, position, found)


def _window(search: Search, position: _Position) -> Search:
    """The search for the hits of a window: for some at first, and for all that are in it once its end is known."""
    return msgspec.structs.replace(
        search,
        limit=WINDOW if position.until is None and position.rank is None else MAX_HITS,
        cursor=position.window,
        until=position.until,
        before=min((one for one in (search.before, position.before) if one is not None), default=None),
    )


def _page(results: Sequence[SearchResult], following: _Position | None, found: Found) -> SearchPage:
    cursor = None if following is None else base64.urlsafe_b64encode(msgspec.json.encode(following)).decode()
    return SearchPage(results=tuple(results), next=cursor, behind=found.behind, note=found.note)


def _position_of(cursor: str | None) -> _Position:
    if cursor is None:
        return _Position()
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=_Position)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise InvalidSearch(NO_CURSOR) from None


class _Shown:
    """Which hits may be seen, and how their sessions are called."""

    def __init__(self, find: Callable[[str], Awaitable[Journal | None]], branch: Branch, terms: Sequence[str]) -> None:
        self._find = find
        self._branch = branch
        self._terms = terms
        self._known: dict[str, tuple[Journal, BranchMap, list[tuple[int, int]]] | None] = {}

    async def result(self, hit: Hit) -> SearchResult | None:
        """The hit in its session; None: it was cleared, is on a branch that is not searched, or the session is gone.

        A title is the session's, whichever branch it was given on, and stays when the session is cleared.
        """
        if hit.session_id not in self._known:
            self._known[hit.session_id] = None
            journal = await self._find(hit.session_id)
            if journal is not None and not journal.is_deleted:
                branches = await branches_of(journal)
                self._known[hit.session_id] = journal, branches, branches.path()
        if (known := self._known[hit.session_id]) is None:
            return None
        journal, branches, path = known
        is_current = any(first <= hit.sequence <= last for first, last in path)
        if hit.role != TITLE and not is_current and (self._branch == "current" or hit.sequence < branches.cleared_at):
            return None
        text = await self._text(journal, hit)
        if text is None:
            return None
        make = partial(snippet, text, self._terms)
        pieces = make() if len(text) < LONG_TEXT else await to_thread.run_sync(make)
        title = journal.conversation.state.metadata.get("title")
        return SearchResult(**msgspec.structs.asdict(hit), snippet=pieces, title=title, current=is_current)

    @staticmethod
    async def _text(journal: Journal, hit: Hit) -> str | None:
        """What was said there; None: it is not there any more."""
        stored = (await journal.reader.read_at([hit.sequence])).get(hit.sequence)
        if stored is None or stored.entry_id != hit.entry_id:
            kept = (one for one in journal.conversation.window if one.id == hit.entry_id)
            stored = next(map(stored_entry, kept), None)  # all there is, where the store keeps nothing
        if stored is None:
            return None
        try:
            found = searched(decode_stored(stored))
        except InvalidMessage:
            return None
        return None if found is None else found.text


async def branches_of(journal: Journal) -> BranchMap:
    """Where a session's branches part, as far as it is committed; what was read before is not read again."""
    store = journal.home.store
    if not store.keeps_entries:  # the window is all there is: one branch
        branches = BranchMap()
        branches.leaf = journal.last_sequence
        return branches
    if journal.branches is None:
        journal.branches = BranchMap()
    branches = journal.branches
    is_behind = journal.queue.may_have_more(branches.up_to)
    while is_behind and (page := await store.read(journal.session_id, after=branches.up_to, limit=PAGE)):
        for stored in page:
            if stored.sequence > branches.up_to:  # another search may have been here
                branches.add(stored.sequence, stored.encoded)
        is_behind = len(page) == PAGE
    return branches


async def search_session(journal: Journal, query: SearchQuery) -> SearchPage:
    """`search_page` in one session. Raises the same."""
    query = msgspec.structs.replace(query, session_id=journal.session_id)

    async def find(_session_id: str) -> Journal:
        return journal

    async def search_for(search: Search) -> Found:
        store = journal.home.store
        return await (store.search(search) if store.keeps_entries else search_windows(search, _only(journal)))

    return await search_page(query, search_for=search_for, find=find, now=journal.home.clock.now())


async def search_windows(search: Search, journals: AsyncIterator[Journal]) -> Found:
    """What is in memory, where the store keeps no transcripts; one session after the other."""
    newest = Newest(search)
    async for journal in journals:
        if search.covers(journal.session_id, journal.key):
            page = [stored_entry(entry) for entry in journal.conversation.window]
            await to_thread.run_sync(newest.look_at, journal.session_id, journal.key, page)
    return newest.found("the store keeps no transcripts: only what is in memory was searched")


async def _only(journal: Journal) -> AsyncIterator[Journal]:
    yield journal
