"""The current branch of a session, and its cleared entries, as ranges of sequences, without holding entries."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.entries import LeafMove, moves_leaf, place_of_parent
from miniclaw_sessions.errors import InvalidMessage

_MARKS = (b'"parent_sequence":', b'"parent_id":null', b'"type":"leaf"', b'"type":"custom"')
"""An entry without these bytes follows the one before it and is the new leaf; it need not be decoded."""


class BranchMap:
    """The sequences at which entries do not follow the one before; it is fed all entries of a session, in order.

    Attributes:
        up_to: the sequence of the last entry that it was fed.
        leaf: the sequence of the leaf; 0: the root.
        cleared_at: the sequence at which the session was cleared last; 0: never.
    """

    __slots__ = ("_jumps", "_parents", "cleared_at", "leaf", "up_to")

    def __init__(self) -> None:
        self.up_to = self.leaf = self.cleared_at = 0
        self._jumps: list[int] = []
        self._parents: list[int] = []

    def add(self, sequence: int, encoded: bytes) -> None:
        """The next entry, as it is stored."""
        expected, self.up_to = self.leaf, sequence
        if expected == sequence - 1 and not any(mark in encoded for mark in _MARKS):
            self.leaf = sequence
            return
        try:
            entry = msgspec.structs.replace(decode_entry(encoded), sequence=sequence)
        except InvalidMessage:  # it is damaged: the entry after it has the parent
            self.leaf = sequence
            return
        if isinstance(entry, LeafMove):
            self.leaf = 0 if entry.target_id is None else entry.target_sequence or expected
            self.cleared_at = sequence if entry.target_id is None else self.cleared_at
            return
        if (parent := place_of_parent(entry)) != sequence - 1:  # metadata too: older versions go on there
            self._jumps.append(sequence)
            self._parents.append(parent)
        if moves_leaf(entry):
            self.leaf = sequence

    def path(self) -> list[tuple[int, int]]:
        """The current branch as ranges of sequences, from the leaf to the root, both ends included."""
        stretches = []
        place = self.leaf
        while place > 0:
            number = bisect_right(self._jumps, place) - 1
            first = self._jumps[number] if number >= 0 else 1
            stretches.append((first, place))
            place = min(self._parents[number], first - 1) if number >= 0 else 0
        return stretches
