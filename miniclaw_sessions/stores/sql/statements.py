"""What happens inside a transaction, as plain functions over a SQLAlchemy connection.

They begin and commit nothing: the store does, and so the same functions serve every engine, synchronous or not. Appends
go to the driver as they are, with a text that is compiled once from the model; everything rarer uses SQLAlchemy's Core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from sqlalchemy import Connection, Dialect, Row, Select, bindparam, delete, func, insert, select

from miniclaw_sessions.errors import StoreConflict, StoreError
from miniclaw_sessions.protocol.keys import SessionKey
from miniclaw_sessions.stores.appending import entries_to_add
from miniclaw_sessions.stores.base import Append, SessionHead, StoredEntry, StoredHead
from miniclaw_sessions.stores.soundness import TranscriptCheck
from miniclaw_sessions.stores.sql.models import EntryRow, SessionRow

PAGE = 500
"""Rows that are read, or named in one statement, at a time."""


class Position(NamedTuple):
    """Where a session stands in the database: its row, whose it is, and the sequence of its newest entry."""

    row: int
    incarnation: str
    last_sequence: int


class Appended(NamedTuple):
    """What an append did: one outcome per session, and where those sessions stand once it is committed."""

    outcomes: list[StoreError | None]
    positions: dict[str, Position]


_ROW_OF = select(SessionRow.id).where(SessionRow.session_id == bindparam("session_id")).scalar_subquery()
_NEWEST = (
    select(func.coalesce(func.max(EntryRow.sequence), 0)).where(EntryRow.session == SessionRow.id).scalar_subquery()
)
_HEADS: Select[str, str, str, str, datetime, int] = select(
    SessionRow.session_id,
    SessionRow.channel,
    SessionRow.chat_id,
    SessionRow.incarnation,
    SessionRow.created_at,
    _NEWEST,
)
_HEAD = _HEADS.where(SessionRow.session_id == bindparam("session_id"))
_HEADS_AFTER = _HEADS.where(SessionRow.session_id > bindparam("after")).order_by(SessionRow.session_id).limit(PAGE)
_POSITIONS = select(SessionRow.session_id, SessionRow.id, SessionRow.incarnation, _NEWEST).where(
    SessionRow.session_id.in_(bindparam("session_ids", expanding=True))
)
_ENTRIES = select(EntryRow.sequence, EntryRow.entry_id, EntryRow.encoded).where(EntryRow.session == _ROW_OF)
_ENTRIES_AFTER = _ENTRIES.where(EntryRow.sequence > bindparam("after")).order_by(EntryRow.sequence)
_ENTRIES_PAGE = _ENTRIES_AFTER.limit(bindparam("limit"))
_NEWEST_ENTRIES = _ENTRIES.order_by(EntryRow.sequence.desc()).limit(bindparam("limit"))
_IDS_BETWEEN = select(EntryRow.sequence, EntryRow.entry_id).where(
    EntryRow.session == bindparam("row"), EntryRow.sequence.between(bindparam("first"), bindparam("last"))
)
_NEW_SESSIONS = insert(SessionRow).returning(SessionRow.session_id, SessionRow.id)


# --- appending -------------------------------------------------------------------------------------------------------


def append(connection: Connection, appends: Sequence[Append], known: Mapping[str, Position]) -> Appended:
    """Insert the new entries of many sessions, and the sessions that do not exist yet.

    Args:
        connection: in a transaction.
        appends: no session twice.
        known: where sessions stand, as far as it is known; the others are looked up. If it is wrong, the database
            raises an integrity error, and the same call with nothing known does right.

    Returns:
        A `StoreConflict` for each session whose entries contradict what is stored; nothing of it was inserted.
    """
    positions = _positions(connection, appends, known)
    outcomes: list[StoreError | None] = []
    accepted: list[tuple[SessionHead, Sequence[StoredEntry]]] = []
    for item in appends:
        try:
            accepted.append((item.head, _new_entries(connection, item, positions.get(item.head.session_id))))
            outcomes.append(None)
        except StoreConflict as conflict:
            outcomes.append(conflict)
    positions.update(_create(connection, [head for head, _ in accepted if head.session_id not in positions]))
    rows: list[tuple[int, int, str, bytes]] = []
    for head, entries in accepted:
        row, incarnation, last_sequence = positions[head.session_id]
        for entry in entries:
            last_sequence = entry.sequence
            rows.append((row, last_sequence, entry.entry_id, entry.encoded))
        positions[head.session_id] = Position(row, incarnation, last_sequence)
    if rows:
        connection.exec_driver_sql(_insert_entries(connection.dialect), rows)
    return Appended(outcomes, positions)


def _positions(connection: Connection, appends: Sequence[Append], known: Mapping[str, Position]) -> dict[str, Position]:
    """Where the sessions of these appends stand; those that do not exist are left out."""
    positions: dict[str, Position] = {}
    unknown: list[str] = []
    for item in appends:
        session_id = item.head.session_id
        if (position := known.get(session_id)) is not None:
            positions[session_id] = position
        else:
            unknown.append(session_id)
    for start in range(0, len(unknown), PAGE):
        for session_id, *fields in connection.execute(_POSITIONS, {"session_ids": unknown[start : start + PAGE]}):
            positions[session_id] = Position(*fields)
    return positions


def _new_entries(connection: Connection, item: Append, position: Position | None) -> Sequence[StoredEntry]:
    row, incarnation, last_sequence = position or (None, None, 0)

    def ids_between(first: int, last: int) -> dict[int, str]:
        return dict(connection.execute(_IDS_BETWEEN, {"row": row, "first": first, "last": last}).all())

    return entries_to_add(item, incarnation=incarnation, last_sequence=last_sequence, ids_between=ids_between)


def _create(connection: Connection, heads: Sequence[SessionHead]) -> dict[str, Position]:
    if not heads:
        return {}
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
    return {head.session_id: Position(rows[head.session_id], head.incarnation, 0) for head in heads}


@lru_cache(maxsize=4)
def _insert_entries(dialect: Dialect) -> str:
    """The text in the driver's own style: running it directly saves several microseconds per row."""
    return str(insert(EntryRow).compile(dialect=dialect))


# --- reading ---------------------------------------------------------------------------------------------------------


def heads_after(connection: Connection, session_id: str) -> list[StoredHead]:
    """One page of the sessions whose id is greater, in order of session_id."""
    return [_stored_head(row) for row in connection.execute(_HEADS_AFTER, {"after": session_id})]


def head(connection: Connection, session_id: str) -> StoredHead | None:
    """One session, or None."""
    row = connection.execute(_HEAD, {"session_id": session_id}).one_or_none()
    return None if row is None else _stored_head(row)


def entries_after(connection: Connection, session_id: str, after: int, limit: int | None) -> list[StoredEntry]:
    """The entries after a sequence, oldest first, at most `limit` of them."""
    parameters: dict[str, str | int] = {"session_id": session_id, "after": after}
    if limit is None:
        return [StoredEntry(*row) for row in connection.execute(_ENTRIES_AFTER, parameters)]
    return [StoredEntry(*row) for row in connection.execute(_ENTRIES_PAGE, {**parameters, "limit": limit})]


def newest_entries(connection: Connection, session_id: str, limit: int) -> list[StoredEntry]:
    """The newest entries, oldest first."""
    rows = connection.execute(_NEWEST_ENTRIES, {"session_id": session_id, "limit": limit}).all()
    return [StoredEntry(*row) for row in reversed(rows)]


def _stored_head(row: Row[str, str, str, str, datetime, int]) -> StoredHead:
    session_id, channel, chat_id, incarnation, created_at, last_sequence = row
    return StoredHead(SessionHead(session_id, SessionKey(channel, chat_id), incarnation, created_at), last_sequence)


# --- the rest --------------------------------------------------------------------------------------------------------


def delete_session(connection: Connection, session_id: str) -> bool:
    """Remove a session and its entries; whether there was one."""
    connection.execute(delete(EntryRow).where(EntryRow.session == _ROW_OF), {"session_id": session_id})
    removed = connection.execute(
        delete(SessionRow).where(SessionRow.session_id == bindparam("session_id")), {"session_id": session_id}
    )
    return removed.rowcount > 0


def check_database(connection: Connection) -> list[str]:
    """What the engine itself finds wrong with its file: pages, indexes, entries without a session (SQLite only)."""
    rows = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
    orphans = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    problems = [f"the database is damaged: {text}" for text in rows if text != "ok"]
    return [*problems, *(f"row {row[1]} of {row[0]} belongs to no row of {row[2]}" for row in orphans)]


def check_session(connection: Connection, stored: StoredHead) -> list[str]:
    """What is wrong with one session: its name, and its entries one after the other."""
    session_id = stored.head.session_id
    check = TranscriptCheck(session_id)
    after = 0
    while page := entries_after(connection, session_id, after, PAGE):
        for entry in page:
            check.feed(entry)
        after = page[-1].sequence
    if stored.head.key.session_id != session_id:
        return [f"session {session_id}: its channel and chat id make {stored.head.key.session_id}", *check.problems]
    return check.problems
