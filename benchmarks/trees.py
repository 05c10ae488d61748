"""A session of 100,000 entries with 1,000 branches: what its size costs those who use it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio

from benchmarks.workload import Row, fresh, in_process, message
from miniclaw_sessions import SessionManager, SessionSettings
from miniclaw_sessions.core.session import Session

SETTINGS = SessionSettings(flush_interval_s=3600, max_unsaved_bytes=2**40)
TARGET = 1.2


def measure(directory: Path, *, quick: bool) -> list[Row]:
    """The rows of this benchmark."""
    entries, branches = (10_000, 100) if quick else (100_000, 1_000)
    numbers = in_process(_run, fresh(directory, "tree"), entries, branches)
    size = f"{entries:,} entries, {branches:,} branches"
    accepted, accepted_empty, acknowledged, acknowledged_empty = (numbers[name] for name in _APPENDS)
    return [
        Row(
            f"accepted append, session of {size}",
            "us",
            accepted,
            accepted_empty,
            f"{TARGET} x an empty one",
            accepted <= TARGET * accepted_empty,
        ),
        Row(
            "acknowledged append in it",
            "us",
            acknowledged,
            acknowledged_empty,
            f"{TARGET} x an empty one",
            acknowledged <= TARGET * acknowledged_empty,
        ),
        Row("opening it, with its snapshot (floor: an empty one)", "ms", numbers["open"], numbers["open_empty"]),
        Row("context of 50 kept messages at its tip", "ms", numbers["context 50"]),
        Row("context of 1,000 kept messages", "ms", numbers["context 1000"]),
        Row("branch to an entry anywhere", "ms", numbers["branch"]),
        Row("the whole tree", "ms", numbers["tree"]),
    ]


_APPENDS = ("accepted", "accepted empty", "acknowledged", "acknowledged empty")


def _run(directory: Path, entries: int, branches: int) -> dict[str, float]:
    return anyio.run(partial(_measured, directory, entries, branches))


async def _measured(directory: Path, entries: int, branches: int) -> dict[str, float]:
    numbers: dict[str, float] = {}
    async with SessionManager(directory / "w", settings=SETTINGS) as manager:
        tree = await manager.get_or_create("bench", "tree")
        ids = await _grow(tree, entries, branches)
        numbers |= await _append_costs(manager, tree)
        numbers["branch"] = (
            statistics.median([await _timed(tree.tree.branch, one) for one in ids[:: len(ids) // 7]]) * 1e3
        )
        numbers["tree"] = await _timed(tree.tree.get_tree) * 1e3
        for kept in (1_000, 50):
            numbers[f"context {kept}"] = await _context_cost(tree, kept)
    numbers["open"] = await _opening(directory / "w")
    async with SessionManager(directory / "empty", settings=SETTINGS) as manager:
        await (await manager.get_or_create("bench", "empty")).add_message(message(1))
    numbers["open_empty"] = await _opening(directory / "empty")
    return numbers


async def _grow(session: Session, entries: int, branches: int) -> list[str]:
    """Grow a bush: each branch goes off an entry in the middle of what is there."""
    ids: list[str] = []
    for branch in range(branches):
        if ids:
            await session.tree.branch(ids[(branch * 7919) % len(ids)])
        ids += [session.append(message(number)).id for number in range(entries // branches - 1)]
        await session.saved()
    return ids


async def _append_costs(manager: SessionManager, tree: Session) -> dict[str, float]:
    """In turns with an empty session, so that a slow spell of the machine hits both."""
    seconds: dict[str, list[float]] = {name: [] for name in _APPENDS}
    for round_ in range(12):
        empty = await manager.get_or_create("bench", f"empty{round_}")
        pair = ((tree, ""), (empty, " empty"))
        for session, suffix in pair if round_ % 2 else reversed(pair):
            started = time.perf_counter()
            for number in range(500):
                session.append(message(number))
            seconds["accepted" + suffix].append((time.perf_counter() - started) / 500)
            await session.saved()
            started = time.perf_counter()
            for number in range(100):
                await session.add_message(message(number))
            seconds["acknowledged" + suffix].append((time.perf_counter() - started) / 100)
    return {name: statistics.median(values) * 1e6 for name, values in seconds.items()}


async def _context_cost(tree: Session, kept: int) -> float:
    entries = [await tree.add_message(message(number)) for number in range(kept)]
    await tree.tree.append_compaction("what came before", entries[0].id)
    tree.append(message(1))
    return statistics.median([await _timed(tree.get_context) for _ in range(9)]) * 1e3


async def _opening(workspace: Path) -> float:
    async def open_and_close() -> None:
        async with SessionManager(workspace, settings=SETTINGS) as manager:
            await manager.continue_recent()

    return statistics.median([await _timed(open_and_close) for _ in range(5)]) * 1e3


async def _timed(call: Callable[..., Awaitable[object]], *arguments: object) -> float:
    started = time.perf_counter()
    await call(*arguments)
    return time.perf_counter() - started
