"""Fuzzing every place where bytes from outside come in: `python -m tests.fuzz --cases 100000`, from the repository.

Each case is a healthy input that was damaged. It must be taken in, or be refused by a documented error: no crash, no
hang, no file changed that is not ours, no neighbour affected, nothing that was said in a log. What fails is made small
and written to a directory, from which `--replay` reads it again.

Exit status 0: nothing failed. 1: something did. 2: the command line is wrong.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.fuzz.campaign import Campaign, Failure, Tally, attempt, place_of, write_down
from tests.fuzz.reader import watching_logs
from tests.fuzz.readers import READERS

_SHOWN_FAILURES = 30
_EXAMPLES = """\
examples:
  python -m tests.fuzz                                      10,000 cases, shared out to all readers
  python -m tests.fuzz --cases 100000 --seed 7              the long form; the same seed makes the same cases
  python -m tests.fuzz --readers imports --cases 5000       one reader only
  python -m tests.fuzz --replay tests/fuzz/corpus/toml/*    cases that were written down
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; the exit status."""
    given = _parser().parse_args(arguments)
    console = Console(file=sys.stderr)  # by name: commands under test replace the streams meanwhile
    if given.replay:
        return anyio.run(replay, given.replay, console)
    folder = given.failures or Path(tempfile.mkdtemp(prefix="fuzz-failures-"))
    shares = shared_out(given.cases, given.readers)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bars = {name: progress.add_task(name, total=cases) for name, cases in shares.items()}
        tallies = anyio.run(run_all, shares, given.seed, lambda name, done: progress.advance(bars[name], done))
    failures = [failure for tally in tallies.values() for failure in tally.failures]
    files = {str(write_down(failure, given.seed, folder)): failure for failure in failures}
    if given.json:
        sys.stdout.buffer.write(document_of(tallies, given.seed, files))
    else:
        tell(tallies, given.seed, files, folder)
    if not files and given.failures is None:
        folder.rmdir()
    return 1 if files else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--cases", type=_number, default=10_000, help="how many, in all (10,000)")
    parser.add_argument(
        "--readers",
        nargs="+",
        choices=READERS,
        default=list(READERS),
        metavar="NAME",
        help="only these: " + ", ".join(READERS),
    )
    parser.add_argument("--seed", default=secrets.token_hex(4), help="repeats an earlier run")
    parser.add_argument("--failures", type=Path, metavar="DIRECTORY", help="where cases that fail are written")
    parser.add_argument(
        "--replay", type=Path, nargs="+", metavar="FILE", help="read these cases; the reader is their directory's name"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    return parser


def _number(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def shared_out(cases: int, readers: Sequence[str]) -> dict[str, int]:
    """How many cases each reader gets: as its share says, at least one, the rest to the largest."""
    whole = sum(READERS[name].share for name in readers)
    shares = {name: max(1, cases * READERS[name].share // whole) for name in readers}
    largest = max(shares, key=lambda name: shares[name])
    shares[largest] = max(1, shares[largest] + cases - sum(shares.values()))
    return shares


async def run_all(shares: dict[str, int], seed: str, advance: Callable[[str, int], None]) -> dict[str, Tally]:
    """Every reader's cases, one reader after the other."""
    tallies = {}
    for name, cases in shares.items():
        with tempfile.TemporaryDirectory(dir=_scratch()) as scratch, watching_logs() as logs:
            async with READERS[name](Path(scratch)) as reader:
                campaign = Campaign(reader, seed, logs)
                await campaign.run(cases, lambda done, name=name: advance(name, done))  # type: ignore[misc]
        tallies[name] = campaign.tally
    return tallies


def _scratch() -> str | None:
    """Where workspaces lie: in memory if possible, because whether a sync is durable is not what is looked at."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


async def replay(files: Sequence[Path], console: Console) -> int:
    """Read cases that were written down; 1 if one of them fails."""
    failed = 0
    for path in files:
        with tempfile.TemporaryDirectory(dir=_scratch()) as scratch, watching_logs() as logs:
            async with READERS[path.resolve().parent.name](Path(scratch)) as reader:
                try:
                    (accepted,) = await attempt(reader, [path.read_bytes()], logs)
                except Exception as error:  # noqa: BLE001 - it is what is shown
                    failed = 1
                    console.print(f"{path}: {place_of(error)}: {error}", style="red", markup=False, highlight=False)
                    continue
        console.print(f"{path}: {'accepted' if accepted else 'refused'}", markup=False, highlight=False)
    return failed


# --- what is shown ---------------------------------------------------------------------------------------------------


def tell(tallies: dict[str, Tally], seed: str, files: dict[str, Failure], folder: Path) -> None:
    """A table, and the failures."""
    console = Console()
    console.print(table_of(tallies), f"seed {seed}")
    for path, failure in list(files.items())[:_SHOWN_FAILURES]:
        console.print(f"{path}: {failure.what}", style="red", markup=False, highlight=False)
    if files:
        console.print(f"{len(files)} cases that failed are in {folder}", style="bold red", highlight=False)


def table_of(tallies: dict[str, Tally]) -> Table:
    """One line for each reader, and their sum."""
    table = Table()
    table.add_column("reader", no_wrap=True, min_width=max(map(len, tallies), default=0))
    for title in ("cases", "accepted", "refused", "slowest ms", "seconds", "failures"):
        table.add_column(title, justify="right")
    rows = {**tallies, "all": _sum_of(tallies)}
    for name, tally in rows.items():
        if name == "all":
            table.add_section()
        numbers = (f"{tally.cases:,}", f"{tally.accepted:,}", f"{tally.refused:,}")
        times = (f"{tally.slowest_ms:,.1f}", f"{tally.seconds:,.1f}")
        table.add_row(name, *numbers, *times, f"{tally.failed:,}", style="bold red" if tally.failed else "")
    return table


def _sum_of(tallies: dict[str, Tally]) -> Tally:
    everything = tallies.values()
    return Tally(
        cases=sum(tally.cases for tally in everything),
        accepted=sum(tally.accepted for tally in everything),
        refused=sum(tally.refused for tally in everything),
        slowest_ms=max(tally.slowest_ms for tally in everything),
        seconds=sum(tally.seconds for tally in everything),
        failed=sum(tally.failed for tally in everything),
    )


def document_of(tallies: dict[str, Tally], seed: str, files: dict[str, Failure]) -> bytes:
    """The same for programs."""
    readers = {
        name: {
            "cases": tally.cases,
            "accepted": tally.accepted,
            "refused": tally.refused,
            "slowest_ms": round(tally.slowest_ms, 1),
            "seconds": round(tally.seconds, 1),
            "failures": tally.failed,
        }
        for name, tally in tallies.items()
    }
    failures = [
        {"file": path, "reader": one.reader, "number": one.number, "what": one.what} for path, one in files.items()
    ]
    return orjson.dumps(
        {"seed": seed, "readers": readers, "failures": failures}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    )


if __name__ == "__main__":
    sys.exit(main())
