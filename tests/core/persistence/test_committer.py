"""Group commit: one append for all that waits, nothing acknowledged that the store does not have (rules R6-R8)."""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from miniclaw_sessions.core.events.listeners import Commit
from miniclaw_sessions.core.persistence.committer import FIRST_RETRY_S, LAST_RETRY_S, CommitQueue, Committer, Shrunk
from miniclaw_sessions.core.protocol.encoding import encode_entry
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.stores.base import Append, SessionHead, StoredEntry
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.errors import ManagerClosed, StoreConflict, StoreError, StoreFull, StoreUnavailable, UnsavedLimit
from miniclaw_sessions.testing import FakeClock

pytestmark = pytest.mark.anyio
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class WatchedStore(MemoryStore):
    """A memory store that notes every append, and fails or hangs when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[dict[str, list[int]]] = []
        self.fault: Exception | None = None
        self.gate: anyio.Event | None = None

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        self.calls.append({one.head.session_id: [entry.sequence for entry in one.entries] for one in appends})
        if self.gate is not None:
            await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return await super().append(appends)

    async def sequences(self, session_id: str) -> list[int]:
        return [entry.sequence for entry in await self.read(session_id)]


def commit_queue(chat_id: str = "1", incarnation: str = "i") -> CommitQueue:
    key = SessionKey("test", chat_id)
    return CommitQueue(SessionHead(key.session_id, key, incarnation, NOW))


def stored(sequence: int, *, text: str = "hi") -> StoredEntry:
    entry_id = f"entry-{sequence}"
    entry = MessageEntry(id=entry_id, parent_id=None, timestamp=NOW, sequence=sequence, message=Message.user(text))
    return StoredEntry(sequence, entry_id, encode_entry(entry))


class OneStuck(WatchedStore):
    """It cannot write one session."""

    is_stuck = True

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        taken = [one for one in appends if not (self.is_stuck and one.head.session_id == "test_1")]
        outcomes = iter(await super().append(taken))
        stuck = StoreUnavailable("this file cannot be written")
        return [next(outcomes) if one in taken else stuck for one in appends]


class PatientQueue(CommitQueue):
    patience_s = 5.0


class Bench:
    """A committer at work, with a store and a clock in the test's hands."""

    def __init__(self, *, max_unsaved_bytes: int = 1_000_000) -> None:
        self.store = WatchedStore()
        self.clock = FakeClock()
        self.committer = Committer(self.store, clock=self.clock, max_unsaved_bytes=max_unsaved_bytes)

    def submit(self, queue: CommitQueue, *sequences: int) -> None:
        for sequence in sequences:
            self.committer.submit(queue, stored(sequence))

    def failure(self) -> StoreUnavailable | None:
        return self.committer.failure

    def busy_since(self) -> float | None:
        return self.committer.busy_since

    async def settle(self) -> None:
        await self.clock.advance(0)


@asynccontextmanager
async def at_work(**options: int) -> AsyncIterator[Bench]:
    bench = Bench(**options)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.committer.run)
        yield bench
        bench.store.gate = None
        bench.committer.close()


async def error_of(wait: Callable[[], object]) -> Exception | None:
    try:
        await wait()  # type: ignore[misc]
    except Exception as error:  # noqa: BLE001 - which one is the question
        return error
    return None


async def test_a_hundred_waiters_share_one_append() -> None:
    async with at_work() as bench:
        queues = [commit_queue(str(number)) for number in range(100)]

        async def say(queue: CommitQueue) -> None:
            bench.submit(queue, 1)
            await bench.committer.wait(queue, 1)
            assert queue.committed == 1

        async with anyio.create_task_group() as tasks:
            for queue in queues:
                tasks.start_soon(say, queue)
        assert len(bench.store.calls) == 1
        assert len(bench.store.calls[0]) == 100
        assert bench.committer.counts == (0, 0, 100, 1, 0)


async def test_those_who_go_on_at_once_share_each_commit() -> None:
    async with at_work() as bench:

        async def say(queue: CommitQueue) -> None:
            for sequence in (1, 2, 3):
                bench.submit(queue, sequence)
                await bench.committer.wait(queue, sequence)

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(say, commit_queue(str(number)))
        assert bench.store.calls == [{f"test_{number}": [sequence] for number in range(10)} for sequence in (1, 2, 3)]


async def test_what_comes_during_a_commit_gathers_for_the_next_one() -> None:
    async with at_work() as bench:
        bench.store.gate = anyio.Event()
        queue = commit_queue()
        bench.submit(queue, 1)
        await bench.settle()
        bench.submit(queue, 2)
        bench.submit(commit_queue("2"), 1)
        bench.submit(queue, 3)
        await bench.settle()
        assert bench.store.calls == [{"test_1": [1]}]
        bench.store.gate.set()
        await bench.committer.wait(queue, 3)
        assert bench.store.calls == [{"test_1": [1]}, {"test_1": [2, 3], "test_2": [1]}]
        assert await bench.store.sequences("test_1") == [1, 2, 3]


async def test_a_waiter_returns_as_soon_as_its_own_entry_is_committed() -> None:
    async with at_work() as bench:
        queue = commit_queue()
        bench.store.gate = first = anyio.Event()
        bench.submit(queue, 1)
        await bench.settle()
        bench.submit(queue, 2)
        returned: list[int] = []

        async def wait_for(sequence: int) -> None:
            await bench.committer.wait(queue, sequence)
            returned.append(sequence)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for, 2)
            tasks.start_soon(wait_for, 1)
            await bench.settle()
            bench.store.gate = second = anyio.Event()
            first.set()
            await bench.settle()
            assert returned == [1]
            second.set()
        assert returned == [1, 2]


async def test_nothing_is_acknowledged_before_the_store_has_it() -> None:
    async with at_work() as bench:
        queue = commit_queue()
        bench.store.gate = anyio.Event()
        bench.submit(queue, 1)
        with anyio.move_on_after(0) as scope:
            await bench.committer.wait(queue, 1)
        assert scope.cancelled_caught
        await bench.settle()
        assert queue.committed == 0
        bench.store.gate.set()
        await bench.committer.wait(queue, 1)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (StoreFull("the disk is full"), StoreFull),
        (StoreUnavailable("gone"), StoreUnavailable),
        (OSError(5, "I/O error"), StoreUnavailable),
        (RuntimeError("a bug in the store"), StoreUnavailable),
    ],
)
async def test_waiters_get_the_stores_error_and_nothing_is_lost(fault: Exception, kind: type[StoreError]) -> None:
    async with at_work() as bench:
        queue = commit_queue()
        bench.store.fault = fault
        bench.submit(queue, 1, 2)
        error = await error_of(lambda: bench.committer.wait(queue, 2))
        assert type(error) is kind
        assert str(error).startswith(f"{bench.failure()}; what was accepted before is kept in memory")
        bench.submit(queue, 3)
        assert type(await error_of(lambda: bench.committer.wait(queue, 3))) is kind
        assert bench.committer.counts.unsaved_entries == 3
        bench.store.fault = None
        await bench.clock.advance(FIRST_RETRY_S)
        await bench.committer.wait(queue, 3)
        assert bench.failure() is None
        assert await bench.store.sequences("test_1") == [1, 2, 3]
        assert bench.committer.counts[:2] == (0, 0)


async def test_who_waits_behind_a_commit_that_fails_learns_it_without_waiting_for_the_retry() -> None:
    async with at_work() as bench:
        bench.store.gate = anyio.Event()
        queue = commit_queue()
        bench.submit(queue, 1)
        await bench.settle()
        bench.submit(queue, 2)  # the commit of the first is on its way
        raised: list[StoreUnavailable] = []

        async def wait() -> None:
            with pytest.raises(StoreUnavailable) as caught:
                await bench.committer.wait(queue, 2)
            raised.append(caught.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await bench.settle()
            bench.store.fault = StoreUnavailable("the disk is gone")
            bench.store.gate.set()
            await bench.settle()
            assert len(raised) == 1
        assert bench.store.calls == [{"test_1": [1]}]
        bench.store.fault = None
        await bench.committer.drain()
        assert await bench.store.sequences("test_1") == [1, 2]


async def test_an_error_that_many_get_does_not_gather_their_tracebacks() -> None:
    def depth(error: BaseException) -> int:
        return sum(1 for _ in traceback.walk_tb(error.__traceback__))

    async with at_work() as bench:
        queue = commit_queue()
        bench.store.fault = StoreFull("full")
        bench.submit(queue, 1)
        errors = [await error_of(lambda: bench.committer.wait(queue, 1)) for _ in range(50)]
        assert all(isinstance(error, StoreFull) and depth(error) < 10 for error in errors)
        assert all(depth(error.__cause__) < 10 for error in errors if error is not None and error.__cause__)


async def test_retries_back_off_up_to_a_cap_and_begin_anew_after_a_success() -> None:
    async with at_work() as bench:
        queue = commit_queue()
        bench.store.fault = StoreUnavailable("gone")
        bench.submit(queue, 1)
        await bench.settle()
        at = []
        for _ in range(4000):
            before = len(bench.store.calls)
            await bench.clock.advance(FIRST_RETRY_S / 2)
            if len(bench.store.calls) > before:
                at.append(bench.clock.monotonic())
            if len(at) == 11:
                break
        gaps = [round(later - earlier, 1) for earlier, later in pairwise(at)]
        assert gaps == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, LAST_RETRY_S, LAST_RETRY_S, LAST_RETRY_S, LAST_RETRY_S]
        bench.store.fault = None
        await bench.clock.advance(LAST_RETRY_S)
        assert queue.committed == 1
        bench.store.fault = StoreUnavailable("gone again")
        bench.submit(queue, 2)
        await bench.settle()
        before = len(bench.store.calls)
        await bench.clock.advance(FIRST_RETRY_S)
        assert len(bench.store.calls) == before + 1


async def test_new_messages_do_not_hurry_a_failing_store() -> None:
    async with at_work() as bench:
        queue = commit_queue()
        bench.store.fault = StoreFull("full")
        bench.submit(queue, 1)
        await bench.settle()
        for sequence in range(2, 100):
            bench.submit(queue, sequence)
            await checkpoint()
        assert len(bench.store.calls) == 1


async def test_order_is_kept_through_failures_and_later_submissions() -> None:
    async with at_work() as bench:
        queue, other = commit_queue(), commit_queue("2")
        bench.store.fault = StoreFull("full")
        bench.submit(queue, 1)
        await bench.settle()
        bench.submit(other, 1)
        bench.submit(queue, 2)
        await bench.clock.advance(FIRST_RETRY_S)
        bench.submit(queue, 3)
        bench.store.fault = None
        await bench.clock.advance(1)
        assert bench.store.calls[-1] == {"test_1": [1, 2, 3], "test_2": [1]}
        assert await bench.store.sequences("test_1") == [1, 2, 3]


async def test_a_refused_session_does_not_fail_its_neighbours_and_leaves_no_gap() -> None:
    async with at_work() as bench:
        good, bad = commit_queue("good"), commit_queue("bad")
        heard: list[Commit] = []
        bench.committer.commits.subscribe(heard.append)
        await bench.store.append([Append(commit_queue("bad", "another").head, [stored(1)])])
        bench.store.gate = anyio.Event()
        bench.submit(bad, 1)
        bench.submit(good, 1)
        await bench.settle()
        bench.submit(bad, 2)
        bench.store.gate.set()
        await bench.committer.wait(good, 1)
        assert isinstance(await error_of(lambda: bench.committer.wait(bad, 2)), StoreConflict)
        assert isinstance(bad.rejected, StoreConflict)
        assert bench.failure() is None
        assert await bench.store.sequences("test_bad") == [1]
        assert bench.committer.counts == (0, 0, 1, 1, 1)
        assert [(one.appended, one.entries) for one in heard] == [([(good.head, [stored(1)])], 1)]


async def test_what_was_accepted_behind_a_refused_entry_is_refused_though_no_other_commit_comes() -> None:
    async with at_work() as bench:
        bad = commit_queue("bad")
        await bench.store.append([Append(commit_queue("bad", "another").head, [stored(1)])])
        bench.store.gate = anyio.Event()
        bench.submit(bad, 1)
        await bench.settle()
        bench.submit(bad, 2)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:

                async def wait(sequence: int) -> None:
                    assert isinstance(await error_of(lambda: bench.committer.wait(bad, sequence)), StoreConflict)

                for sequence in (1, 2):
                    tasks.start_soon(wait, sequence, name=f"wait {sequence}")
                await bench.settle()
                bench.store.gate.set()


async def test_accepting_stops_at_the_bound_and_goes_on_when_there_is_room() -> None:
    entry = stored(1)
    async with at_work(max_unsaved_bytes=2 * len(entry.encoded)) as bench:
        bench.store.fault = StoreFull("no space left")
        queue = commit_queue()
        for sequence in (1, 2):
            bench.committer.check_room(len(entry.encoded))
            bench.submit(queue, sequence)
        await bench.settle()
        with pytest.raises(UnsavedLimit, match="no space left"):
            bench.committer.check_room(1)
        bench.store.fault = None
        await bench.clock.advance(FIRST_RETRY_S)
        bench.committer.check_room(2 * len(entry.encoded))


async def test_a_closing_committer_refuses_with_manager_closed() -> None:
    bench = Bench()
    bench.committer.accepting = False
    with pytest.raises(ManagerClosed):
        bench.committer.check_room(1)


async def test_draining_waits_for_what_is_queued_and_what_is_on_its_way() -> None:
    async with at_work() as bench:
        await bench.committer.drain()  # nothing to do
        queue = commit_queue()
        bench.store.gate = anyio.Event()
        bench.submit(queue, 1)
        done: list[int] = []

        async def drain() -> None:
            await bench.committer.drain()
            done.append(queue.committed)

        async with anyio.create_task_group() as tasks:
            await bench.settle()
            tasks.start_soon(drain)  # entry 1 is on its way
            bench.submit(queue, 2)
            tasks.start_soon(drain)  # entry 2 is queued
            await bench.settle()
            assert done == []
            bench.store.gate.set()
        assert len(done) == 2
        assert done[-1] == 2
        assert queue.committed == 2


@pytest.mark.parametrize("is_in_conflict", [False, True], ids=["on its way", "in conflict"])
async def test_draining_waits_for_what_the_store_refused_until_it_fits(*, is_in_conflict: bool) -> None:
    async with at_work() as bench:
        queue, fits = commit_queue(), anyio.Event()
        await bench.store.append([Append(queue.head, [msgspec.structs.replace(stored(1), entry_id="another")])])

        async def make_it_fit(conflicting: CommitQueue, _: StoreConflict) -> Shrunk:
            await fits.wait()
            conflicting.committed, conflicting._waiting = 1, [stored(2)]
            return Shrunk(0, 0)

        bench.committer.on_conflict = make_it_fit
        bench.store.gate = anyio.Event()
        bench.submit(queue, 1)
        await bench.settle()
        assert queue.sending is not None
        if is_in_conflict:
            bench.store.gate.set()
            await bench.settle()
            assert queue.sending is None
        drained = False

        async def drain() -> None:
            nonlocal drained
            await bench.committer.drain()
            drained = True

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drain)
            await bench.settle()
            bench.store.gate.set()
            await bench.settle()
            assert not drained
            fits.set()
        assert queue.settled == queue.accepted == 1
        assert await bench.store.sequences("test_1") == [1, 2]


async def test_what_another_process_has_stored_is_not_waited_for() -> None:
    async with at_work() as bench:
        queue = commit_queue()
        with anyio.fail_after(10):
            await bench.committer.wait(queue, 1)
    assert bench.store.calls == []


async def test_draining_a_failing_store_tries_at_once_and_tells_how_it_went() -> None:
    async with at_work() as bench:
        queue = commit_queue()
        bench.store.fault = StoreFull("full")
        bench.submit(queue, 1)
        await bench.settle()
        await bench.clock.advance(FIRST_RETRY_S)
        tried = len(bench.store.calls)
        assert isinstance(await error_of(bench.committer.drain), StoreFull)
        assert len(bench.store.calls) == tried + 1
        bench.store.fault = None
        await bench.committer.drain()
        assert queue.committed == 1


async def test_a_cancelled_waiter_takes_nothing_back() -> None:
    async with at_work() as bench:
        queue = commit_queue()
        bench.store.gate = anyio.Event()
        bench.submit(queue, 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.committer.wait, queue, 1)
            await bench.settle()
            tasks.cancel_scope.cancel()
        bench.store.gate.set()
        await bench.committer.drain()
        assert await bench.store.sequences("test_1") == [1]


async def test_closing_commits_the_rest() -> None:
    async with at_work() as bench:
        queue = commit_queue()
        bench.submit(queue, 1)
        bench.committer.close()
    assert queue.committed == 1


async def test_closing_with_a_failing_store_tries_once_more_keeps_what_is_unsaved_and_ends() -> None:
    async with at_work() as bench:
        queue = commit_queue()
        bench.store.fault = StoreFull("full")
        bench.submit(queue, 1)
        await bench.settle()
        tried = len(bench.store.calls)
    assert len(bench.store.calls) == tried + 1
    assert bench.committer.counts.unsaved_entries == 1
    assert isinstance(await error_of(lambda: bench.committer.wait(queue, 1)), StoreFull)


@pytest.mark.parametrize("sequence", [1, 2])
async def test_who_still_waits_for_a_committer_that_is_cut_off_gets_an_error(sequence: int) -> None:
    bench, queue = Bench(), commit_queue()
    bench.store.gate = anyio.Event()
    errors: list[Exception | None] = []

    async def wait() -> None:
        errors.append(await error_of(lambda: bench.committer.wait(queue, sequence)))

    async with anyio.create_task_group() as waiting, anyio.create_task_group() as tasks:
        tasks.start_soon(bench.committer.run)
        bench.submit(queue, 1)
        await bench.settle()
        bench.submit(queue, 2)  # 1 is on its way, 2 is queued
        waiting.start_soon(wait)
        await bench.settle()
        tasks.cancel_scope.cancel()
    assert [type(error) for error in errors] == [StoreUnavailable]
    assert bench.committer.counts.unsaved_entries == 2
    assert isinstance(await error_of(bench.committer.drain), StoreUnavailable)


async def test_being_busy_is_measured_from_the_start_of_a_commit() -> None:
    async with at_work() as bench:
        assert bench.busy_since() is None
        bench.store.gate = anyio.Event()
        started = bench.clock.monotonic()
        bench.submit(commit_queue(), 1)
        await bench.clock.advance(90)
        assert bench.busy_since() == started
        bench.store.gate.set()
        await bench.committer.drain()
        assert bench.busy_since() is None


async def test_one_session_that_cannot_be_written_holds_no_other_up_and_is_tried_again() -> None:
    bench = Bench()
    store = OneStuck()
    committer = Committer(store, clock=bench.clock, max_unsaved_bytes=1_000_000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(committer.run)
        stuck, free = commit_queue("1"), commit_queue("2")
        committer.submit(stuck, stored(1))
        committer.submit(free, stored(1))
        await committer.wait(free, 1)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="this file"):
                await committer.wait(stuck, 1)
        committer.submit(stuck, stored(2))
        committer.submit(free, stored(2))
        await committer.wait(free, 2)
        assert committer.counts.unsaved_entries == 2
        assert committer.failure is None
        with pytest.raises(StoreUnavailable, match="this file"):
            await committer.drain()
        store.is_stuck = False
        await bench.clock.advance(LAST_RETRY_S)
        await committer.wait(stuck, 2)
        assert await store.sequences("test_1") == [1, 2]
        assert committer.counts.unsaved_entries == committer.counts.unsaved_bytes == 0
        committer.close()


@pytest.mark.parametrize("is_on_its_way", [False, True])
async def test_a_session_that_is_busy_for_a_moment_is_waited_for(*, is_on_its_way: bool) -> None:
    clock, store, ended = FakeClock(), OneStuck(), list[str]()
    committer = Committer(store, clock=clock, max_unsaved_bytes=1_000_000)
    busy = PatientQueue(commit_queue("1").head)

    async def wait() -> None:
        await committer.wait(busy, 1)
        ended.append("message")

    async def drain() -> None:
        await committer.drain()
        ended.append("flush")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(committer.run)
        committer.submit(busy, stored(1))
        tasks.start_soon(wait)
        if is_on_its_way:
            store.gate = anyio.Event()
            await clock.advance(0)
            assert busy.sending
        tasks.start_soon(drain)
        await clock.advance(0)
        if store.gate is not None:
            store.gate.set()
        await clock.advance(PatientQueue.patience_s - 0.1)
        assert len(store.calls) > 1
        assert (busy.failure, committer.refusals, ended) == (None, {}, [])
        store.is_stuck = False
        await clock.advance(LAST_RETRY_S)
        assert sorted(ended) == ["flush", "message"]
        assert await store.sequences("test_1") == [1]
        committer.close()


async def test_a_session_that_stays_busy_is_an_error_in_the_end() -> None:
    clock, store = FakeClock(), OneStuck()
    committer = Committer(store, clock=clock, max_unsaved_bytes=1_000_000)
    busy, errors = PatientQueue(commit_queue("1").head), list[Exception | None]()

    async def wait() -> None:
        errors.append(await error_of(lambda: committer.wait(busy, 1)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(committer.run)
        committer.submit(busy, stored(1))
        tasks.start_soon(wait)
        await clock.advance(PatientQueue.patience_s + LAST_RETRY_S)
        assert [type(error) for error in errors] == [StoreUnavailable]
        assert list(committer.refusals) == ["test_1"]
        assert isinstance(await error_of(committer.drain), StoreUnavailable)
        store.is_stuck = False
        await clock.advance(LAST_RETRY_S)
        await committer.wait(busy, 1)
        assert committer.refusals == {}
        committer.submit(busy, stored(2))
        await committer.wait(busy, 2)
        committer.close()
