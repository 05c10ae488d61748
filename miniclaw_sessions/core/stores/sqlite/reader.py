"""A SQLite store that is opened to be read only, while another process writes it, or from a copy.

Its few queries are plain SQL for the driver, because loading SQLAlchemy takes longer than showing one session. Nothing
is created, upgraded or indexed.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote

from anyio import CapacityLimiter, to_thread

from miniclaw_sessions.core.history.search import Found, Search
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.base import SessionHead, StoredEntry, StoredHead, StorePlace
from miniclaw_sessions.core.stores.checking import check_transcripts
from miniclaw_sessions.core.stores.files import ReadOnlyStore
from miniclaw_sessions.core.stores.reading import find_by_reading
from miniclaw_sessions.core.stores.sql.checksums import entry_of_row, id_in, sequence_in, unreadable
from miniclaw_sessions.core.stores.sql.failures import store_error, unknown_schema
from miniclaw_sessions.core.stores.sqlite.damaged_pages import read_row_by_row
from miniclaw_sessions.core.stores.sqlite.files import connect, database_files, integrity_problems, version_in
from miniclaw_sessions.errors import StoreCorrupt

_KNOWN = ("0001", "0002", "0003")
_NEWEST = "(SELECT coalesce(max(sequence), 0) FROM places WHERE session = sessions.id)"
_NEXT_PAGE = "session_id > ? ORDER BY session_id LIMIT 500"
_HEADS = f"SELECT id, session_id, channel, chat_id, incarnation, created_at, {_NEWEST} FROM sessions"  # noqa: S608
_IN_TAIL = "position > (SELECT up_to FROM placed)"
_ROW = "(SELECT id FROM sessions WHERE session_id = :session_id)"

T = TypeVar("T")


class SQLiteReader(ReadOnlyStore):
    """The transcripts in one file, read only."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._connection: sqlite3.Connection | None = None
        self._turn: CapacityLimiter | None = None
        self._stack = ExitStack()
        self._entries = ""
        self._is_current = False
        self._is_unlocked = False

    @property
    def place(self) -> StorePlace:
        """The database."""
        return StorePlace("sqlite", self.path)

    async def __aenter__(self) -> Self:
        """Open the file; a file that does not exist is like one without sessions.

        Raises:
            SchemaTooNew: a newer version of this program made it.
            ConfigError: it is another program's database.
            StoreUnavailable: it cannot be opened.
            StoreCorrupt: it is damaged.
        """
        self._turn = CapacityLimiter(1)
        await to_thread.run_sync(self._open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._connection = None
        await to_thread.run_sync(self._stack.close)

    async def heads(self) -> AsyncIterator[StoredHead]:
        """All sessions in order of session_id, a page at a time."""
        after = ""
        while page := await self._read(partial(_heads, which=_NEXT_PAGE, given=after)):
            for stored in page:
                yield stored
            after = page[-1].head.session_id

    async def session_ids(self) -> list[str]:
        """The ids of all sessions, in order."""
        query = "SELECT session_id FROM sessions ORDER BY 1"
        return await self._read(lambda connection: [id_in(session_id) for (session_id,) in connection.execute(query)])

    async def head(self, session_id: str) -> StoredHead | None:
        """One session, or None."""
        found = await self._read(partial(_heads, which="session_id = ?", given=session_id))
        return found[0] if found else None

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """The entries after a sequence, oldest first."""
        wanted = {"session_id": session_id, "after": after, "limit": -1 if limit is None else max(limit, 0)}
        try:
            return await self._select("{row}.sequence > :after", "ORDER BY 1 LIMIT :limit", wanted)
        except StoreCorrupt:
            limit = None if limit is None else max(limit, 0)
            return await self._read(partial(read_row_by_row, session_id=session_id, after=after, limit=limit))

    async def read_newest(self, session_id: str, limit: int) -> list[StoredEntry]:
        """The newest entries, oldest first."""
        wanted = {"session_id": session_id, "limit": max(limit, 0)}
        try:
            return (await self._select("TRUE", "ORDER BY 1 DESC LIMIT :limit", wanted))[::-1]
        except StoreCorrupt:
            newest = partial(read_row_by_row, session_id=session_id, limit=max(limit, 0), newest=True)
            return await self._read(newest)

    async def find(self, session_id: str, entry_id: str) -> StoredEntry | None:
        """The entry with this id, or None; reads the session's entries."""
        try:
            found = await self._select("entry_id = :id", "LIMIT 1", {"session_id": session_id, "id": entry_id})
        except StoreCorrupt:
            return await find_by_reading(self, session_id, entry_id)
        return found[0] if found else None

    async def find_by_idempotency_key(self, session_id: str, key: str) -> StoredEntry | None:
        """The oldest entry with this idempotency key, or None; reads the session's entries."""
        wanted = {"session_id": session_id, "key": key}
        found = await self._select("idempotency_key = :key", "ORDER BY 1 LIMIT 1", wanted)
        return found[0] if found else None

    async def search(self, search: Search) -> Found:
        """Search with the index as far as it goes; other entries are read."""
        if not self._is_current:
            return await super().search(search)
        from miniclaw_sessions.core.stores.sqlite import searching  # noqa: PLC0415 - a reader does not wait for it
        from miniclaw_sessions.core.stores.sqlite.search_file import SearchFile  # noqa: PLC0415 - same

        span, file = searching.Span.of(search), SearchFile(self.path, read_only=True)
        (found,) = await self._read(lambda connection: [searching.search(connection, file, search, span)])
        return found

    async def check(self) -> list[str]:
        """Run SQLite's own checks, then check each session's entries."""
        own = self._read(partial(_problems, is_current=self._is_current))
        return await check_transcripts(self, self.heads(), own)

    # --- in a thread -------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if not self.path.exists():
            return
        with self._failing("open"):
            if not self._log.exists():  # no process has it open: it needs no lock, and no -wal file is created
                self._use(self._unlocked())
                return
            try:
                self._use(connect(self.path, writing=False))
            except sqlite3.OperationalError:  # its -shm file is missing, and cannot be created here
                self._use(self._copied() if self._log.stat().st_size else self._unlocked())

    @property
    def _log(self) -> Path:
        return database_files(self.path)[1]

    def _use(self, connection: sqlite3.Connection) -> None:
        with ExitStack() as stack:
            stack.enter_context(closing(connection))
            version = version_in(connection, self.path)
            if version is not None and version not in _KNOWN:
                raise unknown_schema(f"read {self.path}", version, _KNOWN)
            rest = "idempotency_key, checksum" if version != "0001" else "NULL AS idempotency_key, NULL"
            self._entries = _entries(rest)
            self._is_current = version == _KNOWN[-1]
            self._stack.push(stack.pop_all())
        self._connection = connection if version is not None else None

    def _unlocked(self) -> sqlite3.Connection:
        """A connection to a file that no process changes."""
        self._is_unlocked = True
        return sqlite3.connect(f"file:{quote(str(self.path))}?mode=ro&immutable=1", uri=True, check_same_thread=False)

    def _copied(self) -> sqlite3.Connection:
        """A connection to a copy, next to which SQLite can create the -shm file that it needs to read a -wal file."""
        place = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="miniclaw-")))
        for file in (self.path, self._log):
            shutil.copyfile(file, place / file.name)
        return connect(place / self.path.name, writing=False)

    async def _select(self, which: str, rest: str, wanted: Mapping[str, object]) -> list[StoredEntry]:
        text = self._entries.format(placed=which.format(row="p"), in_tail=which.format(row="e")) + rest
        rows = await self._read(lambda connection: connection.execute(text, wanted).fetchall())
        return [entry_of_row(*row) for row in rows]

    async def _read(self, query: Callable[[sqlite3.Connection], list[T]]) -> list[T]:
        if self._connection is None:
            return []
        return await to_thread.run_sync(self._in_thread, query, limiter=self._turn)

    def _in_thread(self, query: Callable[[sqlite3.Connection], list[T]]) -> list[T]:
        with self._failing("read"):
            while True:
                if self._is_unlocked and self._log.exists():
                    # another process has begun to write: use locks from now on
                    self._is_unlocked = False
                    self._use(connect(self.path, writing=False))
                if self._connection is None:
                    return []
                try:
                    found = query(self._connection)
                except sqlite3.DatabaseError:
                    if not (self._is_unlocked and self._log.exists()):
                        raise
                else:
                    if not (self._is_unlocked and self._log.exists()):
                        return found

    @contextmanager
    def _failing(self, attempted: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise store_error(error, path=self.path, attempted=attempted) from error
        except (TypeError, ValueError) as error:  # damage: a column holds no date, or no text
            raise unreadable(error, self.path) from error


def _entries(rest: str) -> str:
    """The query for a session's entries: the indexed ones, and those in the tail of the log.

    `{placed}` and `{in_tail}` are replaced by a further condition on each part.
    """
    columns = f"entry_id, encoded, {rest}, e.session"
    return (
        f"SELECT p.sequence, {columns} FROM places AS p JOIN entries AS e ON e.position = p.position "  # noqa: S608
        f"WHERE p.session = {_ROW} AND {{placed}} "
        f"UNION ALL SELECT e.sequence, {columns} FROM entries AS e "
        f"WHERE {_IN_TAIL} AND e.session = {_ROW} AND {{in_tail}} "
    )


def _heads(connection: sqlite3.Connection, which: str, given: str) -> list[StoredHead]:
    rows = connection.execute(f"{_HEADS} WHERE {which}", (given,)).fetchall()
    tail = dict(
        connection.execute(f"SELECT session, max(sequence) FROM entries WHERE {_IN_TAIL} GROUP BY session")  # noqa: S608
    )
    heads = []
    for row, session_id, channel, chat_id, incarnation, created_at, last in rows:
        began = datetime.fromisoformat(f"{created_at}+00:00")
        head = SessionHead(id_in(session_id), SessionKey(str(channel), str(chat_id)), str(incarnation), began)
        heads.append(StoredHead(head, sequence_in(tail.get(row, last))))
    return heads


def _problems(connection: sqlite3.Connection, *, is_current: bool) -> list[str]:
    """The problems that a writing store finds too, over this connection."""
    if not is_current:  # older versions have other tables, which are not compared
        return integrity_problems(text for (text,) in connection.execute("PRAGMA integrity_check"))
    from sqlalchemy import StaticPool, create_engine  # noqa: PLC0415 - only a check pays for it
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415 - same

    from miniclaw_sessions.core.stores.sqlite.statements import check_database  # noqa: PLC0415 - same

    try:
        with create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool).connect() as same:
            return check_database(same)
    except DBAPIError as error:
        raise error.orig or error from error
