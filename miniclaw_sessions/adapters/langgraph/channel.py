"""The channel of messages in the transcript: stored as references to message entries, each time only what was added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol

from miniclaw_sessions.adapters.langgraph.index import Channel, Index, StoredMessage
from miniclaw_sessions.adapters.langgraph.messages import (
    Known,
    compare,
    digest_of,
    fresh,
    new_at_the_end,
    offered,
    shown_to_others,
)
from miniclaw_sessions.adapters.langgraph.reading import Reading
from miniclaw_sessions.adapters.langgraph.records import MessageList, Reference, Typed
from miniclaw_sessions.errors import StoreCorrupt
from miniclaw_sessions.protocol.encoding import encode_message
from miniclaw_sessions.protocol.messages import Message

_ENTRY_BYTES = 1_024
"""What an entry has beside its message, at most."""


class Said(NamedTuple):
    """A version of a channel as it is appended.

    Attributes:
        messages: what the record says of it.
        said: what the graph said, for message entries in front of the record.
        values: what no message entry can hold, behind the other values of the record.
        known: of each message; the ids of those that are being said are not known yet.
    """

    messages: MessageList
    said: list[Message]
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
    """Reads and writes the versions of one channel of messages.

    Args:
        serde: for what a message entry cannot hold.
        limit: how many bytes an entry may have.
    """

    def __init__(self, serde: SerializerProtocol, limit: int) -> None:
        self._serde = serde
        self._limit = limit

    async def load(self, reading: Reading, index: Index, channel: Channel) -> list[BaseMessage]:
        """The messages of a version, as the graph stored them.

        Raises:
            StoreCorrupt: some of them are missing.
            StoreUnavailable: the store cannot be read.
        """
        stored = index.resolve(channel)
        if stored is None:
            raise StoreCorrupt(_MISSING)
        loaded = await self._loaded(reading, index, stored)
        index.known = (channel, [known for _, known in loaded])
        return [message for message, _ in loaded]

    async def _loaded(
        self, reading: Reading, index: Index, stored: Sequence[StoredMessage]
    ) -> list[tuple[BaseMessage, Known]]:
        records = await reading.records({value.place for _, value in stored if value is not None})
        places = {id_: index.messages.get(id_, 0) for id_, value in stored if value is None and id_ is not None}
        whole = await reading.messages(places)
        loaded: list[tuple[BaseMessage, Known]] = []
        try:
            for entry_id, value in stored:
                if value is None:
                    message, known = whole[entry_id or ""]
                    loaded.append((fresh(message), known))
                else:
                    message = self._serde.loads_typed(records[value.place][value.number])
                    loaded.append((message, Known(digest_of(message), entry_id, is_whole=False)))
        except (KeyError, IndexError):
            raise StoreCorrupt(_MISSING) from None
        return loaded

    async def offer(
        self, reading: Reading, index: Index, name: str, before: Sequence[BaseMessage], *, until: int | None = None
    ) -> list[BaseMessage]:
        """What others said on the current branch that no graph has taken up.

        Args:
            reading: of the session.
            index: brought up to its end.
            name: of the channel.
            before: the messages that the graph has.
            until: only what stands before this place.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        new = [id_ for id_ in index.new_messages("", name) if until is None or index.messages[id_] < until]
        entries = await reading.entries({index.messages[id_] for id_ in new})
        given = offered(entries, before)
        index.offered = [known for _, known in given]
        return [message for message, _ in given]

    async def said(
        self, reading: Reading, index: Index, channel: Channel, messages: Sequence[BaseMessage], number: int
    ) -> Said:
        """How a new version is stored.

        Args:
            reading: of the session.
            index: brought up to its end.
            channel: the new version.
            messages: its value.
            number: that of the record's next value.
        """
        base = index.newest_list(channel[0], channel[1])
        if base is not None and index.known[0] != base:
            await self.load(reading, index, base)
        before = index.known[1] if base is not None else ()
        digests = [digest_of(message) for message in messages]
        keep, found = compare(digests, before, index.offered)
        new_from = new_at_the_end(found)
        known = list(before[:keep])
        references: list[Reference] = []
        said: list[Message] = []
        values: list[Typed] = []
        for place, one in enumerate(found):
            message, entry_id, is_whole, says = messages[keep + place], None, False, None
            if one is not None:
                _, entry_id, is_whole = one
            elif place >= new_from and (shown := self._shown(message)) is not None:
                told, is_whole = shown
                says = len(said)
                said.append(told)
            value = None
            if not is_whole:
                value = number + len(values)
                values.append(self._serde.dumps_typed(message))
            references.append(Reference(entry=entry_id, said=says, value=value))
            known.append(Known(digests[keep + place], entry_id, is_whole))
        version = MessageList(
            channel=channel[1],
            version=channel[2],
            base=base[2] if base is not None and keep else None,
            keep=keep,
            add=tuple(references),
            said=len(said),
            until=index.taken_until(channel, {reference.entry for reference in references}),
        )
        return Said(version, said, values, known)

    def _shown(self, message: BaseMessage) -> tuple[Message, bool] | None:
        """A graph's message for the others, and whether that is all of it; None where no entry can hold it."""
        shown = shown_to_others(message)
        if shown is None or len(encode_message(shown[0])) + _ENTRY_BYTES > self._limit:
            return None  # a value may have any size
        return shown


_MISSING = "messages of a checkpoint are missing from the transcript; choose an older one by its checkpoint_id"
