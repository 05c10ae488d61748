"""What the README shows is run, so that it stays true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from miniclaw_sessions.cli.app import app
from miniclaw_sessions.formats.registry import FORMATS

README = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("code", blocks("python"))
def test_every_python_example_runs_and_leaves_private_files(code: str, tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "You said 2 things." in done.stdout
    (snapshot,) = (tmp_path / ".miniclaw/workspace/sessions").iterdir()
    assert snapshot.name == "telegram_123456789.json"
    assert snapshot.stat().st_mode & 0o777 == 0o600


def section(title: str) -> str:
    """The text below a heading."""
    return README.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def in_first_column(text: str) -> set[str]:
    cells = re.findall(r"^\| (`.*?`) +\|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([a-z-]+)", cell)}


def test_the_commands_in_the_table_are_those_that_exist() -> None:
    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert in_first_column(section("The command line")) == known


def test_the_formats_in_the_table_are_those_that_exist() -> None:
    assert in_first_column(section("Every format")) == {form.name for form in FORMATS}


def test_the_files_that_it_names_exist() -> None:
    text = README.read_text(encoding="utf-8")
    root = README.parent

    linked = re.findall(r"\]\(([^)#:]+)\)", text)
    sources = re.findall(r"`((?:gateway|persistence|history|manager|session)/\w+\.py|disk\.py)`", text)

    assert linked
    assert sources
    assert [name for name in linked if not (root / name).exists()] == []
    assert [name for name in sources if not (root / "miniclaw_sessions" / name).exists()] == []
