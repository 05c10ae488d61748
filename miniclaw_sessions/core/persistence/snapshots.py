"""The JSON checkpoints in `sessions/`: write, read, remove.

Each public coroutine is one or a few whole durable steps in a worker thread; a cancelled caller does not stop a step
that has begun. What the bytes mean is `snapshot_file`'s concern, how they become safe is `disk`'s. With keys they
are encrypted here, in the same thread.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TypeVar

import anyio
from anyio import CapacityLimiter, to_thread

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.history.state import Snapshot
from miniclaw_sessions.core.persistence.checkpoints import Written
from miniclaw_sessions.core.persistence.quarantine import Quarantine
from miniclaw_sessions.core.persistence.snapshot_file import FileHead, encode_snapshot, head_of
from miniclaw_sessions.disk import Directory, FileContent, NotRegular, TooLarge
from miniclaw_sessions.encryption import OVERHEAD, DamagedSeal, KeyRing, is_sealed, of_snapshot, refuse_sealed
from miniclaw_sessions.errors import SnapshotUnreadable, first_cause

SUFFIX = ".json"
CHUNK = 512
"""How many files one worker-thread step writes: more of them share a sync, fewer are sooner done."""

READ_CHUNK = 16
"""How many files one step reads: their bytes are in memory together, and leave holes in it when they go. A start on a
slow disk shows its progress after each step, or systemd would end it."""

READERS = 4
"""How many threads read files at the same time: a cold disk answers several faster than one after the other."""

SNAPSHOT_REST = 2 << 20
"""Bytes that a session file takes at the most beside its messages, metadata and compaction."""

T = TypeVar("T")
_EPOCH = datetime.fromtimestamp(0, UTC)


class Snapshots:
    """The directory of session files."""

    def __init__(  # noqa: PLR0913 - one for each thing that differs
        self,
        path: Path,
        quarantine: Quarantine,
        *,
        clock: Clock,
        max_bytes: int,
        encryption: KeyRing | None = None,
        read_only: bool = False,
    ) -> None:
        self.quarantine = quarantine
        self._clock = clock
        self._max_bytes = max_bytes
        self._most_read = max_bytes + (OVERHEAD if encryption else 0)
        self._encryption = encryption
        self._limiter = CapacityLimiter(1)  # one writer: an older snapshot can never overtake a newer one (R9)
        self._readers = CapacityLimiter(READERS)  # a file is replaced as a whole: reading it waits for no writer
        self._running = Lock()  # the same for a step that asyncio's own cancellation has left behind in its thread
        is_absent = read_only and not path.exists()  # as in the backup of a workspace without sessions
        self._directory = _AbsentDirectory(path) if is_absent else Directory(path, is_ours=not read_only)

    def close(self) -> None:
        """Let go of the directory."""
        self._directory.close()

    @property
    def path(self) -> Path:
        """Where the files are."""
        return self._directory.path

    async def write(self, snapshots: Sequence[Snapshot]) -> list[Written]:
        """Write a group of snapshots durably and together."""
        return await self._in_thread(partial(self._write, snapshots))

    async def remove(self, session_id: str) -> int:
        """Delete a session's file and its quarantined copies, durably; how many there were."""
        name = session_id + SUFFIX
        removed = await self._in_thread(partial(self._directory.remove, [name]))
        return removed + await self._in_thread(partial(self.quarantine.forget, name))

    async def clean(self) -> int:
        """Delete the leftovers of a crash; only while the directory's lock is held."""
        return await self._in_thread(self._directory.remove_temporaries)

    async def names(self) -> list[str]:
        """The names of all session files.

        Raises:
            SnapshotUnreadable: the directory cannot be listed.
        """
        try:
            return await self._in_thread(self._names)
        except OSError as error:
            raise SnapshotUnreadable(
                f"cannot list {self.path}: {error.strerror}. Nothing was changed; mend the directory and start again."
            ) from error

    async def modified(self) -> list[tuple[str, float]]:
        """The session ids that have a file, and when each was last used as it says, in seconds since the epoch.

        Raises:
            SnapshotUnreadable: the directory cannot be listed.
        """
        try:
            files = await self._in_thread(self._directory.modified)
        except OSError as error:
            raise SnapshotUnreadable(f"cannot list {self.path}: {error.strerror}; nothing was changed") from error
        return [(name.removesuffix(SUFFIX), time) for name, time in files if name.endswith(SUFFIX)]

    def some_names(self) -> list[str]:
        """One of the names, if there are any. Blocks, however many there are, for a moment only."""
        with os.scandir(self._directory.fd) as found:
            return list(islice(filter(_is_session_file, (entry.name for entry in found)), 1))

    async def read(self, names: Sequence[str], *, tighten: bool = False) -> AsyncIterator[list[FileContent]]:
        """The files' bytes, a chunk at a time, each name once; `tighten` makes those private that are not.

        A chunk holds what could be read and what is not a readable session file (`NotRegular`, `TooLarge`). What is
        sealed and damaged is there as it is, sealed (`encryption.is_sealed`): it is not mistaken for a session.

        Raises:
            SnapshotUnreadable: a file exists but cannot be read; that is not damage, so nothing may be concluded.
            WrongKey, KeyNeeded, NotEncrypted, SchemaTooNew: a file is not encrypted with a key that is held; the same.
        """
        for start in range(0, len(names), READ_CHUNK):
            chunk = names[start : start + READ_CHUNK]
            found = await to_thread.run_sync(partial(self._read, chunk, tighten=tighten), limiter=self._readers)
            for name, _, error in found:
                if error is not None and not isinstance(error, (NotRegular, TooLarge, FileNotFoundError)):
                    raise SnapshotUnreadable(
                        f"cannot read {self.path / name}: {error.strerror}. It does not seem damaged, "
                        "and nothing was changed; mend its permissions or the disk and start again."
                    ) from error
            yield [one for one in found if not isinstance(one.error, FileNotFoundError)]

    async def heads(self, names: Sequence[str], on_done: Callable[[int], None]) -> dict[str, FileHead]:
        """The heads of those files that are as they were written, by session id; makes those private that are not.

        All else is left out: `read` gives it, or says why it cannot be read.

        Args:
            names: of the files.
            on_done: called now and then with the number of files that were read.

        Raises:
            WrongKey, KeyNeeded, NotEncrypted, SchemaTooNew: a file is not encrypted with a key that is held.
        """
        heads: dict[str, FileHead] = {}
        done = 0

        async def look(chunk: Sequence[str]) -> None:
            nonlocal done
            found = await to_thread.run_sync(self._heads, chunk, limiter=self._readers)
            heads.update((head.session_id, head) for head in found)
            done += len(chunk)
            on_done(done)

        try:
            async with anyio.create_task_group() as tasks:
                for start in range(0, len(names), READ_CHUNK):
                    tasks.start_soon(look, names[start : start + READ_CHUNK], name="read session files")
        except ExceptionGroup as group:
            raise first_cause(group) from None
        return heads

    async def set_aside(self, name: str, reason: str) -> str:
        """Quarantine one file; its new name."""
        return await self._in_thread(partial(self.quarantine.take, self._directory, name, reason, at=self._clock.now()))

    async def rename(self, name: str, new_name: str) -> None:
        """Give a file its canonical name, durably and never over another one."""
        await self._in_thread(partial(self._rename, name, new_name))

    def _read(self, names: Sequence[str], *, tighten: bool) -> list[FileContent]:
        found = self._directory.read_many(names, limit=self._most_read, tighten=tighten)
        return [one if one.data is None else one._replace(data=self._opened(one.name, one.data)) for one in found]

    def _names(self) -> list[str]:
        return [*filter(_is_session_file, self._directory.names())]

    def _heads(self, names: Sequence[str]) -> list[FileHead]:
        """One file after the other: the bytes of many at once would cost more than reading them."""
        heads = []
        for name in names:
            with suppress(OSError):  # `read` gives or raises it
                data = self._opened(name, self._directory.read(name, limit=self._most_read, tighten=True))
                if (head := head_of(data, stem=name.removesuffix(SUFFIX))) is not None:
                    heads.append(head)
        return heads

    def _opened(self, name: str, data: bytes) -> bytes:
        """A file's content, decrypted if there are keys; as it is if it is damaged."""
        what = f"{self.path}/{name}"
        if self._encryption is None:
            refuse_sealed(data, what)
            return data
        if not is_sealed(data) and data.lstrip()[:1] != b"{":  # nothing that could be read as a session
            return data
        try:
            return self._encryption.open(data, of_snapshot(name.removesuffix(SUFFIX)), what)
        except DamagedSeal:
            return data

    def _sealed(self, session_id: str, data: bytes) -> bytes:
        return data if self._encryption is None else self._encryption.seal(data, of_snapshot(session_id))

    def _rename(self, name: str, new_name: str) -> None:
        if self._encryption is None:
            self._directory.move(name, self._directory, new_name)
            return
        data = self._opened(name, self._directory.read(name, limit=self._most_read))  # it is bound to its name
        sealed = self._sealed(new_name.removesuffix(SUFFIX), data)
        if failure := self._directory.create([(new_name, lambda: sealed)])[0]:
            raise failure
        self._directory.remove([name])

    def _write(self, snapshots: Sequence[Snapshot]) -> list[Written]:
        ids = [snapshot.state.session_id for snapshot in snapshots]
        sizes = [0] * len(snapshots)

        def encoder(index: int) -> Callable[[], bytes]:
            def encode() -> bytes:
                data = self._sealed(ids[index], encode_snapshot(snapshots[index], max_bytes=self._max_bytes))
                sizes[index] = len(data)
                return data

            return encode

        # A file's time is when its session was last used: sessions are listed and expire by it without being read.
        used = {
            one.state.session_id + SUFFIX: (one.state.last_accessed - _EPOCH) // timedelta(microseconds=1) * 1000
            for one in snapshots
        }
        files = [(name + SUFFIX, encoder(index)) for index, name in enumerate(ids)]
        outcomes = self._directory.replace(files, modified_ns=used)
        return [Written(*row) for row in zip(ids, sizes, outcomes, strict=True)]

    async def _in_thread(self, step: Callable[[], T]) -> T:
        return await to_thread.run_sync(self._in_order, step, limiter=self._limiter)

    def _in_order(self, step: Callable[[], T]) -> T:
        with self._running:
            return step()


def largest_snapshot(settings: SessionSettings) -> int:
    """How many bytes a snapshot gets: the setting, but enough to read our own."""
    least = settings.max_metadata_bytes + settings.max_message_bytes + SNAPSHOT_REST
    return max(settings.snapshot_max_bytes, least)


def _is_session_file(name: str) -> bool:
    return name.endswith(SUFFIX) and name[0] != "."


class _AbsentDirectory(Directory):
    """A directory that is not there, to be read: it has no files, and it is not made."""

    def __init__(self, path: Path) -> None:
        """Note where it would be."""
        self.path = path
        self.fd = -1

    def names(self) -> list[str]:
        """None."""
        return []

    def modified(self) -> list[tuple[str, float]]:
        """None."""
        return []

    def open_file(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Raise FileNotFoundError."""
        del flags
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
