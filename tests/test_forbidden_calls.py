"""What the package never does: run what it has stored, ask a shell, or change the process for everybody (S27, R33)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import miniclaw_sessions

ROOT = Path(miniclaw_sessions.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "subprocess", "pty", "code"}
"""They turn bytes into running code, or start programs."""

BUILT_IN = {"eval", "exec", "compile", "__import__"}

OF_THE_SYSTEM = {"system", "popen", "umask", "chdir", "setuid", "putenv", "fork", "forkpty"}
"""Of the module `os`; the umask and the working directory belong to every thread of the process."""


def offences(source: str) -> list[str]:
    """What a file does of that, with the line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: set[str] = set()
        if isinstance(node, ast.Import):
            names = {alias.name.partition(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").partition(".")[0]} & MODULES
            names |= {alias.name for alias in node.names} & OF_THE_SYSTEM if node.module == "os" else set()
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names = {node.func.id} & BUILT_IN
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            calls = OF_THE_SYSTEM if node.value.id == "os" else set()
            names = {node.attr} & calls or ({node.attr} if node.attr.startswith(("spawn", "exec")) and calls else set())
        found += [f"line {getattr(node, 'lineno', 0)}: {name}" for name in sorted(names)]
    return found


def test_no_file_runs_what_it_reads() -> None:
    found = {file.relative_to(ROOT).as_posix(): offences(file.read_text(encoding="utf-8")) for file in FILES}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        *("import pickle", "from yaml import load", "eval(text)", "exec(text)", "import subprocess"),
        *("os.umask(0)", "from os import umask", "os.system('ls')", "os.execv('a', [])"),
    ],
)
def test_an_offence_is_found(source: str) -> None:
    assert len(offences(source)) == 1
