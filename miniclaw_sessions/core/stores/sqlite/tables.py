"""The tables of a file of ours, which one process writes.

A row of `sessions` never changes. `entries` is a log: rows are added at its end in the order of commit, whichever
sessions they belong to, so a group of any number of sessions fills a few pages and touches no other. An index by
session would be touched in as many places as the group has sessions, and cost more than the rest of the commit.

So the index, `places`, lags behind: the single row of `placed` has the position up to which it goes. The tail of the
log behind that position is added to it sorted and in bulk (`statements.place`); until then readers scan the tail, which
is kept short. Log and index change together in one transaction, a session's entries ascend along the log in `sequence`
and in `position`, and no position is used twice. There is no foreign key from an entry to its session: without an
index, deleting a session would search the whole log. `check` looks for such contradictions.
"""

from __future__ import annotations

from sqlalchemy import Column, MetaData, Named, Table, Text, TypedColumns

from miniclaw_sessions.core.stores.sql.columns import BIG_INTEGER, CONSTRAINT_NAMES, Identity, Said

METADATA = MetaData(naming_convention=CONSTRAINT_NAMES)


class _Numbered(TypedColumns):
    id: Named[int] = Column(BIG_INTEGER, primary_key=True)
    session_id: Named[str] = Column(Text, unique=True)


class _Session(Identity, _Numbered):
    """Columns come in the order of the classes from last to first."""


class _Logged(TypedColumns):
    position: Named[int] = Column(BIG_INTEGER, primary_key=True, autoincrement=False)
    session: Named[int] = Column(BIG_INTEGER)
    sequence: Named[int] = Column(BIG_INTEGER)


class _Entry(Said, _Logged):
    """In the same order."""


class _Place(TypedColumns):
    session: Named[int] = Column(BIG_INTEGER, primary_key=True, autoincrement=False)
    sequence: Named[int] = Column(BIG_INTEGER, primary_key=True, autoincrement=False)
    position: Named[int] = Column(BIG_INTEGER)


class _Key(TypedColumns):
    session: Named[int] = Column(BIG_INTEGER, primary_key=True, autoincrement=False)
    idempotency_key: Named[str] = Column(Text, primary_key=True)
    sequence: Named[int] = Column(BIG_INTEGER)


class _Placed(TypedColumns):
    up_to: Named[int] = Column(BIG_INTEGER, primary_key=True, autoincrement=False)


SESSIONS = Table("sessions", METADATA, _Session, sqlite_autoincrement=True)
"""The identities of the sessions. Numbers of deleted sessions are not used again."""

ENTRIES = Table("entries", METADATA, _Entry)
"""All entries, each at its position in the log."""

PLACES = Table("places", METADATA, _Place, sqlite_with_rowid=False)
"""The position in the log of each entry of a session."""

KEYS = Table("idempotency_keys", METADATA, _Key, sqlite_with_rowid=False)
"""The sequence of the oldest entry with each idempotency key; filled together with `PLACES`."""

PLACED = Table("placed", METADATA, _Placed)
"""The single row with the position up to which the log is in `PLACES`."""
