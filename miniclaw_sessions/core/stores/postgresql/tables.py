"""The tables of a server's database, which any number of processes write.

Every key begins with `session_id`, so that nothing is shared between two sessions, no sequence is global, and the
tables can be distributed by its hash. A row of `sessions` has the end of its session, and is where two writers collide.
Each append changes it in place; `used_at` has an index, and changes at most once in `USED_RESOLUTION`.
`stores.base.TurnClaim` describes the columns of turns.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Column, Index, Integer, LargeBinary, MetaData, Named, Table, Text, TypedColumns
from sqlalchemy.dialects.postgresql import ARRAY

from miniclaw_sessions.core.stores.sql.columns import BIG_INTEGER, CONSTRAINT_NAMES, Identity, Said, UtcDateTime

USED_RESOLUTION = timedelta(seconds=5)
"""The resolution of `used_at` in appends; each checkpoint writes the exact time.

A poll for changes reads the index of `used_at` this much further back: with an hour, three polls a second would read
all sessions of that hour. With a shorter time, more appends touch that index."""

METADATA = MetaData(naming_convention=CONSTRAINT_NAMES)

_ID = Text(collation="C")
"""Compared byte by byte, as Python compares the text's code points, in any language of the database."""


class _OfSession(TypedColumns):
    session_id: Named[str] = Column(_ID, primary_key=True)


class _AtSequence(_OfSession):
    sequence: Named[int] = Column(BIG_INTEGER, primary_key=True, autoincrement=False)


class _Answered(_OfSession):
    last_sequence: Named[int] = Column(BIG_INTEGER)
    used_at: Named[datetime] = Column(UtcDateTime)
    fence: Named[int] = Column(BIG_INTEGER)
    turn_owner: Named[str | None] = Column(Text)
    turn_until: Named[datetime | None] = Column(UtcDateTime)


class _Session(Identity, _Answered):
    """Columns come in the order of the classes from last to first."""


class _Entry(Said, _AtSequence):
    """In the same order."""


class _Key(_OfSession):
    idempotency_key: Named[str] = Column(_ID, primary_key=True)
    sequence: Named[int] = Column(BIG_INTEGER)


class _Checkpoint(_OfSession):
    incarnation: Named[str] = Column(Text)
    sequence: Named[int] = Column(BIG_INTEGER)
    encoded: Named[bytes] = Column(LargeBinary)
    checksum: Named[int] = Column(BIG_INTEGER)


class _Archived(_OfSession):
    name: Named[str] = Column(_ID, primary_key=True)
    piece: Named[int] = Column(BIG_INTEGER, primary_key=True, autoincrement=False)
    encoded: Named[bytes] = Column(LargeBinary)


class _Searchable(_AtSequence):
    said_at: Named[datetime] = Column(UtcDateTime)
    numbers: Named[list[int]] = Column(ARRAY(Integer))


class _Searched(_OfSession):
    sequence: Named[int] = Column(BIG_INTEGER)


class _Property(TypedColumns):
    name: Named[str] = Column(_ID, primary_key=True)
    value: Named[bytes] = Column(LargeBinary)


SESSIONS = Table(
    "sessions", METADATA, _Session, Index(None, "used_at", "session_id"), postgresql_with={"fillfactor": 70}
)
"""The identities of the sessions, their ends, their last use, and the turns that may answer them."""

ENTRIES = Table("entries", METADATA, _Entry)
"""All entries."""

KEYS = Table("idempotency_keys", METADATA, _Key)
"""The sequence of the oldest entry with each idempotency key."""

CHECKPOINTS = Table("checkpoints", METADATA, _Checkpoint)
"""The state of a session at one of its entries, as a session's file has it: a cache that may be discarded.

It is ignored if it belongs to another incarnation, or contradicts its checksum.
"""

ARCHIVE = Table("archive", METADATA, _Archived)
"""Pieces of archived sessions; all pieces of one name together are the content of the archived file."""

SEARCH = Table(
    "search",
    METADATA,
    _Searchable,
    Index(None, "numbers", postgresql_using="gin"),
    Index(None, "said_at", "session_id", "sequence"),
)
"""The searchable parts of the entries, as numbers (`trigrams.indexed_numbers`); no text."""

SEARCHED = Table("searched", METADATA, _Searched)
"""The sequence up to which a session is in `SEARCH`; indexing and deleting the session lock its row."""

PROPERTIES = Table("properties", METADATA, _Property)
"""Properties of the whole database, such as whether it is encrypted."""
