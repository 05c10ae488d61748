"""Rows as a terminal shows them; the only part of tables that needs rich, which is slow to load.

Where a table is too wide, the columns of texts give way first; where these would become too narrow to be read, each row
stands by itself: its title and its time, or its first cell, and below that the other cells. No id is ever cut.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from rich.text import Text

from miniclaw_sessions.service.cli.output import Brief, age, one_line

if TYPE_CHECKING:
    from rich.console import Console

    Cell = str | Text | datetime | Brief

GAP = "  "
_ONE = {"messages": "message", "entries": "entry", "replies": "reply"}
NARROWEST = 16
"""The least width of a column of texts, unless its longest text is shorter."""


class Layout(NamedTuple):
    """A table for a terminal.

    Attributes:
        headings: one for each column; empty: the column has none.
        cells: the rows, each with its style.
        numeric: whether a column is right-aligned.
        cut: whether a column may lose the end of its texts where room is short.
        gives_way: whether a column may be narrowed.
        now: the time that ages count from.
        title: the column that a row begins with where it stands by itself; None: the first one.
    """

    headings: Sequence[str]
    cells: Sequence[tuple[Sequence[Cell], str]]
    numeric: Sequence[bool]
    cut: Sequence[bool]
    gives_way: Sequence[bool]
    now: datetime | None
    title: int | None

    def lines(self, console: Console) -> list[Text]:
        """The lines for a terminal of this width."""
        rows = [([self._shown(cell) for cell in cells], style) for cells, style in self.cells]
        widths = self._widths([cells for cells, _ in rows], console.width)
        if widths is None:
            return list(self._alone(rows, console) if self.title is None else self._titled(rows, self.title, console))
        lines = []
        if any(self.headings):
            lines.append(self._line([Text(heading) for heading in self.headings], widths, "bold"))
        for cells, style in rows:
            folded = [self._fitted(*cell, console) for cell in zip(cells, widths, self.cut, strict=True)]
            lines += [self._line(pieces, widths, style) for pieces in zip_longest(*folded, fillvalue=Text())]
        return lines

    def _shown(self, cell: Cell) -> Text:
        if isinstance(cell, datetime):
            return Text(age(cell, cell if self.now is None else self.now))
        if isinstance(cell, Brief):
            return Text(one_line(cell.shown))
        return Text(one_line(cell)) if isinstance(cell, str) else cell

    def _widths(self, rows: Sequence[Sequence[Text]], width: int) -> list[int] | None:
        """How wide each column is; None where the terminal is too narrow for a table."""
        widths = [
            max(cell_len(heading), *(cells[column].cell_len for cells in rows), 0)
            for column, heading in enumerate(self.headings)
        ]
        room = width - len(GAP) * (len(widths) - 1)
        giving = sorted((column for column, gives in enumerate(self.gives_way) if gives), key=lambda one: widths[one])
        room -= sum(size for column, size in enumerate(widths) if column not in giving)
        for place, column in enumerate(giving):
            fair = room // (len(giving) - place)
            if fair < min(widths[column], NARROWEST):
                return None
            widths[column] = min(widths[column], fair)
            room -= widths[column]
        return widths if room >= 0 else None

    def _fitted(self, cell: Text, width: int, is_cut: bool, console: Console) -> list[Text]:
        if is_cut:
            cell = cell.copy()
            cell.truncate(width, overflow="ellipsis")
        return list(cell.wrap(console, max(width, 1)))

    def _line(self, cells: Sequence[Text], widths: Sequence[int], style: str) -> Text:
        line = Text(style=style)
        for place, (cell, width, is_numeric) in enumerate(zip(cells, widths, self.numeric, strict=True)):
            cell.rstrip()
            blank = " " * (width - cell.cell_len)
            line.append(GAP if place else "")
            line = line.append(blank).append_text(cell) if is_numeric else line.append_text(cell).append(blank)
        line.rstrip()
        return line

    def _alone(self, rows: Sequence[tuple[Sequence[Text], str]], console: Console) -> Iterator[Text]:
        """Each row by itself: its first cell, its texts, and its facts with the words of their headings."""
        leading = next((place for place, heading in enumerate(self.headings) if heading), 0)
        for cells, style in rows:
            first = Text(" ").join(cell for cell in cells[: leading + 1] if cell)
            first.stylize("bold")
            columns = list(zip(cells, self.headings, self.numeric, self.gives_way, self.cut, strict=True))
            rest = [column for column in columns[leading + 1 :] if column[0]]
            facts = [_fact(*column[:3]) for column in rest if not column[3]]
            beside = Text(GAP).join([first, *_packed(facts, sys.maxsize)])
            is_beside = beside.cell_len <= console.width
            yield from self._indented(beside if is_beside else first, "", style, console)
            for cell, _, _, gives_way, is_cut in rest:
                if gives_way:
                    yield from self._indented(cell, GAP, style, console, is_cut=is_cut)
            for line in () if is_beside else _packed(facts, console.width - len(GAP)):
                yield from self._indented(line, GAP, style, console)

    def _titled(self, rows: Sequence[tuple[Sequence[Text], str]], title: int, console: Console) -> Iterator[Text]:
        """Each row by itself: its title with its time at the right; below it the id and the facts."""
        leading = next(place for place, heading in enumerate(self.headings) if heading)
        time = next((place for place, cell in enumerate(self.cells[0][0]) if isinstance(cell, datetime)), None)
        room = console.width - len(GAP)
        for cells, style in rows:
            head = title if cells[title] else leading
            first = Text(" ").join([*filter(None, cells[:leading]), cells[head]])
            first.stylize("bold")
            when = Text() if time is None else Text(GAP, "dim").append_text(cells[time])
            is_beside = head == title or first.cell_len + when.cell_len <= console.width
            if is_beside:
                first.truncate(console.width - when.cell_len, overflow="ellipsis", pad=bool(when))
                yield Text(style=style).append_text(first).append_text(when)
            else:  # an id is never cut
                yield from self._indented(first, "", style, console)
            shown = [place for place in range(leading, len(cells)) if place not in (head, time) and cells[place]]
            texts = [place for place in shown if self.gives_way[place] and place != leading]
            for place in texts:
                yield from self._indented(cells[place], GAP, style, console, is_cut=self.cut[place])
            facts = [
                cells[place] if place == leading else _fact(cells[place], self.headings[place], self.numeric[place])
                for place in shown
                if place not in texts
            ]
            if not is_beside:
                facts.append(when[len(GAP) :])
            for line in _packed(facts, room):
                yield from self._indented(line, GAP, style, console)

    def _indented(
        self, text: Text, indent: str, style: str, console: Console, *, is_cut: bool = False
    ) -> Iterator[Text]:
        for piece in self._fitted(text, console.width - len(indent), is_cut, console):
            piece.rstrip()
            yield Text(indent, style=style).append_text(piece)


def _fact(cell: Text, heading: str, is_numeric: bool) -> Text:
    word = heading.lower()
    if is_numeric and cell.plain == "1":
        word = _ONE.get(word, word)
    said = Text.assemble(cell, f" {word}") if is_numeric and word else Text.assemble(f"{word} " if word else "", cell)
    said.stylize("dim")
    return said


def _packed(facts: Sequence[Text], width: int) -> Iterator[Text]:
    """As many facts on each line as have room there."""
    separator = Text(" · ", "dim")
    held: list[Text] = []
    for fact in facts:
        if held and separator.join([*held, fact]).cell_len > width:
            yield separator.join(held)
            held = []
        held.append(fact)
    if held:
        yield separator.join(held)
