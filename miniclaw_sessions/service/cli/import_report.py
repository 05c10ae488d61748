"""What became of imported files, for people: a line of numbers for each, then what was wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from miniclaw_sessions.service.cli.output import one_line
from miniclaw_sessions.service.cli.tables import Rows

Document = dict[str, Any]

SHOWN_FINDINGS = 20
"""At most this many findings of a file are shown, unless all are wanted."""

NARROW = 72
"""On a terminal of fewer columns each file stands by itself."""

_NUMBERS = ("ENTRIES", "MESSAGES", "REPAIRED", "SET ASIDE", "SECONDS")
_LONGEST_NAME = 40
_GAP = "  "


def report_rows(imported: Sequence[Document]) -> Rows:
    """A row for each file: what it was, its numbers, and the session that it became, or would become."""
    rows = Rows("FILE", "FORMAT", *_NUMBERS, "SESSION", "TITLE", numeric=_NUMBERS, fold={"FILE", "SESSION", "TITLE"})
    for document in imported:
        numbers = _numbers(document)
        rows.add(document["path"], document["format"], *numbers, document["session_id"], document["title"] or "")
    return rows


def report_lines(imported: Sequence[Document], console: Console) -> Iterator[Text]:
    """The same for a terminal: of each file its numbers, and on the line below the session.

    Args:
        imported: what became of each file, as `POST /v1/import` gives it, with its `path` and its `seconds`.
        console: the terminal.
    """
    width = console.width
    if width < NARROW:
        yield from report_rows(imported).lines(console)
        return
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


def finding_lines(document: Document, *, shows_all: bool) -> Iterator[Text]:
    """What was repaired in a file, and what was set aside, below its name; nothing where there were no findings."""
    findings: list[Document] = document["findings"]
    if not findings:
        return
    shown = findings if shows_all else findings[:SHOWN_FINDINGS]
    yield Text(f"\n{one_line(document['path'])}", "bold")
    for finding in shown:
        place = f"line {finding['line']}" if finding["line"] else "the file"
        outcome = (finding["outcome"], "yellow")
        yield Text.assemble(_GAP, place, _GAP, outcome, _GAP, one_line(finding["text"]))
    if rest := document["repaired"] + document["set_aside"] - len(shown):
        hint = "" if shows_all else "; --verbose shows them"
        yield Text(f"{_GAP}{rest} more{hint}", "dim")


def _numbers(document: Document) -> tuple[str, ...]:
    counts = (document[name] for name in ("entries", "messages", "repaired", "set_aside"))
    return (*map(str, counts), f"{document['seconds']:.1f}")


def _ending(name: str, width: int) -> str:
    """A name in exactly `width` columns; of a longer one the end, in which files of a directory differ."""
    if cell_len(name) <= width:
        return set_cell_size(name, width)
    while cell_len(name) > width - 1:
        name = name[1:]
    return set_cell_size(f"…{name}", width)
