"""Running the command line as people and scripts do: in this process, in a terminal, and with a daemon."""

from __future__ import annotations

import atexit
import codecs
import contextlib
import io
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from miniclaw_sessions.config import load_settings
from miniclaw_sessions.service.cli import main
from miniclaw_sessions.service.gateway import daemon
from miniclaw_sessions.service.gateway.notify import Notifier
from miniclaw_sessions.service.gateway.signals import Signals

NASTY = "red \x1b[31mtext\x1b[0m\x9b and\ra forged\x08 line"
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
START_LIMIT_S = 60.0


@dataclass
class Result:
    """How a command line ended."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line that says why it failed."""
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("error: ")
        return self.err.removeprefix("error: ").rstrip("\n")


class Cli:
    """Runs command lines in this process, on one workspace."""

    def __init__(self, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.workspace = workspace
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str, stdin: str = "") -> Result:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            patch.setenv("MINICLAW_WORKSPACE", str(self.workspace))
            status = main(list(arguments))
            out.flush()
            err.flush()
        texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
        return Result(status, *texts)


_templates: dict[Callable[[Path], None], Path] = {}


def filled_by(fill: Callable[[Path], None], workspace: Path) -> None:
    """Fill a workspace: once for real, and from then on with a copy of that."""
    if fill not in _templates:
        directory = tempfile.mkdtemp(prefix="mc")
        atexit.register(shutil.rmtree, directory)
        _templates[fill] = Path(directory) / "workspace"
        fill(_templates[fill])
    shutil.copytree(_templates[fill], workspace)
    os.truncate(workspace / ".lock", 0)  # it names this process, which may hold another workspace


def session_ids(cli: Cli) -> set[str]:
    """The sessions that `list` shows."""
    return {row["session_id"] for row in cli("list", "--json").document["sessions"]}


class Terminal:
    """A command in a terminal of its own; `patience_s` is how long work may take before it shows a bar."""

    def __init__(self, workspace: Path, *arguments: str, columns: int = 100, patience_s: float | None = None) -> None:
        command = [sys.executable, "-c", _program(patience_s), "--workspace", str(workspace), *arguments]
        environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)}
        self._pid, self._master = pty.fork()
        if self._pid == 0:
            os.execve(sys.executable, command, environ)
        self.seen = ""
        self._characters = codecs.getincrementaldecoder("utf-8")()  # a read may end in the middle of one

    def expect(self, text: str) -> None:
        """Read until this appears after what was expected before."""
        deadline = time.monotonic() + START_LIMIT_S
        while text not in self.seen:
            ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
            data = b""
            with contextlib.suppress(OSError):  # the other side has closed
                data = os.read(self._master, 65536) if ready else b""
            if not data:
                pytest.fail(f"{text!r} did not appear, but {self.seen!r}")
            self.seen += self._characters.decode(data)
        self.seen = self.seen.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        """Wait for the command's end and return its exit status."""
        with contextlib.suppress(OSError):  # the other side has closed
            while data := os.read(self._master, 65536):
                self.seen += self._characters.decode(data)
        os.close(self._master)
        _, status = os.waitpid(self._pid, 0)
        return os.waitstatus_to_exitcode(status)


def _program(patience_s: float | None) -> str:
    hurry = "" if patience_s is None else f"output.PATIENCE_S = {patience_s}; "
    return f"import sys; from miniclaw_sessions.service.cli import main, output; {hurry}sys.exit(main())"


@contextlib.contextmanager
def running_daemon(workspace: Path, *flags: str) -> Iterator[int]:
    """A daemon that is ready; its pid."""
    command = [sys.executable, "-m", "miniclaw_sessions", "serve", "--workspace", str(workspace), *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if '"daemon.ready"' in line:
                break
        else:
            pytest.fail(f"the daemon ended with status {process.wait()}: {said}")
        try:
            yield process.pid
        finally:  # or a test that fails waits for it for ever
            process.terminate()
        assert process.wait(START_LIMIT_S) == 0


class _Ready(Notifier):
    """Told by the daemon, as systemd would be, that it is ready."""

    def __init__(self) -> None:
        super().__init__()
        self.event = threading.Event()

    def send(self, *assignments: str) -> None:
        if "READY=1" in assignments:
            self.event.set()


@contextlib.contextmanager
def serving(workspace: Path, **overrides: object) -> Iterator[None]:
    """The daemon in a thread of this process, ready: all of it but its signals, in a tenth of the time.

    Args:
        workspace: where.
        overrides: settings, with two underscores for the point in their names.
    """
    flags = {name.replace("__", "."): value for name, value in overrides.items()}
    flags.setdefault("log.audit", "off")  # the commands' log is the daemon's here, and they show it
    loaded = load_settings(None, {**os.environ, "MINICLAW_WORKSPACE": str(workspace)}, flags)
    signals, ready = Signals(), _Ready()
    with pytest.MonkeyPatch.context() as patch, start_blocking_portal("asyncio") as portal:
        patch.setattr(daemon, "_settle_memory", lambda: None)  # the process is not the daemon's alone
        patch.setattr(daemon, "configure_logging", lambda _: None)
        life = portal.start_task_soon(daemon._live, loaded, lambda: loaded, signals, ready)
        life.add_done_callback(lambda _: ready.event.set())  # if it ends before it is ready, its error is raised below
        assert ready.event.wait(START_LIMIT_S)
        try:
            yield
        finally:
            portal.call(signals.stop.set)
            assert life.result(START_LIMIT_S) == 0


def shape(document: Any) -> Any:
    """A document with its values replaced by their types, where these may differ between two runs."""
    if isinstance(document, dict):
        return {name: shape(value) for name, value in document.items()}
    if isinstance(document, list):
        return [shape(value) for value in document]
    return type(document).__name__
