"""Encrypting a workspace that is not, changing its key, and decrypting it; while nobody else has it open.

Everything is copied, sealed with the new key, before anything is changed. Then the marker says that the new files take
the places of the old ones, and until they have nobody opens the workspace. Whenever it is cut off it can be run again,
with the same keys or others.

The disk must have room for the workspace twice. It may keep the old bytes of what was deleted until it uses their place
again, and a flash drive for longer: only encryption from the beginning, or of the whole disk, prevents that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

import msgspec

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.disk import Directory, DirectoryLock, NotRegular
from miniclaw_sessions.encryption import KeyRing, is_sealed
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.persistence.marker import DamagedMarker, Marker, read_marker, remove_marker, write_marker
from miniclaw_sessions.persistence.own_task import in_own_task
from miniclaw_sessions.persistence.recognition import recognize
from miniclaw_sessions.stores import open_store, store_place
from miniclaw_sessions.stores.base import Store, StoredEntry, StoredHead, mark_damaged
from miniclaw_sessions.stores.copying import Source
from miniclaw_sessions.stores.encrypted import encrypted, open_entry
from miniclaw_sessions.stores.reading import read_all
from miniclaw_sessions.transfer.copying import Copy, Report, in_thread
from miniclaw_sessions.transfer.files import (
    SESSIONS,
    SET_ASIDE,
    Sealing,
    files_in,
    is_to_be_resealed,
    resealed_snapshot,
)

BESIDE = ".rekeyed"
"""What follows the name of the store, in the name of the directory in which its copy is; and where the files' is."""

SWAPPING = "putting the new files in their places"
"""What the marker says of a rekey that is under way."""

_ANY_SIZE = 2**62


class RekeyReport(msgspec.Struct, kw_only=True):
    """What was changed.

    Attributes:
        key: the id of the key that everything is encrypted with; None: nothing is.
        entries: how many entries of the store.
        snapshots: how many session files.
        files: how many archives, and files that were set aside.
        damaged: what did not open, one sentence each; it is kept, and stays damaged.
    """

    key: str | None = None
    entries: int = 0
    snapshots: int = 0
    files: int = 0
    damaged: list[str] = msgspec.field(default_factory=list)


class Rekey:
    """One run of it."""

    def __init__(
        self, workspace: Path, settings: SessionSettings, keys: KeyRing, *, decrypt: bool, on_progress: Report
    ) -> None:
        """Nothing is touched yet.

        Args:
            workspace: the directory.
            settings: which store it has.
            keys: all that are needed to read what is there; the first one encrypts.
            decrypt: leave nothing encrypted instead.
            on_progress: told how it advances, on the event loop.
        """
        self._workspace = workspace
        self._url = settings.store
        self._keys = keys
        self._sealing = Sealing(keys, None if decrypt else keys)
        self._on_progress = on_progress
        kind, self._place = store_place(settings.store, workspace)
        self._has_store = kind in ("sqlite", "jsonl")
        self._copy = Copy(workspace / BESIDE, settings.store, self._place.with_name(self._place.name + BESIDE))

    @in_own_task
    async def run(self) -> RekeyReport:
        """Change everything that is not as it should be.

        Raises:
            NotAWorkspace: the directory is another program's; it was not touched.
            DirectoryInUse: a process has the workspace.
            WrongKey: something needs a key that is not held; nothing was changed.
            StoreError: the store cannot be read or written.
            ConfigError: the workspace cannot be changed.
        """
        try:
            await in_thread(partial(recognize, self._workspace, create=True))
            async with AsyncExitStack() as stack:
                stack.callback((await in_thread(DirectoryLock, self._workspace)).release)
                await in_thread(self._finish_swap)
                return await self._change()
        except OSError as error:
            raise ConfigError(
                f"the workspace {self._workspace} cannot be changed: {error.strerror or error}. Nothing is lost; mend "
                "the directory or the disk, and run this again"
            ) from error

    def _finish_swap(self) -> None:
        """What an earlier run had decided is done first: the workspace may be in two pieces."""
        marker = None
        with suppress(DamagedMarker):  # nothing but a person's hand damages it
            marker = read_marker(self._workspace)
        if marker is not None and marker.rekeying == SWAPPING:
            self._copy.take_places(self._workspace, self._url)
        self._copy.remove()

    async def _change(self) -> RekeyReport:
        key = None if self._sealing.seals is None else self._keys.ids[0]
        report = RekeyReport(key=key)
        reading = _Reading(self._sealing)
        if await in_thread(self._are_files_wrong) | await self._is_store_wrong(reading):
            await self._make_copy(_Reading(self._sealing))
            await in_thread(write_marker, self._workspace, Marker(key=self._keys.ids[0], rekeying=SWAPPING))
            self._on_progress(SWAPPING, 0, None)
            await in_thread(self._copy.take_places, self._workspace, self._url)
            copied = self._copy.report
            report.entries, report.damaged = reading.changed, copied.problems
            report.snapshots, report.files = copied.resealed_snapshots, copied.resealed_files
        if key is None:
            await in_thread(remove_marker, self._workspace)
        else:
            await in_thread(write_marker, self._workspace, Marker(key=key))
        return report

    async def _make_copy(self, reading: _Reading) -> None:
        await in_thread(lambda: Directory(self._copy.path).close())
        async with AsyncExitStack() as stack:
            source: Source | None = None
            target: Store = open_store("none:", self._workspace)
            if self._has_store and self._place.exists():
                await in_thread(lambda: Directory(self._copy.store_path).close())
                source = reading.of(await stack.enter_async_context(open_store(self._url, self._workspace)))
                target = await stack.enter_async_context(encrypted(self._copy.open_store(), self._sealing.seals))
            torn = self._place / "torn" if self._copy.kind == "jsonl" else None
            progress = self._on_progress
            await self._copy.make(
                self._workspace, source, target, torn=torn, sealing=self._sealing, on_progress=progress
            )

    # --- what is wrong -----------------------------------------------------------------------------------------------

    async def _is_store_wrong(self, reading: _Reading) -> bool:
        """Read every entry; whether there is one that is sealed otherwise than it should be."""
        if not (self._has_store and self._place.exists()):
            return False
        done = 0
        async with open_store(self._url, self._workspace) as store:
            source = reading.of(store)
            async for stored in source.heads():
                async for _ in read_all(source, stored.head.session_id):
                    done += 1
                    self._on_progress("reading the store", done, None)
        return reading.changed > 0

    def _are_files_wrong(self) -> bool:
        """Look at every file; whether there is one that is sealed otherwise than it should be.

        Raises:
            WrongKey: a session's file needs a key that is not held.
        """
        wrong = False
        names = files_in(self._workspace / SESSIONS)
        for name in names:
            path = self._workspace / SESSIONS / name
            with Directory(path.parent) as directory:
                try:
                    data = directory.read(name, limit=_ANY_SIZE)
                except NotRegular:
                    continue
            wrong = resealed_snapshot(self._sealing, data, path, []) is not None or wrong
        kept = [self._workspace / name for name in SET_ASIDE]
        for path in (*kept, self._place / "torn") if self._copy.kind == "jsonl" else kept:
            for name in files_in(path):
                with Directory(path) as directory:
                    wrong = is_to_be_resealed(self._sealing, directory, name) or wrong
        return wrong


class _Reading:
    """A store whose entries come out opened, whether they were sealed or not; counts those that are sealed wrongly."""

    def __init__(self, sealing: Sealing) -> None:
        self.changed = 0
        self._sealing = sealing
        self._store: Source | None = None

    def of(self, store: Source) -> _Reading:
        self._store = store
        return self

    async def heads(self) -> AsyncIterator[StoredHead]:
        """The store's."""
        assert self._store is not None  # noqa: S101 - `of` was called
        async for stored in self._store.heads():
            yield stored

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """A page of entries, opened."""
        assert self._store is not None  # noqa: S101 - same
        page = await self._store.read(session_id, after=after, limit=limit)
        return [self._opened(session_id, stored) for stored in page]

    def _opened(self, session_id: str, stored: StoredEntry) -> StoredEntry:
        seals = self._sealing.seals
        if not is_sealed(stored.encoded):
            self.changed += seals is not None
            return stored
        opened = open_entry(self._sealing.opens, session_id, stored)
        is_shut = opened.encoded == mark_damaged(stored.encoded)
        self.changed += seals is None or is_shut or not seals.is_current(stored.encoded)
        return opened
