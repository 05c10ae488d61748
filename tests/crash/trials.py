"""One trial: let a writer write, end it at a moment of chance, look at what is left. Tests and long runs use these."""

from __future__ import annotations

import copy
import dataclasses
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import anyio

from tests.crash.acknowledgements import count_acknowledgements, read_acknowledgements
from tests.crash.bare_writer import SAFE, survived
from tests.crash.filesystem import LoopFilesystem, stop
from tests.crash.injection import Point, count_injected, injecting, points_of, traced, watching
from tests.crash.launcher import Launcher, Writer
from tests.crash.verifier import Ledger, verify
from tests.crash.writer import UNSAVED_STATUS

MOMENT_LIMIT_S = 30.0
BARE_SAVES = 40
AFTERWARDS_S = {"creating": 0.03, "starting": 0.06, "talking": 0.01, "closing": 0.02, "closed": 0.0}
"""How long a writer may go on, at most, after the moment for its end has come."""


def cut_power(filesystem: LoopFilesystem, writer: Writer) -> int:
    """Cut the power under a writer, and boot again; its exit status."""
    stop(writer.pid)
    filesystem.shut_down()
    status = writer.kill()
    filesystem.remount()
    return status


def wait_until_acknowledged(writer: Writer, acknowledgements: Path, number: int) -> None:
    """Return when so many lines are there, or when the writer has ended."""
    wait_until(lambda: writer.has_ended or count_acknowledgements(acknowledgements) >= number, writer)


def cut_bare_writer(filesystem: LoopFilesystem, launcher: Launcher, *, how: str, chance: random.Random) -> list[int]:
    """One cut of a bare writer; the numbers that it saved and lost."""
    scratch = filesystem.path.parent
    trial = f"{how}-{chance.getrandbits(40):010x}"
    directory, acknowledgements = filesystem.path / trial, scratch / f"{trial}.jsonl"
    directory.mkdir()
    (directory / "current").touch()
    filesystem.sync()
    orders = {"directory": str(directory), "acknowledgements": str(acknowledgements), "how": how, "saves": BARE_SAVES}
    writer = launcher.start(orders, log=scratch / f"{trial}.log")
    # A sync of the next save would make up for the one that was left out, so these are cut when nothing follows.
    wait_until_acknowledged(writer, acknowledgements, chance.randint(1, BARE_SAVES) if how in SAFE else BARE_SAVES + 1)
    cut_power(filesystem, writer)
    saved = [line["number"] for line in read_acknowledgements(acknowledgements) if line["kind"] == "saved"]
    found = survived(directory, how)
    if how.startswith("append"):
        return [number for number in saved if number not in found]
    return [] if found and found[0] >= saved[-1] else [saved[-1]]


# --- sessions --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Tally:
    """What many trials came to."""

    trials: int = 0
    acknowledged: int = 0
    entries: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0


class Crashes:
    """Crash after crash on one workspace, which lives on from each to the next.

    Args:
        launcher: starts `tests.crash.writer`.
        workspace: the directory that the writers open.
        scratch: where acknowledgements and logs go; another file system than the workspace's, if that is to be cut.
        filesystem: the file system whose power is cut; None: the writers are killed.
        store: the store's URL.
        seed: of everything that is left to chance.
        faults: what strace does to the writers (`injection`); none: they are left in peace.
    """

    def __init__(
        self,
        launcher: Launcher,
        workspace: Path,
        scratch: Path,
        *,
        filesystem: LoopFilesystem | None = None,
        store: str = "sqlite:",
        seed: str,
        faults: Sequence[str] = (),
    ) -> None:
        self.tally = Tally()
        self._launcher = launcher
        self._workspace = workspace
        self._scratch = scratch
        self._filesystem = filesystem
        self._store = store
        self._seed = seed
        self._faults = faults
        self._chance = random.Random(seed)
        self._ledger = Ledger()
        workspace.mkdir(mode=0o700, exist_ok=True)
        if filesystem is not None:
            filesystem.sync()
            assert self._workspace.resolve() == self._workspace, "the writers would write elsewhere"

    def run(self, moment: str) -> list[str]:
        """One crash at such a moment (see `AFTERWARDS_S`); the problems that it led to."""
        started = time.monotonic()
        name = f"{self.tally.trials:05d}"
        acknowledgements = self._scratch / f"{name}.jsonl"
        log = self._scratch / f"{name}.log"
        orders = {
            "workspace": str(self._workspace),
            "acknowledgements": str(acknowledgements),
            "store": self._store,
            "flush_interval_s": 0.05,
            "seed": f"{self._seed} {name}",
            "steps": self._chance.randint(5, 15) if moment in ("closing", "closed") else None,
        }
        writer = self._launcher.start(orders, log=log)
        with traced(writer.pid, log.with_suffix(".trace"), *self._faults) if self._faults else nullcontext():
            self._wait_for(moment, writer, acknowledgements)
            status = writer.kill() if self._filesystem is None else cut_power(self._filesystem, writer)
        learned = self._ledger.learn(read_acknowledgements(acknowledgements))
        verdict = anyio.run(partial(verify, self._workspace, self._ledger, store=self._store))
        problems = list(verdict.problems)
        if status not in (0, -signal.SIGKILL):
            problems.append(f"the writer ended with status {status}")
        self.tally.trials += 1
        self.tally.acknowledged += learned
        self.tally.entries = verdict.entries
        self.tally.seconds += time.monotonic() - started
        found = [f"{moment} {name} (seed {self._seed!r}): {problem}" for problem in problems]
        self.tally.problems += found
        if found:
            found.append(log.read_text()[-4000:])
        return found

    def _wait_for(self, moment: str, writer: Writer, acknowledgements: Path) -> None:
        """Wait until the writer is somewhere in this phase of its life, and then a little, by chance."""
        if moment == "talking":
            wait_until_acknowledged(writer, acknowledgements, self._chance.randint(2, 250))
        elif moment == "closing":
            wait_until(lambda: writer.has_ended or has_line(acknowledgements, "closing"), writer)
        elif moment == "closed":
            wait_until(lambda: writer.has_ended, writer)
        time.sleep(self._chance.uniform(0.0, AFTERWARDS_S[moment]))


def mixed_moments(seed: str, number: int) -> list[str]:
    """So many moments of chance: most while talking, some while starting, some while closing."""
    return random.Random(seed).choices(["talking", "starting", "closing"], [6, 2, 2], k=number)


def has_line(acknowledgements: Path, kind: str) -> bool:
    """Whether the writer has written a line of this kind."""
    return acknowledgements.exists() and b'{"kind": "%s"' % kind.encode() in acknowledgements.read_bytes()


def wait_until(condition: Callable[[], bool], writer: Writer) -> None:
    """Return when something holds that the writer is working on."""
    deadline = time.monotonic() + MOMENT_LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {MOMENT_LIMIT_S} s; the writer's log:\n{writer.log.read_text()}")
        time.sleep(0.001)


# --- one act, one fault ----------------------------------------------------------------------------------------------


class Stage:
    """One act of `tests.crash.actor`, performed again and again from the same beginning, each time with another fault.

    Every performance ends with a power cut, so that what a fault kept from being synced is really gone.

    Args:
        launcher: starts `tests.crash.actor`.
        filesystem: where it is performed.
        scratch: a directory on another file system.
        act: which act.
        store: the store's URL.
    """

    def __init__(self, launcher: Launcher, filesystem: LoopFilesystem, scratch: Path, *, act: str, store: str) -> None:
        self._launcher = launcher
        self._filesystem = filesystem
        self._scratch = scratch
        self._act = act
        self._store = store
        self._number = 0
        self._go = scratch / "go"
        self._beginning = scratch / "beginning"
        self._ledger = Ledger()
        self._beginning.mkdir(mode=0o700)
        if act != "create":
            self._perform_undisturbed("prepare")
            assert anyio.run(partial(verify, self._beginning, self._ledger, store=store)).problems == []
        if act == "open":  # something must be left to recover
            self._perform_undisturbed("commit")

    def record(self) -> list[Point]:
        """Perform without a fault; every point at which there could be one."""
        problems, trace, _ = self._perform(watching())
        assert problems == [], "\n".join(problems)
        return points_of(trace, self._filesystem.path)

    def perform(self, point: Point, fault: str) -> tuple[bool, list[str]]:
        """Perform with a fault at one point; whether it struck, and the problems that it led to."""
        directory = self._filesystem.path / "workspace" / "sessions"
        problems, trace, status = self._perform(injecting(point, fault, directory=directory))
        struck = bool(count_injected(trace)) if fault != "SIGKILL" else "acted" not in status
        return struck, [
            f"{self._act} on {self._store} with {fault} at {point.call} {point.number}: {p}" for p in problems
        ]

    def _perform(self, faults: Sequence[str]) -> tuple[list[str], Path, str]:
        self._number += 1
        workspace = self._filesystem.path / "workspace"
        shutil.rmtree(workspace, ignore_errors=True)
        shutil.copytree(self._beginning, workspace)
        self._filesystem.sync()
        acknowledgements, log = self._paths(f"{self._number:05d}")
        writer = self._start(workspace, acknowledgements, log, self._act)
        trace = log.with_suffix(".trace")
        with traced(writer.pid, trace, *faults):
            self._let_go(writer)
            wait_until(lambda: writer.has_ended or has_line(acknowledgements, "acted"), writer)
            status = cut_power(self._filesystem, writer)
        ledger = copy.deepcopy(self._ledger)
        lines = read_acknowledgements(acknowledgements)
        ledger.learn(lines)
        problems = list(anyio.run(partial(verify, workspace, ledger, store=self._store)).problems)
        if status not in (-signal.SIGKILL, UNSAVED_STATUS if self._act == "close" else -signal.SIGKILL):
            problems.append(f"the writer ended with status {status}")
        if problems:
            problems.append(log.read_text()[-4000:])
        return problems, trace, " ".join(line["kind"] for line in lines)

    def _perform_undisturbed(self, act: str) -> None:
        """Change the beginning itself."""
        acknowledgements, log = self._paths(act)
        writer = self._start(self._beginning, acknowledgements, log, act)
        self._let_go(writer)
        wait_until(lambda: has_line(acknowledgements, "acted"), writer)
        writer.kill()
        self._ledger.learn(read_acknowledgements(acknowledgements))

    def _paths(self, name: str) -> tuple[Path, Path]:
        return self._scratch / f"{name}.jsonl", self._scratch / f"{name}.log"

    def _start(self, workspace: Path, acknowledgements: Path, log: Path, act: str) -> Writer:
        """Start the actor, and return when it waits to be let go."""
        self._go.unlink(missing_ok=True)
        os.mkfifo(self._go, 0o600)
        orders = {
            "workspace": str(workspace),
            "acknowledgements": str(acknowledgements),
            "go": str(self._go),
            "store": self._store,
            "act": act,
        }
        writer = self._launcher.start(orders, log=log)
        wait_until(lambda: writer.has_ended or has_line(acknowledgements, "ready"), writer)
        return writer

    def _let_go(self, writer: Writer) -> None:
        assert not writer.has_ended, writer.log.read_text()
        fd = os.open(self._go, os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, b"!")
        os.close(fd)
