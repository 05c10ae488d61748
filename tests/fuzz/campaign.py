"""Reads many cases, watches what becomes of them, and makes those that fail small."""

from __future__ import annotations

import resource
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import NoReturn

import anyio
import msgspec

from tests.fuzz.reader import LogWatch, Reader

DEADLINE_S = 10.0
"""What a case may take; what are read together have it for all of them, and a second more for each."""

MEMORY_BYTES = 256 * 1024 * 1024
"""By so much the process may not grow for the cases that are read together."""

_SAME_KEPT = 3  # of failures at the same place so many are written down
_SMALLER_TRIES = 300
_SMALLER_S = 20.0


class Hang(BaseException):
    """A case took longer than it may."""


class Failure(msgspec.Struct, frozen=True):
    """A case that failed.

    Attributes:
        reader: where.
        number: the case's number; with the seed it makes the case again.
        what: the error on one line.
        where: the end of its trace.
        case: the smallest bytes found that fail in the same way.
    """

    reader: str
    number: int
    what: str
    where: str
    case: bytes


class Tally(msgspec.Struct):
    """What became of one reader's cases."""

    cases: int = 0
    accepted: int = 0
    refused: int = 0
    slowest_ms: float = 0.0
    seconds: float = 0.0
    failed: int = 0
    failures: list[Failure] = []


class Campaign:
    """Many cases for one reader."""

    def __init__(self, reader: Reader, seed: str, logs: LogWatch) -> None:
        self.tally = Tally(failures=[])
        self._reader = reader
        self._seed = seed
        self._logs = logs
        self._seen: dict[str, int] = {}

    async def run(self, cases: int, advance: Callable[[int], None]) -> None:
        """Make and read so many cases; `advance` is told how many are done."""
        started = time.perf_counter()
        for start in range(0, cases, self._reader.batch):
            numbers = range(start, min(cases, start + self._reader.batch))
            await self._read({number: self._case(number) for number in numbers})
            advance(len(numbers))
        self.tally.seconds = time.perf_counter() - started

    def _case(self, number: int) -> bytes:
        return self._reader.case(Random(f"{self._seed} {self._reader.name} {number}"), number)

    async def _read(self, cases: dict[int, bytes]) -> None:
        """Read cases together; where that fails, each alone, to know which it was."""
        started = time.perf_counter()
        try:
            accepted = await attempt(self._reader, list(cases.values()), self._logs)
        except Exception as error:  # noqa: BLE001 - whatever is raised is the finding
            if len(cases) > 1:
                found = self.tally.failed
                for number, case in cases.items():
                    await self._read({number: case})
                if self.tally.failed == found:
                    await self._note(min(cases), b"\n---\n".join(cases.values()), error, alone=False)
                return
            ((number, case),) = cases.items()
            self.tally.cases += 1
            await self._note(number, case, error, alone=True)
            return
        milliseconds = (time.perf_counter() - started) * 1000 / len(cases)
        self.tally.slowest_ms = max(self.tally.slowest_ms, milliseconds)
        self.tally.cases += len(cases)
        self.tally.accepted += sum(accepted)
        self.tally.refused += len(cases) - sum(accepted)

    async def _note(self, number: int, case: bytes, error: Exception, *, alone: bool) -> None:
        self.tally.failed += 1
        place = place_of(error)
        self._seen[place] = self._seen.get(place, 0) + 1
        if self._seen[place] <= _SAME_KEPT:
            small = await smaller(self._reader, case, place, self._logs) if alone else case
            what = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
            self.tally.failures.append(Failure(self._reader.name, number, what, _trace(error), small))


async def attempt(
    reader: Reader, cases: Sequence[bytes], logs: LogWatch, *, deadline_s: float = DEADLINE_S
) -> list[bool]:
    """Read cases together within their time and memory, and look at the logs; raises what is wrong."""
    before = _peak_bytes()
    limit_s = deadline_s + len(cases) - 1
    try:
        with _alarm(2 * limit_s), anyio.fail_after(limit_s):
            accepted = await reader.read_together(cases)
    except (Hang, TimeoutError) as error:
        raise AssertionError(f"it took longer than {limit_s:g} s") from error
    finally:
        problems = list(logs.problems)
        logs.problems.clear()
    assert not problems, problems[0]
    grown = _peak_bytes() - before
    assert grown <= MEMORY_BYTES, f"it took {grown} bytes of memory"
    return accepted


async def smaller(reader: Reader, case: bytes, place: str, logs: LogWatch) -> bytes:
    """The case with pieces left out, as long as it still fails at the same place."""
    tries, until = 0, time.monotonic() + _SMALLER_S
    size = len(case) // 2
    while size:
        start = 0
        while start < len(case) and tries < _SMALLER_TRIES and time.monotonic() < until:
            candidate = case[:start] + case[start + size :]
            tries += 1
            if await _fails_at(reader, candidate, logs) == place:
                case = candidate
            else:
                start += size
        size //= 2
    return case


async def _fails_at(reader: Reader, case: bytes, logs: LogWatch) -> str | None:
    try:
        await attempt(reader, [case], logs)
    except Exception as error:  # noqa: BLE001 - same
        return place_of(error)
    return None


def place_of(error: Exception) -> str:
    """Where an error was raised: two failures of one place are one defect."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} at {frames[-1].name}:{frames[-1].lineno}" if frames else repr(error)


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error))[-4_000:]


def write_down(failure: Failure, seed: str, folder: Path) -> Path:
    """The failure as two files: the case, and beside it what it is; the case's."""
    path = folder / failure.reader / f"{seed}-{failure.number}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(failure.case)
    again = f"python -m tests.fuzz --replay {path}"
    text = f"seed {seed}, case {failure.number}\n{failure.what}\nagain: {again}\n\n{failure.where}"
    path.with_suffix(".txt").write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


# --- limits ----------------------------------------------------------------------------------------------------------


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise `Hang` in code that does not let the event loop run; only in the main thread, where signals arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hang(_: int, __: FrameType | None) -> NoReturn:
        raise Hang

    before = signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
