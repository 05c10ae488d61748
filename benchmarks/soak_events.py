"""The faults of a soak: the daemon is killed, stopped, and its disk filled up."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from typing import NamedTuple

import anyio

from benchmarks.daemon import Daemon, DaemonEnded
from benchmarks.soak_disk import Disk
from benchmarks.soak_samples import Sampler
from benchmarks.soak_writers import Book

ROUND = ("kill", "kill", "kill", "stop", "stop", "full", "full")
"""What happens in a round, in an order of its own each time."""

SHORTEST_LIFE_S = 2.0
SHORTEST_FULL_S, LONGEST_FULL_S = 8.0, 20.0
RETRY_START_S = 1.0
COME_BACK_LIMIT_S = 90.0
NOTICED_LIMIT_S = 60.0
HEALED_LIMIT_S = 30.0
KILLED_WHILE_FULL = 0.5


class Event(NamedTuple):
    """Something that was done.

    Attributes:
        kind: `kill`, `stop` (SIGTERM) or `full` (the disk).
        at: when, seconds since the run began.
        until: when the daemon was ready again, or the disk had space again.
    """

    kind: str
    at: float
    until: float


class Disturber:
    """Starts the daemon, and does not leave it in peace.

    Attributes:
        events: what was done.
        starts: seconds that each start took.
        failed_starts: attempts to start on a full disk that ended otherwise, by exit status.
        is_full: whether the disk is.
        sampler: looks at the present life; None between two lives.
    """

    def __init__(self, daemon: Daemon, disk: Disk | None, book: Book, *, every_s: float, seed: str) -> None:
        self.events: list[Event] = []
        self.starts: list[float] = []
        self.failed_starts: Counter[int] = Counter()
        self.is_full = False
        self.sampler: Sampler | None = None
        self._began = time.monotonic()
        self._daemon = daemon
        self._disk = disk
        self._book = book
        self._every_s = every_s
        self._chance = random.Random(f"{seed} disturber")

    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    def begin(self) -> None:
        """The run begins at this moment; what was before does not count."""
        self._began = time.monotonic()
        if self.sampler is not None:
            self.sampler.ready_at = 0.0

    def count(self, kind: str) -> int:
        """How often this was done."""
        return sum(event.kind == kind for event in self.events)

    async def disturb(self, seconds: float) -> None:
        """One thing after the other, at random, for so long; then the daemon is ready, and the disk has space."""
        coming: list[str] = []
        while (left := seconds - self.now()) > 0:
            if not coming:
                coming = [kind for kind in ROUND if kind != "full" or self._disk is not None]
                self._chance.shuffle(coming)
            pause = max(SHORTEST_LIFE_S, self._chance.expovariate(1 / self._every_s))
            await anyio.sleep(min(pause, left))
            if pause >= left:
                return
            kind = coming.pop()
            await (self.fill() if kind == "full" else self.restart(kind))

    async def restart(self, kind: str) -> None:
        """`kill` or `stop` it, and start again; stopping must save everything."""
        at = self.now()
        self.sampler = None
        status = await self._daemon.end(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        if kind == "stop" and status and not self.is_full:
            self._book.problems.append(f"asked to stop, the daemon ended with status {status}")
        await self.start()
        self.events.append(Event(kind, at, self.now()))

    async def fill(self) -> None:
        """Let the disk run full for a while, and see that all goes on when there is space again."""
        assert self._disk is not None
        at, lasts = self.now(), self._chance.uniform(SHORTEST_FULL_S, LONGEST_FULL_S)
        refused = self._book.refused.total()
        self.is_full = True
        self._disk.fill()
        async with anyio.create_task_group() as tasks:
            await anyio.sleep(lasts / 2)
            if self._chance.random() < KILLED_WHILE_FULL:
                tasks.start_soon(self.restart, "kill")
            await anyio.sleep(lasts / 2)
            with anyio.move_on_after(NOTICED_LIMIT_S):
                while self._book.refused.total() == refused:  # noqa: ASYNC110 - the log has space of its own for a while
                    await anyio.sleep(0.1)
            self._disk.empty()
            until = self.now()
        await self._heal()
        self.is_full = False
        self.events.append(Event("full", at, until))

    async def _heal(self) -> None:
        """Wait until every writer has been acknowledged something."""
        before = list(self._book.acknowledged)
        with anyio.move_on_after(HEALED_LIMIT_S) as patience:
            while any(map(int.__eq__, self._book.acknowledged, before)):  # noqa: ASYNC110 - it is counted elsewhere
                await anyio.sleep(0.1)
        if patience.cancelled_caught:
            self._book.problems.append(f"{HEALED_LIMIT_S:g} s after the disk had space again a writer still waits")

    async def start(self) -> None:
        """Start until it is ready, as a service manager would.

        Raises:
            RuntimeError: it does not become ready; the text has the end of its log.
        """
        with anyio.move_on_after(COME_BACK_LIMIT_S) as patience:
            while not await self._is_started():  # noqa: ASYNC110 - as a service manager does
                await anyio.sleep(RETRY_START_S)
        if patience.cancelled_caught:
            log = self._daemon.log.read_text(encoding="utf-8")[-2000:]
            raise RuntimeError(
                f"the daemon did not come back within {COME_BACK_LIMIT_S:g} s; its log ends with:\n{log}"
            )
        self.sampler = Sampler(self._daemon, self._book, len(self.starts), self.now())

    async def _is_started(self) -> bool:
        try:
            self.starts.append(await self._daemon.start())
        except DaemonEnded as ended:
            self.failed_starts[ended.status] += 1
            if not self.is_full:
                self._book.problems.append(str(ended))
            return False
        return True
