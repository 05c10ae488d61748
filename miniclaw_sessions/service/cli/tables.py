"""Rows under headings: for a terminal of any width, and for a pipe.

A pipe or a file gets a line for each row: the cells with a tab between them, without headings, padding or colours,
ids and times in full, numbers without separators and sizes in bytes. What would begin another cell or line is escaped.
All commands show rows through here.

A terminal gets a table; see `table_layout`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from miniclaw_sessions.service.cli.output import Brief, local_time, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    Cell = str | Text | datetime | Brief


class Rows:
    """Cells under headings; a time is shown as an age on a terminal.

    Args:
        headings: one for each column; empty: it has none.
        headed: whether a terminal shows them.
        now: what ages count from; only needed where there are times.
        numeric: the columns that are right-aligned.
        cut: those that may lose their end where there is no room.
        fold: those that may go on on the next line.
        title: what a narrow terminal begins each row with, and the time behind it; None: the first column.
    """

    def __init__(  # noqa: PLR0913 - each can be left out
        self,
        *headings: str,
        headed: bool = True,
        now: datetime | None = None,
        numeric: Collection[str] = (),
        cut: Collection[str] = (),
        fold: Collection[str] = (),
        title: str | None = None,
    ) -> None:
        self._headings = headings if headed else [""] * len(headings)
        self._now = now
        self._numeric = [heading in numeric for heading in headings]
        self._cut = [heading in cut for heading in headings]
        self._gives_way = [heading in cut or heading in fold for heading in headings]
        self._title = None if title is None else headings.index(title)
        self._cells: list[tuple[Sequence[Cell], str]] = []

    def __len__(self) -> int:
        return len(self._cells)

    def add(self, *cells: Cell, style: str = "") -> None:
        """Add a row; control characters in it are shown, never obeyed."""
        self._cells.append((cells, style))

    # --- for a pipe --------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """A line for each row, made without rich."""
        return "".join("\t".join(map(self._plain, cells, self._numeric)) + "\n" for cells, _ in self._cells)

    def _plain(self, cell: Cell, is_numeric: bool) -> str:
        if isinstance(cell, datetime):
            return local_time(cell)
        if isinstance(cell, Brief):
            return one_line(cell.whole)
        text = one_line(cell)
        return text.replace(",", "") if is_numeric else text

    # --- for a terminal ----------------------------------------------------------------------------------------------

    def lines(self, console: Console) -> list[Text]:
        """The lines for a terminal of this width."""
        from miniclaw_sessions.service.cli.table_layout import Layout  # noqa: PLC0415 - rich is a fifth of `list`'s time

        layout = Layout(self._headings, self._cells, self._numeric, self._cut, self._gives_way, self._now, self._title)
        return layout.lines(console)
