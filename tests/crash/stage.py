"""One act, one fault: the act is performed again and again from the same beginning, each time with another fault.

SQLite's method: fail the first call, the second, the third, until one performance ends without the fault having struck.
Every performance ends with a power cut, so that what a fault kept from being synced is really gone; where no file
system can be mounted it ends with a kill.
"""

from __future__ import annotations

import copy
import itertools
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from miniclaw_sessions.core.persistence.snapshot_file import DamagedSnapshot, decode_snapshot
from miniclaw_sessions.disk import FILE_MODE
from tests.crash.acknowledgements import read_acknowledgements
from tests.crash.evidence import Evidence
from tests.crash.filesystem import LoopFilesystem
from tests.crash.injection import (
    KILL,
    SYNCS,
    Case,
    Duration,
    count_injected,
    disturbed,
    points_of,
    synced_again,
    traced,
    watching,
)
from tests.crash.launcher import Launcher, Writer
from tests.crash.short_writes import not_written_on
from tests.crash.trials import end, has_line, wait_until
from tests.crash.verifier import Ledger, verify
from tests.crash.writer import UNSAVED_STATUS

Disturbance = Callable[..., AbstractContextManager[None]]
"""What happens to the actor, given its pid and where to put the trace, until the block ends."""

LEFTOVER = f".{'0' * 24}.tmp"


class Performance(NamedTuple):
    """What came of one: the problems, the trace, and the kinds of lines that the actor wrote."""

    problems: list[str]
    trace: Path
    said: list[str]


class Outcome(NamedTuple):
    """Whether a fault struck, and the problems that it led to."""

    case: Case
    struck: bool
    problems: list[str]


class Stage:
    """One act of `tests.crash.actor`.

    Args:
        launcher: starts `tests.crash.actor`.
        home: where it is performed: a file system whose power is cut, or a directory.
        scratch: another directory, on another file system.
        act: which act.
        store: the store's URL.
        evidence: keeps what failed.
    """

    def __init__(
        self,
        launcher: Launcher,
        home: LoopFilesystem | Path,
        scratch: Path,
        *,
        act: str,
        store: str,
        evidence: Evidence,
    ) -> None:
        self._launcher = launcher
        self._filesystem = home if isinstance(home, LoopFilesystem) else None
        self._workspace = (home.path if isinstance(home, LoopFilesystem) else home) / "workspace"
        self._scratch = scratch
        self._act = act
        self._store = store
        self._evidence = evidence
        self._number = 0
        self._go = scratch / "go"
        self._beginning = scratch / "beginning"
        self._ledger = Ledger()
        self._beginning.mkdir(mode=0o700)
        if act != "create":
            self._perform_undisturbed("prepare")
            assert anyio.run(partial(verify, self._beginning, self._ledger, store=store)) == []
        if act in ("open", "wake"):
            self._spoil()

    def points(self) -> Counter[str]:
        """Perform without a fault; the calls at which there could be one, and how often each is made."""
        self._restore_beginning()
        done = self._perform("undisturbed", _watched, Duration.ONCE)
        assert done.problems == [], "\n".join(done.problems)
        return points_of(done.trace, self._workspace)

    def series(self, first: Case) -> Iterator[Outcome]:
        """Perform with a fault at one call after the other, until it does not strike any more."""
        for number in itertools.count(first.number):
            outcome = self.perform(first._replace(number=number))
            yield outcome
            if not outcome.struck:
                return

    def perform(self, case: Case) -> Outcome:
        """Perform with a fault."""
        self._restore_beginning()
        name = f"{self._act} on {self._store} with {case}"
        done = self._perform(name, partial(disturbed, case=case, workspace=self._workspace), case.duration)
        problems = list(done.problems)
        if case.fault == KILL:
            struck = "acted" not in done.said
        else:
            struck = count_injected(done.trace) > 0
            problems += [f"{path}: the rest of a short write was not written" for path in not_written_on(done.trace)]
        if case.call in SYNCS:
            problems += [f"{path}: was synced again after its sync had failed" for path in synced_again(done.trace)]
        return Outcome(case, struck, [f"{name}: {problem}" for problem in problems])

    # --- the beginning -----------------------------------------------------------------------------------------------

    def _perform_undisturbed(self, act: str) -> None:
        """Change the beginning itself; the actor is killed when it has acted."""
        acknowledgements, log = self._paths(act)
        writer = self._start(self._beginning, acknowledgements, log, act)
        self._let_go(writer)
        wait_until(lambda: has_line(acknowledgements, "acted"), writer)
        writer.kill()
        self._ledger.learn(read_acknowledgements(acknowledgements))

    def _spoil(self) -> None:
        """Make a beginning that leaves nothing out of what recovery has to put in order.

        Snapshots that are behind the store, one that is missing and one that is damaged; what a crash left of a flush,
        and of an append. Without a store what is missing or damaged would be lost, so there it is a file of nobody's.
        """
        sessions = self._beginning / "sessions"
        damaged = sessions / "crash_6.json"
        if self._store == "none:":
            damaged = sessions / "crash_damaged.json"
            damaged.write_bytes(b'{"session_id": "crash_damaged", "messages": [{"role":')
        else:
            self._perform_undisturbed("commit")
            (sessions / "crash_7.json").unlink()
            damaged.write_bytes(damaged.read_bytes()[:-40])
        self._ledger.damaged[damaged.name] = damaged.read_bytes()
        (sessions / LEFTOVER).write_bytes(b'{"session_id": "crash_1", "mess')
        for path in (damaged, sessions / LEFTOVER):
            path.chmod(FILE_MODE)
        transcript = self._beginning / "transcripts/crash_2.jsonl"
        if transcript.exists():
            with transcript.open("ab") as file:
                file.write(b'{"type": "message", "id": "torn')

    def _restore_beginning(self) -> None:
        shutil.rmtree(self._workspace, ignore_errors=True)
        shutil.copytree(self._beginning, self._workspace)
        if self._filesystem is not None:
            self._filesystem.sync()

    # --- the performance ---------------------------------------------------------------------------------------------

    def _perform(self, name: str, disturbance: Disturbance, duration: Duration) -> Performance:
        self._number += 1
        acknowledgements, log = self._paths(f"{self._number:05d}")
        trace = log.with_suffix(".trace")
        writer = self._start(self._workspace, acknowledgements, log, self._act)
        problems = []

        def has_noticed() -> bool:
            return duration is not Duration.ONCE and has_line(acknowledgements, "refused")

        def has_acted() -> bool:
            return writer.has_ended or has_line(acknowledgements, "acted")

        with ExitStack() as disturbed_until:
            disturbed_until.enter_context(disturbance(writer.pid, trace=trace))
            self._let_go(writer)
            wait_until(lambda: has_acted() or has_noticed(), writer)
            if has_noticed():
                problems += self._half_written()
            if duration is not Duration.UNTIL_THE_CUT:
                disturbed_until.close()  # the disk is well again
                wait_until(has_acted, writer)
            status = end(writer, self._filesystem)
        lines = read_acknowledgements(acknowledgements)
        problems += self._verdict(lines, status)
        if problems:
            files = (acknowledgements, log, trace)
            problems.append(f"kept in {self._evidence.keep(name, self._found, files, problems)}")
        return Performance(problems, trace, [line["kind"] for line in lines])

    def _verdict(self, lines: list[dict[str, Any]], status: int) -> list[str]:
        """What is wrong with what the cut left."""
        self._evidence.secure(self._workspace, self._found)
        ledger = copy.deepcopy(self._ledger)
        ledger.learn(lines)
        problems = anyio.run(partial(verify, self._workspace, ledger, store=self._store))
        if status not in (-signal.SIGKILL, UNSAVED_STATUS if self._act == "close" else -signal.SIGKILL):
            problems.append(f"the writer ended with status {status}")
        return problems

    def _half_written(self) -> list[str]:
        """Snapshots that are neither as they were nor whole: a write that fails must not touch its target (rule R4)."""
        problems = []
        for path in (self._workspace / "sessions").glob("*.json"):
            before = self._beginning / "sessions" / path.name
            data = path.read_bytes()
            if before.exists() and before.read_bytes() == data:
                continue
            try:
                decode_snapshot(data, stem=path.stem, now=datetime.now(UTC), new_id=str)
            except DamagedSnapshot as error:
                problems.append(f"{path.name} is neither the old nor a new one: {error}")
        return problems

    @property
    def _found(self) -> Path:
        return self._scratch / "found"

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


def _watched(pid: int, *, trace: Path) -> AbstractContextManager[None]:
    return traced(pid, trace, *watching())
