"""The archive of a shared store: the same bytes as the files of a directory, in rows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from io import BytesIO

from anyio import to_thread

from miniclaw_sessions.core.persistence.archive import (
    encoded_lines,
    in_pieces,
    name_of,
    opened_entries,
    sealed,
    session_of,
)
from miniclaw_sessions.core.persistence.whole_files import opened
from miniclaw_sessions.core.stores.base import SessionHead, StoredEntry
from miniclaw_sessions.core.stores.shared_store import Archiving, SharedStore
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import NotEncrypted


class ArchiveTable:
    """The archive of a database that several processes share: the same bytes as a directory's files, in rows."""

    def __init__(self, store: SharedStore, encryption: KeyRing | None = None) -> None:
        self._store = store
        self._encryption = encryption

    def archiving(self, at: datetime) -> Archiving:
        """How the store makes an archived file of a session that it removes."""
        keys = self._encryption

        def archive(head: SessionHead, entries: AsyncIterator[StoredEntry]) -> tuple[str, AsyncIterator[bytes]]:
            name = name_of(head, at)
            return name, in_pieces(sealed(keys, name, encoded_lines(head, opened_entries(keys, head, entries))))

        return archive

    async def has(self, session_id: str) -> bool:
        """True if there is an archived file of the session."""
        return await self.newest(session_id) is not None

    async def newest(self, session_id: str) -> str | None:
        """The name of the newest archived file of a session, or None."""
        return max(await self._store.archived(session_id), default=None)

    async def names(self) -> list[str]:
        """The names of all archived files, in order."""
        return await self._store.archived()

    async def forget(self, session_id: str, *, look_again: bool = False) -> int:  # noqa: ARG002 - it is always looked at
        """Delete all archived files of a session."""
        return await self._store.delete_archived(session_id)

    async def delete(self, name: str) -> bool:
        """Delete one archived file."""
        return await self._store.delete_archived(session_of(name), [name]) > 0

    async def read(self, name: str) -> AsyncIterator[bytes]:
        """The content of an archived file."""
        pieces = self._store.read_archived(session_of(name), name)
        if self._encryption is None:
            async for piece in pieces:
                yield piece
            return
        data = b"".join([piece async for piece in pieces])
        try:
            content = await to_thread.run_sync(
                lambda keys: b"".join(opened(keys, BytesIO(data), name)), self._encryption
            )
        except NotEncrypted:  # from before it was encrypted
            content = data
        yield content
