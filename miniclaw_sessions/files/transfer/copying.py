"""The one mechanism that copies a workspace: its session files, what it has set aside, and its store.

The copy is made in a place of its own (`Copy`), complete and safe, before anything takes the place of anything. A
backup is such a copy; a restored or rekeyed workspace is one whose files then take their places (`Copy.take_places`),
and an interrupted one is completed by running it again. Entries go from store to store (`stores.copying`), so
that the copy's may be of another kind, and sealed otherwise; `migrate` does nothing but that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from anyio import to_thread

from miniclaw_sessions.core.persistence.recognition import recognize
from miniclaw_sessions.core.persistence.snapshots import SUFFIX
from miniclaw_sessions.core.stores import open_store, refuse_another_store, salvage_in, store_place
from miniclaw_sessions.core.stores.base import StorePlace
from miniclaw_sessions.core.stores.copying import copy_store
from miniclaw_sessions.core.stores.encrypted import encrypted
from miniclaw_sessions.core.stores.reading import Transcripts
from miniclaw_sessions.core.stores.sqlite.search_file import SearchFile
from miniclaw_sessions.disk import Directory, DirectoryLock, remove_tree
from miniclaw_sessions.errors import ConfigError, StoreError
from miniclaw_sessions.files.transfer.files import SESSIONS, SET_ASIDE, Sealing, copy_files, files_in

CHUNK = 64
"""How many files are copied in one step, and those of sessions with one sync."""

Report = Callable[[str, int, int | None], None]
"""Called with a stage, how much of it is done, and how much there is (None: that is unknown)."""

T = TypeVar("T")


class CopyReport(msgspec.Struct, kw_only=True):
    """What was copied.

    Attributes:
        sessions: how many the copy has, in its store or in files only.
        entries: what is in the copy's store.
        snapshots: how many session files are in it.
        resealed_snapshots, resealed_files: how many session files, and others, were sealed otherwise on the way.
        problems: what is damaged, one sentence each; it is copied too, and stays damaged.
    """

    sessions: int = 0
    entries: int = 0
    snapshots: int = 0
    resealed_snapshots: int = 0
    resealed_files: int = 0
    problems: list[str] = msgspec.field(default_factory=list)


@asynccontextmanager
async def held(
    workspace: Path, url: str, *, create: bool = False, locked: bool = True, is_target: bool = False
) -> AsyncIterator[StorePlace]:
    """Hold a workspace, so that no other process can open it; gives the place of its store. Run it `in_own_task`.

    Args:
        workspace: the directory.
        url: of its store.
        create: it may be an empty directory, or one of plain session files.
        locked: False for one that cannot be written, and so not locked either.
        is_target: nothing is copied from it; the caller refuses what is in it.

    Raises:
        NotAWorkspace: the directory is no workspace, or another program's; it was not touched.
        DirectoryInUse: a process has it.
        ConfigError: no store goes by this URL, the workspace has its transcripts in another one, or that one was set
            aside and what can be read of it is not in the new one yet.
    """
    place = store_place(url, workspace)
    await in_thread(partial(recognize, workspace, create=create))
    with ExitStack() as stack:
        if locked:
            stack.callback((await in_thread(DirectoryLock, workspace)).release)
        await in_thread(refuse_another_store, place, workspace)
        if not is_target:
            await in_thread(refuse_cut_off_salvage, workspace)
        yield place


def refuse_cut_off_salvage(workspace: Path) -> None:
    """What the new store has so far would be taken for all that there is, and the rest come in behind it."""
    for path in salvage_in(workspace):
        raise ConfigError(
            f"cannot copy the transcripts of {workspace}: its store was damaged, and a start was cut off while it made "
            f"a new one of what can be read ({path}); nothing was changed. Start it once, with `miniclaw-sessions "
            "serve` and the settings that it had, so that the salvage is finished; then run this again"
        )


class Copy:
    """A place for a workspace's files, and one for its store, beside those that they may replace."""

    def __init__(self, path: Path, place: StorePlace) -> None:
        """Nothing is made yet.

        Args:
            path: where session files and what was set aside go; a directory that is not there.
            place: where the store goes; any kind, but it must be in files if there is one to copy.
        """
        self.path = path
        self.place = place
        self.report = CopyReport()

    async def make(
        self,
        workspace: Path | None,
        source: Transcripts | None,
        torn: Path | None,
        *,
        sealing: Sealing | None = None,
        on_progress: Report,
    ) -> None:
        """Copy everything; session files before the store, which may get ahead of them, and never they of it.

        What was set aside is copied before both, for it may come back meanwhile, and once more behind them. A session
        that expires or comes back meanwhile may be in the copy twice, as after a crash.

        Args:
            workspace: the directory with the files to copy; None for a store without one.
            source: its store, opened; None if it has none.
            torn: where the source keeps what crashes left, if it does.
            sealing: what everything gets sealed with, while `source` gives entries that are not; None: everything stays
                as it is.
            on_progress: gets the progress.

        Raises:
            StoreError: the store cannot be read, or the copy not be written.
            WrongKey: a file needs a key that is not held.
            OSError: a file cannot be read or written.
        """
        await in_thread(lambda: Directory(self.path / SESSIONS).close())  # a workspace without sessions is one, too
        incarnations = {} if source is None else await _incarnations(source)
        if workspace is not None:
            await self._copy_set_aside(workspace, sealing, on_progress)
            self.report.resealed_snapshots = await self._copy_files(workspace / SESSIONS, sealing, on_progress)
        stored: Mapping[str, str] = {}
        if source is not None:
            stored = await self._copy_store(source, sealing, on_progress, incarnations)
            if workspace is not None:
                await in_thread(self._leave_out_replaced, workspace, incarnations, stored)
        if workspace is not None:  # what has expired since then is no longer in the store
            await self._copy_set_aside(workspace, sealing, on_progress)
        if torn is not None and self.place.torn is not None:
            self.report.resealed_files += await self._copy_files(torn, sealing, on_progress, self.place.torn)
        names = await in_thread(files_in, self.path / SESSIONS)
        self.report.snapshots = len(names)
        self.report.sessions = len({name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)} | {*stored})

    async def put_back(self, damaged: StorePlace, on_progress: Report) -> None:
        """Copy the files of a damaged store as they are; the next start makes of them what can be made."""
        if damaged.home is None or self.place.home is None or self.place.path is None:
            return
        names = await in_thread(damaged.files)
        await self._copy_files(damaged.home, None, on_progress, self.place.home, names)
        if names and not damaged.is_directory:
            await in_thread((self.place.home / names[0]).rename, self.place.path)

    async def _copy_store(
        self, source: Transcripts, sealing: Sealing | None, on_progress: Report, incarnations: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Copy the store, and return which sessions the copy has. Those that cannot be read keep their files."""
        home = self.place.home
        if home is not None:
            await in_thread(lambda: Directory(home).close())
        async with encrypted(open_store(self.place, self.path), None if sealing is None else sealing.seals) as target:
            copied = await copy_store(
                source, target, partial(on_progress, "copying the store"), total=len(incarnations)
            )
            stored = await _incarnations(target)
        for difference in copied.different:
            raise StoreError(f"the copy is not complete: {difference}; nothing was changed, run this again")
        self.report.entries = copied.entries
        self.report.problems += copied.problems
        return stored | {name: incarnations[name] for name in copied.unreadable if name in incarnations}

    async def _copy_files(
        self,
        source: Path,
        sealing: Sealing | None,
        on_progress: Report,
        target: Path | None = None,
        names: Sequence[str] | None = None,
    ) -> int:
        names = await in_thread(files_in, source) if names is None else names
        changed = 0
        for start in range(0, len(names), CHUNK):
            chunk = names[start : start + CHUNK]
            changed += await in_thread(self._copy_chunk, source, chunk, target or self.path / source.name, sealing)
            on_progress(f"copying {source.name}", start + len(chunk), len(names))
        return changed

    async def _copy_set_aside(self, workspace: Path, sealing: Sealing | None, on_progress: Report) -> None:
        """Copy those of the archived and the damaged files that the copy lacks."""
        for name in SET_ASIDE:
            names = await in_thread(files_in, workspace / name)
            there = set(await in_thread(files_in, self.path / name))
            lacking = [one for one in names if one not in there]
            copied = await self._copy_files(workspace / name, sealing, on_progress, names=lacking)
            self.report.resealed_files += copied

    def _copy_chunk(self, source: Path, names: Sequence[str], target: Path, sealing: Sealing | None) -> int:
        with Directory(source, is_ours=False) as here, Directory(target) as there:
            return copy_files(here, names, there, sealing, self.report.problems)

    def _leave_out_replaced(self, workspace: Path, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """A session that was deleted meanwhile must not come back from its file, nor meet another one of its name.

        What the store has of a session without a file, the next start makes the file of.
        """
        still_there = set(files_in(workspace / SESSIONS))
        doomed = []
        for name in files_in(self.path / SESSIONS):
            was, now = (known.get(name.removesuffix(SUFFIX)) for known in (before, after))
            if was != now or (now is None and name not in still_there):
                doomed.append(name)
        if doomed:
            with Directory(self.path / SESSIONS) as directory:
                directory.remove(doomed)

    def take_places(self, workspace: Path, place: StorePlace) -> None:
        """Let the copy's files take the places of the workspace's. Blocks; cut off, it is done again.

        Raises:
            ConfigError: another program has the store open.
            OSError: it could not be done; do it again.
        """
        if place.is_in_use():
            raise ConfigError(f"another program has {place.path} open; end it, and run this again")
        if place.kind == "sqlite" and place.path is not None:
            SearchFile(place.path).remove()  # it is of the old one, and may say in plain words what is encrypted now
        if self.place.home is not None and place.home is not None and self.place.home.exists():
            if self.place.torn is not None and place.torn is not None:
                _take_all(self.place.torn, place.torn)
            _take_all(self.place.home, place.home, is_ours=place.is_directory)
        for name in (SESSIONS, *SET_ASIDE):
            _take_all(self.path / name, workspace / name)
        self.remove()

    def remove(self) -> None:
        """Delete what there is of the copy. Blocks."""
        for path in (self.place.home, self.path):
            if path is not None:
                remove_tree(path)


async def _incarnations(source: Transcripts) -> dict[str, str]:
    """Which session has each name now."""
    return {stored.head.session_id: stored.head.incarnation async for stored in source.heads()}


def _take_all(source: Path, target: Path, *, is_ours: bool = True) -> None:
    if target.exists():
        with Directory(target, is_ours=is_ours) as old:
            old.remove_temporaries()
    if not source.exists():
        return
    with Directory(source) as new, Directory(target, is_ours=is_ours) as old:
        new.remove([".lock"])
        old.take_all(new)


def copy_missing(source: Path, target: Path, names: Collection[str]) -> None:
    """Copy those of the named files that are there, and are not yet where they are to be. Blocks."""
    with Directory(source, is_ours=False) as here, Directory(target) as there:
        for name in set(names).intersection(here.names()).difference(there.names()):
            try:
                here.copy(name, there, name)
            except FileNotFoundError:  # it went just now, as losses do that are acknowledged
                continue


async def in_thread(step: Callable[..., T], *arguments: object) -> T:
    """What a step that blocks returns."""
    return await to_thread.run_sync(partial(step, *arguments))
