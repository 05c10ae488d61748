"""The store `jsonl:`: one append-only JSON Lines file per session, in a directory of their own.

Each durable step (write, sync, truncate, unlink) is one call in one thread: a cancelled caller cannot interrupt it. The
heads and ends of all sessions are in memory, so listing them reads no file. `JSONLReader` has the methods that read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from anyio import CancelScope, to_thread
from anyio.lowlevel import checkpoint

from miniclaw_sessions.core.stores.base import Append, StoredEntry, StoredHead
from miniclaw_sessions.core.stores.jsonl.directory import Changed, ChangedElsewhere, Transcripts
from miniclaw_sessions.core.stores.jsonl.file import Transcript
from miniclaw_sessions.core.stores.jsonl.finding import damaged_files
from miniclaw_sessions.core.stores.jsonl.reader import READERS, JSONLReader
from miniclaw_sessions.core.stores.keys import KeyFilter, UsedKeys
from miniclaw_sessions.core.stores.reading import PAGE, read_all
from miniclaw_sessions.core.stores.serial_thread import SerialThread
from miniclaw_sessions.errors import SessionUnavailable, StoreCorrupt, StoreError, StoreUnavailable

T = TypeVar("T")


class JSONLStore(JSONLReader):
    """Transcripts in a directory, which is locked: two programs cannot have it open."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._transcripts: Transcripts | None = None
        self._thread: SerialThread | None = None
        self._keys = UsedKeys(self._keys_of)

    @property
    def files(self) -> Sequence[Path]:
        """The files that keep the store from opening because their sessions are not known; only these are set aside.

        It examines every file, so it takes as long as opening.
        """
        return damaged_files(self.path)

    async def __aenter__(self) -> Self:
        """Open the directory, create it if needed, and examine the beginning and the end of every file.

        What crashes left at the ends is moved to `torn`. Files of other programs are left alone.

        Raises:
            DirectoryInUse: another process has it open.
            SchemaTooNew: a newer version of this program wrote one of the files; nothing was changed.
            StoreCorrupt: the sessions of some files are not known; `files` returns these files.
            StoreUnavailable: the directory cannot be opened or read.
        """
        try:
            await to_thread.run_sync(self._take)
        except BaseException:  # such as a cancellation after it was opened
            if self._transcripts is not None:
                self._transcripts.close()
                self._transcripts = None
            raise
        self._thread = SerialThread(f"writer of {self.path.name}")
        return self

    def _take(self) -> None:
        self._transcripts = Transcripts(self.path, self._keys.forget)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for running calls and close the files."""
        transcripts = self._opened()
        with CancelScope(shield=True):
            taken = 0
            try:  # a cancellation may come at each of these
                while taken < READERS:
                    await self._turns.acquire()
                    taken += 1
            finally:
                try:
                    await self._in_thread(transcripts.close)
                finally:
                    self._transcripts, thread, self._thread = None, self._thread, None
                    self._keys.clear()
                    if thread is not None:
                        thread.stop()
                    for _ in range(taken):
                        self._turns.release()

    @property
    def damage(self) -> Sequence[str]:
        """Changes by other programs to open transcripts, until all their entries are there again."""
        changed = {} if self._transcripts is None else self._transcripts.changed
        return [_said_of(session_id, one) for session_id, one in list(changed.items())]

    async def still_there(self) -> None:
        """Check that the directory is still the open one; each append checks its own file."""
        await self._in_thread(self._opened().check_still_there)

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        """Append entries of many sessions, each to its own file, with one sync."""
        if self._keys.sessions:
            self._keys.note(appends)
        return await self._in_thread(self._opened().append, appends)

    async def heads(self) -> AsyncIterator[StoredHead]:
        """All sessions in order of session_id, from memory; refused ones are left out."""
        transcripts = self._opened()
        for number, session_id in enumerate(sorted(transcripts.known)):
            if number % PAGE == 0:
                await checkpoint()
            if transcripts.is_refused(session_id):
                with suppress(StoreCorrupt, SessionUnavailable):
                    await self._clear_doubts(session_id)
            transcript = transcripts.known.get(session_id)
            if transcript is not None and not transcripts.is_refused(session_id):
                yield StoredHead(transcript.head, transcript.last_sequence)

    async def session_ids(self) -> list[str]:
        """The ids of all sessions, in order, from memory; including refused ones."""
        await checkpoint()
        return sorted(self._opened().known)

    async def head(self, session_id: str) -> StoredHead | None:
        """One session, or None, from memory."""
        await self._clear_doubts(session_id)
        transcript = self._opened().find(session_id)
        return None if transcript is None else StoredHead(transcript.head, transcript.last_sequence)

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """The entries after a sequence, oldest first; if there are none, the file is not read."""
        stored = await self.head(session_id)
        return (
            []
            if stored is None or after >= stored.last_sequence
            else await super().read(session_id, after=after, limit=limit)
        )

    async def find_by_idempotency_key(self, session_id: str, key: str) -> StoredEntry | None:
        """The oldest entry with this key, or None; for most new keys the file is not read (`UsedKeys`)."""
        if session_id not in self._opened().changed and not await self._keys.may_have(session_id, key):
            return None  # the keys of entries that the file lacks now would be missed later
        return await super().find_by_idempotency_key(session_id, key)

    async def _as_it_is_now(self, session_id: str, read: Callable[[], Awaitable[T]]) -> T:
        """Read a transcript, after an examination of changes by other programs.

        Raises:
            StoreCorrupt, SessionUnavailable: another file has its name.
        """
        await self._clear_doubts(session_id)
        try:
            return await read()
        except ChangedElsewhere:
            await self._in_thread(self._opened().look_again, session_id)
            return await read()

    async def _clear_doubts(self, session_id: str) -> None:
        """Examine a refused session again: the other file may be gone, or the old one back."""
        await checkpoint()
        if (transcripts := self._opened()).is_refused(session_id):
            await self._in_thread(transcripts.look_again, session_id)

    async def _keys_of(self, session_id: str) -> KeyFilter:
        await self._in_thread(self._opened)  # returns when everything that was on its way is in the file
        keys = {entry.idempotency_key async for entry in read_all(self, session_id)}
        return await to_thread.run_sync(KeyFilter, [key for key in keys if key is not None])

    async def mend(self, session_id: str, candidates: Sequence[StoredEntry]) -> int:
        """Rewrite the session's file with right entries in place of damaged lines."""
        try:
            return await self._in_thread(self._opened().mend, session_id, candidates)
        finally:
            self._keys.forget(session_id)

    async def delete(self, session_id: str, *, known: StoredHead | None = None) -> bool:  # noqa: ARG002 - never shared
        """Remove a session's file and what crashes had left of it. Returns whether there was a session.

        The deletion is durable when this returns. The disk may keep the bytes until it reuses their blocks.
        """
        self._keys.forget(session_id)
        return await self._in_thread(self._opened().delete, session_id)

    async def _checked(self) -> Sequence[str]:
        await checkpoint()
        return sorted({*self._opened().known, *self._opened().refused, *self._opened().changed})

    async def _check(self, session_id: str) -> list[str]:
        problems = await super()._check(session_id)
        changed = self._opened().changed.get(session_id)
        return problems if changed is None else [_said_of(session_id, changed), *problems]

    async def _in_thread(self, step: Callable[..., T], *arguments: Any) -> T:
        """Run a durable step after earlier ones. Once begun it runs to its end."""
        if self._thread is None:
            raise self._not_open()
        with CancelScope(shield=True):
            result = await self._thread.call(step, *arguments)
        return result  # noqa: RET504 - for the type checker, which thinks that a scope may end before it returns

    def _open(self, session_id: str) -> tuple[int, Transcript] | None:
        return self._opened().open(session_id)

    def _opened(self) -> Transcripts:
        if self._transcripts is None:
            raise self._not_open()
        return self._transcripts

    def _not_open(self) -> StoreUnavailable:
        return StoreUnavailable(f"cannot use {self.path}: the store is not open; enter it with `async with`")


def _said_of(session_id: str, changed: Changed) -> str:
    return f"session {session_id}: {changed.sentence}"
