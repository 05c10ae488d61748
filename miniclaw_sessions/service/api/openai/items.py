"""The items that an entry of a session is, each with an id of its own that never changes.

An item that a client gave is the same JSON that it gave, completed as the service completes it: text becomes a list of
parts, what can be under way has a status. An id that the client gave is kept; every other id is made of the entry's,
and so the entry is found by it. What came from elsewhere (a chat network, another framework) has items too.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import msgspec

from miniclaw_sessions.core.history.branch import shown_message
from miniclaw_sessions.core.history.context import as_seen_alone
from miniclaw_sessions.core.protocol.entries import COPY_OF, Entry, original_id
from miniclaw_sessions.core.protocol.messages import Part, ThinkingPart
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.journal import Journal
from miniclaw_sessions.core.session.searching import branches_of
from miniclaw_sessions.core.stores.base import StoredEntry, decode_stored
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.attached import without_words
from miniclaw_sessions.files.formats.codec import has_kept
from miniclaw_sessions.files.formats.openai_items import (
    KEPT,
    OF_AGENTS,
    WHOLE_CONTENT,
    WHOLE_ITEM,
    is_compaction,
    is_verbatim,
    to_items,
)
from miniclaw_sessions.service.api.openai.shapes import Item, bad_request

REFERENCE = "item_reference"
"""The type of what stands for an item that is there already."""

STREAMED_AS = "openai.item"
"""The key of a thinking part's `extra` under which the id of the item stands that it was streamed as."""

_PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "file_search_call": "fs",
    "web_search_call": "ws",
    "computer_call": "cu",
    "computer_call_output": "cuo",
    "code_interpreter_call": "ci",
    "image_generation_call": "ig",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
    "compaction": "cmp",
}
_WITH_STATUS = frozenset(
    {
        *("message", "function_call", "function_call_output", "file_search_call", "web_search_call"),
        *("image_generation_call", "computer_call", "computer_call_output", "tool_search_call", "tool_search_output"),
        *("program_output", "code_interpreter_call", "local_shell_call", "shell_call", "shell_call_output"),
        *("apply_patch_call", "apply_patch_call_output"),
    }
)
"""The types whose items always have a status."""

_FAKE_ID = "__fake_id__"  # the Agents SDK's, for models that give their items none
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_MADE_ID = re.compile(r"[a-z]+_(?:([0-9a-f]{32})|x((?:[0-9a-f]{2})+))(?:_[0-9]+)?")
_GIVEN_ID = re.compile(r"[!#-.0-\[\]-~]{1,200}")  # printable, without quotes, slashes and backslashes

PAGE_BYTES = 8 * 1024 * 1024
"""A page ends early that has so much in it: images may be large."""

_AT_ONCE = 128
_INDEXED_AT_ONCE = 1_024
_MARKS = tuple(b'"%s"' % name.encode() for name in (KEPT, WHOLE_ITEM, WHOLE_CONTENT, COPY_OF))
_IDS = re.compile(rb'"(?:id|%s)\\*":\s?\\*"([^"\\]{1,200})' % COPY_OF.encode())

Stretches = Sequence[tuple[int, int]]
"""The places of a branch, from the leaf to the root: first and last of each run."""


# --- reading ---------------------------------------------------------------------------------------------------------


def items_of(entry: Entry) -> list[Item]:
    """The items of an entry, in order; none where no model sees the entry."""
    message = shown_message(entry)
    if message is None:
        return []
    if len(sent := without_words(message.content)) < len(message.content):
        message = msgspec.structs.replace(message, content=sent)
    base = id_in_items(original_id(entry))
    if not (message.is_assistant or is_verbatim(message) or is_compaction(message)):
        whole = to_items(as_seen_alone(message))
    elif isinstance(message.content, str):
        whole = to_items([message])
    else:
        whole = to_items([msgspec.structs.replace(message, content=tuple(map(_as_reasoning, message.content)))])
    items = [item for item in cast("list[Any]", whole) if isinstance(item, dict)]  # a kept one may be anything
    if has_kept(message.extra, OF_AGENTS):
        items = [_without_stale_id(item) for item in items]
    return [completed(item, f"{base}_{place}" if place else base) for place, item in enumerate(items)]


def _without_stale_id(item: Item) -> Item:
    """An item of the Agents SDK without the id that some model gave it: many of them may have the same one.

    The SDK leaves them out itself before it adds items to a conversation.
    """
    is_kept = item.get("type", "message") not in ("message", "function_call", "function_call_output")
    return item if is_kept and item.get("id") != _FAKE_ID else {name: item[name] for name in item if name != "id"}


def _as_reasoning(part: Part) -> Part:
    """A part; what another service's model thought becomes an item of reasoning, as OpenAI's own is already."""
    if not isinstance(part, ThinkingPart) or has_kept(part.extra, KEPT) or not part.thinking.strip():
        return part
    fields: Item = {"summary": [], "content": [{"type": "reasoning_text", "text": part.thinking}]}
    item_id = (part.extra or {}).get(STREAMED_AS)
    return ThinkingPart(part.thinking, extra={KEPT: {"id": item_id, **fields} if is_given_id(item_id) else fields})


def completed(item: Item, base: str) -> Item:
    """An item as the service gives it back: with an id, and the fields that those of its type always have.

    Args:
        item: as it was given; it is not changed.
        base: what its id is made of, if it has none.
    """
    kind = item["type"] if isinstance(item.get("type"), str) else "message" if "role" in item else "item"
    given = {**item, "type": item.get("type") or kind}
    if not isinstance(item.get("id"), str) or not item["id"]:
        given["id"] = f"{_PREFIXES.get(kind, 'item')}_{base}"
    if kind in _WITH_STATUS and not item.get("status"):
        given["status"] = "completed"
    if kind == "message" and not isinstance(content := item.get("content"), list):
        part: Item = {"type": "input_text", "text": content}
        if item.get("role") == "assistant":
            part = {"type": "output_text", "text": content, "annotations": []}
        given["content"] = [part] if isinstance(content, str) else []
    return given


def encoded(item: Item) -> bytes:
    """An item as JSON; also one that was added in process and has numbers or texts that few readers take."""
    try:
        return msgspec.json.encode(item)
    except (OverflowError, UnicodeEncodeError):  # integers over 64 bits, half a surrogate pair
        return json.dumps(item).encode()


# --- ids -------------------------------------------------------------------------------------------------------------


def entry_id_within(item_id: str) -> str | None:
    """The id of the entry that an item's id is made of; None: it is a client's own."""
    if (found := _MADE_ID.fullmatch(item_id)) is None:
        return None
    digits, encoded = found.groups()
    if encoded is not None:
        return bytes.fromhex(encoded).decode("utf-8", "replace")
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def id_in_items(entry_id: str) -> str:
    """An entry's id as it stands in items': theirs are short, and of letters and digits."""
    return entry_id.replace("-", "") if _UUID.fullmatch(entry_id) else f"x{entry_id.encode().hex()}"


# --- what clients send -----------------------------------------------------------------------------------------------


def check_items(items: Sequence[Item], name: str = "items") -> None:
    """Refuse what no conversation can hold.

    Args:
        items: what a client sent.
        name: what the list is called in the request.

    Raises:
        RequestError: an item has no type and is no message, or has an id that is none (400).
    """
    for place, item in enumerate(items):
        kind, param = item.get("type"), f"{name}[{place}]"
        if kind is not None and not isinstance(kind, str):
            raise bad_request(f"Invalid type for '{param}.type': expected a string.", f"{param}.type", "invalid_type")
        if (kind or "message") == "message" and not isinstance(item.get("role"), str):
            raise bad_request(
                f"Missing required parameter: '{param}.role'.", f"{param}.role", "missing_required_parameter"
            )
        if item.get("id") is None and kind == REFERENCE:
            raise bad_request(f"Missing required parameter: '{param}.id'.", f"{param}.id", "missing_required_parameter")
        if item.get("id") is not None and not is_given_id(item["id"]):
            raise bad_request(
                f"Invalid '{param}.id': an id is a text of 1 to 200 printable ASCII characters without quotes, spaces, "
                "slashes and backslashes.",
                f"{param}.id",
            )


def is_given_id(text: Any) -> bool:
    """Whether a client may give an item this id."""
    return isinstance(text, str) and _GIVEN_ID.fullmatch(text) is not None


def same_item(one: Item, other: Item, *, but_for_id: bool = False) -> bool:
    """Whether two items say the same, once both are completed."""
    hidden = {"id"} if but_for_id else set()
    first, second = completed(one, ""), completed(other, "")
    return {k: v for k, v in first.items() if k not in hidden} == {k: v for k, v in second.items() if k not in hidden}


# --- reading the current branch --------------------------------------------------------------------------------------


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
        limit: at most this many.
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
    """The places of a session where client-made ids stand. Some of them may not be an item's.

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
