"""A session's tree in a terminal, as `git log --graph` would draw it: one line per entry, oldest first.

    ● user       Why do logins fail?                                                 2026-03-14 09:26
    ● assistant  I'll search first. → grep utcnow [start]                                       09:27
    ├─○ assistant  It might be the cache.                                                       09:27
    │ ○ user       There is no cache here.                                                      09:28
    │ … 12 more entries
    ● assistant  Found it.                                                                      09:31
    ● user       Thank you. ◀                                                                   09:32

The current branch is the straight line on the left, bright, down to the leaf; what was left stands aside, dim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, tzinfo

import msgspec
from rich.text import Text

from miniclaw_sessions.core.history.first_words import first_words, one_line, speaker
from miniclaw_sessions.core.history.transcript import Transcript
from miniclaw_sessions.core.protocol.entries import BranchSummary, Compaction, Entry, MessageEntry
from miniclaw_sessions.files.formats.outline import Fold, Row, fold_runs, outline
from miniclaw_sessions.service.cli.entry_names import ShortIds

LONGEST_RUN, EDGES = 12, (4, 4)
"""A run of more lines than `LONGEST_RUN` is folded; `EDGES` of them remain at its beginning and its end."""

NARROWEST = 40
"""The tree is drawn as if the terminal had at least this many columns."""

_STYLES = {"user": "cyan", "assistant": "green", "system": "magenta"}  # as messages have them in `cli.output`
_OTHER_STYLE = "yellow"


class Characters(msgspec.Struct, frozen=True):
    """What a tree is drawn with."""

    rail: str
    fork: str
    last_fork: str
    current: str
    left: str
    event: str
    summary: str
    leaf: str
    dots: str


BOX = Characters("│ ", "├─", "╰─", "●", "○", "·", "■", "◀", "…")
ASCII = Characters("| ", "|-", "`-", "*", "o", ".", "#", "<", "...")
_IN_ASCII = str.maketrans({"→": "->", "…": "..."})


def draw_tree(  # noqa: PLR0913 - each can be left out
    entries: Iterable[Entry] | Transcript,
    *,
    width: int,
    show_all: bool = False,
    encoding: str = "utf-8",
    zone: tzinfo | None = None,
    ids: ShortIds | None = None,
) -> Iterator[Text]:
    """The tree of a session, line by line; no line is wider than the terminal.

    Args:
        entries: all entries, in the order in which they were logged; or what was made of them.
        width: of the terminal, in columns; taken as `NARROWEST` at least.
        show_all: every entry on a line of its own: tool results, labels, and the middle of long runs, too.
        encoding: of the terminal; without box characters in it, the tree is drawn in ASCII.
        zone: of the times; None is this machine's.
        ids: what stands of the entries' ids in front of the lines; None shows none.
    """
    transcript = entries if isinstance(entries, Transcript) else Transcript(entries)
    rows: list[Row | Fold] = [*outline(transcript, folds=not show_all)]
    if not show_all:
        rows = fold_runs(rows, stays=lambda row: row.is_landmark, longest=LONGEST_RUN, edges=EDGES)
    drawing = _Drawing(max(width, NARROWEST), encoding, zone, ids)
    for index, row in enumerate(rows):
        if row.begins and row.depth == 0 and index:
            yield drawing.new_beginning()
        yield drawing.fold(row) if isinstance(row, Fold) else drawing.row(row)


class _Drawing:
    """Draws one line after the other; the date stands where it changes."""

    def __init__(self, width: int, encoding: str, zone: tzinfo | None, ids: ShortIds | None) -> None:
        self._width = width
        self._encoding = encoding
        self._zone = zone
        self._ids = ids
        self._characters = BOX if _can_encode("".join(msgspec.structs.astuple(BOX)), encoding) else ASCII
        self._day: date | None = None

    def row(self, row: Row) -> Text:
        name = self._encodable(speaker(row.entry))
        is_event = not isinstance(row.entry, MessageEntry)
        weight = "bold" if row.is_current and not is_event else "dim"
        style = f"{weight} {_STYLES.get(name, '' if is_event else _OTHER_STYLE)}"
        line = self._id(row).append_text(self._graph(row))
        line.append(self._marker(row), style)
        line.append(f" {name:<10}", style)
        line.append(f" {self._encodable(first_words(row.entry))}", "" if weight == "bold" else "dim")
        signs, moment = self._signs(row), row.entry.timestamp.astimezone(self._zone)
        is_new_day, self._day = moment.date() != self._day, moment.date()
        when = Text(moment.strftime("  %Y-%m-%d %H:%M" if is_new_day else "  %H:%M"), "dim")
        line = self._cut(line, self._width - signs.cell_len - when.cell_len).append(signs)
        line.append(" " * (self._width - line.cell_len - when.cell_len))
        return line.append(when)

    def fold(self, fold: Fold) -> Text:
        line = self._id(None).append_text(self._graph(fold))
        line.append(f"{self._characters.dots} {fold.count} more entries", "dim italic")
        return self._cut(line, self._width)

    def new_beginning(self) -> Text:
        return self._id(None).append("a new beginning", "dim italic")

    def _id(self, row: Row | None) -> Text:
        """The end of the entry's id, or as much room."""
        line = Text(no_wrap=True)
        if self._ids is None:
            return line
        name = " " * self._ids.width if row is None else self._encodable(self._ids.cell(row.entry.id))
        return line.append(f"{name} ", "dim")

    def _graph(self, row: Row | Fold) -> Text:
        """The lines of the columns to the left of a row."""
        rails = [self._characters.rail if goes_on else "  " for goes_on in row.rails]
        if row.begins and rails:
            rails[-1] = self._characters.fork if row.rails[-1] else self._characters.last_fork
        return Text("".join(rails), "dim")

    def _marker(self, row: Row) -> str:
        if isinstance(row.entry, Compaction | BranchSummary):
            return self._characters.summary
        if not isinstance(row.entry, MessageEntry):
            return self._characters.event
        return self._characters.current if row.is_current else self._characters.left

    def _signs(self, row: Row) -> Text:
        """The label, and whether it is the leaf."""
        signs = Text()
        if row.label is not None:
            label = Text(f" [{self._encodable(one_line(row.label))}", "yellow" if row.is_current else "dim yellow")
            signs.append(self._cut(label, self._width // 3)).append("]", label.style)
        if row.is_leaf:
            signs.append(f" {self._characters.leaf}", "bold")
        return signs

    def _cut(self, line: Text, width: int) -> Text:
        if line.cell_len > width:
            line.truncate(width - len(self._characters.dots))
            line.append(self._characters.dots, "dim")
        return line

    def _encodable(self, text: str) -> str:
        """What the terminal's encoding has no character for is shown as a question mark."""
        if self._characters is BOX:
            return text
        return text.translate(_IN_ASCII).encode(self._encoding, "replace").decode(self._encoding)


def _can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
