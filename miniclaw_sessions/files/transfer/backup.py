"""Backups: a copy of a whole workspace, made while it is used, that can be looked at, verified and restored.

A backup is a directory that looks like a workspace: session files, the store, archives, what was set aside. What is
encrypted stays so, and no key is needed. `backup.json` is written last; it lists every file with its digest, so that a
backup without it is not complete, and one that does not agree with it is damaged.

It is consistent: session files are copied first and the store afterwards, entry by entry, through the store itself. So
the store is never behind a file, as after a crash, and every transcript is whole up to where it was when it was copied.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.persistence.backups import note_backup
from miniclaw_sessions.core.persistence.losses import NAME as LOSSES
from miniclaw_sessions.core.persistence.marker import NAME as MARKER
from miniclaw_sessions.core.persistence.marker import RESTORING, read_marker
from miniclaw_sessions.core.persistence.mirrored import NAME as MIRRORED
from miniclaw_sessions.core.persistence.own_task import in_own_task
from miniclaw_sessions.core.persistence.recognition import recognize
from miniclaw_sessions.core.stores import open_store, salvage_in, store_place, stores_in
from miniclaw_sessions.core.stores.base import Store, StorePlace
from miniclaw_sessions.core.stores.copying import compare_stores, copy_store
from miniclaw_sessions.core.stores.shared_store import as_shared
from miniclaw_sessions.core.stores.wrapping import innermost
from miniclaw_sessions.disk import LOCK, Directory
from miniclaw_sessions.errors import ConfigError, StoreError
from miniclaw_sessions.files.transfer.copying import Copy, Report, copy_missing, held, in_thread
from miniclaw_sessions.files.transfer.files import SESSIONS, SET_ASIDE, files_in
from miniclaw_sessions.files.transfer.surroundings import InDirectory, OnServer, copy_surroundings, surroundings_of

MANIFEST = "backup.json"
VERSION = 1

_MAX_MANIFEST_BYTES = 2**31
_BLOCK = 1 << 20
_OF_ITSELF = (MARKER, LOSSES, MIRRORED)  # how the workspace is encrypted, what it has lost, what keeps up with others


class BackedUpFile(msgspec.Struct, frozen=True):
    """What a file in a backup must be."""

    bytes: int
    sha256: str


class BackupReport(msgspec.Struct, kw_only=True):
    """What a backup holds; also what its `backup.json` says.

    Attributes:
        version: of this format.
        made_at: when it was begun.
        store: which kind of store it has: `sqlite:`, `jsonl:` or `none:`; of one that is in no file, `sqlite:`.
        key: the id of the key that it is encrypted with; None: it is not.
        sessions: how many it has, in its store or in files only.
        entries: what is in its store.
        snapshots: how many session files it has.
        problems: what is wrong, one sentence each: what was damaged already when it was made; after verifying, what is
            wrong with the backup itself.
        losses: after verifying, what was damaged already when it was made.
        files: every file, by its path in the backup.
    """

    version: int = VERSION
    made_at: datetime
    store: str
    key: str | None = None
    sessions: int = 0
    entries: int = 0
    snapshots: int = 0
    problems: list[str] = msgspec.field(default_factory=list)
    losses: list[str] = msgspec.field(default_factory=list)
    files: dict[str, BackedUpFile] = msgspec.field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """How large it is."""
        return sum(file.bytes for file in self.files.values())


class Holder(Protocol):
    """Who has a workspace open: a SessionManager."""

    workspace: Path | None
    clock: Clock

    @property
    def store(self) -> Store:
        """The store that is open."""
        ...

    async def flush(self) -> object:
        """Write everything to the session files."""
        ...


@in_own_task
async def back_up(manager: Holder, target: Path, on_progress: Report = lambda *_: None) -> BackupReport:
    """Back a workspace up that is open in this process, while it is used.

    Args:
        manager: has it open.
        target: a directory that does not exist yet, or is empty.
        on_progress: gets the progress, on the event loop.

    Raises:
        ConfigError: the target is something else, or cannot be written.
        StoreError: the store cannot be read.
    """
    await manager.flush()
    return await _make(manager.workspace, innermost(manager.store), manager.clock, target, on_progress)


@in_own_task
async def back_up_closed(
    workspace: Path, settings: SessionSettings, target: Path, on_progress: Report = lambda *_: None
) -> BackupReport:
    """Back up a workspace that no process has open; none can open it meanwhile. It may be one that cannot be written.

    A store that several processes share has no workspace; they may go on using it.

    Raises:
        DirectoryInUse: a process has it open; let that one make the backup (`back_up`).
        NotAWorkspace: the directory is missing, or another program's; it was not touched.
        ConfigError, StoreError: as for `back_up`; also as long as a damaged store is not salvaged whole.
    """
    async with AsyncExitStack() as stack:
        if store_place(settings.store, workspace).url is not None:  # a server needs no lock
            shared = open_store(settings.store, workspace, postgresql=settings.postgresql)
            return await _make(None, await stack.enter_async_context(shared), SystemClock(), target, on_progress)
        is_writable = await in_thread(os.access, workspace, os.W_OK)
        # a directory that this process cannot write it cannot lock either: others may write it, as a daemon does
        place = await stack.enter_async_context(held(workspace, settings.store, locked=is_writable))
        marker = await in_thread(read_marker, workspace)
        is_half = marker is not None and marker.rekeying != ""
        if is_half or await in_thread((workspace / RESTORING / MANIFEST).exists):  # without it nothing was decided
            raise ConfigError(f"{workspace} is being rekeyed or restored, and that was interrupted; finish that first")
        store = None
        if await in_thread(place.files):
            store = await stack.enter_async_context(open_store(place, workspace, read_only=not is_writable))
        return await _make(workspace, store, SystemClock(), target, on_progress)


async def store_of(backup: Path) -> str | None:
    """Which kind of store a backup has, such as `sqlite:`; None: none. Raises as `verify_backup`."""
    kept = (await in_thread(_manifest, backup)).store
    return None if kept == "none:" else kept


async def verify_backup(path: Path, on_progress: Report = lambda *_: None) -> BackupReport:
    """Read every byte of a backup; `problems` says what is wrong with it, nothing if it is sound. Changes nothing.

    Raises:
        ConfigError: it is no backup, or not a complete one.
    """
    report = await in_thread(_manifest, path)
    report.losses, report.problems = report.problems, []
    found = set(await in_thread(_names_below, path))
    for number, (name, expected) in enumerate(report.files.items(), 1):
        problem = await in_thread(_difference, path / name, expected)
        if problem:
            report.problems.append(f"{name} {problem}")
        on_progress("verifying", number, len(report.files))
    report.problems += [f"{name} does not belong to the backup" for name in sorted(found - report.files.keys())]
    return report


@in_own_task
async def restore(
    backup: Path,
    workspace: Path,
    settings: SessionSettings,
    on_progress: Report = lambda *_: None,
    *,
    damaged: bool = False,
) -> BackupReport:
    """Restore a backup to a place without a workspace. If interrupted, run it again; until then it cannot be opened.

    A store on a server gets the sessions and the archive instead, and no directory is made. It may have what an earlier
    run of this has written there, and no other session.

    Args:
        backup: the directory of the backup; it is verified first, and not changed.
        workspace: where to; there may be nothing that lives: no session, no store, nothing to be salvaged.
        settings: which store the workspace gets, of any kind.
        on_progress: gets the progress.
        damaged: restore also what is damaged, with the store that it has: the next start makes of it what can be made.

    Raises:
        ConfigError: the backup is damaged or none, the store cannot take its entries, or something lives in the
            workspace.
        NotAWorkspace: the directory is another program's; it was not touched.
        DirectoryInUse: a process has the workspace.
        StoreError: the backup's store cannot be read, or the new one not be written.
    """
    report = await verify_backup(backup, on_progress)
    if report.problems and not damaged:
        more = f", and {len(report.problems) - 1} more" if len(report.problems) > 1 else ""
        raise ConfigError(f"the backup {backup} is damaged: {report.problems[0]}{more}; nothing was restored")
    source, place = store_place(report.store, backup), store_place(settings.store, workspace)
    if place.url is not None:
        await _restore_to_server(backup, source, settings, report, on_progress)
        return report
    if (place.path is None and report.entries) or (report.problems and source.kind != place.kind):
        raise ConfigError(
            f"the backup has a store {report.store}, which cannot be restored to store = {settings.store!r}; set "
            f"sessions.store to {report.store!r} for restoring, and migrate afterwards"
        )
    try:
        await in_thread(partial(recognize, workspace, create=True))  # first: the directory may be another program's
        await in_thread(lambda: Directory(workspace).close())
        async with held(workspace, settings.store, create=True, is_target=True):
            beside = place if place.path is None else place.moved(place.path.with_name(f".{place.path.name}.restoring"))
            copy = Copy(workspace / RESTORING, beside)
            if not await in_thread((copy.path / MANIFEST).exists):  # or an earlier run had decided
                await in_thread(_refuse_living, workspace, place)
                await in_thread(copy.remove)
                await _copy_back(backup, source, copy, on_progress, is_damaged=report.problems != [])
            await in_thread(_settle, copy, workspace, place, report)
    except OSError as error:
        raise ConfigError(
            f"{backup} cannot be restored to {workspace}: {error.strerror or error}; mend the disk, and run it again"
        ) from error
    return report


async def _restore_to_server(
    backup: Path, source: StorePlace, settings: SessionSettings, report: BackupReport, on_progress: Report
) -> None:
    what = f"the backup {backup} cannot be restored to {settings.store}"
    if report.problems:
        raise ConfigError(f"{what} while it is damaged; restore it to a directory, and migrate afterwards")
    if source.path is None:
        raise ConfigError(f"{what}: it has no transcripts; restore it to a directory, and migrate afterwards")
    async with AsyncExitStack() as stack:
        store = open_store(settings.store, backup, postgresql=settings.postgresql)
        target = as_shared(await stack.enter_async_context(store))
        given = await stack.enter_async_context(open_store(source, backup, read_only=True))
        plan = await compare_stores(given, target)
        around = OnServer(target)
        marker = await around.marker()
        if plan.others or plan.different or (marker is not None and marker.key != (report.key or "")):
            raise ConfigError(f"{what}: there is something already; nothing was changed. Make a new database")
        await around.write_marker(report.key or "")
        copied = await copy_store(given, target, partial(on_progress, "copying the store"), total=report.sessions)
        for difference in copied.different:
            raise StoreError(f"{what}: {difference}; run it again")
        await copy_surroundings(InDirectory(backup), around, None, report.problems)


# --- making one ------------------------------------------------------------------------------------------------------


async def _make(
    workspace: Path | None, store: Store | None, clock: Clock, target: Path, on_progress: Report
) -> BackupReport:
    source = store if store is not None and store.keeps_entries else None
    kind = "none" if source is None else "sqlite" if source.place.path is None else source.place.kind
    around = surroundings_of(workspace, source)
    try:
        await in_thread(_refuse_taken, target, workspace)
        marker = None if around is None else await around.marker()
        key = marker.key or None if marker is not None else None
        report = BackupReport(made_at=clock.now(), store=f"{kind}:", key=key)
        if workspace is not None and await in_thread(os.access, workspace, os.W_OK):
            await in_thread(note_backup, workspace, target, report.made_at)  # first: half a backup has words too
        await in_thread(lambda: Directory(target).close())
        copy = Copy(target, store_place(report.store, target))
        made = InDirectory(target)
        if workspace is None and around is not None:  # before: what comes back from the archive meanwhile leaves it
            await copy_surroundings(around, made, None, copy.report.problems)
        await copy.make(workspace, source, None if source is None else source.place.torn, on_progress=on_progress)
        if workspace is None and around is not None:  # else they are copied with the other files
            await copy_surroundings(around, made, None, copy.report.problems)
            await made.write_marker(key or "")
        report.sessions, report.entries = copy.report.sessions, copy.report.entries
        report.snapshots, report.problems = copy.report.snapshots, copy.report.problems
        on_progress("writing the list of files", 0, None)
        await in_thread(_finish, workspace, copy, report)
    except OSError as error:
        what = workspace if workspace is not None or source is None else source.place.shown
        raise ConfigError(f"cannot back {what} up to {target}: {error.strerror or error}") from error
    return report


def _refuse_taken(target: Path, workspace: Path | None) -> None:
    if workspace is not None and target.resolve().is_relative_to(workspace.resolve()):
        raise ConfigError(f"cannot back up to {target}: it is in the workspace itself; name a directory elsewhere")
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise ConfigError(f"cannot back up to {target}: it is there already; name a directory that is not there yet")


def _finish(workspace: Path | None, copy: Copy, report: BackupReport) -> None:
    """Copy what the workspace says of itself, and write down what is there: only then it is a backup."""
    if workspace is not None:
        copy_missing(workspace, copy.path, _OF_ITSELF)
    if copy.place.is_directory and copy.place.path is not None and copy.place.path.exists():
        with Directory(copy.place.path) as transcripts:
            transcripts.remove([LOCK])
    report.files = {name: _described(copy.path / name) for name in _names_below(copy.path)}
    manifest = msgspec.json.format(msgspec.json.encode(report), indent=1)
    with Directory(copy.path) as directory:
        failure = directory.create([(MANIFEST, lambda: manifest)])[0]
    if failure is not None:
        raise failure


# --- reading one -----------------------------------------------------------------------------------------------------


def _manifest(path: Path) -> BackupReport:
    if not path.is_dir():
        raise ConfigError(f"{path} is no backup: there is no such directory")
    try:
        with Directory(path, is_ours=False) as directory:
            data = directory.read(MANIFEST, limit=_MAX_MANIFEST_BYTES)
    except FileNotFoundError:
        raise ConfigError(f"{path} is no backup, or not a complete one: it has no {MANIFEST}") from None
    except OSError as error:
        raise ConfigError(f"cannot read the backup {path}: {error.strerror or error}") from error
    try:
        report = msgspec.json.decode(data, type=BackupReport)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path / MANIFEST} is damaged: {error}") from None
    if report.version > VERSION:
        raise ConfigError(f"a newer version of miniclaw-sessions made the backup {path}; install that")
    if any(name.startswith("/") or ".." in Path(name).parts or "\0" in name for name in report.files):
        raise ConfigError(f"{path / MANIFEST} names files outside of the backup")
    return report


def _names_below(path: Path) -> list[str]:
    """Every file of a backup, by its path in it, but for the list itself."""
    found = []
    for directory, _, names in os.walk(path):
        inside = Path(directory).relative_to(path)
        found += [str(inside / name) for name in names]
    return sorted(name for name in found if name != MANIFEST)


def _described(file: Path) -> BackedUpFile:
    digest, size = hashlib.sha256(), 0
    with Directory(file.parent, is_ours=False) as directory, os.fdopen(directory.open_file(file.name), "rb") as data:
        while block := data.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return BackedUpFile(size, digest.hexdigest())


def _difference(file: Path, expected: BackedUpFile) -> str:
    """What is wrong with a file; nothing if it is as it was."""
    if not file.parent.is_dir():
        return "is missing"
    try:
        found = _described(file)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return "" if found == expected else "is damaged: it is not what was backed up"


# --- putting one back ------------------------------------------------------------------------------------------------


def _refuse_living(workspace: Path, place: StorePlace) -> None:
    living = [str(workspace / name) for name in (SESSIONS, *SET_ASIDE) if files_in(workspace / name)]
    living += sorted({str(one.path) for one in (place, *stores_in(workspace)) if one.files()})
    living += map(str, salvage_in(workspace))  # the next start would put its sessions among the restored ones
    if living:
        raise ConfigError(
            f"cannot restore to {workspace}: there is a workspace already ({', '.join(living)}), and a restore never "
            "writes over one; nothing was changed. --workspace names another directory"
        )


async def _copy_back(backup: Path, source: StorePlace, copy: Copy, on_progress: Report, *, is_damaged: bool) -> None:
    """Copy everything to a place next to its final one; the list of files last."""
    await in_thread(lambda: Directory(copy.path).close())
    async with AsyncExitStack() as stack:
        store = None
        if await in_thread(source.files) and not is_damaged:
            store = await stack.enter_async_context(open_store(source, backup, read_only=True))
        await copy.make(backup, store, source.torn, on_progress=on_progress)
    if is_damaged:
        await copy.put_back(source, on_progress)
    await in_thread(copy_missing, backup, copy.path, _OF_ITSELF)
    await in_thread(copy_missing, backup, copy.path, [MANIFEST])


def _settle(copy: Copy, workspace: Path, place: StorePlace, report: BackupReport) -> None:
    """Let the files take their places; their list goes last, because it marks the move as unfinished."""
    if report.entries and not (report.problems or copy.place.files() or place.files()):
        raise ConfigError("the restore that was interrupted had another sessions.store; name that one again")
    copy_missing(copy.path, workspace, _OF_ITSELF)
    copy.take_places(workspace, place)
