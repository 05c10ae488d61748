"""Rows under headings: for a terminal of any width, and for a pipe.

A pipe or a file gets a line for each row: the cells with a tab between them, without headings, padding or colours,
times in full and numbers without separators. Whatever shows rows does it through here, so all commands do it alike.

A terminal gets a table. Where that is too wide, the columns of texts give way first; where these would become too
narrow to be read, each row stands by itself: its first cell, and below what the others say.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING

from miniclaw_sessions.service.cli.output import age, local_time, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    Cell = str | Text | datetime

GAP = "  "
NARROWEST = 16
"""A column of texts is never narrower than this, or than what stands in it."""


class Rows:
    """Cells under headings; a time is shown as an age on a terminal.

    Args:
        headings: one for each column; empty: it has none.
        headed: whether a terminal shows them.
        now: what ages count from; only needed where there are times.
        numeric: the columns that are right-aligned.
        cut: those that may lose their end where there is no room.
        fold: those that may go on on the next line.
    """

    def __init__(
        self,
        *headings: str,
        headed: bool = True,
        now: datetime | None = None,
        numeric: Collection[str] = (),
        cut: Collection[str] = (),
        fold: Collection[str] = (),
    ) -> None:
        self._headings = headings if headed else [""] * len(headings)
        self._now = now
        self._numeric = [heading in numeric for heading in headings]
        self._cut = [heading in cut for heading in headings]
        self._gives_way = [heading in cut or heading in fold for heading in headings]
        self._rows: list[tuple[Sequence[Cell], str]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, *cells: Cell, style: str = "") -> None:
        """A further row; what strangers wrote in it is shown, never obeyed."""
        self._rows.append((cells, style))

    # --- for a pipe --------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """A line for each row; rich is not even loaded."""
        return "".join("\t".join(map(self._plain, cells, self._numeric)) + "\n" for cells, _ in self._rows)

    def _plain(self, cell: Cell, is_numeric: bool) -> str:
        if isinstance(cell, datetime):
            return local_time(cell)
        text = one_line(cell)
        return text.replace(",", "") if is_numeric else text

    # --- for a terminal ----------------------------------------------------------------------------------------------

    def lines(self, console: Console) -> list[Text]:
        """What a terminal of this width shows."""
        rows = [([self._shown(cell) for cell in cells], style) for cells, style in self._rows]
        widths = self._widths([cells for cells, _ in rows], console.width)
        shown = self._alone(rows, console) if widths is None else self._aligned(rows, widths, console)
        return list(shown)

    def _shown(self, cell: Cell) -> Text:
        from rich.text import Text  # noqa: PLC0415 - a pipe does without

        if isinstance(cell, datetime):
            return Text(age(cell, cell if self._now is None else self._now))
        return Text(one_line(cell)) if isinstance(cell, str) else cell

    def _widths(self, rows: Sequence[Sequence[Text]], width: int) -> list[int] | None:
        """How wide each column is; None where the terminal is too narrow for a table."""
        from rich.cells import cell_len  # noqa: PLC0415 - as above

        widths = [
            max(cell_len(heading), *(cells[column].cell_len for cells in rows), 0)
            for column, heading in enumerate(self._headings)
        ]
        room = width - len(GAP) * (len(widths) - 1)
        giving = sorted((column for column, gives in enumerate(self._gives_way) if gives), key=lambda one: widths[one])
        room -= sum(size for column, size in enumerate(widths) if column not in giving)
        for place, column in enumerate(giving):
            fair = room // (len(giving) - place)
            if fair < min(widths[column], NARROWEST):
                return None
            widths[column] = min(widths[column], fair)
            room -= widths[column]
        return widths if room >= 0 else None

    def _aligned(
        self, rows: Sequence[tuple[Sequence[Text], str]], widths: Sequence[int], console: Console
    ) -> Iterator[Text]:
        from rich.text import Text  # noqa: PLC0415 - as above

        if any(self._headings):
            yield self._line([Text(heading) for heading in self._headings], widths, "bold")
        for cells, style in rows:
            folded = [self._fitted(*cell, console) for cell in zip(cells, widths, self._cut, strict=True)]
            for pieces in zip_longest(*folded):
                yield self._line([piece or Text() for piece in pieces], widths, style)

    def _fitted(self, cell: Text, width: int, is_cut: bool, console: Console) -> list[Text]:
        if is_cut:
            cell = cell.copy()
            cell.truncate(width, overflow="ellipsis")
        return list(cell.wrap(console, max(width, 1)))

    def _line(self, cells: Sequence[Text], widths: Sequence[int], style: str) -> Text:
        from rich.text import Text  # noqa: PLC0415 - as above

        line = Text(style=style)
        for place, (cell, width, is_numeric) in enumerate(zip(cells, widths, self._numeric, strict=True)):
            cell.rstrip()
            blank = " " * (width - cell.cell_len)
            line.append(GAP if place else "")
            line = line.append(blank).append_text(cell) if is_numeric else line.append_text(cell).append(blank)
        line.rstrip()
        return line

    def _alone(self, rows: Sequence[tuple[Sequence[Text], str]], console: Console) -> Iterator[Text]:
        """Each row by itself: its first cell, its texts, and its facts with the words of their headings."""
        from rich.text import Text  # noqa: PLC0415 - as above

        leading = next((place for place, heading in enumerate(self._headings) if heading), 0)
        for cells, style in rows:
            first = Text(" ").join(cell for cell in cells[: leading + 1] if cell)
            first.stylize("bold")
            columns = list(zip(cells, self._headings, self._numeric, self._gives_way, self._cut, strict=True))
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

    def _indented(
        self, text: Text, indent: str, style: str, console: Console, *, is_cut: bool = False
    ) -> Iterator[Text]:
        from rich.text import Text  # noqa: PLC0415 - as above

        for piece in self._fitted(text, console.width - len(indent), is_cut, console):
            piece.rstrip()
            yield Text(indent, style=style).append_text(piece)


def _fact(cell: Text, heading: str, is_numeric: bool) -> Text:
    from rich.text import Text  # noqa: PLC0415 - as above

    word = heading.lower()
    said = Text.assemble(cell, f" {word}") if is_numeric and word else Text.assemble(f"{word} " if word else "", cell)
    said.stylize("dim")
    return said


def _packed(facts: Sequence[Text], width: int) -> Iterator[Text]:
    """As many facts on each line as have room there."""
    from rich.text import Text  # noqa: PLC0415 - as above

    separator = Text(" · ", "dim")
    held: list[Text] = []
    for fact in facts:
        if held and separator.join([*held, fact]).cell_len > width:
            yield separator.join(held)
            held = []
        held.append(fact)
    if held:
        yield separator.join(held)
