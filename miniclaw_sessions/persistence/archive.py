"""Where expired sessions go before they are deleted: one JSON Lines file each, every entry of the transcript.

The file is streamed, so that a long transcript never has to fit in memory, and is durable before anything is deleted.
With keys it is encrypted, in pieces; `miniclaw-sessions decrypt` reads it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from anyio import to_thread

from miniclaw_sessions.disk import Directory
from miniclaw_sessions.encryption import KeyRing, PieceSealer


class Archive(NamedTuple):
    """Where the files go, and what encrypts them."""

    path: Path
    encryption: KeyRing | None = None


async def archive(to: Archive, session_id: str, lines: AsyncIterator[bytes], *, at: datetime) -> Path:
    """Write a session's entries to a file of their own, durably; the file's path.

    Raises:
        OSError: it could not be written; no file is left.
    """
    import aiofiles  # noqa: PLC0415 - only sweeping needs it, and importing this package must stay light

    directory = await to_thread.run_sync(Directory, to.path)
    try:
        temporary, fd = await to_thread.run_sync(directory.open_temporary)
        name = f"{at:%Y%m%dT%H%M%S.%fZ}-{session_id}.jsonl"
        try:
            async with aiofiles.open(fd, "wb", closefd=False) as file:
                async for block in _sealed(to.encryption, name, lines):
                    await file.write(block)
            await to_thread.run_sync(partial(directory.publish, temporary, fd, name))
        except BaseException:
            directory.discard(temporary)
            raise
        finally:
            os.close(fd)
    finally:
        directory.close()
    return to.path / name


async def _sealed(keys: KeyRing | None, name: str, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """What is to be written: the lines, or what becomes of them."""
    sealer = None if keys is None else PieceSealer(keys, name)
    async for line in lines:
        block = line + b"\n"
        yield block if sealer is None else sealer.feed(block)
    if sealer is not None:
        yield sealer.finish()
