"""The unit that encrypts what is there, as systemd reads it, beside the daemon's: the same state, account and key."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.systemd.booted import UNITS

DAEMON, REKEY = "miniclaw-sessions.service", "miniclaw-sessions-rekey.service"


def settings(unit: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", (UNITS / unit).read_text(), re.MULTILINE)


def test_systemd_has_nothing_to_say_about_it(tmp_path: Path, skip_loudly: Callable[[str, str], NoReturn]) -> None:
    if shutil.which("systemd-analyze") is None:
        skip_loudly("TIER D (unit files)", "systemd-analyze is not installed")
    text = (UNITS / REKEY).read_text()
    (tmp_path / REKEY).write_text(text.replace("/opt/miniclaw-sessions/bin/miniclaw-sessions", "/bin/true"))
    command = ["systemd-analyze", "verify", str(tmp_path / REKEY)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize("name", ["DynamicUser", "StateDirectory", "StateDirectoryMode", "UMask"])
def test_it_works_on_the_daemons_own_state(name: str) -> None:
    assert settings(REKEY, name) == settings(DAEMON, name)


def test_it_has_the_key_that_the_daemon_gets_and_the_account_of_its_name() -> None:
    assert [one for one in settings(DAEMON, "LoadCredential") if "encryption" in one] == settings(
        REKEY, "LoadCredential"
    )
    assert settings(REKEY, "User") == [DAEMON.removesuffix(".service")]
    assert any("MINICLAW_WORKSPACE" in one for one in settings(REKEY, "Environment"))
    assert set(settings(REKEY, "Environment")) <= set(settings(DAEMON, "Environment"))
    assert DAEMON in settings(REKEY, "Conflicts")[0].split()
