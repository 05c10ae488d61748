"""The idempotency keys that appends are stored with: those of one operation are never those of another.

A message that is sent alone is stored with the sender's own key: a chat that is repeated finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import msgspec

from miniclaw_sessions.core.protocol.encoding import decode_entry, decode_message, encode_message
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import EntryNotFound, InvalidMessage
from miniclaw_sessions.service.api.operation import checked_idempotency_key

if TYPE_CHECKING:
    from miniclaw_sessions.core.session import Session

Appending = Literal["clear", "entries", "items", "label", "messages", "metadata", "move", "replace", "turn"]


def stored_key(appending: Appending, key: str) -> str:
    """The key that is stored, made of the sender's."""
    return f"{appending}:{key}"


def checked_key(appending: Appending, key: str | None) -> str | None:
    """The key that is stored, made of a request's; None where it has none.

    Raises:
        RequestError: it is empty or too long.
    """
    checked = checked_idempotency_key(key)
    return None if checked is None else stored_key(appending, checked)


async def key_in_use(session: Session, appending: Appending, key: str, messages: Sequence[Message]) -> str:
    """The key that these messages are stored with, the first of them: the sender's, if an earlier version stored them.

    Earlier versions stored it as it came. It may be another request's, so what was said is compared.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    own, journal = stored_key(appending, key), session.journal
    former = journal.find_duplicate(key)
    if former is None or journal.find_duplicate(own) is not None:
        return own
    with suppress(EntryNotFound, InvalidMessage):
        place = (await session.tree.get_entry(former.id)).sequence
        stored = await session.tree.read_after(place - 1, len(messages))
        entries = [decode_entry(one.encoded) for one in stored]
        said = [_words(entry.message) for entry in entries if isinstance(entry, MessageEntry)]
        if said == [_words(decode_message(encode_message(message))) for message in messages]:
            return key
    return own


def _words(message: Message) -> Message:
    """A message without what was added when it was stored."""
    return msgspec.structs.replace(message, timestamp=None, usage=None)
