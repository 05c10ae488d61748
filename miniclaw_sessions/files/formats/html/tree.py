"""The tree of a session as nested lists: the page's table of contents, which folds and links without any script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from miniclaw_sessions.core.history.first_words import first_words, speaker
from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.files.formats.html.articles import anchor, kind_of
from miniclaw_sessions.files.formats.html.prose import escaped
from miniclaw_sessions.files.formats.outline import Fold, NumberedRow, fold_runs

LONGEST_WORK, LONGEST_RUN = 3, 60
"""Of more steps than `LONGEST_WORK` between two user messages only the last one is shown, mostly the answer; of a run
of more rows than `LONGEST_RUN` only `EDGES`. The rest unfolds at a click."""

EDGES = (20, 20)


AT_ONCE = 200
"""How many rows of a fold are read at a time when it is unfolded."""


class Line(NamedTuple):
    """What the tree shows of an entry: its id and place in the log, its class (`kind_of`), who spoke, how it begins."""

    entry_id: str
    sequence: int
    kind: str
    who: str
    words: str


def line_of(entry: Entry) -> Line:
    """An entry as a line of the tree."""
    kind, who, words = kind_of(entry), speaker(entry), first_words(entry)
    return Line(entry.id, entry.sequence, kind, who, f"{who} {words}" if kind == "note" else words)


def folded(rows: Iterable[NumberedRow]) -> list[NumberedRow | Fold]:
    """The rows of an outline, long runs folded."""
    steps = fold_runs(rows, stays=_is_milestone, longest=LONGEST_WORK, edges=(0, 1))
    return fold_runs(steps, stays=lambda row: row.is_landmark, longest=LONGEST_RUN, edges=EDGES)


def unfolded(rows: Sequence[NumberedRow]) -> list[NumberedRow | Fold]:
    """The rows that a fold stands for, as a run of their own; those beyond `AT_ONCE` are a fold again."""
    plain = [msgspec.structs.replace(row, depth=0, begins=False) for row in rows]
    rest = tuple(plain[AT_ONCE:])
    return [*plain[:AT_ONCE], *([Fold(rows=rest, depth=0, rails=(), is_current=rest[0].is_current)] if rest else [])]


def rows_read(rows: Iterable[NumberedRow | Fold]) -> Iterator[NumberedRow]:
    """What `tree_list` reads of rows whose folds are not whole."""
    for row in rows:
        yield from (_end(row, place) for place in ((0, -1) if isinstance(row, Fold) else (0,)))


def tree_list(
    rows: Iterable[NumberedRow | Fold], read: Callable[[NumberedRow], Line], *, is_whole: bool = True
) -> Iterator[str]:
    """The rows as nested lists; a branch that was left is a list within the row it leaves.

    Args:
        rows: folded ones.
        read: what is shown of a row.
        is_whole: whether what is folded is there, too; else the places of the entries with which it begins and ends.
    """
    depth = -1  # of the list item that is still open; all lists above it are open, too
    for row in rows:
        while depth > row.depth:
            yield "</li></ol>"
            depth -= 1
        if depth == row.depth:
            yield "</li></ol><ol>" if row.begins else "</li>"
        else:
            yield "<ol>"
        yield from _item(row, read, is_whole=is_whole)
        depth = row.depth
    yield "</li></ol>" * (depth + 1)


def _is_milestone(row: NumberedRow | Fold) -> bool:
    """What a reader looks for: landmarks, where branches begin, and what people said."""
    return row.is_landmark or row.begins or (not isinstance(row, Fold) and row.is_user)


def _item(row: NumberedRow | Fold, read: Callable[[NumberedRow], Line], *, is_whole: bool) -> Iterator[str]:
    """A list item, its end left out: branches may follow within it."""
    if not isinstance(row, Fold):
        line = read(row)
        label = "" if row.label is None else f'<span class="label">{escaped(row.label)}</span>'
        leaf = '<span class="here">leaf</span>' if row.is_leaf else ""
        link = f'href="#{anchor(line.entry_id)}" data-n="{line.sequence}" title="{escaped(line.who)}"'
        on = " on" if row.is_current else ""
        yield f'<li class="{line.kind}{on}"><a {link} dir="auto">{leaf}{label}{escaped(line.words)}</a>'
        return
    first, last = (read(_end(row, place)).sequence for place in (0, -1))
    ends = "" if is_whole else f' data-first="{first}" data-last="{last}"'
    yield f'<li class="fold"><details{ends}><summary>{row.count} more</summary>'
    if is_whole:
        yield "<ol>"
        for one in row.rows:
            yield from _item(one, read, is_whole=True)
            yield "</li>"
        yield "</ol>"
    yield "</details>"


def _end(row: NumberedRow | Fold, place: int) -> NumberedRow:
    """The first row (0) or the last one (-1) that is folded away."""
    return _end(row.rows[place], place) if isinstance(row, Fold) else row
