"""The events of a manager: what happens is published here, and listeners subscribe or follow.

- `commits`, `flushes` and the other topics call their listeners at once, in this process (`events.listeners`).
- `follow` and `watch` are the live tail of one session, whichever process has written it (`events.tail`).
- `watch_all` is the feed of all sessions, which a reader resumes behind a cursor (`events.feed`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import aclosing, suppress

import anyio
import msgspec

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.core.events.feed import Event, Feed, Only, everything
from miniclaw_sessions.core.events.heartbeat import Heartbeat
from miniclaw_sessions.core.events.listeners import Topics, TurnEvent
from miniclaw_sessions.core.events.tail import Tails
from miniclaw_sessions.core.protocol.encoding import encode_entry
from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.core.stores.base import Store, StoredEntry
from miniclaw_sessions.core.stores.reading import readable
from miniclaw_sessions.errors import StoreError, TranscriptNotKept

MOST_CONTENT_BYTES = 1_048_576
"""At most this many bytes of entries are in one event; a reader that needs the others reads the store."""

Locate = Callable[[str], Awaitable[tuple[int, str | None]]]
"""Where a session's transcript ends, and its incarnation; None: the store does not have it yet."""


MakeFeed = Callable[[Topics, Collection[str], Clock, Heartbeat, Tails], Feed]
"""Makes the feed of topics, without the sessions that are being made, beside the tails."""


class Events(Topics):
    """What happens to the sessions of one manager.

    Args:
        clock: time.
        locate: finds a session; raises SessionNotFound, or ManagerClosed.
        store: the manager's store; raises ManagerClosed unless it is open, and WrongThread.
        making: the ids of sessions that are being put together: the feed has nothing of one until it is created.

    Attributes:
        tails: the live tails of single sessions; from `open` on.
        feed: the feed of all sessions; from `open` on.
    """

    tails: Tails
    feed: Feed

    def __init__(
        self, clock: Clock, *, locate: Locate, store: Callable[[], Store], making: Collection[str] = ()
    ) -> None:
        super().__init__()
        self._clock = clock
        self._locate = locate
        self._store = store
        self._heartbeat = Heartbeat(clock)
        self._making = making

    def __repr__(self) -> str:
        return f"<Events, {len(self.commits.listeners)} listeners to commits>"

    @property
    def followers(self) -> int:
        """How many follow a session, or watch all of them, now."""
        return self.tails.followers + self.feed.subscriptions

    # --- one session -------------------------------------------------------------------------------------------------

    async def follow(self, session_id: str, *, after: int | None = None) -> AsyncGenerator[list[Entry], None]:
        """The entries of a session as they are acknowledged, in order and once, whichever process has written them.

        They come in lists; one is empty when nothing has come for 15 seconds. What other processes store comes 0.3
        seconds later at most, or one second where nothing has happened for a minute. It ends when the session is
        deleted. Leave it with `aclosing`.

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
            async for page in watched:
                entries = [one for one in page if not isinstance(one, TurnEvent)]
                if entries or not page:
                    yield entries

    async def watch(
        self, session_id: str, *, after: int | None = None
    ) -> AsyncGenerator[list[Entry | TurnEvent], None]:
        """The entries that `follow` gives, and the events of a turn that this process is running in the session.

        Of a turn that is under way at the beginning comes first what happened in it so far. The pieces of a text come
        before the entry that holds it, a turn's entries before its end. A reader so slow that pieces are missing gets
        the turn from its beginning again, which is `typing`. Arguments and errors are those of `follow`.
        """
        last, incarnation = await self._locate(session_id)
        if not self._store().keeps_entries:
            raise TranscriptNotKept(session_id, "a live tail")
        place = last if after is None else after
        async with aclosing(self.tails.follow(session_id, place, incarnation)) as followed:
            async for page in followed:
                turn = [one for one in page if isinstance(one, TurnEvent)]
                entries = list(readable(one for one in page if isinstance(one, StoredEntry)))
                if turn or entries or not page:
                    yield [*turn, *entries]

    # --- all sessions ------------------------------------------------------------------------------------------------

    async def watch_all(
        self, *, after: str | None = None, only: Only = everything, listed: bool = False, content: bool = False
    ) -> AsyncGenerator[list[Event], None]:
        """What happens in all sessions, in lists of events.

        First comes `ready`, which says whether it resumes behind `after`. If it does not, and `listed`, there is an
        event `session` before it for each session in the store. Where nothing has come for 15 seconds, there is an
        event `quiet`, whose cursor can be resumed, too. It ends for a reader that is too slow; watching again behind
        the newest cursor goes on. Leave it with `aclosing`.

        Args:
            after: the cursor of the last event that was seen; by default there was none.
            only: which sessions' events come.
            listed: list the sessions that there are, if it does not resume behind `after`.
            content: let each entry come whole, as `entry`, as far as the store can be read.

        Raises:
            StoreError: the store cannot be read at the beginning.
            ManagerClosed: the manager is closing.
        """
        store = self._store()
        await self.feed.learn()
        with self.feed.subscribed(after, only) as subscription:
            if listed and not subscription.resumed:
                async for stored in store.heads():
                    head = stored.head
                    if head.session_id not in self._making and only(head.session_id, head.key):
                        data = {"incarnation": head.incarnation, "last_sequence": stored.last_sequence}
                        yield [Event("session", {"session_id": head.session_id, **data}, head.session_id, head.key)]
            turns = [session_id for session_id, key in self.tails.turns.items() if only(session_id, key)]
            yield [Event("ready", {"resumed": subscription.resumed, "turns": turns}, cursor=subscription.cursor)]
            while (events := await subscription.events()) is not None:
                if content:
                    for event in events:
                        yield [await self._with_content(event)]
                elif events:
                    yield events
                if not events:
                    yield [Event("quiet", {}, cursor=subscription.cursor)]

    async def _with_content(self, event: Event) -> Event:
        """An event of entries with their content, as far as that is not too much for one event."""
        if event.kind != "entries" or not event.data["entries"]:
            return event
        entries = list(event.data["entries"])
        after, size = entries[0]["sequence"] - 1, 0
        with suppress(StoreError):
            for place in range(len(entries)):
                page = await self._store().read(event.session_id, after=after + place, limit=1)
                if not page or (size := size + len(page[0].encoded)) > MOST_CONTENT_BYTES:
                    break
                for entry in readable(page):
                    entries[place] = {**entries[place], "entry": msgspec.Raw(encode_entry(entry))}
        return Event(event.kind, {**event.data, "entries": entries}, event.session_id, event.key, event.cursor)

    # --- for the manager ---------------------------------------------------------------------------------------------

    def open(self, store: Store, make_feed: MakeFeed | None = None) -> None:
        """Let what happens in a store be followed and watched.

        Args:
            store: the store.
            make_feed: makes the feed where other processes write the store, too; None: they do not.
        """
        self.tails = Tails(store, self._clock, self._heartbeat, self)
        common = self, self._making, self._clock, self._heartbeat
        self.feed = Feed(*common) if make_feed is None else make_feed(*common, self.tails)

    async def run(self) -> None:
        """Give heartbeats, and poll a shared store, until `stop`; never raises for what the store does."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._heartbeat.run, name="heartbeat")
            tasks.start_soon(self.feed.run, name="poll")

    def stop(self) -> None:
        """End all that `follow`, `watch` and `watch_all` give, because the program is about to end; `run` returns."""
        self.tails.close()
        self.feed.close()
        self._heartbeat.close()
