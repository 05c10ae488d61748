"""Reading other programs' files while they are written: opened without waiting, never locked, up to their last line."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from miniclaw_sessions.errors import ImportRefused, SessionsError

BLOCK_BYTES = 1 << 20
_TAIL_BYTES = 256


def why(error: Exception) -> str:
    """Why something cannot be read, as a sentence; without the text of an unexpected error, which may quote text."""
    foreseen = isinstance(error, SessionsError | OSError | sqlite3.Error)
    return str(error) if foreseen else f"it is not as its program writes it ({type(error).__name__})"


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a regular file for reading; no link, and no pipe, which would block.

    Raises:
        ImportRefused: it is no regular file, or cannot be read.
    """
    fd = -1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ImportRefused("it is not a regular file")
        yield fd
    except OSError as error:
        raise ImportRefused(error.strerror or "it cannot be read") from error
    finally:
        if fd >= 0:
            os.close(fd)


def whole_lines(fd: int, *, after: int) -> int:
    """Where the last whole line ends, at `after` or behind it; the bytes behind that end may be half a line."""
    end = os.fstat(fd).st_size
    while end > after:
        start = max(after, end - BLOCK_BYTES)
        if (found := os.pread(fd, end - start, start).rfind(b"\n")) >= 0:
            return start + found + 1
        end = start
    return after


def blocks(fd: int, start: int, end: int) -> Iterator[bytes]:
    """The bytes of a part of a file; fewer if it was cut short meanwhile."""
    while start < end and (block := os.pread(fd, min(BLOCK_BYTES, end - start), start)):
        yield block
        start += len(block)


def tail(fd: int, end: int) -> str:
    """A digest of the bytes before a place of a file: a file with another one is another file."""
    start = max(0, end - _TAIL_BYTES)
    return hashlib.blake2b(os.pread(fd, end - start, start), digest_size=8).hexdigest()


def lines_in(pieces: Iterator[bytes], longest: int) -> Iterator[list[bytes]]:
    """The whole lines of a stream, without their ends: for each piece, the lines that end in it.

    Raises:
        ImportRefused: a line is longer than may be held in memory.
    """
    rest = bytearray()
    for piece in pieces:
        begun = len(rest)
        rest += piece
        if (end := rest.rfind(b"\n", begun)) >= 0:
            yield bytes(rest[:end]).split(b"\n")
            del rest[: end + 1]
        if len(rest) > longest:
            raise ImportRefused(f"a line is longer than {longest} bytes")


def count_marks(path: Path, marks: tuple[bytes, ...], on_read: Callable[[int], None]) -> int:
    """How often the marks occur in a file. `on_read` gets the size of each block that was read."""
    found, overlap = 0, max(map(len, marks), default=1) - 1
    with opened(path) as fd:
        before = b""
        for block in blocks(fd, 0, os.fstat(fd).st_size):
            text = before + block
            found += sum(text.count(mark) - before.count(mark) for mark in marks)
            before = text[-overlap:] if overlap else b""
            on_read(len(block))
    return found
