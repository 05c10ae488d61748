"""Reading a workspace without its lock: beside the process that holds it, from a copy, or from a mounted backup.

Nothing is locked, made, mended or moved. A session is put together as at a start, from its file and the store, and only
the one that is asked for. What its holder has accepted and not committed yet is not seen.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from anyio import to_thread

from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import ConfigError, NotAWorkspace, ReadOnlyWorkspace
from miniclaw_sessions.manager.cache import Listing, SessionCache
from miniclaw_sessions.manager.expiry import ClockGuard, SweepReport, is_idle
from miniclaw_sessions.manager.reader import SessionReader
from miniclaw_sessions.persistence.checking import Check, CheckReport
from miniclaw_sessions.persistence.committer import SessionLog
from miniclaw_sessions.persistence.flusher import Flushable
from miniclaw_sessions.persistence.losses import Loss, Losses
from miniclaw_sessions.persistence.marker import check_marker
from miniclaw_sessions.persistence.recovery import Progress, join, read_snapshot
from miniclaw_sessions.persistence.snapshots import Snapshots
from miniclaw_sessions.persistence.workspace import open_snapshots
from miniclaw_sessions.protocol.entries import INCOMPLETE
from miniclaw_sessions.protocol.keys import SessionKey
from miniclaw_sessions.session import Journal, Owner
from miniclaw_sessions.statistics import ManagerStatistics
from miniclaw_sessions.stores import open_store, refuse_another_store, store_place, stores_in
from miniclaw_sessions.stores.base import Store, StoredEntry
from miniclaw_sessions.stores.encrypted import encrypted


def open_readonly(
    workspace: str | Path,
    *,
    settings: SessionSettings | None = None,
    clock: Clock | None = None,
    encryption: KeyRing | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> ReadOnlySessions:
    """The sessions of a workspace, to be read only: enter it with `async with`.

    Args:
        workspace: the directory.
        settings: as the workspace's holder has them; `store` and `window` matter.
        clock: time; the machine's by default.
        encryption: the keys, if the workspace is encrypted.
        on_progress: called during a check, on the event loop.
    """
    return ReadOnlySessions(
        Path(workspace).expanduser().resolve(),
        settings or SessionSettings(),
        clock or SystemClock(),
        encryption=encryption,
        on_progress=on_progress,
    )


class ReadOnlySessions(SessionReader):
    """The sessions of a workspace, read as they are on disk; an async context manager. Home of their journals."""

    turn_lease_s = 0.0
    max_message_bytes = max_metadata_bytes = 2**62
    _snapshots: Snapshots
    _losses: Losses
    store: Store

    def __init__(
        self,
        workspace: Path,
        settings: SessionSettings,
        clock: Clock,
        *,
        encryption: KeyRing | None,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self.workspace = workspace
        self.settings = settings
        self.clock = clock
        self._encryption = encryption
        self._on_progress = on_progress
        self._stack = AsyncExitStack()
        self.owner = Owner()

    def __repr__(self) -> str:
        return f"<ReadOnlySessions {self.workspace}>"

    async def __aenter__(self) -> Self:
        """Open the files to read.

        Raises:
            NotAWorkspace: there is no workspace.
            WrongKey, KeyNeeded, NotEncrypted: the keys do not go with what is there.
            SchemaTooNew, StoreUnavailable: the store cannot be read.
        """
        async with AsyncExitStack() as stack:
            self._snapshots = stack.enter_context(closing(await to_thread.run_sync(self._open)))
            place = store_place(self.settings.store, self.workspace)
            await to_thread.run_sync(refuse_another_store, place, self.workspace)
            store = open_store(place, self.workspace, postgresql=self.settings.postgresql, read_only=True)
            self.store = await stack.enter_async_context(encrypted(store, self._encryption))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the files."""
        await self._stack.aclose()

    async def check(self) -> CheckReport:
        """Verify every snapshot against the store. Beside a holder that writes, differences of a moment may be seen."""
        losses = self._losses.known
        check = Check(self._snapshots, self.store, clock=self.clock, on_progress=self._on_progress, losses=losses)
        return await check.run()

    async def statistics(self) -> ManagerStatistics:
        """What can be counted without opening any session; nothing has been done here."""
        kind, quarantine = self.settings.store.partition(":")[0], self._snapshots.quarantine
        sessions, quarantined = len((await self._listing()).on_disk), await to_thread.run_sync(quarantine.count)
        return ManagerStatistics(sessions=sessions, quarantined=quarantined, store=kind, store_state="open to be read")

    async def sweep(self, *, dry_run: bool = False) -> SweepReport:
        """List what is idle for longer than its time to live.

        Raises:
            ReadOnlyWorkspace: it was to be expired.
        """
        if not dry_run:
            self._refuse("expire sessions")
        names = [*await self.store.session_ids(), *(session_id for session_id, _ in await self._snapshots.modified())]
        used: dict[str, datetime] = {}
        for session_id in dict.fromkeys(names):  # each is loaded, as `sweep` will: in a copy, the files' times are new
            if (session := await self._load(session_id)) is not None:
                used[session_id] = session.last_accessed
        newest, now = max(used.values(), default=None), self.clock.now()
        guard = ClockGuard(self.clock, newest_access=newest, patience_s=self.settings.sweep_interval_s)
        ttl = timedelta(days=self.settings.ttl_days)
        idle = [session_id for session_id, last_accessed in used.items() if is_idle(last_accessed, now, ttl)]
        return SweepReport(scanned=len(used), sessions=idle, dry_run=True, postponed=guard.doubt())

    async def _journal(self, session_id: str) -> Journal | None:
        stored = await self.store.head(session_id)  # first: a snapshot that is newer has all of it
        snapshot = await read_snapshot(self._snapshots, session_id, self.clock)
        if snapshot is not None and stored is not None and snapshot.state.incarnation != stored.head.incarnation:
            snapshot = None
        if snapshot is None and stored is None:
            return None
        joined = await join(snapshot, stored, self.store, capacity=self.settings.window)
        if INCOMPLETE in joined.conversation.state.metadata:
            return None
        last = joined.conversation.state.last_sequence
        return Journal(joined.conversation, self, committed=last)

    def _transcripts(self) -> Store:
        return self.store

    @property
    def losses(self) -> Mapping[str, Loss]:
        """What older messages were lost with a former store, by session id."""
        return self._losses.known

    async def _listing(self) -> Listing:
        cache = SessionCache(0)
        cache.learn_names(await self.store.session_ids())
        modified = await self._snapshots.modified()
        cache.learn_names(session_id for session_id, _ in modified)
        cache.learn_times(modified)
        cache.learn_times([(one, await self._used(one)) for one in cache.unknown()])
        return cache.listing()

    async def _used(self, session_id: str) -> float:
        """When a session was last used that has no file yet."""
        session = await self._load(session_id)
        return 0.0 if session is None else session.last_accessed.timestamp()

    def _open(self) -> Snapshots:
        if not (self.workspace / "sessions").is_dir() and not stores_in(self.workspace):
            raise NotAWorkspace(
                f"there is no workspace at {self.workspace}; `serve`, `chat` and `import` make one, --workspace names "
                "another"
            )
        try:
            check_marker(self.workspace, self._encryption)
            self._losses = Losses(self.workspace)
            return open_snapshots(
                self.workspace, self.settings, clock=self.clock, encryption=self._encryption, read_only=True
            )
        except OSError as error:
            raise ConfigError(f"the workspace {self.workspace} cannot be read: {error.strerror}") from error

    # --- the home of journals that accept nothing --------------------------------------------------------------------

    @property
    def committer(self) -> ReadOnlySessions:
        """Refuses what is appended."""
        return self

    @property
    def flusher(self) -> ReadOnlySessions:
        """Writes nothing."""
        return self

    @asynccontextmanager
    async def new_journal(self, key: SessionKey, *, purpose: str) -> AsyncIterator[Journal]:
        """Refused."""
        self._refuse(f"make session {key.session_id} ({purpose})")
        yield  # type: ignore[unreachable]

    def check_room(self, size: int) -> None:
        """Refused."""
        self._refuse(f"append {size} bytes")

    def check_store(self) -> None:
        """Refused: it is asked before something is appended."""
        self._refuse("append anything")

    def submit(self, session: SessionLog, entry: StoredEntry) -> None:
        """Refused."""
        self._refuse(f"append entry {entry.sequence} to session {session.head.session_id}")

    async def wait(self, session: SessionLog, sequence: int) -> None:
        """Everything that can be seen is committed."""

    def add(self, session: Flushable) -> None:
        """That a session was looked at is not noted."""

    def _refuse(self, attempted: str) -> NoReturn:
        raise ReadOnlyWorkspace(
            f"cannot {attempted}: the workspace {self.workspace} was opened to be read only; talk to the process that "
            "holds it, or open it with SessionManager"
        )
