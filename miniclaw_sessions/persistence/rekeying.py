"""Encrypting a workspace that is not, changing its key, and decrypting it; while nobody else has it open.

First everything is looked at, so that a wrong key is told before anything has changed. From then on the marker says
that a rekey is under way, and until it is done nobody opens the workspace. Whenever it is cut off it can be run again,
with the same keys or others, and goes on: what is right already is left as it is.

The disk must have room for the store twice. It may keep the old bytes of what was deleted until it uses their place
again, and a flash drive for longer: only encryption from the beginning, or of the whole disk, prevents that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from anyio import to_thread

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.disk import Directory, DirectoryLock, NotRegular
from miniclaw_sessions.encryption import DamagedSeal, KeyRing, is_sealed, of_snapshot
from miniclaw_sessions.errors import ConfigError, WrongKey
from miniclaw_sessions.persistence.marker import DamagedMarker, Marker, read_marker, remove_marker, write_marker
from miniclaw_sessions.persistence.snapshots import SUFFIX
from miniclaw_sessions.persistence.store_copy import DAMAGED, StoreCopy
from miniclaw_sessions.persistence.whole_files import finish_replacing, rekey_file

COPYING, SWAPPING, FILES = "copying the store", "putting the new store in its place", "changing the files"
"""What the marker says of a rekey that is under way."""

CHUNK = 64
"""How many files are changed in one step, and those of sessions with one sync."""

_ANY_SIZE = 2**62
_REASON = ".reason"  # says why a file was set aside, and nothing that anybody said

Report = Callable[[str, int, int | None], None]
"""Called with a stage, how much of it is done, and how much there is (None: that is unknown)."""

T = TypeVar("T")


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
        self._keys = keys
        self._decrypt = decrypt
        self._on_progress = on_progress
        self._store = StoreCopy(settings.store, workspace, keys, decrypt=decrypt)
        self._report = RekeyReport(key=None if decrypt else keys.ids[0])

    async def run(self) -> RekeyReport:
        """Change everything that is not as it should be.

        Raises:
            DirectoryInUse: a process has the workspace.
            WrongKey: something needs a key that is not held; nothing was changed.
            StoreError: the store cannot be read or written.
            ConfigError: the workspace cannot be changed.
        """
        try:
            async with AsyncExitStack() as stack:
                stack.callback((await _in_thread(DirectoryLock, self._workspace)).release)
                await _in_thread(self._finish_swap)
                await self._change()
        except OSError as error:
            raise ConfigError(
                f"the workspace {self._workspace} cannot be changed: {error.strerror or error}. Nothing is lost; mend "
                "the directory or the disk, and run this again"
            ) from error
        return self._report

    def _finish_swap(self) -> None:
        """What an earlier run had decided is done first: the store may be in two pieces."""
        try:
            marker = read_marker(self._workspace)
        except DamagedMarker:
            return  # nothing but a person's hand damages it
        if marker is not None and marker.rekeying == SWAPPING:
            self._store.swap()

    async def _change(self) -> None:
        session_files = await self._look_at_session_files()
        if self._store.is_there and await self._store.needed(self._progress_of("reading the store")):
            await self._mark(COPYING)
            await self._store.make(self._progress_of("copying the store"))
            await self._mark(SWAPPING)
            await _in_thread(self._store.swap)
        self._report.entries = self._store.changed
        self._report.damaged += self._store.damaged
        await self._mark(FILES)
        sessions = self._workspace / "sessions"
        await self._each("changing session files", sessions, session_files, self._rekey_snapshots)
        for path in self._set_aside():
            await _in_thread(_prepare, path)
            names = [name for name in await _in_thread(_names, path) if not name.endswith(_REASON)]
            await self._each(f"changing files in {path.name}", path, names, self._rekey_whole)
        if self._decrypt:
            await _in_thread(remove_marker, self._workspace)
        else:
            await self._mark("")

    async def _mark(self, rekeying: str) -> None:
        await _in_thread(write_marker, self._workspace, Marker(key=self._keys.ids[0], rekeying=rekeying))

    def _progress_of(self, stage: str) -> Callable[[int], None]:
        return lambda done: self._on_progress(stage, done, None)

    async def _each(
        self, stage: str, path: Path, names: Sequence[str], act: Callable[[Directory, Sequence[str]], None]
    ) -> None:
        """Do something to files, a few at a time in a thread."""
        if not names:
            return
        directory = await _in_thread(Directory, path)
        try:
            for start in range(0, len(names), CHUNK):
                chunk = names[start : start + CHUNK]
                await _in_thread(act, directory, chunk)
                self._on_progress(stage, start + len(chunk), len(names))
        finally:
            directory.close()

    # --- session files -----------------------------------------------------------------------------------------------

    async def _look_at_session_files(self) -> list[str]:
        """Their names; every one of them opens, or is damaged.

        Raises:
            WrongKey: one needs a key that is not held.
        """
        path = self._workspace / "sessions"
        names = [name for name in await _in_thread(_names, path) if name.endswith(SUFFIX) and name[0] != "."]
        await self._each("reading session files", path, names, self._look_at_snapshots)
        return names

    def _look_at_snapshots(self, directory: Directory, names: Sequence[str]) -> None:
        for name in names:
            _, is_damaged = self._content(directory, name)
            if is_damaged:
                self._report.damaged.append(f"{directory.path / name} is damaged")

    def _rekey_snapshots(self, directory: Directory, names: Sequence[str]) -> None:
        directory.remove_temporaries()
        contents = {name: self._content(directory, name)[0] for name in names}
        wrong = [(name, partial(bytes, content)) for name, content in contents.items() if content is not None]
        for failure in directory.replace(wrong):
            if failure is not None:
                raise failure
        self._report.snapshots += len(wrong)

    def _content(self, directory: Directory, name: str) -> tuple[bytes | None, bool]:
        """What a session file should hold, or None if it does; and whether it is sealed and damaged.

        What does not open is kept as it is, in what does: whoever reads it finds it damaged, and needs no old key.
        """
        place = of_snapshot(name.removesuffix(SUFFIX))
        try:
            data = directory.read(name, limit=_ANY_SIZE)
        except NotRegular:
            return None, False
        try:
            plain = self._keys.open(data, place, str(directory.path / name)) if is_sealed(data) else data
        except DamagedSeal:
            return (DAMAGED + data if self._decrypt else self._keys.seal(data, place)), True
        if self._decrypt:
            return (plain if is_sealed(data) else None), False
        return (None if self._keys.is_current(data) else self._keys.seal(plain, place)), False

    # --- archives, and what was set aside ----------------------------------------------------------------------------

    def _set_aside(self) -> list[Path]:
        torn = [self._store.place / "torn"] if self._store.is_directory else []
        return [path for path in (self._workspace / "archive", self._workspace / "quarantine", *torn) if path.exists()]

    def _rekey_whole(self, directory: Directory, names: Sequence[str]) -> None:
        for name in names:
            try:
                self._report.files += rekey_file(self._keys, directory, name, decrypt=self._decrypt)
            except NotRegular:
                continue
            except (DamagedSeal, WrongKey) as error:  # nobody needs it to open the workspace
                self._report.damaged.append(str(error))


async def _in_thread(step: Callable[..., T], *arguments: object) -> T:
    return await to_thread.run_sync(partial(step, *arguments))


def _names(path: Path) -> list[str]:
    if not path.exists():
        return []
    with Directory(path) as directory:
        return directory.names()


def _prepare(path: Path) -> None:
    """Put in order what a crash has left in a directory."""
    if path.exists():
        with Directory(path) as directory:
            finish_replacing(directory)
