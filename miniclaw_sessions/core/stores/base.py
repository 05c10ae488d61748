"""The store: the append-only home of every transcript, stated as promises.

A store keeps, for each session, a head (who it is) and a sequence of encoded entries. Only searching looks into them.
`miniclaw_sessions.testing.check_store` proves the promises over any implementation.

**What holds of every store**

- *Order*: entries come back in `sequence` order, which is the order of appending.
- *Idempotence*: appending the same entry (same sequence, same id) again changes nothing and succeeds.
- *No gaps, no overwriting*: entries begin at 1 and follow each other. An append that would leave a gap, or put another
  entry at a taken sequence, is refused with `StoreConflict`. A failed append leaves a prefix of its entries.
- *No damage unnoticed*: an entry that does not come back as it was written is not returned as a sound one.
- *Isolation*: in one call of `append`, the failure of one session's append does not fail its neighbours.
- *Durability*: when `append` returns without an error for a session, its entries survive all that `durable` promises.
- *Cancellation*: a call that has begun runs to its end even if the caller is cancelled; it is all or nothing for each
  session.
- *Absence*: reading a session that does not exist gives nothing; deleting it does nothing.
- *Ownership*: an append whose claim of a turn (`TurnClaim`) does not hold is refused; only by `shared` stores.

A store in files is used by one manager at a time, which holds the directory lock; a `shared` one by any number of them,
in as many processes. Calls may overlap.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Protocol, Self, TypeVar

import msgspec
from anyio.lowlevel import checkpoint

from miniclaw_sessions.core.history.search import Found, Search
from miniclaw_sessions.core.stores.reading import Transcripts
from miniclaw_sessions.core.stores.records import (
    LOST,
    Append,
    Checkpoint,
    SessionHead,
    StoredEntry,
    StoredHead,
    StoredSession,
    StoredTurn,
    TurnClaim,
    damaged,
    decode_stored,
    idempotency_key_in,
    is_damaged,
    mark_damaged,
    stored_entry,
    without_mark,
)
from miniclaw_sessions.core.stores.scanning import scan
from miniclaw_sessions.disk import LOCK
from miniclaw_sessions.errors import StoreConflict, StoreError

__all__ = [
    "LOST",
    "Append",
    "Checkpoint",
    "SessionHead",
    "Store",
    "StorePlace",
    "StoredEntry",
    "StoredHead",
    "StoredSession",
    "StoredTurn",
    "TurnClaim",
    "damaged",
    "decode_stored",
    "entries_to_add",
    "idempotency_key_in",
    "in_batches",
    "is_damaged",
    "mark_damaged",
    "stored_entry",
    "without_mark",
]

BATCH_ENTRIES = 500
BATCH_BYTES = 4_194_304
"""A batch with this many entries or bytes is written, with one sync."""

T = TypeVar("T")


class StorePlace(msgspec.Struct, frozen=True):
    """Where a store is, and what its kind is like. Code that copies, moves or removes stores asks this, never the kind.

    Attributes:
        kind: what its URL begins with.
        path: its file, or the directory that holds its files; None: it is in no file.
        is_directory: whether the whole directory belongs to it.
        durable: whether its content outlives this process.
        url: the address of its server; None: it has no server.
        shown: the same for people and logs, without user and password.
        plugin: the whole URL, if the store is another package's; empty: it is one of ours.
    """

    kind: str
    path: Path | None = None
    is_directory: bool = False
    durable: bool = True
    url: str | None = None
    shown: str = ""
    plugin: str = ""

    @property
    def identity(self) -> str:
        """A digest that distinguishes a server's database from others without naming it."""
        return hashlib.sha256(self.shown.encode()).hexdigest()[:16]

    @property
    def home(self) -> Path | None:
        """The directory that its files are in."""
        return self.path if self.path is None or self.is_directory else self.path.parent

    @property
    def torn(self) -> Path | None:
        """The directory for what crashes left at the ends of its files; None: it has none."""
        return self.path / "torn" if self.path is not None and self.is_directory else None

    def moved(self, home: Path) -> StorePlace:
        """The same, with its files in another directory."""
        if self.path is None:
            return self
        return msgspec.structs.replace(self, path=home if self.is_directory else home / self.path.name)

    def files(self) -> list[str]:
        """The names in `home` of the files that hold its entries; empty if there are none yet. Blocks."""
        if self.path is None or not self.path.exists():
            return []
        if not self.is_directory:
            return [self.path.name]
        return sorted(file.name for file in self.path.glob("[!.]*.jsonl"))

    def is_there(self) -> bool:
        """Whether it was made. It may have no sessions: all may be deleted or expired. Blocks."""
        if self.path is None or not self.is_directory:
            return bool(self.files())
        return bool(self.files()) or (self.path / LOCK).exists()  # each opening leaves the lock file

    def is_in_use(self) -> bool:
        """Whether another program has it open, while this one has not. Blocks."""
        return self.path is not None and not self.is_directory and Path(f"{self.path}-wal").exists()


class Store(Protocol):
    """One home of transcripts. Opened and closed as an async context manager.

    Every method may raise `StoreUnavailable` (cannot be reached or written now), `StoreFull` (no space; a
    StoreUnavailable) or `StoreCorrupt` (its files are damaged). Opening may also raise `SchemaTooNew`, and
    `ConfigError` when the place holds something else. The methods that have a body here do what a store without files
    needs.
    """

    durable: ClassVar[bool]
    """Whether a returned append survives kill -9 and a power cut."""

    keeps_entries: ClassVar[bool]
    """False only for the store `none`: there is no transcript, the snapshots are all there is."""

    shared: ClassVar[bool] = False
    """Whether other processes may write it at the same time. Then a session that is not in it was deleted, and an
    idempotency key that a session has in it is refused with `StoreConflict`."""

    @property
    def place(self) -> StorePlace:
        """Where it is; by default in no file."""
        return StorePlace(type(self).__name__, durable=self.durable)

    @property
    def files(self) -> Sequence[Path]:
        """The files that make up the store, to be set aside when it is corrupt; empty when it has none of its own."""
        return ()

    def found_damaged(self) -> bool:
        """Whether the files have damage that is only mended by writing them again. Asked before opening; blocks."""
        return False

    @property
    def damage(self) -> Sequence[str]:
        """The damage that was met since it was opened and is not yet mended, also where the call succeeded without it.

        One sentence each, as in `check`. A store that raises `StoreCorrupt`, or returns entries as `damaged`, wherever
        it meets damage, need not report it here.
        """
        return ()

    def rest_of(self, directory: Path) -> AbstractAsyncContextManager[Transcripts] | None:
        """The readable part of a damaged store of this kind, whose `files` were copied to a directory.

        None: opening the store reads everything that can be read of it.
        """
        del directory
        return None

    async def __aenter__(self) -> Self:
        """Open, and create or upgrade what is needed."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for running calls and close; what was acknowledged is safe."""
        del kind, error, trace  # without files there is nothing to close

    async def still_there(self) -> None:
        """Return if the next start will find what is appended now.

        Raises:
            StoreUnavailable: the file was deleted, moved or replaced while it was open. Appending is refused too.
        """
        await checkpoint()

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        """Append entries of many sessions with one sync; a session that is not there is created from its head.

        No session occurs twice in one call. Returns one outcome per append, in the same order. None acknowledges the
        append. An error means that this session's entries are not in the store: after a `StoreUnavailable` they may be
        appended again later, after any other error never. If nothing can be taken at all (no space, no connection),
        the error is raised instead, and nothing is acknowledged.
        """
        ...

    def heads(self) -> AsyncIterator[StoredHead]:
        """All sessions, in order of session_id; sessions whose reading raises `SessionUnavailable` may be left out."""
        ...

    async def session_ids(self) -> list[str]:
        """The ids of all sessions, in order; a start with a million of them needs no more."""
        ...

    async def head(self, session_id: str) -> StoredHead | None:
        """One session, or None."""
        ...

    async def versions(self, session_ids: Collection[str]) -> Mapping[str, StoredHead]:
        """The heads of those of these sessions that exist, by their ids; a shared store asks in one query."""
        found = [(session_id, await self.head(session_id)) for session_id in session_ids]
        return {session_id: head for session_id, head in found if head is not None}

    async def count(self) -> int:
        """How many sessions there are."""
        return len(await self.session_ids())

    async def load(self, session_ids: Sequence[str]) -> list[StoredSession]:
        """Those of these sessions that exist, with what is needed to go on with them."""
        heads = [stored for session_id in session_ids if (stored := await self.head(session_id)) is not None]
        return [StoredSession(stored, stored.head.created_at) for stored in heads]

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """The entries with a sequence greater than `after`, oldest first, at most `limit` of them.

        An entry that contradicts its checksum comes with bytes that no reader takes for an entry (`damaged`).
        """
        ...

    async def read_newest(self, session_id: str, limit: int) -> list[StoredEntry]:
        """The newest `limit` entries, oldest first."""
        ...

    async def find(self, session_id: str, entry_id: str) -> StoredEntry | None:
        """The entry with this id, or None. May read every entry of the session: not for loops."""
        ...

    async def find_by_idempotency_key(self, session_id: str, key: str) -> StoredEntry | None:
        """The oldest entry with this idempotency key, or None; cheap enough to call before every append."""
        ...

    async def mend(self, session_id: str, candidates: Sequence[StoredEntry]) -> int:
        """Replace damaged entries by right ones, durably. Returns how many were mended.

        A candidate is taken if the entry at its sequence is damaged (`is_damaged`) and was this very entry by the
        stored checksum, or if it is `LOST`. Everything else stays as it is.

        Args:
            session_id: whose entries they are.
            candidates: in order of sequence; of several for one sequence, the first right one is taken.
        """
        ...

    async def delete(self, session_id: str, *, known: StoredHead | None = None) -> bool:
        """Remove the session and all its entries, durably. Returns whether there was one.

        Args:
            session_id: which session.
            known: remove only this incarnation, and only if it has no newer entries; None: remove what is there.
                Only `shared` stores look at it: no other process writes the others.

        Raises:
            StoreConflict: the store has another incarnation, or more entries; nothing was removed.
        """
        ...

    async def purge(self) -> bool:
        """Leave nothing of deleted sessions in any file of the store. Returns False if that cannot be done now.

        A store that keeps no second copy, such as a write-ahead log, has nothing to do.
        """
        return True

    async def search(self, search: Search) -> Found:
        """The entries that a search matches, the newest first; an index only finds them sooner than reading everything.

        Entries that are not committed, were deleted or cannot be read are not found. The branch of an entry does not
        matter here. `history.searched` judges each entry, so that every store finds the same.

        Raises:
            InvalidSearch: the cursor is not one of this store.
        """
        return await scan(self, search)

    async def index(self, limit: int) -> int:
        """Add at most `limit` entries to the index of `search`. Returns how many were added, 0 when none are left.

        Called between appends, never by them: an index that is behind finds new entries a little later, and reports how
        many it lacks.
        """
        del limit
        return 0

    async def drop_index(self) -> None:
        """Remove everything that `index` has written; the next `index` begins from the start."""
        await checkpoint()

    async def check(self) -> list[str]:
        """Look for damage and return the findings, one sentence each; an empty list means sound. Changes nothing."""
        ...


def entries_to_add(
    append: Append, *, incarnation: str | None, last_sequence: int, ids_between: Callable[[int, int], Mapping[int, str]]
) -> Sequence[StoredEntry]:
    """The entries of an append that the store does not have yet: order, idempotence and conflict, for every store.

    Args:
        append: the entries to append.
        incarnation: of the session in the store; None if there is no such session.
        last_sequence: the sequence of its newest entry; 0 without one.
        ids_between: returns the stored entry ids from one sequence to another, both included; only called if the
            append begins at or before `last_sequence`.

    Raises:
        StoreConflict: another entry is stored at one of the sequences, the session is another incarnation, or the
            sequences do not follow each other and what is stored.
    """
    session_id, entries = append.head.session_id, append.entries
    if incarnation is not None and incarnation != append.head.incarnation:
        raise StoreConflict(
            f"cannot append to session {session_id}: the store has another session of this name, made after this one "
            "was deleted or by another program; get_or_create gives the one that is stored"
        )
    expected = last_sequence + 1
    for entry in entries:
        if entry.sequence != expected:
            break
        expected += 1
    else:  # the usual case: all of them are new
        return entries
    _check_order(append, last_sequence)
    known = [entry for entry in entries if entry.sequence <= last_sequence]
    stored = ids_between(known[0].sequence, known[-1].sequence) if known else {}
    for entry in known:
        if stored.get(entry.sequence) != entry.entry_id:
            raise StoreConflict(
                f"cannot append entry {entry.entry_id} to session {session_id} at sequence {entry.sequence}: the store "
                f"is at {last_sequence} and has {stored.get(entry.sequence, 'no entry')} there; read the session again"
            )
    return entries[len(known) :]


def _check_order(append: Append, last_sequence: int) -> None:
    """Refuse sequences that do not ascend, and gaps unless the append follows a loss."""
    session_id, previous = append.head.session_id, 0
    for entry in append.entries:
        if entry.sequence <= previous:
            raise StoreConflict(
                f"cannot append to session {session_id}: sequence {entry.sequence} follows {previous}; "
                "sequences begin at 1 and ascend"
            )
        previous = entry.sequence
    if append.after_loss:
        return
    # the caller believes that the store has the entries of a gap, so nothing would ever fill it
    previous = min(append.entries[0].sequence - 1, last_sequence)
    for entry in append.entries:
        if entry.sequence != previous + 1:
            raise StoreConflict(
                f"cannot append to session {session_id} at sequence {entry.sequence}: the store ends at {previous}, "
                "and what should lie between is not in it. It has lost entries, or its file was replaced; open the "
                "session again, which writes back what its snapshot has"
            )
        previous = entry.sequence


async def in_batches(
    items: AsyncIterator[T], size: Callable[[T], int], *, most: int = BATCH_ENTRIES
) -> AsyncGenerator[list[T], None]:
    """The items in batches, each to be written with one sync; no batch is empty.

    Args:
        items: the items, in order.
        size: returns the bytes of an item.
        most: the largest number of items in a batch.
    """
    batch: list[T] = []
    total = 0
    async for item in items:
        batch.append(item)
        total += size(item)
        if len(batch) >= most or total >= BATCH_BYTES:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch
