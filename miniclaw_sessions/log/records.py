"""How a program that runs sessions logs: one line per record on standard error, and never what anybody said.

As a service each record is one JSON object in ASCII, so that nothing in it can end the line, colour a terminal or forge
another record (rule S20); in a terminal it is one readable, escaped line. Records of the standard library's loggers
(asyncio, SQLAlchemy, ...) come the same way. The package logs facts: a sentence, an `action` of the vocabulary in
`log.actions`, and keys such as `session_id`. Keys that could hold message text or secrets are refused, values that are
not plain are replaced by the name of their type, long ones are cut, and a warning that repeats itself is counted
instead of written (rule S21). This module decides how a record looks; who calls it (the command line) decides when.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import PurePath
from typing import Any, TextIO

from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.config import LogSettings
from miniclaw_sessions.errors import SessionsError
from miniclaw_sessions.log import current_request, is_pretty, set_log
from miniclaw_sessions.printable import printable

REFUSED_KEYS = frozenset(
    {
        *("content", "text", "message", "messages", "message_text", "body", "payload", "prompt", "system_prompt"),
        *("reply", "arguments", "output", "result", "delta", "summary", "title", "data", "encoded", "headers"),
        *("token", "api_key", "key", "password", "secret", "authorization", "credential", "cookie"),
    }
)
"""Keys under which only numbers are written: anything else could be a message or a secret."""

MAX_VALUE_LENGTH = 300
"""Characters of one value that are written; the sentence itself may have more."""

REPEATS = 10
"""How many equal warnings are written within `REPEAT_INTERVAL_S`; the rest are counted."""

REPEAT_INTERVAL_S = 60.0

_MAX_EVENT_LENGTH = 1_000
_MAX_ITEMS = 20
_MAX_FRAMES = 20
_FIRST_KEYS = ("time", "level", "event", "action", "session_id")
_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
_NAMES = {number: name for name, number in _LEVELS.items()}

Record = dict[str, Any]


def configure_logging(settings: LogSettings, *, stream: TextIO | None = None, clock: Clock | None = None) -> None:
    """Send all records of this process to one stream; may be called again.

    Args:
        settings: level and format; `auto` is pretty when the stream is a terminal.
        stream: where to; standard error by default.
        clock: stamps the records and times the repetitions.
    """
    structlog = sys.modules.get("structlog")
    if structlog is not None:
        structlog.reset_defaults()  # else what was configured before would write
    log = StreamLog(settings, stream or sys.stderr, clock or SystemClock())
    set_log(log)
    _adopt_standard_library(log)


class StreamLog:
    """Writes records to one stream, each on one line."""

    def __init__(self, settings: LogSettings, stream: TextIO, clock: Clock) -> None:
        self.stream = stream
        self._clock = clock
        self._least = _LEVELS[settings.level]
        self._repeats = RepeatFilter(clock)
        self._line = line_for_people(stream) if is_pretty(settings, stream) else line_of_json
        self._lock = threading.Lock()

    def write(self, method: str, event: str, fields: Record) -> None:
        """Write a record, unless its level is too low or it repeats itself."""
        level = "error" if method == "exception" else method
        if _LEVELS[level] < self._least:
            return
        record = {"event": event, **fields, "level": level}
        if method == "exception":
            record.setdefault("exc_info", True)
        if request_id := current_request():
            record.setdefault("request_id", request_id)
        if not self._repeats.passes(record):
            return
        record["time"] = self._clock.now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = self._line(confined(record))
        with self._lock:
            self.stream.write(f"{line}\n")
            self.stream.flush()


def _adopt_standard_library(log: StreamLog) -> None:
    """Write what `logging` is given. Foreign libraries may only warn: below that, some log statements and bodies."""
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, _ToLog)]:
        root.removeHandler(handler)
    root.addHandler(_ToLog(log))
    root.setLevel(logging.WARNING)
    for name in ("alembic", "sqlalchemy"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    logging.captureWarnings(capture=True)


class _ToLog(logging.Handler):
    """Hands records of the standard library's loggers over."""

    def __init__(self, log: StreamLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sentence = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit the format
            sentence = str(record.msg)
        level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL)
        fields = {"action": "library", "logger": record.name, "exc_info": record.exc_info or None}
        with contextlib.suppress(OSError, ValueError):  # the stream is full or gone: never the fault of who logs
            self._log.write(_NAMES[level], sentence, fields)


# --- what is written -------------------------------------------------------------------------------------------------


class RepeatFilter:
    """Drops warnings and errors that repeat themselves, and counts them in the next one that passes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def passes(self, record: Record) -> bool:
        """Whether the record is written; adds how many were not."""
        if record["level"] not in ("warning", "error"):
            return True
        # Equal means equal action and reason: an id in the sentence or the keys must not make a flood unique.
        key = (str(record.get("action", record["event"])), str(record.get("reason", record.get("error", "")))[:80])
        now = self._clock.monotonic()
        since, count = self._seen.get(key, (now, 0))
        if now - since >= REPEAT_INTERVAL_S:
            since, count = now, max(0, count - REPEATS)
            if count:
                record["suppressed"], count = count, 0
        if len(self._seen) >= 1_000:  # noqa: PLR2004 - bounds memory when strangers can vary the reason
            self._seen.clear()
        self._seen[key] = (since, count + 1)
        return count < REPEATS


def confined(record: Record) -> Record:
    """The record without message text, secrets and endless values (rules S19 to S21)."""
    record.pop("stack_info", None)
    failure = _failure(record.pop("exc_info", None))
    safe: dict[str, Any] = {name: record[name] for name in _FIRST_KEYS if name in record}
    safe["event"] = _cut(str(record.get("event", "")), _MAX_EVENT_LENGTH)
    for name, value in record.items():
        if name != "event":
            is_refused = name.lower() in REFUSED_KEYS and not isinstance(value, int | float | None)
            safe[name] = "<refused>" if is_refused else _plain(value)
    return {**safe, **failure}


def _plain(value: Any, *, nested: bool = False) -> Any:
    """A value that cannot surprise: a number, a short text, or a short list of these; else the name of its type."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, BaseException):
        return _cut(f"{type(value).__name__}: {value}", MAX_VALUE_LENGTH)
    if isinstance(value, str | PurePath):
        return _cut(str(value), MAX_VALUE_LENGTH)
    if isinstance(value, list | tuple | set | frozenset) and not nested:
        items = [_plain(item, nested=True) for item in list(value)[:_MAX_ITEMS]]
        return items if len(value) <= _MAX_ITEMS else [*items, f"and {len(value) - _MAX_ITEMS} more"]
    return f"<{type(value).__name__}>"


def _failure(exc_info: Any) -> dict[str, Any]:
    """An exception as its type and where it happened; its text, in one line, only where it cannot quote anybody."""
    if exc_info is True:
        exc_info = sys.exc_info()
    error = exc_info[1] if isinstance(exc_info, tuple) else exc_info
    if not isinstance(error, BaseException):
        return {}
    frames = traceback.extract_tb(error.__traceback__)[-_MAX_FRAMES:]
    text = {"error": _cut(str(error), MAX_VALUE_LENGTH)} if isinstance(error, SessionsError | OSError) else {}
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return {"error_type": type(error).__name__, **text, "where": where}


def _cut(text: str, length: int) -> str:
    """The first line, shortened: database errors quote statements and parameters on the lines after it."""
    line, more, _ = text.partition("\n")
    return f"{line[: length - 3]}..." if more or len(line) > length else line


# --- output ----------------------------------------------------------------------------------------------------------


def line_of_json(record: Record) -> str:
    """The record as one line of ASCII JSON."""
    return json.dumps(record, ensure_ascii=True, default=lambda value: f"<{type(value).__name__}>").replace(
        "\x7f", "\\u007f"
    )


def line_for_people(stream: TextIO) -> Callable[[Record], str]:
    """What makes a record one line of text for a stream, with colours in a terminal that has them."""
    from rich.console import Console  # noqa: PLC0415 - an extra: the library alone has no rich
    from structlog.dev import ConsoleRenderer  # noqa: PLC0415 - slow to load, and a service does without

    colors = stream.isatty() and not Console(file=stream).no_color
    renderer = ConsoleRenderer(colors=colors, pad_event_to=32, sort_keys=False, timestamp_key="time")
    return lambda record: str(renderer(None, record["level"], _shown(record)))


def _shown(record: Record) -> Record:
    """Local time of day, and control characters that are shown instead of obeyed."""
    shown: Record = {}
    for name, value in record.items():
        if isinstance(value, str):
            shown[name] = printable(value)
        elif isinstance(value, list):
            shown[name] = [printable(str(item)) for item in value]
        else:
            shown[name] = value
    shown["time"] = datetime.fromisoformat(record["time"]).astimezone().strftime("%H:%M:%S")
    return shown
