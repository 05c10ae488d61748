"""What the package never does: run what it has stored, ask a shell, or change the process for everybody (S27, R33)."""

from __future__ import annotations

import pytest

from tests.source_files import FILES, ROOT, SourceFile, source_of

MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "subprocess", "pty", "code"}
"""They turn bytes into running code, or start programs."""

BUILT_IN = {"eval", "exec", "compile", "__import__"}

OF_THE_SYSTEM = {"system", "popen", "umask", "chdir", "setuid", "putenv", "fork", "forkpty"}
"""Of the module `os`; the umask and the working directory belong to every thread of the process."""


def offences(source: SourceFile) -> list[str]:
    """What a file does of that, with the line."""
    found = {(one.line, one.module.partition(".")[0]) for one in source.imports}
    found = {(line, name) for line, name in found if name in MODULES}
    found |= {
        (one.line, name) for one in source.imports if one.module == "os" for name in one.names if name in OF_THE_SYSTEM
    }
    found |= {(line, name) for name, line in source.called if name in BUILT_IN}
    for name, line in source.attributes:
        module, _, call = name.partition(".")
        if module == "os" and (call in OF_THE_SYSTEM or call.startswith(("spawn", "exec"))):
            found.add((line, call))
    return [f"line {line}: {name}" for line, name in sorted(found)]


def test_no_file_runs_what_it_reads() -> None:
    found = {file.relative_to(ROOT).as_posix(): offences(source_of(file)) for file in FILES}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        *("import pickle", "from yaml import load", "eval(text)", "exec(text)", "import subprocess"),
        *("os.umask(0)", "from os import umask", "os.system('ls')", "os.execv('a', [])"),
    ],
)
def test_an_offence_is_found(source: str) -> None:
    assert len(offences(SourceFile(source))) == 1
