"""The table of rules cannot rot: every rule has its line, and what the lines name exists."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import msgspec

import miniclaw_sessions

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PACKAGE = Path(miniclaw_sessions.__file__).parent
RULES = [*(f"R{number}" for number in range(1, 35)), *(f"S{number}" for number in range(1, 30))]


class Rule(msgspec.Struct, forbid_unknown_fields=True):
    gist: str
    kept_in: list[str]
    held_by: list[str]
    remark: str = ""


TABLE = msgspec.toml.decode((TESTS / "rules.toml").read_bytes(), type=dict[str, Rule])


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


def test_every_rule_stands_in_the_table_in_order() -> None:
    assert list(TABLE) == RULES
    assert [name for name, rule in TABLE.items() if not (rule.gist and rule.kept_in and rule.held_by)] == []


def test_what_keeps_a_rule_and_what_holds_it_exist() -> None:
    kept_in = {reference for rule in TABLE.values() for reference in rule.kept_in}
    held_by = {reference for rule in TABLE.values() for reference in rule.held_by}
    places = {reference: reference.split("::") for reference in kept_in | held_by}
    gone = [name for name in kept_in if not is_there(PACKAGE / places[name][0], places[name][1:])]
    assert sorted(name for name in gone if not (ROOT / name).is_file()) == []
    assert sorted(name for name in held_by if not is_there(TESTS / places[name][0], places[name][1:])) == []
    assert sorted(name for name in held_by if not places[name][-1].startswith("test_")) == []
