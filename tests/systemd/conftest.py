"""Skips that nobody can overlook: what could not be tested on this machine is printed at the end of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NoReturn

import pytest

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
