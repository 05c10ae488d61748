"""The checksums of stored rows, and entries made from rows.

A checksum is negative. Rows of schema 0002 have checksums of another form, which are not; they stay as they are.
"""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from miniclaw_sessions.core.stores.base import LOST, StoredEntry, damaged, is_damaged, without_mark
from miniclaw_sessions.errors import StoreCorrupt

_PRIME = 2**32 - 5
"""A prime: a change of any bit of a row's numbers changes the remainder."""


def checksum_of(row: int, sequence: int, entry_id: str, key: str | None, encoded: bytes) -> int:
    """The checksum of the other columns of a row of `entries`, from their CRC-32.

    It is computed for each append, so nothing is formatted: the numbers are the start value, then come the id, the key
    and the bytes.
    """
    start = crc32(entry_id.encode(), (row * 1_000_003 + sequence) % _PRIME)
    if key is not None:
        start = ~crc32(key.encode(), start)
    return ~crc32(encoded, start)


def is_sound(row: int, sequence: int, entry_id: str, key: str | None, encoded: bytes, checksum: int | None) -> bool:  # noqa: PLR0913, PLR0917 - the columns
    """Whether a row agrees with its checksum; rows of schema 0001 have none, and count as sound.

    Raises:
        TypeError, ValueError, AttributeError: a column has a value of a wrong type.
    """
    if checksum is None:
        if type(encoded) is not bytes or type(entry_id) is not str:
            raise TypeError("a column has a value of a wrong type")
        return True
    if checksum < 0:
        return checksum == checksum_of(row, sequence, entry_id, key, encoded)
    return checksum == crc32(encoded, crc32(f"{row} {sequence} {entry_id} {key or ''}".encode()))


def was_entry(entry: StoredEntry, stored: StoredEntry, checksum: int | None, row: int) -> bool:
    """Whether a row is lost, or was this entry before it was damaged, by its checksum or by its other columns.

    Args:
        entry: the candidate.
        stored: the row, as `entry_of_row` returns it.
        checksum: the row's checksum.
        row: the number of the session's row.
    """
    if stored.encoded == LOST:
        return True
    if not is_damaged(stored.encoded) or checksum is None:
        return False
    if (stored.entry_id, without_mark(stored.encoded)) == (entry.entry_id, entry.encoded):
        return True
    try:
        return is_sound(row, entry.sequence, entry.entry_id, entry.idempotency_key, entry.encoded, checksum)
    except TypeError:  # the damaged checksum is not a number
        return False


def entry_of_row(  # noqa: PLR0913, PLR0917 - the columns
    sequence: int, entry_id: str, encoded: bytes, key: str | None, checksum: int | None, row: int
) -> StoredEntry:
    """The entry in a row of `entries`, marked as `damaged` if the row contradicts its checksum.

    Raises:
        StoreCorrupt: its sequence is lost, too.
    """
    try:
        if is_sound(row, sequence, entry_id, key, encoded, checksum):
            return StoredEntry(sequence, entry_id, encoded, key)
    except (TypeError, ValueError, AttributeError):  # a column has a value of a wrong type
        return damaged(StoredEntry(sequence_in(sequence), str(entry_id), repr(encoded).encode()))
    return damaged(StoredEntry(sequence, entry_id, encoded, key if isinstance(key, str) else None))


def id_in(value: object) -> str:
    """The id of a session, as a row has it.

    Raises:
        StoreCorrupt: it is no text.
    """
    if not isinstance(value, str):
        raise StoreCorrupt("the id of a session is damaged; start again, and what can be read is kept")
    return value


def sequence_in(value: object) -> int:
    """A sequence, as a row has it.

    Raises:
        StoreCorrupt: it is no number. Others would compare it with numbers, and fail in their midst.
    """
    if type(value) is not int:
        raise StoreCorrupt("the sequence of an entry is damaged; start again, and what can be read is kept")
    return value


def unreadable(error: Exception, path: Path) -> StoreCorrupt:
    """The error for a row whose columns have wrong types. It leaves their values out, which may be private."""
    return StoreCorrupt(
        f"cannot read {path}: a row in it is damaged ({type(error).__name__}); start again, and "
        "what can be read of it is kept"
    )
