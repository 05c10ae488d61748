"""Which chats of several networks are one person's: what their sessions record of it, as metadata.

The chat that joined records whose conversation it joined, and the other one who joined it, both with the same mark. A
link holds where both records have it. So one write makes a link and one ends it, either side can end it alone, a copy
of a session under another key is linked with nothing, and a deleted session takes its links along.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any, Literal

import msgspec

from miniclaw_sessions.core.manager.reading import Reader, find
from miniclaw_sessions.core.protocol.entries import METADATA, Custom, Entry
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import SessionNotFound

LINK = "chat.link"
"""The name of the metadata."""

_HOPS = 3  # a chat joins none that has joined one, but two gateways may be asked for both at the same moment


class Chat(msgspec.Struct, frozen=True):
    """A chat, by the key of its own session."""

    channel: str
    chat_id: str

    @property
    def session_id(self) -> str:
        """The id of its own session."""
        return SessionKey(self.channel, self.chat_id).session_id

    @classmethod
    def of(cls, session: Session) -> Chat:
        """The chat whose own session this is."""
        return cls(session.key.channel, session.key.chat_id)


class Code(msgspec.Struct, frozen=True):
    """A code that a chat gave out, until both chats have confirmed it or its time is over.

    Attributes:
        chat: the chat that gave it; another one is in a copy of the session.
        salt: random, in hexadecimal.
        digest: of the salt and the code, in hexadecimal; the code itself is recorded nowhere.
        mark: the mark that the link would have.
        until: when it expires.
        taken_by: the chat that used it.
    """

    chat: Chat
    salt: str
    digest: str
    mark: str
    until: datetime
    taken_by: Chat | None = None


class Joining(msgspec.Struct, frozen=True):
    """A chat's own side of a link with the conversation of another one.

    Attributes:
        chat: the other chat.
        mark: the link's mark.
        until: when the question expires.
        state: `asked`: its person was asked; `agreed`: he said yes; `parted`: he ended it.
    """

    chat: Chat
    mark: str
    until: datetime
    state: Literal["asked", "agreed", "parted"] = "asked"


class Joined(msgspec.Struct, frozen=True):
    """The other side: a chat that joined this one's conversation. An empty `mark`: it was parted."""

    chat: Chat
    mark: str


class Link(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a session records.

    Attributes:
        code: the code that its chat gave out.
        tries: when codes were tried in its chat, lately and in vain.
        tried_by: the person who tried, as his network names him; empty: it does not, or none did.
        joining: whose conversation its chat has joined, or is about to join.
        joined: who has joined its chat's conversation, or had.
    """

    code: Code | None = None
    tries: tuple[datetime, ...] = ()
    tried_by: str = ""
    joining: Joining | None = None
    joined: tuple[Joined, ...] = ()

    @property
    def chats(self) -> list[Chat]:
        """The chats that it is or was linked with, as far as this record says: it takes that of the other one, too."""
        own = [self.joining.chat] if self.joining is not None and self.joining.state != "asked" else []
        return [*own, *(one.chat for one in self.joined)]

    def as_metadata(self) -> dict[str, Any]:
        """The metadata that has it."""
        return {LINK: msgspec.to_builtins(self)}


def link_in(metadata: Any) -> Link:
    """The record in a session's metadata; an empty one without it, or where it cannot be understood."""
    with suppress(msgspec.ValidationError):
        return msgspec.convert(metadata.get(LINK) or {}, Link)
    return Link()


def link_of(session: Session) -> Link:
    """The record of a session."""
    metadata = session.journal.conversation.state.metadata
    return link_in(metadata) if LINK in metadata else _NONE


_NONE = Link()


def link_set_by(entry: Entry) -> Link:
    """The record that an entry gives its session; an empty one if it gives none."""
    return link_in(entry.data) if isinstance(entry, Custom) and entry.custom_type == METADATA else _NONE


def prefix_of(own_id: str) -> str:
    """The beginning of the ids of a chat's messages in another chat's session, by the id of the chat's own one."""
    return f"{own_id} "


def speaker_of(session: Session, key: str) -> Chat:
    """The chat that has said a message in a session, by the message's id there: one that joined it, or its own."""
    joined = (one.chat for one in link_of(session).joined)
    return next((one for one in joined if key.startswith(prefix_of(one.session_id))), Chat.of(session))


def holds(own: Session, other: Session) -> bool:
    """Whether a chat is linked with the conversation of another one: both of their sessions say so."""
    joining = link_of(own).joining
    if joining is None or joining.state != "agreed" or joining.chat != Chat.of(other):
        return False
    return Joined(Chat.of(own), joining.mark) in link_of(other).joined


async def brought_up(session: Session) -> None:
    """Return when a session that was just found has the record that is stored, whichever process wrote it.

    What waits for a store that others write, too, keeps the session from being read again; its commit brings it up.

    Raises:
        StoreError: it cannot be committed.
    """
    journal = session.journal
    if journal.newest_waiting is not None and journal.home.ownership(journal).is_contested:
        await session.saved()


async def conversation_of(reader: Reader, own: Session) -> Session | None:
    """The session that a chat is linked with; None: it is linked with none, and its own one is its conversation.

    Raises:
        StoreError: it cannot be read.
    """
    found = None
    for _ in range(_HOPS):
        joining = link_of(found or own).joining
        if joining is None or joining.state != "agreed":
            break
        try:
            other = await find(reader, joining.chat.session_id)
        except SessionNotFound:
            break
        await brought_up(other)
        if not holds(found or own, other):
            break
        found = other
    return found


async def linked_sessions(reader: Reader, session: Session) -> list[Session]:
    """The own sessions of all chats that are linked with this session's chat, and it: first the one they talk to.

    Raises:
        StoreError: one of them cannot be read.
    """
    if not link_of(session).chats:
        return [session]
    first = await conversation_of(reader, session) or session
    found = [first]
    for joined in link_of(first).joined:
        if joined.mark:
            with suppress(SessionNotFound):
                other = await find(reader, joined.chat.session_id)
                found += [other] if holds(other, first) else []
    return found
