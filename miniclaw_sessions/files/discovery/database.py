"""A program's SQLite database, while it is read: nothing in it is trusted.

Only plain tables are read, row by row, within limits of time and size.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.formats.codec import moment_of
from miniclaw_sessions.files.transfer.incoming import MAX_LINE_BYTES

T = TypeVar("T")

PAGE = 100
"""How many rows a query is asked for at once."""

monotonic = SystemClock().monotonic

_ROW_BYTES = 200  # about the memory of an empty row
_LONGEST_ID = 512
_LATEST_MS = 2**63 // 1_000_000 - 1
_SECONDS = 9_000_000_000  # a larger number is one of milliseconds: seconds since 1970 fit up to the year 2255
_STEPS = 10_000  # of SQLite's virtual machine, between two checks of the time


class DatabaseSession(NamedTuple):
    """One session of a database: its id, when it changed in nanoseconds since 1970, and how many messages it has."""

    id: str
    modified: int
    messages: int


class Database:
    """A program's database, while it is read."""

    def __init__(self, connection: sqlite3.Connection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._until = 0.0
        self._held = 0
        self.spent = 0.0
        connection.row_factory = sqlite3.Row
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_LINE_BYTES)
        connection.set_progress_handler(lambda: monotonic() > self._until, _STEPS)
        for pragma in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
            self._timed(partial(connection.execute, f"PRAGMA {pragma}"))

    def rows(self, query: str, *values: Any) -> Generator[dict[str, Any], None, None]:
        """What a query gives, row by row; bytes are left out, which JSON has no place for.

        Raises:
            ImportRefused: since `begin_line`, it gave more than may be held in memory.
            sqlite3.Error: it could not be read, or took too long.
        """
        with closing(self._timed(partial(self._connection.execute, query, values))) as cursor:
            while (row := self._timed(cursor.fetchone)) is not None:
                self._held += _ROW_BYTES + sum(len(value) for value in row if isinstance(value, str | bytes))
                if self._held > MAX_LINE_BYTES:
                    raise ImportRefused(f"what belongs together in it is longer than {MAX_LINE_BYTES} bytes")
                yield {name: row[name] for name in row.keys() if not isinstance(row[name], bytes)}  # noqa: SIM118

    def first(self, query: str, *values: Any) -> dict[str, Any] | None:
        """The first row of what a query gives."""
        with closing(self.rows(query, *values)) as rows:
            return next(rows, None)

    def begin_line(self) -> None:
        """What was given before is not held any more."""
        self._held = 0

    def has(self, *tables: str) -> bool:
        """Whether it has these, and they are plain tables: a view, or a column that is computed, may take for ever."""
        plain = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ? AND sql GLOB 'CREATE TABLE *'"
        return all(
            self.first(plain, table) is not None and all(column["hidden"] == 0 for column in self._columns(table))
            for table in tables
        )

    def columns(self, table: str, *without: str) -> str:
        """The names of a table's columns, to be selected."""
        names = [column["name"] for column in self._columns(table) if column["name"] not in without]
        return ", ".join('"{}"'.format(name.replace('"', '""')) for name in names)

    def _columns(self, table: str) -> list[dict[str, Any]]:
        return list(self.rows("SELECT name, hidden FROM pragma_table_xinfo(?)", table))

    def _timed(self, step: Callable[[], T]) -> T:
        began = monotonic()
        self._until = began + self._seconds - self.spent
        try:
            return step()
        finally:
            self.spent += monotonic() - began


class Asked(NamedTuple):
    """What is asked of a program's database."""

    sessions: Callable[[Database], Iterator[DatabaseSession]]
    lines: Callable[[Database, str], Iterator[Any]]


def session_row(session_id: Any, modified: int, messages: int) -> DatabaseSession:
    """A session as its database lists it.

    Raises:
        ImportRefused: its id cannot be one.
    """
    if not isinstance(session_id, str) or not 0 < len(session_id) <= _LONGEST_ID:
        raise ImportRefused(f"the id of a session in it is no text of at most {_LONGEST_ID} characters")
    return DatabaseSession(session_id, modified, messages)


def from_milliseconds(value: Any) -> int:
    """A time in milliseconds, in nanoseconds; 0 for what is no time."""
    return min(max(value, 0), _LATEST_MS) * 1_000_000 if isinstance(value, int) else 0


def from_seconds(value: Any) -> int:
    """A time in seconds, or in milliseconds where the number is so large, in nanoseconds; 0 for what is no time."""
    if not isinstance(value, int | float) or not 0 < value < _LATEST_MS:
        return 0
    return int(value * (1_000_000 if value >= _SECONDS else 1_000_000_000))


def from_text(text: Any) -> int:
    """A time as text, with a space or a `T` in it, in nanoseconds; 0 for what is no time."""
    moment = moment_of(text.replace(" ", "T") if isinstance(text, str) else None)
    return 0 if moment is None else int(moment.timestamp() * 1e6) * 1_000


def parsed_json(value: Any) -> Any:
    """A JSON text as its value; another value as it is."""
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, TypeError, RecursionError):
        return value
