"""Long-term memory for LangGraph: a `BaseStore` whose namespaces are sessions of ours.

    import asyncio

    from miniclaw_sessions import SessionManager
    from miniclaw_sessions.adapters.langgraph import MiniclawStore

    async def main() -> None:
        async with SessionManager("workspace") as manager:
            store = MiniclawStore(manager)  # builder.compile(store=store)
            await store.aput(("users", "ada"), "food", {"text": "Ada likes figs."})
            await store.aput(("users", "ada"), "city", {"text": "Ada lives in London."})
            for item in await store.asearch(("users",), query="where does Ada live?"):
                print(item.key, item.value["text"])

    asyncio.run(main())

A namespace is a session, and each put or deletion an entry of it that no model sees. What was put is on disk when the
call returns, and the entries of older values stay in the transcript. A namespace that nothing reads or writes expires
as every session does; `[sessions.retention.langgraph-store]` with `ttl_days = 0` keeps it for ever.

A search with a query finds items that have words of it, or words that begin like them, and puts rare words first. It
does not know meanings. It reads every namespace under the prefix once; what was read is held in memory, and brought up
to date before each answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

import msgspec
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    validate_op_namespace,
)

from miniclaw_sessions.adapters.chats import Chat, New, chats_of
from miniclaw_sessions.adapters.home_loop import HomeLoop, at_home, waiting
from miniclaw_sessions.adapters.langgraph.store_search import Found, matches, meets, ranked
from miniclaw_sessions.adapters.verbatim import as_shape, kept_verbatim, verbatim
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.entries import Custom, Entry
from miniclaw_sessions.core.protocol.json_values import parse_json
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.base import StoredEntry
from miniclaw_sessions.errors import InvalidKey, InvalidMessage, SessionNotFound
from miniclaw_sessions.files.formats.tool_calls import arguments_text
from miniclaw_sessions.service.api.shapes import NewCustom
from miniclaw_sessions.service.client import Client

ITEM = "langgraph_item"
"""The `custom_type` of the entries: an item's key, with its value, or without one where it was deleted."""

_MOST_HELD = 1_000  # namespaces in memory

Namespace = tuple[str, ...]


class MiniclawStore(BaseStore):
    """The memory of LangGraph's graphs in a workspace.

    Made on the event loop of the manager or client. The asynchronous methods may then be awaited on any loop, and the
    synchronous ones called from any other thread. It has no times to live and no embeddings.

    Args:
        sessions: where the memory is: a manager, or a client.
        channel: of the sessions that hold it; each channel is a store of its own.
    """

    def __init__(self, sessions: SessionManager | Client, *, channel: str = "langgraph-store") -> None:
        self.channel = channel
        self._chats = chats_of(sessions)
        self._home = HomeLoop()
        self._held: OrderedDict[Namespace, _Items] = OrderedDict()

    @at_home
    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Answer all reads as they are before the writes, then write: all of a namespace's items, or none.

        Of several writes of one key the last counts. It returns when the writes are acknowledged.

        Raises:
            InvalidNamespaceError: a namespace that LangGraph does not allow.
            InvalidMessage: a value is not JSON, or is larger than `sessions.max_message_bytes`.
            StoreFull, StoreUnavailable, UnsavedLimit: as for `Session.saved`; earlier namespaces may be written.
        """
        results: list[Result] = []
        writes: dict[Namespace, dict[str, PutOp]] = {}
        for op in ops:
            validate_op_namespace(op)
            if isinstance(op, PutOp):
                writes.setdefault(op.namespace, {})[op.key] = op
            results.append(await self._answer(op))
        new = {namespace: [_new(op) for op in puts.values()] for namespace, puts in writes.items()}
        for namespace, entries in new.items():
            await self._write(namespace, entries)
        return results

    batch = waiting(abatch)

    async def _answer(self, op: Op) -> Result:
        match op:
            case GetOp():
                found = (await self._items(op.namespace)).get(op.key)
                return None if found is None else found.as_item(Item)
            case SearchOp():
                return await self._search(op)
            case ListNamespacesOp():
                return await self._list(op)
            case PutOp():
                return None
            case _:
                raise ValueError(f"an operation that this store does not know: {type(op).__name__}")

    async def _search(self, op: SearchOp) -> list[SearchItem]:
        size = len(op.namespace_prefix)
        spaces = [one for one in await self._namespaces() if one[:size] == tuple(op.namespace_prefix)]
        items = [
            item
            for namespace in spaces
            for item in (await self._items(namespace)).values()
            if matches(item.value, op.filter or {})
        ]
        items.sort(key=lambda item: (item.namespace, item.key))
        items.sort(key=lambda item: item.updated_at, reverse=True)
        scored = ranked(items, op.query) if op.query else [(item, None) for item in items]
        return [item.as_item(SearchItem, score=score) for item, score in scored[op.offset : op.offset + op.limit]]

    async def _list(self, op: ListNamespacesOp) -> list[Namespace]:
        spaces = [
            one for one in await self._namespaces() if all(meets(one, rule) for rule in op.match_conditions or ())
        ]
        filled = {namespace[: op.max_depth] for namespace in spaces if await self._items(namespace)}
        return sorted(filled)[op.offset : op.offset + op.limit]

    async def _write(self, namespace: Namespace, entries: list[New]) -> None:
        is_deleting = all(isinstance(entry, NewCustom) and len(entry.data) == 1 for entry in entries)
        if is_deleting and not await self._items(namespace):
            return
        chat = await self._chats.get_or_create(_key(self.channel, namespace))
        await chat.append(entries)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _namespaces(self) -> list[Namespace]:
        found: list[Namespace] = []
        for session_id in await self._chats.ids(self.channel):
            try:
                key = SessionKey.parse(session_id)
            except InvalidKey:  # a long one is shortened
                try:
                    key = (await self._chats.find(session_id)).key
                except SessionNotFound:
                    continue
            if (namespace := _namespace(key)) is not None:
                found.append(namespace)
        return found

    async def _items(self, namespace: Namespace) -> dict[str, Found]:
        """The items of a namespace as they are now, by key; renews the session's time to live."""
        try:
            chat = await self._chats.use(_key(self.channel, namespace))
        except SessionNotFound:
            self._held.pop(namespace, None)
            return {}
        items = self._held.setdefault(namespace, _Items(namespace))
        self._held.move_to_end(namespace)
        while len(self._held) > _MOST_HELD:
            self._held.popitem(last=False)
        await items.catch_up(chat)
        return items.by_key


class _Item(msgspec.Struct):
    """An entry's data, as far as it is read here; without a value the item was deleted."""

    key: str
    index: list[str] | bool | None = None
    fields: dict[str, Any] | None = None


class _Items:
    """What a namespace holds, as far as its session was read."""

    def __init__(self, namespace: Namespace) -> None:
        self.by_key: dict[str, Found] = {}
        self._namespace = namespace
        self._incarnation = ""
        self._read = 0

    async def catch_up(self, chat: Chat) -> None:
        state = await chat.state()
        if state.incarnation != self._incarnation:
            self.by_key, self._incarnation, self._read = {}, state.incarnation, 0
        while self._read < state.last_sequence:
            page = await chat.read_after(self._read)
            for stored in page:
                if stored.sequence > self._read:  # else another call, meanwhile, was faster
                    self._read = stored.sequence
                    self._fold(_entry(stored))
            if not page:
                return

    def _fold(self, entry: Entry | None) -> None:
        if not isinstance(entry, Custom) or entry.custom_type != ITEM:
            return
        item = as_shape(entry.data, _Item, entry_id=entry.id)
        if item is None:
            return
        value = verbatim(entry.data)
        if value is None:
            self.by_key.pop(item.key, None)
            return
        before = self.by_key.get(item.key)
        created_at = entry.timestamp if before is None else before.created_at
        self.by_key[item.key] = Found(self._namespace, item.key, value, item.index, created_at, entry.timestamp)


def _entry(stored: StoredEntry) -> Entry | None:
    """The entry; None for a damaged one, which `check` reports."""
    try:
        return decode_entry(stored.encoded)
    except InvalidMessage:
        return None


def _new(op: PutOp) -> New:
    data: dict[str, Any] = {"key": op.key}
    if op.value is not None:
        index = {} if op.index is None else {"index": op.index}
        data |= {**kept_verbatim(_plain(op.value)), **index}
    return NewCustom(custom_type=ITEM, data=data)


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    return deepcopy(dict(value))  # what its owner changes later was not put


def _key(channel: str, namespace: Namespace) -> SessionKey:
    return SessionKey.of(channel, arguments_text(list(namespace)))


def _namespace(key: SessionKey) -> Namespace | None:
    """The namespace of a session; None for another session of the channel."""
    try:
        labels = parse_json(key.chat_id.encode())
    except InvalidMessage:
        return None
    is_one = isinstance(labels, list) and bool(labels) and all(isinstance(label, str) for label in labels)
    return tuple(labels) if is_one else None
