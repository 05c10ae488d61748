"""Two small files that a person may touch: the lock with its pid, and what lies in the quarantine."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import ClassVar, Self

import pytest

from miniclaw_sessions.core.persistence.quarantine import Quarantine
from miniclaw_sessions.disk import Directory, DirectoryLock
from miniclaw_sessions.errors import DirectoryInUse
from tests.fuzz.reader import Reader, refused, tree_of

_AT = datetime(2026, 1, 1, tzinfo=UTC)
_LONGEST_NAME = 150  # the quarantine writes its time before it


class LockReader(Reader):
    """The file `.lock`: whatever it says, a held directory is refused, and a free one can be taken."""

    name: ClassVar[str] = "lock"
    share: ClassVar[int] = 1_000

    async def __aenter__(self) -> Self:
        self._path = self.scratch / "locked"
        self._path.mkdir()
        self.seeds = [b"12345\n", b"", b"1"]
        return self

    async def read(self, case: bytes) -> bool:
        (self._path / ".lock").write_bytes(case)
        holder = DirectoryLock(self._path)
        try:
            assert (self._path / ".lock").read_bytes() == b"%d\n" % os.getpid()
            (self._path / ".lock").write_bytes(case)
            with pytest.raises(DirectoryInUse) as caught:
                DirectoryLock(self._path)
        finally:
            holder.release()
        return refused(caught.value)


class QuarantineReader(Reader):
    """Files in the quarantine that are not as we write them: a case is a name, a line feed, and what the file holds."""

    name: ClassVar[str] = "quarantine"
    share: ClassVar[int] = 1_000

    async def __aenter__(self) -> Self:
        self._path = self.scratch / "quarantine"
        self._source = self.scratch / "sessions"
        self._source.mkdir()
        name = b"20260101T000000.000000Z-0a1b2c3d-fuzz_1.json"
        record = b'{"file":"fuzz_1.json","quarantined_as":"%s","reason":"cut off","at":"2026-01-01T00:00:00Z"}' % name
        self.seeds = [name + b"\n{", name + b".reason\n" + record]
        return self

    async def read(self, case: bytes) -> bool:
        name, _, data = case.partition(b"\n")
        name = name.translate(None, b"\0/")[:_LONGEST_NAME]
        for old in self._path.iterdir() if self._path.exists() else ():
            old.unlink()
        self._path.mkdir(exist_ok=True)
        if name not in (b"", b".", b".."):
            (self._path / os.fsdecode(name)).write_bytes(data)
        before = tree_of(self._path)
        quarantine = Quarantine(self._path, max_files=10, max_bytes=1_000_000)
        (self._source / "fuzz_2.json").write_bytes(b"damaged")
        with Directory(self._source) as source:
            new_name = quarantine.take(source, "fuzz_2.json", "a reason", at=_AT)
        after = tree_of(self._path)
        assert {one: after.get(one) for one in before} == before
        assert (self._path / new_name).read_bytes() == b"damaged"
        assert 1 <= quarantine.count() <= 2
        assert quarantine.forget("fuzz_2.json") >= 2
        return True
