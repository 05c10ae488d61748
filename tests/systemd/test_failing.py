"""The service when something fails: the process, the disk, the start; run by a real systemd."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.systemd.booted import BootedSystem
from tests.systemd.service import (
    CONVERSATION,
    OWN_SOCKET,
    SERVICE,
    STATE,
    ask,
    ask_on,
    connection_to,
    eventually,
    held_up,
    in_state,
    restarted,
    said,
    say,
    set_up,
    wedged_on_rename,
)

pytestmark = [pytest.mark.root, pytest.mark.timeout(60)]

PRIVATE_STATE = Path("/var/lib/private") / STATE.name
"""Where the state directory really is, and what the daemon is told."""


def test_after_a_kill_the_daemon_comes_back_and_the_conversation_goes_on(system: BootedSystem) -> None:
    set_up(system, RestartSec="100ms")
    system.systemctl("start", SERVICE)
    say(system, "before the kill")

    os.kill(system.main_pid(SERVICE), signal.SIGKILL)
    eventually(restarted(system), "the restart")

    say(system, "after the kill")
    assert said(system) == ["before the kill", "after the kill"]


@pytest.mark.usefixtures("tracing")
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


@pytest.mark.usefixtures("tracing")
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


# --- starting --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tracing")
def test_a_recovery_that_makes_progress_may_take_longer_than_the_limit(system: BootedSystem) -> None:
    system.systemctl("start", SERVICE)
    for number in range(SESSIONS):
        ask(system, "POST", f"/v1/sessions/slow_{number}/messages", {"role": "user", "content": "hello"})
    system.systemctl("stop", SERVICE)
    set_up(system, TimeoutStartSec=str(START_LIMIT_S))

    started = time.monotonic()
    system.systemctl("start", "--no-block", SERVICE)
    eventually(lambda: system.main_pid(SERVICE) != 0, "the process")
    with held_up(system.main_pid(SERVICE), "openat", seconds=SLOW_OPEN_S, only=PRIVATE_STATE / "sessions"):
        eventually(in_state(system, "running"), "the end of the recovery")

    assert time.monotonic() - started > START_LIMIT_S, "it was not slow enough to need more time"
    assert system.show(SERVICE, "NRestarts", "Result") == {"NRestarts": "0", "Result": "success"}
    assert len(ask(system, "GET", "/v1/sessions?limit=500").body["sessions"]) == SESSIONS


SESSIONS = 160
START_LIMIT_S = 20
SLOW_OPEN_S = 0.5
"""For each file; all of them take longer than the limit, also with some threads that read at a time, and a part of them
that counts as progress does not."""


@contextlib.contextmanager
def locked(system: BootedSystem) -> Iterator[None]:
    """Somebody else holds the workspace."""
    with (system.path(STATE) / ".lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_daemon_that_cannot_start_is_tried_up_to_the_limit_and_then_left_alone(system: BootedSystem) -> None:
    system.systemctl("start", SERVICE)
    say(system, "before the trouble")
    system.systemctl("stop", SERVICE)
    system.drop_in(SERVICE, "limit", "[Unit]\nStartLimitBurst=3\n")
    set_up(system, RestartSec="100ms", MINICLAW_SESSIONS_LOCK_WAIT_S="0.1")

    with locked(system):
        system.systemctl("start", SERVICE, status=1)
        eventually(in_state(system, "failed"), "giving up")
        shown = system.show(SERVICE, "ExecMainStatus", "NRestarts")
    assert shown == {"ExecMainStatus": "75", "NRestarts": "3"}

    system.systemctl("reset-failed", SERVICE)
    system.systemctl("start", SERVICE)
    assert said(system) == ["before the trouble"]


def test_a_database_of_a_newer_version_is_left_untouched_and_not_tried_again(
    system: BootedSystem, tmp_path: Path
) -> None:
    system.systemctl("start", SERVICE)
    say(system, "kept")
    system.systemctl("stop", SERVICE)
    database = system.path(STATE) / "sessions.db"
    copy = tmp_path / "sessions.db"  # SQLite would not find its way through /proc
    copy.write_bytes(database.read_bytes())
    with contextlib.closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    before = copy.read_bytes()
    database.write_bytes(before)

    system.systemctl("start", SERVICE, status=1)

    shown = system.show(SERVICE, "ExecMainStatus", "ActiveState", "NRestarts")
    assert shown == {"ExecMainStatus": "71", "ActiveState": "failed", "NRestarts": "0"}
    assert database.read_bytes() == before


# --- without descriptors ---------------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_without_descriptors_it_goes_on_for_those_who_are_connected_and_recovers(system: BootedSystem) -> None:
    set_up(system, MINICLAW_SESSIONS_FLUSH_INTERVAL_S="0.2")
    system.systemctl("start", SERVICE)
    say(system, "before")
    pid = system.main_pid(SERVICE)
    with contextlib.closing(connection_to(system, OWN_SOCKET)) as connection:
        assert ask_on(connection, "GET", "/health", keep=True).status == 200
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        taken = max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()) + 1
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (taken, before[1]))
        used = cpu_seconds(pid)
        strangers = [connection_to(system, OWN_SOCKET) for _ in range(3)]
        for stranger in strangers:
            stranger.connect()  # to the queue of the socket; nobody can accept it
        reply = ask_on(connection, "POST", CONVERSATION, {"role": "user", "content": "meanwhile"}, keep=True)
        assert reply.status == 201
        eventually(lambda: ask_on(connection, "GET", "/health", keep=True).status == 503, "a flush that cannot open")
        assert cpu_seconds(pid) - used < 2.0, "it spins"
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        eventually(lambda: ask_on(connection, "GET", "/health", keep=True).status == 200, "the next flush")
        for stranger in strangers:
            stranger.close()
    assert said(system) == ["before", "meanwhile"]
    assert system.main_pid(SERVICE) == pid
