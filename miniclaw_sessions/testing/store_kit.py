"""What the checks of stores are made of: how they come by a store, and sessions and entries to put into it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.stores.base import SessionHead, Store, StoredEntry, stored_entry

StoreFactory = Callable[[], Store]
"""Makes an empty store, not yet opened."""

Reopen = Callable[[Store], Store]
"""Makes a store, not yet opened, with the content of a closed one."""

START = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)


class StoreMaker(NamedTuple):
    """How a check gets its stores.

    Attributes:
        new: makes an empty store, not yet opened; called once per check.
        reopen: makes a store, not yet opened, with the content of a closed one; None if the store forgets.
    """

    new: StoreFactory
    reopen: Reopen | None = None


StoreCheck = Callable[[StoreMaker], Coroutine[Any, Any, None]]
"""One promise: makes stores, uses them, and raises AssertionError if one breaks it."""


def sample_head(chat_id: str | int = 1, *, channel: str = "telegram", incarnation: str = "first") -> SessionHead:
    """A session's head for tests."""
    key = SessionKey.of(channel, chat_id)
    return SessionHead(key.session_id, key, incarnation, START)


def sample_entries(first: int, last: int, *, prefix: str = "entry", text: str = "hello") -> list[StoredEntry]:
    """Entries with the sequences from `first` to `last`, both included; each id is the prefix and the sequence."""
    return [sample_entry(sequence, f"{prefix}-{sequence}", text) for sequence in range(first, last + 1)]


def sample_entry(sequence: int, entry_id: str, text: str, idempotency_key: str | None = None) -> StoredEntry:
    """One entry for tests: a user's message with this text."""
    entry = MessageEntry(
        id=entry_id,
        parent_id=None,
        timestamp=START + timedelta(seconds=sequence),
        sequence=sequence,
        message=Message.user(text),
        idempotency_key=idempotency_key,
    )
    return stored_entry(entry)
