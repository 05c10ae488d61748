"""Reading entries by their places: what was read last is held, for the next step reads nearly the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Generic, NamedTuple, TypeVar

import msgspec
from langchain_core.messages import BaseMessage

from miniclaw_sessions.adapters.chats import Chat
from miniclaw_sessions.adapters.langchain import as_langchain
from miniclaw_sessions.adapters.langgraph.records import Place, Typed, values_of
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.stores.reading import readable

K = TypeVar("K")
V = TypeVar("V")

_encoder = msgspec.msgpack.Encoder(enc_hook=repr)


class Known(NamedTuple):
    """A message that a graph was given, or has stored.

    Attributes:
        digest: differs from every other message's.
        entry_id: the session's entry of it, or from which it was made; None: no other framework sees it.
        is_whole: whether the entry holds all of it.
        message_id: the framework's own id of it.
    """

    digest: bytes
    entry_id: str | None
    is_whole: bool
    message_id: str | None


def digest_of(message: BaseMessage) -> bytes:
    """16 bytes that differ when two messages differ in class, id or anything that they say."""
    fields = {**message.__dict__, **(message.__pydantic_extra__ or {}), "": type(message).__qualname__}
    try:
        encoded = _encoder.encode(fields)
    except (TypeError, ValueError, OverflowError):
        encoded = repr(sorted(fields.items())).encode(errors="surrogatepass")
    return blake2b(encoded, digest_size=16).digest()


class Recent(Generic[K, V]):
    """What was read last, up to a size.

    Args:
        limit: how large everything in it may be together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._size = 0

    def get(self, key: K) -> V | None:
        """What was put there, if it is still held."""
        found = self._held.get(key)
        if found is None:
            return None
        self._held.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Hold something; what was used longest ago goes for it."""
        if key in self._held:
            self._size -= self._held.pop(key)[1]
        self._held[key] = value, size
        self._size += size
        while self._size > self._limit:
            self._size -= self._held.popitem(last=False)[1][1]


class Memory:
    """What was read last from all sessions.

    Args:
        limit: how many bytes of records, and how many of messages, are held.
    """

    def __init__(self, limit: int) -> None:
        self.records: Recent[tuple[str, Place], list[Typed]] = Recent(limit)
        self.messages: Recent[tuple[str, str], tuple[BaseMessage, Known]] = Recent(limit)


class Reading:
    """The entries of one session.

    Args:
        chat: whose entries.
        incarnation: which session of that name it is.
        memory: what was read last.
    """

    def __init__(self, chat: Chat, incarnation: str, memory: Memory) -> None:
        self._chat = chat
        self._memory = memory
        self._incarnation = incarnation

    async def records(self, places: Collection[Place]) -> dict[Place, list[Typed]]:
        """The values of the records at these places; one that is damaged is left out.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        held = self._memory.records
        found = {place: held.get((self._incarnation, place)) for place in places}
        missing = [place for place, values in found.items() if values is None]
        sequences = {each for place in missing for each in range(place.sequence - place.pieces, place.sequence + 1)}
        stored = await self._chat.read_at(sequences) if sequences else {}
        for place in missing:
            values = found[place] = values_of(place, stored)
            if values is not None:
                self.remember(place, values)
        return {place: values for place, values in found.items() if values is not None}

    def remember(self, place: Place, values: list[Typed]) -> None:
        """Hold what a record has, so that it need not be read."""
        size = sum(len(value) for _, value in values) + 200
        self._memory.records.put((self._incarnation, place), values, size)

    async def messages(self, places: Mapping[str, int]) -> dict[str, tuple[BaseMessage, Known]]:
        """Message entries as LangChain has them, by id, with what is known of them; not to be changed.

        Args:
            places: of the entries, by id.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        held, incarnation = self._memory.messages, self._incarnation
        found: dict[str, tuple[BaseMessage, Known]] = {}
        for entry_id in places:
            if (known := held.get((incarnation, entry_id))) is not None:
                found[entry_id] = known
        missing = {place for entry_id, place in places.items() if entry_id not in found}
        for entry, size in (await self._entries(missing)).values():
            message = as_langchain(entry.message)
            found[entry.id] = self.remember_message(entry.id, message, size)
        return found

    def remember_message(self, entry_id: str, message: BaseMessage, size: int) -> tuple[BaseMessage, Known]:
        """Hold a message entry in LangChain's form, so that it need not be read; no caller may change the message."""
        if message.id is None:
            message.id = entry_id
        held = message, Known(digest_of(message), entry_id, is_whole=True, message_id=message.id)
        self._memory.messages.put((self._incarnation, entry_id), held, size + 200)
        return held

    async def entries(self, sequences: Collection[int]) -> list[MessageEntry]:
        """The message entries at these places, in order; what is missing is left out.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        found = await self._entries(sequences)
        return [found[sequence][0] for sequence in sorted(found)]

    async def _entries(self, sequences: Collection[int]) -> dict[int, tuple[MessageEntry, int]]:
        found: dict[int, tuple[MessageEntry, int]] = {}
        there = await self._chat.read_at(sequences)
        for entry in readable(stored for sequence, stored in there.items() if sequence in sequences):
            if isinstance(entry, MessageEntry):
                found[entry.sequence] = entry, len(there[entry.sequence].encoded)
        return found
