"""Reading the items of a session's current branch: a page at a time, or one by its id, without reading the rest.

From an item towards the root a page is read as the branch goes. Towards the leaf it is read from where it begins: the
places of the branch are known without its entries (`history.branches`). An item whose id is a client's own is found by
an index of the ids that stand in entries.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple
from weakref import WeakKeyDictionary

from miniclaw_sessions.core.protocol.entries import COPY_OF, Entry
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.journal import Journal
from miniclaw_sessions.core.session.searching import branches_of
from miniclaw_sessions.core.stores.base import StoredEntry, decode_stored
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.openai_items import KEPT, WHOLE_CONTENT, WHOLE_ITEM
from miniclaw_sessions.service.api.openai.items import encoded, entry_id_within, items_of
from miniclaw_sessions.service.api.openai.shapes import Item

PAGE_BYTES = 8 * 1024 * 1024
"""A page ends early that has so much in it: images may be large."""

_AT_ONCE = 128
_INDEXED_AT_ONCE = 1_024
_MARKS = tuple(b'"%s"' % name.encode() for name in (KEPT, WHOLE_ITEM, WHOLE_CONTENT, COPY_OF))
_IDS = re.compile(rb'\\*"(?:id|%s)\\*":\s?\\*"([^"\\]{1,200})' % COPY_OF.encode())

Stretches = Sequence[tuple[int, int]]
"""The places of a branch, from the leaf to the root: first and last of each run."""


class FoundItem(NamedTuple):
    """An item of the current branch, its entry, and which of the entry's items it is."""

    item: Item
    entry: Entry
    place: int


async def find_item(session: Session, item_id: str, *, oldest: bool = False) -> FoundItem | None:
    """The item of the current branch that has this id.

    Ids that were checked when they came are of one item. Of others that are not, the newest; or the `oldest`.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    return (await find_items(session, [item_id], oldest=oldest)).get(item_id)


async def find_items(session: Session, item_ids: Sequence[str], *, oldest: bool = False) -> dict[str, FoundItem]:
    """The items of the current branch that have these ids, by these. Raises as `find_item`."""
    found: dict[str, FoundItem] = {}
    if not item_ids:
        return found
    branch = (await branches_of(session.journal)).path()
    for item_id in item_ids:
        async with aclosing(_may_have(session, item_id, oldest=oldest)) as entries:
            async for stored in entries:
                if (one := _found(branch, stored, item_id)) is not None:
                    found[item_id] = one
                    break
    return found


async def _may_have(session: Session, item_id: str, *, oldest: bool) -> AsyncGenerator[StoredEntry, None]:
    """The entries in which an item of this id may be."""
    entry_id = entry_id_within(item_id)
    stored = None if entry_id is None else await session.journal.reader.find(session.session_id, entry_id)
    if stored is not None:
        yield stored
    index = await index_of(session)
    for place in sorted({*index.places(item_id), *index.places(entry_id or "")}, reverse=not oldest):
        if (there := (await session.tree.read_at([place])).get(place)) is not None:
            yield there


def _found(branch: Stretches, stored: StoredEntry, item_id: str) -> FoundItem | None:
    if not any(first <= stored.sequence <= last for first, last in branch):
        return None
    return next((found for found in items_within(stored) if found.item["id"] == item_id), None)


def items_within(stored: StoredEntry) -> list[FoundItem]:
    """The items of a stored entry, in order; none of a damaged one."""
    try:
        return _located(decode_stored(stored))
    except InvalidMessage:
        return []


def _located(entry: Entry) -> list[FoundItem]:
    return [FoundItem(item, entry, place) for place, item in enumerate(items_of(entry))]


async def page_of_items(
    session: Session, *, after: FoundItem | None, limit: int, newest_first: bool
) -> tuple[list[FoundItem], bool]:
    """The acknowledged items behind one in this order, and whether there are more.

    Args:
        session: whose current branch is read.
        after: the last item of the page before; None: from the beginning.
        limit: at most so many.
        newest_first: from the leaf to the root; else from the root to the leaf.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    page: list[FoundItem] = []
    size = 0
    items = _backwards_from(session, after) if newest_first else _forwards_from(session, after)
    is_behind = after is None
    async with aclosing(items):
        async for found in items:
            if is_behind and (len(page) == limit or (page and size > PAGE_BYTES)):
                return page, True
            if is_behind:
                page.append(found)
                size += len(encoded(found.item))
            is_behind = is_behind or (after is not None and found.item["id"] == after.item["id"])
    return page, False


async def _backwards_from(session: Session, begin: FoundItem | None) -> AsyncGenerator[FoundItem, None]:
    """The items from an entry's newest to the root's; of the current branch, nothing else is read."""
    async for entry in session.tree.walk(None if begin is None else begin.entry.id):
        if entry.sequence <= session.journal.committed_sequence:
            for found in reversed(_located(entry)):
                yield found


async def _forwards_from(session: Session, begin: FoundItem | None) -> AsyncGenerator[FoundItem, None]:
    """The items from an entry's oldest to the leaf's."""
    start = 0 if begin is None else begin.entry.sequence
    for first, last in reversed((await branches_of(session.journal)).path()):
        for low in range(max(first, start), last + 1, _AT_ONCE):
            for stored in await session.tree.read_after(low - 1, min(_AT_ONCE, last + 1 - low)):
                if stored.sequence <= last:
                    for found in items_within(stored):
                        yield found


# --- ids that clients gave -------------------------------------------------------------------------------------------


class ItemIndex:
    """At which places of a session ids stand that are not made of the entry's own. Some that it tells are no items'.

    Attributes:
        up_to: the sequence of the last entry that it was fed.
    """

    __slots__ = ("_places", "up_to")

    def __init__(self) -> None:
        self.up_to = 0
        self._places: dict[bytes, tuple[int, ...]] = {}

    def add(self, stored: StoredEntry) -> None:
        """The next entry."""
        self.up_to = stored.sequence
        if any(mark in stored.encoded for mark in _MARKS):
            for item_id in set(_IDS.findall(stored.encoded)):
                self._places[item_id] = (*self._places.get(item_id, ()), stored.sequence)

    def places(self, item_id: str) -> tuple[int, ...]:
        """Where this id stands."""
        return self._places.get(item_id.encode("utf-8", "surrogatepass"), ())


_indexes: WeakKeyDictionary[Journal, ItemIndex] = WeakKeyDictionary()


async def index_of(session: Session) -> ItemIndex:
    """The index of a session as far as it is committed; what was read before is not read again.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    journal, store = session.journal, session.journal.home.store
    index = _indexes.setdefault(journal, ItemIndex())
    if not store.keeps_entries:
        index = ItemIndex()  # the window is all there is, and forgets
    while index.up_to < journal.committed_sequence or not store.keeps_entries:
        page = await session.tree.read_after(index.up_to, _INDEXED_AT_ONCE)
        for stored in page:
            if journal.committed_sequence >= stored.sequence > index.up_to:  # another request may have been here
                index.add(stored)
        if len(page) < _INDEXED_AT_ONCE:
            break
    return index
