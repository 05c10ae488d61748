"""Long runs of the crash tests: `python -m tests.crash --cuts 500 --kills 500 --faults`, as root, from the repository.

Exit status 0: nothing was lost. 1: something was; the seed in each line repeats it. 2: nothing could be run.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.crash.filesystem import KINDS, LoopFilesystem, MountSpace, reason_not_to_mount
from tests.crash.injection import FAULTS, reason_not_to_trace
from tests.crash.launcher import Launcher
from tests.crash.trials import Crashes, Stage, Tally, mixed_moments

STORES = ("sqlite:", "jsonl:", "none:")
ACTS = {
    "sqlite:": ("create", "open", "commit", "delete", "close"),
    "jsonl:": ("create", "open", "commit", "delete", "close"),
    "none:": ("flush", "flush_many", "delete", "close"),
}
LIFETIME = 50
"""So many crashes a workspace lives through before a new one is begun, whose creation is cut too."""


class Runs:
    """The chosen runs, one after the other, with a bar for each."""

    def __init__(self, space: MountSpace, scratch: Path, progress: Progress, seed: str) -> None:
        self.tallies: dict[str, Tally] = {}
        self._space = space
        self._scratch = scratch
        self._progress = progress
        self._seed = seed

    def crash(self, number: int, *, kind: str | None, store: str) -> None:
        """Cut the power of a file system of this kind so often, or kill (None)."""
        name = f"{'kill -9' if kind is None else f'power cut, {kind}'}, {store}"
        tally = self.tallies[name] = Tally()
        bar = self._progress.add_task(name, total=number)
        with Launcher("tests.crash.writer") as launcher:
            for life in range(0, number, LIFETIME):
                with ExitStack() as stack:
                    filesystem = stack.enter_context(LoopFilesystem(self._space, kind)) if kind else None
                    directory = filesystem.path if filesystem else self._space.new_directory("killed")
                    crashes = Crashes(
                        launcher,
                        directory / "workspace",
                        self._new_scratch(),
                        filesystem=filesystem,
                        store=store,
                        seed=f"{self._seed} {name} {life}",
                    )
                    crashes.tally = tally
                    moments = mixed_moments(f"{self._seed} {name} {life}", min(LIFETIME, number - life))
                    for moment in ["creating", *moments[1:]]:
                        self._progress.advance(bar)
                        if crashes.run(moment):
                            break  # what follows on a damaged directory says nothing new

    def inject(self, kind: str, store: str, act: str) -> None:
        """Every fault at every point of one act."""
        name = f"faults, {kind}, {act}, {store}"
        tally = self.tallies[name] = Tally()
        with Launcher("tests.crash.actor") as launcher, LoopFilesystem(self._space, kind) as filesystem:
            stage = Stage(launcher, filesystem, self._new_scratch(), act=act, store=store)
            cases = [(point, fault) for point in stage.record() for fault in FAULTS]
            for point, fault in self._progress.track(cases, description=name):
                started = time.monotonic()
                struck, problems = stage.perform(point, fault)
                tally.trials += struck
                tally.problems += problems[:-1]  # the last one is the log
                tally.seconds += time.monotonic() - started

    def _new_scratch(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._scratch))


def table_of(tallies: dict[str, Tally]) -> Table:
    """One line for each run."""
    table = Table("run")
    for title in ("trials", "acknowledged", "problems", "seconds"):
        table.add_column(title, justify="right")
    for name, tally in tallies.items():
        style = "bold red" if tally.problems else ""
        acknowledged = str(tally.acknowledged) if tally.acknowledged else ""
        row = (str(tally.trials), acknowledged, str(len(tally.problems)), f"{tally.seconds:.1f}")
        table.add_row(name, *row, style=style)
    return table


def run_all(arguments: argparse.Namespace, runs: Runs) -> None:
    """Everything that was chosen."""
    for store in STORES:
        if arguments.kills:
            runs.crash(arguments.kills, kind=None, store=store)
        for kind in arguments.kinds:
            if arguments.cuts:
                runs.crash(arguments.cuts, kind=kind, store=store)
            for act in ACTS[store] if arguments.faults else ():
                runs.inject(kind, store, act)


def main() -> int:
    """Run what the command line asks for and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__, allow_abbrev=False)
    parser.add_argument("--cuts", type=int, default=0, help="power cuts for each kind of file system and each store")
    parser.add_argument("--kills", type=int, default=0, help="kills for each store")
    parser.add_argument("--faults", action="store_true", help="every fault at every system call of every act")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["ext4", "xfs"], help="kinds of file systems")
    parser.add_argument("--seed", default=secrets.token_hex(4), help="repeats an earlier run")
    arguments = parser.parse_args()
    console = Console()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    reason = reason_not_to_mount(*arguments.kinds) or (reason_not_to_trace() if arguments.faults else None)
    if reason is not None:
        console.print(f"nothing can be run: {reason}", style="bold red")
        return 2
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        MountSpace() as space,
        tempfile.TemporaryDirectory() as scratch,
        Progress(*columns, console=console) as progress,
    ):
        runs = Runs(space, Path(scratch), progress, arguments.seed)
        run_all(arguments, runs)
    console.print(table_of(runs.tallies), f"seed {arguments.seed}")
    problems = [problem for tally in runs.tallies.values() for problem in tally.problems]
    for problem in problems[:50]:
        console.print(problem, style="red", markup=False, highlight=False)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
