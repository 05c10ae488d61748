"""Following sessions: each entry that the store has acknowledged, in order, whichever process has written it.

What this process stores wakes its followers at once. What others store is found by one poll of the store for all
sessions that are followed here, so that nothing has to be told between processes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

import anyio

from miniclaw_sessions.clock import Clock, sleep_unless
from miniclaw_sessions.errors import ManagerClosed, StoreError, StoreUnavailable
from miniclaw_sessions.stores.base import SessionHead, Store, StoredEntry
from miniclaw_sessions.stores.reading import PAGE

POLL_S = 0.3
"""How often the store is asked whether others have written what is followed."""

QUIET_S = 15.0
"""Whoever follows a session in which nothing is said is given a sign of life this often."""


class _Followed:
    """A session that somebody follows.

    Attributes:
        followers: how many do.
        incarnation: of the session that is followed; None: it is not in the store yet.
        last: the newest sequence that the store is known to have.
        news: set when there may be more to read; another one from then on.
        is_gone: whether it was deleted, or nothing is followed any more.
    """

    def __init__(self) -> None:
        self.followers = 0
        self.incarnation: str | None = None
        self.last = 0
        self.news = anyio.Event()
        self.is_gone = False

    def seen(self, head: SessionHead | None, last: int) -> None:
        """The store has it, up to this sequence; None: it has not."""
        if self.incarnation is None and head is not None:
            self.incarnation = head.incarnation
        if (None if head is None else head.incarnation) != self.incarnation:
            self.gone()
        elif last > self.last:
            self.last = last
            self._wake()

    def gone(self) -> None:
        """Nothing more comes."""
        self.is_gone = True
        self._wake()

    def _wake(self) -> None:
        news, self.news = self.news, anyio.Event()
        news.set()


class Following:
    """Who follows what.

    Args:
        store: what is followed.
        clock: time.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._followed: dict[str, _Followed] = {}
        self._anybody = anyio.Event()
        self._stop = anyio.Event()

    def __repr__(self) -> str:
        return f"<Following {len(self._followed)} sessions>"

    async def follow(
        self, session_id: str, after: int, incarnation: str | None = None
    ) -> AsyncGenerator[list[StoredEntry], None]:
        """The entries with a sequence greater than `after`, as they are acknowledged, in lists.

        A list is empty when nothing has come for a while, or the store cannot be read. It ends when the session is
        deleted.

        Args:
            session_id: which session.
            after: the sequence behind which to begin.
            incarnation: the session's; None: the store does not have it yet.

        Raises:
            ManagerClosed: `close` was called.
        """
        with self._following(session_id) as followed:
            followed.incarnation = followed.incarnation or incarnation
            while not followed.is_gone:
                news = followed.news  # from before the read, so that nothing comes in between unseen
                try:
                    page = await self._store.read(session_id, after=after, limit=PAGE)
                except StoreUnavailable:
                    await sleep_unless(self._clock, POLL_S, self._stop)
                    yield []
                    continue
                if page:
                    yield page
                    after = page[-1].sequence
                if not page or 0 < followed.last <= after:
                    await sleep_unless(self._clock, QUIET_S, news)
                    if not news.is_set():
                        yield []
        if self._stop.is_set():
            raise ManagerClosed(f"session {session_id} is followed no longer: the session manager is closing")

    def appended(self, head: SessionHead, last: int) -> None:
        """This process has stored entries of a session, up to this sequence."""
        if (followed := self._followed.get(head.session_id)) is not None:
            followed.seen(head, last)

    def gone(self, session_id: str) -> None:
        """A session was deleted."""
        if (followed := self._followed.get(session_id)) is not None:
            followed.gone()

    async def run(self) -> None:
        """Ask the store now and then for all that is followed, until `close`; never raises for what the store does."""
        while not self._stop.is_set():
            await self._anybody.wait()
            if not await sleep_unless(self._clock, POLL_S, self._stop):
                await self._poll()

    def close(self) -> None:
        """Nothing is followed any more; `run` returns."""
        self._stop.set()
        self._anybody.set()
        for followed in self._followed.values():
            followed.gone()

    async def _poll(self) -> None:
        before = {session_id: (one, one.incarnation) for session_id, one in self._followed.items()}
        try:
            found = await self._store.versions(before)
        except StoreError:
            return
        for session_id, (followed, incarnation) in before.items():
            if followed.incarnation == incarnation:  # else it was stored here meanwhile, and the answer is older
                stored = found.get(session_id)
                followed.seen(*(None, 0) if stored is None else (stored.head, stored.last_sequence))

    @contextmanager
    def _following(self, session_id: str) -> Iterator[_Followed]:
        followed = self._followed.get(session_id)
        if followed is None or followed.is_gone:
            followed = self._followed[session_id] = _Followed()
        followed.is_gone |= self._stop.is_set()
        followed.followers += 1
        self._anybody.set()
        try:
            yield followed
        finally:
            followed.followers -= 1
            if not followed.followers and self._followed.get(session_id) is followed:
                del self._followed[session_id]
            if not self._followed and not self._stop.is_set():
                self._anybody = anyio.Event()
