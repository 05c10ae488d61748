"""Keeping the store's search index near its transcripts: one task, which works between commits, never in them."""

from __future__ import annotations

import anyio

from miniclaw_sessions.clock import Clock, sleep_unless
from miniclaw_sessions.core.events.listeners import Commit, Topic
from miniclaw_sessions.core.stores.base import Store
from miniclaw_sessions.errors import named
from miniclaw_sessions.log import get_logger

BEHIND_S = 0.5
"""How long after a commit the index is brought up to date; what is committed meanwhile goes with it."""

ENTRIES = 200
"""What is indexed in one step, about 20 ms of work."""

PAUSE_S = 0.02
"""Between two steps at least."""

PAUSES = 3.0
"""While messages come, it rests this many times longer than it works: it falls behind rather than delay them."""

LOOK_S = 10.0
"""How often a shared store is asked: another process may have died before it indexed what it wrote."""

LONGEST_RETRY_S = 60.0

log = get_logger(__name__)


class Indexing:
    """Calls `Store.index` until nothing is left, and again after each commit.

    It listens for the next commit only: what is committed after that goes with it, and costs the committer nothing.
    """

    def __init__(self, store: Store, *, clock: Clock, commits: Topic[Commit]) -> None:
        self._store = store
        self._clock = clock
        self._commits = commits
        self._news = anyio.Event()
        self._news.set()  # there may be something to index from before
        self._stop = anyio.Event()
        self._failures = 0

    def __repr__(self) -> str:
        return f"<Indexing {self._store!r}>"

    def _committed(self, _: Commit) -> None:
        self._commits.unsubscribe(self._committed)
        self._news.set()

    def close(self) -> None:
        """Make `run` return after the step that is under way."""
        self._stop.set()
        self._news.set()

    async def run(self) -> None:
        """Index until `close`; never raises for what the store does."""
        wait = BEHIND_S
        while not await sleep_unless(self._clock, wait, self._stop):
            if self._news.is_set():
                self._news = anyio.Event()
                self._commits.subscribe(self._committed)
            wait = await self._step()

    async def _step(self) -> float:
        """Index a little, or wait for something to index; how long to wait then."""
        started = self._clock.monotonic()
        try:
            indexed = await self._store.index(ENTRIES)
        except Exception as error:  # noqa: BLE001 - the manager goes on without its index, and tries again
            self._failures += 1
            if self._failures == 1:
                log.warning("the search index is behind", action="search.behind", error=named(error))
            return min(BEHIND_S * 2.0**self._failures, LONGEST_RETRY_S)
        self._failures = 0
        if indexed:
            took = self._clock.monotonic() - started
            return max(PAUSE_S, took * (PAUSES if self._news.is_set() else 1.0))
        if self._store.shared:
            await sleep_unless(self._clock, LOOK_S, self._news)
        else:
            await self._news.wait()
        return BEHIND_S
