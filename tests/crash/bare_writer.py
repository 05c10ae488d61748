"""Writers of a few lines that save well or badly, to show that the power cut bites.

Only `append` and `replace` keep what they acknowledge. Each of the others leaves out one step, and the tests demand
that it loses something.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.crash.acknowledgements import Acknowledgements

SAFE = ("append", "replace")
UNSAFE = ("append-without-sync", "replace-without-sync", "replace-without-directory-sync")


def main(orders: Mapping[str, Any]) -> int:
    """Save `saves` numbers, acknowledge each one, and wait to be killed."""
    directory = Path(orders["directory"])
    acknowledgements = Acknowledgements(Path(orders["acknowledgements"]))
    how, _, left_out = str(orders["how"]).partition("-without-")
    save = _append if how == "append" else _replace
    for number in range(1, int(orders["saves"]) + 1):
        save(directory, b"%06d\n" % number, left_out)
        acknowledgements.write("saved", number=number)
    acknowledgements.write("done")
    while True:
        signal.pause()


def survived(directory: Path, how: str) -> list[int]:
    """The numbers that are readable after the cut: all appended ones, or the one that was saved last."""
    path = directory / ("log" if how.startswith("append") else "current")
    if not path.exists():
        return []
    return [int(line) for line in path.read_bytes().split(b"\n") if line.isdigit()]


def _append(directory: Path, data: bytes, left_out: str) -> None:
    is_new = not (directory / "log").exists()
    fd = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, data)
    if left_out != "sync":
        os.fdatasync(fd)
    os.close(fd)
    if is_new and left_out != "sync":
        _sync(directory)


def _replace(directory: Path, data: bytes, left_out: str) -> None:
    fd = os.open(directory / ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(fd, data)
    if left_out != "sync":
        os.fsync(fd)
    os.close(fd)
    (directory / ".new").rename(directory / "current")
    if left_out != "directory-sync":
        _sync(directory)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)
