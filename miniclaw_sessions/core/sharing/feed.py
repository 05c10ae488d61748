"""What other processes do with the sessions of a shared store: one poll for all tails and for the feed.

Each poll asks what has changed since the one before, so that it costs nothing where nothing happens.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import datetime

import anyio

from miniclaw_sessions.clock import Clock, sleep_unless
from miniclaw_sessions.core.events.feed import MOST_ENTRIES, Feed
from miniclaw_sessions.core.events.heartbeat import Heartbeat
from miniclaw_sessions.core.events.listeners import SessionEnded, Topics
from miniclaw_sessions.core.events.tail import Tail, Tails
from miniclaw_sessions.core.sharing.database import Database
from miniclaw_sessions.core.stores.base import SessionHead, StoredEntry, StoredHead
from miniclaw_sessions.errors import StoreError

POLL_S = 0.3
"""How often a shared store is asked for what others wrote."""

QUIET_POLL_S = 1.5
"""How often it is asked where nothing has changed for `QUIET_S`: that many gateways idle most of the time."""

QUIET_S = 60.0

POLL_PAUSES = 10
"""However slow the store is, the time between two polls is at least this many times the time of a poll."""

LATE_S = 5.0
"""How long a transaction may take and still be found by the next poll; a thorough poll finds longer ones."""

THOROUGH_EVERY_S = 60.0
THOROUGH_LATE_S = 300.0
"""How far back a thorough poll looks, which also asks whether each session with a known end is still there."""

KNOWN_S = 3600.0
"""The ends of sessions that were used this lately are learned before the first subscription to the feed."""


class SharedFeed(Feed):
    """The feed of a shared store: it has what all processes do, each entry once. It also wakes the tails.

    It keeps in mind up to where the feed has each session. Where others have written before this process did, its own
    entries wait for the next poll, which publishes all of them in order.

    Args:
        topics: what is published of this process's sessions.
        making: the ids of sessions that are being put together; their entries are left out.
        clock: time, and the feed's name.
        heartbeat: wakes those who wait.
        tails: who follows a session.
        database: has what they do.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - it joins what the others have
        self,
        topics: Topics,
        making: Collection[str],
        clock: Clock,
        heartbeat: Heartbeat,
        tails: Tails,
        database: Database,
    ) -> None:
        super().__init__(topics, making, clock, heartbeat)
        self._database = database
        self._tails = tails
        self._polling = anyio.Lock()
        self._has_looked = False
        self._ends: dict[str, tuple[SessionHead, int]] = {}
        self._asked: dict[str, Tail] = {}
        self._at: datetime | None = None
        self._thorough_at = 0.0
        self._changed_at = 0.0
        self._stop = anyio.Event()
        topics.ended.subscribe(self._forget)

    # --- what this process does ---------------------------------------------------------------------------------------

    def _stored_here(self, head: SessionHead, sent: Sequence[StoredEntry]) -> None:
        known, last = self._ends.get(head.session_id, (head, sent[0].sequence - 1))
        if known.incarnation == head.incarnation and last >= sent[0].sequence - 1:  # else the next poll publishes them
            self._ends[head.session_id] = head, sent[-1].sequence
            super()._stored_here(head, sent)

    def _created_here(self, head: SessionHead, last: int) -> None:
        self._ends[head.session_id] = head, last
        super()._created_here(head, last)

    def _forget(self, event: SessionEnded) -> None:
        self._ends.pop(event.session_id, None)

    # --- what others do -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Poll until `close`; never raises for what the store does."""
        pause = POLL_S
        while not await sleep_unless(self._clock, pause, self._stop):
            began = self._clock.monotonic()
            with suppress(StoreError):
                await self.poll()
            now = self._clock.monotonic()
            is_quiet = now - self._changed_at > QUIET_S
            pause = max(QUIET_POLL_S if is_quiet else POLL_S, POLL_PAUSES * (now - began))

    def close(self) -> None:
        """End all subscriptions; `run` returns."""
        self._stop.set()
        super().close()

    async def learn(self) -> None:
        """Learn where sessions end that others write, before the first subscription hears how they go on.

        Raises:
            StoreError: the store cannot be read.
        """
        async with self._polling:  # one after the other: the older answer would say again that the feed is not kept
            if not self._has_looked:
                await self._ask(feeds=True)

    async def poll(self) -> None:
        """Ask the store once for all tails and for the feed; nothing is asked while nothing is followed.

        Raises:
            StoreError: the store cannot be read.
        """
        async with self._polling:
            if self.is_kept or self._tails.incarnations:
                await self._ask(feeds=self.is_kept)
            else:
                self._has_looked, self._at, self._asked = False, None, {}

    async def _ask(self, *, feeds: bool) -> None:
        """Ask what has changed, and pass it on to the tails and, if it `feeds`, to the feed."""
        store, server, now = self._database.store, self._database.server, self._clock.monotonic()
        if self._at is None:
            self._at, self._thorough_at, self._changed_at = await store.watch(server.now()), now, now
        is_first, is_thorough = feeds and not self._has_looked, now - self._thorough_at >= THOROUGH_EVERY_S
        if is_first:
            self._ends.clear()
        followed = self._tails.incarnations
        late_s = KNOWN_S if is_first else THOROUGH_LATE_S if is_thorough else LATE_S
        asked = {session_id for session_id, (tail, _) in followed.items() if self._asked.get(session_id) is not tail}
        if is_thorough:
            asked |= followed.keys() | self._ends.keys()
        known = [self._ends[session_id][0] for session_id in asked if session_id in self._ends]
        changes = await store.watch(server.changes(self._at, late_s))
        heads = {stored.head.session_id: stored for stored in changes.changed}
        there = await store.versions(asked) if asked else {}
        self._tails.polled(followed, heads | dict(there), asked, changes.deleted)
        if not is_thorough and (changes.changed or changes.deleted):  # a thorough poll sees what is known, once more
            self._changed_at = now
        if feeds:
            gone = [head for head in known if head.session_id not in there]
            if changes.deleted:
                gone += [head for head, _ in self._ends.values() if head.incarnation in changes.deleted]
            for head in gone:
                self._publish_deleted(head)
            for stored in changes.changed:
                await self._see(stored)
        self._has_looked, self._at = feeds, changes.at
        self._asked = {session_id: tail for session_id, (tail, _) in followed.items()}
        if is_thorough:
            self._thorough_at = now

    def _publish_deleted(self, head: SessionHead) -> None:
        known, _ = self._ends.get(head.session_id, (None, 0))
        if known is not None and known.incarnation == head.incarnation:
            del self._ends[head.session_id]
            self.publish("deleted", {"session_id": head.session_id}, head.session_id, head.key)

    async def _see(self, stored: StoredHead) -> None:
        """Publish how far a session that has changed goes now."""
        head, last = stored.head, stored.last_sequence
        known, place = self._ends.get(head.session_id, (None, 0))
        if known is not None and known.incarnation != head.incarnation:
            self._publish_deleted(known)
            known = None
        elif known is not None and last <= place:
            return
        if not self._has_looked:
            self._ends[head.session_id] = head, last
            return
        if known is None:  # it is new, or was not used for long: then only its end is known
            self.publish_created(head, 0)
            place = max(0, last - 1)
            self._ends[head.session_id] = head, place
        if last > place:
            after = max(place, last - MOST_ENTRIES)
            read = await self._database.store.read(head.session_id, after=after, limit=last - after)
            known, place = self._ends.get(head.session_id, (None, 0))  # this process may have gone on meanwhile
            if known is not None and known.incarnation == head.incarnation:
                self.publish_entries(head, [one for one in read if one.sequence > place])
                self._ends[head.session_id] = head, max(last, place)
