"""Errors of databases as those of `errors`: the only place that knows SQLite's error codes and schema versions."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from miniclaw_sessions.errors import (
    ConfigError,
    SchemaTooNew,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

_DAMAGED = frozenset(
    {
        *(sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT),
        sqlite3.SQLITE_CONSTRAINT,  # by damage: an append that breaks a constraint is handled where it happens
    }
)
_CONTRADICTIONS = ("no such", "unsupported file format")
"""Texts of SQLite's errors for a damaged schema or file header."""

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PROBE_BYTES = 64 * 1024


def store_error(error: Exception, *, path: Path, attempted: str) -> StoreError:
    """The store's error for a failure of the database or the file system.

    Args:
        error: from SQLAlchemy, sqlite3 or the operating system.
        path: the database file.
        attempted: the attempted action, to follow "cannot" in the text.
    """
    if isinstance(error, StoreError):
        return error
    cause = _cause(error)
    what = f"cannot {attempted} {path}: {cause}"
    if is_damage(cause):
        return StoreCorrupt(
            f"{what}; start again, and what can be read of it is kept; or else restore a backup made of it now"
        )
    if isinstance(cause, OSError):
        has_no_space = cause.errno in _NO_SPACE
    else:
        code = _code(cause)
        has_no_space = code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _has_no_space(path))
    if has_no_space:
        return StoreFull(f"{what}; free space on its disk or quota, nothing that was acknowledged is lost")
    return StoreUnavailable(f"{what}; see that the disk works, and that the file is ours alone and writable")


def unknown_schema(attempted: str, found: str, known: Sequence[str]) -> SchemaTooNew | ConfigError:
    """The error for a database whose schema this version does not know.

    Args:
        attempted: the attempted action and its object, to follow "cannot" in the text.
        found: the schema's version.
        known: the versions that can be used, oldest first.
    """
    if found > known[-1]:
        return SchemaTooNew(
            f"cannot {attempted}: a newer version of miniclaw-sessions made it (schema {found}, this one knows "
            f"{known[-1]}); install that version, nothing was changed"
        )
    return ConfigError(
        f"cannot {attempted}: an older version of miniclaw-sessions made it (schema {found}, this one needs "
        f"{known[0]}), and this one cannot upgrade it; back it up with that version (`miniclaw-sessions backup`), and "
        "restore the backup into a new database with this one (`miniclaw-sessions restore`). Nothing was changed"
    )


def is_full(error: BaseException) -> bool:
    """Whether SQLite itself found no space, and so rolled the transaction back cleanly."""
    return _code(_cause(error)) == sqlite3.SQLITE_FULL


def _code(cause: BaseException | None) -> int | None:
    """SQLite's primary error code; the upper bytes of Python's number have the details."""
    code: int | None = getattr(cause, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _cause(error: BaseException) -> BaseException | None:
    """The driver's error, which SQLAlchemy wraps in its own. SQLAlchemy may not be loaded."""
    cause: BaseException | None = getattr(error, "orig", error)
    return cause


def is_damage(cause: BaseException | None) -> bool:
    """Whether the driver's error says that the database is damaged."""
    code = _code(cause)
    if code is None:  # Python's own errors: stored text, or SQLite's error text, is not UTF-8
        return isinstance(cause, sqlite3.OperationalError | UnicodeDecodeError)
    if code == sqlite3.SQLITE_ERROR and any(sign in str(cause) for sign in _CONTRADICTIONS):
        return True
    return code in _DAMAGED


def _has_no_space(path: Path) -> bool:
    """Whether the disk, a quota or a size limit refuses more bytes; SQLite reports the last two as I/O errors.

    It writes to a file without a name, at the offset that the database's largest file has reached.
    """
    import tempfile  # noqa: PLC0415 - only a failure needs it

    try:
        end = max((file.stat().st_size for file in path.parent.glob(f"{path.name}*")), default=0)
        with tempfile.TemporaryFile(dir=path.parent, buffering=0) as file:
            written = os.pwrite(file.fileno(), bytes(_PROBE_BYTES), end)
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in _NO_SPACE
    return written < _PROBE_BYTES
