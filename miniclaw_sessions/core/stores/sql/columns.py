"""The columns that a file of ours and a server's database have in common; their tables are in a `tables` of each.

Tables are declared for SQLAlchemy's Core: loading its mapper too took a tenth of the time of the daemon's start.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import BigInteger, Column, DateTime, Dialect, Integer, LargeBinary, Named, Text, TypedColumns
from sqlalchemy.types import TypeDecorator

BIG_INTEGER = BigInteger().with_variant(Integer, "sqlite")
"""SQLite's integers always have 64 bits, and only a column of type INTEGER can number rows."""

CONSTRAINT_NAMES = {
    "pk": "pk_%(table_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
}
"""Names of constraints that are the same on every engine."""


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


class Identity(TypedColumns):
    """The identity of a session."""

    channel: Named[str] = Column(Text)
    chat_id: Named[str] = Column(Text)
    incarnation: Named[str] = Column(Text)
    created_at: Named[datetime] = Column(UtcDateTime)


class Said(TypedColumns):
    """One entry of a session; `encoded` is its JSON, byte for byte.

    `checksum` is the checksum of the row (`checksums.checksum_of`); rows of older versions have none.
    """

    entry_id: Named[str] = Column(Text)
    encoded: Named[bytes] = Column(LargeBinary)
    idempotency_key: Named[str | None] = Column(Text)
    checksum: Named[int | None] = Column(BIG_INTEGER)
