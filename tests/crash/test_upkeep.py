"""Moving, sealing, copying, putting back, emptying, archiving, mending and indexing, ended at each of their calls.

The process is killed instead of a system call that changes something, or the disk is full from that call on; and then
the power is cut: what had not been synced is gone. Whatever was there is there, or the work says that it is to be done
again, and then it is.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from tests.crash.acknowledgements import read_acknowledgements
from tests.crash.evidence import Evidence
from tests.crash.filesystem import LoopFilesystem
from tests.crash.injection import FAULTS, KILL, OPENS, Case, Duration, count_injected, injecting, points_of, traced
from tests.crash.launcher import Launcher
from tests.crash.trials import end, has_line, wait_until
from tests.crash.upkeep import WORKS
from tests.sampled import part

pytestmark = [pytest.mark.root, pytest.mark.timeout(1800)]

CHANGING = [call for call, faults in FAULTS.items() if KILL in faults and call != OPENS]
"""The calls without which a kill leaves the same: whoever only opens or reads changes nothing."""

PLAYS = [(work, store) for work in WORKS for store in ("sqlite:", "jsonl:") if (work, store) != ("index", "jsonl:")]


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher("tests.crash.upkeep") as launcher:
        yield launcher


class Outcome(NamedTuple):
    """Whether the fault struck, and what is wrong with what it left."""

    is_struck: bool
    problems: list[str]
    trace: Path


class Play:
    """One work, done again and again from the same beginning, and ended each time at another call."""

    def __init__(self, launcher: Launcher, filesystem: LoopFilesystem, scratch: Path, work: str, store: str) -> None:
        self._launcher = launcher
        self._filesystem = filesystem
        self._root = filesystem.path / "root"
        self._scratch = scratch
        self._beginning = scratch / "beginning"
        self._work = work
        self._store = store
        self._number = 0
        self._evidence = Evidence(scratch / "evidence")
        self._beginning.mkdir(mode=0o700)
        anyio.run(WORKS[work].prepare, self._beginning, store)

    def cases(self, fault: str) -> list[Case]:
        """The fault at every call that changes something, of the thread that makes most of its kind."""
        undisturbed = self.perform(None)
        assert undisturbed.problems == [], "\n".join(undisturbed.problems)
        points = points_of(undisturbed.trace, self._root)
        lasting = Duration.ONCE if fault == KILL else Duration.UNTIL_THE_CUT
        calls = [call for call in CHANGING if fault in FAULTS[call]]
        return [Case(call, fault, number, lasting) for call in calls for number in range(1, points[call] + 1)]

    def perform(self, case: Case | None) -> Outcome:
        """Do it until it is ended, cut the power, and look."""
        self._number += 1
        shutil.rmtree(self._root, ignore_errors=True)
        shutil.copytree(self._beginning, self._root, symlinks=True)
        self._filesystem.sync()
        name, go = f"{self._number:05d}", self._scratch / "go"
        told, log, trace = (self._scratch / f"{name}.{suffix}" for suffix in ("jsonl", "log", "trace"))
        go.unlink(missing_ok=True)
        os.mkfifo(go, 0o600)
        orders = {"root": str(self._root), "acknowledgements": str(told), "go": str(go)}
        writer = self._launcher.start({**orders, "work": self._work, "store": self._store}, log=log)
        wait_until(lambda: writer.has_ended or has_line(told, "ready"), writer)
        watched = ["-e", f"trace={','.join(f'?{call}' for call in CHANGING)}"]
        with traced(writer.pid, trace, *(watched if case is None else injecting(case, self._root))):
            fd = os.open(go, os.O_WRONLY | os.O_NONBLOCK)
            os.write(fd, b"!")
            os.close(fd)
            wait_until(lambda: writer.has_ended or has_line(told, "acted"), writer)
            end(writer, self._filesystem)
        lines = [line["kind"] for line in read_acknowledgements(told)]
        self._evidence.secure(self._root, self._scratch / "found")
        problems = self._problems(copy.copy(lines))
        if problems:
            shown = f"{self._work} on {self._store} with {case}"
            problems = [f"{shown}: {problem}" for problem in problems]
            kept = self._evidence.keep(shown, self._scratch / "found", (told, log, trace), problems)
            problems.append(f"kept in {kept}")
        is_struck = "acted" not in lines if case is None or case.fault == KILL else count_injected(trace) > 0
        assert case is not None or not is_struck, log.read_text()
        return Outcome(is_struck, problems, trace)

    def _problems(self, told: list[str]) -> list[str]:
        try:
            return anyio.run(partial(WORKS[self._work].problems, self._root, self._store, told))
        except Exception as error:  # noqa: BLE001 - what cannot even be opened again is what is looked for
            return [f"{type(error).__name__}: {error}"]


@pytest.mark.usefixtures("tracing")
@pytest.mark.parametrize("fault", [KILL, "ENOSPC"])
@pytest.mark.parametrize(("work", "store"), PLAYS)
@pytest.mark.parametrize("filesystem", ["ext4"], indirect=True)
def test_whatever_call_it_is_ended_at_nothing_is_lost_and_it_can_be_done_again(  # noqa: PLR0917 - fixtures
    filesystem: LoopFilesystem, launcher: Launcher, tmp_path: Path, work: str, store: str, fault: str
) -> None:
    play = Play(launcher, filesystem, tmp_path, work, store)
    cases = play.cases(fault)
    outcomes = [play.perform(case) for case in part(cases, least=6)]
    problems = [problem for outcome in outcomes for problem in outcome.problems]
    assert problems == [], "\n".join(problems[:12])
    assert sum(outcome.is_struck for outcome in outcomes) > len(outcomes) // 2  # threads share their calls by chance
