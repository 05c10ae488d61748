"""The statements that find the changes in a server's database since a point in time.

Their cost depends on the number of changes, not of sessions: a session with new entries is at the end of the index of
`used_at`. A deleted session has no row. So the transaction that deletes it records its incarnation, which does not
identify the chat, as a property whose name begins with the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    Text,
    bindparam,
    cast,
    column,
    delete,
    func,
    literal,
    literal_column,
    null,
    select,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as insert_or_not

from miniclaw_sessions.core.stores.postgresql import statements
from miniclaw_sessions.core.stores.postgresql.tables import PROPERTIES, SESSIONS, USED_RESOLUTION
from miniclaw_sessions.core.stores.shared_store import Changes

KEPT_S = 3600
"""The time for which a deletion is recorded."""

_FORGOTTEN_AT_ONCE = 100

_TEXT = Text()
_BEGUN: ColumnElement[Any] = func.now(type_=statements.TIME)
_FIRST, _LAST = literal_column("'deleted/'", _TEXT), literal_column("'deleted0'", _TEXT)  # what follows the slash


def _name_at(moment: ColumnElement[Any]) -> ColumnElement[str]:
    """The beginning of the name of a deletion at this time; the names sort by time."""
    microseconds = cast(func.extract("epoch", moment) * literal_column("1000000"), BigInteger())
    return _FIRST + func.lpad(cast(microseconds, _TEXT), literal_column("20"), literal_column("'0'"))


def _changes() -> statements.Statement:
    since = cast(bindparam("since", type_=statements.TIME), statements.TIME)
    resolution = literal(USED_RESOLUTION / timedelta(seconds=1), Float()) * statements.SECOND
    changed = select(*statements.HEAD_COLUMNS).where(SESSIONS.c.used_at > since - resolution)
    nothing = {one.name: cast(null(), one.type).label(one.name) for one in changed.selected_columns}
    incarnation = func.split_part(PROPERTIES.c.name, literal_column("'/'"), literal_column("3"), type_=_TEXT)
    deleted = select(*{**nothing, "incarnation": incarnation}.values()).where(
        PROPERTIES.c.name > _name_at(since), PROPERTIES.c.name < _LAST
    )
    at = select(*{**nothing, "created_at": _BEGUN}.values())
    return statements.compiled(union_all(changed, deleted, at))


CHANGES = _changes()
"""A row for each session that was used since, one for each deletion since, and one for the time."""


def changes_of(rows: Iterable[Sequence[Any]]) -> Changes:
    """The changes in rows of `CHANGES`."""
    changed, deleted, times = [], set(), []
    for row in rows:
        session_id, _, _, incarnation, created_at, *_ = row
        if session_id is not None:
            changed.append(statements.stored_head(row))
        elif incarnation is not None:
            deleted.add(incarnation)
        else:
            times.append(created_at)
    return Changes(times[0], changed, deleted)


_GIVEN = func.unnest(bindparam("incarnations", type_=ARRAY(_TEXT))).table_valued(
    column("incarnation", _TEXT), name="given"
)
DELETED = statements.compiled(
    insert_or_not(PROPERTIES)
    .from_select(
        ["name", "value"],
        select(
            _name_at(statements.NOW) + literal_column("'/'", _TEXT) + _GIVEN.render_derived().c.incarnation,
            literal_column("''::bytea"),
        ),
    )
    .on_conflict_do_nothing(index_elements=[PROPERTIES.c.name])
)
"""Record deletions, in the transaction that deletes."""

_OLD = (
    select(PROPERTIES.c.name)
    .where(
        PROPERTIES.c.name > _FIRST,
        PROPERTIES.c.name < _name_at(_BEGUN - literal(float(KEPT_S), Float()) * statements.SECOND),
    )
    .order_by(PROPERTIES.c.name)
    .limit(literal_column(str(_FORGOTTEN_AT_ONCE)))
    .with_for_update(skip_locked=True)  # two deletions do not wait for each other
)
FORGET_DELETED = statements.compiled(delete(PROPERTIES).where(PROPERTIES.c.name.in_(_OLD)))
"""Remove some of the oldest records of deletions."""
