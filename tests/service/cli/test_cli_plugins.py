"""`plugins`: what is installed and whether it works; and packages that `plugins new` writes, tested as they are."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import Cli
from tests.test_plugin_templates import FILES

KINDS = {
    "channel": "pager",
    "tool": "weather",
    "hook": "ledger",
    "provider": "echo",
    "store": "mirror",
    "format": "night_notes",
}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path / "workspace", monkeypatch)


def installed(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave in the path of this process what an installer leaves of a package."""
    name = package.name.removeprefix("miniclaw-").replace("-", "_")
    group, point = re.findall(r'entry-points."(.+)"\]\n(.+)', (package / "pyproject.toml").read_text())[0]
    about = package / f"miniclaw_{name}-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package.name}\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{point.replace(chr(34), '')}\n")
    monkeypatch.syspath_prepend(str(package))
    importlib.invalidate_caches()


def rows(cli: Cli, *arguments: str) -> dict[str, dict[str, Any]]:
    listed = cli("plugins", *arguments, "--json").document["plugins"]
    return {f"{row['kind']} {row['name']}": row for row in listed}


def test_each_kind_that_is_written_is_loaded_and_its_name_is_the_new_one(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, name in KINDS.items():
        done = cli("plugins", "new", kind, name)
        assert (done.status, "pip install -e . pytest && pytest" in done.err) == (0, True)
        package = tmp_path / f"miniclaw-{name.replace('_', '-')}"
        monkeypatch.delitem(sys.modules, f"miniclaw_{name}", raising=False)
        assert f"miniclaw_{name}" in (package / "README.md").read_text() + (package / "pyproject.toml").read_text()
        assert "@" not in (package / "README.md").read_text()
        installed(package, monkeypatch)
    listed = rows(cli)
    for kind, name in KINDS.items():
        row = listed[f"{kind} {name}"]
        assert (row["refused"], row["package"]) == (None, f"miniclaw-{name.replace('_', '-')} 0.1")
        assert row["used"] is (kind == "format")  # an installed format is compared with every file

    config = tmp_path / "miniclaw.toml"
    config.write_text(
        '[channels.pager]\nallow = ["ada"]\n[hooks.ledger]\n[model]\ntools = ["wea*"]\nprovider = "echo"\nmodel = "m"\n'
        '[sessions]\nstore = "mirror:/tmp/kept"\n'
    )
    assert {name for name, row in rows(cli, "--config", str(config)).items() if row["used"]} == {
        f"{kind} {name}" for kind, name in KINDS.items()
    }


@pytest.mark.proof
def test_the_tests_of_every_written_package_pass(cli: Cli, tmp_path: Path) -> None:
    packages = []
    for kind, name in KINDS.items():
        assert cli("plugins", "new", kind, name, "--directory", f"{kind}s").status == 0
        packages.append(tmp_path / f"{kind}s")
    path = {"PYTHONPATH": ":".join([str(Path.cwd()), *map(str, packages), *sys.path])}
    pytest_options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "-c",
        "/dev/null",
        "--rootdir",
        str(tmp_path),
    ]
    command = [sys.executable, "-m", "pytest", *pytest_options, *map(str, packages)]
    done = subprocess.run(command, env=path, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d\d passed", done.stdout)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("channel", "folder"), ("tool", "dice"), ("provider", "parrot"), ("store", "logged"), ("format", "diary")],
)
def test_the_page_shows_what_is_written(cli: Cli, tmp_path: Path, kind: str, name: str) -> None:
    assert cli("plugins", "new", kind, name).status == 0
    assert (tmp_path / f"miniclaw-{name}" / f"miniclaw_{name}.py").read_text() == FILES[f"my_bot/{name}.py"]


def test_one_that_does_not_work_is_listed_with_the_reason(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_letters.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = tmp_path / "miniclaw.toml"
    config.write_text('[channels.letters]\ntype = "broken_letters:Letters"\n[channels.second]\ntype = "telegrm"\n')
    listed = rows(cli, "--config", str(config))
    assert "No module named 'no_such_package'" in listed["channel letters"]["refused"]
    assert (listed["channel letters"]["package"], listed["channel letters"]["used"]) == ("", True)
    assert "did you mean telegram?" in listed["channel second"]["refused"]
    assert listed["channel email"]["refused"] is None
    text = cli("plugins", "--config", str(config)).out
    assert re.search(r"channel\tletters\tbroken_letters:Letters\tyes\trefused: .*no_such_package", text)


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("channel", "email", "there is a channel 'email' already, of miniclaw-sessions"),
        ("tool", "My-Tool", "a name begins with a lower-case letter"),
        ("tool", "class", "a name begins with a lower-case letter"),
        ("tool", "../away", "a name begins with a lower-case letter"),
        ("tool", "x" * 41, "at most 40"),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(
    cli: Cli, tmp_path: Path, kind: str, name: str, says: str
) -> None:
    refused = cli("plugins", "new", kind, name)
    assert (refused.status, says in refused.error) == (1, True)
    assert [*tmp_path.iterdir()] == []


def test_what_is_there_already_is_not_written_over(cli: Cli, tmp_path: Path) -> None:
    assert cli("plugins", "new", "tool", "weather").status == 0
    file = tmp_path / "miniclaw-weather" / "miniclaw_weather.py"
    file.write_text("mine")
    assert "is there already; --force replaces it" in cli("plugins", "new", "tool", "weather").error
    assert file.read_text() == "mine"
    assert cli("plugins", "new", "tool", "weather", "--force").status == 0
    assert file.read_text() != "mine"
