"""Starts writers quickly: one process imports everything once and then forks a writer for each order.

A fresh interpreter takes most of a second to import the package, a fork a few milliseconds, and a power cut does not
see the difference. `Launcher` is the side of the test; run as a module this file is the process that forks. It ends,
and kills what it started, when the test run ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

PROJECT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 60.0
EXIT_LIMIT_S = 60.0
IMPORTED_LATE = (
    *("alembic.command", "alembic.config"),
    *("miniclaw_sessions.core.stores.sqlite.store", "miniclaw_sessions.core.stores.jsonl.store"),
    "miniclaw_sessions.core.stores.postgresql.store",
)
"""What the package imports when it is first needed, which would be in every fork again."""

Main = Callable[[Mapping[str, Any]], int]
"""What a writer's module has: `main` takes its orders and returns an exit status."""


class Launcher:
    """Starts writers of one module; a context manager.

    Args:
        module: its `main` takes the orders of one writer.
        python: the interpreter that runs it, in its own environment.
        project: the tree that has the module, and all that it imports of ours.
    """

    def __init__(self, module: str, *, python: str | Path = sys.executable, project: Path = PROJECT) -> None:
        self._module = module
        self._python = python
        self._project = project
        self._received = b""
        self._exits: dict[int, int] = {}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [self._python, "-m", __name__, self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self._project,
            env={**os.environ, "PYTHONPATH": str(self._project)},
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=EXIT_LIMIT_S)
        self._process.stdout.close()

    def start(self, orders: Mapping[str, Any], *, log: Path) -> Writer:
        """Start a writer with these orders; what it prints goes to the file `log`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"orders": orders, "log": str(log)}).encode() + b"\n")
        self._process.stdin.flush()
        while "pid" not in (reply := self._receive(START_LIMIT_S)):
            self._exits[reply["ended"]] = reply["status"]
        return Writer(self, reply["pid"], log)

    def wait(self, pid: int) -> int:
        """The exit status of a writer, when it has ended; a negative number is the signal that ended it."""
        while pid not in self._exits:
            reply = self._receive(EXIT_LIMIT_S)
            self._exits[reply["ended"]] = reply["status"]
        return self._exits.pop(pid)

    def _receive(self, limit_s: float) -> Any:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._received:
            if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"the launcher of {self._module} was silent for {limit_s} s")
            if not (piece := os.read(fd, 65536)):
                raise RuntimeError(f"the launcher of {self._module} ended; its error is above")
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)


class Writer:
    """A process that writes until it is done or killed."""

    def __init__(self, launcher: Launcher, pid: int, log: Path) -> None:
        self.pid = pid
        self.log = log
        self._launcher = launcher

    def __repr__(self) -> str:
        return f"<Writer {self.pid}>"

    @property
    def has_ended(self) -> bool:
        """Whether it ended by itself; its status is still to be had from `wait`."""
        return not Path(f"/proc/{self.pid}").exists()

    def kill(self) -> int:
        """End it with SIGKILL; its exit status, because it may have been faster."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        """Its exit status, when it has ended."""
        return self._launcher.wait(self.pid)


# --- the process that forks ------------------------------------------------------------------------------------------


def serve(main: Main) -> None:
    """Fork a writer for every line of standard input; tell about each start and each end on standard output."""
    wakes, wakened = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wakened)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    gc.freeze()
    received = b""
    running: set[int] = set()
    while True:
        ready, _, _ = select.select([0, wakes], [], [])
        if wakes in ready:
            os.read(wakes, 4096)
            _reap(running)
        if 0 in ready:
            if not (piece := os.read(0, 65536)):
                break
            received += piece
            while b"\n" in received:
                line, _, received = received.partition(b"\n")
                pid = _fork(main, json.loads(line))
                running.add(pid)
                _tell({"pid": pid})
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _reap(running: set[int]) -> None:
    for pid in tuple(running):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            running.discard(pid)
            _tell({"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def _fork(main: Main, order: Mapping[str, Any]) -> int:
    pid = os.fork()
    return pid or _become_writer(main, order)


def _become_writer(main: Main, order: Mapping[str, Any]) -> NoReturn:
    status = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        status = main(order["orders"])
    except BaseException:  # noqa: BLE001 - a fork must never go on as its parent
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _tell(reply: Mapping[str, int]) -> None:
    os.write(1, json.dumps(reply).encode() + b"\n")


if __name__ == "__main__":
    for late in IMPORTED_LATE:
        importlib.import_module(late)
    serve(importlib.import_module(sys.argv[1]).main)
