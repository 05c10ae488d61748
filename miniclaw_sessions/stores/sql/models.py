"""The tables, as typed models.

A row of `sessions` never changes; a session's newest sequence is the largest of its entries, found by one seek in the
primary key. In SQLite `entries` is a rowid table with the primary key as its index: new rows fill the same few pages
whichever session they belong to. Clustering them by session (WITHOUT ROWID) halves the appends per second.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import BigInteger, DateTime, Dialect, ForeignKey, Integer, LargeBinary, MetaData, Text
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
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
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
    """One entry of a session; `encoded` is its JSON, byte for byte."""

    __tablename__ = "entries"

    session: Mapped[int] = mapped_column(ForeignKey(SessionRow.id), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    entry_id: Mapped[str]
    encoded: Mapped[bytes]
