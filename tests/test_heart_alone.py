"""The heart alone: a wheel of the ground and `core` installs without extras, works, and passes its own tests.

The wheel also has the test kit but for its model, because the tests use it.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import miniclaw_sessions
from tests.installed import Installed
from tests.sampled import part
from tests.source_files import PACKAGE, ROOT, source_of
from tests.test_architecture import storey_of

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1800)]

SOURCE = ROOT.parent
TESTS = SOURCE / "tests"

LEFT_OUT = ("__main__.py", "testing/provider.py")
"""Files of the ground and of the test kit that need other storeys."""

NOT_OF_HEART = re.compile(
    r"^\[(project\.scripts|project\.entry-points.*|tool\.hatch\.build\.targets\.wheel\.force-include)\][^[]*",
    re.MULTILINE,
)
"""The tables of pyproject.toml that name files of other storeys."""

TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "blockbuster", "cryptography")
"""What the tests need besides the wheel; cryptography for those of encryption, which is an extra."""

THEIRS = {
    *("aiofiles", "alembic", "anyio", "msgspec", "orjson", "sqlalchemy", "structlog", "uuid_utils"),
    *("blockbuster", "cryptography", "hypothesis", "pytest", "xdist"),
}
"""The other packages that a test of the heart may import."""

SERVER = TESTS / "postgresql.py"
NO_SERVER = '''
"""There is no server of a database here: a test that asks for one is skipped."""

from contextlib import contextmanager
from pathlib import Path

import pytest

IN_MEMORY = Path("/dev/shm")

class PostgreSQLServer: ...

@contextmanager
def running_server(*_):
    pytest.skip("the heart alone has no driver of PostgreSQL")
    yield
'''


def of_heart(file: Path) -> bool:
    """Whether a file of the package is in the wheel of the heart."""
    name = file.relative_to(ROOT).as_posix()
    return (storey_of(file) in ("ground", "core", "testing") or name == "__init__.py") and name not in LEFT_OUT


def is_usable(file: Path) -> bool:
    """Whether a file of the package is in the wheel, and loads without an extra."""
    others = {one.module.partition(".")[0] for one in source_of(file).imported(at_top=True)}
    return of_heart(file) and others <= {PACKAGE, *THEIRS, *sys.stdlib_module_names}


def imported_by(file: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it, and every name that it takes of one."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_named(module: str) -> Path | None:
    """The file of a module of the package or of the tests; None of a name that is none."""
    place = SOURCE / module.replace(".", "/")
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def needed_by(test: Path) -> set[Path] | None:
    """The files of `tests` that a test needs, itself among them; None where it needs more than the heart."""
    looked_at = [test, *(file for folder in test.parents if (file := folder / "conftest.py").is_file())]
    needed = set(looked_at)
    for file in looked_at:
        for name in imported_by(file):
            first, _, public = name.partition(".")
            found = file_named(name) if first in (PACKAGE, "tests") else None
            if first == PACKAGE:
                module = miniclaw_sessions._MODULES.get(public)
                found = file_named(f"{PACKAGE}.{module}") if module is not None else found
                if name.endswith(".ScriptedProvider") or (found is not None and not is_usable(found)):
                    return None
            elif found is not None and found != SERVER and found not in needed:
                needed.add(found)
                looked_at.append(found)
            elif first != "tests" and first not in sys.stdlib_module_names and first not in THEIRS:
                return None
    return needed


def copy(file: Path, target: Path) -> None:
    place = target / file.relative_to(SOURCE)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, place)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    home = tmp_path_factory.mktemp("heart")
    source = home / "source"
    files = [file for file in ROOT.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    for file in filter(of_heart, files):
        copy(file, source)
    project = (SOURCE / "pyproject.toml").read_text(encoding="utf-8")
    (source / "pyproject.toml").write_text(NOT_OF_HEART.sub("", project), encoding="utf-8")
    for name in ("README.md", "LICENSE"):
        copy(SOURCE / name, source)
    return Installed.of_source(source, home, *TOOLS)


def test_it_keeps_a_conversation(alone: Installed) -> None:
    program = """
import anyio
from miniclaw_sessions import Message, SessionManager

async def main():
    async with SessionManager("w") as manager:
        session = await manager.get_or_create("telegram", "1")
        await session.add_message(Message.user("hello"))
    async with SessionManager("w") as manager:
        print([message.text for message in await manager.get_session_history("telegram", "1")])

anyio.run(main)
"""
    done = alone.run("python", "-c", program)
    assert (done.returncode, done.stdout) == (0, "['hello']\n"), done.stderr


@pytest.mark.parametrize(("name", "storey"), [("Agent", "agent"), ("import_file", "files"), ("connect", "service")])
def test_a_name_of_another_storey_says_what_is_missing(alone: Installed, name: str, storey: str) -> None:
    done = alone.run("python", "-c", f"from miniclaw_sessions import {name}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        f"ConfigError: {name} is in miniclaw_sessions.{storey}, which this installation lacks: "
        "install the whole package, `pip install .` in a checkout"
    )


def test_it_passes_its_own_tests(alone: Installed) -> None:
    tests = sorted((TESTS / "core").rglob("test_*.py"))
    needed = {test: files for test in tests if (files := needed_by(test)) is not None}
    assert len(needed) > len(tests) / 2, "most tests of the heart need nothing else"
    place = alone.home / "tests-of-the-heart"
    for file in {TESTS / "event_loop.py", *set[Path]().union(*map(needed.__getitem__, part(list(needed))))}:
        copy(file, place)
    shutil.copytree(TESTS / "data", place / "tests/data", dirs_exist_ok=True)
    (place / SERVER.relative_to(SOURCE)).write_text(NO_SERVER)
    shutil.copy(SOURCE / "pyproject.toml", place)
    command = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "tests")
    done = alone.run(*command, directory=place, timeout=1700)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
