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
    """The identity of a session.

    `incarnation` is a random id. It distinguishes a session from an earlier, deleted one of the same key.
    """

    session_id: str
    key: SessionKey
    incarnation: str
    created_at: datetime


class StoredTurn(msgspec.Struct, frozen=True, gc=False):
    """The newest claimed turn of a session (`TurnClaim`): its number, its owner, and whether it is over."""

    fence: int
    owner: str
    is_over: bool


class StoredHead(msgspec.Struct, frozen=True, gc=False):
    """A session in the store, the sequence of its newest entry (0: none), and its newest claimed turn."""

    head: SessionHead
    last_sequence: int
    turn: StoredTurn | None = None


class StoredEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry as the store keeps it; `encoded` is its JSON.

    `idempotency_key` is the sender's own id of it, if one was given; `Store.find_by_idempotency_key` finds it.
    """

    sequence: int
    entry_id: str
    encoded: bytes
    idempotency_key: str | None = None


def stored_entry(entry: Entry, encoded: bytes | None = None) -> StoredEntry:
    """An entry as stores keep it.

    Args:
        entry: with its sequence.
        encoded: its JSON, if it is known already.

    Raises:
        InvalidMessage: the entry holds something that JSON cannot.
    """
    encoded = encode_entry(entry) if encoded is None else encoded
    return StoredEntry(entry.sequence, entry.id, encoded, entry.idempotency_key)


def idempotency_key_in(encoded: bytes) -> str | None:
    """The idempotency key in an entry's JSON; None without one, or if the bytes are not JSON."""
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
"""The bytes of an entry whose content is lost; it keeps its place."""


def damaged(stored: StoredEntry) -> StoredEntry:
    """The same entry, with bytes that no reader takes for an entry: they contradict their checksum."""
    return msgspec.structs.replace(stored, encoded=mark_damaged(stored.encoded))


def mark_damaged(data: bytes) -> bytes:
    """The bytes with a mark: no reader takes them for an entry, a session's file or something sealed."""
    return data if is_damaged(data) else _DAMAGED + data


def without_mark(encoded: bytes) -> bytes:
    """The bytes of a damaged entry without the mark that `damaged` put before them."""
    return encoded.removeprefix(_DAMAGED)


def is_damaged(encoded: bytes) -> bool:
    """Whether the bytes have the mark of `damaged`, or stand for a lost entry."""
    return encoded.startswith(_DAMAGED)


def decode_stored(stored: StoredEntry) -> Entry:
    """The decoded entry, with the sequence at which it is stored.

    Raises:
        InvalidMessage: it is damaged.
    """
    if is_damaged(stored.encoded):
        if stored.encoded == LOST:
            raise InvalidMessage("it was lost with a former store")
        raise InvalidMessage("it contradicts its checksum or its seal, or cannot be read")
    entry = decode_entry(stored.encoded)
    is_placed = entry.sequence == stored.sequence
    return entry if is_placed else msgspec.structs.replace(entry, sequence=stored.sequence)


class TurnClaim(msgspec.Struct, frozen=True, gc=False):
    """The claim of a process to answer a session, in a store that several processes write.

    An append that carries a claim is refused unless the claim holds. Each turn has a higher number than all turns
    before it. An owner takes a turn with a higher number while no other turn runs, and keeps it with the same number,
    so the same append may be sent again. If the owner stalls until its time is over and another process takes the turn,
    its own number is too low, and its late write is refused.

    Attributes:
        fence: the number of this turn.
        owner: a random id of the process that claims it.
        seconds: how long from now on no other owner may take it; 0 gives it back.
    """

    fence: int
    owner: str
    seconds: float


class Append(msgspec.Struct, frozen=True, gc=False):
    """New entries of one session, in order of sequence, which begin right after the stored ones.

    With `after_loss` entries are known to be lost: only then may there be gaps, before and between them. Without a
    `turn` they are taken whichever process answers the session now. With `must_exist` a session that is not there is
    not created, because it was deleted; only a `shared` store looks at that.
    """

    head: SessionHead
    entries: Sequence[StoredEntry]
    after_loss: bool = False
    turn: TurnClaim | None = None
    must_exist: bool = False


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """The state of a session up to one of its entries; `encoded` is the content of a session's file.

    `used_s` is how many seconds ago the session was used.
    """

    session_id: str
    incarnation: str
    sequence: int
    encoded: bytes
    used_s: float = 0.0


class StoredSession(msgspec.Struct, frozen=True, gc=False):
    """What is needed to go on with a session.

    Attributes:
        stored: its head, and where it ends.
        used_at: when it was last used, as far as the store knows.
        checkpoint: its newest checkpoint, if there is a sound one.
        entries: the first entries behind the checkpoint; others may follow.
    """

    stored: StoredHead
    used_at: datetime
    checkpoint: Checkpoint | None = None
    entries: Sequence[StoredEntry] = ()
