"""The one mechanism that copies a workspace: its session files, what it has set aside, and its store.

The copy is made in a place of its own (`Copy`), complete and safe, before anything takes the place of anything. A
backup is such a copy; a restored or rekeyed workspace is one whose files then take their places (`Copy.take_places`),
and whoever is cut off while they do goes on by doing it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from anyio import to_thread

from miniclaw_sessions.disk import Directory, remove_tree
from miniclaw_sessions.errors import ConfigError, StoreError
from miniclaw_sessions.persistence.snapshots import SUFFIX
from miniclaw_sessions.stores import open_store, store_place
from miniclaw_sessions.stores.base import Store
from miniclaw_sessions.stores.copying import Source, copy_store
from miniclaw_sessions.transfer.files import SESSIONS, SET_ASIDE, Sealing, copy_files, files_in

CHUNK = 64
"""How many files are copied in one step, and those of sessions with one sync."""

Report = Callable[[str, int, int | None], None]
"""Called with a stage, how much of it is done, and how much there is (None: that is unknown)."""

T = TypeVar("T")


class CopyReport(msgspec.Struct, kw_only=True):
    """What was copied.

    Attributes:
        sessions, entries: what is in the copy's store.
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


class Copy:
    """A place for a workspace's files, and one for its store, beside those that they may replace."""

    def __init__(self, path: Path, url: str, store_path: Path) -> None:
        """Nothing is made yet.

        Args:
            path: where session files and what was set aside go; a directory that is not there.
            url: which kind of store the workspace has.
            store_path: the directory in which the store's database is made, or its transcripts.
        """
        self.path = path
        self.store_path = store_path
        self.kind, place = store_place(url, path)
        self._database = store_path / place.name
        self.report = CopyReport()

    @property
    def torn(self) -> Path:
        """Where a store of transcripts keeps what crashes left."""
        return self.store_path / "torn"

    def open_store(self) -> Store:
        """The copy's store, not yet opened."""
        places = {"sqlite": f"sqlite://{self._database}", "jsonl": f"jsonl://{self.store_path}"}
        return open_store(places.get(self.kind, f"{self.kind}:"), self.path)

    async def make(  # noqa: PLR0913 - what, into what, and how
        self,
        workspace: Path,
        source: Source | None,
        target: Store,
        *,
        torn: Path | None,
        sealing: Sealing | None,
        on_progress: Report,
    ) -> None:
        """Copy everything; session files first, for the store may get ahead of them, and never they of it.

        Args:
            workspace: whose files are copied.
            source: its store, opened; None where it keeps no entries.
            target: the copy's store, opened; it may seal what it is given.
            torn: where the source keeps what crashes left, if it does.
            sealing: what the files are to be sealed with; None: they stay as they are.
            on_progress: told how it advances.

        Raises:
            StoreError: the store cannot be read, or the copy not be written.
            WrongKey: a file needs a key that is not held.
            OSError: a file cannot be read or written.
        """
        incarnations = {} if source is None else await _incarnations(source)
        self.report.resealed_snapshots = await self._copy_files(workspace / SESSIONS, sealing, on_progress)
        for name in SET_ASIDE:
            self.report.resealed_files += await self._copy_files(workspace / name, sealing, on_progress)
        if torn is not None:
            self.report.resealed_files += await self._copy_files(torn, sealing, on_progress, self.torn)
        if source is not None:
            copied = await copy_store(source, target, lambda done: on_progress("copying the store", done, None))
            self.report.sessions, self.report.entries = copied.sessions, copied.entries
            self.report.problems += copied.problems
            await self._check_complete(target, copied.sessions)
            await self._leave_out_replaced(workspace, target, incarnations)
        self.report.snapshots = len(await in_thread(files_in, self.path / SESSIONS))

    async def _copy_files(
        self, source: Path, sealing: Sealing | None, on_progress: Report, target: Path | None = None
    ) -> int:
        names, changed = await in_thread(files_in, source), 0
        if not names:
            return 0
        for start in range(0, len(names), CHUNK):
            chunk = names[start : start + CHUNK]
            changed += await in_thread(self._copy_chunk, source, chunk, target or self.path / source.name, sealing)
            on_progress(f"copying {source.name}", start + len(chunk), len(names))
        return changed

    def _copy_chunk(self, source: Path, names: Sequence[str], target: Path, sealing: Sealing | None) -> int:
        with Directory(source, is_ours=False) as here, Directory(target) as there:
            return copy_files(here, names, there, sealing, self.report.problems)

    async def _check_complete(self, target: Store, sessions: int) -> None:
        found = await target.session_ids()
        if len(found) != sessions:
            raise StoreError(f"the copy has {len(found)} of {sessions} sessions; nothing was changed, run this again")

    async def _leave_out_replaced(self, workspace: Path, target: Store, incarnations: Mapping[str, str]) -> None:
        """A session that was deleted meanwhile must not come back from its file, nor meet another one of its name.

        What the store has of a session without a file, the next start makes the file of.
        """
        stored = await _incarnations(target)
        still_there = set(await in_thread(files_in, workspace / SESSIONS))
        doomed = []
        for name in await in_thread(files_in, self.path / SESSIONS):
            before, after = (known.get(name.removesuffix(SUFFIX)) for known in (incarnations, stored))
            if before != after or (after is None and name not in still_there):
                doomed.append(name)
        if doomed:
            await in_thread(_remove, self.path / SESSIONS, doomed)

    def take_places(self, workspace: Path, url: str) -> None:
        """Let the copy's files take the places of the workspace's. Blocks; cut off, it is done again.

        Raises:
            ConfigError: another program has the database open.
            OSError: it could not be done; do it again.
        """
        kind, place = store_place(url, workspace)
        if kind == "sqlite" and place.with_name(f"{place.name}-wal").exists():
            raise ConfigError(f"another program has {place} open; end it, and run this again")
        if self.store_path.exists():
            home = place if kind == "jsonl" else place.parent
            _take_all(self.torn, home / "torn")
            _take_all(self.store_path, home, is_ours=kind == "jsonl")
        for name in (SESSIONS, *SET_ASIDE):
            _take_all(self.path / name, workspace / name)
        self.remove()

    def remove(self) -> None:
        """Delete what there is of the copy. Blocks."""
        for path in (self.store_path, self.path):
            remove_tree(path)


async def _incarnations(source: Source) -> dict[str, str]:
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


def _remove(path: Path, names: Sequence[str]) -> None:
    with Directory(path) as directory:
        directory.remove(names)


async def in_thread(step: Callable[..., T], *arguments: object) -> T:
    """What a step that blocks returns."""
    return await to_thread.run_sync(partial(step, *arguments))
