"""What is installed is what was tested: every dependency has one pinned version (rule S29)."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
PINS = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in LINES)}
OWN = canonicalize_name(PROJECT["name"])
ELSEWHERE = {"google-adk"}
"""What needs older libraries than the others, and has its own constraints beside its tests."""

TESTED = [Requirement(text) for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"])]


def asked_for() -> list[Requirement]:
    """Every requirement of the package and of its extras."""
    texts = [*PROJECT["dependencies"], *(text for extra in PROJECT["optional-dependencies"].values() for text in extra)]
    found = [Requirement(text) for text in texts]
    return [one for one in found if canonicalize_name(one.name) not in {OWN, *ELSEWHERE}]


def needed(requirement: Requirement, extras: frozenset[str] = frozenset()) -> set[str]:
    """What installing a requirement installs, by what the installed packages say of themselves."""
    names: set[str] = set()
    waiting = [(requirement.name, frozenset(requirement.extras) | extras)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        names.add(canonicalize_name(name))
        for text in distribution(name).requires or ():
            further = Requirement(text)
            marker = further.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                waiting.append((further.name, frozenset(further.extras)))
    return names


def test_every_line_is_one_exact_version_and_no_address() -> None:
    assert [line for line in LINES if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+]+", line)] == []
    assert len(PINS) == len(LINES)


def test_every_requirement_is_pinned_to_a_version_that_it_allows() -> None:
    wrong = [one for one in asked_for() if not one.specifier.contains(PINS[canonicalize_name(one.name)])]
    assert list(map(str, wrong)) == []


def test_what_the_requirements_themselves_require_is_pinned_too() -> None:
    try:
        installed = set[str]().union(*(needed(requirement) for requirement in TESTED))
    except PackageNotFoundError as error:
        pytest.skip(f"not everything is installed here: {error}")
    assert installed - {OWN} - PINS.keys() == set()
