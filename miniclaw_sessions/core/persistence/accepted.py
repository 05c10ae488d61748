"""What was accepted and is not acknowledged yet, where others may be first: how it stands now, and in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, cast

from miniclaw_sessions.core.protocol.entries import Entry, MessageEntry
from miniclaw_sessions.errors import SessionsError


class Accepted:
    """Entries that were accepted together, as they stand in the session: acknowledged, as they are stored.

    A call that waits for entries reads them here afterwards: others may have been first, and then they stand elsewhere.

    Attributes:
        entries: each by the id that it was accepted with; in the place of one whose idempotency key others were first
            with stands theirs.
        is_fixed: whether they were accepted for their very places, and are not moved.
        keyed_id: the id of the one whose idempotency key stands for all of them; None: each stands for itself.
        known: what others have stored with that key before; None of these is stored then.
        given_up: makes the error that says why they are not stored, and never will be.
    """

    __slots__ = ("entries", "given_up", "is_fixed", "keyed_id", "known")

    def __init__(self, entries: Iterable[Entry], *, is_fixed: bool = False, has_one_key: bool = True) -> None:
        self.entries: dict[str, Entry] = {entry.id: entry for entry in entries}
        self.is_fixed = is_fixed
        keyed = [id_ for id_, entry in self.entries.items() if entry.idempotency_key is not None] if has_one_key else []
        self.keyed_id = keyed[0] if len(keyed) == 1 else None
        self.known: Entry | None = None
        self.given_up: Callable[[], SessionsError] | None = None


class Held(NamedTuple):
    """An entry that a call waits for.

    Attributes:
        entry: as it was when the waiting began.
        accepted: what it waits with; None: it does not wait, or others are never first.
    """

    entry: MessageEntry
    accepted: Accepted | None

    @property
    def is_given_up(self) -> bool:
        """Whether it is not stored, and never will be."""
        return self.accepted is not None and self.accepted.given_up is not None

    @property
    def now(self) -> MessageEntry:
        """The entry as it stands now; after its acknowledgement, as it is stored.

        Raises:
            SessionsError: it is not stored, and never will be.
        """
        if self.accepted is None:
            return self.entry
        if self.accepted.given_up is not None:
            raise self.accepted.given_up()
        return cast("MessageEntry", self.accepted.entries[self.entry.id])


class Waiting(dict[str, Accepted]):
    """What waits to be acknowledged, by the ids of its entries."""

    def moved(self, entries: Iterable[Entry]) -> None:
        """Others were first: these wait for other places."""
        for entry in entries:
            if (accepted := self.get(entry.id)) is not None:
                accepted.entries[entry.id] = entry

    def stored(self, entries: Mapping[str, Entry]) -> None:
        """These wait no longer: they are stored, or others' entries with the same key are."""
        for id_, entry in entries.items():
            if (accepted := self.pop(id_, None)) is not None:
                accepted.entries[id_] = entry
                if entry.id != id_ == accepted.keyed_id:
                    accepted.known = entry

    def give_up(self, ids: Iterable[str], reason: Callable[[], SessionsError]) -> None:
        """These are never stored."""
        for id_ in ids:
            if (accepted := self.pop(id_, None)) is not None:
                accepted.given_up = reason

    def discard(self, ids: Iterable[str]) -> None:
        """These wait no longer."""
        for id_ in ids:
            self.pop(id_, None)
