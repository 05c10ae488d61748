"""The default store: one SQLite file, in WAL mode, synced at every commit.

Each operation is one call in a worker thread that holds a whole transaction: a cancelled caller cannot interrupt it,
and a group of any number of appends costs one hop and one sync. One thread writes, a few read beside it. What survives
a power cut is SQLite's promise for `synchronous=FULL`: everything that was committed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore
from types import TracebackType
from typing import ClassVar, Self, TypeVar

from anyio import CancelScope, CapacityLimiter, to_thread
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DatabaseError, DataError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import NullPool, QueuePool

from miniclaw_sessions.errors import SchemaTooNew, StoreConflict, StoreCorrupt, StoreError, StoreUnavailable
from miniclaw_sessions.stores.base import Append, StoredEntry, StoredHead
from miniclaw_sessions.stores.sql import statements
from miniclaw_sessions.stores.sql.failures import is_full, store_error
from miniclaw_sessions.stores.sql.files import connect, create_file, database_files, schema_version
from miniclaw_sessions.stores.sql.migrations import REVISIONS, upgrade
from miniclaw_sessions.stores.sql.statements import Position

READERS = 4
"""How many reads may run at once."""

MAX_KNOWN_POSITIONS = 100_000
"""Of so many sessions the store remembers where they stand, about 200 bytes each; then it begins anew."""

_REFUSED = (IntegrityError, DataError, UnicodeError, OverflowError)
"""What is wrong with the rows, not with the database."""

T = TypeVar("T")


class SQLiteStore:
    """Transcripts in one file. Where two programs have it open, a conflict is refused and nothing overwritten."""

    durable: ClassVar[bool] = True
    keeps_entries: ClassVar[bool] = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._positions: dict[str, Position] = {}
        self._writers: Engine | None = None
        self._readers: Engine | None = None
        self._writer: Connection | None = None
        self._writer_turn: CapacityLimiter | None = None
        self._reader_turns: CapacityLimiter | None = None
        # A caller that asyncio cancels leaves its thread running and gives its turn back; these keep order even then.
        self._writing = BoundedSemaphore(1)
        self._reading = BoundedSemaphore(READERS)

    def __repr__(self) -> str:
        return f"<SQLiteStore {self._path}>"

    @property
    def files(self) -> Sequence[Path]:
        """The database, its -wal and its -shm file; the last two only exist while it is open, or after a crash."""
        return database_files(self._path)

    # --- the contract ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Open the file, creating it or bringing its schema up to date.

        Raises:
            SchemaTooNew: a newer version of this program made it; it was not changed.
            ConfigError: it is another program's database.
            StoreUnavailable: it cannot be opened or created.
            StoreCorrupt: it is damaged.
        """
        self._writer_turn, self._reader_turns = CapacityLimiter(1), CapacityLimiter(READERS)
        await to_thread.run_sync(self._open, limiter=self._writer_turn)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for running calls, move what is in the -wal file to the database, close."""
        with CancelScope(shield=True):
            await to_thread.run_sync(self._close, limiter=CapacityLimiter(1))

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        """Append entries of many sessions in one transaction, with one sync."""
        return await to_thread.run_sync(self._append, appends, limiter=self._writer_turn)

    async def heads(self) -> AsyncIterator[StoredHead]:
        """All sessions in order of session_id, read a page at a time."""
        after = ""
        while page := await self._read(partial(statements.heads_after, session_id=after)):
            for stored in page:
                yield stored
            after = page[-1].head.session_id

    async def head(self, session_id: str) -> StoredHead | None:
        """One session, or None."""
        return await self._read(partial(statements.head, session_id=session_id))

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """The entries after a sequence, oldest first."""
        limit = None if limit is None else max(limit, 0)
        return await self._read(partial(statements.entries_after, session_id=session_id, after=after, limit=limit))

    async def read_newest(self, session_id: str, limit: int) -> list[StoredEntry]:
        """The newest entries, oldest first."""
        return await self._read(partial(statements.newest_entries, session_id=session_id, limit=max(limit, 0)))

    async def delete(self, session_id: str) -> bool:
        """Remove a session and overwrite what it said with zeros; whether there was one.

        The deletion is durable when this returns. The old bytes may stay in the -wal file until that is reused or the
        store is closed.
        """
        return await to_thread.run_sync(self._delete, session_id, limiter=self._writer_turn)

    async def check(self) -> list[str]:
        """SQLite's own checks, then every session's entries."""
        try:
            problems = await self._read(statements.check_database)
            async for stored in self.heads():
                problems += await self._read(partial(statements.check_session, stored=stored))
        except StoreCorrupt as error:
            return [str(error)]
        return problems

    # --- in worker threads -------------------------------------------------------------------------------------------

    def _open(self) -> None:
        with self._writing, self._failing("open"):
            create_file(self._path)
            found = schema_version(self._path)
            if found is not None and found not in REVISIONS:
                raise SchemaTooNew(
                    f"cannot open {self._path}: a newer version of miniclaw-sessions made it (schema {found}, this one "
                    f"knows {REVISIONS[-1]}); install that version, nothing was changed"
                )
            try:
                self._writers = self._engine(writing=True)
                self._readers = self._engine(writing=False)
                if found != REVISIONS[-1]:
                    with self._transaction() as connection:
                        upgrade(connection)
                self._first_connections()
            except BaseException:
                self._dispose()
                raise

    def _first_connections(self) -> None:
        """Open one connection of each kind: on a full disk it could not be opened, but it can still be read."""
        with self._transaction() as connection:
            statements.head(connection, "")
        with self._reader() as connection:
            statements.head(connection, "")

    def _close(self) -> None:
        for _ in range(READERS):
            self._reading.acquire()
        with self._writing:
            self._dispose()
        self._reading.release(READERS)

    def _append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        with self._writing, self._failing("append to"):
            try:
                return self._append_together(appends)
            except _REFUSED:  # one of them, or what was known: so that it is nobody else's fault, each on its own
                return [self._append_alone(item) for item in appends]

    def _append_together(self, appends: Sequence[Append]) -> list[StoreError | None]:
        with self._transaction() as connection:
            appended = statements.append(connection, appends, self._positions)
        if len(self._positions) > MAX_KNOWN_POSITIONS:
            self._positions.clear()
        self._positions.update(appended.positions)
        return appended.outcomes

    def _append_alone(self, item: Append) -> StoreError | None:
        try:
            return self._append_together([item])[0]
        except IntegrityError as error:
            return StoreConflict(f"cannot append to session {item.head.session_id} in {self._path}: {error.orig}")
        except _REFUSED as error:
            return StoreError(
                f"cannot append to session {item.head.session_id} in {self._path}: it holds a value that SQLite "
                f"cannot ({type(error).__name__})"
            )

    def _delete(self, session_id: str) -> bool:
        with self._writing, self._failing("delete from"):
            with self._transaction() as connection:
                existed = statements.delete_session(connection, session_id)
            self._positions.pop(session_id, None)
            return existed

    async def _read(self, query: Callable[[Connection], T]) -> T:
        return await to_thread.run_sync(self._read_in_thread, query, limiter=self._reader_turns)

    def _read_in_thread(self, query: Callable[[Connection], T]) -> T:
        with self._reading, self._failing("read"), self._reader() as connection:
            return query(connection)

    # --- connections -------------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """A transaction that is committed, or taken back as a whole.

        After anything but a clean refusal the connection is thrown away: once a sync has failed, its descriptor may
        report success for what never reached the disk (rule R5).
        """
        try:
            if self._writer is None:
                self._writer = _opened(self._writers, self._path).connect()
            with self._writer.begin():
                yield self._writer
        except BaseException as error:
            self._positions.clear()
            if not isinstance(error, _REFUSED) and not (isinstance(error, DatabaseError) and is_full(error)):
                self._discard_writer()
            raise

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
        """Whatever fails in here is reported in the words of the contract."""
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise store_error(error, path=self._path, attempted=attempted) from error

    def _engine(self, *, writing: bool) -> Engine:
        engine = create_engine(
            "sqlite://",
            creator=partial(connect, self._path, writing=writing),
            poolclass=NullPool if writing else QueuePool,
            hide_parameters=True,  # an error must not carry what people said
            **({} if writing else {"pool_size": READERS, "max_overflow": 0}),
        )
        begin = "BEGIN IMMEDIATE" if writing else "BEGIN"
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
        return engine

    def _discard_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(SQLAlchemyError, sqlite3.Error):
                writer.invalidate()
            with suppress(SQLAlchemyError, sqlite3.Error):
                writer.close()

    def _dispose(self) -> None:
        """Close everything; the writer last, for the last one moves the -wal file's content to the database."""
        self._positions.clear()
        if self._readers is not None:
            self._readers.dispose()
        self._discard_writer()
        self._writers = self._readers = None


def _opened(engine: Engine | None, path: Path) -> Engine:
    if engine is None:
        raise StoreUnavailable(f"cannot use {path}: the store is not open; enter it with `async with`")
    return engine
