"""What the unit files promise of limits, secrets and restarts: directives that only matter on a bad day."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from miniclaw_sessions.config import ListenSettings, SessionSettings
from miniclaw_sessions.core.stores.postgresql.server import CREDENTIAL as PASSWORD
from miniclaw_sessions.encryption import CREDENTIAL
from miniclaw_sessions.service.gateway.exit_status import ExitStatus

UNITS = Path(__file__).parents[2] / "systemd"
SERVICE = UNITS / "miniclaw-sessions.service"
SOCKET = UNITS / "miniclaw-sessions.socket"
TEMPLATE = UNITS / "miniclaw-sessions@.service"
OWN = {"ExecStart", "Description", "Wants", "After", "RuntimeDirectory", "SyslogIdentifier", "StartLimitIntervalSec"}
"""What an instance has for itself."""

BURST = {"StartLimitBurst"}
"""What an instance, which is started without end, does not have."""

STATE = {"StateDirectory", "StateDirectoryMode"}


def directives(unit: Path) -> dict[str, list[str]]:
    """Every directive's values, in the order of the file."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for line in unit.read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found[name].append(value)
    return found


def only(unit: Path, name: str) -> str:
    (value,) = directives(unit)[name]
    return value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("LimitCORE", "0", id="no conversation in a core file"),
        pytest.param("MemorySwapMax", "0", id="none in swap"),
        pytest.param("UMask", "0077", id="files are private, the second layer"),
        pytest.param("SyslogLevelPrefix", "no", id="no forged priority"),
        pytest.param("PrivateUsers", "yes", id="no privilege outside; the socket's mode decides who connects"),
        pytest.param("StateDirectoryMode", "0700", id="the files' directory is private"),
        pytest.param("Type", "notify", id="ready when it says so"),
        pytest.param("NotifyAccess", "main", id="nobody else says so"),
        pytest.param("Restart", "on-failure", id="a crash is repaired"),
    ],
)
def test_the_service_has(name: str, value: str) -> None:
    assert only(SERVICE, name) == value


def test_memory_and_tasks_have_a_backstop() -> None:
    assert only(SERVICE, "MemoryMax").endswith("G")
    assert int(only(SERVICE, "TasksMax")) > 0


def test_the_socket_is_nobody_elses_and_outlives_the_service() -> None:
    assert (only(SOCKET, "SocketMode"), only(SOCKET, "SocketUser")) == ("0600", "root")
    runtime_directory = f"/run/{only(SERVICE, 'RuntimeDirectory')}/"
    assert not any(address.startswith(runtime_directory) for address in directives(SOCKET)["ListenStream"])


def test_stopping_may_take_longer_than_the_daemon_takes() -> None:
    longest_s = ListenSettings().graceful_timeout_s + SessionSettings().shutdown_timeout_s
    assert int(only(SERVICE, "TimeoutStopSec")) > longest_s


def test_restarts_come_to_an_end_and_not_at_once() -> None:
    burst, pause_s = int(only(SERVICE, "StartLimitBurst")), float(only(SERVICE, "RestartSec"))
    assert burst > 5, "systemd's default counts one's own restarts too, and takes the socket unit down"
    assert burst * pause_s < int(only(SERVICE, "StartLimitIntervalSec")), "the limit is never reached"


def test_one_of_several_gateways_is_started_until_its_server_is_there_however_late_that_comes() -> None:
    assert only(TEMPLATE, "StartLimitIntervalSec") == "0", "a limit would leave it dead after a minute"
    assert only(TEMPLATE, "Restart") == "on-failure"
    assert str(int(ExitStatus.FAILURE)) not in only(TEMPLATE, "RestartPreventExitStatus").split()


def test_there_are_descriptors_for_as_many_connections_as_are_let_in() -> None:
    assert int(only(SERVICE, "LimitNOFILE")) > 2 * ListenSettings().max_connections + 1_000


def test_secrets_are_credentials_and_never_in_the_environment() -> None:
    credentials = {value.partition(":")[0] for value in directives(SERVICE)["LoadCredential"]}
    assert credentials == {"token", "model_api_key", "otlp_headers", "telegram_token", CREDENTIAL, PASSWORD}
    variables = [value.partition("=")[0] for value in directives(SERVICE)["Environment"]]
    assert sorted(variables) == ["MINICLAW_WORKSPACE", "PYTHONFAULTHANDLER"]


def test_no_state_is_entrusted_to_systemds_descriptor_store() -> None:
    assert "FileDescriptorStoreMax" not in directives(SERVICE)


def test_one_of_several_instances_is_hardened_like_the_only_one_and_keeps_no_files() -> None:
    alone, one = directives(SERVICE), directives(TEMPLATE)
    alone["Environment"].remove("MINICLAW_WORKSPACE=%S/private/miniclaw-sessions")
    common = {name: values for name, values in alone.items() if name not in OWN | STATE | BURST}
    assert {name: values for name, values in one.items() if name not in OWN} == common
    assert {name: len(one[name]) for name in OWN} == dict.fromkeys(OWN, 1)
    for name in ("ExecStart", "RuntimeDirectory", "SyslogIdentifier"):
        assert "%i" in only(TEMPLATE, name)
