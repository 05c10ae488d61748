"""The rows of an outline by branches: which one is current, which were left, and where ways part."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from miniclaw_sessions.files.formats.outline import Outlined


class Branches:
    """The rows of the current branch, and of each that was left; numbers of rows throughout.

    Attributes:
        rows: all of them, as `outline` or `outline_of` gives them.
        parents: the row that each row follows; -1: none.
        ways: of each row at which branches go off, the rows with which the conversation goes on.
        current: the rows of the current branch.
        left: those of each branch that was left.
    """

    def __init__(self, rows: Sequence[Outlined[Any]]) -> None:
        self.rows = rows
        self.parents = array("q")
        self.ways: dict[int, list[int]] = {}
        self.current = array("q")
        self.left: list[array[int]] = []
        columns: list[array[int]] = []  # the branch that is drawn in each column
        last = array("q")  # the last row in each column
        for number, row in enumerate(rows):
            column = row.depth - 1 if row.begins else row.depth
            parent = last[column] if column >= 0 else -1
            self.parents.append(parent)
            if parent >= 0 and rows[parent].is_fork:
                self.ways.setdefault(parent, []).append(number)
            del last[row.depth :]
            last.append(number)
            if row.begins:
                branch = self.current if row.is_current else array("q")
                self.left += [] if row.is_current else [branch]
                columns[row.depth :] = [branch]
            columns[row.depth].append(number)
