"""The process that reads one document: `python -m ... LIBRARY PAGES CHARACTERS MEGABYTES SECONDS`, and the document.

The document comes on standard input, and is read with the library of this name.

It writes the text to standard output. It is started by `documents`, and trusts nothing in the document.
"""

from __future__ import annotations

import io
import math
import resource
import sys
from collections.abc import Iterable, Iterator
from itertools import islice

ENCRYPTED, TOO_LARGE = 3, 4
"""Its status where the document has a password, and where there is not enough memory."""

_CUT = "\n\n(The rest of the document is not shown: it is too long.)"


def main(library: str, pages: int, characters: int, megabytes: int, seconds: float) -> int:
    """Read a document within the bounds, and write its text. Returns the process's status."""
    resource.setrlimit(resource.RLIMIT_AS, (megabytes * 2**20,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds),) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        read = _READERS[library](sys.stdin.buffer.read())
        left = characters
        for number, page in enumerate(read):
            text = page.replace("\0", "")
            if number == pages or len(text) > left:
                _write(text[:left] * (number < pages) + _CUT)
                break
            _write(text)
            left -= len(text)
        sys.stdout.flush()
    except MemoryError:
        return TOO_LARGE
    return 0


def _write(text: str) -> None:
    sys.stdout.buffer.write(text.encode(errors="replace"))


def _pages(data: bytes) -> Iterator[str]:
    """The pages of a PDF."""
    from pypdf import PasswordType, PdfReader  # noqa: PLC0415 - only the one that is needed

    document = PdfReader(io.BytesIO(data))
    if document.is_encrypted and document.decrypt("") is PasswordType.NOT_DECRYPTED:
        sys.exit(ENCRYPTED)
    for number, page in enumerate(document.pages, 1):
        if text := page.extract_text().strip():
            yield f"\n[Page {number}]\n{text}\n"
        else:
            yield ""


def _paragraphs(data: bytes) -> Iterator[str]:
    """The text and the tables of a Word file; the file itself says nothing of pages: a screenful stands for one."""
    from docx import Document  # noqa: PLC0415 - only the one that is needed
    from docx.table import Table  # noqa: PLC0415 - same

    page: list[str] = []
    for block in Document(io.BytesIO(data)).iter_inner_content():
        rows = ([cell.text for cell in row.cells] for row in block.rows) if isinstance(block, Table) else [[block.text]]
        page += _lines(rows)
        if sum(map(len, page)) > _SCREENFUL:
            yield "".join(page)
            page.clear()
    yield "".join(page)


def _sheets(data: bytes) -> Iterator[str]:
    """The sheets of an Excel file, in pages of some hundred rows: what its formulas came to, not the formulas."""
    from openpyxl import load_workbook  # noqa: PLC0415 - only the one that is needed

    for sheet in load_workbook(io.BytesIO(data), read_only=True, data_only=True):
        yield f"\n[Sheet: {sheet.title}]\n"
        rows = sheet.iter_rows(values_only=True)
        while page := [*islice(rows, _ROWS)]:
            filled = (["" if value is None else str(value) for value in row] for row in page if any(row))
            yield "".join(_lines(filled))


def _lines(rows: Iterable[list[str]]) -> Iterator[str]:
    for row in rows:
        line = "\t".join(" ".join(cell.split()) for cell in row).rstrip()
        if line:
            yield f"{line}\n"


_SCREENFUL, _ROWS = 3_000, 100
_READERS = {"pypdf": _pages, "docx": _paragraphs, "openpyxl": _sheets}

if __name__ == "__main__":
    _, given_library, given_pages, given_characters, given_megabytes, given_seconds = sys.argv
    bounds = int(given_pages), int(given_characters), int(given_megabytes)
    sys.exit(main(given_library, *bounds, float(given_seconds)))
