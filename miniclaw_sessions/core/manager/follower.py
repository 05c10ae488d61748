"""Following the sessions of an open manager: one, or all of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import msgspec

from miniclaw_sessions.core.manager.feed import Event, Only
from miniclaw_sessions.core.manager.following import Told
from miniclaw_sessions.core.manager.reader import SessionReader
from miniclaw_sessions.core.manager.registry import SessionRegistry
from miniclaw_sessions.core.protocol.encoding import encode_entry
from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.base import StoredEntry
from miniclaw_sessions.core.stores.reading import readable
from miniclaw_sessions.errors import StoreError, TranscriptNotKept

MOST_CONTENT_BYTES = 1_048_576
"""What the entries of one event may say together; whoever needs the others reads them."""


def everything(session_id: str, key: SessionKey | None) -> bool:  # noqa: ARG001 - as `Only` is called
    """Every session."""
    return True


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
        async with aclosing(self.watch(session_id, after=after)) as watched:
            async for told in watched:
                entries = [one for one in told if not isinstance(one, Told)]
                if entries or not told:
                    yield entries

    async def watch(self, session_id: str, *, after: int | None = None) -> AsyncGenerator[list[Entry | Told], None]:
        """What `follow` tells, and besides what is told of an answer that this process is giving in the session.

        Of an answer that is under way at the beginning comes first what was said of it so far. The pieces of a text
        come before the entry that holds it, an answer's entries before its end. Who is so slow that pieces are missing
        is told the answer from its beginning again, which is `typing`. Arguments and errors are those of `follow`.
        """
        journal = (await self.find(session_id)).journal
        if not self._registry.store.keeps_entries:
            raise TranscriptNotKept(session_id, "a live tail")
        last = journal.committed_sequence
        incarnation = journal.incarnation if last else None
        place = last if after is None else after
        async with aclosing(self._registry.live.following.follow(session_id, place, incarnation)) as followed:
            async for page in followed:
                told = [one for one in page if isinstance(one, Told)]
                entries = list(readable(one for one in page if isinstance(one, StoredEntry)))
                if told or entries or not page:
                    yield [*told, *entries]

    async def watch_all(
        self, *, after: str | None = None, only: Only = everything, listed: bool = False, content: bool = False
    ) -> AsyncGenerator[list[Event], None]:
        """What happens in all sessions, in lists of events.

        First comes `ready`, which says whether it goes on behind `after`. If it does not, and `listed`, there is an
        event `session` before it for each session in the store. Where nothing has come for 15 seconds, there is an
        event `quiet`, behind whose place one may go on, too. It ends for a watcher who is too slow; watching again
        behind the newest place goes on. Leave it with `aclosing`.

        Args:
            after: the place of the last event that was seen; by default nothing was.
            only: which sessions are told of.
            listed: tell of those that there are, if it does not go on behind `after`.
            content: let each entry come whole, as `entry`, as far as the store can be read.

        Raises:
            StoreError: the store cannot be read at the beginning.
            ManagerClosed: the manager is closing.
        """
        live = self._registry.live
        await live.look()
        with live.feed.watching(after, only) as watch:
            if listed and not watch.resumed:
                async for stored in self._transcripts().heads():
                    head = stored.head
                    if head.session_id not in live.making and only(head.session_id, head.key):
                        data = {"incarnation": head.incarnation, "last_sequence": stored.last_sequence}
                        yield [Event("session", {"session_id": head.session_id, **data}, head.session_id, head.key)]
            turns = [session_id for session_id, key in live.answering.items() if only(session_id, key)]
            yield [Event("ready", {"resumed": watch.resumed, "turns": turns}, place=watch.place)]
            while (events := await watch.events()) is not None:
                if content:
                    for event in events:
                        yield [await self._with_content(event)]
                elif events:
                    yield events
                if not events:
                    yield [Event("quiet", {}, place=watch.place)]

    async def _with_content(self, event: Event) -> Event:
        """An event of entries with what they say, as far as that is not too much for one event."""
        if event.kind != "entries" or not event.data["entries"]:
            return event
        entries = list(event.data["entries"])
        after, size = entries[0]["sequence"] - 1, 0
        with suppress(StoreError):
            for place in range(len(entries)):
                page = await self._transcripts().read(event.session_id, after=after + place, limit=1)
                if not page or (size := size + len(page[0].encoded)) > MOST_CONTENT_BYTES:
                    break
                for entry in readable(page):
                    entries[place] = {**entries[place], "entry": msgspec.Raw(encode_entry(entry))}
        return Event(event.kind, {**event.data, "entries": entries}, event.session_id, event.key, event.place)

    def stop_following(self) -> None:
        """End all that `follow`, `watch` and `watch_all` tell, because the program is about to end."""
        self._registry.live.close()
