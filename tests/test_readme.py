"""What the README and the pages behind it show is run or compared with the code, so that it stays true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.main import get_command

from miniclaw_sessions.files.formats.registry import all_formats
from miniclaw_sessions.service.cli.app import app
from tests import http_page
from tests.command_line import serving
from tests.test_architecture import LAYERS

FORMATS = all_formats()

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "systemd/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]

PROGRAM = """
import anyio
from miniclaw_sessions import Message, SessionManager
async def main():
{}
anyio.run(main)
"""
"""What stands around an example that is only the inside of a coroutine."""

GIVEN = """
async with SessionManager("workspace") as manager:
    session = await manager.get_or_create("telegram", "123456789")
"""
"""What goes before one that goes on with the session of the first example."""


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def examples() -> list[object]:
    fence = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
    found = [(page.stem, code) for page in PAGES for code in fence.findall(text_of(page))]
    return [
        pytest.param(code, id=f"{name}-{place}", marks=[] if name == "README" else pytest.mark.proof)
        for place, (name, code) in enumerate(found)
    ]


def as_program(code: str) -> str:
    if "anyio.run(main)" in code:
        return code
    inside = code if "connect(" in code else GIVEN + textwrap.indent(code, "    ")
    return PROGRAM.format(textwrap.indent(inside, "    "))


@pytest.mark.parametrize("code", examples())
def test_every_python_example_prints_what_it_says_and_leaves_private_files(code: str, tmp_path: Path) -> None:
    program = as_program(code)
    says = re.findall(r"# prints: (.*)$", code, re.MULTILINE)

    with serving(tmp_path / "workspace") if "in_process=False" in code else nullcontext():
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "HOME": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert done.returncode == 0, done.stderr
    assert says
    assert done.stdout.splitlines() == says
    snapshots = list(tmp_path.glob("workspace/sessions/*"))
    wanted = ["telegram_123456789.json"] if "SessionManager(" in program or "connect(" in program else []
    assert [snapshot.name for snapshot in snapshots] == wanted
    assert all(snapshot.stat().st_mode & 0o777 == 0o600 for snapshot in snapshots)


def section(page: Path, title: str) -> str:
    """The text below a heading."""
    return text_of(page).partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def in_first_column(text: str) -> set[str]:
    cells = re.findall(r"^\| (`.*?`) +\|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([a-z-]+)", cell)}


def test_the_commands_in_the_table_are_those_that_exist() -> None:
    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert in_first_column(text_of(ROOT / "docs/reference/command-line.md")) == known


def test_the_formats_in_the_table_are_those_that_exist() -> None:
    table = text_of(ROOT / "docs/reference/formats.md")
    assert in_first_column(table) == {form.name for form in FORMATS}


def anchors(page: Path) -> set[str]:
    """What a link may name behind `#`, as forges make it of the headings."""
    titles = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w-]", "", title.lower().replace(" ", "-")) for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_files_and_headings_that_a_page_links_to_exist(page: Path) -> None:
    linked = re.findall(r"(?:\]\(|src=\")([^)#:\"]*)(?:#([^)]*))?[)\"]", text_of(page))
    for name, anchor in linked:
        target = page.parent / name if name else page
        assert target.exists(), name
        assert not anchor or anchor in anchors(target), f"{name}#{anchor}"


KINDS = {"learn": "Tutorial", "how-to": "How-to", "explanation": "Explanation", "reference": "Reference"}


def test_every_page_says_which_kind_it_is_and_stands_in_the_index() -> None:
    docs = ROOT / "docs"
    pages = {page.relative_to(docs).as_posix(): text_of(page) for page in docs.rglob("*.md")}
    index = pages.pop("README.md")
    for name, text in pages.items():
        kind = KINDS[name.partition("/")[0]] if "/" in name else "Explanation"
        assert text.startswith(f"# {kind}: "), name
        assert f"]({name})" in index, name


def test_the_page_about_http_has_every_operation_and_error() -> None:
    page = text_of(http_page.PAGE)
    assert page == http_page.with_tables(page), "run: python -m tests.http_page"


def test_the_page_about_the_architecture_has_the_layers_that_are_held() -> None:
    rows = re.findall(r"^\| (`.*?`) +\|", section(ROOT / "docs/architecture.md", "The rooms"), re.MULTILINE)
    assert [set(re.findall(r"`(\w+)`", row)) for row in rows] == LAYERS


def test_the_picture_of_the_storeys_has_every_room() -> None:
    drawn = set(re.findall(r'font-size="13">(\w+)</text>', text_of(ROOT / "docs/pictures/storeys.svg")))
    assert drawn == set[str]().union(*LAYERS) - {"__init__", "__main__"}


def numbers_in(text: str) -> set[str]:
    return set(re.findall(r"\d[\d,.]*\d|\d", re.sub(r"\]\([^)]*\)", "", text)))


def test_numbers_that_a_page_takes_from_the_measurements_stand_there() -> None:
    measured = text_of(ROOT / "benchmarks/RESULTS.md")
    below = {
        re.sub(r"[^\w-]", "", title.lower().replace(" ", "-")): text
        for title, text in re.findall(r"^##+ ([^\n]+)\n(.*?)(?=^##|\Z)", measured, re.DOTALL | re.MULTILINE)
    }
    page = section(ROOT / "docs/explanation/many-machines.md", "Numbers")
    rows = re.findall(r"^\| .*RESULTS\.md#([\w-]+)\).*$", page, re.MULTILINE)
    lines = [line for line in page.splitlines() if "RESULTS.md#" in line]
    assert len(rows) == len(lines) > 3
    for name, line in zip(rows, lines, strict=True):
        assert numbers_in(line) - numbers_in(below[name]) == set(), line
    (limit,) = re.findall(
        r"Its index takes ([\d.]+) times the text", section(ROOT / "docs/explanation/many-machines.md", "Limits")
    )
    assert f"takes {limit} times the text" in below["searching"]


def test_the_source_files_that_the_pages_name_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"`((?!my_bot/)(?:\w+/)+\w+\.(?:py|toml))`", text_of(page))}
    places = (ROOT, ROOT / "miniclaw_sessions", ROOT / "miniclaw_sessions/shipped", ROOT / "tests")
    assert "core/session/journal.py" in named
    assert sorted(name for name in named if not any((place / name).exists() for place in places)) == []
