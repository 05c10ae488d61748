"""A directory of sessions, opened: locked, its store running, both sides agreed with each other.

Opening goes in this order and closing in the reverse: the directory, its lock, the snapshots, the store, recovery. A
store that turns out to be damaged is set aside once, whole, and the conversations go on from their snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
from anyio import to_thread

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.disk import Directory, DirectoryLock, NotRegular
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import ConfigError, StoreCorrupt, StoreUnavailable
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.persistence.marker import Marker, check_marker, check_store, write_marker
from miniclaw_sessions.persistence.quarantine import Quarantine
from miniclaw_sessions.persistence.recovery import Progress, Recovery, RecoveryReport
from miniclaw_sessions.persistence.snapshots import Snapshots
from miniclaw_sessions.stores import open_store
from miniclaw_sessions.stores.base import Store
from miniclaw_sessions.stores.encrypted import encrypted

_READ_AHEAD_BYTES = 1 << 20

log = get_logger(__name__)


class Workspace:
    """The files of one manager; an async context manager. `report` tells what recovery found."""

    snapshots: Snapshots
    store: Store
    report: RecoveryReport

    def __init__(  # noqa: PLR0913 - one argument per thing that it is made of
        self,
        path: Path,
        settings: SessionSettings,
        store: str | Store,
        *,
        clock: Clock,
        on_progress: Callable[[Progress], None],
        encryption: KeyRing | None = None,
    ) -> None:
        self.path = path
        self._encryption = encryption
        self._marker: Marker | None = None
        self._settings = settings
        self._store_choice = store
        self._clock = clock
        self._on_progress = on_progress
        self._stack = AsyncExitStack()

    def __repr__(self) -> str:
        return f"<Workspace {self.path}>"

    async def __aenter__(self) -> Self:
        """Open everything and recover.

        Raises:
            DirectoryInUse: another process has the directory.
            SnapshotUnreadable, SchemaTooNew, QuarantineFull: something is there that must not be touched; it was not.
            StoreError: the store cannot be opened.
            ConfigError: the store's URL is not one, or the directory cannot be used.
            WrongKey, KeyNeeded, NotEncrypted: the keys do not go with what is there; it was not touched.
        """
        async with AsyncExitStack() as stack:
            self.snapshots = await to_thread.run_sync(self._open_directory, stack)
            self.store = await self._open_store(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the store and let the directory go."""
        await self._stack.aclose()

    async def load(self, session_id: str) -> RecoveryReport:
        """Load one session that sleeps; see `Recovery.load`."""
        return await self._recovery(self.store).load(session_id)

    def _open_directory(self, stack: AsyncExitStack) -> Snapshots:
        """Make the directory if needed, lock it, and open what is in it."""
        try:
            self._recognize()
            Directory(self.path).close()
            stack.callback(DirectoryLock(self.path).release)
            self._marker = check_marker(self.path, self._encryption)
            self._clean()
            snapshots = open_snapshots(self.path, self._settings, clock=self._clock, encryption=self._encryption)
            return stack.enter_context(closing(snapshots))
        except OSError as error:
            raise ConfigError(
                f"the workspace {self.path} cannot be used: {error.strerror}; mend it or choose another one"
            ) from error

    def _recognize(self) -> None:
        """Refuse to make a workspace of somebody's other directory: it would become private, and ours."""
        if not self.path.is_dir() or (self.path / ".lock").is_file() or (self.path / "sessions").is_dir():
            return
        if any(self.path.iterdir()):
            raise ConfigError(
                f"{self.path} is neither empty nor a workspace (it has no directory `sessions`); "
                "choose an empty directory, or one that does not exist yet"
            )

    def _clean(self) -> None:
        """Delete what a crash left half-written where recovery does not look."""
        for path in (self.path, self.path / "archive", self.path / "quarantine"):
            if path.exists():
                with Directory(path) as directory:
                    directory.remove_temporaries()

    async def _open_store(self, stack: AsyncExitStack) -> Store:
        try:
            return await self._recover(stack)
        except StoreCorrupt:
            await to_thread.run_sync(_read_through, self._new_store().files)
        try:  # again, for SQLite calls a read that the disk refused damage, and the disk may have thought better of it
            return await self._recover(stack)
        except StoreCorrupt as error:
            store = self._new_store()
            if not store.files:
                raise
            log.error("the store is damaged and was set aside", action="recovery.store_quarantined", error=str(error))
            await to_thread.run_sync(self._set_aside, store.files, str(error))
            return await self._recover(stack)

    async def _recover(self, stack: AsyncExitStack) -> Store:
        """Open the store and recover from it; on failure it is closed again."""
        async with AsyncExitStack() as attempt:
            store = await attempt.enter_async_context(self._new_store())
            await self._check_encryption(store)
            self.report = await self._recovery(store).run()
            stack.push_async_callback(_close_shielded, attempt.pop_all())
        return store

    def _recovery(self, store: Store) -> Recovery:
        return Recovery(
            self.snapshots,
            store,
            clock=self._clock,
            capacity=self._settings.window,
            max_resident=self._settings.max_resident,
            on_progress=self._on_progress,
        )

    def _new_store(self) -> Store:
        choice = self._store_choice
        return encrypted(open_store(choice, self.path) if isinstance(choice, str) else choice, self._encryption)

    async def _check_encryption(self, store: Store) -> None:
        """Where no marker tells, see whether everything is encrypted, or nothing; what is encrypted gets a marker."""
        if self._marker is not None:
            return
        names = await to_thread.run_sync(self.snapshots.some_names)
        if self._encryption is None and names:
            return  # each file tells when it is read
        async for _ in self.snapshots.read(names):
            pass  # it was refused if it is not encrypted
        await check_store(store, self._encryption)
        if self._encryption is not None:
            self._marker = Marker(key=self._encryption.ids[0])
            await to_thread.run_sync(write_marker, self.path, self._marker)

    def _set_aside(self, files: Sequence[Path], reason: str) -> None:
        for file in files:
            if file.exists():
                with Directory(file.parent, is_ours=file.parent == self.path) as directory:
                    self.snapshots.quarantine.take(directory, file.name, reason, at=self._clock.now())


def open_snapshots(
    path: Path, settings: SessionSettings, *, clock: Clock, encryption: KeyRing | None = None
) -> Snapshots:
    """The snapshots of the workspace `path`, and its quarantine; close them after use.

    Raises:
        OSError: the directory cannot be opened.
    """
    quarantine = Quarantine(
        path / "quarantine", max_files=settings.quarantine_max_files, max_bytes=settings.quarantine_max_bytes
    )
    largest = 2 * (settings.window + 2) * settings.max_message_bytes  # what we may write, we must be able to read
    max_bytes = max(settings.snapshot_max_bytes, largest)
    return Snapshots(path / "sessions", quarantine, clock=clock, max_bytes=max_bytes, encryption=encryption)


def _read_through(files: Sequence[Path]) -> None:
    """Read every byte: what cannot be read is not damaged as far as can be told, and must not be set aside (R20).

    Raises:
        StoreUnavailable: a file cannot be read; nothing was changed.
    """
    for file in files:
        try:
            with Directory(file.parent, is_ours=False) as directory, open(directory.open_file(file.name), "rb") as data:
                while data.read(_READ_AHEAD_BYTES):
                    pass
        except (FileNotFoundError, NotRegular):
            continue
        except OSError as error:
            raise StoreUnavailable(
                f"cannot read {file}: {error.strerror}. It is not damaged as far as can be told, and nothing was "
                "changed; mend its permissions or the disk and start again."
            ) from error


async def _close_shielded(stack: AsyncExitStack) -> None:
    """Close the store even when the surroundings are cancelled."""
    with anyio.CancelScope(shield=True):
        await stack.aclose()
