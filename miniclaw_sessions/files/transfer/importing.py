"""Making sessions of files: another program's, or our own exports. A file is only read.

It is streamed, so it may be larger than the memory. Until a session is complete no one else sees it, and a crash leaves
nothing of it.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from anyio import to_thread

from miniclaw_sessions.core.manager.manager import SessionManager
from miniclaw_sessions.core.persistence.archive import followed_place, time_of
from miniclaw_sessions.core.persistence.recovery import Progress
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.encryption import DamagedSeal
from miniclaw_sessions.errors import ImportRefused, SessionExists
from miniclaw_sessions.files.formats.codec import Format
from miniclaw_sessions.files.transfer.incoming import Import, ImportReport, KnownEntries
from miniclaw_sessions.log import get_logger

if TYPE_CHECKING:
    from aiofiles.threadpool.binary import AsyncBufferedReader

_DOUBT_S = 2.0
"""How wrong a file's time may be beside that of an archived session: kernels date files by their last tick, and some
file systems by whole seconds. Within it the places are compared up to which the file was read."""

_MOST_KNOWN = 64
"""Of how many sessions of a manager the places of their entries are remembered between two files that add to them."""

_KNOWN: WeakKeyDictionary[SessionManager, dict[str, KnownEntries]] = WeakKeyDictionary()  # by incarnation

CHUNK_BYTES = 1_048_576
"""How much of a file is read at a time."""

log = get_logger(__name__)


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

    def regular_file() -> tuple[Path, int]:
        found = Path(path).expanduser()
        status = found.stat()
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return found, status.st_size

    async def chunks_of(file: AsyncBufferedReader) -> AsyncIterator[bytes]:
        while chunk := await file.read(CHUNK_BYTES):
            yield chunk

    try:
        found, size = await to_thread.run_sync(regular_file)
        async with aiofiles.open(found, "rb") as file:
            yield SourceFile(chunks_of(file), found.stem, size)
    except OSError as error:
        raise ImportRefused(f"cannot read {path}: {error.strerror}") from error


async def import_file(  # noqa: PLR0913 - each can be left out
    manager: SessionManager,
    path: str | Path,
    *,
    key: SessionKey | None = None,
    form: Format | None = None,
    dry_run: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> ImportReport:
    """Make a session of another program's file, or of our own export.

    Args:
        manager: the open manager that gets the session.
        path: the file.
        key: the new session's key; by default what the file says, or else `import` and the file's own id.
        form: its format (`formats.registry`); by default it is recognized.
        dry_run: only read it, and report.
        on_progress: called with how many bytes are done; by default the manager's own.

    Raises:
        ImportRefused: it is not a session in a known format, or cannot be read; it was not touched.
        SessionExists, SessionLimit, StoreError: the session could not be made; nothing of it is left.
        ManagerClosed: the manager is not open.
    """
    async with source_file(path) as file:
        return await import_stream(
            manager,
            file.chunks,
            name=file.name,
            key=key,
            form=form,
            dry_run=dry_run,
            on_progress=on_progress,
            size=file.size,
        )


async def import_stream(  # noqa: PLR0913 - each can be left out
    manager: SessionManager,
    chunks: AsyncIterator[bytes],
    *,
    name: str,
    key: SessionKey | None = None,
    form: Format | None = None,
    dry_run: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    size: int | None = None,
    check: Callable[[SessionKey], None] = lambda _: None,
    update: bool = False,
    place: Mapping[str, Any] | None = None,
) -> ImportReport:
    """Make a session of a file that comes in pieces; see `import_file` for the other arguments.

    Args:
        manager: the open manager that gets the session.
        chunks: the file's bytes.
        name: the file's name without its suffix; the session's, where the file says none.
        key: the new session's key.
        form: its format.
        dry_run: only read it, and report.
        on_progress: called with how many bytes are done.
        size: how many bytes there are, where that is known.
        check: called with the new session's key before anything is looked up or made; may raise.
        update: give a session that was made of this file before what it lacks of it (`Import.add_to`).
        place: kept with a session that follows a file. A deleted session is not made again for it; an expired one
            comes back if the file was `modified` (nanoseconds since 1970) since it expired.

    Raises:
        ImportRefused, SessionExists, SessionLimit, StoreError, ManagerClosed: as for `import_file`.
        SessionNotFound: the session was deleted or has expired, and stays away.
    """
    source = manager.source
    transfer = Import(
        chunks,
        name=name,
        form=form,
        clock=manager.clock,
        on_progress=on_progress or manager.on_progress,
        size=size,
        dry_run=dry_run,
        place=place,
    )
    async with transfer:
        key = await transfer.begin(key)
        check(key)
        if not dry_run:
            await _store(manager, key, transfer, place, update=update)
        else:
            await transfer.only_read()
            if await source.exists(key.session_id):
                raise SessionExists(
                    f"session {key.session_id!r} exists already; delete it first, or choose another name"
                )
    return transfer.report


async def _store(
    manager: SessionManager, key: SessionKey, transfer: Import, place: Mapping[str, Any] | None, *, update: bool
) -> None:
    """Make the session, or give the one that was made of the file before what it lacks."""
    source, session_id = manager.source, key.session_id
    if place is not None:
        await _restore_if_behind(manager, key, place)
    if update and await source.exists(session_id):
        session = await manager.find(session_id)
        if not transfer.is_of(session):
            raise SessionExists(
                f"session {session_id!r} exists already, and was not made of this file; choose another name"
            )
        incarnation = session.journal.incarnation
        of_sessions = _KNOWN.setdefault(manager, {})
        known = await transfer.add_to(session, of_sessions.pop(incarnation, None))
        of_sessions[incarnation] = known  # behind all others: it was used last
        if len(of_sessions) > _MOST_KNOWN:
            del of_sessions[next(iter(of_sessions))]
    elif transfer.is_part or (place is not None and await source.was_mirrored(session_id)):
        raise await source.missing(session_id)
    else:
        async with source.new_journal(key, purpose="import", created_at=transfer.created_at) as journal:
            await transfer.store(Session.of(journal))
        report = transfer.report
        counts = {"entries": report.entries, "repaired": report.repaired, "set_aside": report.set_aside}
        log.info("imported", action="session.imported", session_id=report.session_id, **counts)
    if place is not None:
        await source.note_mirrored(session_id)


async def fork_from(manager: SessionManager, path: str | Path, *, key: SessionKey | None = None) -> Session:
    """A session made of a file's history, in the Go manager's words. Raises as `import_file`."""
    return await manager.find((await import_file(manager, path, key=key)).session_id)


# --- sessions that follow a file, and have expired -------------------------------------------------------------------


async def _restore_if_behind(manager: SessionManager, key: SessionKey, place: Mapping[str, Any]) -> None:
    """Bring a session that follows a file back from the archive, if the file was written since it expired."""
    session_id, archive = key.session_id, manager.archive
    if not manager.settings.restore_archived or await manager.source.exists(session_id):
        return
    name, written_at = await archive.newest(session_id), place.get("modified")
    expired_at = None if name is None else time_of(name)
    if name is None or expired_at is None or not isinstance(written_at, int):
        return
    age_s = expired_at.timestamp() - written_at / 1e9
    if age_s > _DOUBT_S:
        return
    if age_s > -_DOUBT_S:  # the times are too close: a file that is read to the same place has nothing new
        try:
            kept = await followed_place(archive, name)
        except DamagedSeal:
            return  # nothing of it could be restored
        if isinstance(kept, dict) and all(kept.get(what) == place.get(what) for what in ("bytes", "modified")):
            return
    await manager.source.restore_if_archived(session_id)
