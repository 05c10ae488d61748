"""Many writers on the real daemon for a chosen time, while it is killed, restarted, and its disk runs full.

Every acknowledged message must be there, once and in order, after every fault; a reader looks all the time, and
in the end the database is read with nothing but SQLite. Once per second the daemon's memory, descriptors, threads,
event loop and latencies are measured: in sessions that do not grow they must stay flat. In the last two fifths of the
time the daemon is left in peace, so that one life is long enough for a verdict.

Exit status 0: nothing was lost. 1: something was, or the daemon did not come back.

Examples:
    python -m benchmarks.soak --minutes 10 --png soak.png
    python -m benchmarks.soak --minutes 10 --resident 10  # and most sessions asleep
    python -m benchmarks.soak --minutes 20 --company  # and all that a daemon does beside, at once
    python -m benchmarks.soak --minutes 600 --every 60 --directory /srv --json > soak.json
"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.daemon import Daemon
from benchmarks.soak_company import SETTINGS, Company
from benchmarks.soak_disk import Disk, mounted
from benchmarks.soak_events import Disturber, Event
from benchmarks.soak_samples import Estimate, Growth, Sample, growth
from benchmarks.soak_writers import LOST_CONNECTION, Book, Writer, faults_in_database, read_along
from tests.crash.filesystem import reason_not_to_mount

SAMPLE_EVERY_S = 1.0
FLUSH_EVERY_S = 5.0
"""Oftener than by default, so that kills meet flushes, too."""

SHARE_IN_PEACE = 0.4
"""In the end nothing is done to the daemon for so long: what grows slowly shows in a long life only."""

QUANTITIES = {
    "rss_mb": "memory, RSS, MB",
    "pss_mb": "memory, PSS, MB",
    "own_mb": "memory, heap, MB",
    "descriptors": "open descriptors",
    "threads": "threads",
    "unsaved": "unsaved entries",
    "loop_ms": "loop delay, ms",
    "p50_ms": "reply, median, ms",
    "p99_ms": "reply, p99, ms",
}
"""What must stay flat: fields of `Sample`, with their names for people."""


class Report(msgspec.Struct, kw_only=True, frozen=True):
    """What a soak found; `problems` is empty when nothing was lost, and everything held."""

    seed: str
    seconds: float
    writers: int
    sessions: int
    acknowledged: int
    found_in_database: int
    problems: list[str]
    kills: int
    stops: int
    full_disks: int
    failed_starts_on_full_disk: int
    slowest_start_s: float
    refused: dict[str, int]
    interrupted: int
    recognized: int
    looks: int
    longest_wait_s: float
    company: dict[str, int]
    put_off: dict[str, int]
    growth: list[Growth]
    events: list[Event]
    samples: list[Sample]


class Soak:
    """One run on an empty workspace."""

    def __init__(self, daemon: Daemon, disk: Disk | None, arguments: argparse.Namespace) -> None:
        self.book = Book(arguments.writers)
        self.disturber = Disturber(daemon, disk, self.book, every_s=arguments.every, seed=arguments.seed)
        self.samples: list[Sample] = []
        self._company = Company(self.book, daemon.socket, daemon.log.parent) if arguments.company else None
        self._daemon = daemon
        self._seed: str = arguments.seed
        self._seconds: float = arguments.minutes * 60
        self._writers = [
            Writer(number, self.book, daemon.socket, per_second=arguments.rate / arguments.writers, seed=self._seed)
            for number in range(arguments.writers)
        ]

    async def run(self, progress: Progress) -> Report:
        """All of it."""
        task = progress.add_task("starting", total=self._seconds)
        await self.disturber.start()
        async with anyio.create_task_group() as tasks:
            for writer in self._writers:
                tasks.start_soon(writer.begin)
        await self.disturber.restart("stop")  # what a process took to make all that is no part of what follows
        self.disturber.begin()
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for writer in self._writers:
                tasks.start_soon(writer.talk, stop)
            tasks.start_soon(self._read_along, stop)
            if self._company is not None:
                tasks.start_soon(self._company.keep, stop)
            tasks.start_soon(self._sample, stop, progress, task)
            await self.disturber.disturb(self._seconds * (1 - SHARE_IN_PEACE))
            await anyio.sleep(max(0.0, self._seconds - self.disturber.now()))
            stop.set()
        progress.update(task, description="looking at everything once more")
        found = await self._look_at_the_end()
        progress.remove_task(task)
        return self._report(found)

    async def _read_along(self, stop: anyio.Event) -> None:
        await read_along(self.book, self._daemon.socket, stop, seed=self._seed)

    async def _sample(self, stop: anyio.Event, progress: Progress, task: TaskID) -> None:
        while not stop.is_set():
            if (sampler := self.disturber.sampler) is not None:
                try:
                    at = self.disturber.now()
                    self.samples.append(await sampler.sample(at, is_full=self.disturber.is_full))
                except LOST_CONNECTION:
                    pass  # it is being killed
            progress.update(task, completed=self.disturber.now(), description=self._described())
            with anyio.move_on_after(SAMPLE_EVERY_S):
                await stop.wait()

    def _described(self) -> str:
        count = self.disturber.count
        done = f"{count('kill')} kills, {count('stop')} restarts, {count('full')} full disks"
        lost = f"[red]{len(self.book.problems)} problems[/]" if self.book.problems else "0 problems"
        return f"{self.book.total:,} acknowledged; {done}{' [yellow](full)[/]' * self.disturber.is_full}; {lost}"

    async def _look_at_the_end(self) -> int:
        """Stop the daemon, read its database, let `check` compare the files; how many messages are there."""
        problems = self.book.problems
        if status := await self._daemon.end(signal.SIGTERM):
            problems.append(f"asked to stop in the end, the daemon ended with status {status}")
        workspace = self._daemon.workspace
        found, faults = await to_thread.run_sync(faults_in_database, self.book, workspace / "sessions.db")
        problems += faults
        problems += await to_thread.run_sync(self._check)
        set_aside = [path.name for path in workspace.joinpath("quarantine").glob("*")]
        problems += [f"{name} was set aside without need" for name in set_aside]
        return found

    def _check(self) -> list[str]:
        command = [sys.executable, "-m", "miniclaw_sessions", "check", "--json"]
        done = subprocess.run(command, env=self._daemon.environment, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return []
        return [f"check: {problem}" for problem in json.loads(done.stdout or "{}").get("problems", [done.stderr])]

    def _report(self, found: int) -> Report:
        book, disturber = self.book, self.disturber
        seconds = disturber.now()
        return Report(
            seed=self._seed,
            seconds=round(seconds, 1),
            writers=len(self._writers),
            sessions=len(book.sessions()),
            acknowledged=book.total,
            found_in_database=found,
            problems=book.problems,
            kills=disturber.count("kill"),
            stops=disturber.count("stop"),
            full_disks=disturber.count("full"),
            failed_starts_on_full_disk=disturber.failed_starts.total(),
            slowest_start_s=round(max(disturber.starts), 3),
            refused={str(status): number for status, number in sorted(book.refused.items())},
            interrupted=book.interrupted,
            recognized=book.recognized,
            looks=book.looks,
            longest_wait_s=round(book.longest_wait_s, 3),
            company=dict(self._company.done) if self._company else {},
            put_off=dict(self._company.put_off) if self._company else {},
            growth=[growth(name, self.samples) for name in QUANTITIES],
            events=disturber.events,
            samples=self.samples,
        )


# --- for people ------------------------------------------------------------------------------------------------------


def table_of_what_happened(report: Report) -> Table:
    """Counts, one line each."""
    table = Table("what happened", title=f"{report.seconds / 60:.1f} minutes, {report.writers} writers")
    table.add_column("", justify="right")
    refused = sum(report.refused.values())
    lines = {
        "messages acknowledged": f"{report.acknowledged:,}",
        "messages found in the end": f"{report.found_in_database:,}",
        "lost, doubled, out of order, unsound": f"{len(report.problems):,}",
        "kill -9": f"{report.kills:,}",
        "restarts by SIGTERM": f"{report.stops:,}",
        "slowest start": f"{report.slowest_start_s:.2f} s",
        "times that the disk was full": f"{report.full_disks:,}",
        "starts that failed then": f"{report.failed_starts_on_full_disk:,}",
        "requests asked to come later": f"{refused:,}",
        "requests cut off by a kill": f"{report.interrupted:,}",
        "sent again and recognized": f"{report.recognized:,}",
        "longest wait for an acknowledgement": f"{report.longest_wait_s:.1f} s",
        "looks of the reader": f"{report.looks:,}",
        **{f"beside it: {name}": f"{times:,}" for name, times in sorted(report.company.items())},
    }
    for name, value in lines.items():
        is_bad = name.startswith("lost") and report.problems
        table.add_row(name, value, style="bold red" if is_bad else "")
    return table


def table_of_growth(report: Report) -> Table:
    """One line for each quantity."""
    table = Table("quantity", title="does it stay flat?")
    for heading in ("median", "growth in a life", "from life to life"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for one in report.growth:
        style = {"flat": "green", "grows": "bold red"}.get(one.verdict, "yellow")
        cells = (f"{one.level:,.1f}", _shown(one.within), _shown(one.across))
        table.add_row(QUANTITIES[one.name], *cells, f"[{style}]{one.verdict}[/]")
    return table


def _shown(grown: Estimate | None) -> str:
    return "" if grown is None else f"{grown.value:+,.1f} \u00b1 {grown.margin:,.1f}"


def draw(report: Report, path: Path) -> None:
    """The picture of it."""
    from benchmarks.soak_picture import draw as draw_picture  # noqa: PLC0415 - needs the extra `benchmarks`

    lost = len(report.problems)
    title = f"{report.acknowledged:,} acknowledged messages, {lost} lost, doubled or out of order"
    done = f"{report.kills} kill -9, {report.stops} SIGTERM, {report.full_disks} full disks"
    rest = f"{report.sessions} sessions, {report.seconds / 60:.0f} minutes; {time.strftime('%d %B %Y').lstrip('0')}"
    draw_picture(path, title, f"{report.writers} writers, {done}; {rest}", report.samples, report.events)


# --- the command -----------------------------------------------------------------------------------------------------


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: 10)")
    parser.add_argument("--writers", type=int, default=100, help="how many, two in each session (default: 100)")
    parser.add_argument("--rate", type=float, default=800.0, help="messages per second of all together (default: 800)")
    parser.add_argument("--every", type=float, default=30.0, help="mean seconds between two disturbances (default: 30)")
    parser.add_argument("--company", action="store_true", help="chat, follow, import, search, back up, ... meanwhile")
    parser.add_argument("--resident", type=int, help="sessions in memory at most (default: all)")
    parser.add_argument("--directory", type=Path, help="where to write (default: a temporary directory)")
    parser.add_argument("--png", type=Path, help="draw this picture (needs the extra `benchmarks`)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables, with every sample")
    parser.add_argument("--seed", default=secrets.token_hex(4), help="the same disturbances as in an earlier run")
    return parser.parse_args(arguments)


def soak(arguments: argparse.Namespace, console: Console) -> Report:
    """Run it with a bar; the disk is only filled where one can be mounted."""
    columns = (BarColumn(20), TextColumn("{task.description}"), TimeRemainingColumn())
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.directory)))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak")))
        disk = None
        if (reason := reason_not_to_mount("ext4")) is None:
            disk = stack.enter_context(mounted(home))
        else:
            console.print(f"SKIPPED the full disk: {reason}", style="bold yellow")
        workspace = (disk.path if disk else home) / "workspace"
        settings = {"MINICLAW_SESSIONS_FLUSH_INTERVAL_S": str(FLUSH_EVERY_S)}
        if arguments.company:
            settings["MINICLAW_CONFIG"] = str(scratch / "miniclaw.toml")
            scratch.joinpath("miniclaw.toml").write_text(SETTINGS)
        if arguments.resident:
            settings["MINICLAW_SESSIONS_MAX_CACHED"] = str(arguments.resident)
        daemon = stack.enter_context(Daemon(workspace, scratch, **settings))
        progress = stack.enter_context(Progress(*columns, console=console))
        loop = {"use_uvloop": find_spec("uvloop") is not None}
        return anyio.run(Soak(daemon, disk, arguments).run, progress, backend_options=loop)


def main() -> int:
    """Soak, print, draw; the exit status."""
    arguments = parsed()
    console = Console(stderr=arguments.json)
    report = soak(arguments, console)
    if arguments.png:
        draw(report, arguments.png)
    if arguments.json:
        print(json.dumps(msgspec.to_builtins(report)))
    else:
        console.print(table_of_what_happened(report), table_of_growth(report), f"seed {report.seed}")
    for problem in report.problems[:50]:
        console.print(problem, style="red", markup=False, highlight=False)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
