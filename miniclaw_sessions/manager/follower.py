"""Following the sessions of an open manager."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from miniclaw_sessions.errors import TranscriptNotKept
from miniclaw_sessions.manager.reader import SessionReader
from miniclaw_sessions.manager.registry import SessionRegistry
from miniclaw_sessions.protocol.entries import Entry
from miniclaw_sessions.stores.reading import readable


class SessionFollower(SessionReader):
    """Reads sessions, and what comes to them."""

    _registry: SessionRegistry

    async def follow(self, session_id: str, *, after: int | None = None) -> AsyncGenerator[list[Entry], None]:
        """The entries of a session as they are acknowledged, in order and once, whichever process has written them.

        They come in lists; one is empty when nothing has come for 15 seconds. What other processes store comes 0.3
        seconds later at most. It ends when the session is deleted. Leave it with `aclosing`.

        Args:
            session_id: which session.
            after: the sequence behind which to begin; by default the newest entry's.

        Raises:
            SessionNotFound: there is no such session.
            TranscriptNotKept: the store keeps none.
            StoreError: the store cannot be read at the beginning; later it is waited for.
            ManagerClosed: the manager is closing.
        """
        journal = (await self.find(session_id)).journal
        if not self._registry.store.keeps_entries:
            raise TranscriptNotKept(session_id, "a live tail")
        last = journal.committed_sequence
        incarnation = journal.incarnation if last else None
        place = last if after is None else after
        async with aclosing(self._registry.following.follow(session_id, place, incarnation)) as followed:
            async for page in followed:
                entries = list(readable(page))
                if entries or not page:
                    yield entries

    def stop_following(self) -> None:
        """End all that `follow` tells, because the program is about to end."""
        self._registry.following.close()
