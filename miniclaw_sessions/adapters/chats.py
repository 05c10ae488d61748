"""The session interface of the adapters, the same whether this process holds the sessions or a daemon does.

`chat_of` takes a session of a `SessionManager` or one of a client (`miniclaw_sessions.connect`), `chats_of` the
manager or the client itself. An adapter is written against `Chat` and `Chats` and does not know which it has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Protocol

from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.history.branch import Branch, BranchCollector
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.encoding import message_to_dict
from miniclaw_sessions.core.protocol.entries import METADATA, Custom, Entry, MessageEntry
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.unit import Unit
from miniclaw_sessions.core.stores.base import StoredEntry, stored_entry
from miniclaw_sessions.core.stores.reading import close_together
from miniclaw_sessions.service.api.messages import key_of_entries
from miniclaw_sessions.service.api.shapes import (
    AppendedEntry,
    NewCustom,
    NewEntry,
    NewMessage,
    NewMetadata,
    SessionReply,
)
from miniclaw_sessions.service.client import Client, ClientSession

PAGE = 256
"""How many entries are read at a time."""


New = Message | NewCustom | NewMetadata
"""An entry to append. A message that is not a user's belongs to the turn of the one before it."""


class State(NamedTuple):
    """A session at one moment.

    Attributes:
        incarnation: what a deleted and recreated session does not share with its predecessor.
        last_sequence: of the newest entry.
        leaf_id: where the conversation goes on; None at the root.
        metadata: what was set.
    """

    incarnation: str
    last_sequence: int
    leaf_id: str | None
    metadata: Mapping[str, Any]


class Chat(Protocol):
    """One session. What is appended is acknowledged when the call returns.

    Attributes:
        session_id: its id.
        key: the pair (channel, chat_id).
    """

    session_id: str
    key: SessionKey

    async def state(self) -> State:
        """As it is now."""
        ...

    async def append(
        self,
        new: Sequence[New],
        *,
        if_leaf: str | None = None,
        one_turn: bool = False,
        idempotency_key: str | None = None,
    ) -> list[AppendedEntry]:
        """Append all of them or none.

        Args:
            new: in order.
            if_leaf: only if this is the leaf; the empty text stands for the root. None: any leaf.
            one_turn: whether all of the messages are one turn; else a user's begins another one.
            idempotency_key: of all of them. What was appended before is not appended again; then the list may be empty.

        Raises:
            LeafMoved: the leaf is another one; nothing was appended.
            InvalidMessage, StoreFull, StoreUnavailable, UnsavedLimit, SessionDeleted: as for `Session.add_messages`.
        """
        ...

    async def go_to(
        self, entry_id: str | None, *, then: Sequence[New] = (), if_leaf: str | None = None
    ) -> list[AppendedEntry]:
        """Go back to an entry, None is the root, and append something there; see `SessionTree.branch_with_entries`.

        Returns:
            What was appended.
        """
        ...

    async def replace(
        self,
        entry_id: str,
        messages: Sequence[Message],
        *,
        without: Collection[str] = (),
        if_leaf: str | None = None,
    ) -> None:
        """Let messages stand in an entry's place, and repeat what follows it; see `SessionTree.replace`."""
        ...

    async def clear(self) -> None:
        """Start over; the transcript keeps what was said."""
        ...

    async def fork(self, session_id: str) -> None:
        """Copy everything into a new session."""
        ...

    async def messages(self) -> list[Message]:
        """The current branch as a model sees it, not made legal: compacted parts as their summary."""
        ...

    def newest(self) -> list[Message]:
        """The newest messages that are in this process's memory; none where it does not hold the session."""
        ...

    async def branch(self) -> Branch:
        """The part of the current branch that a model sees, with the entries that are no messages."""
        ...

    def walk(self) -> AsyncIterator[Entry]:
        """The entries of the current branch, newest first."""
        ...

    async def read_after(self, sequence: int) -> list[StoredEntry]:
        """A page of the entries behind a place, oldest first."""
        ...

    async def read_at(self, sequences: Collection[int]) -> dict[int, StoredEntry]:
        """At least the entries at these places."""
        ...


class Chats(Protocol):
    """The sessions of a workspace.

    Attributes:
        clock: time and ids.
        max_message_bytes: how large an entry may be.
    """

    clock: Clock
    max_message_bytes: int

    async def get_or_create(self, key: SessionKey) -> Chat:
        """The session of this key, created if needed."""
        ...

    async def find(self, session_id: str) -> Chat:
        """The session with this id. Raises SessionNotFound if it does not exist."""
        ...

    async def use(self, key: SessionKey) -> Chat:
        """The session of this key; renews its time to live. Raises SessionNotFound if it does not exist."""
        ...

    async def ids(self, channel: str | None = None) -> list[str]:
        """The ids of all sessions, or of those of a channel."""
        ...

    async def delete(self, session_id: str) -> bool:
        """Delete a session with everything in it; whether there was one."""
        ...


def chat_of(session: Session | ClientSession) -> Chat:
    """A session as adapters use it."""
    return _HeldChat(session) if isinstance(session, Session) else _RemoteChat(session)


def chats_of(sessions: SessionManager | Client) -> Chats:
    """A manager, or a client, as adapters use it."""
    return _HeldChats(sessions) if isinstance(sessions, SessionManager) else _RemoteChats(sessions)


# --- held by this process --------------------------------------------------------------------------------------------


class _HeldChat(Chat):
    """A session of a manager of this process."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.session_id = session.session_id
        self.key = session.key

    async def state(self) -> State:
        session = self.session
        if session.journal.final_sequence != session.last_sequence:  # what others may still be before has no place yet
            await session.saved()
        return State(session.journal.incarnation, session.journal.final_sequence, session.leaf_id, session.metadata)

    async def append(
        self,
        new: Sequence[New],
        *,
        if_leaf: str | None = None,
        one_turn: bool = False,
        idempotency_key: str | None = None,
    ) -> list[AppendedEntry]:
        key = None if idempotency_key is None else key_of_entries(idempotency_key)
        unit = self.session.unit()
        if not await unit.repeats(key):
            _add(unit, new, one_turn=one_turn)
        return _appended(await unit.save(if_leaf=if_leaf))

    async def go_to(
        self, entry_id: str | None, *, then: Sequence[New] = (), if_leaf: str | None = None
    ) -> list[AppendedEntry]:
        tree = self.session.tree
        return _appended(await tree.branch_with_entries(entry_id, lambda unit: _add(unit, then), if_leaf=if_leaf))

    async def replace(
        self, entry_id: str, messages: Sequence[Message], *, without: Collection[str] = (), if_leaf: str | None = None
    ) -> None:
        await self.session.tree.replace(entry_id, messages, without=without, if_leaf=if_leaf)

    async def clear(self) -> None:
        self.session.clear()
        await self.session.saved()

    async def fork(self, session_id: str) -> None:
        await self.session.fork(session_id)

    async def messages(self) -> list[Message]:
        return await read_messages(self.session)

    def newest(self) -> list[Message]:
        return [entry.message for entry in newest_entries(self.session)]

    async def branch(self) -> Branch:
        return await self.session.tree.read_branch()

    def walk(self) -> AsyncIterator[Entry]:
        return self.session.tree.walk()

    async def read_after(self, sequence: int) -> list[StoredEntry]:
        return await self.session.tree.read_after(sequence, PAGE)

    async def read_at(self, sequences: Collection[int]) -> dict[int, StoredEntry]:
        return await self.session.tree.read_at(sequences)


def _add(unit: Unit, new: Sequence[New], *, one_turn: bool = False) -> None:
    for place, one in enumerate(new):
        if isinstance(one, Message):
            unit.add_message(one, continues=_continues(one, place, one_turn=one_turn))
        elif isinstance(one, NewCustom):
            unit.add_custom(one.custom_type, one.data)
        else:
            unit.add(Custom, custom_type=METADATA, data=one.metadata)


def _appended(entries: Sequence[Entry]) -> list[AppendedEntry]:
    return [AppendedEntry(id=entry.id, sequence=entry.sequence) for entry in entries]


class _HeldChats(Chats):
    """The sessions of a manager of this process."""

    def __init__(self, manager: SessionManager) -> None:
        self._manager = manager
        self.clock = manager.clock
        self.max_message_bytes = manager.settings.max_message_bytes

    async def get_or_create(self, key: SessionKey) -> Chat:
        return _HeldChat(await self._manager.get_or_create(*key))

    async def find(self, session_id: str) -> Chat:
        return _HeldChat(await self._manager.find(session_id))

    async def use(self, key: SessionKey) -> Chat:
        session = await self._manager.find(key.session_id)
        session.journal.checkpoint.touch()
        return _HeldChat(session)

    async def ids(self, channel: str | None = None) -> list[str]:
        return [summary.session_id for summary in await self._manager.list(channel=channel)]

    async def delete(self, session_id: str) -> bool:
        return await self._manager.delete(session_id)


# --- held by a daemon ------------------------------------------------------------------------------------------------


class _RemoteChat(Chat):
    """A session of a client. What was known of it when it was found is not asked for again by the first `state`."""

    def __init__(self, session: ClientSession, info: SessionReply | None = None) -> None:
        self.session = session
        self.session_id = session.session_id
        self.key = session.key
        self._info = info

    async def state(self) -> State:
        info, self._info = self._info or await self.session.info(), None
        return State(info.incarnation, info.entries, info.leaf_id, info.metadata)

    async def append(
        self,
        new: Sequence[New],
        *,
        if_leaf: str | None = None,
        one_turn: bool = False,
        idempotency_key: str | None = None,
    ) -> list[AppendedEntry]:
        wire = _on_wire(new, one_turn=one_turn)
        return (await self.session.append(wire, if_leaf=if_leaf, idempotency_key=idempotency_key)).entries

    async def go_to(
        self, entry_id: str | None, *, then: Sequence[New] = (), if_leaf: str | None = None
    ) -> list[AppendedEntry]:
        moved = await self.session.tree.branch_with_entries(entry_id, _on_wire(then), if_leaf=if_leaf)
        return moved.entries

    async def replace(
        self, entry_id: str, messages: Sequence[Message], *, without: Collection[str] = (), if_leaf: str | None = None
    ) -> None:
        await self.session.tree.replace(entry_id, messages, without=without, if_leaf=if_leaf)

    async def clear(self) -> None:
        await self.session.clear()

    async def fork(self, session_id: str) -> None:
        await self.session.fork(session_id)

    async def messages(self) -> list[Message]:
        return (await self.branch()).messages()

    def newest(self) -> list[Message]:
        return []

    async def branch(self) -> Branch:
        collector = BranchCollector()
        async with aclosing(self.session.tree.walk()) as entries:
            async for entry in entries:
                collector.feed(entry)
                if collector.has_enough:
                    break
        return collector.branch()

    def walk(self) -> AsyncIterator[Entry]:
        return self.session.tree.walk()

    async def read_after(self, sequence: int) -> list[StoredEntry]:
        return [stored_entry(entry) for entry in await self.session.read_after(sequence, limit=PAGE)]

    async def read_at(self, sequences: Collection[int]) -> dict[int, StoredEntry]:
        found: dict[int, StoredEntry] = {}
        for first, last in close_together(sequences, PAGE):
            page = await self.session.read_after(first - 1, limit=last - first + 1)
            found.update((entry.sequence, stored_entry(entry)) for entry in page)
        return found


class _RemoteChats(Chats):
    """The sessions of a client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.clock: Clock = SystemClock()
        self.max_message_bytes = SessionSettings().max_message_bytes

    async def get_or_create(self, key: SessionKey) -> Chat:
        return _RemoteChat(await self._client.get_or_create(*key))

    async def find(self, session_id: str) -> Chat:
        session = self._client.session(session_id)
        return _RemoteChat(session, await session.info())

    async def use(self, key: SessionKey) -> Chat:
        await self._client.find(key.session_id)
        return await self.get_or_create(key)

    async def ids(self, channel: str | None = None) -> list[str]:
        return [summary.session_id for summary in await self._client.list(channel=channel)]

    async def delete(self, session_id: str) -> bool:
        return await self._client.delete(session_id)


def _continues(message: Message, place: int, *, one_turn: bool) -> bool:
    """Whether a message belongs to the turn of the one before it."""
    return place > 0 if one_turn else not message.is_user


def _on_wire(new: Sequence[New], *, one_turn: bool = False) -> list[NewEntry]:
    """The same entries as a daemon takes them."""
    return [
        NewMessage(message=message_to_dict(one), continues=_continues(one, place, one_turn=one_turn))
        if isinstance(one, Message)
        else one
        for place, one in enumerate(new)
    ]


async def read_messages(session: Session) -> list[Message]:
    """The current branch as a model sees it, not made legal: compacted parts as their summary.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    messages, _ = await session.journal.reader.shown()
    return messages


def newest_entries(session: Session) -> list[MessageEntry]:
    """The newest messages that are in memory, as far as nothing is left out between them."""
    entries = session.entries()
    start = len(entries)
    while start and (start == len(entries) or entries[start].parent_id == entries[start - 1].id):
        start -= 1
    return [entry for entry in entries[start:] if entry.sequence >= session.journal.kept_from]
