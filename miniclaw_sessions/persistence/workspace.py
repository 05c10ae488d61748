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
from miniclaw_sessions.disk import Directory, DirectoryLock
from miniclaw_sessions.errors import ConfigError, StoreCorrupt
from miniclaw_sessions.events import get_logger
from miniclaw_sessions.persistence.quarantine import Quarantine
from miniclaw_sessions.persistence.recovery import Progress, Recovery, RecoveryReport
from miniclaw_sessions.persistence.snapshots import Snapshots
from miniclaw_sessions.stores import open_store
from miniclaw_sessions.stores.base import Store

log = get_logger(__name__)


class Workspace:
    """The files of one manager; an async context manager. `report` tells what recovery found."""

    snapshots: Snapshots
    store: Store
    report: RecoveryReport

    def __init__(
        self,
        path: Path,
        settings: SessionSettings,
        store: str | Store,
        *,
        clock: Clock,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self.path = path
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

    def _open_directory(self, stack: AsyncExitStack) -> Snapshots:
        """Make the directory if needed, lock it, and open what is in it."""
        try:
            self._recognize()
            Directory(self.path).close()
            stack.callback(DirectoryLock(self.path).release)
            self._clean()
            return stack.enter_context(closing(open_snapshots(self.path, self._settings, clock=self._clock)))
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
        for path in (self.path / "archive", self.path / "quarantine"):
            if path.exists():
                with Directory(path) as directory:
                    directory.remove_temporaries()

    async def _open_store(self, stack: AsyncExitStack) -> Store:
        try:
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
            recovery = Recovery(
                self.snapshots,
                store,
                clock=self._clock,
                capacity=self._settings.window,
                on_progress=self._on_progress,
            )
            self.report = await recovery.run()
            stack.push_async_callback(_close_shielded, attempt.pop_all())
        return store

    def _new_store(self) -> Store:
        choice = self._store_choice
        return open_store(choice, self.path) if isinstance(choice, str) else choice

    def _set_aside(self, files: Sequence[Path], reason: str) -> None:
        for file in files:
            if file.exists():
                with Directory(file.parent, is_ours=file.parent == self.path) as directory:
                    self.snapshots.quarantine.take(directory, file.name, reason, at=self._clock.now())


def open_snapshots(path: Path, settings: SessionSettings, *, clock: Clock) -> Snapshots:
    """The snapshots of the workspace `path`, and its quarantine; close them after use.

    Raises:
        OSError: the directory cannot be opened.
    """
    quarantine = Quarantine(
        path / "quarantine", max_files=settings.quarantine_max_files, max_bytes=settings.quarantine_max_bytes
    )
    largest = 2 * (settings.window + 2) * settings.max_message_bytes  # what we may write, we must be able to read
    max_bytes = max(settings.snapshot_max_bytes, largest)
    return Snapshots(path / "sessions", quarantine, clock=clock, max_bytes=max_bytes)


async def _close_shielded(stack: AsyncExitStack) -> None:
    """Close the store even when the surroundings are cancelled."""
    with anyio.CancelScope(shield=True):
        await stack.aclose()
