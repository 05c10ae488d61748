"""`python -m benchmarks.peers`: our stores and those of other frameworks, doing the same work in one run.

Each peer has an environment of its own, made when it is first used. The power cuts need root.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import tempfile
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.peers.catalogue import PEERS, Peer
from benchmarks.peers.cuts import FILE_SYSTEMS, cut_all, reason_not_to_cut
from benchmarks.peers.environments import Environments, default_directory
from benchmarks.peers.measurements import QUICK, Bench, Plan
from benchmarks.peers.report import Report, machine, show, today, write_markdown

EXAMPLES = """examples:
  python -m benchmarks.peers --quick
  python -m benchmarks.peers --only ours agno --no-cuts
  python -m benchmarks.peers --json peers.json --markdown benchmarks/RESULTS.md --png benchmarks/pictures/peers.png
  python -m benchmarks.peers --from peers.json --png peers.png     draws an earlier run
"""
KINDS_OF_TRIALS = len(FILE_SYSTEMS) + 1


def main() -> int:
    """Measure what the command line asks for and show it. Exit status 1: a store could not be measured."""
    parser = _parser()
    arguments = parser.parse_args()
    peers = [peer for peer in PEERS if not arguments.only or _name(peer) in arguments.only]
    console = Console(stderr=True)
    if arguments.from_ is not None:
        report = msgspec.json.decode(arguments.from_.read_bytes(), type=Report)
    else:
        report = measure(peers, arguments, console)
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    show(report, Console())
    if arguments.png is not None:
        from benchmarks.peers.picture import draw  # noqa: PLC0415 - needs an extra

        draw(report, arguments.png)
    if arguments.markdown is not None:
        picture = arguments.png and Path(os.path.relpath(arguments.png, arguments.markdown.parent))
        write_markdown(report, arguments.markdown, picture)
    return int(any(measured.reason is not None for measured in report.stores))


def measure(peers: list[Peer], arguments: argparse.Namespace, console: Console) -> Report:
    """One run, with a bar for what has been done of it."""
    plan = QUICK if arguments.quick else Plan()
    plan = msgspec.structs.replace(plan, rounds=arguments.rounds) if arguments.rounds else plan
    environments = Environments(None if arguments.here else arguments.environments)
    reason = "not asked for" if arguments.no_cuts else reason_not_to_cut()
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with (
        tempfile.TemporaryDirectory(dir=arguments.directory, prefix="peers-") as directory,
        Progress(*columns, console=console, transient=True) as progress,
    ):
        task = progress.add_task("", total=None)

        def say(what: str) -> None:
            progress.update(task, description=what, advance=1)

        here = machine(Path(directory))
        bench = Bench(environments, Path(directory), plan, say)
        steps = bench.steps(peers) + (0 if reason else len(peers) * KINDS_OF_TRIALS)
        progress.update(task, total=steps + 1, completed=0)
        stores = bench.measure(peers)
        measured = [one.peer for one in stores if one.reason is None]
        trials = 2 if arguments.quick else arguments.cuts
        cuts = {} if reason else cut_all(measured, environments, trials, arguments.seed, say)
        return Report(today(), here, plan, stores, cuts, reason, arguments.seed)


def _name(peer: Peer) -> str:
    """How it is called on the command line; ours are called together."""
    return peer.short.partition(" ")[0].rstrip(",")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    names = list(dict.fromkeys(_name(peer) for peer in PEERS))
    parser.add_argument("--quick", action="store_true", help="one round with a tenth of the work, for a first look")
    parser.add_argument("--rounds", type=int, help="how often each is measured (3); medians are reported")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--cuts", type=int, default=10, help="power cuts of each file system, and kills (%(default)s)")
    parser.add_argument("--no-cuts", action="store_true", help="cut no power")
    parser.add_argument("--seed", default=secrets.token_hex(4), help="repeats the moments of the cuts")
    parser.add_argument("--directory", type=Path, help="on the disk that matters (default: a temporary one)")
    parser.add_argument(
        "--environments", type=Path, default=default_directory(), help="where they are kept (%(default)s)"
    )
    parser.add_argument("--here", action="store_true", help="make none: use what is installed beside this project")
    parser.add_argument("--from", dest="from_", type=Path, metavar="FILE", help="show an earlier run's JSON instead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables into a Markdown file")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw the picture")
    return parser


if __name__ == "__main__":
    sys.exit(main())
