"""The results as tables in a terminal and in Markdown, and as JSON."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.peers.cuts import FILE_SYSTEMS, KILL, Outcome
from benchmarks.peers.measurements import Measured, Plan


class Report(msgspec.Struct, frozen=True):
    """One run.

    Attributes:
        date: the day.
        machine: what it ran on.
        plan: how much was done.
        stores: what was measured of each.
        cuts: what became of each after power cuts and kills.
        reason_not_cut: why there were none, or None.
        seed: of the moments of the cuts.
    """

    date: str
    machine: dict[str, str]
    plan: Plan
    stores: list[Measured]
    cuts: dict[str, list[Outcome]]
    reason_not_cut: str | None
    seed: str


MORE, LESS = True, False
"""Which is better."""


class Column(NamedTuple):
    """One measurement in a table.

    Attributes:
        key: its name among a store's numbers.
        heading: what it is.
        unit: in what.
        more_is_better: whether the greatest number is the best.
        meaning: for the text below the table.
    """

    key: str
    heading: str
    unit: str
    more_is_better: bool
    meaning: str


def writing(plan: Plan) -> list[Column]:
    """The columns about appending."""
    return [
        Column(
            "appends_1", "1 session", "per s", MORE, "acknowledged appends, one after the other, to one new session"
        ),
        Column(
            "appends_100",
            "100 sessions",
            "per s",
            MORE,
            "the same with 100 sessions: at once where the store's calls are asynchronous, in turns where they block",
        ),
        *(
            Column(f"append_{size}", f"at {size:,}", "us", LESS, f"one append to a session that has {size:,} messages")
            for size in plan.sizes[1:]
        ),
    ]


def reading(plan: Plan) -> list[Column]:
    """The columns about reading and starting."""
    largest = plan.sizes[-1]
    return [
        *(
            Column(
                f"latest_{size}",
                f"50 of {size:,}",
                "us",
                LESS,
                f"the newest 50 messages of a live session that has {size:,}: what a turn needs before the model",
            )
            for size in (plan.sizes[0], largest)
        ),
        Column(
            "open",
            f"open {plan.many:,}",
            "ms",
            LESS,
            f"a fresh process opens the store and reads the history of {plan.many:,} sessions of 50 messages",
        ),
        Column("memory", "memory", "MB", LESS, "of that process then, with the interpreter and all that was imported"),
        Column("import", "import", "ms", LESS, "what importing it adds to the start of a program"),
    ]


def machine(directory: Path) -> dict[str, str]:
    """What these numbers depend on."""
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "Linux": platform.release().partition("-")[0],
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        "file system": _file_system(directory),
        "load before": f"{os.getloadavg()[0]:.1f}",
    }


def _file_system(directory: Path) -> str:
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    above = [mount for mount in mounts if directory.resolve().is_relative_to(mount[1])]
    return max(above, key=lambda mount: len(mount[1]))[2]


def today() -> str:
    """The date of a run."""
    return f"{datetime.now(UTC):%d %B %Y}".lstrip("0")


# --- in a terminal ---------------------------------------------------------------------------------------------------


def show(report: Report, console: Console) -> None:
    """Print everything."""
    console.print(_table("Appending", writing(report.plan), report.stores))
    console.print(_table("Reading and starting", reading(report.plan), report.stores))
    if report.reason_not_cut is None:
        console.print(_cut_table(report))
    else:
        console.print(f"Power cuts: skipped: {report.reason_not_cut}", style="yellow")
    console.print(
        "Green: the best of those that can be used; the bare loop only shows what the disk can do.", style="dim"
    )


def _table(title: str, columns: Sequence[Column], stores: Sequence[Measured]) -> Table:
    table = Table("store", title=title)
    for column in columns:
        table.add_column(f"{column.heading}\n[dim]{column.unit}[/]", justify="right")
    best = {column.key: best_of(column, stores) for column in columns}
    for measured in stores:
        name = Text(measured.peer.short, style="bold" if measured.peer.is_ours else "")
        if measured.reason is not None:
            name.append(f"\nnot measured: {measured.reason}", style="red")
        cells = (_cell(measured, column, best[column.key]) for column in columns)
        table.add_row(name, *cells, style="dim" if measured.peer.is_bare else "")
    return table


def _cell(measured: Measured, column: Column, best: float | None) -> Text:
    value = measured.numbers.get(column.key)
    return Text(number(value), style="bold green" if value is not None and value == best else "")


def _cut_table(report: Report) -> Table:
    table = Table("store", title="Acknowledged messages lost, and trials after which something could not be read")
    for kind in (*FILE_SYSTEMS, KILL):
        table.add_column(_kind(kind), justify="right")
    for peer in (measured.peer for measured in report.stores):
        outcomes = report.cuts.get(peer.name, ())
        cells = (Text(_lost(one), style="red" if one.harmful or not one.trials else "green") for one in outcomes)
        table.add_row(Text(peer.short, style="bold" if peer.is_ours else ""), *cells)
    return table


def best_of(column: Column, stores: Iterable[Measured]) -> float | None:
    """The best number of a column; the bare loop takes no part."""
    values = [m.numbers[column.key] for m in stores if column.key in m.numbers and not m.peer.is_bare]
    return (max if column.more_is_better else min)(values, default=None)


def number(value: float | None) -> str:
    """As short as it can be read."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"


def _kind(kind: str) -> str:
    return kind if kind == KILL else f"power cut, {kind.replace('xfs', 'XFS')}"


def _lost(outcome: Outcome) -> str:
    if not outcome.trials:
        return f"not measured: {outcome.error}"
    parts = [f"{outcome.lost:,} of {outcome.acknowledged:,}"]
    if outcome.old_lost:
        parts.append(f"{outcome.old_lost:,} of {outcome.old:,} older ones")
    if outcome.unreadable:
        parts.append(f"unreadable {outcome.unreadable} of {outcome.trials}")
    return ", ".join(parts)


# --- in Markdown -----------------------------------------------------------------------------------------------------

BEGIN, END = "<!-- written by python -m benchmarks.peers -->", "<!-- end of what it wrote -->"


def write_markdown(report: Report, path: Path, picture: Path | None) -> None:
    """Write the section about the peers into a file, in the place of the one that it has."""
    section = f"{BEGIN}\n{markdown(report, picture)}\n{END}"
    if path.exists() and BEGIN in (text := path.read_text(encoding="utf-8")):
        text = re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: section, text, flags=re.DOTALL)
    else:
        text = (path.read_text(encoding="utf-8") + "\n" if path.exists() else "# Measured\n\n") + section + "\n"
    path.write_text(text, encoding="utf-8")


def markdown(report: Report, picture: Path | None) -> str:
    """The section about the peers."""
    rounds = f"medians of {report.plan.rounds} rounds" if report.plan.rounds > 1 else "one round"
    machine_ = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    how = (
        f"`python -m benchmarks.peers` on {report.date}: {machine_}. Measured in turns, {rounds}; every message is the "
        "same text of 350 characters; every store has its default settings and is used as its own framework uses it. "
        "Bold is the best of those that can be used; the bare loop shows what the disk can do."
    )
    parts = ["## Beside the stores of other frameworks", how]
    if picture is not None:
        parts.append(f"![Our stores beside those of other frameworks]({picture.as_posix()})")
    for title, columns in (("### Appending", writing(report.plan)), ("### Reading", reading(report.plan))):
        parts += [title, _markdown_table(columns, report.stores), _meanings(columns)]
    parts += ["### After a power cut", _markdown_cuts(report), "### What they do", _storage(report.stores), WHY]
    return "\n\n".join(parts)


WHY = """The numbers differ for a few reasons. A sync to the disk costs more than all else in an append: who leaves it
out appends faster and loses the newest messages with the power, which is a choice that a framework may make;
who shares one sync among all that wait pays it once for many. A store that writes a session or its state
whole pays for the length of the conversation with every message; one row or one line for each message does
not. A store that keeps the newest messages in memory answers at once and pays with memory; one that reads the
file for every turn can be shared by several processes, which ours is not made for.

What was not synced is at risk for about half a minute, until the kernel writes it by itself. On XFS a file
that was replaced without a sync can come back empty, with its older messages gone, too. A rollback journal
that was deleted without a sync of its directory, which SQLite does by default, can come back and undo the
newest commit; WAL does not have this."""


def _markdown_table(columns: Sequence[Column], stores: Sequence[Measured]) -> str:
    lines = [
        "| |" + "".join(f" {column.heading}, {column.unit} |" for column in columns),
        "|---|" + "---:|" * len(columns),
    ]
    best = {column.key: best_of(column, stores) for column in columns}
    for measured in stores:
        if measured.reason is not None:
            lines.append(f"| {measured.peer.name} | not measured: {measured.reason} |" + " |" * (len(columns) - 1))
            continue
        values = [(measured.numbers.get(column.key), best[column.key]) for column in columns]
        cells = [f"**{number(v)}**" if v is not None and v == top else number(v) for v, top in values]
        lines.append(f"| {measured.peer.name} |" + "".join(f" {cell} |" for cell in cells))
    return "\n".join(lines)


def _meanings(columns: Sequence[Column]) -> str:
    return "\n".join(f"- {column.heading}: {column.meaning}." for column in columns)


def _markdown_cuts(report: Report) -> str:
    if report.reason_not_cut is not None:
        return f"Skipped: {report.reason_not_cut}."
    kinds = (*FILE_SYSTEMS, KILL)
    lines = ["| Lost |" + "".join(f" {_kind(kind)} |" for kind in kinds), "|---|" + "---:|" * len(kinds)]
    for name, outcomes in report.cuts.items():
        cells = (f"**{_lost(one)}**" if one.harmful else _lost(one) for one in outcomes)
        lines.append(f"| {name} |" + "".join(f" {cell} |" for cell in cells))
    trials = max((outcome.trials for outcomes in report.cuts.values() for outcome in outcomes), default=0)
    lines.append(
        f"\n{trials} trials each (seed {report.seed}): a live writer goes on in 4 sessions of 20 messages that are "
        "safe on the disk, and notes each acknowledgement elsewhere; it is stopped, the power of its file system is "
        "cut (or it is killed), and the store's own API reads everything back. Lost: messages that it had "
        "acknowledged. Older ones: of the 80 that had been safe."
    )
    return "\n".join(lines)


def _storage(stores: Sequence[Measured]) -> str:
    lines = ["| | Version | Calls | Storage, with its defaults |", "|---|---|---|---|"]
    for measured in stores:
        peer = measured.peer
        refused = f" {measured.refused:,} appends were refused (busy) and tried again." if measured.refused else ""
        lines.append(f"| {peer.name} | {measured.version} | {peer.calls} | {peer.storage}{refused} |")
    return "\n".join(lines)
