"""A disk for the soak that can be filled up and emptied again: an ext4 in a file, mounted for this run only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.crash.filesystem import MEBIBYTE, MountSpace, run

SIZE = 16 * 1024 * MEBIBYTE
"""Of the file system; the file takes only what is written to it."""

_LARGEST_PIECE = 1024 * MEBIBYTE
_SMALLEST_PIECE = 4096


class Disk:
    """A mounted file system.

    Attributes:
        path: its root.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Take all the space that is left; nothing is written, the blocks are only reserved."""
        fd = os.open(self._ballast, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            end, piece = 0, _LARGEST_PIECE
            while piece >= _SMALLEST_PIECE:
                try:
                    os.posix_fallocate(fd, end, piece)
                    end += piece
                except OSError:
                    piece //= 2
        finally:
            os.close(fd)

    def empty(self) -> None:
        """Give the space back."""
        with suppress(FileNotFoundError):
            self._ballast.unlink()


@contextmanager
def mounted(directory: Path) -> Iterator[Disk]:
    """A disk whose file lies in `directory`. Needs root; the mount vanishes however the program ends."""
    image = directory / "disk.img"
    with MountSpace() as space:
        path = space.new_directory("soak")
        with image.open("wb") as file:
            file.truncate(SIZE)
        run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
        run("mount", "-o", "loop", str(image), str(path))
        try:
            yield Disk(path)
        finally:
            run("umount", str(path))
            image.unlink()
