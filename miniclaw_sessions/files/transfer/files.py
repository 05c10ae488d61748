"""The files of a workspace beside its store: copied, and where that is wanted sealed with other keys on the way.

Everything here blocks.

A session's file is sealed in one piece, bound to its session; archives and what was set aside are sealed as long files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from miniclaw_sessions.core.persistence.snapshots import SUFFIX
from miniclaw_sessions.core.persistence.whole_files import opened
from miniclaw_sessions.core.stores.base import mark_damaged
from miniclaw_sessions.disk import Directory, NotRegular, is_temporary, write_all
from miniclaw_sessions.encryption import (
    PIECE_BYTES,
    DamagedSeal,
    KeyRing,
    first_piece,
    is_in_pieces,
    is_sealed,
    of_snapshot,
    sealed_in_pieces,
)
from miniclaw_sessions.errors import WrongKey

SESSIONS, SET_ASIDE = "sessions", ("archive", "quarantine")
"""The directories of a workspace: session files; those that are only kept."""

_REASON = ".reason"  # says why a file was set aside, without the text of any message
_BEGINNING_BYTES = 4096
_ANY_SIZE = 2**62


class Sealing(NamedTuple):
    """What files get sealed with: `opens` reads what is there; `seals` is None if nothing gets sealed."""

    opens: KeyRing
    seals: KeyRing | None


def files_in(path: Path) -> list[str]:
    """The names of the files in a directory, none if it is not there; without leftovers of a crash."""
    if not path.exists():
        return []
    with Directory(path, is_ours=False) as directory:
        return [name for name in directory.names() if not is_temporary(name) and name != ".lock"]


def copy_files(
    source: Directory, names: Sequence[str], target: Directory, sealing: Sealing | None, problems: list[str]
) -> int:
    """Copy files into a directory that has none of them, durably. Returns how many were sealed otherwise on the way.

    Args:
        source: where they are.
        names: their names; one that is gone by now, or is no file, is left out.
        target: where they go.
        sealing: what they get sealed with; None: they stay as they are.
        problems: what does not open is added to it, one sentence each; it is kept.

    Raises:
        WrongKey: a session's file needs a key that is not held.
        OSError: a file could not be read or written.
    """
    changed = 0
    short: list[tuple[str, bytes]] = []
    used: dict[str, int] = {}  # when the session was last used
    for name in names:
        try:
            if source.path.name == SESSIONS:
                data = source.read(name, limit=_ANY_SIZE)
                used[name] = source.modified_ns(name)
                resealed = None if sealing is None else _resealed_snapshot(sealing, data, source.path / name, problems)
                short.append((name, data if resealed is None else resealed))
                changed += resealed is not None
            else:
                changed += _copy_long(source, name, target, sealing, problems)
        except (FileNotFoundError, NotRegular):
            continue
    for failure in target.create([(name, partial(bytes, data)) for name, data in short], modified_ns=used):
        if failure is not None:
            raise failure
    return changed


def _resealed_snapshot(sealing: Sealing, data: bytes, path: Path, problems: list[str]) -> bytes | None:
    """What a session's file should hold, or None if it does.

    Content that does not open is kept as it is within content that does: a reader finds it damaged, and needs no old
    key.

    Raises:
        WrongKey: it needs a key that is not held.
    """
    place = of_snapshot(path.name.removesuffix(SUFFIX))
    was_sealed = is_sealed(data)
    try:
        content = sealing.opens.open(data, place, str(path)) if was_sealed else data
    except DamagedSeal:
        problems.append(f"{path} is damaged")
        return mark_damaged(data) if sealing.seals is None else sealing.seals.seal(data, place)
    if sealing.seals is None:
        return content if was_sealed else None
    return None if sealing.seals.is_current(data) else sealing.seals.seal(content, place)


def _is_wrong(sealing: Sealing, name: str, beginning: bytes) -> bool:
    """Whether a long file is sealed otherwise than it should be."""
    if name.endswith(_REASON):
        return False
    if sealing.seals is None:
        return is_sealed(beginning) or is_in_pieces(beginning)
    return not sealing.seals.is_current(first_piece(beginning) if is_in_pieces(beginning) else beginning)


def _copy_long(source: Directory, name: str, target: Directory, sealing: Sealing | None, problems: list[str]) -> bool:
    with os.fdopen(source.open_file(name), "rb") as file:
        beginning = file.read(_BEGINNING_BYTES)
        file.seek(0)
        if sealing is not None and _is_wrong(sealing, name, beginning):
            is_plain = not (is_sealed(beginning) or is_in_pieces(beginning))
            content = _pieces(file) if is_plain else opened(sealing.opens, file, name)
            try:
                _write(
                    target, name, content if sealing.seals is None else sealed_in_pieces(sealing.seals, name, content)
                )
            except (DamagedSeal, WrongKey) as error:  # the workspace opens without it
                problems.append(str(error))
                file.seek(0)
            else:
                return True
        _write(target, name, _pieces(file))
    return False


def _write(directory: Directory, name: str, content: Iterable[bytes]) -> None:
    temporary, fd = directory.open_temporary()
    try:
        for block in content:
            write_all(fd, block)
        directory.publish(temporary, fd, name)
    finally:
        directory.discard(temporary)
        os.close(fd)


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    return iter(partial(file.read, PIECE_BYTES), b"")
