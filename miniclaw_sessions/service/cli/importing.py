"""Importing many files: which ones, one after the other, and what became of each."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.errors import ImportRefused, SessionExists, SessionsError
from miniclaw_sessions.service.cli.output import Report

if TYPE_CHECKING:
    from miniclaw_sessions.service.client import Client

Document = dict[str, Any]


class FoundFile(msgspec.Struct, frozen=True):
    """A file to import.

    Attributes:
        path: where it is.
        size: in bytes.
        is_named: whether it was asked for by itself, and not with its directory.
        problem: why it cannot be read, where that is known already.
    """

    path: Path
    size: int
    is_named: bool
    problem: str = ""


def found_files(paths: Sequence[Path], *, recursive: bool) -> list[FoundFile]:
    """The files that are meant, each once; of directories their files, without those whose name begins with a dot."""
    files: dict[Path, FoundFile] = {}
    for path in paths:
        if path.is_dir():
            for inner in _files_in(path, recursive=recursive):
                files.setdefault(inner, _found(inner, is_named=False))
        else:
            files[path] = _found(path, is_named=True)
    return list(files.values())


def _files_in(directory: Path, *, recursive: bool) -> Iterator[Path]:
    """The regular files of a directory by name; links to directories are not followed, they may run in a circle."""
    for parent, names, files in os.walk(directory):
        names[:] = sorted(name for name in names if recursive and not name.startswith("."))
        for name in sorted(files):
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():
                yield path


def _found(path: Path, *, is_named: bool) -> FoundFile:
    try:
        status = path.stat()
    except OSError as error:
        return FoundFile(path, 0, is_named, error.strerror or "it cannot be read")
    problem = "" if os.access(path, os.R_OK) else "permission denied"
    if not stat.S_ISREG(status.st_mode):  # a pipe would make us wait for ever
        problem = "it is not a regular file"
    return FoundFile(path, status.st_size, is_named, problem)


class Importing:
    """A run over some files.

    Attributes:
        imported: the report of each file that became a session, with its `path` and `seconds`.
        refused: path and reason of each file that was asked for and could not be imported.
        skipped: the same for files that only stand in a directory that was asked for, and are no sessions; and, where
            that was asked for, for files whose session is there already.
    """

    def __init__(
        self,
        files: Sequence[FoundFile],
        *,
        form: str | None = None,
        session_id: str | None = None,
        skip_existing: bool = False,
        dry_run: bool = False,
    ) -> None:
        self.imported: list[Document] = []
        self.refused: list[Document] = []
        self.skipped: list[Document] = []
        self._files = files
        self._form = form
        self._session_id = session_id
        self._skip_existing = skip_existing
        self._dry_run = dry_run

    def document(self) -> Document:
        """What became of all files."""
        return {"imported": self.imported, "refused": self.refused, "skipped": self.skipped}

    async def run(self, client: Client, report: Report) -> None:
        """Import the files in order; what is refused does not keep the others."""
        total = sum(file.size for file in self._files)
        before = 0
        for file in self._files:

            def on_sent(sent: int, _: int | None, before: int = before) -> None:
                report("importing", before + sent, total)

            report("importing", before, total)
            await self._import(client, file, on_sent)
            before += file.size

    async def _import(self, client: Client, file: FoundFile, on_sent: Callable[[int, int | None], None]) -> None:
        clock = SystemClock()
        began = clock.monotonic()
        path = os.fsencode(file.path).decode(errors="backslashreplace")
        if file.problem:
            self.refused.append({"path": path, "reason": file.problem})
            return
        try:
            imported = await client.import_file(
                file.path,
                session_id=self._session_id,
                form=self._form,
                dry_run=self._dry_run,
                on_sent=on_sent,
            )
        except ImportRefused as error:
            if not await self._import_chats(client, file):
                (self.refused if file.is_named else self.skipped).append({"path": path, "reason": str(error)})
        except SessionExists as error:
            if self._skip_existing:
                self.skipped.append({"path": path, "reason": str(error)})
            else:
                reason = f"{error} with --as; --skip-existing passes over it"
                self.refused.append({"path": path, "reason": reason})
        except SessionsError as error:
            self.refused.append({"path": path, "reason": str(error)})
        else:
            document = msgspec.to_builtins(imported)
            self.imported.append({"path": path, **document, "seconds": round(clock.monotonic() - began, 3)})

    async def _import_chats(self, client: Client, file: FoundFile) -> bool:
        """Import the chats of a file that is an export of several, each as a session; False: it is none."""
        from anyio import to_thread  # noqa: PLC0415 - help does not need it

        from miniclaw_sessions.files.formats.codec import MAX_DOCUMENT_BYTES  # noqa: PLC0415 - same
        from miniclaw_sessions.files.formats.open_webui import OPEN_WEBUI_EXPORT, chats_apart  # noqa: PLC0415 - same

        if self._session_id is not None or file.path.suffix != ".json" or file.size > MAX_DOCUMENT_BYTES:
            return False
        chats = await to_thread.run_sync(lambda: chats_apart(file.path.read_bytes()))
        for name, content in chats:
            path = f"{os.fsencode(file.path).decode(errors='backslashreplace')}#{name}"
            try:
                imported = await client.import_stream(
                    _one_piece(content), name=name, form=OPEN_WEBUI_EXPORT.name, dry_run=self._dry_run
                )
            except SessionExists as error:
                (self.skipped if self._skip_existing else self.refused).append({"path": path, "reason": str(error)})
            except SessionsError as error:
                self.refused.append({"path": path, "reason": str(error)})
            else:
                self.imported.append({"path": path, **msgspec.to_builtins(imported), "seconds": 0.0})
        return bool(chats)


async def _one_piece(content: bytes) -> AsyncIterator[bytes]:
    yield content
