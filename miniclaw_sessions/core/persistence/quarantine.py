"""Setting damaged files aside: whole, under a name of their own, with the reason beside them.

Nothing here deletes or replaces evidence (rules R18, R19). The quarantine is bounded; when it is full a damaged file is
left where it is and opening is refused, because overwriting it with a fresh session would destroy it.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import msgspec
import orjson

from miniclaw_sessions.disk import Directory
from miniclaw_sessions.errors import QuarantineFull

_REASON = ".reason"  # no session file ends like this, with any name of a chat


class QuarantinedFile(msgspec.Struct, frozen=True):
    """A file that was set aside: its name here, what it was called, why, when, and its size in bytes."""

    name: str
    file: str = ""
    reason: str = ""
    at: datetime | None = None
    bytes: int = 0


class Quarantine:
    """The directory of damaged files. Every method blocks."""

    def __init__(self, path: Path, *, max_files: int, max_bytes: int) -> None:
        self.path = path
        self._max_files = max_files
        self._max_bytes = max_bytes

    def take(self, directory: Directory, name: str, reason: str, *, at: datetime) -> str:
        """Move one file here, durably; its new name.

        Raises:
            QuarantineFull: the bound is reached; the file is where it was.
            OSError: it could not be moved; it is where it was.
        """
        with Directory(self.path) as target:
            names = [one for one in target.names() if not one.endswith(_REASON)]
            size = sum(os.stat(one, dir_fd=target.fd, follow_symlinks=False).st_size for one in names)
            if len(names) >= self._max_files or size >= self._max_bytes:
                raise QuarantineFull(
                    f"{self.path} holds {len(names)} files, {size} bytes: its bound is reached. Look at them, move "
                    "them away, and start again; the damaged file was left where it is."
                )
            new_name = f"{at:%Y%m%dT%H%M%S.%fZ}-{os.urandom(4).hex()}-{name}"
            directory.move(name, target, new_name)
            record = {"file": name, "quarantined_as": new_name, "reason": reason, "at": at}
            encoded = orjson.dumps(record, option=orjson.OPT_UTC_Z)
            target.replace([(new_name + _REASON, lambda: encoded)])
        return new_name

    def forget(self, name: str) -> int:
        """Delete the quarantined copies of one file, for a session that is deleted for good; how many there were."""
        if not self.path.exists():
            return 0
        with Directory(self.path) as target:
            doomed = [n for n in target.names() if n.removesuffix(_REASON).split("-", 2)[-1] == name]
            return target.remove(doomed)

    def files(self) -> list[QuarantinedFile]:
        """The damaged files, the newest first; files of others have no reason."""
        if not self.path.exists():
            return []
        entries = [entry for entry in os.scandir(self.path) if not entry.name.startswith(".")]
        found = [_described(entry) for entry in entries if not entry.name.endswith(_REASON)]
        return sorted(found, key=lambda file: file.name, reverse=True)

    def stores(self) -> list[str]:
        """The names of the stores' files that are here: each has the words of many sessions."""
        if not self.path.exists():
            return []
        others = (".json", ".jsonl", "-shm", _REASON)
        return sorted(name for name in os.listdir(self.path) if not name.endswith(others) and not name.startswith("."))

    def count(self) -> int:
        """How many damaged files are here."""
        if not self.path.exists():
            return 0
        return sum(not name.endswith(_REASON) and not name.startswith(".") for name in os.listdir(self.path))


def _described(entry: os.DirEntry[str]) -> QuarantinedFile:
    size = entry.stat(follow_symlinks=False).st_size
    try:
        with open(entry.path + _REASON, "rb") as record:
            known = msgspec.json.decode(record.read(_LONGEST_RECORD), type=_Record)
    except (OSError, msgspec.MsgspecError):
        return QuarantinedFile(entry.name, bytes=size)
    return QuarantinedFile(entry.name, known.file, known.reason, known.at, size)


class _Record(msgspec.Struct):
    file: str
    reason: str
    at: datetime


_LONGEST_RECORD = 65_536
