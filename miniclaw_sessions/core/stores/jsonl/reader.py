"""A directory of transcripts that is opened to be read only, while another process may write it.

Nothing is locked, created or changed. Each file is examined again when it is read, up to its last whole append. Reading
streams: the cost of a page is its size and a short search for its beginning, however long the transcript is.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from anyio import Semaphore, to_thread

from miniclaw_sessions.core.stores.base import StoredEntry, StoredHead, StorePlace
from miniclaw_sessions.core.stores.checking import TranscriptCheck
from miniclaw_sessions.core.stores.files import ReadOnlyStore
from miniclaw_sessions.core.stores.jsonl.failures import failing
from miniclaw_sessions.core.stores.jsonl.file import (
    SUFFIX,
    Stream,
    Transcript,
    entry_with_key,
    examine_open,
    place_of,
    place_of_newest,
)
from miniclaw_sessions.core.stores.jsonl.finding import session_ids_of
from miniclaw_sessions.core.stores.jsonl.lines import NotOurs
from miniclaw_sessions.disk import Directory, NotRegular
from miniclaw_sessions.errors import SessionUnavailable, StoreCorrupt

READERS = 8
"""The number of transcripts that may be read at once."""

T = TypeVar("T")

Place = Callable[..., tuple[int, int]]
"""`place_of` or `place_of_newest`."""


class JSONLReader(ReadOnlyStore):
    """Transcripts in a directory, read only. A directory that does not exist is like one without sessions."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._turns = Semaphore(READERS, max_value=READERS)
        self._looked_at: Directory | None = None

    @property
    def place(self) -> StorePlace:
        """The directory."""
        return StorePlace("jsonl", self.path, is_directory=True)

    async def __aenter__(self) -> Self:
        """Open the directory.

        Raises:
            StoreUnavailable: it cannot be opened.
        """
        with failing("open", self.path):
            self._looked_at = await to_thread.run_sync(self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the directory."""
        directory, self._looked_at = self._looked_at, None
        if directory is not None:
            directory.close()

    async def heads(self) -> AsyncIterator[StoredHead]:
        """All sessions in order of session_id; each file is examined, and other files are left out."""
        for session_id in await self.session_ids():
            try:
                stored = await self.head(session_id)
            except StoreCorrupt:
                continue
            if stored is not None:
                yield stored

    async def session_ids(self) -> list[str]:
        """The session ids in the file names, in order."""
        with failing("read", self.path):
            return await to_thread.run_sync(self._names)

    async def head(self, session_id: str) -> StoredHead | None:
        """One session, or None; also None if another program's file has its name."""
        with suppress(NotOurs):
            async with self._streaming(session_id, place_of, 0) as stream:
                if stream is not None:
                    return StoredHead(stream.transcript.head, stream.transcript.last_sequence)
        return None

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """The entries after a sequence, oldest first."""
        page: list[StoredEntry] = []
        if limit is not None and limit <= 0:
            return page
        async with self._streaming(session_id, place_of, after) as stream:
            if stream is None or after >= stream.transcript.last_sequence:
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
        async with self._streaming(session_id, place_of_newest, max(limit, 1)) as stream:
            if stream is None or limit <= 0:
                return []
            return [entry async for placed in stream for entry, _ in placed][-limit:]

    async def find(self, session_id: str, entry_id: str) -> StoredEntry | None:
        """The entry with this id, or None; reads the transcript from its beginning, about 5 us for each entry."""
        async with self._streaming(session_id, place_of, 0) as stream:
            if stream is not None:
                async for placed in stream:
                    for entry, _ in placed:
                        if entry.entry_id == entry_id:
                            return entry
        return None

    async def find_by_idempotency_key(self, session_id: str, key: str) -> StoredEntry | None:
        """The oldest entry with this key, or None; searches the bytes of the file, about 1 ms for each MB."""
        async with self._turns:
            find = partial(to_thread.run_sync, self._find_by_key, session_id, key)
            return await self._as_it_is_now(session_id, find)

    async def check(self) -> list[str]:
        """Check each file with a session's name, and each entry in it."""
        problems = []
        for session_id in await self._checked():
            try:
                problems += await self._check(session_id)
            except (StoreCorrupt, SessionUnavailable) as error:
                problems.append(f"session {session_id}: {error}")
        return problems

    async def _checked(self) -> Sequence[str]:
        """The sessions to check."""
        return await self.session_ids()

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

    @asynccontextmanager
    async def _streaming(self, session_id: str, place: Place, number: int) -> AsyncIterator[Stream | None]:
        """A session's transcript, opened where `place` begins for this number; None if there is no such session."""
        async with self._turns:
            stream = Stream()
            try:
                with failing("read", self.path):
                    begin = partial(stream.open, partial(self._open, session_id), partial(place, number=number))
                    yield stream if await self._as_it_is_now(session_id, begin) else None
            finally:
                stream.close()

    async def _as_it_is_now(self, session_id: str, read: Callable[[], Awaitable[T]]) -> T:  # noqa: ARG002 - for a writer
        """Read a transcript."""
        return await read()

    # --- in worker threads -------------------------------------------------------------------------------------------

    def _look(self) -> Directory | None:
        return Directory(self.path, is_ours=False) if self.path.is_dir() else None

    def _names(self) -> list[str]:
        return [] if self._looked_at is None else list(session_ids_of(self._looked_at.names()))

    def _open(self, session_id: str) -> tuple[int, Transcript] | None:
        """The open file of a session, which the caller closes.

        Raises:
            NotOurs: another program's file has its name.
            StoreCorrupt: the session of the file is not known.
            SchemaTooNew: a newer version of this program wrote it.
            OSError: it cannot be read.
        """
        if self._looked_at is None:
            return None
        try:
            fd = self._looked_at.open_file(session_id + SUFFIX)
        except FileNotFoundError:
            return None
        except NotRegular as error:
            raise NotOurs(f"cannot use {self.path / session_id}{SUFFIX}: {error}") from None
        try:
            return fd, examine_open(fd, session_id)
        except BaseException:
            os.close(fd)
            raise

    def _find_by_key(self, session_id: str, key: str) -> StoredEntry | None:
        with failing("read", self.path):
            if (found := self._open(session_id)) is None:
                return None
            try:
                return entry_with_key(*found, key)
            finally:
                os.close(found[0])
