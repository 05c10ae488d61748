"""What a session accepts, as bytes: it shares nothing with whoever gave it, and can be read again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeGuard

import msgspec

from miniclaw_sessions.protocol.encoding import (
    as_message,
    decode_entry,
    decode_message,
    encode_entry,
    encode_message,
    in_utc,
)
from miniclaw_sessions.protocol.entries import Entry, MessageEntry
from miniclaw_sessions.protocol.messages import Message, Role


class Encoded(NamedTuple):
    """An entry and its bytes, and where it is a message's, the message's."""

    entry: Entry
    encoded: bytes
    message: bytes | None = None


def encoded_once(entry: Entry) -> Encoded:
    """An entry as its own bytes say it: it shares nothing with whoever made it, and can be read again.

    Raises:
        InvalidMessage: it cannot be stored faithfully.
    """
    encoded = encode_entry(entry)
    own = decode_entry(encoded)
    return Encoded(own, encoded, encode_message(own.message) if isinstance(own, MessageEntry) else None)


def owned(message: Message | Mapping[str, Any], now: datetime) -> tuple[Message, bytes]:
    """A message as the session keeps it, with a time in UTC, and its bytes, which share nothing with the caller.

    Anything but a plain text is read back from its bytes, so that nothing is acknowledged that could not be read again,
    whatever types a caller put into it.

    Raises:
        InvalidMessage: it is no message, or cannot be stored faithfully.
    """
    if _is_bare(message):  # the usual case: a role and a text, and nothing else
        message = Message(message.role, message.content, now)
        return message, encode_message(message)
    message = as_message(message)
    moment = message.timestamp
    if moment is None:
        message = msgspec.structs.replace(message, timestamp=now)
    elif moment.tzinfo is not UTC:
        message = msgspec.structs.replace(message, timestamp=in_utc(moment))
    encoded = encode_message(message)
    role, content = message.role, message.content
    if type(content) is str and message == Message(role, content, message.timestamp):
        return message, encoded
    return decode_message(encoded), encoded


def _is_bare(message: object) -> TypeGuard[Message]:
    if type(message) is not Message:
        return False
    role, content = message.role, message.content
    return type(content) is str and type(role) is Role and message == Message(role, content)


def encoded_as_it_is(entry: Entry) -> Encoded:
    """An entry and its bytes, where nobody else has the entry."""
    message = encode_message(entry.message) if isinstance(entry, MessageEntry) else None
    return Encoded(entry, encode_entry(entry, message), message)


def timed(entry: Entry) -> Entry:
    """Every message that is kept has a time (document 004); one that came without has its entry's."""
    if isinstance(entry, MessageEntry) and entry.message.timestamp is None:
        message = msgspec.structs.replace(entry.message, timestamp=in_utc(entry.timestamp))
        return msgspec.structs.replace(entry, message=message)
    return entry
