"""Crash the session layer for as long as you like, and look whether it kept every promise.

Tier A: kills, and crash states of a faulty disk; needs nothing. Tier B: a fault at every system call; needs strace.
Tier C: power cuts of real file systems; needs root and loop devices. Tier D: the units under a booted systemd; needs
root. Tier E: three gateways on three PostgreSQL servers, whose power is cut where there is root. Run it from the
repository's directory. Ctrl-C ends it early and prints what was done so far.
"""

from __future__ import annotations

import argparse
import secrets
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tests.crash.filesystem import KINDS, MountSpace, reason_not_to_mount
from tests.crash.injection import reason_not_to_trace
from tests.crash.runs import STORES, AnyPiece, Choice, cores, pieces_of
from tests.crash.short_writes import reason_not_to_shorten
from tests.crash.summary import Summary, markdown_of, table_of, this_machine
from tests.crash.worker import Done, Planned, Told, Tried, Workers
from tests.systemd.booted import reason_not_to_boot

OF_ALL = 100
"""How many cuts and kills `--all` brings, and a tenth as many hundred states, unless their number is given."""

LINE_EVERY_S = 60.0

EXAMPLES = """
examples:
  python -m tests.crash --kills 50                        needs no root
  python -m tests.crash --all                             every tier, some minutes
  python -m tests.crash --cuts 1000 --kills 1000 --faults --jobs 2
                                                          the long form
  python -m tests.crash --cuts 200 --kinds xfs --stores sqlite: --seed 1f2e3d4c
                                                          once more what a seed did
  python -m tests.crash --all --report crashes.md         the table for a README

exit status: 0 nothing was lost; 1 something was, and its evidence is kept; 2 nothing could be run; 130 interrupted
"""


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_argument_group("what to do")
    what.add_argument("--kills", type=int, metavar="N", help="A: kill a live writer N times, for each store")
    what.add_argument("--states", type=int, metavar="N", help="A: N crash states of a faulty disk, for each store")
    what.add_argument("--faults", action="store_true", help="B: every fault at every system call of every act")
    what.add_argument("--cuts", type=int, metavar="N", help="C: cut the power N times, for each kind and each store")
    what.add_argument("--promotions", type=int, metavar="N", help="E: promote a standby N times, and cut as many times")
    what.add_argument("--units", action="store_true", help="D: the tests of the systemd units")
    what.add_argument("--all", action="store_true", help=f"every tier, with {OF_ALL} kills and cuts if not said")
    how = parser.add_argument_group("how")
    how.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="file systems (default: all)")
    how.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES), help="stores (default: all)")
    how.add_argument("--jobs", type=int, default=cores(), metavar="N", help="so many at once (default: one per core)")
    how.add_argument("--seed", default=secrets.token_hex(4), help="repeats what was left to chance in an earlier run")
    out = parser.add_argument_group("what comes out")
    out.add_argument("--json", action="store_true", help="print the summary as JSON instead of a table")
    out.add_argument("--report", type=Path, metavar="FILE", help="write the summary as a Markdown table")
    out.add_argument("--evidence", type=Path, metavar="DIRECTORY", help="keep there what failed (default: in /tmp)")
    chosen = parser.parse_args(arguments)
    asked = (chosen.kills, chosen.states, chosen.faults, chosen.cuts, chosen.promotions, chosen.units, chosen.all)
    if not any(asked):
        parser.error("nothing to do; --all does everything, --help shows examples")
    return chosen


def choice_of(arguments: argparse.Namespace, summary: Summary) -> Choice:
    """What of it can be done here; the summary learns what cannot."""
    default = OF_ALL if arguments.all else 0
    cuts = default if arguments.cuts is None else arguments.cuts
    no_mounts = reason_not_to_mount(*arguments.kinds)
    no_faults = reason_not_to_trace() or reason_not_to_shorten()
    no_systemd = reason_not_to_boot()
    faults, units = arguments.faults or arguments.all, arguments.units or arguments.all
    promotions = default if arguments.promotions is None else arguments.promotions
    no_rack = no_mounts and f"only without power cuts: {no_mounts}"
    tiers = (
        ("B", faults, no_faults),
        ("C", cuts, no_mounts),
        ("D", units, no_systemd),
        ("E", promotions, no_rack),
    )
    for tier, wanted, reason in tiers:
        if wanted and reason is not None:
            summary.skip(tier, reason)
    return Choice(
        promotions=promotions,
        cuts=0 if no_mounts else cuts,
        kills=default if arguments.kills is None else arguments.kills,
        states=10 * default if arguments.states is None else arguments.states,
        faults=faults and no_faults is None,
        units=units and no_systemd is None,
        kinds=() if no_mounts else tuple(arguments.kinds),
        stores=tuple(arguments.stores),
        seed=arguments.seed,
    )


class Bars:
    """A bar for each kind of run, and one for everything; where nobody sees bars, a line every minute."""

    def __init__(self, progress: Progress, pieces: Sequence[AnyPiece]) -> None:
        self._progress = progress
        self._next_line = time.monotonic() + LINE_EVERY_S
        self._bars: dict[str, TaskID] = {}
        self._everything = progress.add_task("everything", total=0)
        for piece in pieces:
            if piece.bar not in self._bars:
                self._bars[piece.bar] = progress.add_task(piece.bar, total=0)
            self._plan(piece, piece.planned)

    def show(self, told: Told) -> None:
        """Move the bars of the piece that something was said about."""
        if isinstance(told.said, Planned):
            self._plan(told.piece, told.said.trials)
        elif isinstance(told.said, Tried):
            for bar in (self._bars[told.piece.bar], self._everything):
                self._progress.advance(bar, told.said.trials)
        if not self._progress.console.is_terminal and time.monotonic() > self._next_line:
            self._next_line += LINE_EVERY_S
            task = self._progress.tasks[self._everything]
            left = "" if task.time_remaining is None else f", about {task.time_remaining / 60:.0f} minutes left"
            self._progress.console.print(f"{task.completed:,.0f} of {task.total:,.0f} trials{left}", highlight=False)

    def _plan(self, piece: AnyPiece, trials: int) -> None:
        for bar in (self._bars[piece.bar], self._everything):
            self._progress.update(bar, total=(self._progress.tasks[bar].total or 0) + trials)


def run_all(pieces: Sequence[AnyPiece], workers: Workers, progress: Progress, summary: Summary) -> None:
    """Let everything be done, and add up what it came to; an interrupt ends it after the trials under way."""
    bars = Bars(progress, pieces)

    def listen(tellings: Iterator[Told]) -> None:
        for told in tellings:
            bars.show(told)
            if isinstance(told.said, Done):
                summary.add(told.said.result)
                for problem in told.said.result.problems:
                    progress.console.print(problem, style="red", markup=False, highlight=False)

    try:
        listen(workers.run(pieces))
    except KeyboardInterrupt:
        summary.interrupted = True
        progress.console.print("ending after the trials that are under way", style="yellow")
        workers.stop()
        listen(workers.rest())


def print_summary(summary: Summary, arguments: argparse.Namespace, console: Console) -> None:
    """As it was asked for."""
    if arguments.report is not None:
        arguments.report.write_text(markdown_of(summary))
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(summary), indent=2).decode())  # noqa: T201 - what was asked for
        return
    console.print(table_of(summary))
    for line in summary.lines_of_skipped():
        console.print(line, style="yellow", markup=False, highlight=False)
    if summary.problems:
        console.print(f"what was found is kept in {summary.evidence}", style="red", highlight=False)
    console.print(
        f"{'interrupted after' if summary.interrupted else 'took'} {summary.seconds / 60:.1f} minutes;", end=" "
    )
    console.print(f"once more: {summary.command}", soft_wrap=True, highlight=False, markup=False)


def interrupt(*_: object) -> NoReturn:
    """Let SIGTERM do what Ctrl-C does."""
    raise KeyboardInterrupt


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and print the summary; the exit status."""
    arguments = parsed(given)
    console = Console(stderr=arguments.json)
    options = [option for option in sys.argv[1:] if option] if given is None else list(given)
    seeded = options if "--seed" in options else [*options, "--seed", arguments.seed]
    evidence = arguments.evidence or Path(tempfile.gettempdir()) / f"crash-evidence-{arguments.seed}"
    summary = Summary(
        command=shlex.join(["python", "-m", "tests.crash", *seeded]),
        seed=arguments.seed,
        started=datetime.now(UTC),
        machine=this_machine(),
        evidence=str(evidence.resolve()),
    )
    pieces = pieces_of(choice_of(arguments, summary))
    if not pieces:
        print_summary(summary, arguments, console)
        return 2
    signal.signal(signal.SIGTERM, interrupt)
    started = time.monotonic()
    with ExitStack() as stack:
        space = stack.enter_context(space_for_all())
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        times = (TimeElapsedColumn(), TimeRemainingColumn())
        progress = stack.enter_context(Progress(*columns, *times, console=console))
        workers = stack.enter_context(Workers(arguments.jobs, space=space, evidence=Path(summary.evidence)))
        run_all(pieces, workers, progress, summary)
    summary.seconds = time.monotonic() - started
    print_summary(summary, arguments, console)
    return 1 if summary.problems else 130 if summary.interrupted else 0


@contextmanager
def space_for_all() -> Iterator[Path]:
    """A directory for whatever is made: in memory where that can be mounted."""
    if reason_not_to_mount() is None:
        with MountSpace() as space:
            yield space.path
    else:
        with tempfile.TemporaryDirectory(prefix="crash-tests-") as path:
            yield Path(path)


if __name__ == "__main__":
    sys.exit(main())
