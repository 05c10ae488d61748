"""What may lie on the disk where a file of ours should: the bad files, each made for any kind of file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65_534
SPARSE_BYTES = 10 * 2**30

Damage = Callable[[Path], None]
"""Puts something else in the place of a file that is there."""


def _holding(data: bytes) -> Damage:
    def damage(path: Path) -> None:
        path.write_bytes(data)

    return damage


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _unreadable(path: Path) -> None:
    path.chmod(0)


def _sparse(path: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, SPARSE_BYTES)


BAD_FILES: dict[str, Damage] = {
    "0 bytes": _holding(b""),
    "all NULs": _holding(bytes(5_000)),
    "valid JSON of the wrong shape": _holding(b'{"messages":{"a":1}}\n'),
    "a JSON list": _holding(b"[1,2,3]\n"),
    "UTF-16": _holding('{"channel":"telegram"}'.encode("utf-16")),
    "a byte order mark first": _holding(b"\xef\xbb\xbf{}"),
    "a million brackets": _holding(b"[" * 10**6),
    "a million empty objects": _holding(b'{"messages":[' + b"{}," * (10**6 - 1) + b"{}]}"),
    "an integer of 4301 digits": _holding(b'{"schema_version":' + b"9" * 4301 + b"}"),
    "FIFO": _fifo,
    "directory": _directory,
    "symlink to itself": _link_to_itself,
    "no read permission": _unreadable,
    "sparse 10 GB": _sparse,
}


@contextmanager
def without_privilege(place: Path) -> Iterator[None]:
    """Modes count: root, who may read everything, acts as nobody meanwhile, who owns everything in this place."""
    if os.geteuid() != 0:
        yield
        return
    for path in (place, *place.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
