"""The shipped units, run by a real systemd that is booted for these tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self

import pytest

from tests.systemd.booted import PROJECT, UNITS, BootedSystem, reason_not_to_boot

pytestmark = [pytest.mark.root, pytest.mark.timeout(60)]

TIER = "TIER D (booted systemd)"
SERVICE = "miniclaw-sessions.service"
SOCKET = "miniclaw-sessions.socket"
STATE = Path("/var/lib/miniclaw-sessions")
OWN_SOCKET = Path("/run/miniclaw-sessions/miniclaw.sock")
HELD_SOCKET = Path("/run/miniclaw-sessions.sock")
CONVERSATION = "/v1/sessions/telegram_42/messages"


# --- fixtures --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def _booted() -> Iterator[BootedSystem | str]:
    reason = reason_not_to_boot()
    if reason is not None:
        yield reason
        return
    with BootedSystem() as system:
        yield system


@pytest.fixture
def system(skip_loudly: Callable[[str, str], NoReturn], _booted: BootedSystem | str) -> Iterator[BootedSystem]:
    """A booted systemd with the shipped units installed, stopped and without state."""
    if isinstance(_booted, str):
        skip_loudly(TIER, _booted)
    since = _booted.run("date", "+@%s.%N").strip()
    _booted.install_units()
    _booted.write("/etc/miniclaw-sessions/miniclaw.toml", (PROJECT / "config/miniclaw.toml").read_text())
    yield _booted
    # Shown when the test failed.
    print(_booted.run("journalctl", f"--since={since}", "--output=short-precise", "--no-hostname"))  # noqa: T201
    _booted.systemctl("stop", SOCKET, SERVICE, status=None)
    _booted.systemctl("reset-failed")
    _booted.run("rm", "-rf", str(STATE), f"/var/lib/private/{STATE.name}", "/etc/credstore/miniclaw-sessions.token")
    for unit in (SERVICE, SOCKET):
        _booted.remove_drop_ins(unit)


@pytest.fixture
def _tracing(skip_loudly: Callable[[str, str], NoReturn]) -> None:
    if shutil.which("strace") is None:
        skip_loudly(TIER, "strace is not installed")


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


def eventually(condition: Callable[[], bool], what: str, limit_s: float = 20.0) -> None:
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
def wedged_on_rename(pid: int) -> Iterator[None]:
    """Holds each thread of a process as soon as it renames a file, which only writing snapshots does.

    Like a thread that hangs in a dead disk it cannot even be killed; at the end of the block the disk is back.
    """
    inject = "inject=rename,renameat,renameat2:delay_enter=60000000"
    command = ["strace", "-f", "-qq", "-e", "trace=rename,renameat,renameat2", "-e", inject, "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as tracer:
        try:
            status = Path(f"/proc/{pid}/status")
            eventually(lambda: "TracerPid:\t0\n" not in status.read_text(), "strace attaches")
            yield
        finally:
            tracer.kill()


def in_state(system: BootedSystem, state: str) -> Callable[[], bool]:
    return lambda: system.show(SERVICE, "SubState")["SubState"] == state


# --- starting and stopping -------------------------------------------------------------------------------------------


def test_start_returns_when_the_daemon_answers_and_says_what_it_does(system: BootedSystem) -> None:
    system.systemctl("start", SERVICE)

    assert ask(system, "GET", "/health").body["status"] == "ok"
    shown = system.show(SERVICE, "StatusText", "SubState", "NRestarts")
    assert shown["SubState"] == "running"
    assert shown["StatusText"]


def test_files_are_private_and_stay_with_the_service_across_restarts(system: BootedSystem) -> None:
    system.systemctl("start", SERVICE)
    say(system, "first")
    system.systemctl("restart", SERVICE)
    say(system, "second")
    system.systemctl("stop", SERVICE)

    files = private_files(system)
    owner = files["."].st_uid
    assert owner >= 61184, "the owner is an ordinary account, not a dynamic one"
    assert {"sessions/telegram_42.json", "sessions.db"} <= files.keys()
    for name, status in files.items():
        wanted = 0o700 if stat.S_ISDIR(status.st_mode) else 0o600
        assert (name, status.st_uid, stat.S_IMODE(status.st_mode)) == (name, owner, wanted)


def test_stop_saves_everything_within_the_limit(system: BootedSystem) -> None:
    system.systemctl("start", SERVICE)
    for number in range(20):
        say(system, f"message {number}")

    started = time.monotonic()
    system.systemctl("stop", SERVICE)

    assert time.monotonic() - started < 10
    assert system.show(SERVICE, "Result", "ExecMainStatus") == {"Result": "success", "ExecMainStatus": "0"}
    snapshot = json.loads((system.path(STATE) / "sessions/telegram_42.json").read_bytes())
    assert len(snapshot["messages"]) == 20


def test_a_reload_keeps_the_process_and_its_conversations(system: BootedSystem) -> None:
    system.systemctl("start", SERVICE)
    say(system, "before")
    pid = system.main_pid(SERVICE)

    system.systemctl("reload", SERVICE)

    assert said(system) == ["before"]
    assert system.main_pid(SERVICE) == pid


def test_a_wrong_configuration_is_reported_once_and_not_retried(system: BootedSystem) -> None:
    system.write("/etc/miniclaw-sessions/miniclaw.toml", "[sessions]\nwindow = 0\n")

    system.systemctl("start", SERVICE, status=1)

    shown = system.show(SERVICE, "ExecMainStatus", "ActiveState", "NRestarts")
    assert shown == {"ExecMainStatus": "78", "ActiveState": "failed", "NRestarts": "0"}


# --- failing ---------------------------------------------------------------------------------------------------------


def test_after_a_kill_the_daemon_comes_back_and_the_conversation_goes_on(system: BootedSystem) -> None:
    set_up(system, RestartSec="100ms")
    system.systemctl("start", SERVICE)
    say(system, "before the kill")

    os.kill(system.main_pid(SERVICE), signal.SIGKILL)
    eventually(restarted(system), "the restart")

    say(system, "after the kill")
    assert said(system) == ["before the kill", "after the kill"]


@pytest.mark.usefixtures("_tracing")
def test_a_daemon_that_answers_but_cannot_save_is_aborted_and_restarted(system: BootedSystem) -> None:
    set_up(system, RestartSec="100ms", WatchdogSec="2", MINICLAW_SESSIONS_FLUSH_INTERVAL_S="0.2")
    system.systemctl("start", SERVICE)

    with wedged_on_rename(system.main_pid(SERVICE)):
        say(system, "acknowledged, but its snapshot hangs")
        assert ask(system, "GET", "/v1/sessions").status == 200
        eventually(in_state(system, "stop-watchdog"), "the watchdog's SIGABRT")
    eventually(restarted(system), "the watchdog's restart")

    assert "Failed with result 'watchdog'" in system.run("journalctl", f"UNIT={SERVICE}", "--output=cat")
    assert said(system) == ["acknowledged, but its snapshot hangs"]


@pytest.mark.usefixtures("_tracing")
def test_a_final_flush_that_hangs_is_killed_at_the_limit_and_loses_nothing(system: BootedSystem) -> None:
    set_up(system, TimeoutStopSec="2", MINICLAW_SESSIONS_SHUTDOWN_TIMEOUT_S="60")
    system.systemctl("start", SERVICE)
    say(system, "acknowledged")

    with wedged_on_rename(system.main_pid(SERVICE)):
        system.systemctl("stop", "--no-block", SERVICE)
        eventually(in_state(system, "stop-sigkill"), "SIGKILL at the limit", limit_s=10)
    eventually(in_state(system, "failed"), "the end")

    assert system.show(SERVICE, "Result")["Result"] == "timeout"
    system.systemctl("start", SERVICE)
    assert said(system) == ["acknowledged"]


# --- the socket unit -------------------------------------------------------------------------------------------------


def test_the_first_client_starts_the_daemon_through_a_socket_that_is_roots_alone(system: BootedSystem) -> None:
    system.systemctl("start", SOCKET)
    mode = (system.root / str(HELD_SOCKET).lstrip("/")).stat()
    assert (mode.st_uid, stat.S_IMODE(mode.st_mode)) == (0, 0o600)
    assert system.main_pid(SERVICE) == 0

    say(system, "hello", by=HELD_SOCKET)

    assert system.main_pid(SERVICE) != 0


class Load:
    """Clients that append messages through the socket unit until they are told to stop.

    Every other one keeps its connection for as long as the daemon lets it.
    """

    def __init__(self, system: BootedSystem, clients: int) -> None:
        self.acknowledged: list[str] = []
        self.failures: list[str] = []
        self._system = system
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._client, args=(number,)) for number in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _client(self, number: int) -> None:
        keep = number % 2 == 0
        count = 0
        with contextlib.closing(connection_to(self._system, HELD_SOCKET)) as connection:
            while not self._stop.is_set():
                count += 1
                self._append(connection, number, f"client {number}, message {count}", keep=keep)

    def _append(self, connection: UnixConnection, number: int, text: str, *, keep: bool) -> None:
        path = f"/v1/sessions/load_{number}/messages"
        try:
            reply = ask_on(connection, "POST", path, {"role": "user", "content": text}, keep=keep)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.failures.append(f"{text} (connection kept: {keep}): {error!r}")
            connection.close()
        else:
            (self.acknowledged if reply.status == 201 else self.failures).append(text)


def test_restarts_under_load_fail_no_request_and_lose_no_message(system: BootedSystem) -> None:
    system.systemctl("start", SOCKET)
    say(system, "the daemon is up", by=HELD_SOCKET)

    with Load(system, clients=4) as load:
        for _ in range(3):
            served = len(load.acknowledged)
            eventually(lambda served=served: len(load.acknowledged) > served + 50, "load")  # type: ignore[misc]
            system.systemctl("restart", SERVICE)

    assert load.failures == []
    stored = []
    for number in range(4):
        transcript = system.run(
            "curl", "-s", "--unix-socket", str(HELD_SOCKET), f"http://localhost/v1/sessions/load_{number}/transcript"
        )
        stored += [json.loads(line)["message"]["content"] for line in transcript.splitlines()]
    assert sorted(stored) == sorted(load.acknowledged)


def test_the_activated_variant_serves_without_any_network_of_its_own(system: BootedSystem) -> None:
    drop_in = (UNITS / f"{SERVICE}.d/socket-activated.conf").read_text()
    system.drop_in(SERVICE, "socket-activated", drop_in)
    system.drop_in(SOCKET, "tcp", "[Socket]\nListenStream=127.0.0.1:8080\n")
    system.write("/etc/credstore/miniclaw-sessions.token", "a-long-test-token", 0o600)

    system.systemctl("start", SERVICE)

    assert ask(system, "GET", "/health", by=HELD_SOCKET).status == 200
    assert tcp_status(system, "a-long-test-token") == "200"
    interfaces = Path(f"/proc/{system.main_pid(SERVICE)}/net/dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]


# --- secrets and the journal -----------------------------------------------------------------------------------------


def tcp_status(system: BootedSystem, token: str) -> str:
    """The status that a request by TCP inside gets."""
    url, header = "http://127.0.0.1:8080/v1/sessions", f"Authorization: Bearer {token}"
    return system.run("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", header, url)


def test_the_token_comes_as_a_credential_and_is_nowhere_else(system: BootedSystem) -> None:
    system.write("/etc/credstore/miniclaw-sessions.token", "a-long-test-token\n", 0o600)
    set_up(system, MINICLAW_LISTEN_TCP="127.0.0.1:8080")
    system.systemctl("start", SERVICE)

    assert tcp_status(system, "a-long-test-token") == "200"
    assert tcp_status(system, "another") == "401"
    process = Path(f"/proc/{system.main_pid(SERVICE)}")
    assert b"a-long-test-token" not in (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
    assert "a-long-test-token" not in json.dumps(system.journal(SERVICE))


def test_every_journal_line_is_one_json_object_and_holds_no_message_text(system: BootedSystem) -> None:
    system.systemctl("start", SERVICE)
    since = system.run("date", "+@%s.%N").strip()
    say(system, "secret\n<0>forged\x1b[31m")
    system.systemctl("restart", SERVICE)
    assert ask(system, "POST", CONVERSATION, {"content": "<0>forged\n"}).status >= 400
    system.systemctl("stop", SERVICE)

    records = system.journal(SERVICE, f"--since={since}")

    lines = [record["MESSAGE"] for record in records]
    assert lines
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert not [line for line in lines if "secret" in line or "forged" in line]
    assert {record["PRIORITY"] for record in records} == {"6"}
