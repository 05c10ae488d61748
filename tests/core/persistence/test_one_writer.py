"""Saving happens in threads, one step at a time, and never on the event loop (rule R9)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from miniclaw_sessions import Message, SessionManager, SessionSettings
from miniclaw_sessions.core.history.state import Snapshot, State
from miniclaw_sessions.core.persistence.quarantine import Quarantine
from miniclaw_sessions.core.persistence.snapshots import Snapshots
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.sqlite.store import SQLiteStore
from miniclaw_sessions.disk import SYNC_ONE_BY_ONE, Directory
from miniclaw_sessions.testing import FakeClock

pytestmark = pytest.mark.anyio

DAY = 86_400.0


# --- one step at a time ----------------------------------------------------------------------------------------------


class WatchedLock:
    """A lock that tells when somebody asks for it."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.asked.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Disk:
    """Holds the first write of snapshots in its thread, and counts how many run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self.begun = self.most = self._running = 0
        real = Directory.replace

        def replace(
            directory: Directory, files: Sequence[tuple[str, Callable[[], bytes]]], **times: Any
        ) -> list[Exception | None]:
            self.begun += 1
            self._running += 1
            self.most = max(self.most, self._running)
            self.reached.set()
            self.go.wait(10)
            outcome = real(directory, files, **times)
            self._running -= 1
            return outcome

        monkeypatch.setattr(Directory, "replace", replace)


def titled(clock: FakeClock, title: str) -> Snapshot:
    now = clock.now()
    return Snapshot(State.new(SessionKey("a", "1"), incarnation="i", created_at=now, metadata={"title": title}))


async def test_a_write_whose_caller_is_gone_is_waited_for_before_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, disk, lock = FakeClock(), Disk(monkeypatch), WatchedLock()
    quarantine = Quarantine(tmp_path / "quarantine", max_files=1, max_bytes=1)
    with closing(Snapshots(tmp_path / "sessions", quarantine, clock=clock, max_bytes=10_000)) as snapshots:
        monkeypatch.setattr(snapshots, "_running", lock)
        first = asyncio.create_task(snapshots.write([titled(clock, "older")]))
        assert await anyio.to_thread.run_sync(disk.reached.wait, 10)
        first.cancel()  # asyncio's own: the caller goes, its thread does not
        await asyncio.wait([first])
        second = asyncio.create_task(snapshots.write([titled(clock, "newer")]))
        for _ in range(2):
            assert await anyio.to_thread.run_sync(lambda: lock.asked.acquire(timeout=10)), "it did not wait"
        assert disk.begun == 1
        disk.go.set()
        await second
    assert disk.most == 1
    assert b"newer" in (tmp_path / "sessions" / "a_1.json").read_bytes()


# --- never on the event loop -----------------------------------------------------------------------------------------

CALLS = ("fsync", "fdatasync", "rename", "link", "unlink", "ftruncate", "write")
OF_SQLITE = ("_open", "_append", "_delete", "_close", "_read_in_thread")


@contextmanager
def threads_of_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, set[int]]]:
    """Which threads made each call that may wait for the disk."""
    seen: dict[str, set[int]] = {}

    def watch(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def watching(*arguments: Any, **options: Any) -> Any:
            seen.setdefault(name, set()).add(threading.get_ident())
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, watching)

    for name in CALLS:
        watch(os, name)
    for name in OF_SQLITE:
        watch(SQLiteStore, name)
    watch(Directory, "_sync_file_system")
    yield seen
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("store", "expected"),
    [("sqlite:", {*OF_SQLITE, "fsync"}), ("jsonl:", {"fdatasync", "fsync", "link", "unlink"}), ("none:", {"fsync"})],
)
async def test_the_event_loop_never_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, expected: set[str]
) -> None:
    settings = SessionSettings(store=store, flush_interval_s=9 * DAY, sweep_interval_s=9 * DAY)
    clock = FakeClock()
    async with SessionManager(tmp_path / "w", settings=settings, clock=clock) as manager:
        await (await manager.get_or_create("a", "damaged")).add_message(Message.user("1"))
    (tmp_path / "w" / "sessions" / "a_damaged.json").write_bytes(b"{")
    (tmp_path / "w" / "sessions" / f".{'0' * 24}.tmp").touch()
    with threads_of_calls(monkeypatch) as seen:
        async with SessionManager(tmp_path / "w", settings=settings, clock=clock) as manager:
            assert len(manager.recovery.quarantined) == 1
            for number in range(2 * SYNC_ONE_BY_ONE):
                session = await manager.get_or_create("a", number)
                await session.add_message(Message.user("2"))
                await session.add_message(Message.user("3"))
            await manager.flush()
            await manager.delete("a_1")
            await clock.advance(31 * DAY)
            await manager.sweep()
    assert expected | {"rename", "write", "_sync_file_system"} <= seen.keys()
    on_the_loop = {name for name, threads in seen.items() if threading.get_ident() in threads}
    assert on_the_loop <= {"write"}, "the event loop waited for the disk"  # `write`: how a loop wakes itself
