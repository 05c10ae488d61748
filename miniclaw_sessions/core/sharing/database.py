"""A database that several processes share, opened: the sessions, their checkpoints and the archive are all in it.

There is no directory, and nothing to lock, to compare or to heal: a session that is not in the database was deleted. A
start reads the schema's version and whether what is there is encrypted, however many sessions there are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import MappingProxyType, TracebackType
from typing import Self

import msgspec
import orjson

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.history.state import Snapshot
from miniclaw_sessions.core.persistence.checking import CheckReport, problems_of_checkpoint
from miniclaw_sessions.core.persistence.losses import Loss
from miniclaw_sessions.core.persistence.marker import Marker, check_store
from miniclaw_sessions.core.persistence.mending import Mended, check_and_mend
from miniclaw_sessions.core.persistence.mirrored import PROPERTY as MIRRORED
from miniclaw_sessions.core.persistence.own_task import in_own_task, require_asyncio
from miniclaw_sessions.core.persistence.recovery import Joined, Progress, Recovered, RecoveryReport, join
from miniclaw_sessions.core.persistence.snapshots import largest_snapshot
from miniclaw_sessions.core.sharing.archive import ArchiveTable
from miniclaw_sessions.core.sharing.checkpoints import StoredCheckpoints
from miniclaw_sessions.core.stores.base import Store, StoredHead, StoredSession
from miniclaw_sessions.core.stores.encrypted import encrypted
from miniclaw_sessions.core.stores.reading import PAGE
from miniclaw_sessions.core.stores.shared_store import SharedStore, as_shared
from miniclaw_sessions.core.stores.wrapping import WatchedStore
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import KeyNeeded, NotEncrypted, StoreCorrupt, WrongKey

ENCRYPTION = "encryption"
"""The property that says which key everything is encrypted with; an empty one: nothing is."""

FAR_BEHIND = 16
"""A session this many entries behind its checkpoint gets a new one when it is loaded."""


def is_far_behind(one: StoredSession) -> bool:
    """Whether so much had to be read of a session that it should get a new checkpoint."""
    return one.stored.last_sequence - (one.checkpoint.sequence if one.checkpoint else 0) >= FAR_BEHIND


class Database:
    """The sessions of a shared store; an async context manager."""

    store: WatchedStore

    def __init__(
        self,
        store: Store,
        settings: SessionSettings,
        *,
        clock: Clock,
        encryption: KeyRing | None = None,
        read_only: bool = False,
    ) -> None:
        self._given = store
        self._server = server = as_shared(store)
        self._settings = settings
        self._encryption = encryption
        self._read_only = read_only
        self._stack = AsyncExitStack()
        self.sessions: dict[str, Recovered] = {}
        self.on_disk: dict[str, float] = {}
        self.report = RecoveryReport()
        self._mirrored: set[str] = set()  # of which it is known that it is written down
        self.archive = ArchiveTable(server, encryption)
        self.checkpoints = StoredCheckpoints(
            server, clock=clock, max_bytes=largest_snapshot(settings), encryption=encryption
        )

    def __repr__(self) -> str:
        return f"<Database {self.where}>"

    async def __aenter__(self) -> Self:
        """Connect, and see that the keys are the right ones.

        Raises:
            ConfigError: the server refuses us, or has something else there; or no event loop of asyncio runs.
            StoreError: the store cannot be opened now.
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
        """Disconnect."""
        await self._stack.aclose()

    @property
    def server(self) -> SharedStore:
        """The store itself, which decides for all processes. Await its answers with `store.watch`, for health."""
        return self._server

    @in_own_task
    async def _open(self, stack: AsyncExitStack) -> None:
        """Open it, but not with other keys than it needs; the first one to open it says which those are."""
        keys, what = self._encryption, f"the store {self.where}"
        self.store = WatchedStore(await stack.enter_async_context(encrypted(self._given, keys)))
        data = await self._server.read_property(ENCRYPTION)
        if data is None:
            await check_store(self.store, keys)
            if self._read_only:
                return
            mine = Marker(key="" if keys is None else keys.ids[0])
            data = await self._server.write_property(ENCRYPTION, orjson.dumps(mine, default=msgspec.structs.asdict))
        try:
            marker = msgspec.json.decode(data, type=Marker)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise StoreCorrupt(f"{what} is damaged: it does not say whether it is encrypted") from None
        if marker.key and keys is None:
            raise KeyNeeded(what)
        if keys is not None and not marker.key:
            raise NotEncrypted(what)
        if keys is not None and marker.key not in keys.ids:
            raise WrongKey(what, marker.key, keys.ids)

    @property
    def where(self) -> str:
        """The server's hosts and the database."""
        return self._server.place.shown

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def load(self, session_ids: Sequence[str]) -> tuple[dict[str, Recovered], RecoveryReport]:
        """Load some sessions, in one round trip unless one is far behind its checkpoint."""
        found, report = dict[str, Recovered](), RecoveryReport()
        for one in await self.store.load(session_ids):
            joined = await self.join(one)
            report.rebuilt += one.checkpoint is None
            turn = one.stored.turn
            is_held = turn is not None and not turn.is_over
            found[one.stored.head.session_id] = Recovered(joined.conversation, is_far_behind(one), is_held)
        return found, report

    async def join(self, one: StoredSession) -> Joined:
        """What a session leads to: its checkpoint, and behind it the entries; without one, all of its entries."""
        snapshot = None if one.checkpoint is None else self.checkpoints.decoded(one.checkpoint)
        is_known = one.checkpoint is None or snapshot is not None
        joined = await join(
            snapshot,
            one.stored,
            self.store,
            capacity=self._settings.window,
            behind=one.entries if is_known else (),
        )
        joined.conversation.state.last_accessed = one.used_at
        return joined

    async def was_mirrored(self, session_id: str) -> bool:
        """Whether its property is written."""
        return session_id in self._mirrored or await self._server.read_property(MIRRORED + session_id) is not None

    async def note_mirrored(self, session_id: str) -> None:
        """Write its property: a row of its own, because several processes may write."""
        if session_id not in self._mirrored:
            await self._server.write_property(MIRRORED + session_id, b"true")
            self._mirrored.add(session_id)

    async def write_checkpoints(self, conversations: Sequence[Conversation]) -> None:
        """Write checkpoints of sessions that were only read, so that later reads are short. A failure loses nothing."""
        captured = [one.capture(one.state.last_sequence) for one in conversations]
        await self.checkpoints.write([one for one in captured if one is not None], as_used=False)

    # --- upkeep ------------------------------------------------------------------------------------------------------

    @property
    def losses(self) -> Mapping[str, Loss]:
        """No store is ever replaced here, so nothing is lost with a former one."""
        return MappingProxyType({})

    async def acknowledge_losses(self, session_id: str | None) -> int:  # noqa: ARG002 - nothing is lost here
        """Nothing: no losses exist here."""
        return 0

    async def check(self, store: Store, on_progress: Callable[[Progress], None]) -> CheckReport:
        """The tables against each other, every entry, and every checkpoint against the entries."""
        problems = await store.check()
        total, sessions, entries = await store.count(), 0, 0
        async for page in _pages_of(store.heads()):
            sessions, entries = sessions + len(page), entries + sum(one.last_sequence for one in page.values())
            for snapshot in await self._snapshots(list(page)):
                problems += await problems_of_checkpoint(store, snapshot, page[snapshot.state.session_id])
            on_progress(Progress("checking", sessions, max(total, sessions)))
        return CheckReport(sessions=sessions, entries=entries, problems=problems)

    async def repair(self, store: Store) -> Mended:
        """Write what checkpoints have whole over damaged entries."""
        return await check_and_mend(self._snapshot, store)

    @property
    def log_remains(self) -> str:
        """What is true of every server."""
        return "the server's own files and log, until it overwrites them; and its backups and standbys likewise"

    async def purge(self, session_id: str) -> list[str]:  # noqa: ARG002 - all of it is gone with the session
        """Nothing is beside the store."""
        return []

    async def _snapshot(self, session_id: str) -> Snapshot | None:
        return next(iter(await self._snapshots([session_id])), None)

    async def _snapshots(self, session_ids: Sequence[str]) -> list[Snapshot]:
        decoded = [self.checkpoints.decoded(one) for one in await self._server.checkpoints(session_ids)]
        return [one for one in decoded if one is not None]


async def _pages_of(heads: AsyncIterator[StoredHead]) -> AsyncIterator[dict[str, StoredHead]]:
    page: dict[str, StoredHead] = {}
    async for stored in heads:
        page[stored.head.session_id] = stored
        if len(page) == PAGE:
            yield page
            page = {}
    if page:
        yield page
