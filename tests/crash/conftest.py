"""The crash tests: what they share, and a loud word about each tier that could not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.crash.filesystem import LoopFilesystem, MountSpace, reason_not_to_mount
from tests.crash.injection import reason_not_to_trace

TIER_MOUNTS = "TIER C (power cuts and full disks)"
TIER_TRACING = "TIER B (injected faults)"
_TIERS = (TIER_MOUNTS, TIER_TRACING)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each tier and reason, with the number of tests that did not run."""
    skipped: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
        if reason.startswith(_TIERS):
            skipped[reason] += 1
    for reason, tests in sorted(skipped.items()):
        terminalreporter.write_line(f"SKIPPED {reason} ({tests} tests)", yellow=True, bold=True)


@pytest.fixture(scope="session")
def _reason_not_to_trace() -> str | None:
    return reason_not_to_trace()


@pytest.fixture
def tracing(_reason_not_to_trace: str | None) -> None:
    """For tests that let strace inject faults."""
    if _reason_not_to_trace is not None:
        pytest.skip(f"{TIER_TRACING}: {_reason_not_to_trace}")


@pytest.fixture(scope="session")
def _space() -> Iterator[MountSpace | str]:
    reason = reason_not_to_mount()
    if reason is not None:
        yield reason
        return
    with MountSpace() as space:
        yield space


@pytest.fixture
def space(_space: MountSpace | str) -> MountSpace:
    """A place for file systems of the test's own."""
    if isinstance(_space, str):
        pytest.skip(f"{TIER_MOUNTS}: {_space}")
    return _space


@pytest.fixture
def filesystem(space: MountSpace, request: pytest.FixtureRequest) -> Iterator[LoopFilesystem]:
    """A file system whose power can be cut, of the kind that the test is parametrized with."""
    reason = reason_not_to_mount(request.param)
    if reason is not None:
        pytest.skip(f"{TIER_MOUNTS}: {reason}")
    with LoopFilesystem(space, request.param) as filesystem:
        yield filesystem
