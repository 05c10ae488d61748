"""The default store: one SQLite file, in WAL mode, synced at every commit.

Each operation is one call in a thread, with a whole transaction: a cancelled caller cannot interrupt it, and a group of
any number of appends costs one hop and one sync. One thread writes, and a few others read at the same time. With
`synchronous=FULL` SQLite promises that everything that was committed survives a power cut.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from os.path import samestat
from pathlib import Path
from threading import BoundedSemaphore
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from anyio import CancelScope, CapacityLimiter, Semaphore, to_thread
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DatabaseError, DataError, IntegrityError, SQLAlchemyError

from miniclaw_sessions.core.history.search import Found, Search
from miniclaw_sessions.core.stores.base import LOST, Append, Store, StoredEntry, StoredHead, StorePlace
from miniclaw_sessions.core.stores.checking import check_transcripts
from miniclaw_sessions.core.stores.files import read_through
from miniclaw_sessions.core.stores.keys import KeyFilter, UsedKeys
from miniclaw_sessions.core.stores.reading import find_by_reading
from miniclaw_sessions.core.stores.serial_thread import SerialThread
from miniclaw_sessions.core.stores.sql.checksums import unreadable
from miniclaw_sessions.core.stores.sql.failures import is_full, store_error, unknown_schema
from miniclaw_sessions.core.stores.sqlite import searching, statements
from miniclaw_sessions.core.stores.sqlite.damaged_pages import read_row_by_row
from miniclaw_sessions.core.stores.sqlite.engines import engine
from miniclaw_sessions.core.stores.sqlite.files import (
    connect,
    create_file,
    database_files,
    empty_log,
    fill_log,
    forget_damage,
    has_noted_damage,
    note_damage,
    schema_version,
    settle_log,
)
from miniclaw_sessions.core.stores.sqlite.migrations import REVISIONS, create, upgrade
from miniclaw_sessions.core.stores.sqlite.salvage import Salvage
from miniclaw_sessions.core.stores.sqlite.search_file import SearchFile
from miniclaw_sessions.core.stores.sqlite.statements import Known, driver_of
from miniclaw_sessions.errors import StoreConflict, StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from miniclaw_sessions.log import get_logger

READERS, SEARCHES = 4, 2
"""The number of reads that may run at once, and how many of them may be searches."""

MAX_KNOWN_POSITIONS = 100_000
"""The number of sessions whose positions are remembered, about 200 bytes each; beyond it all are forgotten."""

SCANNED_ENTRIES = 1_000
"""If the tail of the log is longer than this, it is indexed before the next read."""

FILLED_AFTER = 64
"""The -wal file gets its whole size after this many commits; a store that is opened for a few need not wait for it."""

MAX_UNPLACED = 32_768
"""If the tail is longer than this, the next append indexes it, which takes up to 0.1 s."""

_REFUSED = (IntegrityError, DataError, sqlite3.IntegrityError, sqlite3.DataError, UnicodeError, OverflowError)
"""Errors that are caused by the rows, not by the database."""

T = TypeVar("T")

log = get_logger(__name__)


class SQLiteStore(Store):
    """Transcripts in one file. If two programs have it open, a conflict is refused and nothing is overwritten."""

    durable: ClassVar[bool] = True
    keeps_entries: ClassVar[bool] = True
    damage: Sequence[str] = ()

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = database_files(path)
        self._search_file = SearchFile(path)
        self._known = Known()
        self._keys = UsedKeys(self._keys_of)
        self._version: int | None = None
        self._identities: dict[Path, os.stat_result] = {}
        self._is_gone = False
        self._writers: Engine | None = None
        self._readers: Engine | None = None
        self._writer: Connection | None = None
        self._log_is_settled = False
        self._until_filled = 0
        self._writer_thread: SerialThread | None = None
        self._reader_turns: CapacityLimiter | None = None
        # A cancelled caller releases the limiter while its thread still runs; this semaphore counts the threads.
        self._reading = BoundedSemaphore(READERS)
        self._searches = Semaphore(SEARCHES)

    def __repr__(self) -> str:
        return f"<SQLiteStore {self._path}>"

    @property
    def place(self) -> StorePlace:
        """The database."""
        return StorePlace("sqlite", self._path)

    @property
    def files(self) -> Sequence[Path]:
        """The database, its -wal and its -shm file; the last two only exist while it is open, or after a crash."""
        return self._files

    def found_damaged(self) -> bool:
        """Whether a process that had it open met an unreadable page, or tables that contradict each other.

        It checks again: SQLite also reports damage when the disk refuses a read, which may have passed.
        """
        if not has_noted_damage(self._path):
            return False
        for _ in range(2):
            try:
                problems = self._own_problems()
            except StoreCorrupt:
                continue
            except StoreUnavailable:
                return False
            if not problems:
                forget_damage(self._path)
                return False
        return True

    def rest_of(self, directory: Path) -> Salvage:
        """The rows that can still be read of a copy of the database."""
        return Salvage(directory / self._path.name)

    # --- the contract ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Open the file, and create it or upgrade its schema if needed.

        Raises:
            SchemaTooNew: a newer version of this program made it; it was not changed.
            ConfigError: it is another program's database.
            StoreUnavailable: it cannot be opened or created.
            StoreCorrupt: it is damaged.
        """
        await to_thread.run_sync(self._open)
        self._reader_turns = CapacityLimiter(READERS)
        self._writer_thread = SerialThread(f"writer of {self._path.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for running calls, move the content of the -wal file to the database, and close."""
        try:
            await self._write(self._close)
        finally:
            thread, self._writer_thread = self._writer_thread, None
            if thread is not None:
                thread.stop()

    async def still_there(self) -> None:
        """Check that the database and its -wal file are still the open ones."""
        await self._write(self._check_still_there)

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        """Append entries of many sessions in one transaction, with one sync."""
        if self._keys.sessions:
            self._keys.note(appends)
        return await self._write(self._append, appends)

    async def heads(self) -> AsyncIterator[StoredHead]:
        """All sessions in order of session_id, read a page at a time."""
        async for stored in self._all_heads():
            if _is_named_rightly(stored):
                yield stored
            else:
                log.error(
                    "the row of a session is damaged, so its session is not known; it was left alone",
                    action="store.session_damaged",
                    session_id=stored.head.session_id,
                )

    async def _all_heads(self) -> AsyncIterator[StoredHead]:
        after = ""
        while page := await self._read(partial(statements.heads_after, session_id=after)):
            for stored in page:
                yield stored
            if page[-1].head.session_id <= after:  # otherwise the same page would come for ever
                raise StoreCorrupt(f"cannot read {self._path}: its index of sessions contradicts what is in them")
            after = page[-1].head.session_id

    async def session_ids(self) -> list[str]:
        """The ids of all sessions, in order, read at once."""
        return await self._read(statements.session_ids)

    async def head(self, session_id: str) -> StoredHead | None:
        """One session, or None."""
        return (await self.versions([session_id])).get(session_id)

    async def versions(self, session_ids: Collection[str]) -> Mapping[str, StoredHead]:
        """Those of these sessions that exist, in one query."""
        found = await self._read(partial(statements.heads_of, session_ids=[*session_ids]))
        for stored in found:
            if not _is_named_rightly(stored):
                raise StoreCorrupt(
                    f"cannot use session {stored.head.session_id} in {self._path}: its row is damaged, it says "
                    f"{stored.head.key}"
                )
        return {stored.head.session_id: stored for stored in found}

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """The entries after a sequence, oldest first."""
        limit = None if limit is None else max(limit, 0)
        query = partial(statements.entries_after, session_id=session_id, after=after, limit=limit)
        return await self._entries(query, partial(read_row_by_row, session_id=session_id, after=after, limit=limit))

    async def read_newest(self, session_id: str, limit: int) -> list[StoredEntry]:
        """The newest entries, oldest first."""
        limit = max(limit, 0)
        query = partial(statements.newest_entries, session_id=session_id, limit=limit)
        return await self._entries(query, partial(read_row_by_row, session_id=session_id, limit=limit, newest=True))

    async def find(self, session_id: str, entry_id: str) -> StoredEntry | None:
        """The entry with this id, or None; reads the session's entries, about 1 us each."""
        try:
            return await self._read(partial(statements.entry_with_id, session_id=session_id, entry_id=entry_id))
        except StoreCorrupt:
            return await find_by_reading(self, session_id, entry_id)

    async def find_by_idempotency_key(self, session_id: str, key: str) -> StoredEntry | None:
        """The oldest entry with this key, or None, by an index. An entry that cannot be read is returned as damaged.

        For most new keys the database need not be asked (`UsedKeys`).
        """
        if not await self._keys.may_have(session_id, key):
            return None
        try:
            return await self._read(partial(statements.entry_with_key, session_id=session_id, key=key))
        except StoreCorrupt:
            place = await self._read(partial(statements.place_of_key, session_id=session_id, key=key))
            if place is None:
                return None
            found = await self.read(session_id, after=place - 1, limit=1)
            return found[0] if found and found[0].sequence == place else StoredEntry(place, f"lost-{place}", LOST, key)

    async def _keys_of(self, session_id: str) -> KeyFilter:
        await self._write(lambda: None)  # returns when everything that was on its way is committed
        return await self._read(lambda connection: KeyFilter(statements.keys_of(connection, session_id)))

    async def mend(self, session_id: str, candidates: Sequence[StoredEntry]) -> int:
        """Overwrite rows that contradict their checksums by right entries."""
        try:
            mended = await self._write(self._mend, session_id, candidates)
        finally:
            self._keys.forget(session_id)
        if mended:
            await self.drop_index()  # the search index lacks the entries that were damaged when it was built
        return mended

    async def delete(self, session_id: str, *, known: StoredHead | None = None) -> bool:  # noqa: ARG002 - never shared
        """Remove a session, and overwrite its content with zeros. Returns whether there was one.

        The deletion is durable when this returns. The old bytes may stay in the -wal file until that is reused, the
        store is closed, or `purge`.
        """
        self._keys.forget(session_id)
        said = None
        with suppress(StoreError):
            said = await self._read(lambda one: searching.said_in(driver_of(one), self._search_file, session_id))
        was_there = await self._write(self._delete, session_id)
        await self._aside(self._search_file.take_out, session_id, said)
        return was_there

    async def purge(self) -> bool:
        """Move the -wal file's content to the database, which overwrites deleted entries there, and empty the file.

        False if a reader keeps an older state open all the time. The search index is rebuilt.
        """
        await self._aside(self._search_file.purge)
        return await self._write(self._purge)

    async def search(self, search: Search) -> Found:
        """Search with the index as far as it goes; entries that were committed last come first."""
        span = searching.Span.of(search)
        async with self._searches:
            return await self._read(lambda one: searching.search(driver_of(one), self._search_file, search, span))

    async def index(self, limit: int) -> int:
        """Add entries to the file of the search index."""
        lacking = await self._read(lambda one: searching.lacking(driver_of(one), self._search_file, limit))
        return await self._aside(self._search_file.add, lacking)

    async def drop_index(self) -> None:
        """Remove the file of the search index."""
        await self._aside(self._search_file.remove)

    async def _aside(self, change: Callable[..., T], *arguments: Any) -> T:
        with CancelScope(shield=True), self._failing("index"):
            return await to_thread.run_sync(change, *arguments)
        raise AssertionError  # the type checker thinks that the scope may swallow an exception

    async def check(self) -> list[str]:
        """Run SQLite's own checks, then check each session's entries."""
        return await check_transcripts(self, self._all_heads(), self._check_database())

    async def _check_database(self) -> list[str]:
        await self._aside(self._search_file.check)
        problems = await self._read(statements.check_database)
        if problems:
            await self._note_damage(problems[0])
        else:
            self.damage = ()
        return problems

    async def _entries(
        self,
        query: Callable[[Connection], list[StoredEntry]],
        row_by_row: Callable[[sqlite3.Connection], list[StoredEntry]],
    ) -> list[StoredEntry]:
        """A session's entries; entries on a damaged page of the database are returned as damaged."""
        try:
            return await self._read(query)
        except StoreCorrupt:
            return await to_thread.run_sync(self._read_row_by_row, row_by_row, limiter=self._reader_turns)

    async def _note_damage(self, problem: str) -> None:
        """Note damage: the next start rebuilds the database from what can be read; until then the rest is served.

        Raises:
            StoreUnavailable: the disk refuses to be read, which SQLite also reports as damage.
        """
        if self.damage:
            return
        await to_thread.run_sync(read_through, [self._path])
        self.damage = (problem,)
        log.error(
            "the database is damaged; what cannot be read of it is missing, everything else is served, and the next "
            "start rebuilds it from what can be read",
            action="store.damaged",
            error=problem,
        )
        await to_thread.run_sync(note_damage, self._path)

    async def _write(self, transaction: Callable[..., T], *arguments: Any) -> T:
        """Run a function in the writer's thread, after earlier calls. Once begun it runs to its end."""
        if self._writer_thread is None:
            raise _not_open(self._path)
        with CancelScope(shield=True):
            try:
                result = await self._writer_thread.call(transaction, *arguments)
            except StoreCorrupt as error:
                await self._note_damage(str(error))
                raise
        return result

    # --- in worker threads -------------------------------------------------------------------------------------------

    def _open(self) -> None:
        with self._failing("open"):
            has_noted_damage(self._path)  # forgets a note about another database
            create_file(self._path)
            self._identities.clear()
            self._is_gone = False
            self._until_filled = FILLED_AFTER
            self._check_still_there()
            found = schema_version(self._path)
            if found is not None and found not in REVISIONS:
                raise unknown_schema(f"open {self._path}", found, REVISIONS)
            try:
                self._writers = self._engine(writing=True)
                self._readers = self._engine(writing=False)
                with suppress(StoreError):  # a full disk can still be read; the next append tries it again
                    self._settle_log()
                if found != REVISIONS[-1]:
                    with self._transaction() as connection:
                        (create if found is None else upgrade)(connection)
                # One connection of each kind now: a full disk could not open them later, but can still be read.
                with self._transaction() as connection:
                    statements.check_schema(connection)
                with self._reader() as connection:
                    statements.look(connection)
                with suppress(StoreError):  # later calls report the damage that they meet
                    self._place()
            except BaseException:
                self._dispose()
                raise

    def _own_problems(self) -> list[str]:
        """The problems that SQLite finds in the database, over a separate connection."""
        separate = self._engine(writing=False)
        try:
            with self._failing("check"), separate.connect() as connection:
                return statements.check_database(connection)
        finally:
            separate.dispose()

    def _close(self) -> None:
        with suppress(StoreError):  # the next opening tries it again
            self._place()
        for _ in range(READERS):
            self._reading.acquire()
        self._search_file.close()
        self._dispose()
        self._reading.release(READERS)

    def _append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        with self._failing("append to"):
            if not self._log_is_settled:
                self._settle_log()
            if self._known.unplaced > MAX_UNPLACED:
                with suppress(StoreFull):
                    self._place()
            if len(self._known.positions) > MAX_KNOWN_POSITIONS:
                self._known.forget()
            try:
                return self._append_together(appends)
            except _REFUSED:
                # by one of them, or outdated `_known`: each is tried by itself, so that only that one fails
                return [self._append_alone(item) for item in appends]

    def _append_together(self, appends: Sequence[Append]) -> list[StoreError | None]:
        with self._transaction() as connection:
            if self._until_filled == 0:
                fill_log(self._path)
            self._until_filled -= 1
            return statements.append(connection, appends, self._known)

    def _append_alone(self, item: Append) -> StoreError | None:
        try:
            return self._append_together([item])[0]
        except (IntegrityError, sqlite3.IntegrityError) as error:
            return StoreConflict(f"cannot append to session {item.head.session_id} in {self._path}: {error}")
        except _REFUSED as error:
            return StoreError(
                f"cannot append to session {item.head.session_id} in {self._path}: it holds a value that SQLite "
                f"cannot ({type(error).__name__})"
            )

    def _mend(self, session_id: str, entries: Sequence[StoredEntry]) -> int:
        with self._failing("mend"), self._transaction() as connection:
            return sum(statements.mend(connection, session_id, entry, self._known) for entry in entries)

    def _delete(self, session_id: str) -> bool:
        with self._failing("delete from"), self._transaction() as connection:
            return statements.delete_session(connection, session_id, self._known)

    def _purge(self) -> bool:
        with self._failing("empty the log of"):
            return empty_log(self._path)

    def _settle_log(self) -> None:
        with self._failing("open"):
            settle_log(self._path)
        self._log_is_settled = True

    def _place(self) -> None:
        """Bring the index up to date. If that fails, reading takes longer."""
        with self._failing("index"), self._transaction() as connection:
            statements.place(connection, self._known)

    async def _read(self, query: Callable[[Connection], T]) -> T:
        if self._known.unplaced > SCANNED_ENTRIES:
            with suppress(StoreError):
                await self._write(self._place)
        try:
            return await to_thread.run_sync(self._read_in_thread, query, limiter=self._reader_turns)
        except StoreCorrupt as error:
            await self._note_damage(str(error))
            raise

    def _read_in_thread(self, query: Callable[[Connection], T]) -> T:
        with self._reading, self._failing("read"), self._reader() as connection:
            try:
                return query(connection)
            except (TypeError, ValueError) as error:  # damage: a column holds no date, or no text
                raise unreadable(error, self._path) from error

    def _read_row_by_row(self, query: Callable[[sqlite3.Connection], T]) -> T:
        with self._reading, self._failing("read"), closing(connect(self._path, writing=False)) as connection:
            connection.execute("BEGIN")  # never committed: SQLite refuses to commit after it met a damaged page
            return query(connection)

    # --- connections -------------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """A transaction that is committed, or rolled back as a whole.

        After any error but a clean refusal the connection is discarded: once a sync has failed, its descriptor may
        report success for data that never reached the disk (rule R5).
        """
        try:
            if self._writer is None:
                self._writer = _opened(self._writers, self._path).connect()
            with statements.writing(self._writer):
                (version,) = driver_of(self._writer).execute("PRAGMA data_version").fetchone()
                if version != self._version:  # another program has changed it since the last transaction
                    self._known.forget()
                    self._keys.clear()
                self._version = version
                self._check_still_there()
                yield self._writer
        except BaseException as error:
            self._known.forget()
            if not isinstance(error, _REFUSED) and not is_full(error) and not self._is_gone:
                self._discard_writer()
            raise

    def _check_still_there(self) -> None:
        """Refuse to acknowledge into a file that no later start would find.

        The -wal file is checked too, from the first transaction of a connection on: no other program may remove it
        while the connection is open.

        Raises:
            StoreUnavailable: one of them was deleted or replaced.
        """
        for path in self._files[: 2 if self._writer is not None else 1]:
            try:
                found = path.stat()
                self._is_gone |= not samestat(found, self._identities.setdefault(path, found))
            except FileNotFoundError:
                self._is_gone = True
        if self._is_gone:  # for good: another connection would create a second -wal file besides the lost one
            raise StoreUnavailable(
                f"cannot use {self._path}: it, or its -wal file, was deleted or replaced while it was open. Nothing "
                "more is acknowledged; start again, and the sessions go on from what is there and their snapshots"
            )

    @contextmanager
    def _reader(self) -> Iterator[Connection]:
        with _opened(self._readers, self._path).connect() as connection:
            try:
                with connection.begin():
                    yield connection
            except DatabaseError:
                connection.invalidate()
                raise

    @contextmanager
    def _failing(self, attempted: str) -> Iterator[None]:
        """Translate errors into those of the contract."""
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, OSError, UnicodeDecodeError) as error:
            raise store_error(error, path=self._path, attempted=attempted) from error

    def _engine(self, *, writing: bool) -> Engine:
        return engine(partial(connect, self._path, writing=writing), readers=None if writing else READERS)

    def _discard_writer(self) -> None:
        writer, self._writer = self._writer, None
        self._identities.pop(self._files[1], None)
        if writer is not None:
            with suppress(SQLAlchemyError, sqlite3.Error):
                writer.invalidate()
            with suppress(SQLAlchemyError, sqlite3.Error):
                writer.close()

    def _dispose(self) -> None:
        """Close everything; the writer last, because it moves the -wal file's content to the database."""
        self._known.forget()
        self._keys.clear()
        if self._readers is not None:
            self._readers.dispose()
        self._discard_writer()
        self._writers = self._readers = None


def _opened(found: Engine | None, path: Path) -> Engine:
    if found is None:
        raise _not_open(path)
    return found


def _is_named_rightly(stored: StoredHead) -> bool:
    return stored.head.key.session_id == stored.head.session_id


def _not_open(path: Path) -> StoreUnavailable:
    return StoreUnavailable(f"cannot use {path}: the store is not open; enter it with `async with`")
