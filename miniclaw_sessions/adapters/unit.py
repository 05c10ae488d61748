"""What a framework's state needs of a session: entries that are accepted together, and entries read by their places.

A framework's checkpoint is several entries that make sense only as a whole, and finding its newest state must not look
at every entry. Both are done by sessions themselves; here an adapter is given the way there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, TypeVar, cast

import msgspec

from miniclaw_sessions.protocol.encoding import decode_entry, encode_entry
from miniclaw_sessions.protocol.entries import Custom, Entry, MessageEntry
from miniclaw_sessions.protocol.messages import Message
from miniclaw_sessions.session import Session
from miniclaw_sessions.stores.base import StoredEntry
from miniclaw_sessions.stores.branches import walk_up

E = TypeVar("E", MessageEntry, Custom)

PAGE = 256
"""How many entries are read at a time."""


class Unit:
    """Entries of one session that are accepted all together or not at all. One commit carries them.

    Each is made for its place when it is added: wait for nothing between the first of them and `save`.

    Attributes:
        session: whose entries they are.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._entries: list[Entry] = []

    def add_message(self, message: Message) -> MessageEntry:
        """A message; one that is not a user's belongs to the turn of the message before it."""
        if message.timestamp is None:
            message = msgspec.structs.replace(message, timestamp=self.session.now())
        return self._add(self._next(MessageEntry, message=message, continues=not message.is_user))

    def add_custom(self, custom_type: str, data: Mapping[str, Any]) -> Custom:
        """An entry that never reaches a model."""
        return self._add(self._next(Custom, custom_type=custom_type, data=dict(data)))

    def check(self) -> None:
        """Whether each of the entries could be accepted.

        Raises:
            InvalidMessage: one of them is too large.
        """
        for entry in self._entries:
            self.session._check_entry(entry, len(encode_entry(entry)))  # noqa: SLF001 - see the module's docstring

    async def save(self) -> None:
        """Accept the entries, and return when they are acknowledged: the store has committed them.

        Raises:
            LeafMoved: something was said in the session since the first was added; nothing was accepted.
            StoreFull, StoreUnavailable, InvalidMessage, UnsavedLimit, SessionDeleted: as for `Session.add_messages`.
        """
        self.session._services.committer.check_store()  # noqa: SLF001 - see the module's docstring
        self.session._append_all(self._entries)  # noqa: SLF001 - same
        await self.session.saved()

    def _next(self, kind: type[E], **fields: Any) -> E:
        return self.session._next(kind, self._entries, **fields)  # noqa: SLF001 - same

    def _add(self, entry: E) -> E:
        """Read back from its own bytes it shares nothing with the caller, and can be read again."""
        own = decode_entry(encode_entry(entry))
        self._entries.append(own)
        return cast("E", own)


async def walk_back(session: Session) -> AsyncIterator[Entry]:
    """The entries of the current branch, newest first; what is not asked for is not read.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    leaf_id, place = session.leaf_id, session._conversation.leaf_sequence  # noqa: SLF001 - see the module's docstring
    if leaf_id is not None:
        async for entry in walk_up(session._source(), session.session_id, leaf_id, place, []):  # noqa: SLF001 - same
            yield entry


async def read_after(session: Session, sequence: int, limit: int = PAGE) -> list[StoredEntry]:
    """The entries behind a place, oldest first, acknowledged or not.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    return await session._source().read(session.session_id, after=sequence, limit=limit)  # noqa: SLF001 - same


async def read_at(session: Session, sequences: Iterable[int]) -> dict[int, StoredEntry]:
    """The entries at these places; those that stand close together are read together.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    found: dict[int, StoredEntry] = {}
    wanted = sorted(set(sequences), reverse=True)
    while wanted:
        first = last = wanted.pop()
        while wanted and wanted[-1] < first + PAGE:
            last = wanted.pop()
        page = await read_after(session, first - 1, last - first + 1)
        found.update((stored.sequence, stored) for stored in page)
    return found
