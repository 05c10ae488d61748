"""Every system call that makes something safe fails once, or is the last one: nothing acknowledged is lost.

Each case ends with a power cut, so that what a failed call did not do counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.filesystem import LoopFilesystem
from tests.crash.injection import FAULTS, SYNCS, Point
from tests.crash.launcher import Launcher
from tests.crash.trials import Stage

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

ACTS = [
    ("create", "sqlite:"),
    ("open", "sqlite:"),
    ("commit", "sqlite:"),
    ("delete", "sqlite:"),
    ("close", "sqlite:"),
    ("create", "jsonl:"),
    ("open", "jsonl:"),
    ("commit", "jsonl:"),
    ("delete", "jsonl:"),
    ("flush", "none:"),
    ("flush_many", "none:"),
    ("delete", "none:"),
]


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher("tests.crash.actor") as launcher:
        yield launcher


def chosen(points: list[Point]) -> list[tuple[Point, str]]:
    """Every sync, and the first and the last of all other calls; a full disk only once for each call."""
    last = {point.call: point.number for point in points}
    return [
        (point, fault)
        for point in points
        if point.call in SYNCS or point.number in (1, last[point.call])
        for fault in FAULTS
        if fault != "ENOSPC" or point.number == 1
    ]


@pytest.mark.usefixtures("tracing")
@pytest.mark.parametrize(("act", "store"), ACTS)
@pytest.mark.parametrize("filesystem", ["ext4"], indirect=True)
def test_no_single_fault_takes_what_was_acknowledged(
    filesystem: LoopFilesystem, launcher: Launcher, tmp_path: Path, act: str, store: str
) -> None:
    stage = Stage(launcher, filesystem, tmp_path, act=act, store=store)
    cases = chosen(stage.record())
    assert any(point.call in SYNCS for point, _ in cases) or act == "open"
    missed, problems = [], []
    for point, fault in cases:
        struck, found = stage.perform(point, fault)
        problems += found
        missed += [] if struck else [(point, fault)]
    assert problems == [], "\n".join(problems[:12])
    assert missed == [], "these faults were not injected, so nothing is known about them"
