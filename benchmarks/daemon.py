"""The real daemon as a process of its own: started, watched from outside, stopped and killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple, Self

import anyio
from anyio import to_thread

START_LIMIT_S = 120.0
STOP_LIMIT_S = 120.0
MEGABYTE = 1_000_000


class DaemonEnded(Exception):
    """The daemon ended before it was ready.

    Attributes:
        status: its exit status.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"the daemon ended with status {status} before it was ready")
        self.status = status


class Usage(NamedTuple):
    """What a process takes of the machine.

    Attributes:
        resident: megabytes in memory, with the pages of libraries and files that others use too.
        proportional: the same, with its share of the pages that others use too.
        own: megabytes that are in no file: heap and stacks.
        descriptors: open files and sockets.
        threads: threads.
    """

    resident: float
    proportional: float
    own: float
    descriptors: int
    threads: int


class Daemon:
    """One life of the daemon after the other on the same workspace; killed at the end of the block.

    Args:
        workspace: its directory.
        scratch: an empty directory on another file system than the workspace's, with a short path: socket and log.
        variables: settings, as environment variables.
    """

    def __init__(self, workspace: Path, scratch: Path, **variables: str) -> None:
        self.workspace = workspace
        self.socket = scratch / "d.sock"
        self.log = scratch / "daemon.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._notices.bind(str(scratch / "n.sock"))
        self.environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "NOTIFY_SOCKET": str(scratch / "n.sock"),
            "MINICLAW_WORKSPACE": str(workspace),
            "MINICLAW_LISTEN_SOCKET": str(self.socket),
            **variables,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self._notices.close()

    @property
    def pid(self) -> int:
        """The process's id.

        Raises:
            RuntimeError: it was never started.
        """
        if self.process is None:
            raise RuntimeError("the daemon was not started yet")
        return self.process.pid

    async def start(self) -> float:
        """Start it, and return how many seconds it took from its execution to READY=1.

        Raises:
            DaemonEnded: it ended instead.
            TimeoutError: neither happened for `START_LIMIT_S`.
        """
        self._take_notices()
        started = time.perf_counter()
        self.process = self._execute()
        with anyio.fail_after(START_LIMIT_S):
            while not self._take_notices():
                if (status := self.process.poll()) is not None:
                    raise DaemonEnded(status)
                with anyio.move_on_after(0.05):
                    await anyio.wait_readable(self._notices)
        return time.perf_counter() - started

    def _execute(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "miniclaw_sessions", "serve"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _take_notices(self) -> bool:
        """Receive what was notified; whether it is ready."""
        is_ready = False
        with contextlib.suppress(BlockingIOError):
            while notice := self._notices.recv(4096):
                is_ready = is_ready or b"READY=1" in notice
        return is_ready

    async def end(self, how: signal.Signals) -> int:
        """Send it a signal that ends it, and return its exit status; a negative one is the signal that ended it."""
        if self.process is None:
            raise RuntimeError("the daemon was not started yet")
        self.process.send_signal(how)
        with anyio.fail_after(STOP_LIMIT_S):
            return await to_thread.run_sync(self.process.wait, abandon_on_cancel=True)

    def usage(self) -> Usage:
        """What it takes of the machine now.

        Raises:
            OSError: it has just ended.
        """
        process = Path(f"/proc/{self.pid}")
        memory = _numbers(process / "smaps_rollup")
        threads = _numbers(process / "status")["Threads"]
        resident, proportional, own = (memory[name] * 1024 / MEGABYTE for name in ("Rss", "Pss", "Anonymous"))
        return Usage(resident, proportional, own, len(list((process / "fd").iterdir())), threads)

    def peak_memory(self) -> float:
        """The most megabytes that it had in memory at any time.

        Raises:
            OSError: it has just ended.
        """
        return _numbers(Path(f"/proc/{self.pid}/status"))["VmHWM"] * 1024 / MEGABYTE


def _numbers(file: Path) -> dict[str, int]:
    """The lines of a file in /proc that have the form `name: number`, or `name: number kB`."""
    numbers = {}
    for line in file.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if (number := value.removesuffix("kB").strip()).isdigit():
            numbers[name] = int(number)
    return numbers
