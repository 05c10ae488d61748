"""The tables, as typed models, in two layouts with the same columns.

The layouts find rows in different ways, because their appends have different costs.

*A file of ours* (`Base`), which one process writes: a row of `sessions` never changes. `entries` is a log: rows are
added at its end in the order of commit, whichever sessions they belong to, so a group of any number of sessions fills a
few pages and touches no other. An index by session would be touched in as many places as the group has sessions, and
cost more than the rest of the commit.

So the index, `places`, lags behind: the single row of `placed` has the position up to which it goes. The tail of the
log behind that position is added to it sorted and in bulk (`statements.place`); until then readers scan the tail, which
is kept short. Log and index change together in one transaction, a session's entries ascend along the log in `sequence`
and in `position`, and no position is used twice. There is no foreign key from an entry to its session: without an
index, deleting a session would search the whole log. `check` looks for such contradictions.

*A server's database* (`Shared`), which any number of processes write: every key begins with `session_id`, so that
nothing is shared between two sessions, no sequence is global, and the tables can be distributed by its hash. A row of
`sessions` has the end of its session, and is where two writers collide. Each append changes it in place; `used_at` has
an index, and changes at most once in `USED_RESOLUTION`. `stores.base.TurnClaim` describes the columns of turns.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy import BigInteger, DateTime, Dialect, Index, Integer, LargeBinary, MetaData, Text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

BIG_INTEGER = BigInteger().with_variant(Integer, "sqlite")
"""SQLite's integers always have 64 bits, and only a column of type INTEGER can number rows."""


class UtcDateTime(TypeDecorator[datetime]):
    """A point in time, always in UTC and with its time zone, also if the database keeps none."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """In UTC; without the time zone for SQLite, which would store it as text."""
        if value is None:
            return None
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """With its time zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


_NAMES = {
    "pk": "pk_%(table_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
}
"""Names of constraints that are the same on every engine."""

_TYPES: dict[Any, Any] = {int: BIG_INTEGER, str: Text, bytes: LargeBinary, datetime: UtcDateTime}
"""The column types of Python's types."""

# --- what both layouts say -------------------------------------------------------------------------------------------


class Identity:
    """The identity of a session."""

    channel: Mapped[str]
    chat_id: Mapped[str]
    incarnation: Mapped[str]
    created_at: Mapped[datetime]


class Said:
    """One entry of a session; `encoded` is its JSON, byte for byte.

    `checksum` is the checksum of the row (`checksums.checksum_of`); rows of older versions have none.
    """

    entry_id: Mapped[str]
    encoded: Mapped[bytes]
    idempotency_key: Mapped[str | None]
    checksum: Mapped[int | None]


# --- a file of ours --------------------------------------------------------------------------------------------------

_KEYS_FIRST = -1


class Base(DeclarativeBase):
    """The tables of a file."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map: ClassVar[dict[Any, Any]] = _TYPES


class SessionRow(Identity, Base):
    """The identity of a session. Numbers of deleted sessions are not used again."""

    __tablename__ = "sessions"
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 - as SQLAlchemy declares it

    id: Mapped[int] = mapped_column(primary_key=True, sort_order=_KEYS_FIRST)
    session_id: Mapped[str] = mapped_column(unique=True, sort_order=_KEYS_FIRST)


class EntryRow(Said, Base):
    """One entry of a session, at its position in the log."""

    __tablename__ = "entries"

    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, sort_order=_KEYS_FIRST)
    session: Mapped[int] = mapped_column(sort_order=_KEYS_FIRST)
    sequence: Mapped[int] = mapped_column(sort_order=_KEYS_FIRST)


class PlaceRow(Base):
    """The position in the log of an entry of a session."""

    __tablename__ = "places"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012 - as SQLAlchemy declares it

    session: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    position: Mapped[int]


class KeyRow(Base):
    """The sequence of the oldest entry with an idempotency key; filled together with `places`."""

    __tablename__ = "idempotency_keys"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012 - as SQLAlchemy declares it

    session: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    idempotency_key: Mapped[str] = mapped_column(primary_key=True)
    sequence: Mapped[int]


class PlacedRow(Base):
    """The single row with the position up to which the log is in `places`."""

    __tablename__ = "placed"

    up_to: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


# --- a server's database ---------------------------------------------------------------------------------------------

USED_RESOLUTION = timedelta(seconds=5)
"""The resolution of `used_at` in appends; each checkpoint writes the exact time.

A poll for changes reads the index of `used_at` this much further back: with an hour, three polls a second would read
all sessions of that hour. With a shorter time, more appends touch that index."""

_ID = Text(collation="C")
"""Compared byte by byte, as Python compares the text's code points, in any language of the database."""


class Shared(DeclarativeBase):
    """The tables of a server's database."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map: ClassVar[dict[Any, Any]] = _TYPES


class SharedSessionRow(Identity, Shared):
    """The identity of a session, its end, its last use, and the turn that may answer it."""

    __tablename__ = "sessions"
    __table_args__ = (Index(None, "used_at", "session_id"), {"postgresql_with": {"fillfactor": 70}})

    session_id: Mapped[str] = mapped_column(_ID, primary_key=True, sort_order=_KEYS_FIRST)
    last_sequence: Mapped[int]
    used_at: Mapped[datetime]
    fence: Mapped[int]
    turn_owner: Mapped[str | None]
    turn_until: Mapped[datetime | None]


class SharedEntryRow(Said, Shared):
    """One entry of a session."""

    __tablename__ = "entries"

    session_id: Mapped[str] = mapped_column(_ID, primary_key=True, sort_order=_KEYS_FIRST)
    sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, sort_order=_KEYS_FIRST)


class SharedKeyRow(Shared):
    """The sequence of the oldest entry with an idempotency key."""

    __tablename__ = "idempotency_keys"

    session_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    idempotency_key: Mapped[str] = mapped_column(_ID, primary_key=True)
    sequence: Mapped[int]


class SharedCheckpointRow(Shared):
    """The state of a session at one of its entries, as a session's file has it: a cache that may be discarded.

    It is ignored if it belongs to another incarnation, or contradicts its checksum.
    """

    __tablename__ = "checkpoints"

    session_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    incarnation: Mapped[str]
    sequence: Mapped[int]
    encoded: Mapped[bytes]
    checksum: Mapped[int]


class SharedArchiveRow(Shared):
    """A piece of an archived session; all pieces together are the content of the archived file."""

    __tablename__ = "archive"

    session_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    name: Mapped[str] = mapped_column(_ID, primary_key=True)
    piece: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    encoded: Mapped[bytes]


class SharedSearchRow(Shared):
    """The searchable parts of an entry, as numbers (`trigrams.indexed_numbers`); no text."""

    __tablename__ = "search"
    __table_args__ = (
        Index(None, "numbers", postgresql_using="gin"),
        Index(None, "said_at", "session_id", "sequence"),
    )

    session_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    said_at: Mapped[datetime]
    numbers: Mapped[list[int]] = mapped_column(ARRAY(Integer))


class SharedSearchedRow(Shared):
    """The sequence up to which a session is in `search`; indexing and deleting the session lock this row."""

    __tablename__ = "searched"

    session_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    sequence: Mapped[int]


class SharedPropertyRow(Shared):
    """A property of the whole database, such as whether it is encrypted."""

    __tablename__ = "properties"

    name: Mapped[str] = mapped_column(_ID, primary_key=True)
    value: Mapped[bytes]
