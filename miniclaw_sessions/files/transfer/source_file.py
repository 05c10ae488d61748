"""The file that becomes a session, and its bytes in pieces."""

from __future__ import annotations

import errno
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from anyio import to_thread

from miniclaw_sessions.errors import ImportRefused

if TYPE_CHECKING:
    from aiofiles.threadpool.binary import AsyncBufferedReader

CHUNK_BYTES = 1_048_576
"""How much of a file is read at a time."""


class SourceFile(NamedTuple):
    """Its bytes, a piece at a time; its name without what follows the dot; how many bytes it has."""

    chunks: AsyncIterator[bytes]
    name: str
    size: int


@asynccontextmanager
async def source_file(path: str | Path) -> AsyncIterator[SourceFile]:
    """The file, open to be read.

    Raises:
        ImportRefused: it cannot be read, or is no regular file: a pipe would make us wait for ever.
    """
    import aiofiles  # noqa: PLC0415 - importing this package must stay light

    try:
        found, size = await to_thread.run_sync(_regular_file, path)
        async with aiofiles.open(found, "rb") as file:
            yield SourceFile(_chunks_of(file), found.stem, size)
    except OSError as error:
        raise ImportRefused(f"cannot read {path}: {error.strerror}") from error


def _regular_file(path: str | Path) -> tuple[Path, int]:
    path = Path(path).expanduser()
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    return path, status.st_size


async def _chunks_of(file: AsyncBufferedReader) -> AsyncIterator[bytes]:
    while chunk := await file.read(CHUNK_BYTES):
        yield chunk
