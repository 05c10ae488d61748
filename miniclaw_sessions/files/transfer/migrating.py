"""Migration: every session of one store into another one, of any kinds, also while they are used.

A source or a target is a store's URL, or a workspace's directory. What was written is compared session by session with
what was read (`stores.copying`), so a move that was cut off is run again, and goes on where it was. What a workspace
keeps beside its store goes from directory to directory too: archived sessions, and what is known to be lost. Session
files are made when the target is opened.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.persistence.marker import check_marker
from miniclaw_sessions.core.persistence.own_task import in_own_task
from miniclaw_sessions.core.persistence.recognition import is_ours, recognize
from miniclaw_sessions.core.persistence.workspace import open_snapshots
from miniclaw_sessions.core.stores import STORE_URLS, open_store, refuse_another_store, store_place, stores_in
from miniclaw_sessions.core.stores.base import Store, StorePlace
from miniclaw_sessions.core.stores.copying import Copied, compare_stores, copy_store
from miniclaw_sessions.core.stores.encrypted import encrypted
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.core.stores.reading import Transcripts
from miniclaw_sessions.core.stores.sqlite.files import is_open_elsewhere
from miniclaw_sessions.disk import Directory, DirectoryLock
from miniclaw_sessions.encryption import KeyRing, is_sealed
from miniclaw_sessions.errors import ConfigError, DirectoryInUse, NotAWorkspace
from miniclaw_sessions.files.transfer.checkpoints import carry
from miniclaw_sessions.files.transfer.copying import Report, in_thread, refuse_cut_off_salvage
from miniclaw_sessions.files.transfer.files import SESSIONS, Sealing, files_in
from miniclaw_sessions.files.transfer.rekeying import Opened
from miniclaw_sessions.files.transfer.session_files import SessionFiles
from miniclaw_sessions.files.transfer.surroundings import Surroundings, copy_surroundings, surroundings_of


class Change(Enum):
    """What becomes of the encryption on the way."""

    NONE = "everything stays as it is, and no key is needed"
    ENCRYPT = "everything is sealed with the first key"
    DECRYPT = "everything is opened"


class Location(msgspec.Struct, frozen=True):
    """Where sessions live.

    Attributes:
        url: as it was given; a directory's path is absolute.
        place: the store.
        workspace: the directory with the files beside the store; None for a store without a directory.
    """

    url: str
    place: StorePlace
    workspace: Path | None = None


class Moved(msgspec.Struct, kw_only=True):
    """What became of a move.

    Attributes:
        source, target: from where, and where to.
        copied: the sessions.
        archived: how many archived sessions were copied; those that were there already are not counted.
        held_by: the pid of the process that has the source open, 0: an unknown one; None: no process had it open, or
            could open it while it was copied.
        is_shared: whether the source is on a server, where any number of processes may use it.
        is_dry: nothing was written.
    """

    source: str
    target: str
    copied: Copied
    archived: int = 0
    held_by: int | None = None
    is_shared: bool = False
    is_dry: bool = False


def location(text: str, workspace: Path, store: str = "") -> Location:
    """What a URL or a directory means.

    Args:
        text: a store's URL, or the path of a workspace.
        workspace: the directory that `sqlite:`, `jsonl:` and `none:` are relative to.
        store: the URL of that workspace's store, where that may lie elsewhere.

    Raises:
        ConfigError: it is neither, or the directory has more than one store. A mere word is only a directory if one of
            this name exists: it may be a store's URL that lacks its colon.
    """
    if ":" not in text.partition("/")[0]:
        directory = Path(text).expanduser().absolute()
        if "/" not in text and not text.startswith("~") and not directory.exists():
            raise ConfigError(
                f"{text!r} is neither a store's URL ({', '.join(STORE_URLS)}) nor a directory; "
                f"for a new one say './{text}'"
            )
        found = stores_in(directory)
        if store and directory == workspace and not found:
            return Location(str(directory), store_place(store, workspace), workspace)
        if len(found) > 1:
            urls = " or ".join(f"{place.kind}://{place.path}" for place in found)
            raise ConfigError(f"{directory} has more than one store; say which one: {urls}")
        kind = found[0].kind if found else "none" if files_in(directory / SESSIONS) else "sqlite"
        return Location(str(directory), store_place(f"{kind}:", directory), directory)
    place = store_place(text, workspace)
    if place.url is not None:
        return Location(text, place)
    own = [f"{place.kind}:", *([store] if store else [])]
    if place.path is None or place in [store_place(url, workspace) for url in own]:
        return Location(text, place, workspace)
    parent = place.path.parent
    is_a_workspace = place == store_place(f"{place.kind}:", parent) and is_ours(parent)
    return Location(text, place, parent if is_a_workspace else None)


@in_own_task
async def migrate(  # noqa: PLR0913 - both houses, and how to move
    source: Location,
    target: Location,
    keys: KeyRing | None = None,
    *,
    change: Change = Change.NONE,
    delete_others: bool = False,
    dry_run: bool = False,
    settings: SessionSettings | None = None,
    on_progress: Report = lambda *_: None,
) -> Moved:
    """Copy every session into another store; the source stays as it is, and may be in use. Cut off, run it again.

    Args:
        source: from where; a daemon may have it.
        target: where to; unless it is on a server, no other process may have it.
        keys: needed if something must be opened or sealed.
        change: what becomes of the encryption.
        delete_others: leave nothing in the target that is not in the source.
        dry_run: write nothing, and compare only which sessions there are and how long they are.
        settings: how a server is reached, and how large session files may be.
        on_progress: gets the progress.

    Raises:
        ConfigError: one of the two keeps nothing, both are the same, the source is not there or lacks what is still to
            be salvaged, or one is encrypted and the other would not be.
        NotAWorkspace: a directory is another program's; it was not touched.
        DirectoryInUse: a process has the target.
        StoreError: the source cannot be read, or the target not be written.
    """
    _refuse_senseless(source, target, change)
    settings = settings or SessionSettings()
    async with AsyncExitStack() as stack:
        moved = Moved(source=source.url, target=target.url, copied=Copied(), is_dry=dry_run)
        given, there = await _open_both(moved, source, target, keys, settings, stack)
        here, around = _around(source, given), _around(target, there)
        was = await _how_sealed(given, here, keys)
        _refuse_mixture(was, await _how_sealed(there, around, None), keys, change)
        view, written = _sealed_as_wanted(given, there, was, keys, change)
        if dry_run:
            moved.copied = await compare_stores(view, written)
            return moved
        total = len(await given.session_ids())
        if delete_others and not total:
            raise ConfigError(f"cannot migrate from {source.url}: it is empty, and everything would be deleted")
        report = partial(on_progress, "copying sessions")
        copy = partial(copy_store, view, written, report, total=total, delete_others=delete_others)
        if here is None or around is None or here.root == around.root:
            moved.copied = await copy()
            return moved
        opens = None if was.is_sealed is False else keys
        seals = opens if change is Change.NONE else keys if change is Change.ENCRYPT else None
        ours = await stack.enter_async_context(here.checkpoints(opens, settings, read_only=True))
        theirs = await stack.enter_async_context(around.checkpoints(seals, settings))
        moved.copied = await copy(before_deletion=theirs.forget)
        on_progress("copying what is beside them", 0, None)
        moved.archived = await _copy_rest(here, around, keys, change, moved.copied.problems)
        if not isinstance(given, SessionFiles):  # of which the files are all there is
            await carry(ours, theirs, moved.copied.alike)
    return moved


async def _open_both(  # noqa: PLR0913, PLR0917 - both houses, and how to open them
    moved: Moved,
    source: Location,
    target: Location,
    keys: KeyRing | None,
    settings: SessionSettings,
    stack: AsyncExitStack,
) -> tuple[Store | SessionFiles, Store]:
    moved.held_by = await in_thread(_prepare_source, source, stack)
    moved.is_shared = source.place.url is not None
    if not moved.is_dry:
        await in_thread(_prepare_target, target, source, moved.held_by, stack)
    given = await stack.enter_async_context(_opened(source, keys, settings))
    return given, await stack.enter_async_context(_opened_target(target, settings, dry_run=moved.is_dry))


def _refuse_senseless(source: Location, target: Location, change: Change) -> None:
    if source.place == target.place:
        raise ConfigError(f"cannot migrate from {source.url} to {target.url}: name two different stores")
    if not target.place.durable:
        raise ConfigError(
            f"cannot migrate to {target.url}: it keeps no transcripts. To go on with the newest messages of each "
            "session only, set sessions.store to 'none:': the session files of the workspace have them"
        )
    if change is not Change.NONE and target.workspace is not None and source.workspace == target.workspace:
        raise ConfigError(
            f"cannot {change.name.lower()} on the way within {target.workspace}: its session files and its archive "
            "would stay as they are; use `miniclaw-sessions rekey` first, or migrate to another directory"
        )
    if source.place.kind == "memory":
        raise ConfigError(f"cannot migrate from {source.url}: it is gone with the process that had it")


# --- before ----------------------------------------------------------------------------------------------------------


def _prepare_source(source: Location, stack: AsyncExitStack) -> int | None:
    """Lock the source's directory, if that is possible; return the pid of the process that has it otherwise."""
    workspace = source.workspace
    if workspace is None:
        if source.place.path is not None and not source.place.files():
            raise ConfigError(f"cannot migrate from {source.url}: there is no {source.place.path}")
        return 0 if source.place.is_in_use() else None
    recognize(workspace, create=source.place.kind == "none")
    held_by = None
    if os.access(workspace, os.W_OK):
        try:
            stack.callback(DirectoryLock(workspace).release)
        except DirectoryInUse as error:
            held_by = error.pid or 0
    refuse_cut_off_salvage(workspace)
    refuse_another_store(source.place, workspace)
    if source.place.path is not None and not source.place.is_there():
        raise ConfigError(f"cannot migrate from {source.url}: there is no {source.place.path}")
    if source.place.kind == "none" and held_by is not None:  # its files say less than it knows
        raise DirectoryInUse(str(workspace), held_by or None)
    return held_by


def _prepare_target(target: Location, source: Location, held_by: int | None, stack: AsyncExitStack) -> None:
    """Make the target's directory, and lock it.

    A directory of transcripts has a lock of its own; a database beside those of a workspace that is held has not.
    """
    workspace, path = target.workspace, target.place.path
    if workspace is not None and workspace != source.workspace:
        recognize(workspace, create=True)
        Directory(workspace).close()
        stack.callback(DirectoryLock(workspace).release)
        refuse_another_store(target.place, workspace)
    is_held = workspace is not None and (workspace != source.workspace or held_by is None)
    if not is_held and target.place.kind == "sqlite" and path is not None and path.exists() and is_open_elsewhere(path):
        raise DirectoryInUse(str(workspace or path), held_by or None)


@asynccontextmanager
async def _opened(
    source: Location, keys: KeyRing | None, settings: SessionSettings
) -> AsyncIterator[Store | SessionFiles]:
    workspace = source.workspace
    if source.place.kind != "none":
        servers = settings.postgresql
        async with open_store(source.place, workspace or Path(), postgresql=servers, read_only=True) as store:
            yield store
        return
    if workspace is None:
        raise NotAWorkspace(f"{source.url} is in no directory; name the workspace")
    await in_thread(check_marker, workspace, keys)
    opening = partial(open_snapshots, clock=SystemClock(), encryption=keys, read_only=True)
    with closing(await in_thread(opening, workspace, settings)) as snapshots:
        yield SessionFiles(snapshots)


@asynccontextmanager
async def _opened_target(target: Location, settings: SessionSettings, *, dry_run: bool) -> AsyncIterator[Store]:
    place, workspace = target.place, target.workspace or Path()
    store = open_store(place, workspace, postgresql=settings.postgresql, read_only=dry_run)
    async with AsyncExitStack() as stack:
        if dry_run and place.url is None and not await in_thread(place.files):
            store = MemoryStore()  # it is not there yet
        try:
            opened = await stack.enter_async_context(store)
        except NotAWorkspace:  # nor are its tables
            opened = MemoryStore()
        yield opened


# --- encryption ------------------------------------------------------------------------------------------------------


def _sealing(keys: KeyRing, change: Change) -> Sealing:
    return Sealing(keys, keys if change is Change.ENCRYPT else None)


class _Sealed(NamedTuple):
    """How a side is encrypted: None, it is not known; with which key, where that is known."""

    is_sealed: bool | None
    key: str = ""


async def _how_sealed(store: Store | SessionFiles, around: Surroundings | None, keys: KeyRing | None) -> _Sealed:
    """What the side says of itself, or else the first entry that is found."""
    if around is not None and (marker := await around.marker()) is not None:
        return _Sealed(marker.key != "", marker.key)
    if isinstance(store, SessionFiles):
        return _Sealed(keys is not None)
    async for stored in store.heads():
        for entry in await store.read(stored.head.session_id, limit=1):
            return _Sealed(is_sealed(entry.encoded))
    return _Sealed(None)


def _refuse_mixture(was: _Sealed, there: _Sealed, keys: KeyRing | None, change: Change) -> None:
    """Refuse to put entries among others that are sealed otherwise: no process could open both.

    Raises:
        ConfigError: it would be so, or there is no key where one is needed.
    """
    if change is not Change.NONE and keys is None:
        raise ConfigError(f"cannot {change.name.lower()} without a key: name its file with --key-file")
    will_be = was
    if change is not Change.NONE:
        will_be = _Sealed(
            change is Change.ENCRYPT, keys.ids[0] if keys is not None and change is Change.ENCRYPT else ""
        )
    if there.is_sealed is None or will_be.is_sealed is None:
        return
    if there.is_sealed != will_be.is_sealed:
        state, add = ("encrypted", "--encrypt") if there.is_sealed else ("not encrypted", "--decrypt")
        raise ConfigError(f"cannot migrate: what the target has is {state}, and this would not be; say {add}")
    if there.key and will_be.key and there.key != will_be.key:
        raise ConfigError(
            f"cannot migrate: the target is encrypted with the key {there.key}, and this would be with {will_be.key}; "
            "say --encrypt, with a --key-file that has the target's key first and the source's behind it"
        )


def _sealed_as_wanted(
    given: Store | SessionFiles, there: Store, was: _Sealed, keys: KeyRing | None, change: Change
) -> tuple[Transcripts, Store]:
    """Both sides, so that what comes out of the one goes into the other as it is wanted there."""
    if isinstance(given, SessionFiles):
        will_be = was.is_sealed if change is Change.NONE else change is Change.ENCRYPT
        return given, encrypted(there, keys if will_be else None)
    if change is Change.NONE or keys is None:
        return given, there
    return Opened(given, _sealing(keys, change)), encrypted(there, keys if change is Change.ENCRYPT else None)


# --- around the store ------------------------------------------------------------------------------------------------


def _around(one: Location, store: Store | SessionFiles) -> Surroundings | None:
    return surroundings_of(one.workspace, None if isinstance(store, SessionFiles) else store)


async def _copy_rest(
    source: Surroundings, target: Surroundings, keys: KeyRing | None, change: Change, problems: list[str]
) -> int:
    """Copy the archive, and what is known of everything: its encryption, losses, the ids of mirrored sessions.

    Returns:
        How many archived sessions.
    """
    sealing = None if keys is None or change is Change.NONE else _sealing(keys, change)
    archived = await copy_surroundings(source, target, sealing, problems)
    if sealing is not None:
        await target.write_marker("" if sealing.seals is None else sealing.seals.ids[0])
    elif (marker := await source.marker()) is not None:
        await target.write_marker(marker.key)
    await target.note_losses(await source.losses())
    return archived
