"""The database file and the connections to it.

The file is created, 0600 and empty, before SQLite opens it. SQLite gives its -wal and -shm files the same mode,
whatever the umask (rule R33). All connections are set up here.
"""

from __future__ import annotations

import os
import re
import sqlite3
import stat
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from miniclaw_sessions.disk import sync_file
from miniclaw_sessions.errors import ConfigError, StoreCorrupt, StoreUnavailable

CHECKPOINT_BYTES = 16 * 1024 * 1024
"""The -wal file moves to the database at this size; a larger one is hardly faster, with longer pauses."""

WAL_LIMIT_BYTES = 64 * 1024 * 1024
"""The -wal file is truncated to this size after a burst."""

BUSY_TIMEOUT_S = 5.0
"""The time to wait for another program's transaction."""

_TABLES = {"alembic_version", "sessions", "entries", "places", "placed"}
_ENOUGH = 4
"""A database with this many of our tables is ours; damage may have taken the name of another one."""

PAGE_BYTES = 4096
_PLENTY = 10
_PATIENCE_MS = 1000
_MODE = 0o600
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def database_files(path: Path) -> tuple[Path, ...]:
    """All files of a database; all but the first only exist while it is open, or after a crash.

    A rollback journal exists only until a new database has changed to WAL mode.
    """
    return (path, *(path.with_name(f"{path.name}-{suffix}") for suffix in ("wal", "shm", "journal")))


def integrity_problems(answers: Iterable[str]) -> list[str]:
    """The findings of SQLite's `integrity_check`, one sentence for each line."""
    lines = [line for text in answers for line in text.splitlines()]
    return [f"the database is damaged: {line}" for line in lines if line != "ok" and not line.startswith("***")]


def note_damage(path: Path) -> None:
    """Write a note next to a database that it is damaged; if that fails, there is no note.

    The process that has it open serves what can be read; the next start rebuilds it.
    """
    with suppress(OSError):
        sign = _damage_sign(path)
        sign.touch(_MODE)
        sign.write_text(str(path.stat().st_ino), encoding="ascii")


def has_noted_damage(path: Path) -> bool:
    """Whether there is a note of damage in this very database; another one may have replaced it since."""
    sign = _damage_sign(path)
    try:
        is_this = sign.read_text(encoding="ascii") == str(path.stat().st_ino)
    except (OSError, UnicodeDecodeError):
        is_this = False
    if not is_this:
        forget_damage(path)
    return is_this


def forget_damage(path: Path) -> None:
    """Remove the note."""
    with suppress(OSError):
        _damage_sign(path).unlink(missing_ok=True)


def _damage_sign(path: Path) -> Path:
    return path.with_name(f"{path.name}-damaged")


def create_file(path: Path) -> None:
    """Make sure, durably, that the database file exists and only we can read it.

    Raises:
        ConfigError: the path is not a regular file.
        OSError: it cannot be created or opened.
    """
    try:
        fd = os.open(path, _CREATE, _MODE)
    except FileExistsError:
        for file in database_files(path):
            _make_private(file)
        return
    try:
        os.fchmod(fd, _MODE)  # a umask of 0777 takes even the owner's bits
        sync_file(fd)
    finally:
        os.close(fd)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file(directory)
    finally:
        os.close(directory)


def schema_version(path: Path) -> str | None:
    """The version of the schema in the database, or None if the database is empty. Changes nothing.

    Raises:
        ConfigError: the database is another program's.
        StoreCorrupt: it has no readable version.
        sqlite3.Error: it cannot be read.
    """
    rolled_back_by_opening = path.with_name(f"{path.name}-journal").exists()  # a reader must not roll back
    connection = connect(path, writing=rolled_back_by_opening)
    try:
        return version_in(connection, path)
    finally:
        connection.close()


def version_in(connection: sqlite3.Connection, path: Path) -> str | None:
    """`schema_version` over an open connection."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return None
    if len(tables & _TABLES) < _ENOUGH:
        raise ConfigError(f"cannot open {path} as a store: it is another program's database; choose another path")
    versions: set[str] = set()
    if {"alembic_version", "entries"} <= tables:
        for source in ("NOT INDEXED", "INDEXED BY sqlite_autoindex_alembic_version_1"):
            found = connection.execute(f"SELECT version_num FROM alembic_version {source} WHERE version_num > ''")  # noqa: S608
            versions.update(str(version) for (version,) in found)
    if len(versions) != 1 or not re.fullmatch(r"\d{4}", version := versions.pop()):
        raise StoreCorrupt(f"cannot open {path}: it is damaged, it does not say which version of the schema it has")
    return version


def is_open_elsewhere(path: Path) -> bool:
    """Whether any process has a database open. Moves what a crash left in its log to the database.

    Raises:
        sqlite3.Error: the database cannot be opened.
    """
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # each process that has it open holds a shared lock
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                return True
            raise
        connection.execute("ROLLBACK")
    return False


def connect(path: Path, *, writing: bool) -> sqlite3.Connection:
    """One connection: to write, or to read only.

    Raises:
        StoreUnavailable: the file system does not support SQLite's write-ahead log.
        sqlite3.Error: it cannot be opened.
    """
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode={'rw' if writing else 'ro'}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,  # the store begins transactions, not the driver
        check_same_thread=False,
    )
    try:
        connection.text_factory = _text
        connection.execute("PRAGMA temp_store = MEMORY")  # conversations must not get into temporary files
        connection.execute("PRAGMA trusted_schema = OFF")
        if writing:
            _set_up_writing(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _text(data: bytes) -> str:
    """Text, even if damage left invalid bytes: the checksum shows the damage."""
    return data.decode("utf-8", "surrogateescape")


def _set_up_writing(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreUnavailable(
            f"cannot open {path}: its file system does not support SQLite's write-ahead log (the journal mode stays "
            f"{mode}); put the workspace on a local disk"
        )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # on macOS, as `disk.sync`
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_BYTES // PAGE_BYTES}")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")


def settle_log(path: Path) -> None:
    """Move what an earlier process left in the -wal file to the database, synced, as far as no reader uses it.

    If a sync had failed, the page cache may show as committed what the disk has lost. Entries that are committed behind
    it would be lost with it at the next power cut, because SQLite's recovery ends at a hole (rule R5).

    Raises:
        sqlite3.Error: it cannot be moved now.
    """
    with suppress(FileNotFoundError):
        if database_files(path)[1].stat().st_size:
            with closing(connect(path, writing=True)) as connection:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def empty_log(path: Path) -> bool:
    """Move the content of the -wal file to the database, synced, and truncate the file. False if a reader uses it.

    Raises:
        sqlite3.Error: it cannot be moved now.
    """
    connection = connect(path, writing=True)
    try:
        connection.execute(f"PRAGMA busy_timeout = {_PATIENCE_MS}")  # appends wait for this
        (is_busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.close()
    return not is_busy


def fill_log(path: Path) -> None:
    """Give the -wal file its final size, if the disk has plenty of space.

    Syncing bytes that replace others is faster than syncing a file that has grown: the file system need not write a new
    size and new block addresses. SQLite ignores what follows the last commit. Call it only in a write transaction, so
    that no other connection appends.
    """
    with suppress(OSError):  # then it grows by itself
        fd = os.open(database_files(path)[1], os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size, disk = os.fstat(fd).st_size, os.fstatvfs(fd)
            if size < CHECKPOINT_BYTES < disk.f_bavail * disk.f_frsize // _PLENTY:
                _append_zeros(fd, size)
        finally:
            os.close(fd)


def _append_zeros(fd: int, size: int) -> None:
    end = size
    try:
        while end < CHECKPOINT_BYTES and (written := os.pwrite(fd, bytes(CHECKPOINT_BYTES - end), end)):
            end += written
        sync_file(fd)
    except OSError:
        os.ftruncate(fd, size)
        raise


def _make_private(file: Path) -> None:
    """Make an existing file private. It must be a regular file: SQLite would wait for a pipe for ever."""
    try:
        fd = os.open(file, _OPEN)
    except FileNotFoundError:
        return
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"cannot open {file}: it is not a regular file; remove it or choose another path")
        if stat.S_IMODE(status.st_mode) & 0o077:
            os.fchmod(fd, _MODE)
    finally:
        os.close(fd)
