"""What the tests of the booted service share: how to ask it, and how to look at it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.systemd.booted import BootedSystem

TIER = "TIER D (booted systemd)"
SERVICE = "miniclaw-sessions.service"
SOCKET = "miniclaw-sessions.socket"
STATE = Path("/var/lib/miniclaw-sessions")
OWN_SOCKET = Path("/run/miniclaw-sessions/miniclaw.sock")
HELD_SOCKET = Path("/run/miniclaw-sessions.sock")
CONVERSATION = "/v1/sessions/telegram_42/messages"


class Reply(NamedTuple):
    status: int
    body: Any


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=15)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(system: BootedSystem, method: str, path: str, body: Any = None, *, by: Path = OWN_SOCKET) -> Reply:
    """One request on a connection of its own, as root of the booted system."""
    with contextlib.closing(connection_to(system, by)) as connection:
        return ask_on(connection, method, path, body, keep=False)


def connection_to(system: BootedSystem, path: Path) -> UnixConnection:
    return UnixConnection(system.root / str(path).lstrip("/"))


def ask_on(connection: UnixConnection, method: str, path: str, body: Any = None, *, keep: bool) -> Reply:
    """One request; if the reply announces the end of the connection, the next one opens another."""
    headers = {} if keep else {"Connection": "close"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    return Reply(response.status, json.loads(response.read()))


def say(system: BootedSystem, text: str, *, by: Path = OWN_SOCKET) -> None:
    """Appends a user's message to the test's conversation and waits for its acknowledgement."""
    reply = ask(system, "POST", CONVERSATION, {"role": "user", "content": text}, by=by)
    assert reply.status == 201, reply


def said(system: BootedSystem, *, by: Path = OWN_SOCKET) -> list[str]:
    """The texts of the test's conversation."""
    reply = ask(system, "GET", CONVERSATION, by=by)
    assert reply.status == 200, reply
    return [message["content"] for message in reply.body["messages"]]


def eventually(condition: Callable[[], bool], what: str, limit_s: float = 120.0) -> None:
    """Waits for something that another process does."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {limit_s} s"
        time.sleep(0.05)


def set_up(system: BootedSystem, **settings: str) -> None:
    """Adds settings to the service's environment or, with a lower-case name, directives to its unit."""
    lines = [f"Environment={k}={v}" if k.isupper() else f"{k}={v}" for k, v in settings.items()]
    system.drop_in(SERVICE, "test", "\n".join(["[Service]", *lines, ""]))


def restarted(system: BootedSystem, times: int = 1) -> Callable[[], bool]:
    def check() -> bool:
        shown = system.show(SERVICE, "NRestarts", "ActiveState")
        return shown == {"NRestarts": str(times), "ActiveState": "active"}

    return check


def private_files(system: BootedSystem) -> dict[str, os.stat_result]:
    """Everything in the state directory, itself included."""
    top = system.path(STATE)
    return {str(path.relative_to(top)): path.lstat() for path in (top, *top.rglob("*"))}


@contextlib.contextmanager
def held_up(pid: int, *calls: str, seconds: float, only: Path | None = None) -> Iterator[None]:
    """Hold each thread of a process for so long at each of these system calls, if need be of one path only.

    Like a thread that waits for a slow disk it cannot even be killed; at the end of the block the disk is fast again.
    """
    traced = f"trace={','.join(calls)}"
    inject = f"inject={','.join(calls)}:delay_enter={seconds * 1e6:.0f}"
    paths = ["-P", str(only)] if only else []
    command = ["strace", "-f", "-qq", "-e", traced, "-e", inject, *paths, "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as tracer:
        try:
            status = Path(f"/proc/{pid}/status")
            eventually(lambda: "TracerPid:\t0\n" not in status.read_text(), "strace attaches")
            yield
        finally:
            tracer.kill()


def wedged_on_rename(pid: int) -> contextlib.AbstractContextManager[None]:
    """Hold each thread of a process as soon as it renames a file, which only writing snapshots does."""
    return held_up(pid, "rename", "renameat", "renameat2", seconds=60)


def in_state(system: BootedSystem, state: str) -> Callable[[], bool]:
    return lambda: system.show(SERVICE, "SubState")["SubState"] == state
