"""Group commit: everything that waits goes to the store in one transaction, with one sync.

While a commit is on its way the next group gathers; there is no waiting window, it would only cost. When the store
cannot be written, nothing is acknowledged: waiters get the error, what was accepted stays in memory in order, and the
committer tries again with a capped, jittered backoff until the store takes it (rules R6-R8).

When the store refuses a session's append because it stands elsewhere than we thought, `Committer.on_conflict` decides:
what waits is made to fit and goes with the next group, or the session is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import ClassVar, NamedTuple, TypeVar

import anyio
from anyio.abc import TaskGroup

from miniclaw_sessions.clock import Clock, sleep_unless
from miniclaw_sessions.core.events.listeners import Commit, Topic
from miniclaw_sessions.core.persistence.refusals import Refusals
from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.core.stores.base import Append, SessionHead, Store, StoredEntry
from miniclaw_sessions.errors import ManagerClosed, StoreConflict, StoreError, StoreUnavailable, UnsavedLimit, renewed
from miniclaw_sessions.log import get_logger

_STILL_THERE = (
    "what was accepted before is kept in memory and saved when the store recovers; "
    "send it again only with the same idempotency key"
)
_CUT_OFF = "closing did not wait for the store any longer; what it had not acknowledged by then may be lost"
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 10.0
RARELY = 10
"""The wait before one session is retried, at least, as a multiple of the time that its failed commit took."""

M = TypeVar("M", bound=Entry)
log = get_logger(__name__)


class Shrunk(NamedTuple):
    """How many entries, and bytes of them, need not be stored any more."""

    entries: int
    size: int


class Receipt:
    """What a call holds of entries that were accepted together, to read after their acknowledgement how they stand.

    These are stored as they were made. Those of a shared store may come to stand elsewhere, or be given up
    (`miniclaw_sessions.core.sharing.queue.Accepted`).
    """

    __slots__ = ()

    known: Entry | None = None
    """The entry that had their idempotency key before: none of them is stored then. None: there was none."""

    @property
    def is_given_up(self) -> bool:
        """Whether they are not stored, and never will be."""
        return False

    def check(self) -> None:
        """Raise the reason if they were given up."""

    def final(self, entry: M) -> M:
        """An entry as it is stored. Raises the reason if it was given up."""
        return entry

    def stored(self, entries: list[Entry]) -> list[Entry]:
        """The entries as they are stored; given up or not."""
        return entries


IN_PLACE = Receipt()
"""The receipt of everything that only this process can store."""


class CommitQueue:
    """One session's entries on their way to the store: what waits, what is on its way, what has arrived.

    Entries are counted from the first that this object was given: their places in the session may change, as
    `miniclaw_sessions.core.sharing.queue` has it, the order in which they were accepted does not.

    Attributes:
        head: whose entries they are.
        committed: the sequence number of the newest entry that the store has acknowledged.
        accepted: how many entries were accepted.
        settled: how many of these are acknowledged.
        sending: the entries that are on their way to the store; None: none are.
        rejected: why the store will never take what was accepted; None: it does.
        failed_at: when the first of the attempts failed that fail for this session alone; None: the last one did not.
        failure: why they fail; None: none does, or those who wait need not know it yet.
        tried: how many of the accepted entries were part of that attempt, or acknowledged before it; a failure is no
            news to a caller that waits for later ones.
    """

    __slots__ = (
        *("_waiting", "accepted", "committed", "failed_at", "failure"),
        *("head", "rejected", "sending", "settled", "tried"),
    )
    patience_s: ClassVar[float] = 0.0  # how long attempts may fail before those who wait learn of it

    def __init__(self, head: SessionHead, committed: int = 0) -> None:
        self.head = head
        self.committed = committed
        self.accepted = self.settled = self.tried = 0
        self._waiting: list[StoredEntry] | None = None
        self.sending: list[StoredEntry] | None = None
        self.rejected: StoreError | None = None
        self.failed_at: float | None = None
        self.failure: StoreUnavailable | None = None

    # --- what a session asks ---------------------------------------------------------------------------------------

    def track(self, entries: Iterable[Entry], *, is_fixed: bool = False, has_one_key: bool = True) -> Receipt:
        """Note that entries were accepted together. Returns how to find them when they are acknowledged.

        Args:
            entries: in order, as they were accepted.
            is_fixed: whether they are stored at these very places or not at all.
            has_one_key: whether the idempotency key of one of them, if no other has one, stands for all of them.
        """
        del entries, is_fixed, has_one_key
        return IN_PLACE

    def receipt(self, entry_id: str) -> Receipt:
        """The receipt of an entry of the session; call it before the entry is acknowledged."""
        del entry_id
        return IN_PLACE

    def final_up_to(self, last_sequence: int) -> int:
        """The sequence number up to which entries keep their places, where the session ends at `last_sequence`."""
        return last_sequence

    def in_place(self, pending: list[StoredEntry]) -> list[StoredEntry]:
        """Those of the pending entries that keep their places: all of them."""
        return pending

    def may_have_more(self, sequence: int) -> bool:
        """Whether the store may have entries behind this place."""
        return sequence < self.committed

    @property
    def waiting(self) -> Sequence[StoredEntry]:
        """Accepted entries that are not on their way yet."""
        return self._waiting or ()

    @property
    def pending(self) -> list[StoredEntry]:
        """Accepted entries that are not acknowledged."""
        return [*(self.sending or ()), *(self._waiting or ())]

    # --- what the committer does -----------------------------------------------------------------------------------

    def add(self, entry: StoredEntry) -> bool:
        """Let an entry wait for the next commit. Returns True if it is the first that waits."""
        self.accepted += 1
        if self._waiting:
            self._waiting.append(entry)
            return False
        self._waiting = [entry]
        return True

    def take(self) -> Append:
        """Send everything that waits."""
        self.sending, self._waiting = self._waiting, None
        return Append(self.head, self.sending or [])

    @property
    def sent(self) -> int:
        """How many of the accepted entries are acknowledged or on their way."""
        return self.settled + len(self.sending or ())

    def failed(self, error: StoreUnavailable, now: float) -> None:
        """What was on its way could not be stored now and waits again; what was accepted since was not tried."""
        self.failed_at = now if self.failed_at is None else self.failed_at
        if now - self.failed_at >= self.patience_s:
            self.failure = error
            self.tried = self.accepted if self.sending is None else self.sent
        self.put_back()

    def put_back(self) -> None:
        """What was on its way waits again, before everything else."""
        self._waiting = [*(self.sending or ()), *(self._waiting or ())]
        self.sending = None

    def arrived(self, sent: Sequence[StoredEntry]) -> None:
        """What was on its way is in the store."""
        self.committed = sent[-1].sequence
        self.settled += len(sent)

    def number_of(self, sequence: int) -> int:
        """1-based position of the entry with this sequence number among all accepted entries.

        Where nothing waits or is on its way, it is stored, by another process too, unless the session is rejected.
        """
        if entries := self._waiting or self.sending:
            return self.accepted - max(0, entries[-1].sequence - sequence)
        return self.settled + (self.rejected is not None)

    def drop(self) -> int:
        """Forget what waits. Returns how many bytes that was."""
        size = bytes_of(self.waiting)
        self._waiting = None
        return size


async def _refuse(_: CommitQueue, conflict: StoreConflict) -> Shrunk:
    """Nothing can be done about a conflict."""
    raise conflict


def bytes_of(entries: Iterable[StoredEntry]) -> int:
    """How many bytes entries have together."""
    return sum(len(entry.encoded) for entry in entries)


class Round:
    """One group's commit, to be waited for by many.

    Each waiter has a future of its own, so that a cancelled one does not cancel others. This is what `anyio.Event` does
    in three layers; a hundred waiters per commit feel the difference.
    """

    __slots__ = ("_is_over", "_loop", "_waiters")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._is_over = False
        self._loop = loop  # a future that has to look for its loop asks the system for the process's id
        self._waiters: list[asyncio.Future[None]] = []

    def wait(self) -> asyncio.Future[None]:
        """A future that is done when the round is."""
        future: asyncio.Future[None] = asyncio.Future(loop=self._loop)
        if self._is_over:
            future.set_result(None)
        else:
            self._waiters.append(future)
        return future

    async def ended(self) -> None:
        """Return when the round is over."""
        while not self._is_over:
            await self.wait()

    def over(self) -> None:
        """End the round: every waiter goes on."""
        self._is_over = True
        self.wake()

    def wake(self) -> None:
        """Wake the waiters: what they wait for may be decided already, although the round is not over."""
        for future in self._waiters:
            if not future.done():
                future.set_result(None)
        self._waiters.clear()


class CommitCounts(NamedTuple):
    """What the committer has done so far."""

    unsaved_entries: int
    unsaved_bytes: int
    committed: int
    commits: int
    failures: int


class Committer:
    """Carries the accepted entries of all sessions to one store.

    Attributes:
        loop: the event loop that it runs on, where its sessions live; None before `run`.
    """

    def __init__(
        self, store: Store, *, clock: Clock, max_unsaved_bytes: int, commits: Topic[Commit] | None = None
    ) -> None:
        self.failure: StoreUnavailable | None = None
        self.commits: Topic[Commit] = Topic() if commits is None else commits
        """Published after each commit, before those who wait for it go on."""
        self.on_conflict: Callable[[CommitQueue, StoreConflict], Awaitable[Shrunk]] = _refuse
        """Called when an append is refused: makes what waits fit for the next commit, or changes nothing and raises."""
        self.refusals = Refusals(clock)
        """Which sessions' commits were refused, and not taken since."""
        self.lost: StoreUnavailable | None = None
        """The reason, found by `drain`, why the next start would not find new entries."""
        self.accepting = True
        self.busy_since: float | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._store = store
        self._clock = clock
        self._max_unsaved_bytes = max_unsaved_bytes
        self._queued: dict[CommitQueue, None] = {}
        self._in_flight: list[CommitQueue] = []  # whose entries are on their way to the store
        self._in_conflict: dict[CommitQueue, None] = {}  # whose append the store refused, and which are being mended
        self._tasks: TaskGroup | None = None
        self._delayed: dict[CommitQueue, None] = {}  # which the store could not write, and are tried again
        self._retry_at = self._hurried_at = 0.0
        self._retry_delay_s = FIRST_RETRY_S
        self._wake = asyncio.Event()  # anyio's cannot be cleared: each commit would need another
        self._hurry = asyncio.Event()
        self._this_round, self._next_round = Round(None), Round(None)
        self._closing = False
        self._unsaved_entries = self._unsaved_bytes = 0
        self._committed = self._commits = self._failures = 0

    def __repr__(self) -> str:
        state = f"failing: {self.failure}" if self.failure else "ok"
        return f"<Committer {self._unsaved_entries} unsaved, {state}>"

    @property
    def counts(self) -> CommitCounts:
        """What waits and what was done."""
        return CommitCounts(self._unsaved_entries, self._unsaved_bytes, self._committed, self._commits, self._failures)

    def check_room(self, size: int) -> None:
        """Raise unless `size` more bytes may be accepted.

        Raises:
            ManagerClosed: nothing is accepted any more.
            UnsavedLimit: accepted but uncommitted state is at its bound.
        """
        if not self.accepting:
            raise ManagerClosed("the session manager is closing; the message was not accepted, send it again later")
        if self._unsaved_bytes + size > self._max_unsaved_bytes:
            raise UnsavedLimit(
                f"{self._unsaved_bytes} bytes are accepted but not saved, the limit is {self._max_unsaved_bytes}: "
                f"nothing more is accepted until the store takes them ({self.failure or 'it is behind'})"
            )

    async def check_store(self) -> None:
        """Raise unless the store took what it was given last.

        Raises:
            StoreUnavailable: it did not take it.
        """
        if (failure := self.failure or self.lost) is not None:
            await asyncio.sleep(0)  # a caller that tries again without a pause would keep the store from coming back
            raise renewed(failure)

    def submit(self, queue: CommitQueue, entry: StoredEntry) -> None:
        """Accept an entry; it goes with the next commit."""
        if queue.add(entry):
            if not self._queued:
                self._wake.set()
            self._queued[queue] = None
        self._unsaved_entries += 1
        self._unsaved_bytes += len(entry.encoded)

    async def wait(self, queue: CommitQueue, sequence: int) -> None:
        """Return when the store has committed the session's entries up to `sequence`, wherever they come to stand.

        Where the session alone could not be written, that is tried once more: what was wrong may be mended by now.

        Raises:
            StoreUnavailable: the store cannot take them now; they stay in memory and are tried again.
            StoreError: the store refused this session's entries.
        """
        if queue.committed >= sequence:
            return
        number, known = queue.number_of(sequence), queue.failure
        if self._delayed and queue in self._delayed:
            self._retry_at = min(self._retry_at, self._hurried_at)
            self._wake.set()
        while queue.settled < number:
            if queue.rejected is not None:
                raise renewed(queue.rejected)
            is_news = queue.failure is not known and number <= queue.tried  # a later attempt, with this entry
            if (failure := self.failure or (queue.failure if is_news else None)) is not None:
                await asyncio.sleep(0)  # as in `check_store`
                raise renewed(failure, _STILL_THERE if self.accepting else "")
            on_its_way = queue.sending is not None and number <= queue.sent
            await (self._this_round if on_its_way else self._next_round).wait()

    async def drain(self) -> None:
        """Return when everything accepted so far is committed; a waiting retry is made at once.

        Raises:
            StoreUnavailable: the store cannot take it now.
        """
        accepted = {one: one.accepted for one in (*self._in_flight, *self._in_conflict, *self._delayed, *self._queued)}
        await self._check_place()
        self._retry_delayed()
        if self._queued and self.failure is not None:
            self._hurry.set()
            await self._next_round.ended()
        elif self._in_flight:
            await self._this_round.ended()
        for queue, number in accepted.items():  # one round may not be enough: conflicts are resolved beside the rounds
            while queue.settled < number and self.failure is None:
                is_busy = queue in self._delayed and queue.failure is None
                if not (queue.sending or is_busy or queue in self._in_conflict or queue in self._queued):
                    break  # it cannot be written, or is rejected
                await (self._this_round if queue.sending else self._next_round).wait()
        await self.check_store()
        if failures := [queue.failure for queue in self._delayed if queue.failure is not None]:
            raise renewed(failures[0])

    async def _check_place(self) -> None:
        """See that the store is still where the next start looks for it."""
        try:
            await self._store.still_there()
        except StoreUnavailable as error:
            if self.lost is None:
                sentence = "the store cannot be reached, or is not where it was"
                log.error(sentence, action="commit.failed", error=str(error))
            self.lost = error
        else:
            self.lost = None
        for session_id in self.refusals.damaged:  # nothing of them is tried again unless more is said there
            with suppress(StoreError):
                await self._store.head(session_id)
                self.refusals.pop(session_id, None)

    async def run(self) -> None:
        """Commit until `close`; never raises for a fault of the store. No caller waits in vain when it ends."""
        self.loop = asyncio.get_running_loop()
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._commit_until_closed, self._tasks.cancel_scope, name="commit")
        finally:
            if self._unsaved_entries and self.failure is None:  # a round that never comes is not to be waited for
                self.failure = StoreUnavailable(_CUT_OFF)
            self._next_round.over()

    async def _commit_until_closed(self, scope: anyio.CancelScope) -> None:
        """Commit what waits until `close`; then cancel the scope, in which conflicts may still be resolved."""
        backoff = FIRST_RETRY_S
        while True:
            if not self._delayed:
                await self._wake.wait()
            elif not self._wake.is_set():
                await sleep_unless(self._clock, max(0.0, self._retry_at - self._clock.monotonic()), self._wake)
            if self._delayed and self._clock.monotonic() >= self._retry_at:
                self._retry_delayed()
            self._wake.clear()
            if self._queued:
                await self._commit()
                await asyncio.sleep(0)  # those who waited go on, and what they say next needs no waking
            if self._closing and (self.failure is not None or not (self._queued or self._in_conflict)):
                scope.cancel()
                return
            if self.failure is not None:
                await sleep_unless(self._clock, self._clock.jitter(backoff), self._hurry)
                self._hurry.clear()
                backoff = min(backoff * 2, LAST_RETRY_S)
                self._wake.set()
            else:
                backoff = FIRST_RETRY_S

    def _retry_delayed(self) -> None:
        """Let the sessions that could not be written go with the next commit."""
        self._queued, self._delayed = {**self._delayed, **self._queued}, {}
        self._wake.set()

    def close(self) -> None:
        """Make `run` return after one more attempt at the rest."""
        self._closing = True
        self._retry_delayed()
        self._hurry.set()

    async def _commit(self) -> None:
        queues = self._in_flight = list(self._queued)
        self._queued = {}
        appends = [queue.take() for queue in queues]
        self._this_round, self._next_round = self._next_round, Round(self.loop)
        self.busy_since = began = self._clock.monotonic()
        try:
            outcomes = await self._store.append(appends)
        except Exception as error:  # noqa: BLE001 - with any error of a store, nothing is acknowledged
            self._failed(queues, error if isinstance(error, StoreUnavailable) else _as_unavailable(error))
        except BaseException:
            self._put_back(queues)
            raise
        else:
            self._arrived(queues, outcomes)
            if self.commits.listeners:
                both = zip(appends, outcomes, strict=True)
                appended = [(one.head, one.entries) for one, outcome in both if outcome is None]
                entries = sum(len(sent) for _, sent in appended)
                self.commits.publish(Commit(appended, entries, self._clock.monotonic() - began))
        finally:
            self.busy_since, self._in_flight = None, []
            self._this_round.over()

    def _arrived(self, queues: Sequence[CommitQueue], outcomes: Sequence[StoreError | None]) -> None:
        """Note what became of each session."""
        if self.failure is not None:
            log.warning("the store takes messages again", action="commit.recovered")
            self.failure = None
        self._commits += 1
        entries = size = 0
        for queue, outcome in zip(queues, outcomes, strict=True):
            if outcome is None:
                sent, queue.sending = queue.sending or [], None
                queue.arrived(sent)
                entries += len(sent)
                for entry in sent:
                    size += len(entry.encoded)
                if self.refusals:
                    self.refusals.pop(queue.head.session_id, None)
                if queue.failed_at is not None:
                    queue.failed_at, queue.failure, self._retry_delay_s = None, None, FIRST_RETRY_S
            elif isinstance(outcome, StoreUnavailable):
                self._delay(queue, outcome)
            elif isinstance(outcome, StoreConflict):  # it is resolved while the commits of all others go on
                assert self._tasks is not None  # noqa: S101 - nothing is committed outside of `run`
                queue.put_back()
                self._queued.pop(queue, None)
                self._in_conflict[queue] = None
                self._tasks.start_soon(self._resolve, queue, outcome, name=f"conflict of {queue.head.session_id}")
            else:
                queue.put_back()
                self._reject(queue, outcome)
        self._committed += entries
        self._unsaved_entries -= entries
        self._unsaved_bytes -= size

    async def _resolve(self, queue: CommitQueue, conflict: StoreConflict) -> None:
        """Wait until what waits of a session fits, and let it go with the next commit."""
        try:
            shrunk = await self.on_conflict(queue, conflict)
        except StoreUnavailable as error:
            self._delay(queue, error)
        except StoreError as error:
            self._reject(queue, error)
        except Exception as error:  # noqa: BLE001 - with any error of one session, the others are committed
            self._delay(queue, _as_unavailable(error))
        else:
            self._unsaved_entries -= shrunk.entries
            self._unsaved_bytes -= shrunk.size
            if queue.waiting:
                self._queued[queue] = None
        finally:
            self._in_conflict.pop(queue, None)
            self._wake.set()
        self._next_round.wake()

    def _delay(self, queue: CommitQueue, error: StoreUnavailable) -> None:
        """One session cannot be written now: it waits for a retry, and delays no other."""
        self._failures += 1
        known, now = queue.failure, self._clock.monotonic()
        queue.failed(error, now)
        if queue.failure is not None:
            self.refusals.note(queue.head.session_id, error)
        if queue.failure is not None and known is None:
            log.error(
                "a session cannot be written; retrying",
                action="commit.delayed",
                session_id=queue.head.session_id,
                error=str(error),
            )
        self._queued.pop(queue, None)
        # a caller that waits may hurry the retry, but not so that a slow store does nothing else
        self._hurried_at = now + RARELY * (now - (self.busy_since or now))
        if not self._delayed:
            self._retry_delay_s = min(2 * self._retry_delay_s, LAST_RETRY_S)
            self._retry_at = now + self._clock.jitter(self._retry_delay_s)
        self._delayed[queue] = None

    def _reject(self, queue: CommitQueue, outcome: StoreError) -> None:
        """The store refused what was sent; what follows a refused entry would leave a gap: it is refused too."""
        queue.rejected = outcome
        self.refusals.note(queue.head.session_id, outcome)
        self._failures += 1
        self._queued.pop(queue, None)
        self._next_round.wake()  # what is waited for there is decided, and that round may never come
        self._unsaved_entries -= len(queue.waiting)
        self._unsaved_bytes -= queue.drop()
        log.error(
            "the store refused a session's entries",
            action="commit.rejected",
            session_id=queue.head.session_id,
            error=str(outcome),
        )

    def _failed(self, queues: Sequence[CommitQueue], error: StoreUnavailable) -> None:
        """Nothing was acknowledged: everything waits again, in front of what came since."""
        self._failures += 1
        if self.failure is None or type(self.failure) is not type(error):
            log.error("the store cannot be written; retrying", action="commit.failed", error=str(error))
        self.failure = error
        self._put_back(queues)
        self._next_round.wake()  # who waits for later entries need not wait for the retry to learn it

    def _put_back(self, queues: Sequence[CommitQueue]) -> None:
        for queue in queues:
            queue.put_back()
        self._queued = {**dict.fromkeys(queues), **self._queued}


def _as_unavailable(error: Exception) -> StoreUnavailable:
    wrapped = StoreUnavailable(f"the store failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
