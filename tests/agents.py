"""A home with what other programs wrote: their own files, as `tests/data/agents` has them; see its ORIGIN.md."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

from miniclaw_sessions.files.discovery.databases import lines_of, sessions_in

AGENTS = Path(__file__).parent / "data" / "agents"
DATABASES = {
    "opencode": Path(".local/share/opencode/opencode.db"),
    "llm": Path(".config/io.datasette.llm/logs.db"),
}


def make_home(home: Path) -> Path:
    """Put the files and databases of all programs into a home."""
    for directory in AGENTS.glob(".*"):
        shutil.copytree(directory, home / directory.name)
    for name in DATABASES:
        make_database(home, name)
    return home


def make_database(home: Path, name: str, script: str | None = None) -> Path:
    """A program's database in a home."""
    path = home / DATABASES[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    connection.executescript((AGENTS / f"{name}.sql").read_text() if script is None else script)
    connection.close()
    return path


def file_of(directory: str) -> Path:
    """The one file of a program, such as `.codex`."""
    (file,) = (AGENTS / directory).rglob("*.jsonl")
    return file


def written(directory: str) -> list[Any]:
    """The lines of a program's file, as JSON."""
    return [json.loads(line) for line in file_of(directory).read_text().splitlines()]


def out_of(name: str, path: Path) -> list[list[Any]]:
    """The lines of each session in a database, as JSON."""
    return [[json.loads(line) for line in lines_of(name, path, one.id)] for one in sessions_in(name, path)]
