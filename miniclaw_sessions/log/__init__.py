"""Logging: `get_logger` for who has something to say, `log.actions` what that can be, `log.records` how it looks.

A logger costs nothing until something is logged. structlog brings the terminal library for its pretty output with it,
twice as much as this whole package takes to import; only programs that use it themselves, and a log in a terminal, pay
for it. And a log that cannot be written (its disk is full, its pipe is gone) must not end the committer that wanted to
say so.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Protocol, TextIO, cast

if TYPE_CHECKING:
    from miniclaw_sessions.config import LogSettings

Plain = None | bool | int | float | str | PurePath | BaseException
"""What a record shows; of any other value it shows the type alone."""

Fact = Plain | list[str] | tuple[str, ...]


class Logger(Protocol):
    """What may be logged: a sentence, an action of the vocabulary, and facts that a record can show."""

    def debug(self, event: str, *, action: str, **facts: Fact) -> None:
        """For who looks for a fault."""

    def info(self, event: str, *, action: str, **facts: Fact) -> None:
        """What happens."""

    def warning(self, event: str, *, action: str, **facts: Fact) -> None:
        """What a person should know."""

    def error(self, event: str, *, action: str, **facts: Fact) -> None:
        """What a person should mend."""

    def exception(self, event: str, *, action: str, **facts: Fact) -> None:
        """An error, and where it happened."""

    def critical(self, event: str, *, action: str, **facts: Fact) -> None:
        """Why the program ends."""


class _LazyLogger:
    """Finds at each call who writes, so that a later configuration counts too."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Callable[..., None]:
        def write(event: str, **fields: Any) -> None:
            while _pending:
                _pending.pop()()
            structlog = sys.modules.get("structlog")  # a program that configured it has imported it
            with contextlib.suppress(OSError, ValueError):  # ValueError: the stream was closed
                if structlog is not None and structlog.is_configured():
                    getattr(structlog.get_logger(self._name), method)(event, **fields)
                elif _own:
                    _own[0].write(method, event, fields)
                else:  # this is another program: its own logging decides what is shown
                    facts = " ".join(f"{key}={value!r}" for key, value in fields.items())
                    getattr(logging.getLogger(self._name), method)("%s (%s)", event, facts)

        return write


_request_id: ContextVar[str] = ContextVar("request_id", default="")


@contextlib.contextmanager
def in_request(request_id: str) -> Iterator[None]:
    """Write this id into every record of the block, and of the tasks that are begun there; an empty one: none."""
    token = _request_id.set(request_id)
    try:
        yield
    finally:
        _request_id.reset(token)


def name_request(request_id: str) -> None:
    """Write this id into every record of this task from now on, and of the tasks that are begun in it."""
    _request_id.set(request_id)


def current_request() -> str:
    """The id of the request that is being answered; empty without one."""
    return _request_id.get()


_pending: list[Callable[[], None]] = []


@contextlib.contextmanager
def configured_when_used(configure: Callable[[], None]) -> Iterator[None]:
    """Call this before the first record is written meanwhile; a command that logs nothing does not pay for it."""
    _pending[:] = [configure]
    try:
        yield
    finally:
        _pending.clear()  # a program that runs a command itself keeps its own log


class Log(Protocol):
    """What writes the records of this process; see `log.records`."""

    @property
    def stream(self) -> TextIO:
        """Where to."""
        ...

    def write(self, method: str, event: str, fields: dict[str, Any]) -> None:
        """Write a record, as a logger's method of this name was called.

        Raises:
            OSError: the stream cannot be written.
            ValueError: it was closed.
        """
        ...


_own: list[Log] = []


def set_log(log: Log | None) -> None:
    """Let this write all records of this process; None: what the program configured for itself."""
    _own[:] = [] if log is None else [log]


def log_stream() -> TextIO | None:
    """The stream that this process logs to; None: no program has configured one."""
    return _own[0].stream if _own else None


def is_pretty(settings: LogSettings, stream: TextIO) -> bool:
    """Whether records on this stream are written for people."""
    return settings.format == "pretty" or (settings.format == "auto" and stream.isatty())


def get_logger(name: str) -> Logger:
    """A module's logger: structlog's where the program has configured that, else ours, else the standard library's.

    Errors of the log's stream are swallowed.
    """
    return cast("Logger", _LazyLogger(name))
