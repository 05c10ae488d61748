"""The checksum of a stored row, and what becomes of one that contradicts it.

It is negative. Rows of schema 0002 have one of another form, which is not: they stay as they are.
"""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from miniclaw_sessions.core.stores.base import LOST, StoredEntry, damaged, is_damaged, without_mark
from miniclaw_sessions.errors import StoreCorrupt

_PRIME = 2**32 - 5
"""Whatever one bit of a row's numbers changes, it changes the remainder."""


def checksum_of(row: int, sequence: int, entry_id: str, key: str | None, encoded: bytes) -> int:
    """The CRC-32 of all that a row of `entries` says, where it is left out.

    Made for each append, so nothing is formatted: it begins with the numbers, and goes on with the id and the key.
    """
    start = crc32(entry_id.encode(), (row * 1_000_003 + sequence) % _PRIME)
    if key is not None:
        start = ~crc32(key.encode(), start)
    return ~crc32(encoded, start)


def is_sound(row: int, sequence: int, entry_id: str, key: str | None, encoded: bytes, checksum: int | None) -> bool:  # noqa: PLR0913, PLR0917 - the columns
    """Whether a row agrees with its checksum; rows of schema 0001 have none.

    Raises:
        TypeError, ValueError, AttributeError: not even the types of its columns are right.
    """
    if checksum is None:
        return True
    if checksum < 0:
        return checksum == checksum_of(row, sequence, entry_id, key, encoded)
    return checksum == crc32(encoded, crc32(f"{row} {sequence} {entry_id} {key or ''}".encode()))


def was_entry(entry: StoredEntry, stored: StoredEntry, checksum: int | None, row: int) -> bool:
    """Whether a row is lost, or was this entry before it was damaged: its checksum says so, or all the rest of it does.

    Args:
        entry: what it may have been.
        stored: the row, as `entry_of_row` gives it.
        checksum: what the row says.
        row: the session's.
    """
    if stored.encoded == LOST:
        return True
    if not is_damaged(stored.encoded) or checksum is None:
        return False
    if (stored.entry_id, without_mark(stored.encoded)) == (entry.entry_id, entry.encoded):
        return True
    try:
        return is_sound(row, entry.sequence, entry.entry_id, entry.idempotency_key, entry.encoded, checksum)
    except TypeError:  # it is no number any more
        return False


def entry_of_row(  # noqa: PLR0913, PLR0917 - the columns
    sequence: int, entry_id: str, encoded: bytes, key: str | None, checksum: int | None, row: int
) -> StoredEntry:
    """The entry in a row of `entries`; `damaged` if the row contradicts its checksum."""
    try:
        if is_sound(row, sequence, entry_id, key, encoded, checksum):
            return StoredEntry(sequence, entry_id, encoded, key)
    except (TypeError, ValueError, AttributeError):  # not even the types of its columns are right
        return damaged(StoredEntry(sequence, str(entry_id), repr(encoded).encode()))
    return damaged(StoredEntry(sequence, entry_id, encoded))


def unreadable(error: Exception, path: Path) -> StoreCorrupt:
    """The error for a row whose columns hold no values of their types; what they hold may be anybody's words."""
    return StoreCorrupt(
        f"cannot read {path}: a row in it is damaged ({type(error).__name__}); start again, and "
        "what can be read of it is kept"
    )
