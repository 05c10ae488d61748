"""`followed.jsonl`: the ids of sessions that mirror another program's, so that a deleted one is not made again.

One id on a line; the file only grows. A lost line costs no more than that a deleted session is made again. Everything
here blocks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import msgspec

NAME = "followed.jsonl"

PROPERTY = "followed "
"""A shared database has a property for each instead, with this and the session's id as its name."""


class MirroredIds:
    """The ids of all sessions of a workspace that mirror another program's, or did before they were deleted."""

    def __init__(self, workspace: Path) -> None:
        self._path = workspace / NAME

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    @cached_property
    def _known(self) -> set[str]:
        known: set[str] = set()
        with suppress(FileNotFoundError):
            for line in self._path.read_bytes().splitlines():
                with suppress(msgspec.MsgspecError):  # half of one, of a crash
                    known.add(msgspec.json.decode(line, type=str))
        return known

    def note(self, session_id: str) -> None:
        """Remember one more.

        Raises:
            OSError: the file cannot be read or written.
        """
        if session_id in self._known:
            return
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(session_id) + b"\n")
        self._known.add(session_id)
