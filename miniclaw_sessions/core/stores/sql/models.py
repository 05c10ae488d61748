"""The tables, as typed models: what is said of a session and of an entry, in two layouts.

The columns are the same in both. How rows are found differs, because what an append costs does.

*A file of ours* (`Base`), which one process writes: a row of `sessions` never changes. `entries` is a log: rows are
added at its end in the order of commit, whichever sessions they belong to, so a group of any number of sessions fills a
few pages and touches no other. An index by session would be touched in as many places as the group has sessions, and
cost more than the rest of the commit.

So the index, `places`, runs behind: the one row of `placed` says up to which position it goes. The tail of the log that
lies beyond is brought into it sorted and in bulk (`statements.place`); until then readers scan the tail, which is kept
short. Log and index change together in one transaction, a session's entries ascend along the log in `sequence` as in
`position`, and no position is given out twice. No foreign key holds an entry to its session: without an index, deleting
a session would search the whole log for others of its entries. `check` looks for such contradictions.

*A server's database* (`Shared`), which any number of processes write: every key begins with `session_id`, so that
nothing is shared between two sessions, no number is given out to all, and the tables can be spread by its hash. A row
of `sessions` says where its session ends, and so is what two writers meet at. It is changed in place by every append;
`used_at` has an index, and is changed at most once in `USED_RESOLUTION`. The turn's columns are told in
`stores.base.TurnClaim`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy import BigInteger, DateTime, Dialect, Index, Integer, LargeBinary, MetaData, Text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

BIG_INTEGER = BigInteger().with_variant(Integer, "sqlite")
"""SQLite's integers always have 64 bits, and only one that is called INTEGER can number rows."""


class UtcDateTime(TypeDecorator[datetime]):
    """A point in time: always UTC, always with its time zone, also where the database keeps none."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To UTC; SQLite writes what it is given, so the zone is left out there."""
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
"""Names for constraints that every engine keeps."""

_TYPES: dict[Any, Any] = {int: BIG_INTEGER, str: Text, bytes: LargeBinary, datetime: UtcDateTime}
"""What stands for Python's types."""

# --- what both layouts say -------------------------------------------------------------------------------------------


class Identity:
    """Who a session is."""

    channel: Mapped[str]
    chat_id: Mapped[str]
    incarnation: Mapped[str]
    created_at: Mapped[datetime]


class Said:
    """One entry of a session; `encoded` is its JSON, byte for byte.

    `checksum` is that of the row (`checksums.checksum_of`); rows of older versions have none.
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
    """Who a session is. Numbers of deleted sessions are not given out again."""

    __tablename__ = "sessions"
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 - as SQLAlchemy declares it

    id: Mapped[int] = mapped_column(primary_key=True, sort_order=_KEYS_FIRST)
    session_id: Mapped[str] = mapped_column(unique=True, sort_order=_KEYS_FIRST)


class EntryRow(Said, Base):
    """One entry of a session, where it was committed."""

    __tablename__ = "entries"

    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, sort_order=_KEYS_FIRST)
    session: Mapped[int] = mapped_column(sort_order=_KEYS_FIRST)
    sequence: Mapped[int] = mapped_column(sort_order=_KEYS_FIRST)


class PlaceRow(Base):
    """Where in the log an entry of a session is."""

    __tablename__ = "places"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012 - as SQLAlchemy declares it

    session: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    position: Mapped[int]


class KeyRow(Base):
    """Where in its session the oldest entry with an idempotency key is; filled together with `places`."""

    __tablename__ = "idempotency_keys"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012 - as SQLAlchemy declares it

    session: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    idempotency_key: Mapped[str] = mapped_column(primary_key=True)
    sequence: Mapped[int]


class PlacedRow(Base):
    """The one row that says up to which position the log is in `places`."""

    __tablename__ = "placed"

    up_to: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


# --- a server's database ---------------------------------------------------------------------------------------------

USED_RESOLUTION = timedelta(seconds=5)
"""How exactly an append says in `used_at` when a session was used; each checkpoint says it exactly.

A poll for what has changed reads the index of `used_at` so much further back: with an hour, three polls a second read
every session of that hour. A shorter time makes more appends touch that index."""

_ID = Text(collation="C")
"""Compared byte by byte, as Python compares the text's code points, whatever language the database speaks."""


class Shared(DeclarativeBase):
    """The tables of a server's database."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map: ClassVar[dict[Any, Any]] = _TYPES


class SharedSessionRow(Identity, Shared):
    """Who a session is, where it ends, when it was used, and who may answer it."""

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
    """Where in its session the oldest entry with an idempotency key is."""

    __tablename__ = "idempotency_keys"

    session_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    idempotency_key: Mapped[str] = mapped_column(_ID, primary_key=True)
    sequence: Mapped[int]


class SharedCheckpointRow(Shared):
    """What a session's entries lead to at one place, as its file says it elsewhere: a cache that may be thrown away.

    It is ignored if it is of another incarnation, or contradicts its checksum.
    """

    __tablename__ = "checkpoints"

    session_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    incarnation: Mapped[str]
    sequence: Mapped[int]
    encoded: Mapped[bytes]
    checksum: Mapped[int]


class SharedArchiveRow(Shared):
    """A piece of an archived session; all pieces together are the file that an archive in a directory has."""

    __tablename__ = "archive"

    session_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    name: Mapped[str] = mapped_column(_ID, primary_key=True)
    piece: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    encoded: Mapped[bytes]


class SharedSearchRow(Shared):
    """What may be found in an entry, as numbers (`trigrams.indexed_numbers`); no text."""

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
    """Up to which of its entries a session is in `search`; whoever indexes it, or deletes it, holds this row."""

    __tablename__ = "searched"

    session_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    sequence: Mapped[int]


class SharedPropertyRow(Shared):
    """What is true of the whole database, such as whether it is encrypted."""

    __tablename__ = "properties"

    name: Mapped[str] = mapped_column(_ID, primary_key=True)
    value: Mapped[bytes]
