"""`followed.jsonl`: which sessions of other programs were here, so that one that was deleted stays so.

It has no more than ids, sizes and times, and only grows: a line for each session that is made, and one for each that is
found to be gone. A line that is lost costs no more than that a deleted session is made again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import msgspec

from miniclaw_sessions.discovery.programs import Source
from miniclaw_sessions.log import get_logger

NAME = "followed.jsonl"

log = get_logger(__name__)


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session: it is here; or it is gone, and its source had this size and time when that was found."""

    session_id: str
    gone: tuple[int, int] | None = None


class Remembered:
    """What one workspace is remembered to have had. Everything in here blocks; without a directory nothing is kept."""

    def __init__(self, workspace: Path | None) -> None:
        """It is read when it is first asked."""
        self._path = None if workspace is None else workspace / NAME

    @cached_property
    def _known(self) -> dict[str, tuple[int, int] | None]:
        known: dict[str, tuple[int, int] | None] = {}
        try:
            for line in () if self._path is None else self._path.read_bytes().splitlines():
                with suppress(msgspec.MsgspecError):  # half of one, of a crash
                    one = msgspec.json.decode(line, type=_Line)
                    known[one.session_id] = one.gone
        except FileNotFoundError:
            pass
        except OSError as error:
            self._warn(error)
        return known

    def is_here(self, session_id: str) -> None:
        """There is this session; to be remembered when it is gone."""
        if self._known.get(session_id, (0, 0)) is not None:
            self._write(_Line(session_id))

    def is_unwanted(self, session_id: str, source: Source) -> bool:
        """Whether a session that is not here was deleted, and its source has nothing new since that was found."""
        looks = source.size, source.modified
        if session_id not in self._known:
            return False
        if (gone := self._known[session_id]) is None:
            self._write(_Line(session_id, looks))
            return True
        return gone == looks

    def _write(self, line: _Line) -> None:
        self._known[line.session_id] = line.gone
        if self._path is None:
            return
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        sentence = f"cannot use {self._path}: sessions that were deleted here will be made again"
        log.warning(sentence, action="follow.unremembered", error_type=type(error).__name__)
