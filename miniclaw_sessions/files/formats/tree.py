"""Which entries of a file have been read, while it is read: for ids and parents that are not what they should be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from miniclaw_sessions.core.protocol.entries import Entry, LeafMove, moves_leaf
from miniclaw_sessions.files.formats.codec import Chain, Outcome
from miniclaw_sessions.files.formats.json_lines import JsonLines, LineReader


class Tree:
    """The ids so far, as one number each, because there may be millions; which mean another entry; and the leaf."""

    def __init__(self, lines: JsonLines) -> None:
        self.leaf_id: str | None = None
        self._lines = lines
        self._known: set[int] = set()
        self._instead: dict[str, str | None] = {}
        self._is_damaged = False
        self._before_damage: str | None = None

    def __contains__(self, entry_id: str) -> bool:
        """Whether an entry with this id has been read."""
        return hash(entry_id) in self._known

    @property
    def is_empty(self) -> bool:
        """Whether there was no entry yet."""
        return not self._known

    def meant(self, entry_id: str) -> str | None:
        """The entry that is meant by an id: after a move of the leaf that to which it went."""
        return self._instead.get(entry_id, entry_id) if self._instead else entry_id

    def mean(self, entry_id: str, other_id: str | None) -> None:
        """From here on the one id means the other entry."""
        self._instead[entry_id] = other_id

    def know(self, entry_id: str) -> None:
        """From here on the entry with this id may be a parent."""
        self._known.add(hash(entry_id))
        if self._instead:
            self._instead.pop(entry_id, None)

    def note(self, entry: Entry) -> None:
        """The next entry: the conversation goes on from it, or from where it moves to."""
        if isinstance(entry, LeafMove):
            self._instead[entry.id] = self.leaf_id = entry.target_id
        elif moves_leaf(entry):
            self.leaf_id = entry.id

    def note_damage(self) -> None:
        """A line was set aside: parents that are missing from here on may have been in it."""
        self._is_damaged = True
        self._before_damage = self.leaf_id

    def missing_parent(self, named: str = "") -> str | None:
        """The parent of an entry that names one which does not stand before it; so there is never a loop."""
        raw = named.encode()
        if self._is_damaged:
            self._lines.repaired("its parent was in damaged lines; it follows what stands before them", raw)
            return self._before_damage
        self._lines.repaired("its parent is not in the file before it; it begins a branch", raw)
        return None


class TreeReader(LineReader):
    """A `LineReader` of lines that name their parents."""

    def __init__(self, chain: Chain, name: str, lines: JsonLines, tree: Tree) -> None:
        super().__init__(chain, name, lines)
        self._tree = tree

    def feed(self, piece: bytes) -> list[Entry]:
        """The entries that are complete with this line."""
        before = len(self.findings)
        line = self._lines.parse(piece)
        if any(finding.outcome is Outcome.SET_ASIDE for finding in self.findings[before:]):
            self._tree.note_damage()
        return [] if line is None else list(self._take_raw(line, piece if len(self.findings) == before else b""))

    def _take_raw(self, line: dict[str, Any], raw: bytes) -> Iterable[Entry]:
        """The entries of a line's object; `raw` is the line itself, empty if something was wrong with it."""
        raise NotImplementedError
