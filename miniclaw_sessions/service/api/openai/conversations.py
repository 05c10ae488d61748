"""OpenAI's Conversations: make, show, change and delete one, and add, list, show and delete its items.

A conversation is a session: every session can be asked for by its id, and its items are those of its current branch. A
new conversation is the session of channel `conv` and a chat id of 48 hexadecimal digits, so its id is `conv_...`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal
from weakref import WeakKeyDictionary

import anyio
import msgspec
from msgspec import Meta

from miniclaw_sessions.core.protocol.entries import OWN_METADATA, Entry
from miniclaw_sessions.errors import (
    EntryNotFound,
    InvalidKey,
    LeafMoved,
    SessionDeleted,
    SessionNotFound,
    SessionsError,
)
from miniclaw_sessions.files.formats.openai_items import to_messages
from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.api.openai.items import (
    REFERENCE,
    FoundItem,
    check_items,
    encoded,
    find_item,
    find_items,
    items_of,
    items_within,
    page_of_items,
    same_item,
)
from miniclaw_sessions.service.api.openai.shapes import (
    ATTEMPTS,
    MAX_PAGE,
    Conversation,
    ConversationDeleted,
    CreateConversation,
    CreateItems,
    Item,
    ItemList,
    UpdateConversation,
    bad_request,
    contended,
    key_taken,
    not_found,
)
from miniclaw_sessions.service.api.openai.stored_responses import REMEMBERED
from miniclaw_sessions.service.api.operation import Stream, checked_idempotency_key, large_reply, operation
from miniclaw_sessions.service.api.request_keys import stored_key
from miniclaw_sessions.service.api.sessions import DeleteSession, delete_session

if TYPE_CHECKING:
    from miniclaw_sessions.core.session import Session
    from miniclaw_sessions.core.session.journal import Journal
    from miniclaw_sessions.service.api.context import Context


CHANNEL = "conv"
ALL = "/v1/conversations"
ONE = f"{ALL}/{{conversation_id}}"
ITEMS = f"{ONE}/items"

_CREATED = OWN_METADATA + "conversation"
_ESCAPE = "metadata."
_NAMES_OF_OURS = frozenset({"self", "agent_id", "model", "provider", "thinking_level"})


async def find_conversation(context: Context, conversation_id: str) -> Session:
    """The session with this id.

    Raises:
        RequestError: no such conversation exists (404).
    """
    try:
        return await context.find(conversation_id)
    except (SessionNotFound, SessionDeleted, InvalidKey):
        raise not_found("Conversation", conversation_id) from None


def conversation_reply(session: Session) -> Conversation:
    """A session as a conversation."""
    created_at = int(session.created_at.timestamp())
    return Conversation(id=session.session_id, created_at=created_at, metadata=metadata_of(session))


# --- conversations ---------------------------------------------------------------------------------------------------


class CreateConversationRequest(msgspec.Struct, frozen=True):
    """What a new conversation begins with; with a key, a repeated request makes no second one."""

    body: CreateConversation
    idempotency_key: str | None = None


@operation("POST", ALL, CreateConversationRequest, Conversation, openai=True)
async def create_conversation(context: Context, request: CreateConversationRequest) -> Conversation:
    """Make a conversation, with its first items if there are any, and reply when it is acknowledged."""
    key = checked_idempotency_key(request.idempotency_key)
    items, metadata = request.body.items or [], request.body.metadata or {}
    check_items(items)
    digits = secrets.token_hex(24)
    if key is not None:  # always the same for a client's key
        digits = hashlib.sha256(f"{context.caller.name} {key}".encode()).hexdigest()[:48]
    session = await context.find_or_create(f"{CHANNEL}_{digits}")
    if session.last_sequence:
        await session.saved()  # the key is known: it was made before
        return conversation_reply(session)
    unit = session.unit()
    try:
        unit.add_own_metadata({_CREATED: True})
        unit.add_metadata(**_changes(session, metadata))
        for message in to_messages(items):
            unit.add_message(message)
        await unit.save(if_sequence=0)
    except LeafMoved:  # a request with the same key was first, here or at another process
        await session.saved()
    except SessionsError:
        with suppress(LeafMoved):  # another request with the same key has made it meanwhile
            await context.manager.delete(session.session_id, if_sequence=0)  # a refused request makes nothing
        raise
    return conversation_reply(session)


class OneConversation(msgspec.Struct, frozen=True):
    """A request about one conversation."""

    conversation_id: str


@operation("GET", ONE, OneConversation, Conversation, openai=True)
async def retrieve_conversation(context: Context, request: OneConversation) -> Conversation:
    """One conversation, without its items."""
    return conversation_reply(await find_conversation(context, request.conversation_id))


class UpdateConversationRequest(msgspec.Struct, frozen=True):
    """New metadata of a conversation."""

    conversation_id: str
    body: UpdateConversation


@operation("POST", ONE, UpdateConversationRequest, Conversation, openai=True)
async def update_conversation(context: Context, request: UpdateConversationRequest) -> Conversation:
    """Set the metadata: all of what it was is replaced."""
    session = await find_conversation(context, request.conversation_id)
    unit = session.unit()
    unit.add_metadata(**_changes(session, request.body.metadata or {}))
    await unit.save()
    return conversation_reply(session)


class DeleteConversation(OneConversation, frozen=True):
    """Which conversation, and how often the client has asked already."""

    retry_count: str | None = None


@operation("DELETE", ONE, DeleteConversation, ConversationDeleted, openai=True)
async def delete_conversation(context: Context, request: DeleteConversation) -> ConversationDeleted:
    """Forget a conversation with all of its items; a repeated request finds it gone, and says the same."""
    try:
        await delete_session.handler(context, DeleteSession(request.conversation_id))
    except (SessionNotFound, SessionDeleted, InvalidKey):
        if not is_repeated(request.retry_count):
            raise not_found("Conversation", request.conversation_id) from None
    return ConversationDeleted(id=request.conversation_id)


# --- metadata --------------------------------------------------------------------------------------------------------


def metadata_of(session: Session) -> dict[str, str]:
    """What of a session's metadata a conversation has: texts that anybody set; `title` is the session's title.

    Names that mean something else to a session, such as `model`, are kept beside it.
    """
    shown: dict[str, str] = {}
    for name, value in session.metadata.items():
        if isinstance(value, str) and name not in _NAMES_OF_OURS and not name.startswith(OWN_METADATA):
            shown[name.removeprefix(_ESCAPE)] = value
    return shown


def _changes(session: Session, wanted: dict[str, str]) -> dict[str, Any]:
    """What makes this a conversation's metadata."""
    changes: dict[str, Any] = {}
    for name in metadata_of(session):
        is_own = name in session.metadata and _own_name(name) == name
        changes[name if is_own else f"{_ESCAPE}{name}"] = None
    for name, value in wanted.items():
        changes[_own_name(name)] = value
    return changes


def _own_name(name: str) -> str:
    is_ours = name in _NAMES_OF_OURS or name.startswith((OWN_METADATA, _ESCAPE))
    return f"{_ESCAPE}{name}" if is_ours else name


# --- items -----------------------------------------------------------------------------------------------------------


class CreateItemsRequest(msgspec.Struct, frozen=True):
    """New items, and how often the client has asked already."""

    conversation_id: str
    body: CreateItems
    idempotency_key: str | None = None
    retry_count: str | None = None


@operation("POST", ITEMS, CreateItemsRequest, ItemList, openai=True)
async def create_items(context: Context, request: CreateItemsRequest) -> ItemList:
    """Add items to the end of a conversation, all or none, and reply when they are acknowledged.

    A repeated request adds nothing again.
    """
    key = checked_idempotency_key(request.idempotency_key)
    session = await find_conversation(context, request.conversation_id)
    added = await add_items(
        session,
        request.body.items,
        client=context.caller.name,
        is_repeated=is_repeated(request.retry_count),
        idempotency_key=key,
    )
    return ItemList.holding(added)


class ListItems(msgspec.Struct, frozen=True):
    """A page.

    Attributes:
        after: behind the item of this id.
        limit: at most this many; by default as many as fit in a page.
        order: the newest first, or the oldest.
    """

    conversation_id: str
    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = MAX_PAGE
    order: Literal["asc", "desc"] = "desc"


@operation("GET", ITEMS, ListItems, ItemList, openai=True)
async def list_items(context: Context, request: ListItems) -> Stream:
    """A page of a conversation's items, the newest first unless the order is `asc`."""
    session = await find_conversation(context, request.conversation_id)
    is_desc = request.order == "desc"
    after = await _item(session, request.after, oldest=is_desc) if request.after else None  # pages come to an end

    async def read() -> tuple[dict[str, Any], Iterable[bytes]]:
        found, more = await page_of_items(session, after=after, limit=request.limit, newest_first=is_desc)
        page = ItemList.holding([one.item for one in found], has_more=more)
        items, page.data = page.data, []
        about = msgspec.to_builtins(page)
        del about["data"]
        return about, map(encoded, items)

    return large_reply(context, "data", read)


class OneItem(OneConversation, frozen=True):
    """A request about one item."""

    item_id: str


@operation("GET", f"{ITEMS}/{{item_id}}", OneItem, msgspec.Raw, openai=True)
async def retrieve_item(context: Context, request: OneItem) -> msgspec.Raw:
    """One item of a conversation."""
    session = await find_conversation(context, request.conversation_id)
    return msgspec.Raw(encoded((await _item(session, request.item_id)).item))


class DeleteItem(OneItem, frozen=True):
    """Which item, and how often the client has asked already."""

    retry_count: str | None = None


@operation("DELETE", f"{ITEMS}/{{item_id}}", DeleteItem, Conversation, openai=True)
async def delete_item(context: Context, request: DeleteItem) -> Conversation:
    """Take an item out of a conversation, wherever it stands; the reply is the conversation.

    The conversation goes on without it; the transcript keeps it, on the branch that is left.
    """
    session = await find_conversation(context, request.conversation_id)
    found = await find_item(session, request.item_id)
    if found is None and not is_repeated(request.retry_count):
        raise not_found("Item", request.item_id)
    for _ in range(ATTEMPTS):
        if found is None:
            return conversation_reply(session)
        left = [item for place, item in enumerate(items_of(found.entry)) if place != found.place]
        with suppress(EntryNotFound, LeafMoved):
            await session.tree.replace(found.entry.id, to_messages(left))
            return conversation_reply(session)
        found = await find_item(
            session, request.item_id
        )  # another request was first, and what it left is elsewhere now
    raise contended()


async def _item(session: Session, item_id: str, *, oldest: bool = False) -> FoundItem:
    found = await find_item(session, item_id, oldest=oldest)
    if found is None:
        raise not_found("Item", item_id)
    return found


def is_repeated(retry_count: str | None) -> bool:
    """Whether a client says that it asked before and got no answer."""
    return (retry_count or "0").strip() not in ("", "0")


# --- adding ----------------------------------------------------------------------------------------------------------


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
        RequestError: an item is none, its id is that of another item (400), it refers to one that is missing (404), or
            the key came with other items before (409).
        StoreFull, StoreUnavailable, InvalidMessage, UnsavedLimit, SessionDeleted: as for `Session.add_messages`.
    """
    check_items(items)
    adding = _adding.setdefault(session.journal, _Adding())
    async with adding.lock:
        if idempotency_key is not None and (known := await _known(session, idempotency_key, items)) is not None:
            return known
        digest = hashlib.sha256(msgspec.json.encode((client, items), order="sorted")).digest()
        now = session.journal.now()
        if is_repeated and (before := await _added_before(adding.last, session, items, digest, now)) is not None:
            return before
        adding.last = _Last(digest, now)
        key = None if idempotency_key is None else stored_key("items", idempotency_key)
        return await _add_new(session, items, adding.last, key)


async def _add_new(session: Session, items: Sequence[Item], last: _Last, key: str | None) -> list[Item]:
    """Append what is not there yet; give all of it."""
    for _ in range(ATTEMPTS):
        sequence = session.last_sequence
        given_ids = _given_ids(items)
        there = await find_items(session, given_ids)
        new = _new_items(items, there)
        await session.journal.home.committer.check_store()
        if key is not None and (known := session.journal.find_duplicate(key)) is not None:
            return await _appended_with(session, known, items)  # the request came to another process meanwhile
        unit = session.unit()
        for place, message in enumerate(to_messages(new)):
            unit.add_message(message, idempotency_key=key if place == 0 else None)
        try:
            if new:
                unit.accept(if_sequence=sequence if given_ids else None)
                last.entry_ids = [entry.id for entry in unit.entries]
            await unit.saved()
        except LeafMoved:  # another message came first, perhaps the same one
            last.entry_ids = None
            continue
        if unit.known is not None:  # the request came to another process before
            return await _appended_with(session, unit.known, items)
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
    """The items that an earlier, equal request added; None: no such request is known.

    Where this process does not know of the last request, it is the newest items, if they are these and just added.
    """
    if last is None or last.digest != digest:  # the first one came to another process, or to this one before its start
        await session.saved()
        found, _ = await page_of_items(session, after=None, limit=len(items), newest_first=True)
        newest = found[::-1]
        is_same = len(newest) == len(items) and all(
            now - there.entry.timestamp <= REMEMBERED and same_item(there.item, item, but_for_id=item.get("id") is None)
            for there, item in zip(newest, items, strict=True)
        )
        return [one.item for one in newest] if is_same else None
    if last.entry_ids is None or now - last.moment > REMEMBERED:
        return None
    await session.saved()
    try:
        entries = [await session.tree.get_entry(entry_id) for entry_id in last.entry_ids]
    except EntryNotFound:  # another process was first with what it demanded
        return None
    there = await find_items(session, _given_ids(items))
    return _in_order(items, there, [one for entry in entries for one in items_of(entry)])


async def _known(session: Session, idempotency_key: str, items: Sequence[Item]) -> list[Item] | None:
    """What became of these items when they came with this key before; None: they did not."""
    known = await session.journal.find_by_key(stored_key("items", idempotency_key))
    if known is not None:
        return await _appended_with(session, known, items)
    former = session.journal.find_duplicate(idempotency_key)  # earlier versions stored the key as it came, as others do
    if former is not None:
        with suppress(RequestError, EntryNotFound):
            return await _appended_with(session, former, items)
    return None


async def _appended_with(session: Session, first: Entry, items: Sequence[Item]) -> list[Item]:
    """What became of these items, of which the first that was new is in this entry; acknowledged.

    Raises:
        RequestError: they are others than those that were appended (409), or one refers to an item that is gone (404).
    """
    await session.saved()
    entry = await session.tree.get_entry(first.id)
    stored = await session.tree.read_after(entry.sequence - 1, len(items))
    added = deque(found.item for one in stored for found in items_within(one))
    there = await find_items(session, _given_ids(items))
    count, shown = len(added), list[Item]()
    for item in items:
        item_id = item.get("id")
        before = there.get(item_id or "")
        if item.get("type") == REFERENCE:
            if before is None:
                raise not_found("Item", str(item_id))
            shown.append(before.item)
        elif added and item_id in (None, added[0]["id"]) and same_item(added[0], item, but_for_id=item_id is None):
            shown.append(added.popleft())
        elif before is not None and same_item(before.item, item):
            shown.append(before.item)
        else:
            raise key_taken("other items")
    if len(added) == count:
        raise key_taken("other items")
    return shown


OPERATIONS = (
    create_conversation,
    retrieve_conversation,
    update_conversation,
    delete_conversation,
    create_items,
    list_items,
    retrieve_item,
    delete_item,
)
