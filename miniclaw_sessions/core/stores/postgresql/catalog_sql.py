"""The statements of `catalog`: lists, checkpoints, expiry, the archive, and properties.

As in `statements`, each condition and each change concerns one session, rows are locked in order of session_id, and no
statement changes a table twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    LargeBinary,
    Text,
    all_,
    and_,
    any_,
    bindparam,
    cast,
    column,
    delete,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    true,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as insert_or_not
from sqlalchemy.types import TypeEngine

from miniclaw_sessions.core.stores.base import Checkpoint, StoredSession
from miniclaw_sessions.core.stores.postgresql import statements
from miniclaw_sessions.core.stores.postgresql.tables import ARCHIVE, CHECKPOINTS, ENTRIES, PROPERTIES, SESSIONS
from miniclaw_sessions.core.stores.shared_store import Use

_BIG, _TEXT, _BYTES, _TIME = BigInteger(), Text(), LargeBinary(), statements.TIME
_NOW, _SECOND = statements.NOW, statements.SECOND
_BEGUN: ColumnElement[datetime] = func.now(type_=_TIME)
"""The time at which the transaction began: the same for all rows, so that an index can be used."""

_LIMIT = bindparam("limit", type_=_BIG)
_ID = bindparam("session_id", type_=_TEXT)
_IDS = bindparam("session_ids", type_=ARRAY(_TEXT))

# --- loading ---------------------------------------------------------------------------------------------------------

_HEAD = ("channel", "chat_id", "incarnation", "created_at", "last_sequence", "fence", "turn_owner", "is_over")


def _load() -> statements.Statement:
    """A row for each session, with its checkpoint, and a row for each of the first entries behind it."""
    known = (
        select(
            *statements.HEAD_COLUMNS,
            SESSIONS.c.used_at,
            func.coalesce(CHECKPOINTS.c.sequence, 0).label("sequence"),
            CHECKPOINTS.c.encoded,
            CHECKPOINTS.c.checksum,
        )
        .outerjoin(
            CHECKPOINTS,
            and_(
                CHECKPOINTS.c.session_id == SESSIONS.c.session_id, CHECKPOINTS.c.incarnation == SESSIONS.c.incarnation
            ),
        )
        .where(SESSIONS.c.session_id == any_(_IDS))
        .cte("known")
    )
    behind = (
        select(ENTRIES.c.sequence, ENTRIES.c.entry_id, ENTRIES.c.encoded, ENTRIES.c.idempotency_key, ENTRIES.c.checksum)
        .where(ENTRIES.c.session_id == known.c.session_id, ENTRIES.c.sequence > known.c.sequence)
        .order_by(ENTRIES.c.sequence)
        .limit(_LIMIT)
        .lateral("behind")
    )
    head = [known.c[name] for name in (*_HEAD, "used_at")]
    nothing = [cast(null(), one.type).label(one.name) for one in head]
    no_text = cast(null(), _TEXT)
    sessions = select(
        known.c.session_id,
        known.c.sequence,
        no_text.label("entry_id"),
        known.c.encoded,
        no_text.label("idempotency_key"),
        known.c.checksum,
        *head,
    )
    entries = select(known.c.session_id, *behind.c, *nothing).select_from(known.join(behind, true()))
    both = union_all(sessions, entries).subquery("both")
    return statements.compiled(select(both).order_by(both.c.session_id, both.c.entry_id.is_not(None), both.c.sequence))


LOAD = _load()


def stored_sessions(rows: Iterable[Sequence[Any]]) -> list[StoredSession]:
    """The sessions in rows of `LOAD`; without a sound checkpoint a session has no entries either."""
    found: list[tuple[Sequence[Any], list[Sequence[Any]]]] = []
    for row in rows:
        if row[2] is None:  # the row of the session: each entry has an id
            found.append((row, []))
        else:
            found[-1][1].append(row[1:6])
    sessions = []
    for (session_id, sequence, _, encoded, _, checksum, *head, used_at), entries in found:
        stored = statements.stored_head([session_id, *head])
        checkpoint = None if checksum is None else Checkpoint(session_id, stored.head.incarnation, sequence, encoded)
        if checkpoint is not None and (checkpoint_checksum(checkpoint) != checksum or sequence > stored.last_sequence):
            sessions.append(StoredSession(stored, used_at))
        else:
            behind = statements.stored_entries(session_id, entries)
            sessions.append(StoredSession(stored, used_at, checkpoint, behind))
    return sessions


# --- checkpoints, and when a session was used ------------------------------------------------------------------------

_USE: dict[str, TypeEngine[Any]] = {"session_id": _TEXT, "incarnation": _TEXT, "used_s": Float()}
_STATE: dict[str, TypeEngine[Any]] = {"sequence": _BIG, "encoded": _BYTES, "checksum": _BIG}


def _checkpointing(*, with_state: bool, backwards: bool = False) -> statements.Statement:
    # arrays, each sent to the server as one parameter, as a table
    types = {**_USE, **(_STATE if with_state else {})}
    arrays = [bindparam(f"given_{name}", type_=ARRAY(kind)) for name, kind in types.items()]
    columns = [column(name, kind) for name, kind in types.items()]
    given = func.unnest(*arrays).table_valued(*columns, name="given").render_derived(name="given")
    held = (
        select(SESSIONS.c.session_id, *(one for one in given.c if one.name != "session_id"))
        .join_from(
            given,
            SESSIONS,
            and_(SESSIONS.c.session_id == given.c.session_id, SESSIONS.c.incarnation == given.c.incarnation),
        )
        .order_by(SESSIONS.c.session_id)
        .with_for_update(of=SESSIONS, key_share=True)  # a deletion waits, or is done
        .cte("held")
    )
    used_at = _NOW - held.c.used_s * _SECOND
    used = (
        update(SESSIONS)
        .where(SESSIONS.c.session_id == held.c.session_id, true() if backwards else SESSIONS.c.used_at < used_at)
        .values({SESSIONS.c.used_at: used_at})
        .returning(SESSIONS.c.session_id)
        .cte("used")
    )
    answer = select(held.c.session_id).add_cte(used)
    if with_state:
        names = ("session_id", "incarnation", *_STATE)
        kept = insert_or_not(CHECKPOINTS).from_select(list(names), select(*(held.c[name] for name in names)))
        changes = {name: kept.excluded[name] for name in names[1:]}
        is_further = or_(
            CHECKPOINTS.c.incarnation != kept.excluded.incarnation, CHECKPOINTS.c.sequence <= kept.excluded.sequence
        )
        kept = kept.on_conflict_do_update(index_elements=[CHECKPOINTS.c.session_id], set_=changes, where=is_further)
        answer = answer.add_cte(kept.cte("kept"))
    return statements.compiled(answer)


WRITE_CHECKPOINTS = _checkpointing(with_state=True)
"""Write checkpoints of existing sessions that go further than the stored ones."""

USED = {backwards: _checkpointing(with_state=False, backwards=backwards) for backwards in (False, True)}
"""Record uses of sessions; with `backwards` also over a later time."""

READ_CHECKPOINTS = statements.compiled(
    select(
        CHECKPOINTS.c.session_id,
        CHECKPOINTS.c.incarnation,
        CHECKPOINTS.c.sequence,
        CHECKPOINTS.c.encoded,
        CHECKPOINTS.c.checksum,
    )
    .where(CHECKPOINTS.c.session_id == any_(_IDS))
    .order_by(CHECKPOINTS.c.session_id)
)


def values_of_uses(uses: Sequence[Use]) -> dict[str, Any]:
    """The parameters of `USED`."""
    return {
        "given_session_id": [one.session_id for one in uses],
        "given_incarnation": [one.incarnation for one in uses],
        "given_used_s": [one.used_s for one in uses],
    }


def values_of_checkpoints(checkpoints: Sequence[Checkpoint]) -> dict[str, Any]:
    """The parameters of `WRITE_CHECKPOINTS`."""
    return {
        **values_of_uses([Use(one.session_id, one.incarnation, one.used_s) for one in checkpoints]),
        "given_sequence": [one.sequence for one in checkpoints],
        "given_encoded": [one.encoded for one in checkpoints],
        "given_checksum": [checkpoint_checksum(one) for one in checkpoints],
    }


def checkpoint_checksum(checkpoint: Checkpoint) -> int:
    """A checksum that binds a checkpoint's bytes to its session and sequence."""
    place = f"{checkpoint.session_id} {checkpoint.incarnation} {checkpoint.sequence} "
    return crc32(checkpoint.encoded, crc32(place.encode()))


def sound_checkpoints(rows: Iterable[Sequence[Any]]) -> list[Checkpoint]:
    """The checkpoints in rows of `READ_CHECKPOINTS`, without those that contradict their checksums."""
    found = [(Checkpoint(*columns), checksum) for *columns, checksum in rows]
    return [one for one, checksum in found if checkpoint_checksum(one) == checksum]


# --- lists -----------------------------------------------------------------------------------------------------------

COUNT = statements.compiled(select(func.count()).select_from(SESSIONS))

_CHANNEL, _PATTERN = bindparam("channel", type_=_TEXT), bindparam("pattern", type_=_TEXT)
NEWEST = statements.compiled(
    select(SESSIONS.c.used_at, SESSIONS.c.session_id)
    .where(
        or_(_CHANNEL.is_(None), SESSIONS.c.channel == _CHANNEL),
        or_(literal_column("'%'") == _PATTERN, func.lower(SESSIONS.c.session_id).like(_PATTERN)),
        tuple_(SESSIONS.c.used_at, SESSIONS.c.session_id)
        < tuple_(bindparam("used_at", type_=_TIME), bindparam("behind", type_=_TEXT)),
    )
    .order_by(SESSIONS.c.used_at.desc(), SESSIONS.c.session_id.desc())
    .limit(_LIMIT)
)

CLOCK = statements.compiled(select(_NOW))

# --- expiry ----------------------------------------------------------------------------------------------------------

_IS_IDLE = and_(
    SESSIONS.c.used_at < _BEGUN - bindparam("idle_s", type_=Float()) * _SECOND,
    or_(SESSIONS.c.turn_until.is_(None), SESSIONS.c.turn_until < _BEGUN),
)
IDLE = statements.compiled(
    select(SESSIONS.c.session_id)
    .where(
        _IS_IDLE,
        or_(_CHANNEL.is_(None), SESSIONS.c.channel == _CHANNEL),
        SESSIONS.c.channel != all_(bindparam("but_channels", type_=ARRAY(_TEXT))),
    )
    .order_by(SESSIONS.c.used_at)
    .limit(_LIMIT)
)

LOCKED_IDLE_HEADS = statements.compiled(
    select(*statements.HEAD_COLUMNS)
    .where(SESSIONS.c.session_id == any_(_IDS), _IS_IDLE)
    .order_by(SESSIONS.c.session_id)
    .with_for_update(skip_locked=True)
)
"""The idle ones of some sessions, without those that another process is removing; locks their rows."""

SIZES = statements.compiled(
    select(ENTRIES.c.session_id, cast(func.sum(func.octet_length(ENTRIES.c.encoded)), _BIG))
    .where(ENTRIES.c.session_id == any_(_IDS))
    .group_by(ENTRIES.c.session_id)
)
"""The bytes of the entries of sessions."""

DELETE_MANY = tuple(
    statements.compiled(delete(table).where(table.c.session_id == any_(_IDS))) for table in statements.OF_SESSION
)
"""Delete all rows of sessions, while their rows of `sessions` are locked."""

# --- the archive, and what is true of all of it ----------------------------------------------------------------------

_NAME, _NAMES = bindparam("name", type_=_TEXT), bindparam("names", type_=ARRAY(_TEXT))
_PIECE = bindparam("piece", type_=_BIG)

ARCHIVED = statements.compiled(
    select(ARCHIVE.c.name)
    .where(ARCHIVE.c.piece == literal_column("0"), or_(_ID.is_(None), ARCHIVE.c.session_id == _ID))
    .order_by(ARCHIVE.c.name)
)
WRITE_ARCHIVED = statements.compiled(
    insert(ARCHIVE).values(session_id=_ID, name=_NAME, piece=_PIECE, encoded=bindparam("encoded", type_=_BYTES))
)
READ_ARCHIVED = statements.compiled(
    select(ARCHIVE.c.encoded).where(ARCHIVE.c.session_id == _ID, ARCHIVE.c.name == _NAME, ARCHIVE.c.piece == _PIECE)
)
DELETE_ARCHIVED = statements.compiled(
    delete(ARCHIVE)
    .where(ARCHIVE.c.session_id == _ID, or_(_NAMES.is_(None), ARCHIVE.c.name == any_(_NAMES)))
    .returning(ARCHIVE.c.name)
)

_VALUE = bindparam("value", type_=_BYTES)
PROPERTY_NAMES = statements.compiled(
    select(PROPERTIES.c.name).where(PROPERTIES.c.name.startswith(_NAME)).order_by(PROPERTIES.c.name)
)
READ_PROPERTY = statements.compiled(select(PROPERTIES.c.value).where(PROPERTIES.c.name == _NAME))


_NEW = insert_or_not(PROPERTIES).values(name=_NAME, value=_VALUE)
WRITE_PROPERTY = {
    False: statements.compiled(_NEW.on_conflict_do_nothing(index_elements=[PROPERTIES.c.name])),
    True: statements.compiled(
        _NEW.on_conflict_do_update(index_elements=[PROPERTIES.c.name], set_={"value": _NEW.excluded.value})
    ),
}
"""Set a property; by whether an existing one is replaced."""

LAST = datetime.max.replace(tzinfo=UTC)
"""The time before the first page of the list: each session was used earlier."""
