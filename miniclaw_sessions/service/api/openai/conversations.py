"""OpenAI's Conversations: make, show, change and delete one, and add, list, show and delete its items.

A conversation is a session: every session can be asked for by its id, and its items are those of its current branch. A
new conversation is the session of channel `conv` and a chat id of 48 hexadecimal digits, so its id is `conv_...`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from miniclaw_sessions.core.protocol.entries import OWN_METADATA
from miniclaw_sessions.errors import (
    EntryNotFound,
    InvalidKey,
    LeafMoved,
    SessionDeleted,
    SessionNotFound,
    SessionsError,
)
from miniclaw_sessions.files.formats.openai_items import to_messages
from miniclaw_sessions.service.api.openai.adding import add_items
from miniclaw_sessions.service.api.openai.errors import ATTEMPTS, contended, not_found
from miniclaw_sessions.service.api.openai.items import check_items, encoded, items_of
from miniclaw_sessions.service.api.openai.reading import FoundItem, find_item, page_of_items
from miniclaw_sessions.service.api.openai.shapes import (
    MAX_PAGE,
    Conversation,
    ConversationDeleted,
    CreateConversation,
    CreateItems,
    ItemList,
    UpdateConversation,
)
from miniclaw_sessions.service.api.operation import Stream, checked_idempotency_key, large_reply, operation
from miniclaw_sessions.service.api.sessions import DeleteSession, delete_session

if TYPE_CHECKING:
    from miniclaw_sessions.core.session import Session
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
        RequestError: there is none (404).
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
    session = await context.find_or_create(f"{CHANNEL}_{_digits(context.caller.name, key)}")
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
        if not session.last_sequence:
            await context.manager.delete(session.session_id)  # a refused request makes nothing
        raise
    return conversation_reply(session)


def _digits(client: str, key: str | None) -> str:
    """What names a new conversation: always the same for a client's key."""
    return secrets.token_hex(24) if key is None else hashlib.sha256(f"{client} {key}".encode()).hexdigest()[:48]


class OneConversation(msgspec.Struct, frozen=True):
    """A request about one conversation."""

    conversation_id: str


@operation("GET", ONE, OneConversation, Conversation, openai=True)
async def retrieve_conversation(context: Context, request: OneConversation) -> Conversation:
    """One conversation, without its items."""
    return conversation_reply(await find_conversation(context, request.conversation_id))


class UpdateConversationRequest(msgspec.Struct, frozen=True):
    """What a conversation's metadata is to be."""

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
        changes[_kept_as(session, name)] = None
    for name, value in wanted.items():
        changes[_own_name(name)] = value
    return changes


def _own_name(name: str) -> str:
    is_ours = name in _NAMES_OF_OURS or name.startswith((OWN_METADATA, _ESCAPE))
    return f"{_ESCAPE}{name}" if is_ours else name


def _kept_as(session: Session, name: str) -> str:
    return name if name in session.metadata and _own_name(name) == name else f"{_ESCAPE}{name}"


# --- items -----------------------------------------------------------------------------------------------------------


class CreateItemsRequest(msgspec.Struct, frozen=True):
    """What is to be added, and how often the client has asked already."""

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
        limit: at most so many; by default as many as fit in a page.
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
