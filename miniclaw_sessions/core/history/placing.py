"""Numbers entries from other sources in their new session, with the sequences of their parents."""

from __future__ import annotations

from array import array
from bisect import bisect_left

import msgspec

from miniclaw_sessions.core.protocol.entries import Compaction, Entry, LeafMove

LOOSE = 65_536
"""This many numbers are held in a dict, a hundred bytes each; then they are packed into 16 bytes each."""


class Places:
    """The sequence of each entry of a session, by its id. It holds numbers, not ids: there may be millions."""

    def __init__(self) -> None:
        self._loose: dict[int, int] = {}
        self._packed: list[tuple[array[int], array[int]]] = []  # sorted hashes of ids, and their sequences

    def place(self, entry: Entry, sequence: int) -> Entry:
        """The entry with this sequence, and the sequences of the entries that it refers to, if they are known."""
        self.note(entry.id, sequence)
        parent = self.place_of(entry.parent_id)
        placed = msgspec.structs.replace(
            entry, sequence=sequence, parent_sequence=None if parent == sequence - 1 else parent
        )
        if isinstance(placed, LeafMove):
            return msgspec.structs.replace(placed, target_sequence=self.place_of(placed.target_id))
        if isinstance(placed, Compaction):
            return msgspec.structs.replace(placed, first_kept_sequence=self.place_of(placed.first_kept_entry_id))
        return placed

    def place_of(self, entry_id: str | None) -> int | None:
        """The sequence of the entry with this id; 0 if it is not known here."""
        if entry_id is None:
            return None
        wanted = hash(entry_id)
        if (place := self._loose.get(wanted)) is not None:
            return place
        for hashes, places in reversed(self._packed):
            index = bisect_left(hashes, wanted)
            if index < len(hashes) and hashes[index] == wanted:
                return places[index]
        return 0

    def note(self, entry_id: str, sequence: int) -> None:
        """Note the sequence of an entry."""
        self._loose[hash(entry_id)] = sequence
        if len(self._loose) >= LOOSE:
            hashes = sorted(self._loose)
            self._packed.append((array("q", hashes), array("q", [self._loose[one] for one in hashes])))
            self._loose = {}
