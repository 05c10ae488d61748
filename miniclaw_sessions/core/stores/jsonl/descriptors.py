"""The files of a directory that are open to append to. Everything here blocks."""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from typing import Self

from miniclaw_sessions import disk
from miniclaw_sessions.disk import SYNC_ONE_BY_ONE, Directory

MAX_DESCRIPTORS = 128
"""The number of files that are kept open for appending; the least recently used one is closed first."""

_TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)


class Descriptors:
    """At most `MAX_DESCRIPTORS` files of one directory, open for appending; a context manager that closes them."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._opened: OrderedDict[str, int] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._opened):
            self.close(name)

    def get(self, name: str) -> int:
        """The descriptor of an existing file.

        Raises:
            NotRegular: it is not a regular file.
            OSError: it cannot be opened.
        """
        if name in self._opened:
            self._opened.move_to_end(name)
            return self._opened[name]
        while len(self._opened) >= MAX_DESCRIPTORS:
            self._close_oldest()
        while True:
            try:
                fd = self._directory.open_file(name, os.O_WRONLY | os.O_APPEND)
            except OSError as error:
                few = not disk.SYNCS_TOGETHER or len(self._opened) <= SYNC_ONE_BY_ONE
                if error.errno not in _TOO_MANY_OPEN or few:
                    raise
                self._close_oldest()
            else:
                self._opened[name] = fd
                return fd

    def _close_oldest(self) -> None:
        os.close(self._opened.popitem(last=False)[1])

    def close(self, name: str) -> None:
        """Close a descriptor, if there is one."""
        fd = self._opened.pop(name, None)
        if fd is not None:
            os.close(fd)
