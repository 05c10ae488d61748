"""The booted system that all tests of the units share, and skips that nobody can overlook.

What could not be tested on this machine is printed at the end of the run.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

from tests.systemd.booted import PROJECT, BootedSystem, reason_not_to_boot
from tests.systemd.service import SERVICE, SOCKET, STATE, TIER

_SKIPPED = pytest.StashKey[Counter[tuple[str, str]]]()


@pytest.fixture
def skip_loudly(request: pytest.FixtureRequest) -> Callable[[str, str], NoReturn]:
    """Skips the test; its tier and the reason are counted and printed at the end of the run."""

    def skip(tier: str, reason: str) -> NoReturn:
        request.config.stash.setdefault(_SKIPPED, Counter())[tier, reason] += 1
        pytest.skip(f"{tier}: {reason}")

    return skip


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for (tier, reason), tests in config.stash.get(_SKIPPED, Counter()).items():
        terminalreporter.write_line(f"SKIPPED {tier}: {reason} ({tests} tests)", yellow=True, bold=True)


@pytest.fixture(scope="session")
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
def tracing(skip_loudly: Callable[[str, str], NoReturn]) -> None:
    """For tests that let strace hold up system calls."""
    if shutil.which("strace") is None:
        skip_loudly(TIER, "strace is not installed")
