"""What stores are given and give: heads of sessions, encoded entries, appends, claims of turns, checkpoints.

Plain values, and what a damaged entry looks like. `stores.base` has the contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from miniclaw_sessions.core.protocol.encoding import decode_entry, encode_entry
from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.errors import InvalidMessage


class SessionHead(msgspec.Struct, frozen=True, gc=False):
    """Who a session is.

    `incarnation` is a random id that tells a session from an earlier one of the same key that was deleted.
    """

    session_id: str
    key: SessionKey
    incarnation: str
    created_at: datetime


class StoredTurn(msgspec.Struct, frozen=True, gc=False):
    """The newest turn of a session that was claimed (`TurnClaim`): its number, whose it was, and whether it is over."""

    fence: int
    owner: str
    is_over: bool


class StoredHead(msgspec.Struct, frozen=True, gc=False):
    """A session in the store, the sequence of its newest entry (0: none), and the newest turn that was claimed."""

    head: SessionHead
    last_sequence: int
    turn: StoredTurn | None = None


class StoredEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry as the store keeps it; `encoded` is its JSON.

    `idempotency_key` is the sender's own id of it, where one was given, to be found by
    `Store.find_by_idempotency_key`.
    """

    sequence: int
    entry_id: str
    encoded: bytes
    idempotency_key: str | None = None


def stored_entry(entry: Entry, encoded: bytes | None = None) -> StoredEntry:
    """An entry as stores keep it.

    Args:
        entry: with its sequence.
        encoded: its JSON, where it is known already.

    Raises:
        InvalidMessage: it holds something that JSON cannot.
    """
    encoded = encode_entry(entry) if encoded is None else encoded
    return StoredEntry(entry.sequence, entry.id, encoded, entry.idempotency_key)


def idempotency_key_in(encoded: bytes) -> str | None:
    """The idempotency key that an entry's JSON states, or None; also when it is no JSON."""
    if _KEY_FIELD not in encoded:
        return None
    try:
        key = _states_key.decode(encoded).idempotency_key
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return key if isinstance(key, str) else None


class _StatesKey(msgspec.Struct, frozen=True):
    idempotency_key: Any = None


_KEY_FIELD = b'"idempotency_key"'
_states_key = msgspec.json.Decoder(_StatesKey)

_DAMAGED = b"damaged: "

LOST = b"damaged: lost"
"""The bytes of an entry of which nothing is left but that there was one; it keeps its place."""


def damaged(stored: StoredEntry) -> StoredEntry:
    """The same entry with bytes that nobody can take for what was said: they contradict their checksum."""
    return msgspec.structs.replace(stored, encoded=mark_damaged(stored.encoded))


def mark_damaged(data: bytes) -> bytes:
    """The same bytes, which nobody takes for an entry, a session's file, or something sealed any more."""
    return data if is_damaged(data) else _DAMAGED + data


def without_mark(encoded: bytes) -> bytes:
    """What is left of a damaged entry, without what `damaged` put before it."""
    return encoded.removeprefix(_DAMAGED)


def is_damaged(encoded: bytes) -> bool:
    """Whether `damaged` made these bytes, or they stand for a lost entry."""
    return encoded.startswith(_DAMAGED)


def decode_stored(stored: StoredEntry) -> Entry:
    """What an entry says, at its place.

    Raises:
        InvalidMessage: it is damaged.
    """
    if stored.encoded == LOST:
        raise InvalidMessage("it was lost with a former store")
    if is_damaged(stored.encoded):
        raise InvalidMessage("it contradicts its checksum or its seal, or cannot be read")
    entry = decode_entry(stored.encoded)
    is_placed = entry.sequence == stored.sequence
    return entry if is_placed else msgspec.structs.replace(entry, sequence=stored.sequence)


class TurnClaim(msgspec.Struct, frozen=True, gc=False):
    """Who answers a session, in a store that several processes write; an append that carries it is refused otherwise.

    The number of a turn is higher than that of every turn before it. A turn is taken with a higher number while no
    other one runs, and held with the same number by the same owner; so the same append may be sent again. Whoever stood
    still while his time ran out and somebody else took over has a number that is too low: his late write is refused.

    Attributes:
        fence: the number of this turn.
        owner: who has it; random, and nobody else's.
        seconds: how long from now on nobody else may take it; 0 gives it back.
    """

    fence: int
    owner: str
    seconds: float


class Append(msgspec.Struct, frozen=True, gc=False):
    """New entries of one session, in order of sequence, which begin right behind what is stored.

    `after_loss` says that entries are known to be lost: only then may there be gaps, before and between them. Without a
    `turn` they are taken whoever answers the session at this time. With `must_exist` a session that is not there is not
    made: somebody has deleted it. Only a `shared` store looks at that.
    """

    head: SessionHead
    entries: Sequence[StoredEntry]
    after_loss: bool = False
    turn: TurnClaim | None = None
    must_exist: bool = False


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """What a session's entries lead to up to one of them; `encoded` is what its file says elsewhere.

    `used_s` is how many seconds ago the session was used.
    """

    session_id: str
    incarnation: str
    sequence: int
    encoded: bytes
    used_s: float = 0.0


class StoredSession(msgspec.Struct, frozen=True, gc=False):
    """All that is needed of a session to go on with it.

    Attributes:
        stored: who it is, and where it ends.
        used_at: when it was last used, as far as the store knows.
        checkpoint: what it leads to up to a place, if that is there and sound.
        entries: the first of those behind the checkpoint; others may follow.
    """

    stored: StoredHead
    used_at: datetime
    checkpoint: Checkpoint | None = None
    entries: Sequence[StoredEntry] = ()
