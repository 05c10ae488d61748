"""What a call holds of the entries that it has accepted, until they are acknowledged."""

from __future__ import annotations

from typing import Protocol, TypeVar

from miniclaw_sessions.core.protocol.entries import Entry

M = TypeVar("M", bound=Entry)


class Receipt(Protocol):
    """What a call holds of entries that were accepted together, to read after their acknowledgement how they stand."""

    @property
    def known(self) -> Entry | None:
        """The entry that had their idempotency key before: none of them is stored then. None: there was none."""
        ...

    @property
    def is_given_up(self) -> bool:
        """Whether they are not stored, and never will be."""
        ...

    def check(self) -> None:
        """Raise the reason if they were given up."""
        ...

    def final(self, entry: M) -> M:
        """An entry as it is stored. Raises the reason if it was given up."""
        ...

    def stored(self, entries: list[Entry]) -> list[Entry]:
        """The entries as they are stored; given up or not."""
        ...


class _InPlace:
    """The receipt of entries that are stored as they were made."""

    __slots__ = ()

    known = None
    is_given_up = False

    def check(self) -> None:
        """They are stored."""

    def final(self, entry: M) -> M:
        """The entry itself."""
        return entry

    def stored(self, entries: list[Entry]) -> list[Entry]:
        """The entries themselves."""
        return entries


IN_PLACE: Receipt = _InPlace()
"""The receipt of everything that only this process can store."""
