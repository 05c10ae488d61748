"""The readable rows of a damaged database, to be copied into a new one.

SQLite aborts at the first damaged page. Here the log is read by position, and reading goes on behind damage. Only rows
that agree with their checksum are taken; rows of older versions have no checksum, and are taken if they can be decoded.
A lost entry keeps its sequence, so that a branch goes on behind it. A session whose own row is lost goes on with its
entries, as long as anything has its id.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from anyio import to_thread
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from miniclaw_sessions.clock import derived_id
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.base import LOST, SessionHead, StoredEntry, StoredHead
from miniclaw_sessions.core.stores.sql.checksums import is_sound
from miniclaw_sessions.core.stores.sqlite.files import PAGE_BYTES, connect, empty_log
from miniclaw_sessions.core.stores.sqlite.migrations import create
from miniclaw_sessions.core.stores.sqlite.pages import Pages
from miniclaw_sessions.encryption import is_sealed
from miniclaw_sessions.errors import InvalidKey, InvalidMessage, StoreUnavailable

_MOST_LOST = 1 << 30
_LENGTH = 28
"""The offset in the first page at which a database has its number of pages."""
_SEARCHED = 1 << 32
"""Rows are looked for up to this number if the last one is not known."""

_ENTRIES = "SELECT * FROM entries WHERE rowid >= ? ORDER BY rowid"  # the names of columns may be damaged
_SESSIONS = "SELECT * FROM sessions WHERE rowid >= ? ORDER BY rowid"
_IDS = "SELECT id, session_id FROM sessions INDEXED BY sqlite_autoindex_sessions_1 ORDER BY session_id"
_PLACES = "SELECT session, sequence, position FROM places"
_FEWEST_COLUMNS = 5
_UNREADABLE = (sqlite3.Error, UnicodeError, TypeError, ValueError, OverflowError, AttributeError)


def make_readable(path: Path) -> None:
    """Give a copy of a damaged database what SQLite needs to read any of it: a first page, and the whole length.

    The content of its log is moved to it, so that deleted rows are gone from the pages.

    The first page has the beginning of each table. If it is damaged, it is replaced by that of a new database: that is
    right for each database with this schema. In a database with another schema no row would agree with its checksum.

    Raises:
        OSError: it cannot be written.
    """
    if not _has_tables(path):
        with tempfile.TemporaryDirectory(dir=path.parent) as place:
            new = Path(place) / "new.db"
            new.touch()
            engine = create_engine("sqlite://", creator=partial(connect, new, writing=True), poolclass=NullPool)
            with engine.begin() as connection:
                create(connection)
            first_page = new.read_bytes()[:PAGE_BYTES]
        with path.open("r+b") as file:
            pages = max(file.seek(0, os.SEEK_END) // PAGE_BYTES, 1)
            file.seek(0)
            file.write(first_page[:_LENGTH] + pages.to_bytes(4, "big") + first_page[_LENGTH + 4 :])
    with path.open("r+b") as file:
        header = file.read(100)
        length = PAGE_BYTES * int.from_bytes(header[_LENGTH : _LENGTH + 4], "big")
        if file.seek(0, os.SEEK_END) < length <= 2 * file.tell() + _MOST_LOST:
            file.truncate(length)
    with suppress(sqlite3.Error, StoreUnavailable):
        empty_log(path)


def _has_tables(path: Path) -> bool:
    try:
        with closing(connect(path, writing=False)) as connection:
            for table in ("sessions", "entries"):
                connection.execute(f"SELECT rowid FROM {table} LIMIT 0")  # noqa: S608 - our names
    except (sqlite3.Error, UnicodeError):
        return False
    return True


class Salvage:
    """The readable rest of a copy of a database file, as a `Transcripts` for `copy_store`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._heads: dict[str, SessionHead] = {}
        self._where: dict[str, dict[int, int | None]] = {}
        self._cells: dict[int, int] = {}
        self._said_by_index: dict[int, tuple[int, int]] = {}

    async def __aenter__(self) -> Self:
        """Make the file readable, and read every row.

        Raises:
            StoreUnavailable: nothing in it can be read.
        """
        try:
            await to_thread.run_sync(make_readable, self._path)
            await to_thread.run_sync(self._look)
        except (*_UNREADABLE, SQLAlchemyError) as error:
            raise StoreUnavailable(f"nothing can be read from {self._path}: {error}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: no file is held open."""
        del kind, error, trace

    def _look(self) -> None:
        with closing(connect(self._path, writing=False)) as connection, Pages(self._path) as pages:
            heads, rest = _heads(connection, pages)
            where, first = self._find_entries(connection, pages)
            ids, places = _ids(connection), _places(connection)
        known_ids = {head.session_id for head in heads.values()}
        for number in first.keys() - heads.keys():  # one without entries may have been deleted
            head = _head_of_rest(rest.get(number, ()), ids.get(number), first[number])
            if head is not None and head.session_id not in known_ids:
                heads[number] = head
        for number, head in heads.items():
            found = where[number]
            known = places[number]
            # the tail of the log is not yet in the index
            expected = known | set(range(max(known, default=0) + 1, max(found, default=0) + 1))
            self._where[head.session_id] = dict(sorted({**dict.fromkeys(expected), **found}.items()))
            self._heads[head.session_id] = head

    def _find_entries(
        self, connection: sqlite3.Connection, pages: Pages
    ) -> tuple[dict[int, dict[int, int]], dict[int, StoredEntry]]:
        """Where the sound entries are, by the number of their session's row and their sequence; and each first one."""
        where: dict[int, dict[int, int]] = defaultdict(dict)
        first: dict[int, StoredEntry] = {}
        rest: dict[int, tuple[Any, ...]] = {}
        end = _end(connection, "placed", "up_to", "entries", "rowid")
        for row, cell in _all_rows(connection, pages, _ENTRIES, end):
            is_new = type(row[2]) is not int or row[2] not in where[row[1]]
            entry = _entry(row) if is_new else None
            if entry is not None:
                where[row[1]][row[2]] = row[0]
                first.setdefault(row[1], entry)
                if cell is not None:
                    self._cells[row[0]] = cell
            elif is_new and cell is None:
                rest[row[0]] = row
        for position, place in _places_of(connection, rest.keys()).items():
            entry = _entry(_placed(rest[position], place))
            if entry is not None and where[place[0]].setdefault(place[1], position) == position:
                self._said_by_index[position] = place
                first.setdefault(place[0], entry)
        return where, first

    async def session_ids(self) -> list[str]:
        """The ids of the same sessions, in order: the others have lost even their ids."""
        return sorted(self._heads)

    async def heads(self) -> AsyncIterator[StoredHead]:
        """The sessions whose rows are sound."""
        for session_id in sorted(self._heads):
            yield StoredHead(self._heads[session_id], max(self._where[session_id], default=0))

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """The sound entries, with a `LOST` entry in the place of each other one."""
        places = self._where.get(session_id, {}).items()
        wanted = list(islice(((sequence, place) for sequence, place in places if sequence > after), limit))
        return await to_thread.run_sync(self._read, wanted)

    def _read(self, wanted: Sequence[tuple[int, int | None]]) -> list[StoredEntry]:
        entries = []
        with closing(connect(self._path, writing=False)) as connection, Pages(self._path) as pages:
            for sequence, position in wanted:
                row = None
                if position is not None:
                    cell = self._cells.get(position)
                    row = _first(connection, _ENTRIES, position) if cell is None else pages.row(cell)
                    if row and position in self._said_by_index:
                        row = _placed(row, self._said_by_index[position])
                entry = None if row is None else _entry(row)
                entries.append(entry or StoredEntry(sequence, f"lost-{sequence}", LOST))
        return entries


def _heads(connection: sqlite3.Connection, pages: Pages) -> tuple[dict[int, SessionHead], dict[int, tuple[Any, ...]]]:
    """The heads of the sessions by the numbers of their rows; and the damaged rows."""
    heads: dict[int, SessionHead] = {}
    rest: dict[int, tuple[Any, ...]] = {}
    end = _end(connection, "sqlite_sequence", "seq", "sessions", "rowid")
    for row, _ in _all_rows(connection, pages, _SESSIONS, end):
        head = _head(row)
        if head is None:
            rest.setdefault(row[0], row)
        else:
            heads.setdefault(row[0], head)
    return heads, rest


def _ids(connection: sqlite3.Connection) -> dict[int, str]:
    """The ids of the sessions by the numbers of their rows, as far as the index has them from either end."""
    found: dict[int, str] = {}
    for order in ("", " DESC"):
        with suppress(*_UNREADABLE):
            found |= {number: one for number, one in connection.execute(_IDS + order) if isinstance(one, str)}
    return found


def _places(connection: sqlite3.Connection) -> dict[int, set[int]]:
    """The sequences that each session had, by the index; empty if the index is damaged."""
    places: dict[int, set[int]] = defaultdict(set)
    try:
        for session, sequence in connection.execute("SELECT session, sequence FROM places"):
            if type(session) is not int or type(sequence) is not int:
                return defaultdict(set)
            places[session].add(sequence)
    except _UNREADABLE:
        return defaultdict(set)
    return places


def _places_of(connection: sqlite3.Connection, positions: Collection[int]) -> dict[int, tuple[int, int]]:
    """Of which session, and at which sequence, the index has the entries at these positions."""
    found: dict[int, tuple[int, int]] = {}
    with suppress(*_UNREADABLE):
        for session, sequence, position in connection.execute(_PLACES) if positions else ():
            if position in positions and type(session) is int and type(sequence) is int:
                found[position] = (session, sequence)
    return found


def _placed(row: tuple[Any, ...], place: tuple[int, int]) -> tuple[Any, ...]:
    """A row of `entries` with the session and sequence that the index has for it."""
    return (row[0], *place, *row[3:])


def _end(connection: sqlite3.Connection, table: str, column: str, rows: str, key: str) -> int:
    """One more than the largest number that a table's rows may have."""
    ends = [0]
    for query in (f"SELECT max({column}) FROM {table}", f"SELECT max({key}) FROM {rows}"):  # noqa: S608 - our names
        try:
            (end,) = connection.execute(query).fetchone()
        except _UNREADABLE:
            ends.append(_SEARCHED)  # the number is lost
        else:
            ends.append(min(end or 0, 1 << 40))
    return max(ends) + 1


def _all_rows(
    connection: sqlite3.Connection, pages: Pages, query: str, end: int
) -> Iterator[tuple[tuple[Any, ...], int | None]]:
    """The readable rows of a table; then, if SQLite met damage, the rows found in the pages, each with its number."""
    is_damaged = False
    for row in _readable(connection, query, end):
        is_damaged = is_damaged or row is None
        if row is not None:
            yield row, None
    for cell in pages.cells() if is_damaged and pages.are_up_to_date else ():
        with suppress(*_UNREADABLE, IndexError):
            row = pages.row(cell)
            if len(row) >= _FEWEST_COLUMNS:
                yield row, cell


def _readable(connection: sqlite3.Connection, query: str, end: int) -> Iterator[tuple[Any, ...] | None]:
    """The readable rows of a table, in order, and None in the place of damaged ones."""
    position = 0
    while position < end:
        try:
            for row in connection.execute(query, (position,)):
                yield row
                position = max(position, int(row[0])) + 1
        except _UNREADABLE:
            yield None
            row = _first(connection, query, position)  # the driver reads one row ahead: this row may be sound
            if row:
                yield row
            position = max(position, int(row[0])) + 1 if row else _next_readable(connection, query, position, end)
        else:
            return


def _next_readable(connection: sqlite3.Connection, query: str, position: int, end: int) -> int:
    """The next readable number behind a damaged one; found with growing steps, then by bisection."""
    bad, step = position, 1
    while _first(connection, query, good := bad + step) is None:
        if good >= end:
            return end
        bad, step = good, 2 * step
    while good - bad > 1:
        middle = (bad + good) // 2
        if _first(connection, query, middle) is not None:
            good = middle
        else:
            bad = middle
    return good


def _first(connection: sqlite3.Connection, query: str, position: int) -> tuple[Any, ...] | None:
    """The first row from a position on; an empty tuple without one, None if it cannot be read."""
    try:
        return connection.execute(f"{query} LIMIT 1", (position,)).fetchone() or ()
    except _UNREADABLE:
        return None


def _head(row: tuple[Any, ...]) -> SessionHead | None:
    try:
        _, session_id, channel, chat_id, incarnation, created_at = row
        key = SessionKey(channel, chat_id)
        if key.session_id != session_id:
            return None
        return SessionHead(session_id, key, str(incarnation), datetime.fromisoformat(created_at).replace(tzinfo=UTC))
    except _UNREADABLE:
        return None


def _head_of_rest(row: tuple[Any, ...], session_id: str | None, first: StoredEntry) -> SessionHead | None:
    """The head of a session whose row is damaged, or gone, from what is left of it, its id, and its first entry.

    If the incarnation is lost, the session gets a new one, which is the same at each start.
    """
    _, its_id, channel, chat_id, incarnation, created_at = (*row, *[None] * 6)[:6]
    keys = [partial(SessionKey.parse, one) for one in (session_id, its_id) if isinstance(one, str)]
    if isinstance(channel, str) and isinstance(chat_id, str):
        keys.append(partial(SessionKey.of, channel, chat_id))
    key = None
    for make in keys:
        with suppress(*_UNREADABLE, InvalidKey):
            key = key or make()
    if key is None:
        return None
    began = datetime.fromtimestamp(0, UTC)
    with suppress(*_UNREADABLE, InvalidMessage):
        began = decode_entry(first.encoded).timestamp
    with suppress(*_UNREADABLE):
        began = datetime.fromisoformat(created_at).replace(tzinfo=UTC)
    if not isinstance(incarnation, str):
        incarnation = derived_id(f"{key.session_id} {first.entry_id}")
    return SessionHead(key.session_id, key, incarnation, began)


def _entry(row: tuple[Any, ...]) -> StoredEntry | None:
    try:
        _, session, sequence, entry_id, encoded, key, checksum = (*row, None, None)[:7]  # older rows have five columns
        if checksum is None and not is_sealed(encoded):
            decode_entry(encoded)
        elif not is_sound(session, sequence, entry_id, key, encoded, checksum):
            return None
        return StoredEntry(sequence, entry_id, encoded, key)
    except (*_UNREADABLE, InvalidMessage):
        return None
