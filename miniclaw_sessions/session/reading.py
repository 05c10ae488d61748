"""A session's entries as they are now: what the store has, and behind it what was accepted and is not committed yet."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.history.branch import rejoined
from miniclaw_sessions.history.conversation import Conversation
from miniclaw_sessions.persistence.committer import SessionLog
from miniclaw_sessions.protocol.encoding import decode_entry
from miniclaw_sessions.protocol.entries import Entry
from miniclaw_sessions.stores.base import Store, StoredEntry, stored_entry
from miniclaw_sessions.stores.reading import PAGE


class SessionEntries:
    """Reads one session like a store. Where the store keeps nothing, what is in memory is all there is."""

    def __init__(self, store: Store, log: SessionLog, conversation: Conversation) -> None:
        self._store = store
        self._log = log
        self._conversation = conversation

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """The entries with a sequence greater than `after`, oldest first, at most `limit` of them."""
        pending = self._pending()  # before the store is asked: what it commits meanwhile is then seen twice, not never
        page = await self._store.read(session_id, after=after, limit=limit) if self._store.keeps_entries else []
        last = page[-1].sequence if page else after
        page += [entry for entry in pending if entry.sequence > last]
        return page if limit is None else page[:limit]

    async def find(self, session_id: str, entry_id: str) -> StoredEntry | None:
        """The entry with this id, or None."""
        pending = next((entry for entry in self._pending() if entry.entry_id == entry_id), None)
        return pending or await self._store.find(session_id, entry_id)

    async def decoded(self, problems: list[str]) -> AsyncIterator[Entry]:
        """All of them, oldest first; what cannot be read is left out, and told to `problems`."""
        after = 0
        while page := await self.read(self._log.head.session_id, after=after, limit=PAGE):
            for stored in page:
                try:
                    entry = decode_entry(stored.encoded)
                except InvalidMessage as error:
                    problems.append(f"entry {stored.entry_id} is damaged and is left out: {error}")
                    continue
                yield msgspec.structs.replace(entry, sequence=stored.sequence)
            after = page[-1].sequence

    def _pending(self) -> list[StoredEntry]:
        if self._store.keeps_entries:
            return self._log.pending
        entries = rejoined(self._conversation.branch().entries)
        return [stored_entry(entry) for entry in entries]
