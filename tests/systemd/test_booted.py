"""The shipped units, run by a real systemd that is booted for these tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import stat
import threading
from pathlib import Path
from typing import Self

import pytest

from tests.systemd.booted import UNITS, BootedSystem
from tests.systemd.service import (
    CONVERSATION,
    HELD_SOCKET,
    SERVICE,
    SOCKET,
    STATE,
    UnixConnection,
    ask,
    ask_on,
    connection_to,
    eventually,
    private_files,
    said,
    say,
    set_up,
)

pytestmark = [pytest.mark.root, pytest.mark.timeout(60)]


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

    system.systemctl("stop", SERVICE)

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
