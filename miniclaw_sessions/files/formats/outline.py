"""A session's tree as rows to look at: what stands in which column, and what is folded away.

The terminal and the HTML page draw these rows in their own way. The current branch stays in the first column from the
root to the leaf; a branch that was left goes off to the right, before the conversation goes on. Within such
a branch its largest part keeps the column, so that no tree of n entries is drawn wider than log2(n) + 2 columns.
Tool results and labels are folded into the row that they belong to. Nothing here recurses.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Generic, TypeVar

import msgspec

from miniclaw_sessions.core.history.transcript import Transcript
from miniclaw_sessions.core.protocol.entries import BranchSummary, Compaction, Entry, Label, MessageEntry, moves_leaf

N = TypeVar("N")
"""What a row stands for: an entry, or its number in a `Shape`."""


class Outlined(msgspec.Struct, Generic[N], frozen=True, kw_only=True):
    """One row of a tree.

    Attributes:
        entry: what happened.
        folded: its tool results and labels that have no row of their own, in order.
        label: the bookmark on it.
        depth: its column; 0 is the current branch.
        begins: whether it is the first of its branch: it hangs on the last row above it in the column to the left.
        rails: for each column to the left, whether its line goes on below this row.
        is_fork: whether branches go off here.
        is_leaf: whether the conversation goes on from here.
        is_current: whether it is on the way from the root to the leaf.
        is_summary: whether it sums up what came before, or a branch that was left.
        is_user: whether the user said it.
    """

    entry: N
    folded: tuple[N, ...] = ()
    label: str | None = None
    depth: int = 0
    begins: bool = False
    rails: tuple[bool, ...] = ()
    is_fork: bool = False
    is_leaf: bool = False
    is_current: bool = False
    is_summary: bool = False
    is_user: bool = False

    @property
    def is_landmark(self) -> bool:
        """Whether a reader looks for it: a place where something was decided, marked or summed up."""
        return self.is_fork or self.is_leaf or self.label is not None or self.is_summary

    @property
    def count(self) -> int:
        """How many entries it stands for."""
        return 1 + len(self.folded)


Row = Outlined[Entry]
NumberedRow = Outlined[int]


class Fold(msgspec.Struct, frozen=True, kw_only=True):
    """A run of rows of one column, folded away."""

    rows: tuple[Outlined[Any] | Fold, ...]
    depth: int
    rails: tuple[bool, ...]
    is_current: bool

    @property
    def begins(self) -> bool:
        """Whether a branch begins with it."""
        return self.rows[0].begins

    @property
    def is_landmark(self) -> bool:
        """Always False: landmarks are never folded away."""
        return False

    @property
    def count(self) -> int:
        """How many entries it stands for."""
        return sum(row.count for row in self.rows)


# --- the tree by numbers ---------------------------------------------------------------------------------------------

_LABEL, _MOVES, _ANSWER, _SUMMARY, _USER = 1, 2, 4, 8, 16
_CALLING = 4_096
"""How many messages that call tools are remembered: a result that comes later has a row of its own."""


class Shape:
    """A tree by numbers, some fifty bytes for each entry: its entries may be too many to be held."""

    def __init__(self) -> None:
        """No entries yet."""
        self.parents = array("q")
        self.kinds = bytearray()
        self.heads = array("q")  # of a result: the message whose call it answers; of others: themselves
        self.labels: dict[int, str] = {}
        self._numbers: dict[int, int] = {}  # by the hash of the id
        self._calls: OrderedDict[int, frozenset[str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self.parents)

    def number_of(self, entry_id: str | None) -> int | None:
        """The number of an entry; None if no entry has this id."""
        return None if entry_id is None else self._numbers.get(hash(entry_id))

    def add(self, entry: Entry) -> bool:
        """Take in the next entry, which is no move of the leaf; False if there is one with its id already."""
        if self.number_of(entry.id) is not None:
            return False
        number, parent = len(self), self.number_of(entry.parent_id)
        self._numbers[hash(entry.id)] = number
        self.parents.append(-1 if parent is None else parent)
        is_piece = isinstance(entry, Label) or (isinstance(entry, MessageEntry) and entry.message.is_tool_result)
        self.heads.append(self.heads[parent] if is_piece and parent is not None else number)
        self.kinds.append(
            (_LABEL if isinstance(entry, Label) else 0)
            | (_MOVES if moves_leaf(entry) else 0)
            | (_ANSWER if self._is_answer(entry, number) else 0)
            | (_SUMMARY if isinstance(entry, Compaction | BranchSummary) else 0)
            | (_USER if isinstance(entry, MessageEntry) and entry.message.is_user else 0)
        )
        if isinstance(entry, MessageEntry) and entry.message.tool_calls:
            self._calls[number] = frozenset(call.id for call in entry.message.tool_calls)
            if len(self._calls) > _CALLING:
                self._calls.popitem(last=False)
        if isinstance(entry, Label) and (target := self.number_of(entry.target_id)) is not None:
            if entry.label:
                self.labels[target] = entry.label
            else:
                self.labels.pop(target, None)
        return True

    def _is_answer(self, entry: Entry, number: int) -> bool:
        if not isinstance(entry, MessageEntry) or not entry.message.is_tool_result or not entry.message.tool_call_id:
            return False
        return entry.message.tool_call_id in self._calls.get(self.heads[number], ())


# --- the rows --------------------------------------------------------------------------------------------------------


def outline(transcript: Transcript, *, folds: bool = True) -> list[Row]:
    """A transcript's tree, from the root downwards.

    Metadata has no row, unless something follows it: it is about the session, not about a place in it.

    Args:
        transcript: all of the session.
        folds: whether tool results and labels are folded into the rows that they belong to.
    """
    entries, shape = transcript.entries, Shape()
    for entry in entries:
        shape.add(entry)
    rows = outline_of(shape, shape.number_of(transcript.leaf_id), folds=folds)
    return [with_entries(row, [entries[number] for number in (row.entry, *row.folded)]) for row in rows]


def with_entries(row: NumberedRow, entries: Sequence[Entry]) -> Row:
    """The row of these entries: its own, and those that are folded into it."""
    same = {name: getattr(row, name) for name in _AS_THEY_ARE}
    return Row(**same, entry=entries[0], folded=tuple(entries[1:]))


_AS_THEY_ARE = tuple(name for name in Outlined.__struct_fields__ if name not in ("entry", "folded"))


def outline_of(shape: Shape, leaf: int | None, *, folds: bool = True) -> list[NumberedRow]:
    """`outline` of a tree by its numbers."""
    return _Outline(shape, leaf, folds=folds).rows()


class _Outline:
    """The state of one outline: the children of each entry, their number, and the way to the leaf."""

    def __init__(self, shape: Shape, leaf: int | None, *, folds: bool) -> None:
        self._shape = shape
        self._leaf = leaf
        self._folds = folds
        self._current = bytearray(len(shape))
        while leaf is not None and leaf >= 0:
            self._current[leaf] = 1
            leaf = shape.parents[leaf]
        self._sizes = array("q", (bool(kind & _MOVES) for kind in shape.kinds))  # of the conversation, on each
        self._first_child = array("q", [0]) * (len(shape) + 2)
        for number in range(len(shape) - 1, -1, -1):  # children come after their parents
            parent = shape.parents[number]
            self._first_child[parent + 2] += 1
            if parent >= 0:
                self._sizes[parent] += self._sizes[number]
        for place in range(1, len(self._first_child)):
            self._first_child[place] += self._first_child[place - 1]
        self._children_in_order = array("q", [0]) * len(shape)
        filled = self._first_child[:]
        for number, parent in enumerate(shape.parents):
            self._children_in_order[filled[parent + 1]] = number
            filled[parent + 1] += 1

    def _children(self, number: int) -> Sequence[int]:
        return self._children_in_order[self._first_child[number + 1] : self._first_child[number + 2]]

    def rows(self) -> list[NumberedRow]:
        shape = self._shape
        rows: list[NumberedRow] = []
        roots = [root for root in self._children(-1) if self._is_drawn(root)]
        waiting: list[tuple[int, bool, tuple[bool, ...]]] = [  # the next one to be drawn is the last one
            (root, True, ()) for root in reversed(roots)
        ]
        while waiting:
            number, begins, rails = waiting.pop()
            folded, children = self._gathered(number)
            is_leaf = self._leaf == number or self._leaf in folded
            going_on = None if is_leaf else self._going_on(children)
            leaving = [child for child in children if child != going_on]
            if going_on is not None:
                waiting.append((going_on, False, rails))
            waiting += [
                (child, True, (*rails, going_on is not None or child != leaving[-1])) for child in reversed(leaving)
            ]
            rows.append(
                NumberedRow(
                    entry=number,
                    folded=tuple(folded),
                    label=shape.labels.get(number),
                    depth=len(rails),
                    begins=begins,
                    rails=rails,
                    is_fork=bool(leaving),
                    is_leaf=is_leaf,
                    is_current=self._current[number] == 1,
                    is_summary=bool(shape.kinds[number] & _SUMMARY),
                    is_user=bool(shape.kinds[number] & _USER),
                )
            )
        return rows

    def _gathered(self, number: int) -> tuple[list[int], list[int]]:
        """What is folded into an entry's row, and the rows that follow it."""
        folded: list[int] = []
        last = number
        while True:
            children: list[int] = []
            waiting = [*reversed(self._children(last))]
            while waiting:  # what follows a label that is folded follows the entry
                child = waiting.pop()
                if self._folds and self._shape.kinds[child] & _LABEL:
                    folded.append(child)
                    waiting += reversed(self._children(child))
                elif self._is_drawn(child):
                    children.append(child)
            if not self._folds or len(children) != 1 or not self._is_answer(children[0], number):
                return folded, children
            last = children[0]
            folded.append(last)

    def _is_drawn(self, number: int) -> bool:
        return self._sizes[number] > 0

    def _is_answer(self, number: int, head: int) -> bool:
        """Whether an entry is a result that needs no row: a bookmark would deserve one."""
        shape = self._shape
        return bool(shape.kinds[number] & _ANSWER) and shape.heads[number] == head and number not in shape.labels

    def _going_on(self, children: Sequence[int]) -> int | None:
        """The child that keeps the column: the current one, or else the largest, of several the newest."""
        on_the_way = next((child for child in children if self._current[child]), None)
        if on_the_way is not None or not children:
            return on_the_way
        return max(reversed(children), key=lambda child: self._sizes[child])


# --- folding runs ----------------------------------------------------------------------------------------------------


def fold_runs(
    rows: Iterable[Outlined[N] | Fold],
    *,
    stays: Callable[[Outlined[N] | Fold], bool],
    longest: int,
    edges: tuple[int, int],
) -> list[Outlined[N] | Fold]:
    """Fold the middle of every long run of rows in one column.

    Args:
        rows: as `outline` gives them, or folded already.
        stays: what ends a run and is never folded.
        longest: how many rows a run may have before it is folded.
        edges: how many rows remain at the beginning and at the end of a folded run.
    """
    kept: list[Outlined[N] | Fold] = []
    runs = 0

    def run_of(row: Outlined[N] | Fold) -> tuple[bool, int, int]:
        nonlocal runs
        runs += row.begins
        return stays(row), row.depth, runs

    for (is_kept, _, _), members in groupby(rows, key=run_of):
        run = list(members)
        if is_kept or len(run) <= longest:
            kept += run
            continue
        start, end = edges[0], len(run) - edges[1]
        while start > 0 and isinstance(run[start - 1], Fold):
            start -= 1  # two folds in a row would read as one
        while end < len(run) and isinstance(run[end], Fold):
            end += 1
        first = run[start]
        fold = Fold(rows=tuple(run[start:end]), depth=first.depth, rails=first.rails, is_current=first.is_current)
        kept += [*run[:start], fold, *run[end:]]
    return kept


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
