"""`followed.jsonl`: which sessions were made of another program's, so that one that was deleted is not made again.

It has no more than their ids, one on a line, and only grows. A line that is lost costs no more than that a deleted
session is made again. Everything here blocks.
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
"""In a database that several processes share it is a property for each: this, and the session's id."""


class FollowedIds:
    """The ids of a workspace's followed sessions, those that are no more included."""

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
