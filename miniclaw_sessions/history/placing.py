"""Entries from elsewhere get their places in a session: numbered anew, and told where their parents stand."""

from __future__ import annotations

import msgspec

from miniclaw_sessions.protocol.entries import Compaction, Entry, LeafMove


class Places:
    """Where each entry of a session stands, by its id. Holds a number for each, not the ids: there may be millions."""

    def __init__(self) -> None:
        self._sequences: dict[int, int] = {}

    def place(self, entry: Entry, sequence: int) -> Entry:
        """The entry for this place; what it refers to must have been placed before, or it is looked for by its id."""
        self._sequences[hash(entry.id)] = sequence
        parent = self._place_of(entry.parent_id)
        placed = msgspec.structs.replace(
            entry, sequence=sequence, parent_sequence=None if parent == sequence - 1 else parent
        )
        if isinstance(placed, LeafMove):
            return msgspec.structs.replace(placed, target_sequence=self._place_of(placed.target_id))
        if isinstance(placed, Compaction):
            return msgspec.structs.replace(placed, first_kept_sequence=self._place_of(placed.first_kept_entry_id))
        return placed

    def _place_of(self, entry_id: str | None) -> int | None:
        return None if entry_id is None else self._sequences.get(hash(entry_id), 0)
