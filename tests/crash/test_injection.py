"""Every system call that makes something safe fails, or is the last one: nothing acknowledged is lost.

Each case ends with a power cut, so that what a failed call did not do counts. `python -m tests.crash --faults` has no
choice of cases: every fault, at every call, for every duration.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.evidence import Evidence
from tests.crash.filesystem import LoopFilesystem
from tests.crash.injection import KILL, OPENS, READS, SYNCS, WRITES, Case, Duration, cases_of
from tests.crash.launcher import Launcher
from tests.crash.short_writes import SHORT
from tests.crash.stage import Stage
from tests.sampled import part

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

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
NAMING = ("renameat", "linkat", "unlinkat")


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher("tests.crash.actor") as launcher:
        yield launcher


def chosen(points: Counter[str]) -> list[Case]:
    """Every sync, the first and the last of the calls that write and name, the first of all others.

    A read that fails must not be taken for damage; of SQLite's that shows at the second.
    """
    cases = []
    for call, last in points.items():
        numbers = set(range(1, last + 1)) if call in SYNCS else {1, last} if call in (*WRITES, *NAMING) else {1}
        if call == "pread64":
            numbers.add(min(2, last))
        faults = ("EIO",) if call in (OPENS, *READS) else ("EIO", KILL)
        cases += [Case(call, fault, number) for number in numbers for fault in faults]
        if call in WRITES:
            cases.append(Case(call, SHORT, 1, Duration.UNTIL_THE_CUT))
            cases.append(Case(call, "ENOSPC", 1, Duration.UNTIL_NOTICED))
        if call in SYNCS:
            cases.append(Case(call, "EDQUOT", 1, Duration.UNTIL_THE_CUT))
        if call == OPENS:
            cases.append(Case(call, "EMFILE", 1, Duration.UNTIL_NOTICED))
    return cases


@pytest.mark.usefixtures("tracing")
@pytest.mark.parametrize(("act", "store"), ACTS)
@pytest.mark.parametrize("filesystem", ["ext4"], indirect=True)
def test_no_fault_takes_what_was_acknowledged(
    filesystem: LoopFilesystem, launcher: Launcher, tmp_path: Path, act: str, store: str
) -> None:
    stage = Stage(launcher, filesystem, tmp_path, act=act, store=store, evidence=Evidence(tmp_path / "evidence"))
    cases = chosen(stage.points())
    syncs = [case for case in cases if case.call in SYNCS]
    cases = [*part(syncs, least=6), *part([case for case in cases if case not in syncs], least=6)]
    outcomes = [stage.perform(case) for case in cases]
    problems = [problem for outcome in outcomes for problem in outcome.problems]
    assert problems == [], "\n".join(problems[:12])
    missed = [str(outcome.case) for outcome in outcomes if not outcome.struck]
    assert missed == [], "these faults were not injected, so nothing is known about them"
    assert any(outcome.case.call in SYNCS for outcome in outcomes)


@pytest.mark.usefixtures("tracing")
@pytest.mark.parametrize("fault", ["EIO", SHORT, KILL])
def test_a_series_goes_on_until_a_performance_is_not_disturbed(launcher: Launcher, tmp_path: Path, fault: str) -> None:
    for name in ("home", "scratch"):
        (tmp_path / name).mkdir()
    stage = Stage(
        launcher,
        tmp_path / "home",
        tmp_path / "scratch",
        act="flush",
        store="none:",
        evidence=Evidence(tmp_path / "evidence"),
    )
    outcomes = list(stage.series(Case("write", fault)))
    assert [outcome.struck for outcome in outcomes] == [True, True, True, False]  # it writes three snapshots
    assert list(itertools.chain.from_iterable(outcome.problems for outcome in outcomes)) == []


def test_the_long_form_leaves_no_duration_out() -> None:
    assert Counter(case.fault for case in cases_of("write")) == {"EIO": 3, "ENOSPC": 3, "EDQUOT": 3, SHORT: 2, KILL: 1}
    assert {case.fault for case in cases_of(OPENS)} == {"EIO", "ENOSPC", "EDQUOT", "EMFILE", KILL}
