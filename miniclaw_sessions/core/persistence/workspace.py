"""A directory of sessions, opened: locked, its store running, both sides agreed with each other.

Opening goes in this order and closing in the reverse: the directory, its lock, the snapshots, the store, recovery. A
store that turns out to be damaged is set aside once, whole, and the conversations go on from their snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self, TypeVar

import anyio
from anyio import to_thread

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.history.state import Snapshot
from miniclaw_sessions.core.persistence.archive import ArchiveDirectory
from miniclaw_sessions.core.persistence.backups import known_backups
from miniclaw_sessions.core.persistence.checking import Check, CheckReport
from miniclaw_sessions.core.persistence.losses import NAME as LOSSES
from miniclaw_sessions.core.persistence.losses import Loss, Losses
from miniclaw_sessions.core.persistence.marker import Marker, check_marker, check_store, write_marker
from miniclaw_sessions.core.persistence.mending import Mended, check_and_mend, mend
from miniclaw_sessions.core.persistence.mirrored import NAME as MIRRORED_IDS
from miniclaw_sessions.core.persistence.mirrored import MirroredIds
from miniclaw_sessions.core.persistence.own_task import in_own_task, require_asyncio
from miniclaw_sessions.core.persistence.quarantine import Quarantine
from miniclaw_sessions.core.persistence.recognition import recognize
from miniclaw_sessions.core.persistence.recovery import Progress, Recovered, Recovery, RecoveryReport, read_snapshot
from miniclaw_sessions.core.persistence.snapshots import Snapshots, largest_snapshot
from miniclaw_sessions.core.stores import SALVAGE, SALVAGE_PART, open_store, refuse_another_store, store_place
from miniclaw_sessions.core.stores.base import Store
from miniclaw_sessions.core.stores.copying import copy_store
from miniclaw_sessions.core.stores.encrypted import encrypted
from miniclaw_sessions.core.stores.files import read_through
from miniclaw_sessions.core.stores.wrapping import WatchedStore, innermost
from miniclaw_sessions.disk import Directory, DirectoryLock, remove_tree
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import (
    ConfigError,
    DirectoryInUse,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
)
from miniclaw_sessions.log import get_logger

T = TypeVar("T")

LOOK_AGAIN_S = 0.1
"""How often a directory that another process has is tried again."""

_BEGINNING = 1 << 20

log = get_logger(__name__)


class Workspace:
    """The files of one manager; an async context manager.

    Attributes:
        checkpoints, store: both sides, once it is open.
        sessions: the recovered sessions; their new owner empties this.
        on_disk: the sessions that were not loaded: see `Recovery`.
        report: what recovery found and did.
    """

    checkpoints: Snapshots
    store: WatchedStore
    _losses: Losses
    sessions: dict[str, Recovered]
    on_disk: dict[str, float]
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
        create: bool = True,
        wait_s: float = 0.0,
    ) -> None:
        self.path = path
        self._encryption = encryption
        self._marker: Marker | None = None
        self._settings = settings
        self._store_choice = store
        self._clock = clock
        self._on_progress = on_progress
        self._create = create
        self._wait_s = wait_s
        self._stack = AsyncExitStack()

    def __repr__(self) -> str:
        return f"<Workspace {self.path}>"

    @cached_property
    def archive(self) -> ArchiveDirectory:
        """Where expired sessions go."""
        return ArchiveDirectory(self.path / "archive", self._encryption)

    async def __aenter__(self) -> Self:
        """Open everything and recover.

        Raises:
            DirectoryInUse: another process has the directory, and did not let it go in time.
            SnapshotUnreadable, SchemaTooNew, QuarantineFull: something is there that must not be touched; it was not.
            StoreError: the store cannot be opened.
            NotAWorkspace: there is no workspace, or the directory is another program's; it was not touched.
            ConfigError: the store's URL is not one, the directory cannot be used, or no event loop of asyncio runs.
            WrongKey, KeyNeeded, NotEncrypted: the keys do not go with what is there; it was not touched.
        """
        require_asyncio()
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the store and let the directory go."""
        await self._stack.aclose()

    async def load(self, session_ids: Sequence[str]) -> tuple[dict[str, Recovered], RecoveryReport]:
        """Load some sessions from disk; see `Recovery.load`."""
        recovery = self._recovery(self.store)
        await recovery.load(session_ids)
        return recovery.sessions, recovery.report

    @property
    def where(self) -> str:
        """The directory."""
        return str(self.path)

    @property
    def losses(self) -> Mapping[str, Loss]:
        """What was lost with former stores, until that is acknowledged."""
        return MappingProxyType(self._losses.known)

    async def acknowledge_losses(self, session_id: str | None) -> int:
        """Forget a session's loss, or all of them; see `Storage`."""
        try:
            return await to_thread.run_sync(self._losses.acknowledge, session_id)
        except OSError as error:
            raise StoreUnavailable(f"cannot write {self.path / LOSSES}: {error.strerror}") from error

    @cached_property
    def _mirrored(self) -> MirroredIds:
        return MirroredIds(self.path)

    async def was_mirrored(self, session_id: str) -> bool:
        """Whether it stands in `followed.jsonl`."""
        return await self._mirrored_ids(self._mirrored.__contains__, session_id)

    async def note_mirrored(self, session_id: str) -> None:
        """Write it into `followed.jsonl`."""
        await self._mirrored_ids(self._mirrored.note, session_id)

    async def _mirrored_ids(self, use: Callable[[str], T], session_id: str) -> T:
        try:
            return await to_thread.run_sync(use, session_id)
        except OSError as error:
            raise StoreUnavailable(f"cannot use {self.path / MIRRORED_IDS}: {error.strerror}") from error

    async def modified(self) -> list[tuple[str, float]]:
        """The session ids that have a file, and when each was last used, in seconds since the epoch."""
        return await self.checkpoints.modified()

    async def check(self, store: Store, on_progress: Callable[[Progress], None]) -> CheckReport:
        """Verify every snapshot against the store."""
        check = Check(self.checkpoints, store, clock=self._clock, on_progress=on_progress, losses=self._losses.known)
        return await check.run()

    async def repair(self, store: Store) -> Mended:
        """Write what the session files have whole over what is damaged in the store."""
        return await check_and_mend(self._saved, store)

    async def _saved(self, session_id: str) -> Snapshot | None:
        return await read_snapshot(self.checkpoints, session_id, self._clock)

    @property
    def log_remains(self) -> str:
        """What is true of a store in files."""
        return "the store's log, because it is being read: it is emptied by the next deletion"

    async def purge(self, session_id: str) -> list[str]:
        """Delete its copies that were set aside; see `Storage`."""
        quarantine = self.checkpoints.quarantine
        try:
            await to_thread.run_sync(quarantine.forget, f"{session_id}.jsonl")
            await to_thread.run_sync(quarantine.forget, f"{session_id}.json")
            stores = await to_thread.run_sync(quarantine.stores)
            backups = await to_thread.run_sync(known_backups, self.path)
        except OSError as error:
            raise StoreUnavailable(f"cannot clear {self.path} of it: {error.strerror}; delete it again") from error
        remains = [f"quarantine/{name} was set aside damaged, and may have its words; remove it" for name in stores]
        return remains + [
            f"the backup in {one.path}, made {one.made_at:%Y-%m-%d %H:%M} UTC, may have its words; remove it"
            for one in backups
        ]

    @in_own_task
    async def _open(self, stack: AsyncExitStack) -> None:
        await self._lock(stack)
        self.checkpoints = await to_thread.run_sync(self._open_directory, stack)
        self.store = await self._open_store(stack)

    async def _lock(self, stack: AsyncExitStack) -> None:
        """Take the directory, and wait a while for its present holder."""
        patient_until = self._clock.monotonic() + self._wait_s
        is_waiting = False
        while True:
            try:
                return await to_thread.run_sync(self._lock_directory, stack)
            except DirectoryInUse as error:
                if self._clock.monotonic() >= patient_until:
                    raise
                if not is_waiting:
                    log.warning("waiting for the workspace", action="open.waiting", pid=error.pid, seconds=self._wait_s)
                    self._on_progress(Progress(f"waiting for process {error.pid or ''}".rstrip(), 0, 0))
                is_waiting = True
            await self._clock.sleep(min(LOOK_AGAIN_S, self._wait_s))

    def _lock_directory(self, stack: AsyncExitStack) -> None:
        try:
            recognize(self.path, create=self._create)
            Directory(self.path).close()
            stack.callback(DirectoryLock(self.path).release)
        except OSError as error:
            raise self._unusable(error) from error

    def _open_directory(self, stack: AsyncExitStack) -> Snapshots:
        """Open what is in the directory, once it is ours."""
        try:
            self._marker = check_marker(self.path, self._encryption)
            choice = self._store_choice
            place = store_place(choice, self.path) if isinstance(choice, str) else choice.place
            refuse_another_store(place, self.path)
            # what a crash left half-written where recovery does not look
            for path in (self.path, self.path / "archive", self.path / "quarantine"):
                if path.exists():
                    with Directory(path) as directory:
                        directory.remove_temporaries()
            self._losses = Losses(self.path)
            snapshots = open_snapshots(self.path, self._settings, clock=self._clock, encryption=self._encryption)
            return stack.enter_context(closing(snapshots))
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> ConfigError:
        return ConfigError(f"the workspace {self.path} cannot be used: {error.strerror}; mend it or choose another one")

    async def _open_store(self, stack: AsyncExitStack) -> WatchedStore:
        if await to_thread.run_sync(self._new_store().found_damaged):
            await to_thread.run_sync(self._make_anew, "damage was met in it while it was used")
        try:
            return await self._recover(stack)
        except StoreCorrupt:
            await to_thread.run_sync(lambda: read_through(self._new_store().files))
        try:  # again, for SQLite calls a read that the disk refused damage, and the disk may have thought better of it
            return await self._recover(stack)
        except StoreCorrupt as error:
            if not await to_thread.run_sync(partial(self._make_anew, str(error), at_any_price=True)):
                raise
            return await self._recover(stack)

    async def _recover(self, stack: AsyncExitStack) -> WatchedStore:
        """Open the store and recover from it; on failure it is closed again."""
        async with AsyncExitStack() as attempt:
            store = WatchedStore(await attempt.enter_async_context(self._new_store()))
            is_new = await self._salvage(store)
            await self._check_encryption(store)
            if self._encryption is not None:
                await store.drop_index()  # of before it was encrypted: it says in plain words what is sealed
            recovery = self._recovery(store)
            await recovery.run()
            self.sessions, self.on_disk, self.report = recovery.sessions, recovery.on_disk, recovery.report
            if is_new:
                await self._mend_new(store)
            stack.push_async_callback(_close_shielded, attempt.pop_all())
        return store

    def _make_anew(self, reason: str, *, at_any_price: bool = False) -> bool:
        """Set a damaged store aside, after what is salvaged was copied; the next opening makes a new one of that.

        Args:
            reason: what was met.
            at_any_price: also where there is no room for a copy, for the store cannot be opened any more.

        Returns:
            Whether it was set aside.
        """
        files = self._new_store().files
        try:
            self._keep_for_salvage(files)
        except OSError as failure:  # no room for a copy; the files themselves are kept
            log.error("nothing could be salvaged", action="recovery.salvage_failed", error=str(failure))
            remove_tree(self.path / SALVAGE_PART)
            if not at_any_price:
                return False
        if files:
            log.error("the store is damaged and was set aside", action="recovery.store_quarantined", error=reason)
        for file in files:
            if file.exists():
                with Directory(file.parent, is_ours=file.parent == self.path) as directory:
                    self.checkpoints.quarantine.take(directory, file.name, reason, at=self._clock.now())
        return bool(files)

    def _keep_for_salvage(self, files: Sequence[Path]) -> None:
        """Copy a damaged database, with its log, to where it is salvaged from; the files themselves are evidence."""
        complete, part = self.path / SALVAGE, self.path / SALVAGE_PART
        if complete.exists():
            return  # what is damaged now was being made of it: the copy has more
        remove_tree(part)
        if self._new_store().rest_of(complete) is None or not _holds_anything(files[0]):
            return  # a hole of gigabytes would be copied for nothing
        with Directory(part) as copies:
            for file in files[:2]:
                if file.is_file():
                    with Directory(file.parent, is_ours=False) as source:
                        source.copy(file.name, copies, file.name)
        self._rename(part, complete)  # whole, or not there: without its log, what was deleted would come back

    async def _salvage(self, store: Store) -> bool:
        """Copy what can still be read of a store that was set aside into the new one; again, if that was cut off.

        Returns:
            Whether there was one.

        Raises:
            StoreError, OSError: what can be read could not all be written. It is kept for the next start: a new store
                with some of it would be taken for the whole.
        """
        path = self.path / SALVAGE
        await to_thread.run_sync(remove_tree, self.path / SALVAGE_PART)
        rest = store.rest_of(path) if await to_thread.run_sync(path.exists) else None
        if rest is None:
            return False
        async with AsyncExitStack() as opened:
            try:
                source = await opened.enter_async_context(rest)
            except (StoreError, OSError) as error:
                log.error("nothing could be salvaged", action="recovery.salvage_failed", error=str(error))
                return True
            copied = await copy_store(source, innermost(store))  # what was mended since it was copied stays so
            log.warning(
                "what could still be read of the damaged store was kept",
                action="recovery.salvaged",
                sessions=copied.sessions,
                entries=copied.entries,
            )
        return True

    async def _mend_new(self, store: Store) -> None:
        """Give a salvaged store what the session files have, and write down what is lost all the same."""
        mended = await mend(self._saved, store)
        lost = {session_id: Loss(count, self._clock.now()) for session_id, count in mended.lost.items()}
        await to_thread.run_sync(self._losses.note, lost)
        # by another name first: a salvage that was removed by halves would be taken for a whole one
        await to_thread.run_sync(self._rename, self.path / SALVAGE, self.path / SALVAGE_PART)
        await to_thread.run_sync(remove_tree, self.path / SALVAGE_PART)

    def _rename(self, old: Path, new: Path) -> None:
        old.rename(new)
        with Directory(self.path) as directory:
            directory.sync()

    def _recovery(self, store: Store) -> Recovery:
        return Recovery(
            self.checkpoints,
            store,
            clock=self._clock,
            capacity=self._settings.window,
            max_cached=self._settings.max_cached,
            losses=self._losses,
            on_progress=self._on_progress,
        )

    def _new_store(self) -> Store:
        choice = self._store_choice
        if isinstance(choice, str):
            choice = open_store(choice, self.path, postgresql=self._settings.postgresql)
            if choice.shared:  # as if it were this process's alone, others would overtake it and nothing would rebase
                raise ConfigError(
                    "sessions.store names a store that several processes share; of those only postgresql: is opened by "
                    "its URL: pass the store itself, SessionManager(store=...)"
                )
        return choice if self._encryption is None else encrypted(choice, self._encryption)

    async def _check_encryption(self, store: Store) -> None:
        """Without a marker, see whether everything is encrypted, or nothing; an encrypted workspace gets a marker."""
        if self._marker is not None:
            return
        names = await to_thread.run_sync(self.checkpoints.some_names)
        if self._encryption is None and names:
            return  # each file shows it when it is read
        async for _ in self.checkpoints.read(names):
            pass  # it was refused if it is not encrypted
        await check_store(store, self._encryption)
        if self._encryption is not None:
            self._marker = Marker(key=self._encryption.ids[0])
            await to_thread.run_sync(write_marker, self.path, self._marker)


def open_snapshots(
    path: Path,
    settings: SessionSettings,
    *,
    clock: Clock,
    encryption: KeyRing | None = None,
    read_only: bool = False,
) -> Snapshots:
    """The snapshots of the workspace `path`, and its quarantine; close them after use.

    With `read_only` neither owner nor mode of the directory matter, and nothing may be written.

    Raises:
        OSError: the directory cannot be opened.
    """
    quarantine = Quarantine(
        path / "quarantine", max_files=settings.quarantine_max_files, max_bytes=settings.quarantine_max_bytes
    )
    return Snapshots(
        path / "sessions",
        quarantine,
        clock=clock,
        max_bytes=largest_snapshot(settings),
        encryption=encryption,
        read_only=read_only,
    )


def _holds_anything(database: Path) -> bool:
    """Whether a database file begins with anything but NULs."""
    with Directory(database.parent, is_ours=False) as directory, open(directory.open_file(database.name), "rb") as data:
        return any(data.read(_BEGINNING))


async def _close_shielded(stack: AsyncExitStack) -> None:
    """Close the store even when the surroundings are cancelled."""
    with anyio.CancelScope(shield=True):
        await stack.aclose()
