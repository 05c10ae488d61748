"""Sessions out of other programs' SQLite databases, as lines that their formats read.

A database is only read, in short queries, so that its program never waits: nothing is locked between them, and no file
is made next to it. It is not trusted: only plain tables are read, row by row, within limits of time and size, and any
failure only refuses this one database. All functions here block.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.discovery.open_files import why
from miniclaw_sessions.files.formats.codec import moment_of
from miniclaw_sessions.files.transfer.incoming import MAX_LINE_BYTES

T = TypeVar("T")

LIST_S = 10.0
"""How long listing the sessions of a database may take."""
READ_S = 60.0
"""How long reading one session may take; the time that its lines wait for their consumer does not count."""

_PAGE = 100
_PATIENCE_S = 0.5
_ROW_BYTES = 200  # about the memory of an empty row
_LONGEST_ID = 512
_LATEST_MS = 2**63 // 1_000_000 - 1
_STEPS = 10_000  # of SQLite's virtual machine, between two checks of the time
_LONG_S = 1.0  # a database whose refusal took longer is left alone for
_REST = 10  # this many times as long
_KNOWN: dict[Path, tuple[list[tuple[int, int, int]], list[DatabaseSession]]] = {}
_REFUSED: dict[Path, tuple[float, str]] = {}
_WAL_VERSION = b"\2\2"  # bytes 18 and 19 of the header of a database with a write-ahead log
_monotonic = SystemClock().monotonic


class DatabaseSession(NamedTuple):
    """One session of a database: its id, when it changed in nanoseconds since 1970, and how many messages it has."""

    id: str
    modified: int
    messages: int


class _Database:
    """A program's database, while it is read."""

    def __init__(self, connection: sqlite3.Connection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._until = 0.0
        self._held = 0
        self.spent = 0.0
        connection.row_factory = sqlite3.Row
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_LINE_BYTES)
        connection.set_progress_handler(lambda: _monotonic() > self._until, _STEPS)
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
        began = _monotonic()
        self._until = began + self._seconds - self.spent
        try:
            return step()
        finally:
            self.spent += _monotonic() - began


class Asked(NamedTuple):
    """What is asked of a program's database."""

    sessions: Callable[[_Database], Iterator[DatabaseSession]]
    lines: Callable[[_Database, str], Iterator[Any]]


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
            known = _KNOWN[path] = looks, list(_PROGRAMS[program].sessions(database))
    return known[1]


def lines_of(program: str, path: Path, session_id: str) -> Iterator[bytes]:
    """A session as lines.

    Raises:
        ImportRefused, TimeoutError: as for `sessions_in`.
    """
    with _opened(path, READ_S) as database:
        for line in _PROGRAMS[program].lines(database, session_id):
            yield msgspec.json.encode(line) + b"\n"
            database.begin_line()


@contextmanager
def _opened(path: Path, seconds: float) -> Iterator[_Database]:
    until, problem = _REFUSED.get(path, (0.0, ""))
    if _monotonic() < until:
        raise TimeoutError(problem)  # which says nothing of what is in it
    connection = database = None
    try:
        connection = _connected(path)
        database = _Database(connection, seconds)
        yield database
    except Exception as error:  # noqa: BLE001 - any content may only refuse this one database
        is_late = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT
        problem = f"it takes longer than {seconds:g} seconds" if is_late else why(error)
        if database is not None and database.spent > _LONG_S:
            _REFUSED[path] = _monotonic() + _REST * database.spent, problem
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


def _session(session_id: Any, modified: int, messages: int) -> DatabaseSession:
    if not isinstance(session_id, str) or not 0 < len(session_id) <= _LONGEST_ID:
        raise ImportRefused(f"the id of a session in it is no text of at most {_LONGEST_ID} characters")
    return DatabaseSession(session_id, modified, messages)


def _from_milliseconds(value: Any) -> int:
    return min(max(value, 0), _LATEST_MS) * 1_000_000 if isinstance(value, int) else 0


def _parsed(value: Any) -> Any:
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, TypeError, RecursionError):
        return value


# --- opencode --------------------------------------------------------------------------------------------------------

_OPENCODE_SESSIONS = """
SELECT s.id, max(s.time_updated, coalesce(max(m.time_updated), 0)) AS changed, count(m.id) AS messages
FROM session s LEFT JOIN message m ON m.session_id = s.id GROUP BY s.id ORDER BY s.id
"""
_OPENCODE_PAGE = """
SELECT id, time_created FROM message WHERE session_id = ? AND (time_created, id) > (?, ?)
ORDER BY time_created, id LIMIT ?
"""
_OPENCODE_PARTS = "SELECT id, data FROM part WHERE message_id = ? ORDER BY id"


def _opencode_sessions(database: _Database) -> Iterator[DatabaseSession]:
    if not database.has("session", "message", "part"):
        raise ImportRefused("it has not the tables that opencode makes")
    for row in database.rows(_OPENCODE_SESSIONS):
        yield _session(row.get("id"), _from_milliseconds(row.get("changed")), row["messages"])


def _opencode_lines(database: _Database, session_id: str) -> Iterator[dict[str, Any]]:
    """The session and its messages; not the last one, as long as it may get more parts."""
    columns = database.columns("session")
    if (row := database.first(f"SELECT {columns} FROM session WHERE id = ?", session_id)) is not None:  # noqa: S608
        parsed = {
            name: _parsed(value) if name in ("model", "revert", "permission") else value for name, value in row.items()
        }
        yield {"info": parsed}
    after: tuple[Any, Any] = (-1, "")
    while page := list(database.rows(_OPENCODE_PAGE, session_id, *after, _PAGE)):
        for row in page:
            said = database.first("SELECT data FROM message WHERE id = ?", row["id"]) or {}
            info = _parsed(said.get("data"))
            is_last = len(page) < _PAGE and row is page[-1]
            if is_last and not _is_complete(info):
                return
            yield {
                "info": {"id": row["id"], **info} if isinstance(info, dict) else info,
                "parts": [
                    {"id": part.get("id"), **data} if isinstance(data := _parsed(part.get("data")), dict) else data
                    for part in database.rows(_OPENCODE_PARTS, row["id"])
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


# --- openclaw --------------------------------------------------------------------------------------------------------

_OPENCLAW_SESSIONS = """
SELECT g.id, g.events, e.created_at AS changed FROM
(SELECT session_id AS id, count(*) AS events, max(seq) AS last FROM transcript_events GROUP BY session_id) g
JOIN transcript_events e ON e.session_id = g.id AND e.seq = g.last ORDER BY g.id
"""
_OPENCLAW_PAGE = "SELECT seq FROM transcript_events WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?"
_OPENCLAW_EVENT = "SELECT event_json FROM transcript_events WHERE session_id = ? AND seq = ?"


def _openclaw_sessions(database: _Database) -> Iterator[DatabaseSession]:
    if not database.has("transcript_events"):  # before 2026.8 it has other things in it
        return
    for row in database.rows(_OPENCLAW_SESSIONS):
        yield _session(row.get("id"), _from_milliseconds(row.get("changed")), row["events"])


def _openclaw_lines(database: _Database, session_id: str) -> Iterator[Any]:
    """The lines of pi's format that its files had."""
    after = -1
    while page := list(database.rows(_OPENCLAW_PAGE, session_id, after, _PAGE)):
        for row in page:
            event = database.first(_OPENCLAW_EVENT, session_id, row["seq"]) or {}
            yield _parsed(event.get("event_json"))
        after = page[-1]["seq"]


# --- llm -------------------------------------------------------------------------------------------------------------

_THREADS = """
SELECT t.id AS id, count(u.id) AS turns, max(coalesce(u.datetime_utc, t.datetime_utc)) AS changed
FROM threads t LEFT JOIN turns u ON u.thread_id = t.id GROUP BY t.id ORDER BY t.id
"""
_CONVERSATIONS = """
SELECT c.id AS id, count(r.id) AS turns, max(r.datetime_utc) AS changed
FROM conversations c JOIN responses r ON r.conversation_id = c.id GROUP BY c.id ORDER BY c.id
"""
_MESSAGE = "SELECT hash, parent_hash, role, provider_metadata FROM messages WHERE hash = ?"
_ABOVE = "SELECT parent_hash FROM messages WHERE hash = ?"
_PARTS = "SELECT position, type, tool_name, text, payload FROM parts WHERE message_hash = ? ORDER BY position"
_FRAGMENTS = """
SELECT content FROM prompt_fragments p JOIN fragments f ON f.id = p.fragment_id WHERE p.response_id = ? ORDER BY "order"
"""
_TURN = """
SELECT id, model, resolved_model, options_json, input_tokens, output_tokens, token_details, duration_ms, datetime_utc
FROM turns WHERE thread_id = ? AND tip_message_hash = ?
"""
_TURN_AFTER = "SELECT datetime_utc FROM turns WHERE thread_id = ? AND parent_message_hash = ?"


def _llm_sessions(database: _Database) -> Iterator[DatabaseSession]:
    known = set()
    if _has_threads(database):
        for row in database.rows(_THREADS):
            known.add(row.get("id"))
            yield _session(row.get("id"), _nanoseconds(row.get("changed")), 2 * row["turns"])
    if database.has("conversations", "responses"):
        for row in database.rows(_CONVERSATIONS):
            if row.get("id") not in known:
                yield _session(row.get("id"), _nanoseconds(row.get("changed")), 2 * row["turns"])


def _has_threads(database: _Database) -> bool:
    return database.has("threads", "turns", "messages", "parts")


def _nanoseconds(text: Any) -> int:
    moment = moment_of(text.replace(" ", "T") if isinstance(text, str) else None)
    return 0 if moment is None else int(moment.timestamp() * 1e6) * 1_000


def _llm_lines(database: _Database, session_id: str) -> Iterator[dict[str, Any]]:
    columns = database.columns("threads") if _has_threads(database) else ""
    thread = database.first(f"SELECT {columns} FROM threads WHERE id = ?", session_id) if columns else None  # noqa: S608
    if thread is None:
        yield from _conversation_lines(database, session_id)
        return
    yield {"thread": thread}
    branch: dict[Any, None] = {}  # from the last message to the first; a message may be its own ancestor
    message_hash = thread.get("tip_message_hash")
    while message_hash not in branch and (row := database.first(_ABOVE, message_hash)) is not None:
        branch[message_hash] = None
        message_hash = row.get("parent_hash")
    for message_hash in reversed(branch):
        yield {
            "message": database.first(_MESSAGE, message_hash),
            "parts": [_llm_part(database, part) for part in database.rows(_PARTS, message_hash)],
            "turn": database.first(_TURN, session_id, message_hash)
            or database.first(_TURN_AFTER, session_id, message_hash),
        }


def _conversation_lines(database: _Database, session_id: str) -> Iterator[dict[str, Any]]:
    """Before 0.36."""
    columns = database.columns("conversations")
    yield {"conversation": database.first(f"SELECT {columns} FROM conversations WHERE id = ?", session_id)}  # noqa: S608
    tables = [table for table in ("tool_calls", "tool_results") if database.has(table)]
    beside = {
        table: f"SELECT {database.columns(table)} FROM {table} WHERE response_id = ? ORDER BY id"  # noqa: S608
        for table in tables
    }
    columns = database.columns("responses", "prompt_json", "response_json")
    response = f"SELECT {columns} FROM responses WHERE id = ?"  # noqa: S608
    has_fragments = database.has("prompt_fragments", "fragments")
    after = ""
    page = "SELECT id FROM responses WHERE conversation_id = ? AND id > ? ORDER BY id LIMIT ?"
    while ids := [row["id"] for row in database.rows(page, session_id, after, _PAGE)]:
        for one in ids:
            row = database.first(response, one) or {}
            if has_fragments:  # context before the prompt
                said = [fragment["content"] for fragment in database.rows(_FRAGMENTS, one)]
                row["prompt"] = "\n".join([*said, *([row["prompt"]] if row["prompt"] else [])])
            yield {"response": row, **{table: list(database.rows(query, one)) for table, query in beside.items()}}
        after = ids[-1]


def _llm_part(database: _Database, part: dict[str, Any]) -> dict[str, Any]:
    """A message's part; what it has of fragments, which are stored once, is put into its text."""
    payload = _parsed(part.get("payload"))
    if isinstance(payload, dict) and isinstance(pieces := payload.get("text_ref"), list):
        texts: list[str] = []
        for piece in pieces:
            if isinstance(piece, dict) and isinstance(literal := piece.get("literal"), str):
                texts.append(literal)
            elif isinstance(piece, dict):
                found = database.first("SELECT content FROM fragments WHERE id = ?", piece.get("fragment"))
                texts += [] if found is None else [str(found["content"])]
        part["text"] = "".join(texts)
    return part


_PROGRAMS: Mapping[str, Asked] = {
    "opencode": Asked(_opencode_sessions, _opencode_lines),
    "openclaw": Asked(_openclaw_sessions, _openclaw_lines),
    "llm": Asked(_llm_sessions, _llm_lines),
}
