"""Saves a manager's sessions: entries by the committer, snapshots by the flusher; and keeps the search index."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import anyio

from miniclaw_sessions.clock import Clock, sleep_unless
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.events.listeners import Commit, Topic, Topics
from miniclaw_sessions.core.persistence.committer import Committer
from miniclaw_sessions.core.persistence.flusher import Flusher
from miniclaw_sessions.core.persistence.own_task import Background
from miniclaw_sessions.core.persistence.recovery import Progress
from miniclaw_sessions.core.persistence.storage import Storage
from miniclaw_sessions.core.stores.base import Store
from miniclaw_sessions.errors import StoreError, StoreFull, StoreUnavailable, named
from miniclaw_sessions.log import get_logger

BEHIND_S = 0.5
"""How long after a commit the index is brought up to date; what is committed meanwhile goes with it."""

ENTRIES = 200
"""What is indexed in one step, about 20 ms of work."""

PAUSE_S = 0.02
"""Between two steps at least."""

PAUSES = 3.0
"""While messages come, it rests this many times longer than it works: it falls behind rather than delay them."""

LONGEST_RETRY_S = 60.0

log = get_logger(__name__)


class Saving:
    """The committer, the flusher and the search index of an open manager."""

    def __init__(  # noqa: PLR0913 - it works with what the manager has
        self,
        storage: Storage,
        *,
        settings: SessionSettings,
        clock: Clock,
        on_progress: Callable[[Progress], None],
        topics: Topics,
        look_s: float | None = None,
    ) -> None:
        self.store = store = storage.store
        self.committer = Committer(
            store, clock=clock, max_unsaved_bytes=settings.max_unsaved_bytes, commits=topics.commits
        )
        self.flusher = Flusher(
            storage.checkpoints,
            self.committer,
            clock=clock,
            interval_s=settings.flush_interval_s,
            on_progress=on_progress,
            flushes=topics.flushes,
        )
        self.indexing = Indexing(store, clock=clock, commits=topics.commits, look_s=look_s)
        self._storage = storage
        self._clock = clock

    def __repr__(self) -> str:
        return f"<Saving {self.committer!r}, {self.flusher!r}>"

    def start(self, background: Background) -> None:
        """Run them in the background until `finish`."""
        background.start(self.committer.run, name="committer")
        background.start(self.flusher.run, name="flusher")
        background.start(self.indexing.run, name="indexing")

    async def finish(self) -> None:
        """Save the rest, and make all three return.

        The flusher closes before the committer: its last flush waits for a last commit.
        """
        self.indexing.close()
        try:
            await self.flusher.flush()
        except Exception as error:  # noqa: BLE001 - closing goes on; `refuse_to_forget` says what is not saved
            log.error("the last flush failed", action="flush.failed", error=named(error))
        self.flusher.close()
        self.committer.close()

    def refuse_to_forget(self, rejections: Iterable[StoreError]) -> None:
        """Raise if something was not saved: silence would be a lie (rule R31).

        Args:
            rejections: why the store refused sessions, for where nothing else says what is wrong.

        Raises:
            StoreFull, StoreUnavailable: something is not saved.
        """
        unsaved, dirty = self.committer.counts.unsaved_entries, self.flusher.dirty
        if not unsaved and not dirty:
            return
        cause = self.committer.failure or self.flusher.problem or next(iter(rejections), None) or "time ran out"
        kind = StoreFull if isinstance(cause, StoreFull) else StoreUnavailable
        where = self._storage.where
        raise kind(f"closed with {unsaved} messages and {dirty} snapshots unsaved in {where}: {cause}")

    @property
    def problems(self) -> list[str]:
        """What keeps messages from being acknowledged, or snapshots from being written, one sentence each."""
        problems = []
        if (failure := self.committer.failure or self.committer.lost) is not None:
            problems.append(f"messages are not acknowledged: {failure}")
        elif self.committer.refusals:
            problems += self.committer.refusals.problems
        elif self.store.unreachable is not None:
            problems.append(f"the store cannot be used: {self.store.unreachable}")
        problems += self.store.problems
        if self.flusher.problem is not None:
            problems.append(str(self.flusher.problem))
        return problems

    @property
    def state(self) -> str:
        """`failing` where there are problems, else `ok`."""
        return "failing" if self.problems else "ok"

    @property
    def numbers(self) -> dict[str, Any]:
        """What committer and flusher have done, and what waits for them: fields of `ManagerStatistics`."""
        commits, flushes = self.committer.counts, self.flusher.counts
        return {
            "dirty": self.flusher.dirty,
            "unsaved_entries": commits.unsaved_entries,
            "unsaved_bytes": commits.unsaved_bytes,
            "appended": commits.committed + commits.unsaved_entries,
            "committed": commits.committed,
            "commits": commits.commits,
            "commit_failures": commits.failures,
            "flushes": flushes.flushes,
            "flush_failures": flushes.failures,
            "snapshots_written": flushes.written,
            "last_flush_seconds": flushes.last_seconds,
            "store_state": self.state,
        }

    @property
    def progressed_at(self) -> float:
        """The monotonic second at which both were last known to be alive: now, when both are idle.

        A full disk is progress (it answers); a disk that hangs is not. The watchdog watches this (rule R29).
        """
        starts = [since for since in (self.committer.busy_since, self.flusher.busy_since) if since is not None]
        return min(starts, default=self._clock.monotonic())


class Indexing:
    """Calls `Store.index` until nothing is left, and again after each commit.

    It listens for the next commit only: what is committed after that goes with it, and costs the committer nothing.

    Args:
        store: the store.
        clock: time.
        commits: where commits are published.
        look_s: how often the store is asked without a commit; None: never.
    """

    def __init__(self, store: Store, *, clock: Clock, commits: Topic[Commit], look_s: float | None = None) -> None:
        self._store = store
        self._clock = clock
        self._commits = commits
        self._look_s = look_s
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
        if self._look_s is None:
            await self._news.wait()
        else:
            await sleep_unless(self._clock, self._look_s, self._news)
        return BEHIND_S
