"""Adding items to a session, all of them or none, and each of them once.

The package sends a request again when it did not get an answer, and nothing in it says which it was. So a request that
says that it is repeated (`x-stainless-retry-count`) is compared with the one that came last: with what this process
remembers of it, or, where that was another process, with what is newest in the session. An item whose id is there
already is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import anyio
import msgspec

from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.errors import EntryNotFound, LeafMoved
from miniclaw_sessions.files.formats.openai_items import to_messages
from miniclaw_sessions.service.api.openai.errors import ATTEMPTS, bad_request, contended, not_found
from miniclaw_sessions.service.api.openai.items import REFERENCE, check_items, items_of, same_item
from miniclaw_sessions.service.api.openai.reading import FoundItem, find_items, items_within, page_of_items
from miniclaw_sessions.service.api.openai.shapes import Item

if TYPE_CHECKING:
    from miniclaw_sessions.core.session import Session
    from miniclaw_sessions.core.session.journal import Journal

REMEMBERED = timedelta(minutes=1)
"""How long after a request one that says that it repeats it is taken for it."""


@dataclass
class _Last:
    """The request that was made last: what was in it, when, and what it appended; None: nothing, or not yet."""

    digest: bytes
    moment: datetime
    entry_ids: list[str] | None = None


class _Adding:
    """Who adds to a session: one after the other."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.last: _Last | None = None


_adding: WeakKeyDictionary[Journal, _Adding] = WeakKeyDictionary()


async def add_items(
    session: Session,
    items: Sequence[Item],
    *,
    client: str,
    is_repeated: bool = False,
    idempotency_key: str | None = None,
) -> list[Item]:
    """Append items, and give them as they are in the session when they are acknowledged.

    Args:
        session: where to.
        items: what a client sent.
        client: whose request it is.
        is_repeated: whether the client says that it sent the same before.
        idempotency_key: the client's name for the request; one that is known appends nothing again.

    Raises:
        RequestError: an item is none, its id is that of another item (400), or it refers to one that is missing (404).
        StoreFull, StoreUnavailable, InvalidMessage, UnsavedLimit, SessionDeleted: as for `Session.add_messages`.
    """
    check_items(items)
    adding = _adding.setdefault(session.journal, _Adding())
    async with adding.lock:
        if idempotency_key is not None and (known := await session.journal.find_by_key(idempotency_key)) is not None:
            return await _appended_with(session, known, len(items))
        digest, now = _digest(client, items), session.journal.now()
        if is_repeated and (before := await _added_before(adding.last, session, items, digest, now)) is not None:
            return before
        adding.last = _Last(digest, now)
        return await _add_new(session, items, adding.last, idempotency_key)


def _digest(client: str, items: Sequence[Item]) -> bytes:
    return hashlib.sha256(msgspec.json.encode((client, items), order="sorted")).digest()


async def _add_new(session: Session, items: Sequence[Item], last: _Last, idempotency_key: str | None) -> list[Item]:
    """Append what is not there yet; give all of it."""
    for _ in range(ATTEMPTS):
        sequence = session.last_sequence
        given_ids = _given_ids(items)
        there = await find_items(session, given_ids)
        new = _new_items(items, there)
        session.journal.home.committer.check_store()
        unit = session.unit()
        for place, message in enumerate(to_messages(new)):
            unit.add_message(message, idempotency_key=idempotency_key if place == 0 else None)
        try:
            if new:
                unit.accept(if_sequence=sequence if given_ids else None)
                last.entry_ids = [entry.id for entry in unit.entries]
            await unit.saved()
        except LeafMoved:  # somebody said something meanwhile, perhaps the same
            last.entry_ids = None
            continue
        if unit.known is not None:  # the request came to another process before
            return await _appended_with(session, unit.known, len(items))
        return _in_order(items, there, [one for entry in unit.entries for one in items_of(entry)])
    raise contended()


def _new_items(items: Sequence[Item], there: dict[str, FoundItem]) -> list[Item]:
    """The items that are not in the conversation yet.

    Raises:
        RequestError: one has the id of another item (400), or refers to an item that is not there (404).
    """
    new: list[Item] = []
    known = {item_id: found.item for item_id, found in there.items()}
    for place, item in enumerate(items):
        item_id = item.get("id")
        before = None if item_id is None else known.get(item_id)
        if item.get("type") == REFERENCE:
            if before is None:
                raise not_found("Item", str(item_id))
        elif before is None:
            new.append(item)
            if item_id is not None:
                known[item_id] = item
        elif not same_item(before, item):
            sentence = f"Duplicate item found with id {item_id}. Remove duplicate items from your input and try again."
            raise bad_request(sentence, f"items[{place}].id", "duplicate_item")
    return new


def _in_order(items: Sequence[Item], there: dict[str, FoundItem], added: Sequence[Item]) -> list[Item]:
    """What became of each item that was given: those that were there, and in the place of the others what was added."""
    known = {item_id: found.item for item_id, found in there.items()}
    waiting = iter([item for item in added if item["id"] not in known])
    shown: list[Item] = []
    for item in items:
        one = known.get(item.get("id") or "") or next(waiting)
        known[one["id"]] = one
        shown.append(one)
    return shown


def _given_ids(items: Sequence[Item]) -> list[str]:
    return [item["id"] for item in items if item.get("id") is not None]


# --- what was added before -------------------------------------------------------------------------------------------


async def _added_before(
    last: _Last | None, session: Session, items: Sequence[Item], digest: bytes, now: datetime
) -> list[Item] | None:
    """What the request added that this one repeats; None: nothing, as far as can be told."""
    if last is None or last.digest != digest:  # the first one came to another process, or to this one before its start
        return await _newest_if_same(session, items, now)
    if last.entry_ids is None or now - last.moment > REMEMBERED:
        return None
    await session.saved()
    try:
        entries = [await session.tree.get_entry(entry_id) for entry_id in last.entry_ids]
    except EntryNotFound:  # another process was first with what it demanded
        return None
    there = await find_items(session, _given_ids(items))
    return _in_order(items, there, [one for entry in entries for one in items_of(entry)])


async def _newest_if_same(session: Session, items: Sequence[Item], now: datetime) -> list[Item] | None:
    """The newest items of the session, if they are these and were added just now."""
    await session.saved()
    found, _ = await page_of_items(session, after=None, limit=len(items), newest_first=True)
    newest = found[::-1]
    is_same = len(newest) == len(items) and all(
        now - there.entry.timestamp <= REMEMBERED and same_item(there.item, item, but_for_id=item.get("id") is None)
        for there, item in zip(newest, items, strict=True)
    )
    return [there.item for there in newest] if is_same else None


async def _appended_with(session: Session, first: Entry, count: int) -> list[Item]:
    """So many items from an entry on, acknowledged."""
    await session.saved()
    entry = await session.tree.get_entry(first.id)
    stored = await session.tree.read_after(entry.sequence - 1, count)
    return [found.item for one in stored for found in items_within(one)][:count]
