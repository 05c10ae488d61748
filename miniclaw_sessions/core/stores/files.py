"""What stores in files share: which file has a name, whether the disk can read it, and a store that changes nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import ClassVar, NoReturn

from miniclaw_sessions.core.stores.base import Append, Store, StoredEntry, StoredHead
from miniclaw_sessions.disk import Directory, NotRegular
from miniclaw_sessions.errors import StoreError, StoreUnavailable

_BLOCK = 1 << 20


def identity(path: Path) -> tuple[int, int] | None:
    """The device and inode of the file or directory with this name; None if it is missing."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def read_through(files: Sequence[Path]) -> None:
    """Read every byte. A file that the disk refuses to read may be sound, and must not be set aside (R20).

    Holes are skipped: they have no data on the disk, and reading a sparse file of terabytes would take hours.

    Raises:
        StoreUnavailable: a file cannot be read; nothing was changed.
    """
    for file in files:
        try:
            with (
                Directory(file.parent, is_ours=False) as directory,
                FileIO(directory.open_file(file.name), "rb") as data,
            ):
                _read_all(data)
        except (FileNotFoundError, NotRegular):
            continue
        except OSError as error:
            raise StoreUnavailable(
                f"cannot read {file}: {error.strerror}. It may be undamaged, and nothing was "
                "changed; mend its permissions or the disk and start again."
            ) from error


def _read_all(data: FileIO) -> None:
    end = 0
    while True:
        try:
            start = os.lseek(data.fileno(), end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        end = os.lseek(data.fileno(), start, os.SEEK_HOLE)
        data.seek(start)
        while data.tell() < end and data.read(min(_BLOCK, end - data.tell())):
            pass


class ReadOnlyStore(Store):
    """A store in files that is opened to be read only."""

    durable: ClassVar[bool] = True
    keeps_entries: ClassVar[bool] = True

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        """Refuse: the store is read only."""
        self._refuse(f"append {len(appends)} sessions to")

    async def mend(self, session_id: str, candidates: Sequence[StoredEntry]) -> int:
        """Refuse: the store is read only."""
        self._refuse(f"mend {len(candidates)} entries of {session_id} in")

    async def delete(self, session_id: str, *, known: StoredHead | None = None) -> bool:  # noqa: ARG002 - never shared
        """Refuse: the store is read only."""
        self._refuse(f"delete {session_id} from")

    def _refuse(self, attempted: str) -> NoReturn:
        raise StoreUnavailable(f"cannot {attempted} {self.path}: it was opened to be read only")
