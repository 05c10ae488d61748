"""`python -m benchmarks`: our numbers beside the floor of this machine, measured in the same run.

Ratios travel between machines, absolute numbers do not.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import (
    appends,
    checkpoints,
    client,
    encryption,
    imports,
    memory,
    page,
    postgresql,
    scale,
    search,
    startup,
    trees,
    turns,
)
from benchmarks.workload import Row

BENCHMARKS = {
    "appends": appends.measure,
    "checkpoints": checkpoints.measure,
    "client": client.measure,
    "startup": startup.measure,
    "memory": memory.measure,
    "imports": imports.measure,
    "trees": trees.measure,
    "turns": turns.measure,
    "encryption": encryption.measure,
    "page": page.measure,
    "postgresql": postgresql.measure,
    "scale": scale.measure,
    "search": search.measure,
}
ONLY_BY_NAME = {"page", "scale", "search"}
"""A million sessions take 15 GB and most of an hour; a million messages to search, 2 GB and ten minutes; the page needs
Chromium."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which ones: {', '.join(BENCHMARKS)} (default: all but {', '.join(sorted(ONLY_BY_NAME))})",
    )
    parser.add_argument(
        "--directory", type=Path, help="where to write; choose the disk that matters (default: a temporary one)"
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, for a first look")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - BENCHMARKS.keys():
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    console = Console(stderr=arguments.json)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory, console.status("measuring") as status:
        for name in arguments.names or [name for name in BENCHMARKS if name not in ONLY_BY_NAME]:
            status.update(f"measuring {name}")
            rows += BENCHMARKS[name](Path(directory), quick=arguments.quick)
    if arguments.json:
        print(json.dumps([row._asdict() for row in rows], indent=2))
    else:
        console.print(_table(rows))


def _table(rows: list[Row]) -> Table:
    table = Table("benchmark", "unit", title="miniclaw-sessions beside the bare disk")
    for heading in ("ours", "floor", "ratio"):
        table.add_column(heading, justify="right")
    table.add_column("target")
    table.add_column("met")
    for row in rows:
        floor = "" if row.floor is None else _number(row.floor)
        ratio = "" if not row.floor else f"{row.ours / row.floor:.2f}"
        met = "" if row.met is None else "[green]yes[/]" if row.met else "[red]no[/]"
        table.add_row(row.name, row.unit, _number(row.ours), floor, ratio, row.target, met)
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


if __name__ == "__main__":
    main()
