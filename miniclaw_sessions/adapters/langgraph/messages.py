"""A graph's channel of messages and the session's messages: one and the same, each said once.

A graph's messages are appended to the session, where every framework reads them; the checkpoint only refers to the
added ones. The messages of others are offered to the graph when it is loaded next, and referred to from the graph's
next checkpoint on.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple

import msgspec
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol

from miniclaw_sessions.adapters.langchain import KEPT, as_langchain, from_langchain
from miniclaw_sessions.adapters.langgraph.index import Channel, Index
from miniclaw_sessions.adapters.langgraph.reading import Known, Reading, digest_of
from miniclaw_sessions.adapters.langgraph.records import MessageList, Reference, Typed
from miniclaw_sessions.core.protocol.encoding import encode_message
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import InvalidMessage, StoreCorrupt
from miniclaw_sessions.files.formats.histories import BEFORE, traced

_ENTRY_BYTES = 1_024
"""What an entry has beside its message, at most."""

_MISSING = "messages of a checkpoint are missing from the transcript; choose an older one by its checkpoint_id"


def is_message_list(value: Any) -> bool:
    """Whether a channel's value is a list of LangChain's messages, and nothing else."""
    return isinstance(value, list) and all(isinstance(item, BaseMessage) for item in value)


class Said(NamedTuple):
    """A version of a channel as it is appended.

    Attributes:
        messages: what the record says of it.
        said: what the graph said, for message entries in front of the record.
        whole: of each of these, what LangChain has when it is read back, and its size; None: not what the graph said.
        values: what no message entry can hold, behind the other values of the record.
        known: of each message; the ids of those that are being said are not known yet.
    """

    messages: MessageList
    said: list[Message]
    whole: list[tuple[BaseMessage, int] | None]
    values: list[Typed]
    known: list[Known]

    def known_by(self, entry_ids: Sequence[str]) -> list[Known]:
        """What is known of the version's messages when those that were said have these ids."""
        added = [
            one if reference.said is None else one._replace(entry_id=entry_ids[reference.said])
            for one, reference in zip(self.known[self.messages.keep :], self.messages.add, strict=True)
        ]
        return [*self.known[: self.messages.keep], *added]


class MessagesChannel:
    """Reads and writes the versions of a session's channels of messages.

    Args:
        reading: of the session.
        index: of the session, brought up to its end.
        serde: for what a message entry cannot hold.
        limit: how many bytes an entry may have.
    """

    def __init__(self, reading: Reading, index: Index, serde: SerializerProtocol, limit: int) -> None:
        self._reading = reading
        self._index = index
        self._serde = serde
        self._limit = limit

    async def load(self, channel: Channel) -> list[BaseMessage]:
        """The messages of a version, as the graph stored them.

        Raises:
            StoreCorrupt: some of them are missing.
            StoreUnavailable: the store cannot be read.
        """
        stored = self._index.resolve(channel)
        if stored is None:
            raise StoreCorrupt(_MISSING)
        records = await self._reading.records({value.place for _, value in stored if value is not None})
        known_at = self._index.messages
        places = {id_: known_at.get(id_, 0) for id_, value in stored if value is None and id_ is not None}
        whole = await self._reading.messages(places)
        loaded: list[tuple[BaseMessage, Known]] = []
        try:
            for entry_id, value in stored:
                if value is None:
                    message, known = whole[entry_id or ""]
                    loaded.append((_fresh(message), known))
                else:
                    message = self._serde.loads_typed(records[value.place][value.number])
                    loaded.append((message, Known(digest_of(message), entry_id, is_whole=False, message_id=message.id)))
        except (KeyError, IndexError):
            raise StoreCorrupt(_MISSING) from None
        self._index.known = (channel, [known for _, known in loaded])
        return [message for message, _ in loaded]

    async def offer(self, name: str, before: Sequence[BaseMessage], *, until: int | None = None) -> list[BaseMessage]:
        """What others said on the current branch that no graph has taken up.

        Args:
            name: of the channel.
            before: the messages that the graph has.
            until: only what stands before this place.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        index = self._index
        new = [id_ for id_ in index.new_messages("", name) if until is None or index.messages[id_] < until]
        entries = await self._reading.entries({index.messages[id_] for id_ in new})
        given = _offered(entries, before)
        index.offered = [known for _, known in given]
        return [message for message, _ in given]

    async def said(self, channel: Channel, messages: Sequence[BaseMessage], number: int) -> Said:
        """How a new version is stored.

        Args:
            channel: the new version.
            messages: its value.
            number: that of the record's next value.
        """
        index = self._index
        base = index.newest_list(channel[0], channel[1])
        if index.offered is None or (base is not None and index.known[0] != base):
            held = await self.load(base) if base is not None else []
            if index.offered is None:  # it was let go while the graph ran: what others said is not the graph's
                await self.offer(channel[1], held)
        before = index.known[1] if base is not None else ()
        digests = [digest_of(message) for message in messages]
        keep, found = _compare(digests, before, index.offered or ())
        # what a graph puts among older messages was not said to anybody: only those behind all known ones are new
        new_from = max((place + 1 for place, one in enumerate(found) if one is not None), default=0)
        edited = {one.message_id for one in (*before[keep:], *(index.offered or ()))} - {None}
        known = list(before[:keep])
        references: list[Reference] = []
        said: list[Message] = []
        whole: list[tuple[BaseMessage, int] | None] = []
        values: list[Typed] = []
        for place, one in enumerate(found):
            message, entry_id, is_whole, says = messages[keep + place], None, False, None
            if one is not None:
                entry_id, is_whole = one.entry_id, one.is_whole
            elif place >= new_from and (shown := self._shown(message)) is not None:
                outward, back, size = shown
                if message.id in edited and outward.usage is not None:  # the message was paid for when it was said
                    outward, back = msgspec.structs.replace(outward, usage=None), None
                is_whole = back is not None
                says = len(said)
                said.append(outward)
                whole.append(None if back is None else (back, size))
            value = None
            if not is_whole:
                value = number + len(values)
                values.append(self._serde.dumps_typed(message))
            references.append(Reference(entry=entry_id, said=says, value=value))
            known.append(Known(digests[keep + place], entry_id, is_whole, message.id))
        version = MessageList(
            channel=channel[1],
            version=channel[2],
            base=base[2] if base is not None and keep else None,
            keep=keep,
            add=tuple(references),
            said=len(said),
            until=index.taken_until(channel, {one.entry_id for one in known}),
        )
        return Said(version, said, whole, values, known)

    def remember(self, said: Said, entry_ids: Sequence[str]) -> None:
        """Hold what was said, now that its entries have ids: the next step would else read it from the store."""
        for entry_id, whole in zip(entry_ids, said.whole, strict=True):
            if whole is not None:
                self._reading.remember_message(entry_id, *whole)

    def _shown(self, message: BaseMessage) -> tuple[Message, BaseMessage | None, int] | None:
        """`_shown_to_others` with its size; None if no entry can hold it."""
        shown = _shown_to_others(message)
        size = 0 if shown is None else len(encode_message(shown[0]))
        if shown is None or size + _ENTRY_BYTES > self._limit:
            return None  # a value may have any size
        return *shown, size


def _fresh(message: BaseMessage) -> BaseMessage:
    """A message that is the same and shares nothing that can be changed; its fields are JSON."""
    another = copy(message)
    for fields in (another.__dict__, another.__pydantic_extra__ or {}):
        for name, value in fields.items():
            if (kind := type(value)) is dict or kind is list:
                fields[name] = _fresh_json(value) if value else kind()
    return another


def _fresh_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _fresh_json(item) for name, item in value.items()}
    return [_fresh_json(item) for item in value] if isinstance(value, list) else value


def _shown_to_others(message: BaseMessage) -> tuple[Message, BaseMessage | None] | None:
    """A graph's message as the session keeps it, and what is read back if that is all of it.

    None where it cannot be kept.
    """
    try:
        (canonical,) = from_langchain([message])
    except InvalidMessage:  # a tool's artifact may be any object; what was said is JSON
        plain: dict[str, Any] = {"additional_kwargs": {}, "response_metadata": {}, "artifact": None}
        known = {name: value for name, value in plain.items() if name in type(message).model_fields}
        try:
            (canonical,) = from_langchain([message.model_copy(update=known)])
        except InvalidMessage:
            return None
        return canonical, None
    back = as_langchain(canonical)
    return canonical, back if back == message else None


def _offered(entries: Sequence[MessageEntry], before: Sequence[BaseMessage]) -> list[tuple[BaseMessage, Known]]:
    """What others said since, as a graph is given it: made legal, each message with an id that is always the same.

    Args:
        entries: the messages of others, oldest first.
        before: what the graph knows already; its last unanswered calls are answered, for others have gone on.
    """
    if not entries:
        return []
    # the graph's last reply and the results behind it, in the form for other frameworks
    last_reply = next((place for place in range(len(before) - 1, -1, -1) if before[place].type != "tool"), 0)
    latest = [shown[0] for message in before[last_reply:] if (shown := _shown_to_others(message)) is not None]
    start = [BEFORE] if before else []
    history = [*start, *latest, *(entry.message for entry in entries)]
    known = {id(message) for message in (*start, *latest)}
    entry_ids = {id(entry.message): entry.id for entry in entries}
    given: list[tuple[BaseMessage, Known]] = []
    last_id = (before[-1].id if before else None) or "beginning"
    used = [call["id"] or "" for message in before if isinstance(message, AIMessage) for call in message.tool_calls]
    for message, source in traced(history, KEPT, used_ids=used, open_calls=()):  # LangChain's own are not the graph's
        if id(message) in known:
            continue
        entry_id = None if source is None else entry_ids.pop(id(source), None)
        converted, is_whole = as_langchain(message), message is source
        if converted.id is None:
            converted.id = entry_id or f"{last_id}.{message.tool_call_id}"
        last_id = converted.id
        given.append((converted, Known(digest_of(converted), entry_id, is_whole, converted.id)))
    return given


def _compare(
    digests: Sequence[bytes], stored: Sequence[Known], given: Sequence[Known]
) -> tuple[int, list[Known | None]]:
    """How many messages are as they were stored, and for each message behind those what is known of it.

    Args:
        digests: of a channel's new value.
        stored: the version before it.
        given: what others said and the graph was given.
    """
    keep = 0
    while keep < min(len(digests), len(stored)) and stored[keep].digest == digests[keep]:
        keep += 1
    left: defaultdict[bytes, deque[Known]] = defaultdict(deque)
    for known in (*stored[keep:], *given):
        left[known.digest].append(known)
    return keep, [left[digest].popleft() if left[digest] else None for digest in digests[keep:]]
