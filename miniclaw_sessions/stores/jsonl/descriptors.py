"""Descriptors to append with, kept for the next time: a few of them, however many sessions there are."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import NamedTuple, Self

from miniclaw_sessions.disk import Directory

MAX_DESCRIPTORS = 128
"""How many files are kept open; the one that was not used for longest is closed first."""


class _Opened(NamedTuple):
    fd: int
    inode: int


class Descriptors:
    """At most `MAX_DESCRIPTORS` files of one directory, open for appending; a context manager that closes them."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._opened: OrderedDict[str, _Opened] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._opened):
            self.close(name)

    def get(self, name: str) -> int:
        """The descriptor of a file that exists.

        Raises:
            NotRegular: it is something else than a file.
            OSError: it cannot be opened.
        """
        opened = self._opened.get(name)
        if opened is None:
            while len(self._opened) >= MAX_DESCRIPTORS:
                os.close(self._opened.popitem(last=False)[1].fd)
            fd = self._directory.open_file(name, os.O_WRONLY | os.O_APPEND)
            opened = self._opened[name] = _Opened(fd, os.fstat(fd).st_ino)
        self._opened.move_to_end(name)
        return opened.fd

    def inode(self, name: str) -> int | None:
        """Which file is open under this name; None when none is."""
        opened = self._opened.get(name)
        return None if opened is None else opened.inode

    def close(self, name: str) -> None:
        """Give a descriptor up; it is fine if there is none."""
        opened = self._opened.pop(name, None)
        if opened is not None:
            os.close(opened.fd)
