"""What all benchmarks share: the same messages, the same tables, each measurement in a process of its own."""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from miniclaw_sessions import Message, Role

WORDS = "the quick brown fox jumps over the lazy dog and tells everybody in the channel about it at some length "


class Row(NamedTuple):
    """One line of the table: ours beside the floor that was measured in the same run."""

    name: str
    unit: str
    ours: float
    floor: float | None = None
    target: str = ""
    met: bool | None = None


def message(number: int) -> Message:
    """Users and assistants in turn, no two texts alike; 50 of them make a snapshot of about 24.4 KB."""
    return Message(Role.USER if number % 2 else Role.ASSISTANT, f"message {number}: {WORDS * 4}"[:350])


def in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a measurement in a fresh process, so that no garbage of another one is in it."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(function, arguments)


def in_turns(rounds: int, *functions: Callable[[], float]) -> list[float]:
    """Measure several things alternately and give the median of each, so that a slow spell hits all of them."""
    results: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for index, function in enumerate(functions):
            results[index].append(function())
    return [statistics.median(values) for values in results]


def fresh(directory: Path, name: str) -> Path:
    """A new empty directory below `directory`."""
    number = 0
    while (path := directory / f"{name}-{number}").exists():
        number += 1
    path.mkdir(parents=True)
    return path


@contextmanager
def collector_watched() -> Iterator[list[float]]:
    """How long each run of the garbage collector took, seconds."""
    pauses: list[float] = []
    begun = 0.0

    def watch(phase: str, _: dict[str, int]) -> None:
        nonlocal begun
        if phase == "start":
            begun = time.perf_counter()
        else:
            pauses.append(time.perf_counter() - begun)

    gc.callbacks.append(watch)
    try:
        yield pauses
    finally:
        gc.callbacks.remove(watch)
