"""The 30-second task: on time, never piling up, never ahead of the store, never forgetting a session that failed."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from miniclaw_sessions.config import PERSISTENCE_INTERVAL_SECS
from miniclaw_sessions.core.history.branch_memory import BranchMemory
from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.history.state import Snapshot
from miniclaw_sessions.core.persistence.committer import CommitQueue, Committer
from miniclaw_sessions.core.persistence.flusher import Flusher
from miniclaw_sessions.core.persistence.quarantine import Quarantine
from miniclaw_sessions.core.persistence.recovery import Progress
from miniclaw_sessions.core.persistence.snapshot_file import decode_snapshot
from miniclaw_sessions.core.persistence.snapshots import CHUNK, Snapshots
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Journal, Owner, Session
from miniclaw_sessions.core.session.turn import sole_owner
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.errors import StoreFull
from miniclaw_sessions.testing import FakeClock, FaultyStore, sample_entries, sample_head

pytestmark = pytest.mark.anyio


class Bench:
    """The home of sessions: a flusher and a committer at work on real files, without a manager around them."""

    ownership = staticmethod(sole_owner)
    max_message_bytes = max_metadata_bytes = 1_000_000

    def __init__(self, workspace: Path) -> None:
        self.clock = FakeClock()
        self.owner = Owner()
        self.branch_memory = BranchMemory()
        self.store = FaultyStore(MemoryStore())
        quarantine = Quarantine(workspace / "quarantine", max_files=10, max_bytes=10_000)
        self.snapshots = Snapshots(workspace / "sessions", quarantine, clock=self.clock, max_bytes=1_000_000)
        self.committer = Committer(self.store, clock=self.clock, max_unsaved_bytes=1_000_000)
        self.progress: list[Progress] = []
        self.flusher = Flusher(
            self.snapshots,
            self.committer,
            clock=self.clock,
            interval_s=PERSISTENCE_INTERVAL_SECS,
            on_progress=self.progress.append,
        )

    def new_journal(self, key: SessionKey, *, purpose: str) -> AbstractAsyncContextManager[Journal]:
        raise AssertionError(f"no {purpose} {key} is made here")

    def session(self, chat_id: str = "1") -> Session:
        conversation = Conversation.new(
            SessionKey("test", chat_id), incarnation="i", created_at=self.clock.now(), capacity=50
        )
        journal = Journal(conversation, self)
        journal.checkpoint.changed()
        return Session(journal)

    def snapshot(self, chat_id: str = "1") -> Snapshot:
        path = self.snapshots.path / f"test_{chat_id}.json"
        return decode_snapshot(path.read_bytes(), stem=path.stem, now=self.clock.now(), new_id=self.clock.new_id)

    def on_disk(self, chat_id: str = "1") -> list[str]:
        return [entry.message.text for entry in self.snapshot(chat_id).entries]

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(60):
            while not condition():
                await self.clock.advance(0)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with at_work(tmp_path) as bench:
        yield bench


@asynccontextmanager
async def at_work(workspace: Path) -> AsyncIterator[Bench]:
    bench = Bench(workspace)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.committer.run)
        tasks.start_soon(bench.flusher.run)
        await bench.clock.advance(0)
        yield bench
        bench.store.heal()
        bench.flusher.close()
        bench.committer.close()
    bench.snapshots.close()


class Gate:
    """Holds the next write of snapshots in its thread, like a disk that hangs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.released = threading.Event(), threading.Event()
        real = Directory.replace

        def replace(
            directory: Directory, files: Sequence[tuple[str, Callable[[], bytes]]], **times: Any
        ) -> list[Exception | None]:
            self.reached.set()
            self.released.wait(10)
            return real(directory, files, **times)

        monkeypatch.setattr(Directory, "replace", replace)

    async def wait(self) -> None:
        assert await to_thread.run_sync(self.reached.wait, 10)


async def test_the_first_flush_comes_one_interval_after_the_start(bench: Bench) -> None:
    bench.session().append(Message.user("hi"))
    await bench.clock.advance(PERSISTENCE_INTERVAL_SECS - 0.1)
    assert bench.flusher.counts.flushes == 0
    await bench.clock.advance(0.1)
    await bench.until(lambda: bench.flusher.counts.flushes == 1)
    assert bench.on_disk() == ["hi"]


async def test_a_slow_flush_does_not_pile_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    bench.session().append(Message.user("hi"))
    await bench.clock.advance(PERSISTENCE_INTERVAL_SECS)
    await gate.wait()
    await bench.clock.advance(10 * PERSISTENCE_INTERVAL_SECS)
    gate.released.set()
    await bench.until(lambda: bench.flusher.counts.flushes == 1)
    assert bench.flusher.counts.last_seconds == 10 * PERSISTENCE_INTERVAL_SECS
    await bench.clock.advance(PERSISTENCE_INTERVAL_SECS - 1)
    assert bench.flusher.counts.flushes == 1
    await bench.clock.advance(1)
    await bench.until(lambda: bench.flusher.counts.flushes == 2)


async def test_a_flush_that_hangs_shows_since_when(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    bench.session()
    await bench.clock.advance(PERSISTENCE_INTERVAL_SECS)
    await gate.wait()
    began = bench.clock.monotonic()
    await bench.clock.advance(500)
    assert bench.flusher.busy_since == began
    gate.released.set()
    await bench.until(lambda: bench.flusher.busy_since is None)


async def test_a_change_during_a_flush_stays_dirty_and_comes_with_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    session = bench.session()
    session.append(Message.user("before"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.flusher.flush)
        await gate.wait()
        session.append(Message.user("during"))
        gate.released.set()
    assert bench.on_disk() == ["before"]
    assert bench.flusher.dirty == 1
    assert (await bench.flusher.flush()).written == 1
    assert bench.on_disk() == ["before", "during"]
    assert bench.flusher.dirty == 0


async def test_a_use_during_a_flush_is_not_taken_for_written_and_the_file_is_never_an_hour_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    session = bench.session()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.flusher.flush)
        await gate.wait()
        await bench.clock.advance(59 * 60)
        session.journal.checkpoint.touch()
        gate.released.set()
    assert session.journal.checkpoint.unsaved_use == session.last_accessed
    await bench.clock.advance(60)
    session.journal.checkpoint.touch()
    await bench.flusher.flush()
    assert bench.snapshot().state.last_accessed == bench.clock.now()


async def test_flushes_do_not_overlap(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    running = most = 0
    real = Snapshots.write

    async def write(snapshots: Snapshots, group: Sequence[Snapshot]) -> object:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await real(snapshots, group)
        finally:
            running -= 1

    monkeypatch.setattr(Snapshots, "write", write)
    session = bench.session()
    async with anyio.create_task_group() as tasks:
        for number in range(10):
            session.append(Message.user(str(number)))
            tasks.start_soon(bench.flusher.flush)
            await bench.clock.advance(0)
    assert most == 1
    assert bench.on_disk() == [str(number) for number in range(10)]


async def test_a_session_that_failed_stays_dirty_with_its_old_file_whole_and_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = bench.session()
    session.append(Message.user("old"))
    await bench.flusher.flush()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Directory, "open_temporary", full)
    session.append(Message.user("new"))
    report = await bench.flusher.flush()
    assert (report.written, report.failed, report.bytes_written) == (0, 1, 0)
    assert bench.on_disk() == ["old"]
    assert bench.flusher.dirty == 1
    assert "No space left" in str(bench.flusher.problem)
    session.append(Message.user("newer"))
    monkeypatch.undo()
    await bench.flusher.flush()
    assert bench.on_disk() == ["old", "new", "newer"]
    assert bench.flusher.problem is None
    assert bench.flusher.counts.failures == 1


async def test_a_flush_covers_only_what_is_committed(bench: Bench) -> None:
    session = bench.session()
    session.append(Message.user("committed"))
    await bench.flusher.flush()
    bench.store.fail(StoreFull("full"))
    session.append(Message.user("only accepted"))
    other = bench.session("2")
    other.append(Message.user("never committed"))
    await bench.flusher.flush()
    assert bench.on_disk() == ["committed"]
    assert bench.on_disk("2") == []
    assert bench.flusher.dirty == 2
    bench.store.heal()
    await bench.flusher.flush()
    assert bench.on_disk() == ["committed", "only accepted"]
    assert bench.on_disk("2") == ["never committed"]
    assert bench.flusher.dirty == 0


async def test_metadata_that_is_not_committed_keeps_the_old_file(bench: Bench) -> None:
    session = bench.session()
    session.append(Message.user("committed"))
    await bench.flusher.flush()
    before = (bench.snapshots.path / "test_1.json").read_bytes()
    bench.store.fail(StoreFull("full"))
    session.update(title="only accepted")
    assert (await bench.flusher.flush()).written == 0
    assert (bench.snapshots.path / "test_1.json").read_bytes() == before
    assert bench.flusher.dirty == 1


async def test_flushing_commits_first(bench: Bench) -> None:
    session = bench.session()
    session.append(Message.user("hi"))
    await bench.flusher.flush()
    assert session.journal.committed_sequence == 1


async def test_a_removed_session_is_not_written(bench: Bench) -> None:
    session = bench.session()
    bench.flusher.remove(session.journal)
    assert (await bench.flusher.flush()).written == 0
    retired = bench.session("2")
    retired.journal.retire()
    assert (await bench.flusher.flush()).written == 0
    assert list(bench.snapshots.path.iterdir()) == []


async def test_many_sessions_are_written_in_slices_and_progress_is_told(bench: Bench) -> None:
    for number in range(CHUNK + 3):
        bench.session(str(number))
    report = await bench.flusher.flush()
    assert report.written == CHUNK + 3
    assert [(one.done, one.total) for one in bench.progress] == [(CHUNK, CHUNK + 3), (CHUNK + 3, CHUNK + 3)]


async def test_an_unexpected_fault_does_not_end_the_task(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    bench.session().append(Message.user("hi"))
    monkeypatch.setattr(Snapshots, "write", fail)
    await bench.clock.advance(PERSISTENCE_INTERVAL_SECS)
    assert "RuntimeError" in str(bench.flusher.problem)
    monkeypatch.undo()
    await bench.clock.advance(PERSISTENCE_INTERVAL_SECS)
    await bench.until(lambda: bench.flusher.counts.written == 1)
    assert bench.flusher.problem is None


async def test_closing_ends_the_task_between_flushes(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with at_work(tmp_path) as bench:
            bench.session().append(Message.user("hi"))
    assert list(bench.snapshots.path.iterdir()) == []  # the last flush is the manager's business


def test_a_commit_queue_takes_and_puts_back_in_order() -> None:
    queue = CommitQueue(sample_head())
    one, two, three = sample_entries(1, 3)
    assert queue.add(one) is True
    assert queue.add(two) is False
    assert list(queue.take().entries) == [one, two]
    queue.add(three)
    queue.put_back()
    assert list(queue.waiting) == [one, two, three]
    assert queue.drop() == sum(len(entry.encoded) for entry in (one, two, three))
    assert list(queue.waiting) == []
