"""Sessions out of other programs' SQLite databases, as lines that their formats read.

A database is only read, in short queries, so that its program never waits: nothing is locked between them, and no file
is made next to it. It is not trusted (`Database`), and any failure only refuses this one database. All functions here
block.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from urllib.parse import quote

import msgspec

from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.discovery.database import Asked, Database, DatabaseSession, monotonic
from miniclaw_sessions.files.discovery.open_files import why

LIST_S = 10.0
"""How long listing the sessions of a database may take."""
READ_S = 60.0
"""How long reading one session may take; the time that its lines wait for their consumer does not count."""

_PATIENCE_S = 0.5
_LONG_S = 1.0  # a database whose refusal took longer is left alone for
_REST = 10  # this many times as long
_KNOWN: dict[Path, tuple[list[tuple[int, int, int]], list[DatabaseSession]]] = {}
_REFUSED: dict[Path, tuple[float, str]] = {}
_WAL_VERSION = b"\2\2"  # bytes 18 and 19 of the header of a database with a write-ahead log


def sessions_in(program: str, path: Path) -> list[DatabaseSession]:
    """The sessions of a database; it is asked only when its files have changed since.

    Raises:
        ImportRefused: it cannot be read, or is not of this program.
        TimeoutError: it was refused before, and took so long for that that it is left alone.
    """
    files = [file.stat() for file in (path, Path(f"{path}-wal")) if file.exists()]
    looks = [(status.st_size, status.st_mtime_ns, status.st_ino) for status in files]
    if (known := _KNOWN.get(path)) is None or known[0] != looks:
        with _opened(path, LIST_S) as database:
            known = _KNOWN[path] = looks, list(_asked(program).sessions(database))
    return known[1]


def lines_of(program: str, path: Path, session_id: str) -> Iterator[bytes]:
    """A session as lines.

    Raises:
        ImportRefused, TimeoutError: as for `sessions_in`.
    """
    with _opened(path, READ_S) as database:
        for line in _asked(program).lines(database, session_id):
            yield msgspec.json.encode(line) + b"\n"
            database.begin_line()


@contextmanager
def _opened(path: Path, seconds: float) -> Iterator[Database]:
    until, problem = _REFUSED.get(path, (0.0, ""))
    if monotonic() < until:
        raise TimeoutError(problem)  # which says nothing of what is in it
    connection = database = None
    try:
        connection = _connected(path)
        database = Database(connection, seconds)
        yield database
    except Exception as error:  # noqa: BLE001 - any content may only refuse this one database
        is_late = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT
        problem = f"it takes longer than {seconds:g} seconds" if is_late else why(error)
        if database is not None and database.spent > _LONG_S:
            _REFUSED[path] = monotonic() + _REST * database.spent, problem
        raise ImportRefused(problem) from None
    finally:
        if connection is not None:
            connection.close()


def _connected(path: Path) -> sqlite3.Connection:
    if not path.is_file() or path.is_symlink():
        raise ImportRefused("it is not a regular file")
    with path.open("rb") as file:
        is_wal = file.read(20)[18:20] == _WAL_VERSION
    # no writer has it open: without this, SQLite would create the files of a log next to it
    rest = "&immutable=1" if is_wal and not Path(f"{path}-wal").exists() else ""
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode=ro{rest}",
        uri=True,
        timeout=_PATIENCE_S,
        isolation_level=None,
        check_same_thread=False,
    )


def _asked(program: str) -> Asked:
    asked: Asked = import_module(f"miniclaw_sessions.files.discovery.tables.{program.replace('-', '_')}").ASKED
    return asked
