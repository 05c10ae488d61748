"""The statements of the SQLite store, as functions over a SQLAlchemy connection in a transaction.

All but two neither begin nor commit: the store does. New entries go to the driver in statements of many rows, whose
text is compiled once from the table: each further statement would release and retake the interpreter lock. Rarer
statements use SQLAlchemy's Core. `tables` describes how `entries` and `places` fit together.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

import msgspec
from sqlalchemy import (
    CompoundSelect,
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    not_,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DatabaseError, SQLAlchemyError

from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.base import Append, SessionHead, StoredEntry, StoredHead, entries_to_add
from miniclaw_sessions.core.stores.sql.checksums import checksum_of, entry_of_row, id_in, sequence_in, was_entry
from miniclaw_sessions.core.stores.sqlite.files import integrity_problems
from miniclaw_sessions.core.stores.sqlite.tables import ENTRIES, KEYS, METADATA, PLACED, PLACES, SESSIONS
from miniclaw_sessions.errors import StoreConflict, StoreCorrupt, StoreError

PAGE = 500
"""Rows that one statement reads or names."""

ROWS_PER_INSERT = 64
"""New entries in one statement; the driver prepares one statement for each smaller number too."""


Value = int | str | bytes | None


class Position(msgspec.Struct, gc=False):
    """The position of a session in the database: its row, incarnation, and newest sequence."""

    row: int
    incarnation: str
    last_sequence: int


class Known:
    """What the writer remembers of the database between transactions; it must be forgotten when it may be wrong.

    Attributes:
        positions: the positions of the sessions that were looked up.
        end: the position of the log's newest entry; None if it must be looked up.
        placed: the position up to which the log is in `places`.
    """

    __slots__ = ("end", "placed", "positions")

    def __init__(self) -> None:
        self.positions: dict[str, Position] = {}
        self.end: int | None = None
        self.placed = 0

    @property
    def unplaced(self) -> int:
        """The length of the tail that readers have to scan; 0 if it is not known."""
        return 0 if self.end is None else self.end - self.placed

    def forget(self) -> None:
        """Forget everything, so that it is looked up again."""
        self.positions.clear()
        self.end = None


def driver_of(connection: Connection) -> Any:
    """The driver's own connection, for statements that run a thousand times a second."""
    return connection.connection.driver_connection


def begin_reading(connection: Connection) -> None:
    """Begin a transaction that only reads."""
    driver_of(connection).execute("BEGIN")


def begin_writing(connection: Connection) -> None:
    """Begin a transaction that writes, unless `writing` has: the file is locked at once, not at the first change."""
    driver = driver_of(connection)
    if not driver.in_transaction:
        driver.execute(_BEGIN_WRITING)


_BEGIN_WRITING = "BEGIN IMMEDIATE"


@contextmanager
def writing(connection: Connection) -> Iterator[None]:
    """A transaction that writes, as `connection.begin()`. SQLAlchemy joins it at its first statement, if it has one."""
    driver = driver_of(connection)
    driver.execute(_BEGIN_WRITING)
    try:
        yield
        (connection if connection.in_transaction() else driver).commit()
    except BaseException:
        with suppress(SQLAlchemyError, sqlite3.Error):  # the error that led here says more
            connection.rollback()
            driver.rollback()  # without a statement of SQLAlchemy's, or after it has given up
        raise


_PLACED_UP_TO = select(PLACED.c.up_to).scalar_subquery()
_IN_TAIL = ENTRIES.c.position > _PLACED_UP_TO
_END = select(_PLACED_UP_TO, select(func.max(ENTRIES.c.position)).scalar_subquery())

_ROW_OF = select(SESSIONS.c.id).where(SESSIONS.c.session_id == bindparam("session_id")).scalar_subquery()
_NEWEST_PLACED = (
    select(func.coalesce(func.max(PLACES.c.sequence), 0)).where(PLACES.c.session == SESSIONS.c.id).scalar_subquery()
)
_NEWEST_IN_TAIL = select(ENTRIES.c.session, func.max(ENTRIES.c.sequence)).where(_IN_TAIL).group_by(ENTRIES.c.session)
_HEADS: Select[int, str, str, str, str, datetime, int] = select(
    SESSIONS.c.id,
    SESSIONS.c.session_id,
    SESSIONS.c.channel,
    SESSIONS.c.chat_id,
    SESSIONS.c.incarnation,
    SESSIONS.c.created_at,
    _NEWEST_PLACED,
)
_SESSION_IDS = select(SESSIONS.c.session_id).order_by(SESSIONS.c.session_id)
_HEADS_AFTER = _HEADS.where(SESSIONS.c.session_id > bindparam("after")).order_by(SESSIONS.c.session_id).limit(PAGE)
_HEADS_OF = _HEADS.where(SESSIONS.c.session_id.in_(bindparam("session_ids", expanding=True)))
_POSITIONS = select(SESSIONS.c.session_id, SESSIONS.c.id, SESSIONS.c.incarnation, _NEWEST_PLACED).where(
    SESSIONS.c.session_id.in_(bindparam("session_ids", expanding=True))
)
_NEW_SESSIONS = insert(SESSIONS).returning(SESSIONS.c.session_id, SESSIONS.c.id)

_REST = (ENTRIES.c.entry_id, ENTRIES.c.encoded, ENTRIES.c.idempotency_key, ENTRIES.c.checksum, ENTRIES.c.session)
_PLACED_ENTRIES = (
    select(PLACES.c.sequence, *_REST)
    .join(ENTRIES, ENTRIES.c.position == PLACES.c.position)
    .where(PLACES.c.session == _ROW_OF)
)
_ENTRIES_IN_TAIL = select(ENTRIES.c.sequence, *_REST).where(_IN_TAIL, ENTRIES.c.session == _ROW_OF)
_STORED = union_all(
    _PLACED_ENTRIES.where(PLACES.c.sequence > bindparam("after")),
    _ENTRIES_IN_TAIL.where(ENTRIES.c.sequence > bindparam("after")),
)
_OLDEST_FIRST = _STORED.order_by(PLACES.c.sequence).limit(bindparam("limit"))
_NEWEST_FIRST = _STORED.order_by(PLACES.c.sequence.desc()).limit(bindparam("limit"))
_NO_LIMIT = -1
_WITH_ID = union_all(
    *(part.where(ENTRIES.c.entry_id == bindparam("entry_id")) for part in (_PLACED_ENTRIES, _ENTRIES_IN_TAIL))
).limit(1)
_IS_KEY = KEYS.c.idempotency_key == bindparam("key")
_PLACE_OF_KEY = select(KEYS.c.sequence).where(KEYS.c.session == _ROW_OF, _IS_KEY)
_WITH_KEY = _PLACED_ENTRIES.where(PLACES.c.sequence == _PLACE_OF_KEY.scalar_subquery())
_WITH_KEY_IN_TAIL = (
    _ENTRIES_IN_TAIL.where(ENTRIES.c.idempotency_key == bindparam("key")).order_by(ENTRIES.c.sequence).limit(1)
)
_KEYS_OF: CompoundSelect[Any] = union_all(
    select(KEYS.c.idempotency_key).where(KEYS.c.session == _ROW_OF),
    select(ENTRIES.c.idempotency_key).where(
        _IN_TAIL, ENTRIES.c.session == _ROW_OF, ENTRIES.c.idempotency_key.is_not(None)
    ),
)

_PLACE = insert(PLACES).from_select(
    ["session", "sequence", "position"],
    select(ENTRIES.c.session, ENTRIES.c.sequence, ENTRIES.c.position)
    .where(ENTRIES.c.position > bindparam("placed"))
    .order_by(ENTRIES.c.session, ENTRIES.c.sequence),
)
_PLACE_KEYS = (
    insert(KEYS)
    .prefix_with("OR IGNORE", dialect="sqlite")  # the oldest entry keeps the key
    .from_select(
        ["session", "idempotency_key", "sequence"],
        select(ENTRIES.c.session, ENTRIES.c.idempotency_key, ENTRIES.c.sequence)
        .where(ENTRIES.c.position > bindparam("placed"), ENTRIES.c.idempotency_key.is_not(None))
        .order_by(ENTRIES.c.session, ENTRIES.c.sequence),
    )
)
_MISPLACED = (
    select(SESSIONS.c.session_id, func.count())
    .select_from(ENTRIES)
    .join(SESSIONS, SESSIONS.c.id == ENTRIES.c.session)
    .outerjoin(PLACES, and_(PLACES.c.session == ENTRIES.c.session, PLACES.c.sequence == ENTRIES.c.sequence))
    .where(or_(not_(_IN_TAIL), PLACES.c.position.is_not(None)), PLACES.c.position.is_distinct_from(ENTRIES.c.position))
    .group_by(SESSIONS.c.session_id)
)
_ROW_AT = (
    select(PLACES.c.session, PLACES.c.position, PLACES.c.sequence, *_REST)
    .join(ENTRIES, ENTRIES.c.position == PLACES.c.position)
    .where(PLACES.c.session == _ROW_OF, PLACES.c.sequence == bindparam("sequence"))
)
_ORPHANS = (
    select(func.count())
    .select_from(ENTRIES)
    .outerjoin(SESSIONS, SESSIONS.c.id == ENTRIES.c.session)
    .where(SESSIONS.c.id.is_(None))
)
_PLACES_OF_NOTHING = (
    select(func.count())
    .select_from(PLACES)
    .outerjoin(ENTRIES, ENTRIES.c.position == PLACES.c.position)
    .where(ENTRIES.c.position.is_(None))
)
_KEYS_OF_NOTHING = select(
    select(func.count())
    .select_from(ENTRIES)
    .outerjoin(KEYS, and_(KEYS.c.session == ENTRIES.c.session, KEYS.c.idempotency_key == ENTRIES.c.idempotency_key))
    .where(not_(_IN_TAIL), ENTRIES.c.idempotency_key.is_not(None), KEYS.c.sequence.is_(None))
    .scalar_subquery()
    + select(func.count())
    .select_from(KEYS)
    .outerjoin(PLACES, and_(PLACES.c.session == KEYS.c.session, PLACES.c.sequence == KEYS.c.sequence))
    .outerjoin(ENTRIES, ENTRIES.c.position == PLACES.c.position)
    .where(ENTRIES.c.idempotency_key.is_distinct_from(KEYS.c.idempotency_key))
    .scalar_subquery()
)

# --- appending -------------------------------------------------------------------------------------------------------


def append(connection: Connection, appends: Sequence[Append], known: Known) -> list[StoreError | None]:
    """Add the new entries of many sessions to the log, and the sessions that do not exist yet.

    Args:
        connection: in a transaction.
        appends: no session twice.
        known: updated to the state after the commit of this transaction; forget it if that fails.

    Returns:
        The outcome of each append: None, or a `StoreConflict`; then none of its entries was added.
    """
    _look_up(connection, [item.head.session_id for item in appends], known)
    outcomes: list[StoreError | None] = []
    accepted: list[tuple[SessionHead, Sequence[StoredEntry]]] = []
    for item in appends:
        position = known.positions.get(item.head.session_id)
        try:
            new = entries_to_add(
                item,
                incarnation=position.incarnation if position else None,
                last_sequence=position.last_sequence if position else 0,
                ids_between=partial(_ids_between, connection, item.head.session_id),
            )
        except StoreConflict as conflict:
            outcomes.append(conflict)
        else:
            accepted.append((item.head, new))
            outcomes.append(None)
    _create(connection, [head for head, _ in accepted if head.session_id not in known.positions], known)
    values, columns = _rows(accepted, known), len(ENTRIES.columns)
    step = ROWS_PER_INSERT * columns
    for start in range(0, len(values), step):
        chunk = values[start : start + step]
        driver_of(connection).execute(_insert_text(len(chunk) // columns), chunk)
    return outcomes


def _rows(accepted: Sequence[tuple[SessionHead, Sequence[StoredEntry]]], known: Known) -> list[Value]:
    """The values of all new rows, one after the other. Moves the ends of the sessions and of the log in `known`."""
    values: list[Value] = []
    end = known.end or 0
    for head, entries in accepted:
        position = known.positions[head.session_id]
        row = position.row
        for entry in entries:
            end += 1
            key = entry.idempotency_key
            checksum = checksum_of(row, entry.sequence, entry.entry_id, key, entry.encoded)
            values += (end, row, entry.sequence, entry.entry_id, entry.encoded, key, checksum)
        if entries:
            position.last_sequence = entries[-1].sequence
    known.end = end
    return values


def _look_up(connection: Connection, session_ids: Sequence[str], known: Known) -> None:
    """Look up the end of the log and the positions of these sessions, unless they are known; new sessions have none."""
    if known.end is None:
        known.placed, last = connection.execute(_END).one()
        if not isinstance(known.placed, int):
            raise StoreCorrupt("the database does not say how far its index goes; start again")
        known.end = max(known.placed, last or 0)  # a position is never used again
    unknown = [session_id for session_id in session_ids if session_id not in known.positions]
    found: dict[str, Position] = {}
    for start in range(0, len(unknown), PAGE):
        for session_id, *fields in connection.execute(_POSITIONS, {"session_ids": unknown[start : start + PAGE]}):
            found[session_id] = Position(*fields)
    tail = _newest_in_tail(connection) if found else {}
    for position in found.values():
        position.last_sequence = sequence_in(tail.get(position.row, position.last_sequence))
    known.positions.update(found)


def _newest_in_tail(connection: Connection) -> dict[int, int]:
    """The newest sequence of each session with entries in the tail of the log."""
    return dict(connection.execute(_NEWEST_IN_TAIL).all())


def _ids_between(connection: Connection, session_id: str, first: int, last: int) -> dict[int, str]:
    stored = entries_after(connection, session_id, first - 1, last - first + 1)
    return {entry.sequence: entry.entry_id for entry in stored if entry.sequence <= last}


def _create(connection: Connection, heads: Sequence[SessionHead], known: Known) -> None:
    if not heads:
        return
    values = [
        {
            "session_id": head.session_id,
            "channel": head.key.channel,
            "chat_id": head.key.chat_id,
            "incarnation": head.incarnation,
            "created_at": head.created_at,
        }
        for head in heads
    ]
    rows = dict(connection.execute(_NEW_SESSIONS, values).all())
    for head in heads:
        known.positions[head.session_id] = Position(rows[head.session_id], head.incarnation, 0)


@lru_cache(maxsize=2 * ROWS_PER_INSERT)
def _insert_text(rows: int) -> str:
    """The text of an INSERT of this many rows, in the driver's parameter style."""
    statement, values, row = str(insert(ENTRIES).compile(dialect=sqlite.dialect())).partition(" VALUES ")
    return statement + values + ", ".join([row] * rows)


def place(connection: Connection, known: Known) -> None:
    """Bring the index `places` up to the end of the log.

    Raises:
        IntegrityError: the log has two entries of one session with the same sequence; the database is damaged.
    """
    _look_up(connection, (), known)
    if known.unplaced:
        connection.execute(_PLACE, {"placed": known.placed})
        connection.execute(_PLACE_KEYS, {"placed": known.placed})
        connection.execute(update(PLACED).values(up_to=known.end))
        known.placed = known.end or 0


# --- reading ---------------------------------------------------------------------------------------------------------


def heads_after(connection: Connection, session_id: str) -> list[StoredHead]:
    """One page of the sessions whose id is greater, in order of session_id."""
    rows = connection.execute(_HEADS_AFTER, {"after": session_id}).all()
    tail = _newest_in_tail(connection) if rows else {}
    return [_stored_head(row, tail) for row in rows]


def session_ids(connection: Connection) -> list[str]:
    """The ids of all sessions, in order."""
    found = list(connection.execute(_SESSION_IDS).scalars())
    for one in (*found[:1], *found[-1:]):  # what is no text comes before or behind all texts
        id_in(one)
    return found


def heads_of(connection: Connection, session_ids: Sequence[str]) -> list[StoredHead]:
    """Those of these sessions that exist."""
    tail = _newest_in_tail(connection)
    pages = [session_ids[start : start + PAGE] for start in range(0, len(session_ids), PAGE)]
    found = [row for page in pages for row in connection.execute(_HEADS_OF, {"session_ids": page})]
    return [_stored_head(row, tail) for row in found]


def entries_after(connection: Connection, session_id: str, after: int, limit: int | None) -> list[StoredEntry]:
    """The entries after a sequence, oldest first, at most `limit` of them."""
    limit = _NO_LIMIT if limit is None else limit
    rows = connection.execute(_OLDEST_FIRST, {"session_id": session_id, "after": after, "limit": limit}).all()
    return [entry_of_row(*row) for row in rows]


def newest_entries(connection: Connection, session_id: str, limit: int) -> list[StoredEntry]:
    """The newest entries, oldest first."""
    rows = connection.execute(_NEWEST_FIRST, {"session_id": session_id, "after": 0, "limit": limit}).all()
    return [entry_of_row(*row) for row in reversed(rows)]


def entry_with_id(connection: Connection, session_id: str, entry_id: str) -> StoredEntry | None:
    """The entry of a session that has this id, or None."""
    row = connection.execute(_WITH_ID, {"session_id": session_id, "entry_id": entry_id}).one_or_none()
    return None if row is None else entry_of_row(*row)


def entry_with_key(connection: Connection, session_id: str, key: str) -> StoredEntry | None:
    """The oldest entry of a session that has this idempotency key, or None."""
    wanted = {"session_id": session_id, "key": key}
    row = (
        connection.execute(_WITH_KEY, wanted).one_or_none()
        or connection.execute(_WITH_KEY_IN_TAIL, wanted).one_or_none()
    )
    return None if row is None else entry_of_row(*row)


def place_of_key(connection: Connection, session_id: str, key: str) -> int | None:
    """The sequence at which the index has an idempotency key, or None; reads no entry."""
    wanted = {"session_id": session_id, "key": key}
    return connection.execute(_PLACE_OF_KEY, wanted).scalar_one_or_none()


def keys_of(connection: Connection, session_id: str) -> list[str]:
    """All idempotency keys of a session."""
    return list(connection.execute(_KEYS_OF, {"session_id": session_id}).scalars())


def _stored_head(row: Row[int, str, str, str, str, datetime, int], tail: Mapping[int, int]) -> StoredHead:
    number, session_id, channel, chat_id, incarnation, created_at, placed = row
    head = SessionHead(id_in(session_id), SessionKey(str(channel), str(chat_id)), str(incarnation), created_at)
    return StoredHead(head, sequence_in(tail.get(number, placed)))


def look(connection: Connection) -> None:
    """Read once, so that the connection has loaded all that a read needs."""
    connection.exec_driver_sql("SELECT id FROM sessions WHERE session_id = ''").all()


def check_schema(connection: Connection) -> None:
    """Return if the tables have the expected columns.

    Raises:
        StoreCorrupt: a table has other columns.
    """
    for table in METADATA.sorted_tables:
        found = {row[1] for row in connection.exec_driver_sql(f"PRAGMA table_info({table.name})")}
        if found != {column.name for column in table.columns}:
            raise StoreCorrupt(f"the schema is damaged: the table {table.name} has other columns than it was made with")


# --- the rest --------------------------------------------------------------------------------------------------------


def mend(connection: Connection, session_id: str, entry: StoredEntry, known: Known) -> bool:
    """Overwrite the row at the entry's sequence, if it is damaged and was this entry. Returns whether it did."""
    place(connection, known)
    at = {"session_id": session_id, "sequence": entry.sequence}
    found = connection.execute(_ROW_AT, at).one_or_none()
    if found is None:
        return False
    row, position, sequence, entry_id, encoded, key, checksum, session = found
    stored = entry_of_row(sequence, entry_id, encoded, key, checksum, session)
    if not was_entry(entry, stored, checksum, row):
        return False
    checksum = checksum_of(row, entry.sequence, entry.entry_id, entry.idempotency_key, entry.encoded)
    values = {
        "session": row,
        "sequence": entry.sequence,
        "entry_id": entry.entry_id,
        "encoded": entry.encoded,
        "idempotency_key": entry.idempotency_key,
        "checksum": checksum,
    }
    connection.execute(update(ENTRIES).where(ENTRIES.c.position == position).values(values))
    if entry.idempotency_key is not None:
        of_key = {"session": row, "idempotency_key": entry.idempotency_key, "sequence": entry.sequence}
        connection.execute(insert(KEYS).prefix_with("OR IGNORE", dialect="sqlite").values(of_key))
    return True


def delete_session(connection: Connection, session_id: str, known: Known) -> bool:
    """Remove a session and its entries. Returns whether there was one."""
    place(connection, known)  # so its entries are found by the index, and their positions are not used again
    of_session = {"session_id": session_id}
    positions = select(PLACES.c.position).where(PLACES.c.session == _ROW_OF)
    # SQLite moves rows while it deletes, and leaves their old bytes in place: so the content is overwritten before.
    said_nothing = update(ENTRIES).values(encoded=func.zeroblob(func.length(ENTRIES.c.encoded)))
    connection.execute(said_nothing.where(ENTRIES.c.position.in_(positions)), of_session)
    connection.execute(delete(ENTRIES).where(ENTRIES.c.position.in_(positions)), of_session)
    connection.execute(delete(PLACES).where(PLACES.c.session == _ROW_OF), of_session)
    connection.execute(delete(KEYS).where(KEYS.c.session == _ROW_OF), of_session)
    removed = connection.execute(delete(SESSIONS).where(SESSIONS.c.session_id == bindparam("session_id")), of_session)
    known.positions.pop(session_id, None)
    return removed.rowcount > 0


def check_database(connection: Connection) -> list[str]:
    """The problems that SQLite itself finds in its file, and contradictions between the tables."""
    problems = integrity_problems(connection.exec_driver_sql("PRAGMA integrity_check").scalars())
    try:
        problems += _contradictions(connection)
    except (DatabaseError, sqlite3.Error):  # the engine has reported the damage already
        if not problems:
            raise
        connection.rollback()  # SQLite refuses to commit after it met a damaged page
    return problems


def _contradictions(connection: Connection) -> list[str]:
    problems = []
    if count := connection.execute(_ORPHANS).scalar_one():
        problems.append(f"{count} entries belong to no session")
    problems += [
        f"session {session_id}: {count} entries are not where the index has them"
        for session_id, count in connection.execute(_MISPLACED)
    ]
    if count := connection.execute(_KEYS_OF_NOTHING).scalar_one():
        problems.append(f"{count} idempotency keys are not found by the index, or belong to no entry")
    if count := connection.execute(_PLACES_OF_NOTHING).scalar_one():
        problems.append(f"the index has {count} places without an entry")
    return problems
