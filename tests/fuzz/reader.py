"""What is fuzzed: a `Reader` is one place where bytes from outside come in.

A case is always bytes, so that it can be written to a file, made smaller, and read again. To read one is to do what the
product does with it, and to look at everything that it promises: a case is taken in, or refused by a documented error;
anything else that is raised is a failure.
"""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NoReturn, Self

import structlog

from miniclaw_sessions.errors import SessionsError
from tests.fuzz.mutations import cut_at, damaged

SECRET = "Quetzalcoatl"  # a word that is said in messages and nowhere else
"""What no error and no log record may repeat."""

_IDS = ("session_id", "file")  # a damaged case may well name a session by a word that was said
_CUT_EVERY = 8  # of so many cases one is a truncation


class Reader(ABC):
    """One place where bytes come in; an async context manager, which sets up what it needs below `scratch`.

    Attributes:
        name: as the command line has it.
        share: how many of 100,000 cases are its.
        batch: how many cases are read together, because reading one alone would cost too much.
    """

    name: ClassVar[str]
    share: ClassVar[int]
    batch: ClassVar[int] = 1

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.seeds: Sequence[bytes] = ()

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of everything; checks once more what can only be checked at the end."""

    @abstractmethod
    async def read(self, case: bytes) -> bool:
        """Whether the case was taken in; False: it was refused, cleanly."""

    async def read_together(self, cases: Sequence[bytes]) -> list[bool]:
        """`read` for `batch` cases at once."""
        return [await self.read(case) for case in cases]

    def case(self, random: Random, number: int) -> bytes:
        """The case of this number: every eighth is a seed that is cut off, at each of its offsets in turn."""
        if number % _CUT_EVERY == 0:
            return cut_at(self.seeds, number // _CUT_EVERY)
        return damaged(random, random.choice(self.seeds), self.seeds)


def refused(error: Exception) -> bool:
    """False, provided that a refusal says something and repeats nothing of what was said."""
    text = str(error)
    assert isinstance(error, SessionsError), f"not a documented error: {error!r}"
    assert text.strip(), f"{type(error).__name__} says nothing"
    assert SECRET not in text, f"{type(error).__name__} repeats what was said"
    return False


def tree_of(path: Path) -> dict[str, str]:
    """Everything below a directory: its name and what it is, links not followed, a file's bytes as their hash."""
    return {str(one.relative_to(path)): _identity(one) for one in sorted(path.rglob("*"))}


def _identity(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return "directory" if path.is_dir() else "other"


# --- what is logged --------------------------------------------------------------------------------------------------


class LogWatch(logging.Handler):
    """Reads along in all logs: what was said must not be there, nor the trace of an error that nobody expected."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.problems: list[str] = []

    def process(self, _: Any, method: str, event: MutableMapping[str, Any]) -> NoReturn:
        """A processor of structlog that writes nothing."""
        text = repr({field: value for field, value in event.items() if field not in _IDS})
        if SECRET in text:
            self.problems.append(f"the log repeats what was said ({event.get('action')})")
        if event.get("exc_info") or event.get("error_id") or method == "critical":
            self.problems.append(f"logged as unexpected: {text[:500]}")
        raise structlog.DropEvent

    def emit(self, record: logging.LogRecord) -> None:
        """What libraries log: asyncio tells of tasks that failed where nobody waited for them."""
        text = record.getMessage()
        if SECRET in text:
            self.problems.append(f"the logger {record.name} repeats what was said")
        if record.exc_info is not None or record.levelno >= logging.ERROR:
            self.problems.append(f"{record.name} logged: {text[:500]}")

    def check(self) -> None:
        """Raise AssertionError for what was logged since the last check."""
        problems, self.problems = self.problems, []
        assert not problems, problems[0]


@contextmanager
def watching_logs() -> Iterator[LogWatch]:
    """All logs, read along and not written."""
    watch = LogWatch()
    structlog.configure(
        processors=[watch.process],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),  # whatever was configured before
        cache_logger_on_first_use=False,
    )
    logging.getLogger().addHandler(watch)
    try:
        yield watch
    finally:
        logging.getLogger().removeHandler(watch)
        structlog.reset_defaults()
