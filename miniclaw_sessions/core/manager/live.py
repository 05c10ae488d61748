"""What happens in the sessions of a manager, as it happens: for those who follow one, and for those who watch all.

The committer says what the store has acknowledged, the registry which sessions come and go, and whoever answers what he
is saying. What other processes do with a shared store is found by one poll for all that is followed and watched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import anyio
import msgspec

from miniclaw_sessions.clock import Clock, sleep_unless
from miniclaw_sessions.core.manager.feed import Feed
from miniclaw_sessions.core.manager.following import ENDS, TYPING, Followed, Following, Told
from miniclaw_sessions.core.manager.waiting import Waiting
from miniclaw_sessions.core.protocol.entries import METADATA
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.base import SessionHead, Store, StoredEntry, StoredHead
from miniclaw_sessions.core.stores.shared import as_shared
from miniclaw_sessions.errors import InvalidKey, StoreError

POLL_S = 0.3
"""How often a shared store is asked whether others have written it."""

POLL_PAUSES = 10
"""However slow the store is, the time between two polls is so many times as long as a poll."""

LATE_S = 5.0
"""How long a transaction may take and still be found by the next poll; a thorough poll finds longer ones."""

THOROUGH_EVERY_S = 60.0
THOROUGH_LATE_S = 300.0
"""How far back a thorough poll looks, which also asks whether each known session is still there."""

KNOWN_S = 3600.0
"""Sessions that were used so lately are known before the first watcher hears how they go on."""

MOST_ENTRIES = 100
"""At most so many entries are described in one event; those before them are read by whoever needs them."""

_ABOUT_SESSION = frozenset({"session_info", "model_change", "thinking_level"})


class _Speaker(msgspec.Struct):
    role: str | None = None


class _Described(msgspec.Struct):
    """What an event says of an entry."""

    type: str = ""
    name: str | None = None
    custom_type: str | None = None
    message: _Speaker | None = None


_described = msgspec.json.Decoder(_Described)


class Live:
    """Who follows and watches, and what they are told.

    Args:
        store: whose sessions they are.
        clock: time.

    Attributes:
        answering: the sessions in which an answer is under way, and their keys.
        making: the ids of sessions that are being put together; there is none until it is `made`.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._waiting = Waiting(clock)
        self.following = Following(store, clock, self._waiting)
        self.feed = Feed(clock, self._waiting)
        self._others = _Others(store, self.following, self.feed)
        self.answering: dict[str, SessionKey] = {}
        self.making: set[str] = set()
        self._stop = anyio.Event()

    def __repr__(self) -> str:
        return f"<Live {self.following!r}, {self.feed!r}>"

    @property
    def followers(self) -> int:
        """How many follow a session, or watch all of them, now."""
        return self.following.followers + self.feed.watchers

    # --- what is told ------------------------------------------------------------------------------------------------

    def tell(self, key: SessionKey, kind: str, data: dict[str, Any]) -> None:
        """Tell of an answer under way: first `typing`, at last one of `ENDS`.

        Args:
            key: the session's.
            kind: the name of an event of `POST /v1/chat`.
            data: its data; nobody may change them any more.
        """
        session_id = key.session_id
        self.following.tell(session_id, Told(kind, data))
        if kind == TYPING:
            self.answering[session_id] = key
            self.feed.tell("turn_started", {"session_id": session_id}, session_id, key)
        elif kind in ENDS:
            self.answering.pop(session_id, None)
            self.feed.tell("turn_ended", {"session_id": session_id, "outcome": kind}, session_id, key)

    def appended(self, head: SessionHead, sent: Sequence[StoredEntry]) -> None:
        """The store has taken these entries of a session."""
        self.following.appended(head, sent[-1].sequence)
        is_told = self.feed.is_kept and head.session_id not in self.making
        if is_told and not self._others.were_first(head, sent[0].sequence):  # else the next poll tells of all of them
            self._others.known(head, sent[-1].sequence)
            tell_entries(self.feed, head, sent)

    def made(self, head: SessionHead, last: int = 0) -> None:
        """There is a new session, with so many entries in the store."""
        if self.feed.is_kept:
            self._others.known(head, last)
            tell_created(self.feed, head, last)

    def gone(self, session_id: str, key: SessionKey | None = None, *, kind: str = "deleted") -> None:
        """A session was deleted, or has expired."""
        self.following.gone(session_id)
        self._others.forget(session_id)
        if key is None:
            with suppress(InvalidKey):
                key = SessionKey.parse(session_id)
        self.feed.tell(kind, {"session_id": session_id}, session_id, key)

    # --- while it runs -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Give signs of life, and see what others do, until `close`; never raises for what the store does."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._waiting.run, name="signs of life")
            if self._store.shared:
                tasks.start_soon(self._poll_until_closed, name="what others do")

    def close(self) -> None:
        """Nothing is followed and watched any more; `run` returns."""
        self._stop.set()
        self.following.close()
        self.feed.close()
        self._waiting.close()

    async def look(self) -> None:
        """Learn where sessions end that others write, before the first watcher hears how they go on.

        Raises:
            StoreError: the store cannot be read.
        """
        if self._store.shared:
            await self._others.look(self._clock.monotonic())

    async def _poll_until_closed(self) -> None:
        pause = POLL_S
        while not await sleep_unless(self._clock, pause, self._stop):
            began = self._clock.monotonic()
            with suppress(StoreError):
                await self.poll()
            pause = max(POLL_S, POLL_PAUSES * (self._clock.monotonic() - began))

    async def poll(self) -> None:
        """Ask the store once for all that is followed, and for what all watchers are told.

        Raises:
            StoreError: the store cannot be read.
        """
        await self._others.poll(self._clock.monotonic())


class _Others:
    """What other processes do with the sessions of a shared store, for those who follow one or watch all of them.

    Each poll asks what has changed since the one before, so that it costs nothing where nothing happens.

    Args:
        store: the store.
        following: who follows one.
        feed: the row of events for those who watch all.
    """

    def __init__(self, store: Store, following: Following, feed: Feed) -> None:
        self._polling = anyio.Lock()
        self._has_looked = False
        self._store = store
        self._following = following
        self._feed = feed
        self._known: dict[str, tuple[SessionHead, int]] = {}
        self._asked: dict[str, Followed] = {}
        self._at: datetime | None = None
        self._thorough_at = 0.0

    def known(self, head: SessionHead, last: int) -> None:
        """Watchers were told of a session up to here."""
        if self._store.shared:
            self._known[head.session_id] = head, last

    def were_first(self, head: SessionHead, sequence: int) -> bool:
        """Whether there are entries before this one of which watchers were not told."""
        known, last = self._known.get(head.session_id, (head, sequence - 1))
        return known.incarnation != head.incarnation or last < sequence - 1

    def forget(self, session_id: str) -> None:
        """Watchers were told that it is gone."""
        self._known.pop(session_id, None)

    async def look(self, now: float) -> None:
        """Learn where sessions end, for the first who watches."""
        async with self._polling:  # one after the other: the older answer would say again that nobody watches
            if not self._has_looked:
                await self._ask(now, watched=True)

    async def poll(self, now: float) -> None:
        """Ask what has changed, and tell it; nothing is asked while nobody follows or watches."""
        async with self._polling:
            if self._feed.is_kept or self._following.incarnations:
                await self._ask(now, watched=self._feed.is_kept)
            else:
                self._has_looked, self._at, self._asked = False, None, {}

    async def _ask(self, now: float, *, watched: bool) -> None:
        store = as_shared(self._store)
        if self._at is None:
            self._at, self._thorough_at = await store.now(), now
        is_first, is_thorough = watched and not self._has_looked, now - self._thorough_at >= THOROUGH_EVERY_S
        if is_first:
            self._known.clear()
        followed = self._following.incarnations
        late_s = KNOWN_S if is_first else THOROUGH_LATE_S if is_thorough else LATE_S
        asked = {session_id for session_id, (one, _) in followed.items() if self._asked.get(session_id) is not one}
        if is_thorough:
            asked |= followed.keys() | self._known.keys()
        known = [self._known[session_id][0] for session_id in asked if session_id in self._known]
        changes = await store.changes(self._at, late_s)
        heads = {stored.head.session_id: stored for stored in changes.changed}
        there = await self._store.versions(asked) if asked else {}
        self._following.polled(followed, heads | dict(there), asked, changes.deleted)
        if watched:
            gone = [head for head in known if head.session_id not in there]
            if changes.deleted:
                gone += [head for head, _ in self._known.values() if head.incarnation in changes.deleted]
            for head in gone:
                self._tell_deleted(head)
            for stored in changes.changed:
                await self._see(stored)
        self._has_looked, self._at = watched, changes.at
        self._asked = {session_id: one for session_id, (one, _) in followed.items()}
        if is_thorough:
            self._thorough_at = now

    def _tell_deleted(self, head: SessionHead) -> None:
        known, _ = self._known.get(head.session_id, (None, 0))
        if known is not None and known.incarnation == head.incarnation:
            del self._known[head.session_id]
            self._feed.tell("deleted", {"session_id": head.session_id}, head.session_id, head.key)

    async def _see(self, stored: StoredHead) -> None:
        head, last = stored.head, stored.last_sequence
        known, place = self._known.get(head.session_id, (None, 0))
        if known is not None and known.incarnation != head.incarnation:
            self._tell_deleted(known)
            known = None
        elif known is not None and last <= place:
            return
        if not self._has_looked:
            self._known[head.session_id] = head, last
            return
        if known is None:  # it is new, or nobody has used it for long: then only its end is known
            tell_created(self._feed, head, 0)
            place = max(0, last - 1)
            self._known[head.session_id] = head, place
        if last > place:
            after = max(place, last - MOST_ENTRIES)
            read = await self._store.read(head.session_id, after=after, limit=last - after)
            known, place = self._known.get(head.session_id, (None, 0))  # this process may have gone on meanwhile
            if known is not None and known.incarnation == head.incarnation:
                tell_entries(self._feed, head, [one for one in read if one.sequence > place])
                self._known[head.session_id] = head, max(last, place)


def tell_created(feed: Feed, head: SessionHead, last: int) -> None:
    """Tell of a session that was not there before, or was not heard of."""
    session_id, key = head.session_id, head.key
    data = {
        "session_id": session_id,
        "channel": key.channel,
        "chat_id": key.chat_id,
        "incarnation": head.incarnation,
    }
    feed.tell("created", data, session_id, key)
    if last:
        feed.tell("entries", {"session_id": session_id, "sequence": last, "entries": []}, session_id, key)


def tell_entries(feed: Feed, head: SessionHead, stored: Sequence[StoredEntry]) -> None:
    """Tell which entries were acknowledged, without what they say; and whether the session itself has changed."""
    if not stored:
        return
    session_id, key = head.session_id, head.key
    described = [_description(one) for one in stored[-MOST_ENTRIES:]]
    entries = [
        {"id": one.entry_id, "sequence": one.sequence, "type": about.type}
        | ({} if about.message is None else {"role": about.message.role})
        for one, about in zip(stored[-MOST_ENTRIES:], described, strict=True)
    ]
    feed.tell(
        "entries",
        {"session_id": session_id, "sequence": stored[-1].sequence, "entries": entries},
        session_id,
        key,
    )
    if (changed := _changed(described)) is not None:
        feed.tell("changed", {"session_id": session_id, **changed}, session_id, key)


def _description(stored: StoredEntry) -> _Described:
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _described.decode(stored.encoded)
    return _Described()


def _changed(described: Iterable[_Described]) -> dict[str, Any] | None:
    """What is new of the session itself; None: nothing."""
    about = [one for one in described if one.type in _ABOUT_SESSION or one.custom_type == METADATA]
    if not about:
        return None
    titles = [one.name for one in about if one.type == "session_info"]
    return {"title": titles[-1]} if titles else {}
