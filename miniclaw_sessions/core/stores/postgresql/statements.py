"""The statements of a server's database, built from its tables and compiled once to the driver's own text.

They use only what Citus, CockroachDB and YugabyteDB support too: no sequence, trigger, advisory lock or notification.
Each condition and each change concerns one session; no statement changes a table twice.

**A group of appends is one statement** (of `GO_ON`), which decides for each session: it locks the session's row, and
changes it if the session still ends where the append begins, its incarnation is the same, the turn allows it, and none
of its idempotency keys is taken. It inserts only the entries of sessions whose row was changed, and returns those
sessions. It skips rows that another process has locked. So a group never waits, no two groups wait for each other, and
a connection that hangs delays only the sessions that it has locked. New sessions take `BEGIN`: of two processes that
insert the same row, one succeeds.

The values of a group are sent as one array for each column, with a row for each entry. Values of a session as a whole
are in its first row, and null in the others. A session without entries has one row, whose columns of entries are null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    DateTime,
    Float,
    LargeBinary,
    Text,
    and_,
    any_,
    bindparam,
    case,
    cast,
    column,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    not_,
    or_,
    select,
    table,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as insert_or_not
from sqlalchemy.dialects.postgresql.asyncpg import dialect as asyncpg_dialect
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement
from sqlalchemy.sql.elements import CompilerElement
from sqlalchemy.types import TypeEngine

from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.base import Append, SessionHead, StoredEntry, StoredHead, StoredTurn
from miniclaw_sessions.core.stores.postgresql.tables import (
    CHECKPOINTS,
    ENTRIES,
    KEYS,
    METADATA,
    SEARCH,
    SEARCHED,
    SESSIONS,
    USED_RESOLUTION,
)
from miniclaw_sessions.core.stores.sql.checksums import checksum_of, entry_of_row

PAGE = 500
"""Sessions that are read in one page."""

NO_LIMIT = 2**62

_DIALECT = asyncpg_dialect()  # type: ignore[no-untyped-call]


class Statement(NamedTuple):
    """The text of a statement for the driver, the names of its parameters in order, and constant parameters."""

    text: str
    names: tuple[str, ...]
    constants: Mapping[str, Any]

    def arguments(self, values: Mapping[str, Any]) -> list[Any]:
        """Its parameters, in order."""
        return [values[name] if name in values else self.constants[name] for name in self.names]


def compiled(statement: CompilerElement) -> Statement:
    """A statement compiled to the driver's text."""
    compiled: Any = statement.compile(dialect=_DIALECT)
    constants = {name: value for name, value in compiled.params.items() if value is not None}
    return Statement(str(compiled), tuple(compiled.positiontup or ()), constants)


def schema() -> list[str]:
    """The statements that create the tables in an empty database."""
    tables = METADATA.sorted_tables
    made = [CreateTable(table) for table in tables]
    indexes = [CreateIndex(index) for table in tables for index in sorted(table.indexes, key=lambda one: str(one.name))]
    statements: list[ExecutableDDLElement] = [*made, *indexes]
    return [str(one.compile(dialect=_DIALECT)) for one in statements]


def expected_columns() -> dict[str, set[str]]:
    """The columns of each table, by its name."""
    return {table.name: {one.name for one in table.columns} for table in METADATA.sorted_tables}


# --- appending -------------------------------------------------------------------------------------------------------

_BIG, _TEXT = BigInteger(), Text()
TIME = DateTime(timezone=True)

_ROWS: dict[str, TypeEngine[Any]] = {
    "session_id": _TEXT,
    "sequence": _BIG,
    "entry_id": _TEXT,
    "encoded": LargeBinary(),
    "checksum": _BIG,
}
_KEYED: dict[str, TypeEngine[Any]] = {**_ROWS, "idempotency_key": _TEXT}
_FIRST: dict[str, TypeEngine[Any]] = {"incarnation": _TEXT, "expected": _BIG, "last": _BIG}
_TURN: dict[str, TypeEngine[Any]] = {"fence": _BIG, "owner": _TEXT, "seconds": Float()}
_WHO: dict[str, TypeEngine[Any]] = {"channel": _TEXT, "chat_id": _TEXT, "created_at": TIME}


def _said(types: Mapping[str, TypeEngine[Any]]) -> CTE:
    """Arrays, each sent to the server as one parameter, as a table."""
    arrays = [bindparam(name, type_=ARRAY(kind)) for name, kind in types.items()]
    columns = [column(name, kind) for name, kind in types.items()]
    unnested = func.unnest(*arrays).table_valued(*columns, name="arrays").render_derived(name="arrays")
    return select(*unnested.c).cte("said")


NOW: ColumnElement[datetime] = func.clock_timestamp(type_=TIME)
SECOND: ColumnElement[timedelta] = literal_column("INTERVAL '1 second'")


def _turn_allows(given: Any) -> ColumnElement[bool]:
    """The append has no claim, or its owner still holds the turn, or the turn is free and the number is higher.

    A turn that was given back is over: a late append must not prolong it, but may give it back once more.
    """
    is_held = or_(SESSIONS.c.turn_until.is_not(None), given.seconds <= 0)
    return or_(
        given.fence.is_(None),
        and_(SESSIONS.c.fence == given.fence, SESSIONS.c.turn_owner == given.owner, is_held),
        and_(SESSIONS.c.fence < given.fence, or_(SESSIONS.c.turn_until.is_(None), SESSIONS.c.turn_until < NOW)),
    )


def _turn_columns(given: Any, *, is_new: bool) -> dict[Any, Any]:
    """The columns of the turn after an append: its own claim, which is given back if it asks for 0 seconds."""
    says_nothing, is_over = given.fence.is_(None), given.seconds <= 0
    before = (0, None, None) if is_new else (SESSIONS.c.fence, SESSIONS.c.turn_owner, SESSIONS.c.turn_until)
    until = NOW + given.seconds * SECOND
    return {
        SESSIONS.c.fence: case((says_nothing, before[0]), else_=given.fence),
        SESSIONS.c.turn_owner: case((says_nothing, before[1]), else_=given.owner),
        SESSIONS.c.turn_until: case((says_nothing, before[2]), (is_over, None), else_=until),
    }


class Keys(Enum):
    """Whether a group has idempotency keys, and what happens with a key that its session has already."""

    NONE = "there are none, and nothing is asked about them"
    NEW = "the append is refused"
    ANY = "the oldest entry with a key keeps it: for copies of what is stored elsewhere"


def _go_on(keys: Keys, *, turns: bool) -> Statement:
    """Append to existing sessions; columns that a group does not need are left out, because each value costs time."""
    claim = _TURN if turns else {}
    said = _said({**(_ROWS if keys is Keys.NONE else _KEYED), **_FIRST, **claim})
    may = [SESSIONS.c.incarnation == said.c.incarnation, SESSIONS.c.last_sequence == said.c.expected]
    if turns:
        may.append(_turn_allows(said.c))
    if keys is Keys.NEW:
        row = said.alias("row")
        is_taken = and_(
            row.c.session_id == SESSIONS.c.session_id,
            KEYS.c.session_id == row.c.session_id,
            KEYS.c.idempotency_key == row.c.idempotency_key,
        )
        may.append(not_(exists().where(is_taken).correlate(SESSIONS)))
    free = (
        select(SESSIONS.c.session_id, *(said.c[name] for name in ("expected", "last", *claim)))
        .join_from(said, SESSIONS, SESSIONS.c.session_id == said.c.session_id)
        .where(*may)
        # a process that only indexes it does not block this
        .with_for_update(of=SESSIONS, key_share=True, skip_locked=True)
        .cte("free")
    )
    used_lately = SESSIONS.c.used_at > NOW - literal(USED_RESOLUTION / timedelta(seconds=1), Float()) * SECOND
    changes: dict[Any, Any] = {
        SESSIONS.c.last_sequence: free.c.last,
        SESSIONS.c.used_at: case((used_lately, SESSIONS.c.used_at), else_=NOW),
        **(_turn_columns(free.c, is_new=False) if turns else {}),
    }
    changed = (
        update(SESSIONS)
        .where(SESSIONS.c.session_id == free.c.session_id, SESSIONS.c.last_sequence == free.c.expected)
        .values(changes)
        .returning(SESSIONS.c.session_id)
        .cte("changed")
    )
    return _with_entries(changed, said, with_keys=keys is not Keys.NONE)


def _claim() -> Statement:
    """Take, prolong and give back turns of existing sessions, at any last sequence."""
    said = _said({"session_id": _TEXT, "incarnation": _TEXT, **_TURN})
    free = (
        select(SESSIONS.c.session_id, *(said.c[name] for name in _TURN))
        .join_from(said, SESSIONS, SESSIONS.c.session_id == said.c.session_id)
        .where(SESSIONS.c.incarnation == said.c.incarnation, _turn_allows(said.c))
        # a process that only indexes it does not block this
        .with_for_update(of=SESSIONS, key_share=True, skip_locked=True)
        .cte("free")
    )
    changed = update(SESSIONS).where(SESSIONS.c.session_id == free.c.session_id)
    return compiled(changed.values(_turn_columns(free.c, is_new=False)).returning(SESSIONS.c.session_id))


def _begin() -> Statement:
    """Append to new sessions; in order of session_id, because here two groups may wait for each other."""
    said = _said({**_KEYED, **_FIRST, **_TURN, **_WHO})
    values = {
        SESSIONS.c.session_id: said.c.session_id,
        SESSIONS.c.channel: said.c.channel,
        SESSIONS.c.chat_id: said.c.chat_id,
        SESSIONS.c.incarnation: said.c.incarnation,
        SESSIONS.c.created_at: said.c.created_at,
        SESSIONS.c.last_sequence: said.c.last,
        SESSIONS.c.used_at: NOW,
        **_turn_columns(said.c, is_new=True),
    }
    of_sessions = select(*values.values()).where(said.c.incarnation.is_not(None)).order_by(said.c.session_id)
    made = (
        insert_or_not(SESSIONS)
        .from_select(list(values), of_sessions)
        .on_conflict_do_nothing(index_elements=[SESSIONS.c.session_id])
        .returning(SESSIONS.c.session_id)
        .cte("changed")
    )
    return _with_entries(made, said, with_keys=True)


def _with_entries(changed: CTE, said: CTE, *, with_keys: bool) -> Statement:
    """Insert the entries of the sessions whose row was changed, and the sequences of their idempotency keys."""
    of_changed = said.join(changed, changed.c.session_id == said.c.session_id)
    names = list(_KEYED if with_keys else _ROWS)
    rows = select(*(said.c[name] for name in names)).select_from(of_changed).where(said.c.entry_id.is_not(None))
    answer = select(changed.c.session_id).add_cte(insert(ENTRIES).from_select(names, rows).cte("added"))
    if not with_keys:
        return compiled(answer)
    where = select(said.c.session_id, said.c.idempotency_key, said.c.sequence).select_from(of_changed)
    keyed = (
        insert_or_not(KEYS)
        .from_select(
            ["session_id", "idempotency_key", "sequence"],
            where.where(said.c.idempotency_key.is_not(None)).order_by(said.c.session_id, said.c.sequence),
        )
        # the oldest entry keeps the key
        .on_conflict_do_nothing(index_elements=[KEYS.c.session_id, KEYS.c.idempotency_key])
        .cte("keyed")
    )
    return compiled(answer.add_cte(keyed))


GO_ON = {(keys, turns): _go_on(keys, turns=turns) for keys in Keys for turns in (False, True)}
"""Appends to existing sessions: by the keys of a group, and whether it has claims of turns."""

CLAIM = _claim()
"""Claims of turns without entries."""

BEGIN = _begin()
"""Appends to new sessions."""


class Part(msgspec.Struct, frozen=True, gc=False):
    """The new entries of an append to one session."""

    append: Append
    entries: Sequence[StoredEntry]
    expected: int

    @property
    def last(self) -> int:
        """The last sequence of the session afterwards."""
        return self.entries[-1].sequence if self.entries else self.expected


def number_of(session_id: str) -> int:
    """A number that binds the checksum of a row to its session."""
    return crc32(session_id.encode())


_COLUMNS = (*_KEYED, *_FIRST, *_TURN, *_WHO)
_NO_ENTRY = (None,) * (len(_KEYED) - 1)
_NO_TURN = (None,) * len(_TURN)
_SAID_ALREADY = (None,) * (len(_COLUMNS) - len(_KEYED))


def values_of(parts: Sequence[Part]) -> dict[str, Sequence[Any]]:
    """The parameters of `BEGIN`, `CLAIM` and `GO_ON`, which use some of them: arrays with a row for each entry.

    A session without new entries has a row without an entry.
    """
    rows: list[tuple[Any, ...]] = []
    for part in parts:
        head, turn, session_id = part.append.head, part.append.turn, part.append.head.session_id
        claim = _NO_TURN if turn is None else (turn.fence, turn.owner, turn.seconds)
        of_session: tuple[Any, ...] = (head.incarnation, part.expected, part.last, *claim, *head.key, head.created_at)
        if not part.entries:
            rows.append((session_id, *_NO_ENTRY, *of_session))
        number = number_of(session_id)
        for one in part.entries:
            key = one.idempotency_key
            checksum = checksum_of(number, one.sequence, one.entry_id, key, one.encoded)
            rows.append((session_id, one.sequence, one.entry_id, one.encoded, checksum, key, *of_session))
            of_session = _SAID_ALREADY
    return dict(zip(_COLUMNS, zip(*rows, strict=True), strict=True))


# --- reading ---------------------------------------------------------------------------------------------------------

_SESSION_ID = bindparam("session_id", type_=_TEXT)
_LIMIT = bindparam("limit", type_=_BIG)
_IS_OF_SESSION = ENTRIES.c.session_id == _SESSION_ID

HEAD_COLUMNS = (
    SESSIONS.c.session_id,
    SESSIONS.c.channel,
    SESSIONS.c.chat_id,
    SESSIONS.c.incarnation,
    SESSIONS.c.created_at,
    SESSIONS.c.last_sequence,
    SESSIONS.c.fence,
    SESSIONS.c.turn_owner,
    func.coalesce(SESSIONS.c.turn_until < NOW, literal_column("TRUE")).label("is_over"),
)
"""The columns for `stored_head`."""

_HEADS = select(*HEAD_COLUMNS)
VERSIONS = compiled(_HEADS.where(SESSIONS.c.session_id == any_(bindparam("session_ids", type_=ARRAY(_TEXT)))))
_HEAD = _HEADS.where(SESSIONS.c.session_id == _SESSION_ID)
LOCKED_HEAD = compiled(_HEAD.with_for_update(key_share=True))
LOCKED_HEAD_NOW = compiled(_HEAD.with_for_update(key_share=True, nowait=True))
LOCKED_FOR_DELETION = compiled(_HEAD.with_for_update())
HEADS_AFTER = compiled(
    _HEADS.where(SESSIONS.c.session_id > bindparam("after", type_=_TEXT)).order_by(SESSIONS.c.session_id).limit(PAGE)
)
SESSION_IDS = compiled(select(SESSIONS.c.session_id).order_by(SESSIONS.c.session_id))

_READ = select(
    ENTRIES.c.sequence, ENTRIES.c.entry_id, ENTRIES.c.encoded, ENTRIES.c.idempotency_key, ENTRIES.c.checksum
).where(_IS_OF_SESSION)
OLDEST_FIRST = compiled(
    _READ.where(ENTRIES.c.sequence > bindparam("after", type_=_BIG)).order_by(ENTRIES.c.sequence).limit(_LIMIT)
)
NEWEST_FIRST = compiled(_READ.order_by(ENTRIES.c.sequence.desc()).limit(_LIMIT))
WITH_ID = compiled(
    _READ.where(ENTRIES.c.entry_id == bindparam("entry_id", type_=_TEXT)).order_by(ENTRIES.c.sequence).limit(1)
)
WITH_KEY = compiled(
    _READ.join(KEYS, and_(KEYS.c.session_id == ENTRIES.c.session_id, KEYS.c.sequence == ENTRIES.c.sequence)).where(
        KEYS.c.session_id == _SESSION_ID, KEYS.c.idempotency_key == bindparam("key", type_=_TEXT)
    )
)
IDS_BETWEEN = compiled(
    select(ENTRIES.c.sequence, ENTRIES.c.entry_id).where(
        _IS_OF_SESSION,
        ENTRIES.c.sequence.between(bindparam("first", type_=_BIG), bindparam("last", type_=_BIG)),
    )
)

# --- the rest --------------------------------------------------------------------------------------------------------

MEND = compiled(
    update(ENTRIES)
    .where(_IS_OF_SESSION, ENTRIES.c.sequence == bindparam("at", type_=_BIG))
    .values(
        entry_id=bindparam("entry_id", type_=_TEXT),
        encoded=bindparam("encoded", type_=LargeBinary()),
        idempotency_key=bindparam("key", type_=_TEXT),
        checksum=bindparam("checksum", type_=_BIG),
    )
)
OF_SESSION = (
    *(SEARCHED, SEARCH),
    *(ENTRIES, KEYS, CHECKPOINTS, SESSIONS),
)
"""The tables with rows of a session. Indexing locks the row of the first: a deletion waits for it."""

DELETE = tuple(compiled(delete(table).where(table.c.session_id == _SESSION_ID)) for table in OF_SESSION)
"""Delete all rows of a session, its row of `sessions` last, while that is locked."""

_ENDS = (
    select(ENTRIES.c.session_id, func.max(ENTRIES.c.sequence).label("last"), func.count().label("entries"))
    .group_by(ENTRIES.c.session_id)
    .subquery("ends")
)
ORPHANS = compiled(
    select(_ENDS.c.session_id, _ENDS.c.entries)
    .outerjoin(SESSIONS, SESSIONS.c.session_id == _ENDS.c.session_id)
    .where(SESSIONS.c.session_id.is_(None))
    .order_by(_ENDS.c.session_id)
)
WRONG_ENDS = compiled(
    select(SESSIONS.c.session_id, SESSIONS.c.last_sequence, func.coalesce(_ENDS.c.last, 0))
    .outerjoin(_ENDS, SESSIONS.c.session_id == _ENDS.c.session_id)
    .where(SESSIONS.c.last_sequence != func.coalesce(_ENDS.c.last, 0))
    .order_by(SESSIONS.c.session_id)
)
WRONG_KEYS = compiled(
    select(func.count())
    .select_from(KEYS)
    .outerjoin(ENTRIES, and_(ENTRIES.c.session_id == KEYS.c.session_id, ENTRIES.c.sequence == KEYS.c.sequence))
    .where(ENTRIES.c.idempotency_key.is_distinct_from(KEYS.c.idempotency_key))
)
_CLASS = table("pg_class", *(column(one) for one in ("oid", "relname", "relkind", "relnamespace")))
_COLUMN = table("pg_attribute", *(column(one) for one in ("attrelid", "attname", "attnum", "attisdropped")))
_SCHEMA = table("pg_namespace", *(column(one) for one in ("oid", "nspname")))
COLUMNS = compiled(
    select(cast(_CLASS.c.relname, _TEXT), cast(_COLUMN.c.attname, _TEXT))
    .select_from(
        _CLASS.join(_SCHEMA, _SCHEMA.c.oid == _CLASS.c.relnamespace).join(_COLUMN, _COLUMN.c.attrelid == _CLASS.c.oid)
    )
    .where(
        _SCHEMA.c.nspname == func.current_schema(),
        _CLASS.c.relkind.in_([literal_column("'r'"), literal_column("'p'")]),
        _COLUMN.c.attnum > literal_column("0"),
        not_(_COLUMN.c.attisdropped),
    )
)
"""The existing tables and their columns, including those that our role may not use."""


def stored_head(row: Sequence[Any]) -> StoredHead:
    """A session, from a row of `HEAD` or `HEADS_AFTER`."""
    session_id, channel, chat_id, incarnation, created_at, last, fence, owner, is_over = row
    turn = None if owner is None else StoredTurn(fence, owner, is_over)
    return StoredHead(SessionHead(session_id, SessionKey(channel, chat_id), incarnation, created_at), last, turn)


def stored_entries(session_id: str, rows: Iterable[Sequence[Any]]) -> list[StoredEntry]:
    """A session's entries, from rows of any of the statements that read them."""
    number = number_of(session_id)
    return [
        entry_of_row(sequence, entry_id, encoded, key, checksum, number)
        for sequence, entry_id, encoded, key, checksum in rows
    ]
