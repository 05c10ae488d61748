"""`python -m tests.rules`: which rule is kept where, and which test holds it, as a table in the terminal."""

from __future__ import annotations

import tomllib
from pathlib import Path

from rich.console import Console
from rich.table import Table

RULES = Path(__file__).with_name("rules.toml")


def table() -> Table:
    """The table, one line a rule."""
    shown = Table("Rule", "In short", "Kept in", "Held by", show_lines=True)
    for name, rule in tomllib.loads(RULES.read_text(encoding="utf-8")).items():
        gist = "\n".join(filter(None, (rule["gist"], rule.get("remark"))))
        shown.add_row(name, gist, "\n".join(rule["kept_in"]), "\n".join(rule["held_by"]))
    return shown


if __name__ == "__main__":
    Console().print(table())
