"""What lies around the transcripts: archived sessions, how all is encrypted, losses, and the ids of mirrored sessions.

A workspace has it in its directory, a server in rows beside the sessions. The bytes of archived files stay what they
are, unless they are to be sealed otherwise; one that is there already is left as it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, Protocol

import msgspec
import orjson
from anyio import CancelScope

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.persistence.archive import SUFFIX, session_of, write_archived_file
from miniclaw_sessions.core.persistence.losses import Loss, Losses
from miniclaw_sessions.core.persistence.marker import Marker, read_marker, write_marker
from miniclaw_sessions.core.persistence.mirrored import PROPERTY as MIRRORED
from miniclaw_sessions.core.persistence.mirrored import MirroredIds
from miniclaw_sessions.core.persistence.snapshots import largest_snapshot
from miniclaw_sessions.core.persistence.workspace import open_snapshots
from miniclaw_sessions.core.sharing.checkpoints import StoredCheckpoints
from miniclaw_sessions.core.sharing.database import ENCRYPTION
from miniclaw_sessions.core.stores.base import Store
from miniclaw_sessions.core.stores.shared_store import SharedStore, as_shared
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import StoreCorrupt
from miniclaw_sessions.files.transfer.checkpoints import InFiles, InRows, Side
from miniclaw_sessions.files.transfer.copying import in_thread
from miniclaw_sessions.files.transfer.files import Sealing, copy_files, files_in

ARCHIVE = "archive"
_PIECE_BYTES = 1 << 18


class _GoneError(Exception):
    """An archived file was deleted, or its session came back, while it was read."""


class Surroundings(Protocol):
    """What lies around the transcripts of one store. Every call may raise OSError or StoreError."""

    @property
    def root(self) -> object:
        """The directory, or the server's store: those with equal roots are the same."""
        ...

    async def write_archived(self, target: Path, sealing: Sealing | None, problems: list[str]) -> int:
        """Write the archived files that a directory lacks into it.

        Args:
            target: the directory.
            sealing: what they are sealed with there; None: they stay as they are.
            problems: gets a sentence for each that does not open; it is copied as it is.

        Returns:
            How many.
        """
        ...

    def archived(self, sealing: Sealing | None, problems: list[str]) -> AbstractAsyncContextManager[Path]:
        """A directory with the archived files, sealed as is said; to be read only."""
        ...

    async def take_archived(self, source: Surroundings, sealing: Sealing | None, problems: list[str]) -> int:
        """Copy the archived files that this lacks from elsewhere. Returns how many."""
        ...

    async def mirrored(self) -> list[str]:
        """The ids of sessions that mirror another program's, deleted ones too."""
        ...

    async def note_mirrored(self, session_ids: list[str]) -> None:
        """Note the ids of sessions that mirror another program's, so that deleted ones are not made again here."""
        ...

    async def losses(self) -> Mapping[str, Loss]:
        """What was lost with a former store, by session id."""
        ...

    async def note_losses(self, losses: Mapping[str, Loss]) -> None:
        """Note what was lost with a former store."""
        ...

    async def marker(self) -> Marker | None:
        """What says how everything is encrypted; None: nothing does. One with an empty key says that nothing is."""
        ...

    async def write_marker(self, key: str) -> None:
        """Say with which key everything is encrypted, unless something is said already.

        Args:
            key: its id; empty: nothing is encrypted, which a workspace says by saying nothing.
        """
        ...

    def checkpoints(
        self, keys: KeyRing | None, settings: SessionSettings, *, read_only: bool = False
    ) -> AbstractAsyncContextManager[Side]:
        """The checkpoints of the sessions, open."""
        ...


def surroundings_of(workspace: Path | None, store: Store | None) -> Surroundings | None:
    """What lies around a store: on its server, or in the workspace; None: it has neither."""
    if store is not None and store.shared:
        return OnServer(as_shared(store))
    return None if workspace is None else InDirectory(workspace)


async def copy_surroundings(
    source: Surroundings, target: Surroundings, sealing: Sealing | None, problems: list[str]
) -> int:
    """Copy the archived sessions that the target lacks, and the ids of mirrored sessions.

    Args:
        source: what has them.
        target: what gets them.
        sealing: what archived files are sealed with there; None: they stay as they are.
        problems: gets a sentence for each that does not open; it is copied as it is.

    Returns:
        How many archived sessions.
    """
    copied = await target.take_archived(source, sealing, problems)
    await target.note_mirrored(await source.mirrored())
    return copied


class InDirectory:
    """The surroundings in a workspace's directory."""

    def __init__(self, path: Path) -> None:
        self.root = path

    def __repr__(self) -> str:
        return f"<InDirectory {self.root}>"

    async def write_archived(self, target: Path, sealing: Sealing | None, problems: list[str]) -> int:
        """Copy files."""
        return await in_thread(_copy_files, self.root / ARCHIVE, target, sealing, problems)

    @asynccontextmanager
    async def archived(self, sealing: Sealing | None, problems: list[str]) -> AsyncIterator[Path]:
        """Its own directory; a private one, where they are sealed."""
        if sealing is None:
            yield self.root / ARCHIVE
            return
        async with _private_directory() as directory:
            await self.write_archived(directory, sealing, problems)
            yield directory

    async def take_archived(self, source: Surroundings, sealing: Sealing | None, problems: list[str]) -> int:
        """Let the source write them here."""
        return await source.write_archived(self.root / ARCHIVE, sealing, problems)

    async def mirrored(self) -> list[str]:
        """Those in its file."""
        return await in_thread(lambda: list(MirroredIds(self.root)))

    async def note_mirrored(self, session_ids: list[str]) -> None:
        """Add them to its file."""
        known = MirroredIds(self.root)
        for session_id in session_ids:
            await in_thread(known.note, session_id)

    async def losses(self) -> Mapping[str, Loss]:
        """Those in its file."""
        return await in_thread(lambda: Losses(self.root).known)

    async def note_losses(self, losses: Mapping[str, Loss]) -> None:
        """Add them to its file."""
        if losses:
            await in_thread(lambda: Losses(self.root).note(losses))

    async def marker(self) -> Marker | None:
        """Its file."""
        return await in_thread(read_marker, self.root)

    async def write_marker(self, key: str) -> None:
        """Write its file; for no key, none."""
        if key and await self.marker() is None:
            await in_thread(write_marker, self.root, Marker(key=key))

    @asynccontextmanager
    async def checkpoints(
        self, keys: KeyRing | None, settings: SessionSettings, *, read_only: bool = False
    ) -> AsyncIterator[Side]:
        """The session files."""
        clock = SystemClock()
        opening = partial(open_snapshots, clock=clock, encryption=keys, read_only=read_only)
        with closing(await in_thread(opening, self.root, settings)) as snapshots:
            yield InFiles(snapshots, clock)


class OnServer:
    """The surroundings in rows of a shared store."""

    def __init__(self, store: SharedStore) -> None:
        self.root = store

    def __repr__(self) -> str:
        return f"<OnServer {self.root.place.shown}>"

    async def write_archived(self, target: Path, sealing: Sealing | None, problems: list[str]) -> int:
        """Write files as they come; where they are sealed, by way of a private directory."""
        if sealing is not None:
            async with self.archived(None, problems) as directory:
                return await in_thread(_copy_files, directory, target, sealing, problems)
        names = await self.root.archived()
        missing = sorted(set(names).difference(await in_thread(files_in, target)))
        written = 0
        for name in missing:
            with suppress(_GoneError):
                await write_archived_file(target, name, self._whole(name))
                written += 1
        return written

    async def _whole(self, name: str) -> AsyncIterator[bytes]:
        """The bytes of an archived file; each row is read by itself, and the file may go in between.

        Raises:
            _GoneError: it went; what was read may be a part of it.
        """
        async for piece in self.root.read_archived(session_of(name), name):
            yield piece
        if name not in await self.root.archived(session_of(name)):
            raise _GoneError(name)

    @asynccontextmanager
    async def archived(self, sealing: Sealing | None, problems: list[str]) -> AsyncIterator[Path]:
        """A private directory."""
        async with _private_directory() as directory:
            await self.write_archived(directory, sealing, problems)
            yield directory

    async def take_archived(self, source: Surroundings, sealing: Sealing | None, problems: list[str]) -> int:
        """Make rows of the source's files."""
        async with source.archived(sealing, problems) as directory:
            names = [name for name in await in_thread(files_in, directory) if name.endswith(SUFFIX)]
            missing = sorted(set(names).difference(await self.root.archived()))
            written = 0
            for name in missing:
                try:
                    file = await in_thread(_opened, directory / name)
                except FileNotFoundError:  # it went just now
                    continue
                with file:
                    await self.root.write_archived(session_of(name), name, _pieces(file))
                written += 1
            return written

    async def mirrored(self) -> list[str]:
        """Those that have a property."""
        return [name.removeprefix(MIRRORED) for name in await self.root.properties(MIRRORED)]

    async def note_mirrored(self, session_ids: list[str]) -> None:
        """Write a property each."""
        for session_id in session_ids:
            await self.root.write_property(MIRRORED + session_id, b"true")

    async def losses(self) -> Mapping[str, Loss]:
        """Nothing is lost with what was before."""
        return {}

    async def note_losses(self, losses: Mapping[str, Loss]) -> None:
        """They are not kept here."""

    async def marker(self) -> Marker | None:
        """Its property."""
        data = await self.root.read_property(ENCRYPTION)
        try:
            return None if data is None else msgspec.json.decode(data, type=Marker)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            shown = self.root.place.shown
            raise StoreCorrupt(f"{shown} is damaged: it does not say whether it is encrypted") from None

    async def write_marker(self, key: str) -> None:
        """Write its property."""
        await self.root.write_property(ENCRYPTION, orjson.dumps(Marker(key=key), default=msgspec.structs.asdict))

    @asynccontextmanager
    async def checkpoints(
        self, keys: KeyRing | None, settings: SessionSettings, *, read_only: bool = False
    ) -> AsyncIterator[Side]:
        """Rows."""
        del read_only  # nothing is written unless it is asked for
        clock = SystemClock()
        rows = StoredCheckpoints(self.root, clock=clock, max_bytes=largest_snapshot(settings), encryption=keys)
        yield InRows(self.root, rows, clock)


@asynccontextmanager
async def _private_directory() -> AsyncIterator[Path]:
    made = await in_thread(lambda: TemporaryDirectory(prefix="miniclaw-"))
    try:
        yield Path(made.name)
    finally:
        with CancelScope(shield=True):  # else a cancelled copy would leave what people have said in /tmp
            await in_thread(made.cleanup)


def _copy_files(source: Path, target: Path, sealing: Sealing | None, problems: list[str]) -> int:
    names = files_in(source)
    if not names:
        return 0
    with Directory(source, is_ours=False) as here, Directory(target) as there:
        missing = sorted(set(names).difference(there.names()))
        copy_files(here, missing, there, sealing, problems)
    return len(missing)


def _opened(path: Path) -> BinaryIO:
    return path.open("rb")


async def _pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    while piece := await in_thread(file.read, _PIECE_BYTES):
        yield piece
