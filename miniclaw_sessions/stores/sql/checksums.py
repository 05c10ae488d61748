"""The checksum of a stored row, and what becomes of one that contradicts it."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from miniclaw_sessions.errors import StoreCorrupt
from miniclaw_sessions.stores.base import StoredEntry, damaged


def checksum_of(row: int, sequence: int, entry_id: str, key: str | None, encoded: bytes) -> int:
    """The CRC-32 of all that a row of `entries` says, where it is left out."""
    return crc32(encoded, crc32(f"{row} {sequence} {entry_id} {key or ''}".encode()))


def entry_of_row(  # noqa: PLR0913, PLR0917 - the columns
    sequence: int, entry_id: str, encoded: bytes, key: str | None, checksum: int | None, row: int
) -> StoredEntry:
    """The entry in a row of `entries`; `damaged` if the row contradicts its checksum."""
    try:
        if checksum is None or checksum == checksum_of(row, sequence, entry_id, key, encoded):
            return StoredEntry(sequence, entry_id, encoded, key)
    except (TypeError, ValueError):  # not even the types of its columns are right
        return damaged(StoredEntry(sequence, str(entry_id), repr(encoded).encode()))
    return damaged(StoredEntry(sequence, entry_id, encoded))


def unreadable(error: Exception, path: Path) -> StoreCorrupt:
    """The error for a row whose columns hold no values of their types; what they hold may be anybody's words."""
    return StoreCorrupt(
        f"cannot read {path}: a row in it is damaged ({type(error).__name__}); set the file aside, and the sessions go "
        "on from their snapshots"
    )
