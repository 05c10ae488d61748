"""Reading files that are encrypted as a whole: a session's, an archive, what was set aside. Everything here blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from miniclaw_sessions.core.persistence.snapshots import SUFFIX
from miniclaw_sessions.encryption import (
    DamagedSeal,
    KeyRing,
    is_in_pieces,
    is_sealed,
    of_snapshot,
    opened_pieces,
)
from miniclaw_sessions.errors import NotEncrypted

_BEGINNING_BYTES = 4096


def opened_file(keys: KeyRing, path: Path, name: str = "") -> Iterator[bytes]:
    """The content of an encrypted file, piece by piece: a session's, an archive, or one that was set aside.

    Args:
        keys: the keys.
        path: where it is.
        name: what it was called when it was encrypted; by default what it is called.

    Raises:
        NotEncrypted, WrongKey, DamagedSeal: it does not open; pieces that came before are sound.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        yield from opened(keys, file, name or path.name)


def opened(keys: KeyRing, file: BinaryIO, name: str) -> Iterator[bytes]:
    """The content of an encrypted file that is open; raises as `opened_file` does."""
    beginning = file.read(_BEGINNING_BYTES)
    file.seek(0)
    if is_in_pieces(beginning):
        yield from opened_pieces(keys, name, file.read)
    elif is_sealed(beginning):
        yield _opened_snapshot(keys, file.read(), name)
    else:
        raise NotEncrypted(name)


def _opened_snapshot(keys: KeyRing, data: bytes, name: str) -> bytes:
    """A session's file; where it was set aside, a time and a random part stand before its name."""
    try:
        return keys.open(data, of_snapshot(name.removesuffix(SUFFIX)), name)
    except DamagedSeal:
        return keys.open(data, of_snapshot(name.split("-", 2)[-1].removesuffix(SUFFIX)), name)
