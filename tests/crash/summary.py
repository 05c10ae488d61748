"""What a long run came to: for people in a terminal, for machines, and as Markdown for the README."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Iterable, Mapping
from datetime import datetime
from importlib.metadata import version

import msgspec
from rich import box
from rich.table import Table

from tests.crash.runs import Result, cores

SHOWN = {"tier": 0, "run": 1, "trials": 2, "crashes": 3, "promises": 9, "broken": 10}
"""The columns of a terminal that is 80 wide: their titles, and which part of a row they have."""


class Summary(msgspec.Struct, kw_only=True):
    """Everything that is worth knowing afterwards.

    Attributes:
        command: what was run; with the same seed it does the same again.
        started: when.
        seconds: how long it took, from beginning to end.
        machine: what it was run on.
        interrupted: whether somebody ended it early.
        skipped: for each tier that could not run here, why.
        results: one for each run.
        evidence: where it is kept what failed.
    """

    command: str
    seed: str
    started: datetime
    machine: Mapping[str, str]
    evidence: str
    seconds: float = 0.0
    interrupted: bool = False
    skipped: dict[str, str] = msgspec.field(default_factory=dict)
    results: list[Result] = msgspec.field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Those of all runs."""
        return [problem for result in self.results for problem in result.problems]

    def add(self, result: Result) -> None:
        """Add what a piece came to."""
        for known in self.results:
            if (known.tier, known.name) == (result.tier, result.name):
                known.add(result)
                return
        self.results.append(result)
        self.results.sort(key=lambda one: (one.tier, one.name))

    def skip(self, tier: str, reason: str) -> None:
        """A tier cannot run here."""
        self.skipped[tier] = reason

    def lines_of_skipped(self) -> list[str]:
        """One sentence for each tier, or part of one, that did not run."""
        parts = [f"skipped: {result.skipped} tests of {result.name}" for result in self.results if result.skipped]
        return [*(f"skipped: tier {tier}, {reason}" for tier, reason in self.skipped.items()), *parts]


def this_machine() -> dict[str, str]:
    """What a reader needs to know of the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": f"{platform.machine()}, {cores()} cores, {memory:.0f} GB",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "miniclaw-sessions": version("miniclaw-sessions"),
    }


def table_of(summary: Summary) -> Table:
    """One line for each run, and their sum."""
    together = _row(sum_of(summary.results))
    table = Table(box=box.SIMPLE_HEAD, show_footer=True, padding=(0, 1, 0, 0))
    for title, part in SHOWN.items():
        footer = "together" if title == "run" else together[part]
        table.add_column(title, footer, justify="left" if title in ("tier", "run") else "right", no_wrap=True)
    for result in summary.results:
        row = _row(result)
        table.add_row(*(row[part] for part in SHOWN.values()), style="bold red" if result.problems else "")
    return table


def sum_of(results: Iterable[Result]) -> Result:
    """All of them together."""
    total = Result(tier="", name="")
    for result in results:
        total.add(result)
    return total


def markdown_of(summary: Summary) -> str:
    """A table with what is needed to repeat it."""
    when = f"{summary.started.astimezone():%d %B %Y}".removeprefix("0")
    ended = ", interrupted" if summary.interrupted else ""
    machine = "; ".join(f"{name} {value}" for name, value in summary.machine.items())
    titles = [
        *("Tier", "Run", "Trials", "Crashes", "In recovery", "Backups", "Promotions", "Gateways killed", "paused"),
        *("Acknowledged", "Lost, doubled or unsound"),
    ]
    rows = [_row(result) for result in summary.results]
    rows.append(["", "together", *_row(sum_of(summary.results))[2:]])
    lines = [
        f"`{summary.command}` on {when}, in {summary.seconds / 60:.0f} minutes{ended}. {machine}.",
        "",
        *(f"- {line}" for line in summary.lines_of_skipped()),
        *([""] if summary.lines_of_skipped() else []),
        f"| {' | '.join(titles)} |",
        f"|---|---|{'---:|' * (len(titles) - 2)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _row(result: Result) -> list[str]:
    counts = (
        *(result.crashes, result.in_recovery, result.backups, result.promotions, result.kills, result.pauses),
        result.acknowledged,
    )
    return [
        result.tier,
        result.name,
        f"{result.trials:,}",
        *(f"{count:,}" if count else "" for count in counts),
        f"{len(result.problems):,}",
    ]
