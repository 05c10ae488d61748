"""Where expired sessions go before they are deleted: one JSON Lines file each, every entry of the transcript.

The file is streamed, so that a long transcript never has to fit in memory, and is durable before anything is deleted.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from pathlib import Path

from anyio import to_thread

from miniclaw_sessions.disk import Directory


async def archive(path: Path, session_id: str, lines: AsyncIterator[bytes], *, at: datetime) -> Path:
    """Write a session's entries to a file of their own in the directory `path`, durably; the file's path.

    Raises:
        OSError: it could not be written; no file is left.
    """
    import aiofiles  # noqa: PLC0415 - only sweeping needs it, and importing this package must stay light

    directory = await to_thread.run_sync(Directory, path)
    try:
        temporary, fd = await to_thread.run_sync(directory.open_temporary)
        name = f"{at:%Y%m%dT%H%M%S.%fZ}-{session_id}.jsonl"
        try:
            async with aiofiles.open(fd, "wb", closefd=False) as file:
                async for line in lines:
                    await file.write(line + b"\n")
            await to_thread.run_sync(partial(directory.publish, temporary, fd, name))
        finally:
            os.close(fd)
            directory.discard(temporary)
    finally:
        directory.close()
    return path / name
