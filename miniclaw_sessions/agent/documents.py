"""Documents in words: PDF, Word and Excel files, each read in a process of its own.

Anybody may send a document, and libraries that read them can be made to take all memory and time by a few bytes. The
process has bounds for both, writes no file, and is given nothing but the document.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from importlib.util import find_spec

import anyio

from miniclaw_sessions.agent.document_text import ENCRYPTED, TOO_LARGE
from miniclaw_sessions.config import DocumentSettings
from miniclaw_sessions.errors import FileNotTaken
from miniclaw_sessions.files.formats.attached import DOCX, MAX_TEXT_CHARACTERS, PDF, XLSX, Attached, in_bytes
from miniclaw_sessions.printable import printable

_LIBRARIES = {PDF: "pypdf", DOCX: "docx", XLSX: "openpyxl"}
_AT_ONCE = 2
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}  # numpy, where it is installed, would take all memory for its threads


class DocumentReader:
    """A `FileReader` for the documents whose libraries are installed (extra `documents`).

    Args:
        settings: the bounds.
    """

    def __init__(self, settings: DocumentSettings | None = None) -> None:
        self._settings = settings or DocumentSettings()
        is_on = self._settings.max_pages > 0
        found = [kind for kind, library in _LIBRARIES.items() if is_on and find_spec(library) is not None]
        self._kinds = frozenset(found)
        self._places = anyio.Semaphore(_AT_ONCE)

    @property
    def kinds(self) -> Collection[str]:
        """The media types of the documents that can be read here."""
        return self._kinds

    async def words(self, file: Attached) -> str:
        """What is written in a document, page by page, within the bounds; see `FileReader.words`."""
        if (data := in_bytes(file)) is None:
            raise _unreadable(file, "it is no base64")
        bounds = self._settings
        command = [sys.executable, "-I", "-m", "miniclaw_sessions.agent.document_text", _LIBRARIES[file.media_type]]
        command += map(str, (bounds.max_pages, MAX_TEXT_CHARACTERS, bounds.max_memory_mb, bounds.timeout_s))
        async with self._places:
            try:
                with anyio.fail_after(bounds.timeout_s):  # the process is ended with it
                    ended = await anyio.run_process(command, input=data, check=False, env=_ENVIRONMENT)
            except TimeoutError:
                raise _unreadable(file, f"that took longer than {bounds.timeout_s:g} s") from None
        match ended.returncode:
            case 0:
                return ended.stdout.decode(errors="replace")
            case code if code == ENCRYPTED:
                raise _unreadable(file, "it has a password")
            case code if code == TOO_LARGE:
                raise _unreadable(file, f"that took more than {bounds.max_memory_mb} MB of memory")
            case _:
                raise _unreadable(file, "it is damaged, or not what its name says")


def _unreadable(file: Attached, why: str) -> FileNotTaken:
    return FileNotTaken(f"{printable(file.name)} cannot be read: {why}")
