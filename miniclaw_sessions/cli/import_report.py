"""What became of imported files, for people: a line of numbers for each, then what was wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from miniclaw_sessions.cli.output import one_line, plain_table

Document = dict[str, Any]

SHOWN_FINDINGS = 20
"""So many findings of a file are shown unless all are wanted."""

_NUMBERS = ("ENTRIES", "MESSAGES", "REPAIRED", "SET ASIDE", "SECONDS")
_LONGEST_NAME = 40
_GAP = "  "


def report_lines(imported: Sequence[Document], *, width: int) -> Iterator[Text]:
    """The table: of each file its numbers, and on the line below the session that it became.

    Args:
        imported: what became of each file, as `POST /v1/import` tells it, with its `path` and its `seconds`.
        width: of the terminal, in columns.
    """
    names = [one_line(document["path"]) for document in imported]
    formats = [one_line(document["format"]) for document in imported]
    of_format = max(map(cell_len, [*formats, "FORMAT"]))
    of_numbers = sum(len(_GAP) + len(heading) for heading in _NUMBERS)
    longest = min(max(map(cell_len, [*names, "FILE"])), _LONGEST_NAME)
    of_name = max(min(longest, width - of_numbers - of_format - len(_GAP)), len("FILE"))
    yield Text(_GAP.join([set_cell_size("FILE", of_name), set_cell_size("FORMAT", of_format), *_NUMBERS]), "bold")
    for name, form, document in zip(names, formats, imported, strict=True):
        line = Text(f"{_ending(name, of_name)}{_GAP}{set_cell_size(form, of_format)}")
        for heading, number in zip(_NUMBERS, _numbers(document), strict=True):
            is_wrong = heading in ("REPAIRED", "SET ASIDE") and number != "0"
            line.append(_GAP).append(number.rjust(len(heading)), "yellow" if is_wrong else "")
        yield line
        verb = "would become" if document["dry_run"] else "→"
        session = f"  {verb} {one_line(document['session_id'])}"
        line = Text(f"{session}  {one_line(document['title'])}".rstrip(), "dim")
        line.truncate(max(width, cell_len(session)), overflow="ellipsis")
        yield line


def finding_table(document: Document, *, shows_all: bool) -> Table:
    """What was repaired in a file, and what was set aside; at most `SHOWN_FINDINGS` unless all are wanted."""
    table: Table = plain_table("", "", "")
    table.show_header = False
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    for finding in _shown(document, shows_all=shows_all):
        place = f"  line {finding['line']}" if finding["line"] else "  the file"
        table.add_row(place, Text(finding["outcome"], "yellow"), one_line(finding["text"]))
    return table


def untold(document: Document, *, shows_all: bool) -> int:
    """How many findings the table leaves out."""
    total: int = document["repaired"] + document["set_aside"]
    return total - len(_shown(document, shows_all=shows_all))


def _shown(document: Document, *, shows_all: bool) -> list[Document]:
    findings: list[Document] = document["findings"]
    return findings if shows_all else findings[:SHOWN_FINDINGS]


def _numbers(document: Document) -> tuple[str, ...]:
    counts = (document[name] for name in ("entries", "messages", "repaired", "set_aside"))
    return (*map(str, counts), f"{document['seconds']:.1f}")


def _ending(name: str, width: int) -> str:
    """A name in exactly so many columns; of a longer one the end, which tells files of one directory apart."""
    if cell_len(name) <= width:
        return set_cell_size(name, width)
    while cell_len(name) > width - 1:
        name = name[1:]
    return set_cell_size(f"…{name}", width)
