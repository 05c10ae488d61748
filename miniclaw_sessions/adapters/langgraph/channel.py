"""The channel of messages in the transcript: stored as references to message entries, each time only what was added."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol

from miniclaw_sessions.adapters.langgraph.index import Channel, Index
from miniclaw_sessions.adapters.langgraph.messages import (
    Known,
    compare,
    digest_of,
    from_session,
    new_at_the_end,
    offered,
    shown_to_others,
)
from miniclaw_sessions.adapters.langgraph.records import MessageList, Place, Reference, Typed, read_records
from miniclaw_sessions.errors import InvalidMessage, StoreCorrupt
from miniclaw_sessions.protocol.encoding import decode_entry
from miniclaw_sessions.protocol.entries import MessageEntry
from miniclaw_sessions.session import Session
from miniclaw_sessions.session.unit import Unit


class MessagesChannel:
    """Reads and writes the versions of one channel of messages.

    Args:
        serde: for what a message entry cannot hold.
    """

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = serde

    async def load(self, session: Session, index: Index, channel: Channel) -> list[BaseMessage]:
        """The messages of a version, as the graph stored them.

        Raises:
            StoreCorrupt: some of them are missing.
            StoreUnavailable: the store cannot be read.
        """
        references = index.resolve(channel)
        if references is None:
            raise StoreCorrupt(_MISSING)
        places = {place for place, reference in references if reference.value is not None}
        records = await read_records(session, list(places))
        wanted = [reference.entry for _, reference in references if reference.value is None]
        entries = await _read_entries(session, index, [entry_id for entry_id in wanted if entry_id is not None])
        messages = [self._one(place, reference, records, entries) for place, reference in references]
        index.known = (
            channel,
            [
                Known(digest_of(message), reference)
                for message, (_, reference) in zip(messages, references, strict=True)
            ],
        )
        return messages

    def _one(
        self,
        place: Place,
        reference: Reference,
        records: dict[Place, list[Typed]],
        entries: dict[str, MessageEntry],
    ) -> BaseMessage:
        try:
            if reference.value is not None:
                message: BaseMessage = self._serde.loads_typed(records[place][reference.value])
                return message
            return _converted(entries[reference.entry or ""])
        except (KeyError, IndexError):
            raise StoreCorrupt(_MISSING) from None

    async def offer(
        self, session: Session, index: Index, before: Sequence[BaseMessage], *, until: int | None = None
    ) -> list[BaseMessage]:
        """What others said on the current branch that no graph has taken up.

        Args:
            session: where.
            index: brought up to its end.
            before: the messages that the graph has.
            until: only what stands before this place.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        unseen = [id_ for id_, place in index.unseen_on_branch().items() if until is None or place < until]
        entries = await _read_entries(session, index, unseen)
        given = offered([entries[id_] for id_ in unseen if id_ in entries], before)
        index.offered = [
            Known(digest_of(message), Reference(entry=entry_id)) for message, entry_id in given if entry_id is not None
        ]
        as_they_are = {entry_id for _, entry_id in given}
        index.altered = tuple(id_ for id_ in unseen if id_ not in as_they_are)
        return [message for message, _ in given]

    async def add(
        self, index: Index, unit: Unit, channel: Channel, messages: Sequence[BaseMessage], values: list[Typed]
    ) -> MessageList:
        """Put a version into a unit: what the graph says at the end as message entries, too.

        Args:
            index: brought up to its end.
            unit: what it is appended with.
            channel: the channel's new version.
            messages: its value.
            values: those of the record; what no message entry can hold is added to them.
        """
        base = index.newest_list(channel)
        if base is not None and (index.known is None or index.known[0] != base):
            await self.load(Session.of(unit.journal), index, base)
        known = index.known[1] if base is not None and index.known is not None else []
        keep, found = compare(messages, known, index.offered)
        new_from = new_at_the_end(found)
        added: list[Known] = []
        for place, (message, one) in enumerate(zip(messages[keep:], found, strict=True)):
            entry_id, is_whole = _entry_of(one), one is not None and one.reference.value is None
            if one is None and place >= new_from:
                entry_id, is_whole = _say(unit, message)
            number = None
            if not is_whole:
                number = len(values)
                values.append(self._serde.dumps_typed(message))
            added.append(Known(digest_of(message), Reference(entry=entry_id, value=number)))
        index.known = (channel, [*known[:keep], *added])
        return MessageList(
            channel=channel[1],
            version=channel[2],
            base=base[2] if base is not None and keep else None,
            keep=keep,
            add=tuple(one.reference for one in added),
            seen=index.altered,
        )


def _entry_of(known: Known | None) -> str | None:
    return None if known is None else known.reference.entry


def _say(unit: Unit, message: BaseMessage) -> tuple[str | None, bool]:
    """Let a graph's message be a message of the session, too; its entry's id, and whether the entry holds all of it."""
    shown = shown_to_others(message)
    if shown is None:
        return None, False
    canonical, is_whole = shown
    try:
        unit.journal.check(canonical)
    except InvalidMessage:  # too large for a message; a value may have any size
        return None, False
    return unit.add_message(canonical).id, is_whole


def _converted(entry: MessageEntry) -> BaseMessage:
    message = from_session(entry.message)
    if message.id is None:
        message.id = entry.id  # as it was offered
    return message


async def _read_entries(session: Session, index: Index, entry_ids: Sequence[str]) -> dict[str, MessageEntry]:
    """The message entries with these ids; what is missing is left out."""
    places = {index.messages[id_]: id_ for id_ in entry_ids if id_ in index.messages}
    found: dict[str, MessageEntry] = {}
    for sequence, stored in (await session.tree.read_at(places)).items():
        if sequence not in places:
            continue
        try:
            entry = decode_entry(stored.encoded)
        except InvalidMessage:
            continue
        if isinstance(entry, MessageEntry):
            found[entry.id] = entry
    return found


_MISSING = "messages of a checkpoint are missing from the transcript; choose an older one by its checkpoint_id"
