"""Reading a workspace without its lock: beside the process that holds it, from a copy, or from a mounted backup.

Or a shared database, in which other processes write. Nothing is locked, made, mended or moved. A session is put
together as at a start, from its file and the store, and only the one that is asked for. What its holder has accepted
and not committed yet is not seen.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import msgspec
from anyio import to_thread

from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.history.branch_memory import BranchMemory
from miniclaw_sessions.core.history.search import Found, Search
from miniclaw_sessions.core.manager import reading
from miniclaw_sessions.core.manager.cache import Listing, NamesOnDisk, SessionCache
from miniclaw_sessions.core.manager.choosing import choose
from miniclaw_sessions.core.manager.expiry import SweepReport
from miniclaw_sessions.core.manager.sources import load_each, newest_of, search_in
from miniclaw_sessions.core.persistence.archive import Archive, ArchiveDirectory
from miniclaw_sessions.core.persistence.checking import Check, CheckReport
from miniclaw_sessions.core.persistence.committer import CommitQueue
from miniclaw_sessions.core.persistence.flusher import Flushable
from miniclaw_sessions.core.persistence.losses import Loss, Losses
from miniclaw_sessions.core.persistence.marker import check_marker
from miniclaw_sessions.core.persistence.recovery import Progress, join, read_snapshot
from miniclaw_sessions.core.persistence.retention import ClockGuard, Retention
from miniclaw_sessions.core.persistence.snapshots import Snapshots
from miniclaw_sessions.core.persistence.workspace import open_snapshots
from miniclaw_sessions.core.protocol.entries import INCOMPLETE
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session import Journal, Owner, Session
from miniclaw_sessions.core.session.turn import sole_owner
from miniclaw_sessions.core.sharing.database import Database
from miniclaw_sessions.core.sharing.expiry import FORETOLD, doubt_of, held_in, idle_in
from miniclaw_sessions.core.sharing.lists import newest_in, sessions_in
from miniclaw_sessions.core.stores import (
    open_store,
    refuse_another_store,
    store_place,
    stores_in,
)
from miniclaw_sessions.core.stores.base import Store, StoredEntry
from miniclaw_sessions.core.stores.encrypted import encrypted
from miniclaw_sessions.core.stores.positions import ListPosition
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import ConfigError, NotAWorkspace, ReadOnlyWorkspace, SessionNotFound
from miniclaw_sessions.statistics import ManagerStatistics


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
        workspace: the directory; or the URL of a shared store, which is as if it was set as `store`.
        settings: as the workspace's holder has them; `store` and `window` matter.
        clock: time; the machine's by default.
        encryption: the keys, if the workspace is encrypted.
        on_progress: called during a check, on the event loop.
    """
    settings = settings or SessionSettings()
    choice, clock = choose(workspace, settings.store), clock or SystemClock()
    if choice.directory is None:
        settings = msgspec.structs.replace(settings, store=str(choice.store))
        return ReadOnlyDatabase(settings, clock, encryption=encryption, on_progress=on_progress)
    return ReadOnlyDirectory(choice.directory, settings, clock, encryption=encryption, on_progress=on_progress)


class ReadOnlySessions(ABC):
    """Sessions that are read as they are stored; an async context manager.

    It is its own source, and the home of journals that accept nothing.
    """

    ownership = staticmethod(sole_owner)
    max_message_bytes = max_metadata_bytes = 2**62
    store: Store
    workspace: Path | None
    owner: Owner

    def __init__(
        self,
        settings: SessionSettings,
        clock: Clock,
        *,
        encryption: KeyRing | None,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.branch_memory = BranchMemory()
        self._encryption = encryption
        self._on_progress = on_progress
        self._stack = AsyncExitStack()

    get = reading.get
    find = reading.find
    list = reading.list_sessions
    search = reading.search
    usage = reading.usage
    get_session_history = reading.get_session_history

    @property
    @abstractmethod
    def _where(self) -> str:
        """What is read, for people."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._where}>"

    @property
    @abstractmethod
    def archive(self) -> Archive:
        """What has expired."""

    @abstractmethod
    async def _open(self, stack: AsyncExitStack) -> None:
        """Open what is read, until the stack is closed."""

    @abstractmethod
    async def check(self) -> CheckReport:
        """Verify everything. Beside others who write, differences of a moment may be seen."""

    @abstractmethod
    async def statistics(self) -> ManagerStatistics:
        """What can be counted without opening any session; nothing has been done here."""

    @abstractmethod
    async def _dry_sweep(self) -> SweepReport:
        """What is idle for longer than its time to live."""

    async def __aenter__(self) -> Self:
        """Open it to read.

        Raises:
            NotAWorkspace: the directory holds none.
            WrongKey, KeyNeeded, NotEncrypted: the keys do not go with what is there.
            SchemaTooNew, StoreUnavailable: the store cannot be read.
        """
        self.owner = Owner()
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self._stack.aclose()

    async def sweep(self, *, dry_run: bool = False) -> SweepReport:
        """List what is idle for longer than its time to live.

        Raises:
            ReadOnlyWorkspace: it was to be expired.
        """
        if not dry_run:
            self._refuse("expire sessions")
        return await self._dry_sweep()

    # --- the source --------------------------------------------------------------------------------------------------

    @property
    def source(self) -> Self:
        """Where the sessions are read from."""
        return self

    @property
    @abstractmethod
    def losses(self) -> Mapping[str, Loss]:
        """What older messages were lost with a former store, by session id."""

    @abstractmethod
    async def load(self, session_id: str) -> Journal | None:
        """A session as it is stored; None if it does not exist."""

    @abstractmethod
    async def newest(self, **part: Any) -> builtins.list[ListPosition]:
        """A part of all sessions: see `SessionSource.newest`."""

    async def load_listed(self, session_ids: Sequence[str]) -> dict[str, Session]:
        """Those of these sessions that exist."""
        return await load_each(self.load, session_ids)

    async def search_for(self, search: Search) -> Found:
        """The newest hits of a search."""
        return await search_in(self, search)

    async def missing(self, session_id: str) -> SessionNotFound:
        """What to raise for a session that does not exist; the archive is not asked."""
        return SessionNotFound(session_id)

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

    async def check_store(self) -> None:
        """Refused: it is asked before something is appended."""
        self._refuse("append anything")

    def submit(self, queue: CommitQueue, entry: StoredEntry) -> None:
        """Refused."""
        self._refuse(f"append entry {entry.sequence} to session {queue.head.session_id}")

    async def wait(self, queue: CommitQueue, sequence: int) -> None:  # noqa: B027 - nothing can be missing
        """Everything that can be seen is committed."""

    def add(self, session: Flushable) -> None:  # noqa: B027 - nothing is written
        """That a session was looked at is not noted."""

    async def write(self, session: Flushable) -> None:  # noqa: B027 - the same
        """Nor is it written."""

    def _refuse(self, attempted: str) -> NoReturn:
        raise ReadOnlyWorkspace(
            f"cannot {attempted}: {self._where} was opened to be read only; talk to the process that "
            "holds it, or open it with SessionManager"
        )


class ReadOnlyDirectory(ReadOnlySessions):
    """The sessions of a workspace, read as they are on disk."""

    workspace: Path
    _snapshots: Snapshots
    _losses: Losses

    def __init__(
        self,
        workspace: Path,
        settings: SessionSettings,
        clock: Clock,
        *,
        encryption: KeyRing | None,
        on_progress: Callable[[Progress], None],
    ) -> None:
        super().__init__(settings, clock, encryption=encryption, on_progress=on_progress)
        self.workspace = workspace

    @property
    def _where(self) -> str:
        return f"the workspace {self.workspace}"

    @property
    def archive(self) -> Archive:
        """What has expired."""
        return ArchiveDirectory(self.workspace / "archive", self._encryption)

    async def _open(self, stack: AsyncExitStack) -> None:
        self._snapshots = stack.enter_context(closing(await to_thread.run_sync(self._open_files)))
        place = store_place(self.settings.store, self.workspace)
        await to_thread.run_sync(refuse_another_store, place, self.workspace)
        store = open_store(place, self.workspace, postgresql=self.settings.postgresql, read_only=True)
        self.store = await stack.enter_async_context(encrypted(store, self._encryption))

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

    async def _dry_sweep(self) -> SweepReport:
        names = [*await self.store.session_ids(), *(session_id for session_id, _ in await self._snapshots.modified())]
        retention, now = Retention(self.settings), self.clock.now()
        used: dict[str, datetime] = {}
        idle, held = list[str](), list[str]()
        for session_id in dict.fromkeys(names):  # each is loaded, as `sweep` will: in a copy, the files' times are new
            if (journal := await self.load(session_id)) is not None:
                used[session_id] = journal.last_accessed
                if retention.of(journal.key.channel).is_idle(journal.last_accessed, now):
                    (idle if journal.legal_hold is None else held).append(session_id)
        outdated, kept = await retention.outdated(self.archive, now, self._held)
        guard = ClockGuard(
            self.clock,
            newest_access=max(used.values(), default=None),
            patience_s=self.settings.sweep_interval_s,
        )
        return SweepReport(
            scanned=len(used),
            sessions=idle,
            held=list(dict.fromkeys([*held, *kept])),
            forgotten=outdated,
            dry_run=True,
            postponed=guard.doubt(),
        )

    async def _held(self, session_ids: Sequence[str]) -> builtins.list[str]:
        found = [one for session_id in session_ids if (one := await self.load(session_id)) is not None]
        return [one.session_id for one in found if one.legal_hold is not None]

    async def load(self, session_id: str) -> Journal | None:
        """A session as it is stored; None if it does not exist."""
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

    @property
    def losses(self) -> Mapping[str, Loss]:
        """What older messages were lost with a former store, by session id."""
        return self._losses.known

    async def newest(self, **part: Any) -> builtins.list[ListPosition]:
        """A part of all sessions; of those without a file, each is read for it."""
        return await newest_of(await self._listing(), **part)

    async def _listing(self) -> Listing:
        cache = SessionCache(0, NamesOnDisk())
        cache.learn_names(await self.store.session_ids())
        modified = await self._snapshots.modified()
        cache.learn_names(session_id for session_id, _ in modified)
        cache.learn_times(modified)
        cache.learn_times([(one, await self._used(one)) for one in cache.unknown()])
        return cache.listing()

    async def _used(self, session_id: str) -> float:
        """When a session was last used that has no file yet."""
        journal = await self.load(session_id)
        return 0.0 if journal is None else journal.last_accessed.timestamp()

    def _open_files(self) -> Snapshots:
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


class ReadOnlyDatabase(ReadOnlySessions):
    """The sessions of a shared store, read as they are stored, while other processes write them."""

    workspace = None
    _database: Database

    @property
    def _where(self) -> str:
        return f"the store {self._database.where}"

    @property
    def archive(self) -> Archive:
        """What has expired."""
        return self._database.archive

    async def _open(self, stack: AsyncExitStack) -> None:
        store = open_store(self.settings.store, postgresql=self.settings.postgresql, read_only=True)
        self._database = Database(store, self.settings, clock=self.clock, encryption=self._encryption, read_only=True)
        await stack.enter_async_context(self._database)
        self.store = self._database.store

    async def check(self) -> CheckReport:
        """The tables against each other, every entry, and every checkpoint against the entries."""
        return await self._database.check(self.store, self._on_progress)

    async def statistics(self) -> ManagerStatistics:
        """How many sessions there are; nothing has been done here."""
        return ManagerStatistics(
            sessions=await self.store.count(), store=self.store.place.kind, store_state="open to be read"
        )

    async def _dry_sweep(self) -> SweepReport:
        newest = next(iter(await self._database.server.newest(limit=1)), None)
        guard = ClockGuard(
            self.clock,
            newest_access=None if newest is None else newest.last_accessed,
            patience_s=self.settings.sweep_interval_s,
        )
        retention = Retention(self.settings)
        idle = await idle_in(self._database.server, retention, timedelta(0), limit=FORETOLD)
        held = await held_in(self._database, idle, self)
        is_held = partial(held_in, self._database, home=self)
        outdated, kept = await retention.outdated(self.archive, self.clock.now(), is_held)
        return SweepReport(
            scanned=await self.store.count(),
            sessions=[one for one in idle if one not in frozenset(held)],
            held=list(dict.fromkeys([*held, *kept])),
            forgotten=outdated,
            dry_run=True,
            postponed=guard.doubt() or await doubt_of(self._database.server, self.clock),
        )

    async def load(self, session_id: str) -> Journal | None:
        """A session as it is stored; None if it does not exist."""
        found = await sessions_in(self._database, [session_id], self)
        return found[session_id].journal if session_id in found else None

    @property
    def losses(self) -> Mapping[str, Loss]:
        """Nothing is lost with what was before."""
        return self._database.losses

    async def newest(self, **part: Any) -> builtins.list[ListPosition]:
        """A part of all sessions, a page at a time."""
        return await newest_in(self._database, **part)

    async def load_listed(self, session_ids: Sequence[str]) -> dict[str, Session]:
        """Those of these sessions that exist, a hundred in each round trip."""
        return await sessions_in(self._database, session_ids, self)
