"""Where the entries of a file of pi's stand in its tree, while it is read: ids and parents."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from miniclaw_sessions.files.formats.json_lines import JsonLines
from miniclaw_sessions.files.formats.pi.entries import Place
from miniclaw_sessions.files.formats.tree import Tree


class PiTree(Tree):
    """Gives every entry an id of its own and a parent that stands before it."""

    def __init__(self, lines: JsonLines, new_id: Callable[[], str]) -> None:
        super().__init__(lines)
        self.expects_ids = False
        self._new_id = new_id

    def place(self, fields: Mapping[str, Any], timestamp: datetime) -> Place:
        """The place of the next entry."""
        written = fields.get("id")
        has_id = isinstance(written, str) and written != ""
        is_sound, parent_id = self._parent(fields, is_expected=has_id)
        entry_id = written if isinstance(written, str) and has_id else self._new_id()
        if has_id:
            self.expects_ids = True
            if entry_id in self:
                self._lines.repaired("an entry with the same id stands before it; it got another one")
                repeated, entry_id = entry_id, self._new_id()
                self.mean(repeated, entry_id)
        elif self.expects_ids:
            self._lines.repaired("it has no id, and got one")
        if self.expects_ids:  # else all ids are ours, and nothing refers to them
            self.know(entry_id)
        return Place(entry_id, parent_id, timestamp, is_sound)

    def _parent(self, fields: Mapping[str, Any], *, is_expected: bool) -> tuple[bool, str | None]:
        """Whether the entry's own parent could be taken, and the parent."""
        if "parentId" not in fields:
            if is_expected:
                self._lines.repaired("it names no parent; it follows what stands before it")
            return not is_expected, self.leaf_id
        written = fields["parentId"]
        if written is None:
            return True, None
        if isinstance(written, str) and written in self:
            return True, self.meant(written)
        return False, self.missing_parent(written if isinstance(written, str) else "")


class LineIds:
    """The ids of a file of version 1 by the number of their lines, 0 being the header; forty-odd bytes for each."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends = array("Q", [0])  # the header has none

    def add(self, entry_id: str) -> None:
        """The id of the next line; empty for one that is no entry."""
        self._text += entry_id.encode()
        self._ends.append(len(self._text))

    def at(self, index: int) -> str | None:
        """The id of a line; None if there is none."""
        if not 0 < index < len(self._ends):
            return None
        return self._text[self._ends[index - 1] : self._ends[index]].decode() or None
