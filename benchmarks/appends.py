"""Appends per second: accepted in memory, and acknowledged beside a bare append-and-fsync group commit."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread

from benchmarks.workload import Row, fresh, in_process, in_turns, message
from miniclaw_sessions import SessionManager, SessionSettings
from miniclaw_sessions.core.protocol.encoding import encode_message
from miniclaw_sessions.encryption import KeyRing

SETTINGS = SessionSettings(flush_interval_s=3600, max_unsaved_bytes=2**40)


def measure(directory: Path, *, quick: bool) -> list[Row]:
    """The rows of this benchmark."""
    rows = [_accepted(directory, quick=quick)]
    for writers in (1, 10, 100, 1000):
        per_writer = max(2, (2_000 if quick else 20_000) // writers) if writers > 1 else (300 if quick else 2_000)
        ours, bare = in_turns(
            1 if quick else 3,
            partial(in_process, run_acknowledged, fresh(directory, "ours"), writers, per_writer),
            partial(in_process, _run_bare, fresh(directory, "bare"), writers, per_writer),
        )
        target, met = ("at least 0.7 of the floor", ours >= 0.7 * bare) if writers == 100 else ("", None)
        rows.append(Row(f"acknowledged appends, {writers} writers", "per s", ours, bare, target, met))
    return rows


def _accepted(directory: Path, *, quick: bool) -> Row:
    (rate,) = in_turns(
        1 if quick else 3,
        partial(in_process, _run_accepted, fresh(directory, "accepted"), 20_000 if quick else 100_000),
    )
    return Row("accepted appends, one task", "per s", rate, None, "300,000", rate >= 300_000)


def _run_accepted(directory: Path, count: int) -> float:
    async def main() -> float:
        async with SessionManager(fresh(directory, "run"), store="sqlite:", settings=SETTINGS) as manager:
            session = await manager.get_or_create("bench", "1")
            messages = [message(number) for number in range(count)]
            started = time.perf_counter()
            for one in messages:
                session.append(one)
            return count / (time.perf_counter() - started)

    return anyio.run(main)


def run_acknowledged(directory: Path, writers: int, per_writer: int, key: bytes | None = None) -> float:
    """Acknowledged appends per second in a new workspace; with a key it is encrypted."""

    async def main() -> float:
        workspace, keys = fresh(directory, "run"), None if key is None else KeyRing([key])
        async with SessionManager(workspace, store="sqlite:", settings=SETTINGS, encryption=keys) as manager:
            sessions = [await manager.get_or_create("bench", number) for number in range(writers)]

            async def write(number: int) -> None:
                for one in range(per_writer):
                    await sessions[number].add_message(message(one))

            return await _rate(writers, per_writer, write)

    return anyio.run(main)


def _run_bare(directory: Path, writers: int, per_writer: int) -> float:
    """The floor: encode, one write and one fdatasync per group in a worker thread, one shared event per group."""

    async def main() -> float:
        log = os.open(fresh(directory, "run") / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        waiting: list[bytes] = []
        group = wake = anyio.Event()

        def save(data: bytes) -> None:
            os.write(log, data)
            os.fdatasync(log)

        async def commit() -> None:
            nonlocal waiting, group, wake
            while True:
                await wake.wait()
                wake, batch, done = anyio.Event(), waiting, group
                waiting, group = [], anyio.Event()
                await to_thread.run_sync(save, b"\n".join(batch))
                done.set()

        async def write(_: int) -> None:
            for one in range(per_writer):
                waiting.append(encode_message(message(one)))
                wake.set()
                await group.wait()

        group = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit)
            rate = await _rate(writers, per_writer, write)
            tasks.cancel_scope.cancel()
        os.close(log)
        return rate

    return anyio.run(main)


async def _rate(writers: int, per_writer: int, write: object) -> float:
    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for number in range(writers):
            tasks.start_soon(write, number)  # type: ignore[arg-type]
    return writers * per_writer / (time.perf_counter() - started)
