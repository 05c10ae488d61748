"""Which entry stands at which sequence, as a plain object that is fed a file's bytes in order.

A sound line says its own sequence. A damaged one costs only itself: it is passed on as it is, to fail where entries are
decoded, at a place that its neighbours leave free. A line whose sequence contradicts its neighbours' is damaged too.
"""

from __future__ import annotations

from typing import NamedTuple

from miniclaw_sessions.errors import StoreCorrupt
from miniclaw_sessions.stores.base import StoredEntry
from miniclaw_sessions.stores.jsonl.lines import LONGEST_LINE, entry_in


class Placed(NamedTuple):
    """An entry, and the offset in the file at which the line after it begins."""

    entry: StoredEntry
    end: int


class _Damaged(NamedTuple):
    line: bytes
    end: int


class Placing:
    """Turns the bytes of a file, from the beginning of some line on, into entries.

    `without_place` counts damaged lines between neighbours that leave no place free for them.
    """

    def __init__(self, offset: int, last: int) -> None:
        """Begin at an offset, behind the entry with the sequence `last` (0: at the first entry)."""
        self.without_place = 0
        self._offset = offset
        self._unfinished: list[bytes] = []
        self._unfinished_length = 0
        self._last = last
        self._before: list[_Damaged] = []  # damaged lines between `_last` and `_sound`
        self._sound: Placed | None = None  # waits for the next one, which must say a greater sequence
        self._after: list[_Damaged] = []  # damaged lines behind `_sound`

    def feed(self, block: bytes) -> list[Placed]:
        """The entries that are certain with these bytes.

        Raises:
            StoreCorrupt: a line is longer than any that we write.
        """
        placed: list[Placed] = []
        *lines, rest = block.split(b"\n")
        for line in lines:
            if self._unfinished:
                line = b"".join((*self._unfinished, line))  # noqa: PLW2901 - the same line, whole
                self._unfinished.clear()
                self._unfinished_length = 0
            self._offset += len(line) + 1
            self._take(line, placed)
        if rest:
            self._unfinished.append(rest)
            self._unfinished_length += len(rest)
            if self._unfinished_length > LONGEST_LINE:
                raise StoreCorrupt(f"the line at byte {self._offset} is longer than any that was written")
        return placed

    def finish(self) -> list[Placed]:
        """The last entry: there are no more bytes."""
        placed: list[Placed] = []
        self._accept_sound(placed)
        self.without_place += len(self._before)
        self._before = []
        return placed

    def _take(self, line: bytes, placed: list[Placed]) -> None:
        entry = entry_in(line)
        waiting = self._sound.entry.sequence if self._sound is not None else self._last
        if entry is not None and entry.sequence > waiting:
            self._accept_sound(placed)
            self._sound = Placed(entry, self._offset)
        elif entry is None or entry.sequence <= self._last or waiting == self._last + 1:
            if line.strip():
                self._after.append(_Damaged(line, self._offset))
        else:  # the one that waits left a gap before it, and this one would be in order: that one said too much
            assert self._sound is not None  # noqa: S101 - or `waiting` would be `_last`
            self._before += [_Damaged(self._sound.entry.encoded, self._sound.end), *self._after]
            self._sound, self._after = Placed(entry, self._offset), []

    def _accept_sound(self, placed: list[Placed]) -> None:
        """Give out what waits, and before it the damaged lines for which there is a place."""
        if self._sound is not None:
            places = range(self._last + 1, self._sound.entry.sequence)
            for sequence, damaged in zip(places, self._before, strict=False):
                placed.append(Placed(StoredEntry(sequence, f"damaged-{sequence}", damaged.line), damaged.end))
            self.without_place += max(0, len(self._before) - len(places))
            placed.append(self._sound)
            self._last = self._sound.entry.sequence
            self._before, self._sound = [], None
        self._before, self._after = [*self._before, *self._after], []
