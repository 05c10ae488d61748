"""What one would write by hand: a file of JSON lines for each session, and a sync after each line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.peers.adapters.base import Adapter, is_from_user, text_of

TAIL_BYTES = 65_536
"""As much of a file as surely has its newest 50 messages."""


class BareLoop(Adapter):
    """Without a lock, an index, a checksum or a recovery."""

    concurrent: ClassVar[bool] = False

    async def open(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, int] = {}

    async def append(self, session: str, number: int) -> None:
        await self.fill(session, [number])

    async def fill(self, session: str, numbers: Iterable[int]) -> None:
        file = self._file(session)
        os.write(file, b"".join(_line(number) for number in numbers))
        os.fdatasync(file)

    async def latest(self, session: str, limit: int) -> Sequence[Any]:
        with self._path(session).open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
        return [json.loads(line) for line in lines[-limit:]]

    async def reload(self, session: str) -> Sequence[Any]:
        return [json.loads(line) for line in self._path(session).read_bytes().split(b"\n") if line]

    def text(self, message: Any) -> str:
        return str(message["text"])

    async def close(self) -> None:
        for file in self._files.values():
            os.close(file)

    def _path(self, session: str) -> Path:
        return self.directory / f"{session}.jsonl"

    def _file(self, session: str) -> int:
        if session not in self._files:
            is_new = not self._path(session).exists()
            self._files[session] = os.open(self._path(session), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            if is_new:
                _sync(self.directory)
        return self._files[session]


def _line(number: int) -> bytes:
    message = {"role": "user" if is_from_user(number) else "assistant", "text": text_of(number)}
    return json.dumps(message).encode() + b"\n"


def _sync(directory: Path) -> None:
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(file)
    os.close(file)
