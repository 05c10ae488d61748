"""Sessions out of other programs' SQLite databases, as lines that their formats read.

A database is only read, in short queries, so that its program never waits: nothing is locked between them, and no file
beside it is made. Everything in here blocks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from miniclaw_sessions.errors import ImportRefused

_PAGE = 100
_PATIENCE_S = 0.5
_KNOWN: dict[Path, tuple[list[tuple[int, int, int]], list[DatabaseSession]]] = {}
_WAL_VERSION = b"\2\2"  # bytes 18 and 19 of the header of a database with a write-ahead log


class DatabaseSession(NamedTuple):
    """One session of a database: its id, when it changed in nanoseconds since 1970, and how many messages it has."""

    id: str
    modified: int
    messages: int


class Database(NamedTuple):
    """What is asked of a program's database."""

    sessions: Callable[[sqlite3.Connection], Iterator[DatabaseSession]]
    lines: Callable[[sqlite3.Connection, str], Iterator[dict[str, Any]]]


def sessions_in(program: str, path: Path) -> list[DatabaseSession]:
    """The sessions of a database; it is asked only when its files have changed since.

    Raises:
        ImportRefused: it cannot be read, or is none of this program.
    """
    looks = _looks(path)
    if (known := _KNOWN.get(path)) is None or known[0] != looks:
        with _opened(path) as connection:
            known = _KNOWN[path] = looks, list(_DATABASES[program].sessions(connection))
    return known[1]


def _looks(path: Path) -> list[tuple[int, int, int]]:
    """What changes when a database does: size, time and identity of it and of its log."""
    files = [file for file in (path, Path(f"{path}-wal")) if file.exists()]
    return [(status.st_size, status.st_mtime_ns, status.st_ino) for status in (file.stat() for file in files)]


def lines_of(program: str, path: Path, session_id: str) -> Iterator[bytes]:
    """A session as lines.

    Raises:
        ImportRefused: as for `sessions_in`.
    """
    with _opened(path) as connection:
        for line in _DATABASES[program].lines(connection, session_id):
            yield msgspec.json.encode(line) + b"\n"


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    connection = None
    try:
        if not path.is_file() or path.is_symlink():
            raise ImportRefused(f"cannot read {path}: it is not a regular file")
        with path.open("rb") as file:
            is_wal = file.read(20)[18:20] == _WAL_VERSION
        # nobody has it open who writes: without this, SQLite would make the files of a log beside it
        rest = "&immutable=1" if is_wal and not Path(f"{path}-wal").exists() else ""
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode=ro{rest}",
            uri=True,
            timeout=_PATIENCE_S,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.row_factory = sqlite3.Row
        yield connection
    except (sqlite3.Error, OSError) as error:
        raise ImportRefused(f"cannot read {path}: {error}") from None
    finally:
        if connection is not None:
            connection.close()


def _rows(connection: sqlite3.Connection, query: str, *values: Any) -> list[dict[str, Any]]:
    """What a query gives, all of it at once; bytes are left out, which JSON has no place for."""
    found = connection.execute(query, values).fetchall()
    return [{name: row[name] for name in row.keys() if not isinstance(row[name], bytes)} for row in found]  # noqa: SIM118


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {row["name"] for row in _rows(connection, "SELECT name FROM sqlite_master WHERE type = 'table'")}


def _parsed(value: Any) -> Any:
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, TypeError):
        return value


# --- opencode --------------------------------------------------------------------------------------------------------

_OPENCODE_SESSIONS = """
SELECT s.id, max(s.time_updated, coalesce(max(m.time_updated), 0)) AS changed, count(m.id) AS messages
FROM session s LEFT JOIN message m ON m.session_id = s.id GROUP BY s.id ORDER BY s.id
"""
_OPENCODE_MESSAGES = """
SELECT id, time_created, time_updated, data FROM message WHERE session_id = ? AND (time_created, id) > (?, ?)
ORDER BY time_created, id LIMIT ?
"""


def _opencode_sessions(connection: sqlite3.Connection) -> Iterator[DatabaseSession]:
    for row in _rows(connection, _OPENCODE_SESSIONS):
        yield DatabaseSession(row["id"], int(row["changed"]) * 1_000_000, row["messages"])


def _opencode_lines(connection: sqlite3.Connection, session_id: str) -> Iterator[dict[str, Any]]:
    """The session and its messages; not the last one, as long as it may get more parts."""
    for row in _rows(connection, "SELECT * FROM session WHERE id = ?", session_id):
        parsed = {
            name: _parsed(value) if name in ("model", "revert", "permission") else value for name, value in row.items()
        }
        yield {"info": parsed}
    after: tuple[Any, Any] = (-1, "")
    while page := _rows(connection, _OPENCODE_MESSAGES, session_id, *after, _PAGE):
        for row in page:
            parts = _rows(connection, "SELECT id, data FROM part WHERE message_id = ? ORDER BY id", row["id"])
            info = _parsed(row["data"])
            is_last = len(page) < _PAGE and row is page[-1]
            if is_last and not _is_complete(info):
                return
            yield {
                "info": {"id": row["id"], **info} if isinstance(info, dict) else info,
                "parts": [
                    {"id": part["id"], **data} if isinstance(data := _parsed(part["data"]), dict) else data
                    for part in parts
                ],
            }
        after = (page[-1]["time_created"], page[-1]["id"])


def _is_complete(info: Any) -> bool:
    """Whether a message gets no more parts: a model's says so, a user's has them when the model's is begun."""
    match info:
        case {"role": "assistant", "error": _} | {"role": "assistant", "time": {"completed": _}}:
            return True
        case _:
            return False


# --- llm -------------------------------------------------------------------------------------------------------------

_THREADS = """
SELECT t.id AS id, count(u.id) AS turns, max(coalesce(u.datetime_utc, t.datetime_utc)) AS changed
FROM threads t LEFT JOIN turns u ON u.thread_id = t.id GROUP BY t.id ORDER BY t.id
"""
_CONVERSATIONS = """
SELECT c.id AS id, count(r.id) AS turns, max(r.datetime_utc) AS changed
FROM conversations c JOIN responses r ON r.conversation_id = c.id GROUP BY c.id ORDER BY c.id
"""
_BRANCH = """
WITH RECURSIVE branch(hash, parent_hash, role, provider_metadata, depth) AS (
    SELECT hash, parent_hash, role, provider_metadata, 0 FROM messages
    WHERE hash = (SELECT tip_message_hash FROM threads WHERE id = ?)
    UNION ALL
    SELECT m.hash, m.parent_hash, m.role, m.provider_metadata, depth + 1
    FROM messages m JOIN branch ON m.hash = branch.parent_hash
) SELECT hash, parent_hash, role, provider_metadata FROM branch ORDER BY depth DESC
"""
_PARTS = "SELECT position, type, tool_name, text, payload FROM parts WHERE message_hash = ? ORDER BY position"
_FRAGMENTS = """
SELECT content FROM prompt_fragments p JOIN fragments f ON f.id = p.fragment_id WHERE p.response_id = ? ORDER BY "order"
"""
_TURN = """
SELECT id, model, resolved_model, options_json, input_tokens, output_tokens, token_details, duration_ms, datetime_utc
FROM turns WHERE thread_id = ? AND tip_message_hash = ?
"""
_TURN_AFTER = "SELECT datetime_utc FROM turns WHERE thread_id = ? AND parent_message_hash = ?"


def _llm_sessions(connection: sqlite3.Connection) -> Iterator[DatabaseSession]:
    tables, known = _tables(connection), set()
    if "threads" in tables:
        for row in _rows(connection, _THREADS):
            known.add(row["id"])
            yield DatabaseSession(row["id"], _nanoseconds(row["changed"]), 2 * row["turns"])
    if {"conversations", "responses"} <= tables:
        for row in _rows(connection, _CONVERSATIONS):
            if row["id"] not in known:
                yield DatabaseSession(row["id"], _nanoseconds(row["changed"]), 2 * row["turns"])


def _nanoseconds(text: Any) -> int:
    from miniclaw_sessions.formats.codec import moment_of  # noqa: PLC0415 - a table without it is read as fast

    moment = moment_of(text.replace(" ", "T") if isinstance(text, str) else None)
    return 0 if moment is None else int(moment.timestamp() * 1e6) * 1_000


def _llm_lines(connection: sqlite3.Connection, session_id: str) -> Iterator[dict[str, Any]]:
    tables = _tables(connection)
    threads = _rows(connection, "SELECT * FROM threads WHERE id = ?", session_id) if "threads" in tables else []
    if threads:
        yield {"thread": threads[0]}
        for row in _rows(connection, _BRANCH, session_id):
            turns = _rows(connection, _TURN, session_id, row["hash"]) or _rows(
                connection, _TURN_AFTER, session_id, row["hash"]
            )
            yield {"message": row, "parts": _llm_parts(connection, row["hash"]), "turn": turns[0] if turns else None}
        return
    for row in _rows(connection, "SELECT * FROM conversations WHERE id = ?", session_id):
        yield {"conversation": row}
    after = ""
    query = "SELECT * FROM responses WHERE conversation_id = ? AND id > ? ORDER BY id LIMIT ?"
    while page := _rows(connection, query, session_id, after, _PAGE):
        for row in page:
            kept = {name: value for name, value in row.items() if name not in ("prompt_json", "response_json")}
            if "prompt_fragments" in tables:  # what was said before the prompt
                said = [one["content"] for one in _rows(connection, _FRAGMENTS, row["id"])]
                kept["prompt"] = "\n".join([*said, *([row["prompt"]] if row["prompt"] else [])])
            beside: dict[str, Any] = {
                table: _rows(connection, f"SELECT * FROM {table} WHERE response_id = ? ORDER BY id", row["id"])  # noqa: S608
                for table in ("tool_calls", "tool_results")
                if table in tables
            }
            yield {"response": kept, **beside}
        after = page[-1]["id"]


def _llm_parts(connection: sqlite3.Connection, message_hash: str) -> list[dict[str, Any]]:
    """A message's parts; what one has of fragments, which are stored once, is put into its text."""
    parts = _rows(connection, _PARTS, message_hash)
    for part in parts:
        payload = _parsed(part["payload"])
        if isinstance(payload, dict) and isinstance(pieces := payload.get("text_ref"), list):
            part["text"] = "".join(_llm_piece(connection, piece) for piece in pieces if isinstance(piece, dict))
    return parts


def _llm_piece(connection: sqlite3.Connection, piece: dict[str, Any]) -> str:
    if isinstance(literal := piece.get("literal"), str):
        return literal
    found = _rows(connection, "SELECT content FROM fragments WHERE id = ?", piece.get("fragment"))
    return found[0]["content"] if found else ""


_DATABASES: Mapping[str, Database] = {
    "opencode": Database(_opencode_sessions, _opencode_lines),
    "llm": Database(_llm_sessions, _llm_lines),
}
