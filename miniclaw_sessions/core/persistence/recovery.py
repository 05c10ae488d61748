"""Startup: check all snapshots, bring them up to the store, heal either side from the other.

A file that is as it was written and agrees with the store is only checked at the start; its session is loaded at its
first use. All others are loaded. The rules (the log in the store is the truth, the file is its checkpoint):

- a snapshot that is behind its store is brought up by folding in the entries that it lacks;
- a snapshot that is damaged goes to quarantine, whole, and the session is rebuilt from the store;
- a session that the store does not know (the store was lost, or there was none) is written back from its snapshot;
- a file that cannot be read, or that a newer version wrote, is not damaged: recovery stops and nothing was changed.

Recovery only reads until it knows that it will go through, and running it twice, or being killed in the middle, changes
nothing (rule R16). Loading renews no session's time to live and makes nothing dirty that the disk already has.

All this is about a directory, which one process has. A database that several processes share is asked for a session at
its first use, and heals nothing (`sharing.database`); it uses `join` and `catch_up` from here.

Where more sessions exist than may be in memory, the start does not even check their files: it learns the names, from
the directory and the store, and reads the files that the store does not know. A session goes through the same rules
when it is loaded later.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import anyio
import msgspec
from anyio import to_thread
from anyio.streams.memory import MemoryObjectSendStream

from miniclaw_sessions.clock import Clock, derived_ids
from miniclaw_sessions.core.history.branch import rejoined
from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.history.state import Snapshot
from miniclaw_sessions.core.persistence.losses import Loss, Losses
from miniclaw_sessions.core.persistence.snapshot_file import DamagedSnapshot, FileHead, decode_snapshot
from miniclaw_sessions.core.persistence.snapshots import SUFFIX, Snapshots
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.entries import METADATA, Custom, Entry, LeafMove, MessageEntry, place_of_parent
from miniclaw_sessions.core.protocol.keys import is_session_id
from miniclaw_sessions.core.stores.base import (
    Append,
    SessionHead,
    Store,
    StoredEntry,
    StoredHead,
    decode_stored,
    stored_entry,
)
from miniclaw_sessions.core.stores.branches import bring_window_up
from miniclaw_sessions.core.stores.checking import RESTORED
from miniclaw_sessions.core.stores.reading import read_all
from miniclaw_sessions.disk import FileContent, TooLarge
from miniclaw_sessions.encryption import is_sealed
from miniclaw_sessions.errors import ConfigError, InvalidMessage, SnapshotUnreadable, StoreCorrupt, first_cause
from miniclaw_sessions.log import get_logger

_OF_ENTRIES = ("title", "provider", "model", "thinking_level")
"""Metadata that entries of the branch set: where it was removed, such an entry may be all that is left."""

READ_AHEAD = 4
"""How many chunks of files may be read and not yet decoded."""

BATCH = 500
"""How many sessions are settled before their missing entries are written and progress is reported."""

log = get_logger(__name__)


class Progress(msgspec.Struct, frozen=True):
    """How far a long piece of work has come."""

    stage: str
    done: int
    total: int


class Recovered(msgspec.Struct, frozen=True):
    """One session as it was found.

    Attributes:
        conversation: what it leads to.
        dirty: its file, or its checkpoint, is not what it should be.
        is_held: another process has its turn.
    """

    conversation: Conversation
    dirty: bool
    is_held: bool = False


class RecoveryReport(msgspec.Struct, kw_only=True):
    """What recovery found and did."""

    from_snapshots: int = 0
    brought_up: int = 0
    rebuilt: int = 0
    written_back: int = 0
    quarantined: list[str] = msgspec.field(default_factory=list)
    ignored: list[str] = msgspec.field(default_factory=list)
    messages: int = 0
    seconds: float = 0.0

    def add(self, loaded: RecoveryReport) -> None:
        """Add what was found when one more session was loaded later."""
        self.quarantined += loaded.quarantined
        self.rebuilt += loaded.rebuilt
        self.brought_up += loaded.brought_up
        self.written_back += loaded.written_back


class Recovery:
    """One run of it: `run` for all sessions, or `load` for some.

    Attributes:
        sessions: those that were loaded, by their id.
        on_disk: those that were not loaded, and when each was last used, in seconds since the epoch; 0: not known.
        report: what was found and done.
    """

    def __init__(  # noqa: PLR0913 - both sides, and how they are to be read
        self,
        snapshots: Snapshots,
        store: Store,
        *,
        clock: Clock,
        capacity: int,
        max_cached: int,
        losses: Losses,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._snapshots = snapshots
        self._store = store
        self._clock = clock
        self._capacity = capacity
        self._max_cached = max_cached
        self._losses = losses
        self._on_progress = on_progress
        self._damaged: list[tuple[str, str]] = []
        self._renamed: list[tuple[str, str]] = []
        self._loaded: dict[str, Snapshot] = {}
        self._missing: list[Append] = []
        self._lost: dict[str, Loss] = {}
        self._others: frozenset[str] = frozenset()  # files that are there and not read
        self.sessions: dict[str, Recovered] = {}
        self.on_disk: dict[str, float] = {}
        self.report = RecoveryReport()

    async def run(self) -> None:
        """Read, compare, heal.

        Raises:
            SnapshotUnreadable: a file or the directory cannot be read.
            SchemaTooNew: a newer version wrote a file or the store.
            QuarantineFull: a damaged file has nowhere to go.
            StoreError: the store cannot be read or written.
            ConfigError: a file cannot be moved to where it belongs; it is where it was.
        """
        started = self._clock.monotonic()
        try:
            names = await self._snapshots.names()
            with _collector_paused():
                if len(names) <= self._max_cached:
                    await self._check_files(names)
                else:
                    await self._learn_names(names)
            await self._snapshots.clean()
        except OSError as error:
            raise ConfigError(
                f"the files in {self._snapshots.path} cannot be put in order: {error.strerror or error}. "
                "Nothing is lost; mend the directory or the disk and start again."
            ) from error
        self.report.seconds = self._clock.monotonic() - started

    async def load(self, session_ids: Sequence[str]) -> None:
        """Load some sessions, by the same rules; `sessions` has those of them that exist.

        The file of another program may turn out to be another session than its name says, which is loaded then.

        Raises:
            SnapshotUnreadable, SchemaTooNew, QuarantineFull, StoreError: as for `run`; nothing was changed.
        """
        try:
            async for chunk in self._snapshots.read([one + SUFFIX for one in session_ids], tighten=True):
                for found in chunk:
                    self._load(found)
            await self._set_damaged_aside()
            ids = dict.fromkeys([*session_ids, *self._loaded])
            heads = await self._store.versions(ids)
            for session_id in ids:
                await self._settle(session_id, self._loaded.pop(session_id, None), heads.get(session_id))
            await self._write_back()
        except OSError as error:
            raise SnapshotUnreadable(
                f"{', '.join(session_ids)} cannot be loaded from {self._snapshots.path}: {error.strerror or error}. "
                "Nothing is lost; mend the directory or the disk and try again."
            ) from error

    async def _check_files(self, names: Sequence[str]) -> None:
        """Look at all files and at the store; load only the sessions of which the two do not say the same."""
        files = await self._snapshots.heads(
            names, lambda done: self._on_progress(Progress("recovering", done, len(names)))
        )
        stored = {one.head.session_id: one async for one in self._store.heads()}
        for session_id, file in files.items():
            if self._agree(file, stored.get(session_id)):
                self.on_disk[session_id] = file.last_accessed
                self.report.messages += min(file.messages, self._capacity)
        self.report.from_snapshots = len(self.on_disk)
        others = [name for name in names if name.removesuffix(SUFFIX) not in self.on_disk]
        self._others = frozenset(names).difference(others) if others else frozenset()
        await self._load_files(others)
        await self._settle_loaded({one: head for one, head in stored.items() if one not in self.on_disk})

    def _agree(self, file: FileHead, stored: StoredHead | None) -> bool:
        if stored is None:
            return file.last_sequence == 0 or not self._store.keeps_entries
        return (stored.head.incarnation, stored.last_sequence) == (file.incarnation, file.last_sequence)

    async def _learn_names(self, names: Sequence[str]) -> None:
        """Which sessions there are; those that only a file knows are given to the store, as if it had been lost."""
        self.on_disk = on_disk = dict.fromkeys(await self._store.session_ids(), 0.0)
        strange = [name for name in names if name.removesuffix(SUFFIX) not in on_disk]
        if not self._store.keeps_entries:
            ours = {name: name.removesuffix(SUFFIX) for name in strange if is_session_id(name.removesuffix(SUFFIX))}
            on_disk.update(dict.fromkeys(ours.values(), 0.0))
            strange = [name for name in strange if name not in ours]
        async for _ in self._snapshots.read(names[:1]):
            pass  # what keeps every file from being read, such as a wrong key, stops the start
        self._others = frozenset(names).difference(strange) if strange else frozenset()
        for start in range(0, len(strange), BATCH):
            await self._load_files(strange[start : start + BATCH])
            heads = [await self._store.head(one) for one in self._loaded if one in on_disk]
            await self._settle_loaded({one.head.session_id: one for one in heads if one is not None})
            on_disk.update(dict.fromkeys(self.sessions, 0.0))
            self.sessions.clear()

    # --- the files ---------------------------------------------------------------------------------------------------

    async def _load_files(self, names: Sequence[str]) -> None:
        """Read in a thread and decode here at the same time: each keeps the other waiting least this way."""
        done = 0
        send, receive = anyio.create_memory_object_stream[list[FileContent]](READ_AHEAD)
        try:
            async with anyio.create_task_group() as tasks, receive:
                tasks.start_soon(self._read_files, names, send, name="read snapshots")
                async for chunk in receive:
                    for found in chunk:
                        self._load(found)
                    done += len(chunk)
                    self._on_progress(Progress("recovering", done, len(names)))
        except ExceptionGroup as group:  # whichever it was, the file's own error says what to do
            raise first_cause(group) from None

    async def _read_files(self, names: Sequence[str], send: MemoryObjectSendStream[list[FileContent]]) -> None:
        async with send:
            async for chunk in self._snapshots.read(names, tighten=True):
                await send.send(chunk)

    def _load(self, found: FileContent) -> None:
        """Decode one file, or note what to do with it; nothing is changed yet."""
        if found.data is None:
            if isinstance(found.error, TooLarge):
                self._damaged.append((found.name, str(found.error)))
            else:
                self.report.ignored.append(found.name)  # a directory, link, pipe: not ours to touch
                log.warning("not a regular file; left alone", action="recovery.ignored", file=found.name)
            return
        stem = found.name.removesuffix(SUFFIX)
        try:
            snapshot = decode_snapshot(found.data, stem=stem, now=self._clock.now(), new_id=derived_ids(found.data))
        except DamagedSnapshot as error:
            reason = "it is encrypted, and damaged or another's" if is_sealed(found.data) else str(error)
            self._damaged.append((found.name, reason))
            return
        session_id = snapshot.state.session_id
        if session_id != stem and session_id + SUFFIX in self._others:
            self._damaged.append((found.name, f"another file holds session {session_id} too"))
            return
        if session_id != stem:
            self._renamed.append((found.name, session_id + SUFFIX))
        if session_id in self._loaded:  # ours has the canonical name; the raw one was left by another program
            raw = f"{snapshot.state.key.channel}_{snapshot.state.key.chat_id}{SUFFIX}"
            self._damaged.append((raw, f"another file holds session {session_id} too"))
        if session_id not in self._loaded or session_id == stem:
            self._loaded[session_id] = snapshot

    async def _set_damaged_aside(self) -> None:
        for name, reason in self._damaged:
            new_name = await self._snapshots.set_aside(name, reason)
            self.report.quarantined.append(new_name)
            log.error("a damaged file was set aside", action="recovery.quarantined", file=name, reason=reason)
        damaged = {name for name, _ in self._damaged}
        for name, new_name in self._renamed:
            if name not in damaged:
                await self._snapshots.rename(name, new_name)
                log.info("a file got its canonical name", action="recovery.renamed", file=name)
        self._damaged, self._renamed = [], []

    # --- the store ---------------------------------------------------------------------------------------------------

    async def _settle_loaded(self, heads: Mapping[str, StoredHead]) -> None:
        """Set aside what is damaged, and settle the rest."""
        await self._set_damaged_aside()
        ids = sorted(self._loaded.keys() | heads.keys())
        for done, session_id in enumerate(ids, 1):
            await self._settle(session_id, self._loaded.pop(session_id, None), heads.get(session_id))
            if done % BATCH == 0 or done == len(ids):
                await self._write_back()
                self._on_progress(Progress("comparing", done, len(ids)))

    async def _settle(self, session_id: str, snapshot: Snapshot | None, stored: StoredHead | None) -> None:
        """Decide which side is right, and make one conversation of both."""
        if snapshot is None and stored is None:
            return
        if stored is not None and snapshot is not None and stored.head.incarnation != snapshot.state.incarnation:
            name = await self._snapshots.set_aside(
                session_id + SUFFIX, "it belongs to an earlier session of this name, which was deleted"
            )
            self.report.quarantined.append(name)
            snapshot = None
        joined = await join(snapshot, stored, self._store, capacity=self._capacity)
        conversation, dirty = joined.conversation, joined.is_behind
        self.report.rebuilt += snapshot is None
        self.report.from_snapshots += snapshot is not None
        self.report.brought_up += snapshot is not None and joined.is_behind
        last = stored.last_sequence if stored is not None else 0
        is_ahead = snapshot is not None and self._store.keeps_entries and last < conversation.state.last_sequence
        if is_ahead and stored is None and await self._store.head(session_id) is not None:
            is_ahead = False
        if snapshot is not None and is_ahead:
            kept = sum(entry.sequence > last for entry in snapshot.entries) + await _count_messages(
                session_id, self._store
            )
            if (lost := snapshot.state.totals.messages - kept) > 0:
                self._lost[session_id] = Loss(lost, self._clock.now())
            self._missing.append(missing_entries(snapshot, conversation, last, self._clock))
            dirty = True
        self.report.messages += len(conversation.window)
        self.sessions[session_id] = Recovered(conversation, dirty)

    async def _write_back(self) -> None:
        """Give the store what only the snapshots have."""
        if not self._missing:
            return
        if self._lost:  # before anything is sound again: a crash in between must not hide it
            await to_thread.run_sync(self._losses.note, self._lost)
        outcomes = await self._store.append(self._missing)
        for item, outcome in zip(self._missing, outcomes, strict=True):
            if isinstance(outcome, StoreCorrupt):  # one file that is not ours, or too new, must not stop the others
                log.error(
                    "a session's transcript cannot be used; it is shown as its snapshot has it, and nothing is added",
                    action="recovery.transcript_refused",
                    session_id=item.head.session_id,
                    error=str(outcome),
                )
            elif outcome is not None:
                raise outcome
        self.report.written_back += len(self._missing)
        if self._lost:
            log.warning(
                "the store lacked what the files still have; it was given that, older messages are lost",
                action="recovery.written_back",
                sessions=len(self._missing),
                with_losses=len(self._lost),
            )
        else:
            sentence = "the store was given all that the files have"
            log.info(sentence, action="recovery.written_back", sessions=len(self._missing))
        self._missing, self._lost = [], {}


async def read_snapshot(snapshots: Snapshots, session_id: str, clock: Clock) -> Snapshot | None:
    """The content of a session's file; None if it is missing or damaged.

    Raises:
        SnapshotUnreadable: it cannot be read.
        SchemaTooNew: a newer version wrote it.
    """
    async for chunk in snapshots.read([session_id + SUFFIX]):
        for found in chunk:
            if found.data is not None and not is_sealed(found.data):
                with suppress(DamagedSnapshot):
                    return decode_snapshot(found.data, stem=session_id, now=clock.now(), new_id=derived_ids(found.data))
    return None


class Joined(NamedTuple):
    """What snapshot and store say together; `is_behind` says that the snapshot lacked something."""

    conversation: Conversation
    is_behind: bool


async def join(
    snapshot: Snapshot | None,
    stored: StoredHead | None,
    store: Store,
    *,
    capacity: int,
    behind: Sequence[StoredEntry] = (),
) -> Joined:
    """Make one conversation of both sides, of which there is at least one. Changes nothing.

    Args:
        snapshot: of the same incarnation as what is stored.
        stored: the session in the store.
        store: which is read where the snapshot is behind.
        capacity: of the window.
        behind: the first entries behind the snapshot, where they are read already.

    Raises:
        StoreError: the store cannot be read.
    """
    if snapshot is None:
        assert stored is not None  # noqa: S101 - there is at least one
        head = stored.head
        conversation = Conversation.new(
            head.key, incarnation=head.incarnation, created_at=head.created_at, capacity=capacity
        )
        await catch_up(conversation, store, behind, last=stored.last_sequence)
        return Joined(conversation, is_behind=True)
    conversation = Conversation.from_snapshot(snapshot, capacity=capacity)
    last = stored.last_sequence if stored is not None else 0
    lacks = conversation.lacks_messages or conversation.lacks_branch
    if last > conversation.state.last_sequence or (lacks and last == conversation.state.last_sequence > 0):
        await catch_up(conversation, store, behind, last=last)
        return Joined(conversation, is_behind=True)
    conversation.lacks_messages = conversation.lacks_branch = False  # no file or store has them
    return Joined(conversation, is_behind=False)


async def catch_up(
    conversation: Conversation, store: Store, behind: Sequence[StoredEntry] = (), *, last: int | None = None
) -> None:
    """Fold in what the store has and the conversation lacks, a page at a time.

    Args:
        conversation: the session up to some place.
        store: has the rest.
        behind: the first entries of the rest, where they are read already.
        last: how far to go at least; None: as far as there is anything.
    """
    session_id = conversation.state.session_id
    async for stored in _rest(store, session_id, conversation.state.last_sequence, behind, last):
        try:
            entry = decode_stored(stored)
        except InvalidMessage as error:
            log.error(
                "an entry in the store is damaged and was passed over",
                action="recovery.entry_damaged",
                session_id=session_id,
                sequence=stored.sequence,
                error=str(error),
            )
            conversation.pass_over(stored.sequence, stored.entry_id, stored.idempotency_key)
            continue
        if isinstance(entry, LeafMove) and entry.target_id is None:
            await bring_window_up(conversation, store)  # what is in force there stays in force
        conversation.apply(entry)
        if entry.extra and RESTORED in entry.extra:
            _go_on_from(entry, conversation)
    for problem in await bring_window_up(conversation, store):
        log.error("a branch is damaged", action="recovery.entry_damaged", session_id=session_id, error=problem)


async def _rest(
    store: Store, session_id: str, after: int, behind: Sequence[StoredEntry], last: int | None
) -> AsyncIterator[StoredEntry]:
    """The entries after a place: those that are known, and then from the store what is missing up to `last`."""
    for stored in behind:
        yield stored
        after = stored.sequence
    if last is None or after < last:
        async for stored in read_all(store, session_id, after=after):
            yield stored


async def _count_messages(session_id: str, store: Store) -> int:
    """How many messages a store has that has lost some."""
    count = 0
    async for stored in read_all(store, session_id):
        with suppress(InvalidMessage):
            count += isinstance(decode_entry(stored.encoded), MessageEntry)
    return count


def _go_on_from(marker: Entry, conversation: Conversation) -> None:
    """The parent of the last entry that `missing_entries` wrote is the leaf, however store and snapshot end."""
    known = conversation.branch().entries
    newest = known[-1].id if known else None
    if marker.parent_id not in (conversation.state.leaf_id, newest):
        conversation.lacks_branch = True
    conversation.state.leaf_id = marker.parent_id
    conversation.state.leaf_sequence = place_of_parent(marker)


def missing_entries(snapshot: Snapshot, conversation: Conversation, last: int, clock: Clock) -> Append:
    """What a store that knows a session only up to `last` lacks: the window's messages, their summary, and a marker.

    They become one branch again, for what stood between them is lost. The marker says that older entries were lost with
    a former store, so that the gap in the sequence numbers is known for what it is, and carries the metadata that those
    entries had set. Its parent is where the conversation goes on.
    """
    found: list[Entry] = [*snapshot.entries]
    if snapshot.state.compaction is not None:
        found.append(snapshot.state.compaction)
    left = rejoined(sorted(found, key=lambda entry: entry.sequence), stored=last)
    if conversation.state.leaf_sequence > last and all(entry.id != conversation.state.leaf_id for entry in left):
        conversation.state.leaf_id = left[-1].id if left else None
        conversation.state.leaf_sequence = left[-1].sequence if left else 0
    marker = Custom(
        id=clock.new_id(),
        parent_id=conversation.state.leaf_id,
        timestamp=clock.now(),
        sequence=conversation.state.last_sequence + 1,
        parent_sequence=conversation.state.leaf_sequence,
        custom_type=METADATA,
        data={**dict.fromkeys(_OF_ENTRIES), **snapshot.state.metadata},
        extra={RESTORED: {"store_had": last}},
    )
    conversation.state.last_sequence = conversation.state_sequence = marker.sequence
    entries = [*(entry for entry in left if entry.sequence > last), marker]
    head = SessionHead(
        snapshot.state.session_id, snapshot.state.key, snapshot.state.incarnation, snapshot.state.created_at
    )
    return Append(head, [stored_entry(entry) for entry in entries], after_loss=True)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Loading makes many objects and no garbage; the collector would only walk them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
