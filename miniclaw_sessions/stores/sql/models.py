"""The tables, as typed models.

A row of `sessions` never changes. `entries` is a log: rows are added at its end in the order of commit, whichever
sessions they belong to, so a group of any number of sessions fills a few pages and touches no other. An index by
session would be touched in as many places as the group has sessions, and cost more than the rest of the commit.

So the index, `places`, runs behind: the one row of `placed` says up to which position it goes. The tail of the log that
lies beyond is brought into it sorted and in bulk (`statements.place`); until then readers scan the tail, which is kept
short. Log and index change together in one transaction, a session's entries ascend along the log in `sequence` as in
`position`, and no position is given out twice. No foreign key holds an entry to its session: without an index, deleting
a session would search the whole log for others of its entries. `check` looks for such contradictions.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import BigInteger, DateTime, Dialect, Integer, LargeBinary, MetaData, Text
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


class Base(DeclarativeBase):
    """What all tables share: the types that stand for Python's, and names for constraints that every engine keeps."""

    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        int: BIG_INTEGER,
        str: Text,
        bytes: LargeBinary,
        datetime: UtcDateTime,
    }


class SessionRow(Base):
    """Who a session is. Numbers of deleted sessions are not given out again."""

    __tablename__ = "sessions"
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 - as SQLAlchemy declares it

    id: Mapped[int] = mapped_column(primary_key=True)
    session_id: Mapped[str] = mapped_column(unique=True)
    channel: Mapped[str]
    chat_id: Mapped[str]
    incarnation: Mapped[str]
    created_at: Mapped[datetime]


class EntryRow(Base):
    """One entry of a session, where it was committed; `encoded` is its JSON, byte for byte.

    `checksum` is that of the row (`statements.checksum_of`); rows of older versions have none.
    """

    __tablename__ = "entries"

    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    session: Mapped[int]
    sequence: Mapped[int]
    entry_id: Mapped[str]
    encoded: Mapped[bytes]
    idempotency_key: Mapped[str | None]
    checksum: Mapped[int | None]


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
