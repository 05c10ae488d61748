"""`import --discover` as people and scripts use it, and the daemon that keeps up by itself."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.agents import make_home
from tests.command_line import Cli, Terminal, running_daemon
from tests.files.discovery.test_follower import claude_file, put, user

_FIND = ("PI_CODING_AGENT_DIR", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "LLM_USER_PATH")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in _FIND:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return make_home(tmp_path / "home")


@pytest.fixture
def cli(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    assert home.exists()
    return Cli(tmp_path / "workspace", monkeypatch)


def test_a_script_is_told_what_there_is_and_takes_what_it_names(cli: Cli) -> None:
    document = cli("import", "--discover", "--json").document
    assert {one["program"]: one["sessions"] for one in document["programs"]} == {
        "pi": 1,
        "claude-code": 1,
        "codex": 1,
        "opencode": 1,
        "gemini-cli": 1,
        "llm": 2,
    }
    assert not cli.workspace.exists()
    result = cli("import", "--discover", "--program", "pi", "--program", "llm", "--json")
    assert sorted((one["program"], one["new"]) for one in result.document["imported"]) == [
        *(("llm", True), ("llm", True), ("pi", True))
    ]
    assert cli("import", "--discover", "--all", "--json").status == 0
    assert cli("import", "--discover", "--all", "--json").document["imported"] == []
    found = cli("search", "glacier", "--json").document
    assert len(found["results"]) == 1


def test_a_table_says_what_there_is(cli: Cli) -> None:
    result = cli("import", "--discover")
    assert result.status == 0
    assert [line.split("\t")[0] for line in result.out.splitlines()] == [
        *("pi", "claude-code", "codex", "opencode", "gemini-cli", "llm")
    ]
    assert "--all imports all of it" in result.err
    assert "sessions imported" in cli("import", "--discover", "--all").err


def test_what_was_imported_by_hand_is_kept_up_with(cli: Cli, home: Path) -> None:
    for file in home.rglob("*.jsonl"):
        assert cli("import", str(file)).status == 0
    document = cli("import", "--discover", "--all", "--json").document
    assert {one["program"] for one in document["imported"]} == {"opencode", "llm"}
    assert all(one["new"] for one in document["imported"])
    file = next((home / ".claude").rglob("*.jsonl"))
    put(file, [{**user("more", None, "said later"), "sessionId": file.stem}])
    (kept,) = cli("import", "--discover", "--all", "--json").document["imported"]
    assert (kept["session_id"], kept["messages"], kept["new"]) == (f"import_{file.stem}", 1, False)


def test_one_that_was_deleted_is_brought_back_by_its_id(cli: Cli) -> None:
    taken = cli("import", "--discover", "--program", "llm", "--json").document["imported"]
    for one in taken:
        assert cli("delete", one["session_id"], "--yes").status == 0
    told = cli("import", "--discover", "--program", "llm").err
    assert "2 sessions stay away" in told
    assert "`unarchive ID` one that has expired" in told
    (back,) = cli("import", "--discover", "--as", taken[0]["session_id"], "--json").document["imported"]
    assert (back["session_id"], back["new"]) == (taken[0]["session_id"], True)
    assert [one["session_id"] for one in cli("list", "--json").document["sessions"]] == [taken[0]["session_id"]]
    nobody = cli("import", "--discover", "--as", "import_nobody")
    assert nobody.status != 0
    assert "import_nobody" in nobody.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--discover", "--program", "clippy"], "there are pi, claude-code"),
        (["--discover", "a.jsonl"], "it finds the files itself"),
        (["--follow"], "it finds the files itself"),
        (["--discover", "--dry-run", "--as", "import_1"], "one of --as, --follow and --dry-run"),
        (["--discover", "--dry-run", "--all", "--follow"], "one of --as, --follow and --dry-run"),
        ([], "name files, or give --discover"),
    ],
)
def test_what_makes_no_sense_is_refused(cli: Cli, arguments: list[str], told: str) -> None:
    result = cli("import", *arguments)
    assert result.status != 0
    assert told in " ".join(result.err.replace("│", " ").split())


@pytest.mark.proof
def test_a_person_is_asked(cli: Cli) -> None:
    terminal = Terminal(cli.workspace, "import", "--discover")
    terminal.expect("Import which")
    terminal.type("codex, nonsense\r")
    terminal.expect("nonsense is none of them")
    terminal.type("codex\r")
    terminal.expect("1 session imported")
    assert terminal.end() == 0


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "miniclaw_sessions", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def next_line(process: subprocess.Popen[bytes], limit_s: float = 30.0) -> Any:
    """The next JSON document that it prints."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], limit_s)[0], "nothing came"
    return json.loads(process.stdout.readline())


@pytest.mark.proof
@pytest.mark.parametrize("holder", [running_daemon, nullcontext])
def test_a_message_of_another_program_is_shown_as_it_is_written(cli: Cli, home: Path, holder: Any) -> None:
    command = ("--workspace", str(cli.workspace), "import", "--discover", "--all", "--follow", "--json")
    with holder(cli.workspace), running(*command) as following:
        assert len(next_line(following)["imported"]) == 7
        for number in range(5):
            said = {**user(f"u{number}", None, "hi"), "sessionId": f"new{number % 2}"}
            put(claude_file(home, f"new{number % 2}"), [said])
            told = next_line(following)
            assert (told["messages"], told["new"]) == (1, number < 2)


def stored(cli: Cli) -> list[tuple[int, int]]:
    """What changes when something is stored."""
    return [(file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(cli.workspace.glob("sessions.db-wal"))]


@pytest.mark.proof
def test_whoever_is_killed_while_it_follows_has_everything_once_afterwards(cli: Cli, home: Path) -> None:
    command = ("--workspace", str(cli.workspace), "import", "--discover", "--program", "claude-code")
    file, total = claude_file(home), 0
    for _ in range(3):
        with running(*command, "--follow", "--json") as following:
            next_line(following)
            lines = [user(f"u{n}", f"u{n - 1}" if n else None, "said" * 50) for n in range(total, total + 4_000)]
            before = stored(cli)
            put(file, lines)
            total += len(lines)
            while stored(cli) == before:  # the first of them; the others are on their way
                time.sleep(0.01)
            following.kill()
            following.wait()
    assert cli("import", "--discover", "--all", "--json").status == 0
    document = cli("export", "import_s", "--format", "json").document
    ids = [entry["id"] for entry in document["entries"] if entry["type"] == "message"]
    assert ids == [f"u{number}" for number in range(total)]


@pytest.mark.proof
def test_the_daemon_keeps_up_by_itself(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINICLAW_FOLLOW_PROGRAMS", "*")
    with running("--workspace", str(cli.workspace), "serve") as daemon:
        assert daemon.stderr is not None
        put(claude_file(home), [user("u", None, "said to another program")])
        taken = 0
        while taken < 8:
            line = daemon.stderr.readline()
            assert line, "the daemon ended"
            taken += b"follow.taken" in line
        found = cli("search", "said to another program", "--json").document
        assert [one["session_id"] for one in found["results"]] == ["import_s"]
