"""What is installed is what was tested: every dependency has one pinned version (rule S29)."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_readme import in_first_column, section

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


# --- the page that says what each extra is, and under which licence ---------------------------------------------------

EXTRAS = ROOT / "docs/reference/extras.md"
OURS_ALONE = {"test", "dev", "benchmarks"}
"""Extras for who works on it."""

FRAMEWORKS = {"langchain-core", "strands-agents", "agent-framework-core", "llama-index-core"}
"""Packages of extras that are named after them."""

SAYS_NOTHING = {"imapclient"}
"""Its metadata names no licence; its own file COPYING is that of BSD."""


def licence(name: str) -> str:
    """What a package's metadata says of its licence, in any of the three ways that there have been."""
    said = metadata(name)
    classifiers = [one for one in said.get_all("Classifier") or () if one.startswith("License ::")]
    return " ".join([*(said.get_all("License-Expression") or ()), *(said.get_all("License") or ()), *classifiers])


def test_the_page_has_every_extra_and_the_packages_that_it_asks_for() -> None:
    text = EXTRAS.read_text().partition("\n## ")[0]
    extras = PROJECT["optional-dependencies"]
    first = re.findall(r"^\| (`.*?`) +\|", text, re.MULTILINE)
    assert {name for cell in first for name in re.findall(r"`([a-z-]+)`", cell)} == set(extras) - OURS_ALONE
    asked = {Requirement(one).name for name in set(extras) - OURS_ALONE for one in extras[name]} - {OWN}
    passed_over = {
        "httpx2",
        *(name for name in asked if name in extras),
    }  # of the services; the frameworks are their extras
    assert [name for name in asked - passed_over - FRAMEWORKS if name not in text] == []


def test_the_page_names_each_package_whose_licence_asks_for_more_than_a_notice() -> None:
    ours = {name: texts for name, texts in PROJECT["optional-dependencies"].items() if name not in OURS_ALONE}
    asked = [Requirement(text) for texts in (PROJECT["dependencies"], *ours.values()) for text in texts]
    try:
        names = set[str]().union(
            *(needed(one) for one in asked if canonicalize_name(one.name) not in {OWN, *ELSEWHERE})
        )
    except PackageNotFoundError as error:
        pytest.skip(f"not everything is installed here: {error}")
    licences = {name: licence(name) for name in names}
    assert {name for name, said in licences.items() if not said} <= SAYS_NOTHING
    more = {name for name, said in licences.items() if re.search(r"\b(A?L?GPL|MPL|EUPL|CDDL)|Mozilla", said)}
    assert more == in_first_column(section(EXTRAS, "Licences"))


def test_no_sentence_advises_to_install_what_is_on_no_index() -> None:
    sources = {path: path.read_text() for path in (ROOT / "miniclaw_sessions").rglob("*.py")}
    assert [path for path, text in sources.items() if re.search(r"pip install '?miniclaw", text)] == []
    advised = {extra for text in sources.values() for extra in re.findall(r"to_install\(['\"](\w+)", text)}
    assert advised
    assert advised <= PROJECT["optional-dependencies"].keys()
