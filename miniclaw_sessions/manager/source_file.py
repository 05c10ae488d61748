"""A file that a session is to be made of, and its bytes in pieces."""

from __future__ import annotations

import errno
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiofiles.threadpool.binary import AsyncBufferedReader

CHUNK_BYTES = 1_048_576
"""How much of a file is read at a time."""


def regular_file(path: str | Path) -> tuple[Path, int]:
    """Where the file is and its size, provided that it is one: a pipe would make us wait for ever."""
    path = Path(path).expanduser()
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    return path, status.st_size


async def chunks_of(file: AsyncBufferedReader) -> AsyncIterator[bytes]:
    """Its bytes, a piece at a time."""
    while chunk := await file.read(CHUNK_BYTES):
        yield chunk
