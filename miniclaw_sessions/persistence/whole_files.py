"""Files that are encrypted as a whole, however long they are: archives, and what was set aside because it was damaged.

Everything here blocks. A file is replaced through a second one beside it, which is complete and safe before the first
one goes; what a crash leaves in between is put in order when the directory is gone through again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from miniclaw_sessions.disk import Directory, write_all
from miniclaw_sessions.encryption import (
    PIECE_BYTES,
    DamagedSeal,
    KeyRing,
    first_piece,
    is_in_pieces,
    is_sealed,
    of_snapshot,
    opened_pieces,
    sealed_in_pieces,
)
from miniclaw_sessions.errors import NotEncrypted
from miniclaw_sessions.persistence.snapshots import SUFFIX

BESIDE = ".rekeyed"
"""What follows the name of a file, or of the store, in the name of what is to take its place."""

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
        yield from _opened(keys, file, name or path.name)


def rekey_file(keys: KeyRing, directory: Directory, name: str, *, decrypt: bool) -> bool:
    """Encrypt a file with the first key, or decrypt it, if it is not as it should be; whether it was changed.

    Raises:
        WrongKey, DamagedSeal: it does not open; it is as it was.
        NotRegular: it is no file.
        OSError: it could not be replaced; it is as it was.
    """
    with os.fdopen(directory.open_file(name), "rb") as file:
        beginning = file.read(_BEGINNING_BYTES)
        file.seek(0)
        is_encrypted = is_sealed(beginning) or is_in_pieces(beginning)
        if decrypt:
            if not is_encrypted:
                return False
            _replace(directory, name, _opened(keys, file, name))
            return True
        if keys.is_current(first_piece(beginning) if is_in_pieces(beginning) else beginning):
            return False
        content = _opened(keys, file, name) if is_encrypted else iter(partial(file.read, PIECE_BYTES), b"")
        _replace(directory, name, sealed_in_pieces(keys, name, content))
    return True


def finish_replacing(directory: Directory) -> None:
    """Put in order what a crash has left of replacing a file."""
    directory.remove_temporaries()
    names = set(directory.names())
    for name in names:
        original = name.removesuffix(BESIDE)
        if original == name:
            continue
        if original in names:
            directory.remove([name])
        else:
            directory.move(name, directory, original)


def _opened(keys: KeyRing, file: BinaryIO, name: str) -> Iterator[bytes]:
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


def _replace(directory: Directory, name: str, content: Iterable[bytes]) -> None:
    temporary, fd = directory.open_temporary()
    try:
        for block in content:
            write_all(fd, block)
        directory.publish(temporary, fd, name + BESIDE)
    finally:
        directory.discard(temporary)
        os.close(fd)
    directory.remove([name])
    directory.move(name + BESIDE, directory, name)
