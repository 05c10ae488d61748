"""What is left of a damaged database: the rows that can still be read, to be copied into a new one.

SQLite gives up at the first page that it cannot make sense of. Here the log is walked by its positions, in ever
smaller steps around what cannot be read, and nothing but rows that agree with their checksum is believed; rows of older
versions have none, and are believed if they can be decoded.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from anyio import to_thread

from miniclaw_sessions.encryption import is_sealed
from miniclaw_sessions.errors import InvalidMessage, StoreUnavailable
from miniclaw_sessions.protocol.encoding import decode_entry
from miniclaw_sessions.protocol.keys import SessionKey
from miniclaw_sessions.stores.base import SessionHead, StoredEntry, StoredHead
from miniclaw_sessions.stores.sql.checksums import checksum_of
from miniclaw_sessions.stores.sql.files import connect

_ROWS = 256
"""So many positions are read at once where nothing is wrong."""

_SEARCHED = 1 << 22
"""How far behind the last position that is known more are looked for."""

_ENTRIES = (
    "SELECT position, session, sequence, entry_id, encoded, idempotency_key, checksum FROM entries "
    "WHERE position >= ? AND position < ?"
)
_SESSIONS = "SELECT id, session_id, channel, chat_id, incarnation, created_at FROM sessions WHERE id >= ? AND id < ?"
_UNREADABLE = (sqlite3.Error, UnicodeError, TypeError, ValueError, OverflowError)


class Salvage:
    """The readable rest of a database file, which it does not change: a `Source` of `copy_store`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._heads: dict[str, SessionHead] = {}
        self._where: dict[str, dict[int, int]] = {}

    async def __aenter__(self) -> Self:
        """Look at every row.

        Raises:
            StoreUnavailable: nothing in it can be read.
        """
        try:
            await to_thread.run_sync(self._look)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"nothing can be read from {self._path}: {error}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held open."""
        del kind, error, trace

    def _look(self) -> None:
        with closing(connect(self._path, writing=False)) as connection:
            rows: dict[int, SessionHead] = {}
            for row in _readable(connection, _SESSIONS, _end(connection, "sqlite_sequence", "seq", "sessions", "id")):
                head = _head(row)
                if head is not None:
                    rows[row[0]] = head
            where: dict[int, dict[int, int]] = defaultdict(dict)
            for row in _readable(connection, _ENTRIES, _end(connection, "placed", "up_to", "entries", "position")):
                if row[1] in rows and _entry(row) is not None:
                    where[row[1]][row[2]] = row[0]
        self._heads = {head.session_id: head for head in rows.values()}
        self._where = {head.session_id: dict(sorted(where[number].items())) for number, head in rows.items()}

    async def heads(self) -> AsyncIterator[StoredHead]:
        """The sessions whose rows are whole."""
        for session_id in sorted(self._heads):
            yield StoredHead(self._heads[session_id], max(self._where[session_id], default=0))

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """The entries that are whole."""
        wanted = [place for sequence, place in self._where.get(session_id, {}).items() if sequence > after][:limit]
        return await to_thread.run_sync(self._read, wanted)

    def _read(self, positions: Sequence[int]) -> list[StoredEntry]:
        with closing(connect(self._path, writing=False)) as connection:
            rows = [connection.execute(_ENTRIES, (place, place + 1)).fetchone() for place in positions]
        return [entry for entry in map(_entry, rows) if entry is not None]


def _end(connection: sqlite3.Connection, table: str, column: str, rows: str, key: str) -> int:
    """Behind the last number that a table's rows may have."""
    ends = [0]
    for query in (f"SELECT max({column}) FROM {table}", f"SELECT max({key}) FROM {rows}"):  # noqa: S608 - our names
        try:
            (end,) = connection.execute(query).fetchone()
        except _UNREADABLE:
            ends.append(_SEARCHED)  # nobody knows
        else:
            ends.append(min(end or 0, 1 << 40))
    return max(ends) + _ROWS


def _readable(connection: sqlite3.Connection, query: str, end: int) -> Iterator[tuple[Any, ...]]:
    """The rows of a table that can be read: where some cannot, each half of them is tried."""
    stretches = [(first, min(first + _SEARCHED, end)) for first in range(0, end, _SEARCHED)][::-1]
    while stretches:
        first, last = stretches.pop()
        try:
            rows = connection.execute(query, (first, last)).fetchall() if last - first <= _ROWS else None
        except _UNREADABLE:
            if last - first == 1:
                continue
            rows = None
        if rows is not None:
            yield from rows
            continue
        middle = (first + last) // 2
        stretches += [(middle, last), (first, middle)]


def _head(row: tuple[Any, ...]) -> SessionHead | None:
    try:
        _, session_id, channel, chat_id, incarnation, created_at = row
        key = SessionKey(channel, chat_id)
        if key.session_id != session_id:
            return None
        return SessionHead(session_id, key, str(incarnation), datetime.fromisoformat(created_at).replace(tzinfo=UTC))
    except _UNREADABLE:
        return None


def _entry(row: tuple[Any, ...]) -> StoredEntry | None:
    try:
        _, session, sequence, entry_id, encoded, key, checksum = row
        if checksum is None and not is_sealed(encoded):
            decode_entry(encoded)
        elif checksum is not None and checksum != checksum_of(session, sequence, entry_id, key, encoded):
            return None
        return StoredEntry(sequence, entry_id, encoded, key)
    except (*_UNREADABLE, InvalidMessage):
        return None
