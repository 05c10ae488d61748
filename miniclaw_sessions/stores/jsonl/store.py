"""The store `jsonl:`: one append-only JSON Lines file per session, in a directory of their own.

Every durable step (write, sync, cut, unlink) is one call in one thread: a cancelled caller cannot interrupt it. Reading
streams: a page costs what it holds and a short search for where it begins, however long the transcript is. Who the
sessions are, and where they end, is kept in memory; listing them reads nothing.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from anyio import CancelScope, Semaphore, to_thread
from anyio.lowlevel import checkpoint

from miniclaw_sessions.errors import StoreCorrupt, StoreError, StoreUnavailable
from miniclaw_sessions.stores.base import Append, Store, StoredEntry, StoredHead
from miniclaw_sessions.stores.jsonl.directory import Transcripts, damaged_files
from miniclaw_sessions.stores.jsonl.failures import failing
from miniclaw_sessions.stores.jsonl.file import Stream, entry_with_key, place_of, place_of_newest
from miniclaw_sessions.stores.reading import PAGE
from miniclaw_sessions.stores.soundness import TranscriptCheck
from miniclaw_sessions.stores.thread import SerialThread

READERS = 8
"""How many transcripts may be read at once."""

Place = Callable[..., tuple[int, int]]
"""`place_of` or `place_of_newest`."""

T = TypeVar("T")


class JSONLStore(Store):
    """Transcripts in a directory, which it locks: two programs cannot have it open."""

    durable: ClassVar[bool] = True
    keeps_entries: ClassVar[bool] = True

    def __init__(self, path: Path) -> None:
        self.path = self._path = path
        self._transcripts: Transcripts | None = None
        self._thread: SerialThread | None = None
        self._turns = Semaphore(READERS, max_value=READERS)

    def __repr__(self) -> str:
        return f"<JSONLStore {self._path}>"

    @property
    def files(self) -> Sequence[Path]:
        """Those that keep the store from opening because nobody knows whose they are; no others need be set aside.

        Looks at every file, so it takes as long as opening does.
        """
        return damaged_files(self._path)

    # --- the contract ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Open the directory, creating it if needed, and look at the beginning and the end of every file.

        What crashes left at the ends is cut off and set aside in `torn`. What is not ours is left alone.

        Raises:
            DirectoryInUse: another process has it open.
            SchemaTooNew: a newer version of this program wrote one of the files; nothing was changed.
            StoreCorrupt: of some files it is not known whose they are; `files` tells which.
            StoreUnavailable: the directory cannot be opened or read.
        """
        self._transcripts = await to_thread.run_sync(Transcripts, self._path)
        self._thread = SerialThread(f"writer of {self._path.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for running calls and close the files."""
        transcripts = self._opened()
        with CancelScope(shield=True):
            for _ in range(READERS):
                await self._turns.acquire()
            try:
                await self._in_thread(transcripts.close)
            finally:
                self._transcripts, thread, self._thread = None, self._thread, None
                if thread is not None:
                    thread.stop()
                for _ in range(READERS):
                    self._turns.release()

    async def still_there(self) -> None:
        """Look whether the directory is still the one that is open; each file is looked at when it is appended to."""
        await self._in_thread(self._opened().check_still_there)

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        """Append entries of many sessions, each to its own file, with one sync."""
        return await self._in_thread(self._opened().append, appends)

    async def heads(self) -> AsyncIterator[StoredHead]:
        """All sessions in order of session_id, from memory."""
        known = self._opened().known
        for number, session_id in enumerate(sorted(known)):
            if number % PAGE == 0:
                await checkpoint()
            transcript = known.get(session_id)
            if transcript is not None:
                yield StoredHead(transcript.head, transcript.last_sequence)

    async def session_ids(self) -> list[str]:
        """The ids of all sessions, in order, from memory."""
        await checkpoint()
        return sorted(self._opened().known)

    async def head(self, session_id: str) -> StoredHead | None:
        """One session, or None; from memory."""
        await checkpoint()
        transcript = self._opened().find(session_id)
        return None if transcript is None else StoredHead(transcript.head, transcript.last_sequence)

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """The entries after a sequence, oldest first."""
        page: list[StoredEntry] = []
        stored = await self.head(session_id)
        if stored is None or after >= stored.last_sequence or (limit is not None and limit <= 0):
            return page
        async with self._streaming(session_id, place_of, after) as stream:
            if stream is None:
                return page
            async for placed in stream:
                for entry, end in placed:
                    if entry.sequence > after:
                        page.append(entry)
                        if len(page) == limit:
                            stream.transcript.resume = (entry.sequence, end)
                            return page
        return page

    async def read_newest(self, session_id: str, limit: int) -> list[StoredEntry]:
        """The newest entries, oldest first; read from the end."""
        await checkpoint()
        if limit <= 0:
            return []
        async with self._streaming(session_id, place_of_newest, limit) as stream:
            if stream is None:
                return []
            newest = [entry async for placed in stream for entry, _ in placed]
        return newest[-limit:]

    async def find(self, session_id: str, entry_id: str) -> StoredEntry | None:
        """The entry with this id, or None; reads the transcript from its beginning, about 5 us for each entry."""
        async with self._streaming(session_id, place_of, 0) as stream:
            if stream is None:
                return None
            async for placed in stream:
                for entry, _ in placed:
                    if entry.entry_id == entry_id:
                        return entry
        return None

    async def find_by_idempotency_key(self, session_id: str, key: str) -> StoredEntry | None:
        """The oldest entry with this key, or None; looks through the file for its bytes, about 1 ms for each MB."""
        async with self._turns:
            return await to_thread.run_sync(self._find_by_key, session_id, key)

    def _find_by_key(self, session_id: str, key: str) -> StoredEntry | None:
        transcripts = self._opened()
        with failing("read", self._path):
            transcript = transcripts.find(session_id)
            if transcript is None:
                return None
            fd = transcripts.open_to_read(transcript.name)
            try:
                return entry_with_key(fd, transcript, key)
            finally:
                os.close(fd)

    async def mend(self, session_id: str, entries: Sequence[StoredEntry]) -> int:
        """Write the session's file anew, with the right entries in the place of damaged lines."""
        return await self._in_thread(self._opened().mend, session_id, entries)

    async def delete(self, session_id: str) -> bool:
        """Remove a session's file and what crashes had left of it; whether there was a session.

        The deletion is durable when this returns. The disk may keep the bytes until it uses their place again.
        """
        return await self._in_thread(self._opened().delete, session_id)

    async def check(self) -> list[str]:
        """Every file that has a session's name, and every entry in it."""
        await checkpoint()
        problems = []
        for session_id in sorted({*self._opened().known, *self._opened().refused}):
            try:
                problems += await self._check(session_id)
            except StoreCorrupt as error:
                problems.append(f"session {session_id}: {error}")
        return problems

    async def _check(self, session_id: str) -> list[str]:
        check = TranscriptCheck(session_id)
        async with self._streaming(session_id, place_of, 0) as stream:
            if stream is None:
                return []
            async for placed in stream:
                for entry, _ in placed:
                    check.feed(entry)
        problems = check.problems
        if stream.transcript.header_lost:
            problems.append(f"session {session_id}: the first line of its file is damaged")
        if lines := stream.placing.without_place:
            problems.append(f"session {session_id}: {lines} damaged lines have no place between their neighbours")
        return problems

    # --- in threads --------------------------------------------------------------------------------------------------

    async def _in_thread(self, step: Callable[..., T], *arguments: Any) -> T:
        """Run a durable step behind those that were called before; once begun it runs to its end."""
        if self._thread is None:
            raise self._not_open()
        with CancelScope(shield=True):
            result = await self._thread.call(step, *arguments)
        return result  # noqa: RET504 - for the type checker, which thinks that a scope may end before it returns

    @asynccontextmanager
    async def _streaming(self, session_id: str, place: Place, number: int) -> AsyncIterator[Stream | None]:
        """A session's transcript, opened where `place` says for this number; None when there is no such session."""
        async with self._turns:
            transcripts = self._opened()
            with failing("read", self._path):
                while (transcript := transcripts.find(session_id)) is not None:
                    stream = Stream(transcript, partial(place, transcript=transcript, number=number))
                    try:
                        await stream.open(transcripts.open_to_read)
                    except FileNotFoundError:
                        if transcripts.known.get(session_id) is transcript:  # or else it was deleted just now
                            raise
                        continue
                    try:
                        if (
                            transcripts.known.get(session_id) is transcript
                        ):  # or else another one was opened, of the same name
                            yield stream
                            return
                    finally:
                        await stream.close()
            yield None

    def _opened(self) -> Transcripts:
        if self._transcripts is None:
            raise self._not_open()
        return self._transcripts

    def _not_open(self) -> StoreUnavailable:
        return StoreUnavailable(f"cannot use {self._path}: the store is not open; enter it with `async with`")
