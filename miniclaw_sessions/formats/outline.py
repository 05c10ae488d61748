"""A session's tree as rows to look at: what stands in which column, and what is folded away.

The terminal and the HTML page draw these rows in their own way. The current branch stays in the first column from the
root to the leaf; a branch that was left goes off to the right, before the conversation goes on. Within such
a branch its largest part keeps the column, so that no tree of n entries is drawn wider than log2(n) + 2 columns.
Tool results and labels are folded into the row that they belong to. Nothing here recurses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import msgspec

from miniclaw_sessions.history.transcript import Transcript
from miniclaw_sessions.protocol.entries import BranchSummary, Compaction, Entry, Label, MessageEntry, moves_leaf


class Row(msgspec.Struct, frozen=True, kw_only=True):
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
    """

    entry: Entry
    folded: tuple[Entry, ...] = ()
    label: str | None = None
    depth: int = 0
    begins: bool = False
    rails: tuple[bool, ...] = ()
    is_fork: bool = False
    is_leaf: bool = False
    is_current: bool = False

    @property
    def is_landmark(self) -> bool:
        """Whether a reader looks for it: a place where something was decided, marked or summed up."""
        is_marked = self.is_fork or self.is_leaf or self.label is not None
        return is_marked or isinstance(self.entry, Compaction | BranchSummary)

    @property
    def count(self) -> int:
        """How many entries it stands for."""
        return 1 + len(self.folded)


class Fold(msgspec.Struct, frozen=True, kw_only=True):
    """A run of rows of one column, folded away."""

    rows: tuple[Row | Fold, ...]
    depth: int
    rails: tuple[bool, ...]
    is_current: bool

    @property
    def begins(self) -> bool:
        """Whether a branch begins with it."""
        return self.rows[0].begins

    @property
    def is_landmark(self) -> bool:
        """What is folded away is none."""
        return False

    @property
    def count(self) -> int:
        """How many entries it stands for."""
        return sum(row.count for row in self.rows)


# --- the rows --------------------------------------------------------------------------------------------------------


def outline(transcript: Transcript, *, leaf_id: str | None = None, folds: bool = True) -> list[Row]:
    """A transcript's tree, from the root downwards.

    Free metadata has no row: it is about the session, not about a place in it.

    Args:
        transcript: all of the session.
        leaf_id: where the conversation goes on; None takes the transcript's own leaf.
        folds: whether tool results and labels are folded into the rows that they belong to.
    """
    return _Outline(transcript, leaf_id if leaf_id is not None else transcript.leaf_id, folds=folds).rows()


class _Outline:
    """The state of one outline: who follows whom, how much hangs on each, and which way leads to the leaf."""

    def __init__(self, transcript: Transcript, leaf_id: str | None, *, folds: bool) -> None:
        self._transcript = transcript
        self._leaf_id = leaf_id
        self._folds = folds
        self._current = {entry.id for entry in transcript.path(leaf_id)} if leaf_id is not None else set()
        self._sizes: dict[str, int] = {}
        for entry in reversed(transcript.entries):  # children come after their parents
            self._sizes[entry.id] = 1 + sum(self._sizes[child.id] for child in transcript.children(entry.id))

    def rows(self) -> list[Row]:
        rows: list[Row] = []
        roots = [root for root in self._transcript.children(None) if self._is_drawn(root)]
        waiting: list[tuple[Entry, bool, tuple[bool, ...]]] = [  # the next one to be drawn is the last one
            (root, True, ()) for root in reversed(roots)
        ]
        while waiting:
            entry, begins, rails = waiting.pop()
            folded, children = self._gathered(entry)
            is_leaf = any(piece.id == self._leaf_id for piece in (entry, *folded))
            going_on = None if is_leaf else self._going_on(children)
            leaving = [child for child in children if child is not going_on]
            if going_on is not None:
                waiting.append((going_on, False, rails))
            waiting += [
                (child, True, (*rails, going_on is not None or child is not leaving[-1])) for child in reversed(leaving)
            ]
            rows.append(
                Row(
                    entry=entry,
                    folded=tuple(folded),
                    label=self._transcript.labels.get(entry.id),
                    depth=len(rails),
                    begins=begins,
                    rails=rails,
                    is_fork=bool(leaving),
                    is_leaf=is_leaf,
                    is_current=entry.id in self._current,
                )
            )
        return rows

    def _gathered(self, entry: Entry) -> tuple[list[Entry], list[Entry]]:
        """What is folded into an entry's row, and the rows that follow it."""
        folded: list[Entry] = []
        calls = _call_ids(entry)
        while True:
            labels, children = self._following((folded or [entry])[-1])
            if self._folds and len(children) == 1 and self._is_answer(children[0], calls):
                folded += [*labels, children[0]]
            else:
                return [*folded, *labels], children

    def _following(self, entry: Entry) -> tuple[list[Entry], list[Entry]]:
        """The labels that are folded into an entry, and what follows it or them."""
        labels: list[Entry] = []
        children: list[Entry] = []
        waiting = self._transcript.children(entry.id)[::-1]
        while waiting:
            child = waiting.pop()
            if self._folds and isinstance(child, Label):
                labels.append(child)
                waiting += reversed(self._transcript.children(child.id))
            elif self._is_drawn(child):
                children.append(child)
        return labels, children

    def _is_drawn(self, entry: Entry) -> bool:
        return moves_leaf(entry) or self._sizes[entry.id] > 1

    def _is_answer(self, entry: Entry, calls: set[str | None]) -> bool:
        """Whether an entry is a result that needs no row: a bookmark would deserve one."""
        if not isinstance(entry, MessageEntry) or entry.id in self._transcript.labels:
            return False
        return entry.message.is_tool_result and (entry.message.tool_call_id or None) in calls

    def _going_on(self, children: Sequence[Entry]) -> Entry | None:
        """The child that keeps the column: the current one, or else the largest, of several the newest."""
        on_the_way = next((child for child in children if child.id in self._current), None)
        if on_the_way is not None or not children:
            return on_the_way
        return max(reversed(children), key=lambda child: self._sizes[child.id])


def _call_ids(entry: Entry) -> set[str | None]:
    calls = entry.message.tool_calls or () if isinstance(entry, MessageEntry) else ()
    return {call.id for call in calls}


# --- folding runs ----------------------------------------------------------------------------------------------------


def fold_runs(
    rows: Iterable[Row | Fold], *, stays: Callable[[Row | Fold], bool], longest: int, edges: tuple[int, int]
) -> list[Row | Fold]:
    """Fold the middle of every long run of rows in one column.

    Args:
        rows: as `outline` gives them, or folded already.
        stays: what ends a run and is never folded.
        longest: how many rows a run may have before it is folded.
        edges: how many rows remain at the beginning and at the end of a folded run.
    """
    kept: list[Row | Fold] = []
    runs = 0

    def run_of(row: Row | Fold) -> tuple[bool, int, int]:
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
