"""Times as other programs write them, in numbers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

_SECONDS = 100_000_000_000
"""A larger number is one of milliseconds: as seconds it would be beyond the year 5000."""


def from_seconds(value: Any) -> datetime | None:
    """The time of this number of seconds since 1970, or of milliseconds where it is so large; None for what is none."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return datetime.fromtimestamp(value / 1000 if abs(value) >= _SECONDS else value, UTC)
    except (ValueError, OverflowError, OSError):
        return None
