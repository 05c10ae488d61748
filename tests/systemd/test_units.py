"""The unit files as systemd reads them, without a running systemd."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from miniclaw_sessions.service.gateway.exit_status import ExitStatus
from tests.systemd.booted import UNITS

SERVICE = "miniclaw-sessions.service"
SOCKET = "miniclaw-sessions.socket"
DROP_IN = "miniclaw-sessions.service.d/socket-activated.conf"
PLAIN = "plain"
ACTIVATED = "socket-activated"
INSTANCE = "one of several"
TEMPLATE = "miniclaw-sessions@.service"
THRESHOLDS = {PLAIN: 11, ACTIVATED: 4, INSTANCE: 11}  # tenths: 1.1 and 0.4


@pytest.fixture(autouse=True)
def _needs_systemd_analyze(skip_loudly: Callable[[str, str], NoReturn]) -> None:
    if shutil.which("systemd-analyze") is None:
        skip_loudly("TIER D (unit files)", "systemd-analyze is not installed")


def units_in(directory: Path, variant: str) -> Path:
    """Copies a variant's units to a directory; the program, which is not installed here, is replaced by one that is."""
    directory.mkdir(parents=True, exist_ok=True)
    text = (UNITS / (TEMPLATE if variant == INSTANCE else SERVICE)).read_text().replace("%i", "a")
    (directory / SERVICE).write_text(text.replace("/opt/miniclaw-sessions/bin/miniclaw-sessions", "/bin/true"))
    shutil.copy(UNITS / SOCKET, directory)
    if variant == ACTIVATED:
        (directory / DROP_IN).parent.mkdir()
        shutil.copy(UNITS / DROP_IN, directory / DROP_IN)
    return directory


def verify(directory: Path) -> str:
    """Everything that `systemd-analyze verify` prints, about whatever it dislikes."""
    command = ["systemd-analyze", "verify", str(directory / SERVICE), str(directory / SOCKET)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout + (f"exit status {done.returncode}" if done.returncode else "")


@pytest.mark.parametrize("variant", THRESHOLDS)
def test_systemd_has_nothing_to_say_about_the_units(tmp_path: Path, variant: str) -> None:
    assert verify(units_in(tmp_path, variant)) == ""


def test_the_check_notices_a_directive_that_does_not_exist(tmp_path: Path) -> None:
    directory = units_in(tmp_path, PLAIN)
    text = (directory / SERVICE).read_text()
    (directory / SERVICE).write_text(text.replace("[Service]", "[Service]\nRestartSeconds=1"))

    assert "RestartSeconds" in verify(directory)


@pytest.mark.parametrize("variant", THRESHOLDS)
def test_the_exposure_stays_below_its_threshold(tmp_path: Path, variant: str) -> None:
    unit = units_in(tmp_path, variant) / SERVICE
    limit = f"--threshold={THRESHOLDS[variant]}"

    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", limit, str(unit)], capture_output=True, text=True, check=False
    )

    shown = [line for line in done.stdout.splitlines() if not line.startswith("✓")]
    assert done.returncode == 0, "\n".join(shown) + done.stderr


def test_failures_that_a_restart_cannot_cure_are_not_retried() -> None:
    match = re.search(r"^RestartPreventExitStatus=(.*)$", (UNITS / SERVICE).read_text(), re.MULTILINE)
    assert match is not None

    assert {int(number) for number in match[1].split()} == {ExitStatus.USAGE, ExitStatus.STORE, ExitStatus.CONFIG}
