"""Every session into a directory, one file each: what `export --all` does, in process or through a client."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path

from anyio import CancelScope, to_thread

from miniclaw_sessions.disk import Directory, write_all
from miniclaw_sessions.errors import ConfigError, SessionNotFound
from miniclaw_sessions.files.transfer.copying import Report, in_thread

Export = Callable[[str], AsyncGenerator[bytes, None]]
"""Gives a session's export, piece by piece."""


async def export_all(
    session_ids: Sequence[str], export: Export, directory: Path, suffix: str, on_progress: Report = lambda *_: None
) -> dict[str, int]:
    """Write each session to a file of its own, named by its id; how many bytes, of each that was written.

    What is there already is left as it is, so that an export that was cut off goes on. Each file is there whole or not
    at all, 0600. A session that is deleted meanwhile is left out.

    Args:
        session_ids: which sessions.
        export: gives the bytes of one.
        directory: where to; made if it is not there.
        suffix: how the names end, such as `.jsonl`.
        on_progress: gets the progress.

    Raises:
        ConfigError: the directory cannot be written.
        SessionsError: a session cannot be exported.
    """
    try:
        target = await in_thread(partial(Directory, is_ours=False), directory)
    except OSError as error:
        raise ConfigError(f"cannot export to {directory}: {error.strerror or error}") from error
    written: dict[str, int] = {}
    with target:
        there = set(await in_thread(target.names))
        for number, session_id in enumerate(session_ids, 1):
            if session_id + suffix not in there:
                try:
                    written[session_id] = await _write(target, session_id + suffix, export(session_id))
                except SessionNotFound:
                    continue
                except OSError as error:
                    raise ConfigError(f"cannot write {directory / session_id}{suffix}: {error}") from error
            on_progress("exporting sessions", number, len(session_ids))
    return written


async def _write(directory: Directory, name: str, pieces: AsyncGenerator[bytes, None]) -> int:
    """One file; how many bytes."""
    temporary, fd = await in_thread(directory.open_temporary)
    size = 0
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                await to_thread.run_sync(write_all, fd, piece)
                size += len(piece)
        await in_thread(directory.publish, temporary, fd, name)
    finally:
        with CancelScope(shield=True):
            await in_thread(directory.discard, temporary)
            await in_thread(os.close, fd)
    return size
