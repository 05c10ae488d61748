"""What an entry follows, where the one that it names is no part of any branch, or cannot be read.

Other programs, older versions and damage leave entries that name a move of the leaf, metadata, or an entry that is left
out. Each of these stands for the entry that it follows itself.
"""

from __future__ import annotations

import msgspec

from miniclaw_sessions.core.protocol.entries import Entry, LeafMove, moves_leaf, place_of_parent

_Place = tuple[str | None, int]  # an entry's id, and its sequence; None and 0: the root


class Links:
    """Lets every entry of a transcript follow one that is on a branch; it is fed the entries in their order.

    Args:
        is_whole: whether the first one is that of the transcript.
    """

    def __init__(self, *, is_whole: bool) -> None:
        self._instead: dict[str, _Place] = {}
        self._left_out: dict[int, _Place] = {}  # by sequence, for damage does not spare ids
        self._leaf: _Place | None = (None, 0) if is_whole else None

    def follow(self, entry: Entry) -> Entry:
        """The next entry, with the parent that is meant."""
        parent = named = (entry.parent_id, place_of_parent(entry))
        if entry.parent_id is not None:
            parent = self._instead.get(entry.parent_id) or self._left_out.get(named[1], named)
        if isinstance(entry, LeafMove):
            self._leaf = self._instead.get(entry.target_id or "", (entry.target_id, entry.target_sequence or 0))
            self._instead[entry.id] = self._leaf
        elif moves_leaf(entry):
            self._leaf = entry.id, entry.sequence
        else:
            self._instead[entry.id] = parent
        if parent == named:
            return entry
        parent_id, place = parent
        sequence = None if parent_id is None or place == entry.sequence - 1 else place
        return msgspec.structs.replace(entry, parent_id=parent_id, parent_sequence=sequence)

    def leave_out(self, sequence: int) -> None:
        """The entry at this place cannot be read: what names it follows the one before."""
        if self._leaf is not None:
            self._left_out[sequence] = self._leaf
