"""Session files on the command line: taken in, written out."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.files.formats.registry import all_formats
from miniclaw_sessions.service.cli.importing import found_files
from miniclaw_sessions.service.cli.transfer import EXPORTED, IMPORTED
from tests.command_line import NASTY, UNSAFE, Cli, Terminal, serving, session_ids, shape
from tests.sampled import sampled

FORMATS = all_formats()
READABLE = [form for form in FORMATS if form.is_read]
WRITABLE = [form for form in FORMATS if form.is_written]

DATA = Path(__file__).parents[2] / "data"
PI = DATA / "pi-v3-resumed-session.jsonl"
LARGE = DATA / "pi-v1-large-session.jsonl"
NO_SESSION = DATA / "pi-v3-json-mode-stdout.jsonl"
PI_ID = "import_019e742e-9d84-7578-90d7-674f47fc7c07"
WIDTH = 80
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line on an empty workspace."""
    cli = Cli(tmp_path / "workspace", monkeypatch)
    cli.workspace.mkdir(mode=0o700)
    return cli


@pytest.fixture(params=sampled(["files", "daemon"], every=2))
def cli(files: Cli, request: pytest.FixtureRequest) -> Iterator[Cli]:
    """The same, and on a daemon that holds it."""
    with serving(files.workspace) if request.param == "daemon" else nullcontext():
        yield files


def entry_line(number: int) -> dict[str, Any]:
    """A line of document 003."""
    return {
        "type": "message",
        "id": f"entry-{number}",
        "parent_id": f"entry-{number - 1}" if number else None,
        "timestamp": "2026-03-14T09:00:00Z",
        "message": {"role": "user", "content": [{"type": "text", "text": {"content": f"question {number}"}}]},
    }


def write_session(path: Path, lines: list[Any]) -> Path:
    header = {"type": "session", "id": path.stem, "version": 1, "timestamp": "2026-03-14T09:00:00Z"}
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in [header, *lines]))
    return path


# --- in --------------------------------------------------------------------------------------------------------------


def test_a_file_becomes_a_session_and_is_reported(cli: Cli) -> None:
    before = PI.stat().st_mtime_ns, PI.read_bytes()
    document = cli("import", str(PI), "--json").document
    (report,) = document["imported"]
    assert report.pop("seconds") >= 0
    assert report == {
        "path": str(PI),
        "session_id": PI_ID,
        "format": "pi",
        "title": None,
        "entries": 6,
        "messages": 4,
        "repaired": 0,
        "set_aside": 0,
        "findings": [],
        "bytes_read": PI.stat().st_size,
        "dry_run": False,
    }
    assert document["refused"] == document["skipped"] == []
    assert session_ids(cli) == {PI_ID}
    assert len(cli("show", PI_ID, "--json").document["messages"]) == 4
    assert (PI.stat().st_mtime_ns, PI.read_bytes()) == before


def test_what_is_no_session_is_refused_and_the_others_go_on(cli: Cli, tmp_path: Path) -> None:
    result = cli("import", str(NO_SESSION), str(tmp_path / "nothing.jsonl"), str(PI))
    assert result.status == 1
    (row,) = (line.split("\t") for line in result.out.splitlines())
    assert (row[:6], row[7:]) == ([str(PI), "pi", "6", "4", "0", "0"], [PI_ID, ""])
    assert f"refused: {NO_SESSION}: this is the event stream that pi prints in its JSON mode" in result.err
    assert f"refused: {tmp_path}/nothing.jsonl: No such file or directory\n" in result.err
    (other := tmp_path / "letter.txt").write_text("Dear Ada,")
    assert "if it is one, name its format (--format NAME)" in cli("import", str(other)).err
    assert session_ids(cli) == {PI_ID}


def test_a_session_that_exists_is_not_touched(cli: Cli) -> None:
    assert cli("import", str(PI)).status == 0
    again = cli("import", str(PI), "--json")
    assert again.status == 1
    (refused,) = again.document["refused"]
    assert "exists already; delete it first, or choose another name with --as; --skip-existing" in refused["reason"]
    assert cli("import", str(PI), "--as", "telegram_5").status == 0
    assert session_ids(cli) == {PI_ID, "telegram_5"}


def test_in_a_directory_what_is_no_session_is_skipped(cli: Cli) -> None:
    document = cli("import", str(DATA), "--json", "--dry-run").document
    assert [Path(report["path"]) for report in document["imported"]] == [LARGE, PI]
    assert [Path(one["path"]) for one in document["skipped"]] == [DATA / "ORIGIN.md", NO_SESSION]
    result = cli("import", str(DATA))
    assert result.status == 0
    assert [line.split(": ")[:2] for line in result.err.splitlines()] == [
        ["skipped", str(DATA / "ORIGIN.md")],
        ["skipped", str(NO_SESSION)],
    ]
    again = cli("import", str(DATA), "--json", "--dry-run").document
    assert [Path(one["path"]) for one in again["refused"]] == [LARGE, PI]  # they exist now


def test_which_files_of_a_directory_are_meant(tmp_path: Path) -> None:
    (tmp_path / "inner" / ".hidden").mkdir(parents=True)
    for name in ("b", "a", ".c", "inner/d", "inner/.hidden/e"):
        (tmp_path / name).touch()
    (tmp_path / "circle").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")

    def found(*, recursive: bool) -> list[str]:
        paths = [tmp_path / "a", tmp_path]
        return [str(file.path.relative_to(tmp_path)) for file in found_files(paths, recursive=recursive)]

    assert found(recursive=False) == ["a", "b"]
    assert found(recursive=True) == ["a", "b", "inner/d"]
    assert [file.is_named for file in found_files([tmp_path / "a", tmp_path], recursive=False)] == [True, False]
    assert [file.problem for file in found_files([tmp_path / "pipe"], recursive=False)] == ["it is not a regular file"]


def test_a_dry_run_reports_and_makes_nothing(cli: Cli) -> None:
    document = cli("import", str(PI), "--dry-run", "--json").document
    assert document["imported"][0]["dry_run"] is True
    assert document["imported"][0]["entries"] == 6
    told = cli("import", str(PI), "--dry-run")
    assert PI_ID in told.out
    assert "nothing was imported" in told.err
    assert session_ids(cli) == set()


def test_a_format_that_there_is_not_is_refused_with_those_that_there_are(cli: Cli) -> None:
    said = cli("import", str(PI), "--format", "nonsense")
    assert said.status == 2
    assert "'nonsense' is not one of 'jsonl', 'pi'" in said.error
    assert "Value error" not in said.error


def test_a_format_that_is_named_is_the_one_that_counts(cli: Cli) -> None:
    result = cli("import", str(PI), "--format", "nanobot", "--json")
    assert result.status == 1
    assert len(result.document["refused"]) == 1
    assert cli("import", str(PI), "--format", "pi").status == 0


def test_the_first_findings_are_shown_and_all_when_asked(cli: Cli, tmp_path: Path) -> None:
    broken = [f'{{"torn": {number}' for number in range(25)]
    path = write_session(tmp_path / "broken.jsonl", [entry_line(0), *broken, entry_line(1)])
    result = cli("import", str(path), "--dry-run")
    assert result.status == 0
    assert re.search(r"\tjsonl\t2\t2\t\d+\t25\t", result.out)
    _, path_told, *findings = result.err.splitlines()
    assert path_told == str(path)
    shown = [line for line in findings if line.startswith("  line ")]
    assert len(shown) == 20
    assert shown[0].startswith("  line 3  set aside  not valid JSON: ")
    assert re.fullmatch(r"  \d+ more; --verbose shows them", next(line for line in findings if "more" in line))
    everything = cli("import", str(path), "--dry-run", "--verbose").err
    assert everything.count("  set aside  ") == 25
    assert "more" not in everything


def test_a_title_of_strangers_is_shown_and_not_obeyed(files: Cli, tmp_path: Path) -> None:
    title = {"type": "session_info", "id": "t", "parent_id": None, "timestamp": "2026-03-14T09:00:00Z", "name": NASTY}
    path = write_session(tmp_path / f"named\x1b[31m{'x' * 80}.jsonl", [title])
    (tmp_path / "nothing\x1b[31m").touch()
    result = files("import", str(path), str(tmp_path / "nothing\x1b[31m"))
    assert result.status == 1
    assert not UNSAFE.search(result.out + result.err)
    assert "red \\x1b[31mtext" in result.out


@pytest.mark.parametrize(
    "arguments",
    [
        ["import"],
        ["import", str(PI), str(LARGE), "--as", "a_1"],
        ["import", str(DATA), "--as", "a_1"],
        ["import", str(PI), "--format", "html"],
        ["export", "a_1", "--format", "codex"],
    ],
)
def test_what_makes_no_sense_is_wrong_usage(files: Cli, arguments: list[str]) -> None:
    result = files(*arguments)
    assert result.status == 2
    assert "--help explains" in result.error


def test_an_import_makes_the_workspace_and_a_dry_run_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = Cli(tmp_path / "new", monkeypatch)
    assert "`import` make one" in cli("import", str(PI), "--dry-run").error
    assert not cli.workspace.exists()
    assert cli("import", str(PI)).status == 0
    assert session_ids(cli) == {PI_ID}


def test_a_wrong_session_id_is_refused(cli: Cli) -> None:
    result = cli("import", str(PI), "--as", "../etc", "--json")
    assert result.status == 1
    assert "is not a session id" in result.document["refused"][0]["reason"]


@pytest.mark.proof
@pytest.mark.parametrize("has_daemon", [False, True])
def test_in_a_terminal_an_import_shows_how_far_it_is(files: Cli, tmp_path: Path, *, has_daemon: bool) -> None:
    path = write_session(tmp_path / "long.jsonl", [entry_line(number) for number in range(12_000)])
    with serving(files.workspace) if has_daemon else nullcontext():
        terminal = Terminal(files.workspace, "import", str(path), columns=WIDTH, patience_s=0.001)
        assert terminal.end() == 0
    seen = terminal.seen
    size = path.stat().st_size / 1e6
    progress = re.findall(r"Importing .*?(\d+\.\d) (k|M)B of (\d+\.\d) MB", _CONTROLS.sub("", seen))
    assert progress, seen
    assert {float(total) for _, _, total in progress} == {round(size, 1)}
    heading, row, session, _ = _CONTROLS.sub("", seen[seen.rindex("FILE") :]).replace("\r", "").split("\n")
    assert len(heading) == len(row) == WIDTH
    assert re.fullmatch(r"….*long\.jsonl  jsonl +12000 +12000 +0 +0 +\d+\.\d", row)
    assert session == "  → import_long"


# --- out -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", EXPORTED)
def test_every_format_is_written_the_same_by_a_daemon_and_from_the_files(files: Cli, form: str) -> None:
    assert files("import", str(PI), "--as", "a_1").status == 0
    written = files("export", "a_1", "--format", form)
    assert (written.status, written.err) == (0, "")
    with serving(files.workspace):
        by_daemon = files("export", "a_1", "--format", form)
    if form == "json":
        assert shape(by_daemon.document) == shape(written.document)
    else:
        assert by_daemon == written


def test_what_is_exported_can_be_imported_and_is_the_same(cli: Cli, tmp_path: Path) -> None:
    assert cli("import", str(LARGE), "--as", "a_1").status == 0
    output = tmp_path / "out.jsonl"
    assert cli("export", "a_1", "--output", str(output)).err == f"{output.stat().st_size:,} bytes written to {output}\n"
    (report,) = cli("import", str(output), "--as", "a_2", "--json").document["imported"]
    assert (report["repaired"], report["set_aside"]) == (0, 0)
    first, second = (cli("export", session_id).out.splitlines() for session_id in ("a_1", "a_2"))
    assert len(first) > 1000
    assert first[1:] == second[1:]  # the first line is the header with the id


@pytest.mark.proof
def test_an_export_with_a_daemon_reaches_a_terminal_with_every_character_whole(files: Cli) -> None:
    text = "é漢" * 60_000  # the daemon sends pieces of 64 KiB, some of which end in the middle of a character

    async def fill() -> None:
        async with SessionManager(files.workspace) as manager:
            await (await manager.get_or_create("a", 1)).add_message(Message.user(text))

    anyio.run(fill)
    with serving(files.workspace):
        terminal = Terminal(files.workspace, "export", "a_1", "--format", "jsonl")
        assert terminal.end() == 0
    assert text in terminal.seen


# --- formats ---------------------------------------------------------------------------------------------------------


def test_the_choices_are_what_the_registry_has() -> None:
    assert set(EXPORTED) - {"json"} == {form.name for form in WRITABLE}
    assert set(IMPORTED) == {form.name for form in READABLE}
    assert "json" not in {form.name for form in FORMATS}


def test_the_formats_are_listed_with_what_they_lose(cli: Cli) -> None:
    listed = cli("formats", "--json").document["formats"]
    assert [(form["name"], form["about"], form["suffix"]) for form in listed[:-1]] == [
        (form.name, form.about, form.suffix) for form in FORMATS
    ]
    own = listed.pop()
    assert (own["name"], own["read"], own["write"]) == ("json", False, True)
    assert {form["name"] for form in listed if form["write"]} | {"json"} == set(EXPORTED)
    listed.append(own)
    assert {form["name"] for form in listed if form["read"]} == {form.name for form in READABLE}
    rows = cli("formats").out.splitlines()
    assert [row.split("\t")[:3] for row in rows] == [
        [form["name"], *("yes" if form[can] else "-" for can in ("read", "write"))] for form in listed
    ]


def test_the_formats_need_no_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = Cli(tmp_path / "none", monkeypatch)
    assert cli("formats").status == 0
    assert not cli.workspace.exists()
