"""One trial: let a writer write, end it at a moment of chance, look at what is left. Tests and long runs use these."""

from __future__ import annotations

import copy
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.files.transfer.backup import restore, verify_backup
from tests.crash.acknowledgements import count_acknowledgements, read_acknowledgements
from tests.crash.bare_writer import SAFE, survived
from tests.crash.evidence import Evidence
from tests.crash.filesystem import LoopFilesystem, stop
from tests.crash.injection import traced
from tests.crash.launcher import Launcher, Writer
from tests.crash.verifier import Ledger, verify

MOMENT_LIMIT_S = 60.0
MORE_TRIALS = 50
"""At most this many trials are added where those that were planned have proved too little."""

BARE_SAVES = 40
AFTERWARDS_S = {
    "creating": 0.03,
    "starting": 0.06,
    "opening": 0.03,
    "talking": 0.01,
    "backing up": 0.2,
    "closing": 0.02,
    "closed": 0.0,
}
"""How long a writer may go on, at most, after the moment for its end has come."""

RECOVERING = "recovering"
"""Crash while talking, and then again and again while recovering from that; nobody looks in between."""


BACKING_UP = "backing up"
"""Crash while talking and backing up, or just after: a backup that was told to be whole has all that came before it."""


def cut_power(filesystem: LoopFilesystem, writer: Writer) -> int:
    """Cut the power under a writer, and boot again; its exit status."""
    stop(writer.pid)
    filesystem.shut_down()
    status = writer.kill()
    filesystem.remount()
    return status


def end(writer: Writer, filesystem: LoopFilesystem | None) -> int:
    """Cut the power under a writer or, without a file system, kill it; its exit status."""
    return writer.kill() if filesystem is None else cut_power(filesystem, writer)


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


class Tally(msgspec.Struct, kw_only=True):
    """What many trials came to.

    Attributes:
        trials: how often something was ended and looked at afterwards.
        crashes: how many power cuts or kills there were; more than one in some trials.
        in_recovery: how many of them hit a writer before it had recovered.
        backups: how many backups, made meanwhile, were restored and held all that was promised before them.
        promotions: how often a standby took over from a server that was killed.
        kills, pauses: how many gateways were killed, or stood still for a while.
        acknowledged: how many messages and other changes were promised to be safe.
        skipped: how many tests could not run here.
        problems: a sentence for everything that was lost, doubled or unsound.
    """

    trials: int = 0
    crashes: int = 0
    in_recovery: int = 0
    backups: int = 0
    promotions: int = 0
    kills: int = 0
    pauses: int = 0
    acknowledged: int = 0
    skipped: int = 0
    problems: list[str] = msgspec.field(default_factory=list)


class Crashes:
    """Crash after crash on one workspace, which lives on from each to the next.

    Args:
        launcher: starts `tests.crash.writer`.
        workspace: the directory that the writers open.
        scratch: where acknowledgements and logs go; another file system than the workspace's, if that is to be cut.
        evidence: keeps what failed.
        filesystem: the file system whose power is cut; None: the writers are killed.
        store: the store's URL.
        seed: of everything that is left to chance.
        faults: what strace does to the writers (`injection`); none: they are left in peace.
        settings: the writers' further settings.
    """

    def __init__(
        self,
        launcher: Launcher,
        workspace: Path,
        scratch: Path,
        evidence: Evidence,
        *,
        filesystem: LoopFilesystem | None = None,
        store: str = "sqlite:",
        seed: str,
        faults: Sequence[str] = (),
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.tally = Tally()
        self._launcher = launcher
        self._workspace = workspace
        self._scratch = scratch
        self._evidence = evidence
        self._filesystem = filesystem
        self._store = store
        self._seed = seed
        self._faults = faults
        self._settings = settings or {}
        self._chance = random.Random(seed)
        self._ledger = Ledger()
        workspace.mkdir(mode=0o700, exist_ok=True)
        if filesystem is not None:
            filesystem.sync()
            assert self._workspace.resolve() == self._workspace, "the writers would write elsewhere"

    def run(self, moment: str) -> list[str]:
        """One trial with a crash at such a moment (`AFTERWARDS_S`, `RECOVERING`); the problems that it led to."""
        moments = ["talking", *["opening"] * self._chance.randint(1, 3)] if moment == RECOVERING else [moment]
        files: list[Path] = []
        problems = [problem for one in moments for problem in self._crash(one, files)]
        found = self._scratch / "found"
        self._evidence.secure(self._workspace, found)
        problems += anyio.run(partial(verify, self._workspace, self._ledger, store=self._store))
        name = f"{moment} {self.tally.trials:05d} (seed {self._seed!r})"
        problems = [f"{name}: {problem}" for problem in problems]
        if problems:
            problems.append(f"{name}: kept in {self._evidence.keep(name, found, files, problems)}")
        self.tally.trials += 1
        self.tally.problems += problems
        return problems

    def run_all(self, moments: Iterable[str], *, acknowledging: int) -> list[str]:
        """Trials until one has problems: at these moments, and more while talking until so much was acknowledged.

        How much a writer has acknowledged when it is killed depends on the machine, and less would prove little.
        """
        for moment in moments:
            if problems := self.run(moment):
                return problems
        for _ in range(MORE_TRIALS):
            if self.tally.acknowledged >= acknowledging:
                break
            if problems := self.run("talking"):
                return problems
        done, trials = self.tally.acknowledged, self.tally.trials
        enough = done >= acknowledging
        return [] if enough else [f"{trials} trials acknowledged {done} of {acknowledging} messages: too few"]

    def _crash(self, moment: str, files: list[Path]) -> list[str]:
        """Let a writer write and end it; what it left in `files` tells how that came to be."""
        name = f"{self.tally.crashes:05d}"
        acknowledgements, log, trace = (self._scratch / f"{name}.{suffix}" for suffix in ("jsonl", "log", "trace"))
        backup = self._scratch / f"{name}.backup"
        files += [acknowledgements, log, trace]
        orders = {
            "workspace": str(self._workspace),
            "acknowledgements": str(acknowledgements),
            "store": self._store,
            "settings": {"flush_interval_s": 0.05, **self._settings},
            "seed": f"{self._seed} {name}",
            "traced": bool(self._faults),
            "steps": self._chance.randint(5, 15) if moment in ("closing", "closed") else None,
            **({"backup": str(backup)} if moment == BACKING_UP else {}),
        }
        writer = self._launcher.start(orders, log=log)
        with traced(writer.pid, trace, *self._faults) if self._faults else nullcontext():
            self._wait_for(moment, writer, acknowledgements)
            status = end(writer, self._filesystem)
        lines = read_acknowledgements(acknowledgements)
        self.tally.crashes += 1
        self.tally.in_recovery += [line["kind"] for line in lines] == ["opening"]
        problems = [] if status in (0, -signal.SIGKILL) else [f"the writer ended with status {status}"]
        if moment == BACKING_UP:
            problems += self._restored(backup, lines)
        self.tally.acknowledged += self._ledger.learn(lines)
        return problems

    def _restored(self, backup: Path, lines: Sequence[Mapping[str, Any]]) -> list[str]:
        """What is wrong with a backup that was made meanwhile, and with the workspace that comes of it."""
        kinds = [line["kind"] for line in lines]
        try:
            report = anyio.run(verify_backup, backup)
        except ConfigError as error:
            return [f"the backup is not whole: {error}"] if "backed_up" in kinds else []
        ledger = copy.deepcopy(self._ledger)
        before = kinds.index("backing_up")
        ledger.learn([*lines[:before], *(line for line in lines[before:] if line["kind"] == "leaving")])
        workspace = backup.with_suffix(".restored")
        anyio.run(restore, backup, workspace, SessionSettings(store=self._store))
        problems = [*report.problems, *anyio.run(partial(verify, workspace, ledger, store=self._store))]
        self.tally.backups += 1
        for path in (backup, workspace):
            shutil.rmtree(path)
        return [f"the backup: {problem}" for problem in problems]

    def _wait_for(self, moment: str, writer: Writer, acknowledgements: Path) -> None:
        """Wait until the writer is somewhere in this phase of its life, and then a little, by chance."""
        if moment == "talking":
            wait_until_acknowledged(writer, acknowledgements, self._chance.randint(2, 250))
        elif moment == BACKING_UP:
            line = self._chance.choice(["backing_up", "backed_up"])
            wait_until(lambda: writer.has_ended or has_line(acknowledgements, line), writer)
        elif moment in ("opening", "closing"):
            wait_until(lambda: writer.has_ended or has_line(acknowledgements, moment), writer)
        elif moment == "closed":
            wait_until(lambda: writer.has_ended, writer)
        time.sleep(self._chance.uniform(0.0, AFTERWARDS_S[moment]))


def mixed_moments(seed: str, number: int) -> list[str]:
    """So many moments of chance: most while talking, some while starting, recovering, closing and backing up."""
    moments = ["talking", "starting", RECOVERING, "closing", BACKING_UP]
    return random.Random(seed).choices(moments, [5, 1, 2, 2, 1], k=number)


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
