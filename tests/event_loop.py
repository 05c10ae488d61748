"""A watch over the event loop: which coroutine of ours calls what blocks."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from blockbuster import BlockBuster

import miniclaw_sessions

PACKAGE = Path(miniclaw_sessions.__file__).parent

ALONE = (PACKAGE / "service/cli", PACKAGE / "testing")
"""Coroutines that have their loop to themselves: a command may wait for the terminal and the file that it writes."""

LOOKS = ("os.stat", "os.getcwd", "os.access", "os.readlink", "os.path.abspath", "os.path.islink", "os.path.ismount")
"""Calls that look a name up in the system's cache; opening and stopping make a few of them on the loop."""

SHORT = (
    ("io.TextIOWrapper.read", "importlib/metadata/__init__.py", "read_text"),  # the version, and entry points, once
    ("os.listdir", "importlib/metadata/__init__.py", "children"),  # same
    ("io.BufferedReader.read", "zoneinfo/_common.py", "load_data"),  # a time zone, once
    ("io.BufferedReader.read", "miniclaw_sessions/secret.py", "_secret_from"),  # a key, once
    ("io.BufferedReader.read", "miniclaw_sessions/config/loading.py", "_from_file"),  # the settings, at a SIGHUP
    ("io.BufferedReader.read", "service/gateway/tokens.py", "read_tokens"),  # the tokens, when they have changed
    ("threading.Lock.acquire", "coverage/collector.py", "lock_data"),  # the measurement itself
    ("threading.Lock.acquire_lock", "coverage/collector.py", "lock_data"),
    ("os.unlink", "service/gateway/listeners.py", "unlink"),  # a socket's name
    ("socket.socket.sendto", "service/gateway/notify.py", "send"),  # one datagram to systemd
    ("io.BufferedReader.read", "prometheus_client/process_collector.py", "collect"),  # the process's own numbers
    ("os.listdir", "prometheus_client/process_collector.py", "collect"),
)
"""Blocking calls that take microseconds: the call, and where it is allowed."""


def is_ours() -> bool:
    """Whether the coroutine that is running now is one of the package, and not a test's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            return _is_watched(frame.f_code.co_filename)
        frame = frame.f_back
    return False


@cache
def _is_watched(name: str) -> bool:
    """Whether the coroutines of a file are watched."""
    file = Path(name)
    return file.is_relative_to(PACKAGE) and not any(file.is_relative_to(folder) for folder in ALONE)


def _or_not_ours(may_block: Callable[..., bool]) -> Callable[..., bool]:
    def predicate(*arguments: Any, **named: Any) -> bool:
        return may_block(*arguments, **named) or not is_ours()

    return predicate


@contextmanager
def watching_the_event_loop() -> Iterator[None]:
    """Raise BlockingError where a coroutine of ours blocks the event loop."""
    watch = BlockBuster()
    for name, function in watch.functions.items():
        function.can_block_predicate = _or_not_ours(function.can_block_predicate)
        if name not in LOOKS:
            function.activate()
    for name, file, allowed in SHORT:
        watch.functions[name].can_block_in(file, allowed)
    try:
        yield
    finally:
        watch.deactivate()
