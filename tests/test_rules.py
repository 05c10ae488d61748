"""The table of rules cannot rot: every rule has its line, and what the lines name exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import miniclaw_sessions

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PACKAGE = Path(miniclaw_sessions.__file__).parent
RULES = [*(f"R{number}" for number in range(1, 35)), *(f"S{number}" for number in range(1, 30))]


class Line(NamedTuple):
    rule: str
    gist: str
    kept_in: list[str]
    held_by: list[str]


def read_table() -> list[Line]:
    found = []
    for text in (TESTS / "RULES.md").read_text(encoding="utf-8").splitlines():
        if re.match(r"\| [RS]\d+ ", text):
            rule, gist, kept_in, held_by, _ = (cell.strip() for cell in text.strip("|").split("|"))
            found.append(Line(rule, gist, re.findall(r"`([^`]+)`", kept_in), re.findall(r"`([^`]+)`", held_by)))
    return found


TABLE = read_table()


@cache
def names_in(file: Path) -> set[str]:
    """Every function, class and constant of a file, those of classes behind the class's name."""
    found: set[str] = set()

    def look(body: list[ast.stmt], before: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(before + node.name)
            if isinstance(node, ast.ClassDef):
                look(node.body, f"{before}{node.name}.")
            if isinstance(node, ast.Assign):
                found.update(before + target.id for target in node.targets if isinstance(target, ast.Name))

    look(ast.parse(file.read_text(encoding="utf-8")).body, "")
    return found


def is_there(file: Path, names: list[str]) -> bool:
    return file.is_file() and (not names or ".".join(names) in names_in(file))


def test_every_rule_has_one_line_in_order() -> None:
    assert [line.rule for line in TABLE] == RULES
    assert all(line.gist and line.kept_in and line.held_by for line in TABLE)


@pytest.mark.parametrize("line", TABLE, ids=lambda line: line.rule)
def test_what_keeps_the_rule_and_what_holds_it_exist(line: Line) -> None:
    kept_in = [reference.split("::") for reference in line.kept_in]
    gone = [names for file, *names in kept_in if not is_there(PACKAGE / file, names) and not (ROOT / file).is_file()]
    assert gone == []
    held_by = [reference.split("::") for reference in line.held_by]
    assert [names for file, *names in held_by if not is_there(TESTS / file, names)] == []
    assert all(names[-1].startswith("test_") for _, *names in held_by)
