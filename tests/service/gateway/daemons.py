"""The daemon, followed through its notifications: as a process, or, in a tenth of the time, as a task here."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import anyio
import httpx2
import pytest

from miniclaw_sessions.config import load_settings
from miniclaw_sessions.log.records import configure_logging
from miniclaw_sessions.service.gateway import daemon

PATIENCE_S = 60.0
"""How long a slow machine may take; nothing waits this long when all is well."""

_ENDED = "ENDED"
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Daemon(ABC):
    """A daemon on a directory, with nothing but this environment; ended with the block, whatever it does."""

    def __init__(self, directory: Path, **environ: str) -> None:
        self.workspace = directory / "w"
        self.socket = self.workspace / "miniclaw.sock"
        self._directory = directory
        self._environ = environ

    async def __aenter__(self) -> Self:
        with ExitStack() as stack:
            self._notices = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            notify = Path(tempfile.mkdtemp(dir=self._directory)) / "n"
            self._notices.bind(str(notify))
            self._notices.settimeout(PATIENCE_S)
            environ = {
                "PATH": os.environ["PATH"],
                "HOME": str(self._directory),
                "NOTIFY_SOCKET": str(notify),
                "MINICLAW_WORKSPACE": str(self.workspace),
                **self._environ,
            }
            self._start(environ, stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        with self._stack:
            await self._end()

    @abstractmethod
    def _start(self, environ: dict[str, str], stack: ExitStack) -> None: ...

    @abstractmethod
    async def _end(self) -> None: ...

    @property
    @abstractmethod
    def has_ended(self) -> bool: ...

    @abstractmethod
    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""

    @abstractmethod
    async def exited(self) -> int:
        """Wait for the end, and return the exit status (negative: the signal that killed it)."""

    async def notice(self, wanted: str) -> str:
        """Wait for a notification that contains this text."""

        def wait() -> str:
            while True:
                text = self._notices.recv(4096).decode()
                if wanted in text:
                    return text
                assert text != _ENDED, f"the daemon ended without {wanted}: {self._written()!r}"

        return await anyio.to_thread.run_sync(wait)

    async def stopped(self) -> int:
        """Ask it to stop and wait for the end."""
        self.send(signal.SIGTERM)
        return await self.exited()

    async def logged(self, action: str) -> None:
        """Wait until it has logged this."""
        with anyio.fail_after(PATIENCE_S):
            while not any(record["action"] == action for record in self.records()):
                assert not self.has_ended
                await anyio.sleep(0.01)

    def records(self) -> list[dict[str, Any]]:
        """What it has logged."""
        return [json.loads(line) for line in self._written().splitlines()]

    @abstractmethod
    def _written(self) -> str | bytes:
        """The log as it is now."""

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx2.AsyncClient]:
        """A client on its Unix socket."""
        transport = httpx2.AsyncHTTPTransport(uds=str(self.socket), verify=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://miniclaw", timeout=PATIENCE_S) as client:
            yield client


class Process(Daemon):
    """A process; killed at the end of the block."""

    def __init__(
        self,
        directory: Path,
        *,
        log: str = "",
        inherited: socket.socket | None = None,
        closed: str = "",
        **environ: str,
    ) -> None:
        super().__init__(directory, **environ)
        self._log = log
        self._inherited = inherited
        self._closed = closed

    async def killed(self) -> None:
        """Kill it, and return when it is gone."""
        self.send(signal.SIGKILL)
        await self.exited()

    def _written(self) -> bytes:
        return os.pread(self.log, os.fstat(self.log).st_size, 0)  # its offset is the daemon's too

    def _start(self, environ: dict[str, str], stack: ExitStack) -> None:
        flags = os.O_WRONLY if self._log else os.O_RDWR | os.O_TMPFILE
        self.log = os.open(self._log or self._directory, flags, 0o600)
        stack.callback(os.close, self.log)
        self.process = subprocess.Popen(
            [*self._activation(), sys.executable, "-m", "miniclaw_sessions", "serve"],
            pass_fds=() if self._inherited is None else (self._inherited.fileno(),),
            env=environ,
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        stack.callback(self.process.wait)
        stack.callback(self.process.kill)

    def _activation(self) -> list[str]:
        """What closes streams; or passes a socket as systemd does, as descriptor 3, with the process's own id."""
        if self._closed:
            return ["/bin/sh", "-c", f'exec "$0" "$@" {self._closed}']
        if self._inherited is None:
            return []
        script = f'exec 3<&{self._inherited.fileno()}; LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" "$@"'
        return ["/bin/bash", "-c", script]

    async def _end(self) -> None:
        """Killed with the rest."""

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def exited(self) -> int:
        with anyio.fail_after(PATIENCE_S):
            return await anyio.to_thread.run_sync(self.process.wait, abandon_on_cancel=True)


class Here(Daemon):
    """All of the daemon but its process, as a task of the test's loop; real signals are sent to the test's process."""

    def _start(self, environ: dict[str, str], stack: ExitStack) -> None:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name in [name for name in os.environ if name.startswith("MINICLAW_") or name.endswith("_DIRECTORY")]:
            patch.delenv(name)
        for name, value in environ.items():
            patch.setenv(name, value)
        self.log = io.StringIO()
        configure = partial(configure_logging, stream=self.log)
        patch.setattr(daemon, "configure_logging", configure)
        patch.setattr(daemon, "_settle_memory", lambda: None)  # the process is not the daemon's alone
        for number in _SIGNALS:  # it ignores them when it has saved everything; the tests go on
            stack.callback(signal.signal, number, signal.getsignal(number))
        self._task = asyncio.create_task(self._run(configure))
        self._task.add_done_callback(lambda _: self._tell_the_end(environ["NOTIFY_SOCKET"]))

    async def _run(self, configure: Any) -> int:
        def load() -> Any:
            file = os.environ.get("MINICLAW_CONFIG")
            return load_settings(Path(file) if file else None, os.environ)

        loaded = load()
        configure(loaded.settings.log)
        return int(await daemon._main(loaded, load))

    def _tell_the_end(self, address: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told, suppress(OSError):  # the block has ended too
            told.sendto(_ENDED.encode(), address)

    def _written(self) -> str:
        return self.log.getvalue()

    async def _end(self) -> None:
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    def send(self, number: signal.Signals) -> None:
        assert signal.getsignal(number) is not signal.SIG_DFL, "the daemon does not listen to it; the tests would end"
        os.kill(os.getpid(), number)

    async def exited(self) -> int:
        with anyio.fail_after(PATIENCE_S):
            return await asyncio.shield(self._task)


TOKEN = "0123456789abcdef0123456789abcdef"


def with_token(directory: Path) -> dict[str, Any]:
    """The setting with which a daemon takes `TOKEN`."""
    token = directory / "token"
    token.touch(mode=0o600)
    token.write_text(TOKEN)
    return {"MINICLAW_LISTEN_TOKEN_FILE": str(token)}


@asynccontextmanager
async def on_tcp(directory: Path) -> AsyncIterator[str]:
    """The URL of a daemon, a process of its own, that takes `TOKEN`."""
    async with Process(directory, MINICLAW_LISTEN_TCP="127.0.0.1:0", **with_token(directory)) as daemon:
        ready = await daemon.notice("READY=1")
        yield f"http://127.0.0.1:{ready.rpartition(':')[2].split(',')[0].split()[0]}"
