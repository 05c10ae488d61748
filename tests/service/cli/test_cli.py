"""The command line, as people and scripts use it: on files, and on a daemon."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import pytest

from miniclaw_sessions import Message, SessionManager, ToolCall
from miniclaw_sessions.config import option_names
from miniclaw_sessions.printable import printable
from miniclaw_sessions.service.cli import settings
from miniclaw_sessions.service.cli.app import COMMANDS
from miniclaw_sessions.service.cli.chat import COMMANDS as CHAT_COMMANDS
from tests.command_line import (
    NASTY,
    START_LIMIT_S,
    UNSAFE,
    Cli,
    Result,
    Terminal,
    filled_by,
    running_daemon,
    serving,
    shape,
)

pytestmark = pytest.mark.usefixtures("own_home")


def fill(workspace: Path) -> None:
    """A conversation with everything in it, and a few others."""

    async def run() -> None:
        async with SessionManager(workspace) as manager:
            session = await manager.get_or_create("telegram", 123)
            session.update(title=f"Trip {NASTY}")
            await session.add_message(Message.user(f"Hello {NASTY}\n## Assistant"))
            call = ToolCall("c1", "weather", '{"city": "Rome"}')
            await session.add_message(Message.assistant("Let me look.", (call,)))
            await session.add_message(Message.tool_result(call, "sunny"))
            await session.add_message(Message.assistant("Sunny in Rome, 25 °C."))
            session.update(model="gpt-x", provider="openai")
            for number in range(3):
                other = await manager.get_or_create("a_b", f"c/{number}")
                await other.add_message(Message.user("hi"))

    anyio.run(run)


@pytest.fixture
def filled(cli: Cli) -> Cli:
    filled_by(fill, cli.workspace)
    return cli


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a directory, with its time of modification and content."""
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


# --- help and usage --------------------------------------------------------------------------------------------------


def test_help_names_every_command_and_says_what_the_exit_statuses_mean(cli: Cli) -> None:
    result = cli("--help")
    assert result.status == 0
    assert [name for name in COMMANDS if name not in result.out] == []
    assert "Exit status: 0 done" in result.out


def test_what_the_list_of_commands_says_is_what_each_says_itself(cli: Cli) -> None:
    for name, (_, summary) in COMMANDS.items():
        said = " ".join(cli(name, "--help").out.split())
        assert summary.removesuffix(".") in said, name


def test_no_command_at_all_shows_the_help(cli: Cli) -> None:
    assert cli() == cli("--help")


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_commands_help_has_examples_and_the_shared_options(cli: Cli, name: str) -> None:
    one_of = {"systemd": ["install"], "reminders": ["add"]}  # that do nothing themselves
    result = cli(name, *one_of.get(name, ()), "--help")
    assert result.status == 0
    for expected in ("Examples", f"miniclaw-sessions {name}", "--workspace", "--config", "--json", "--debug"):
        assert expected in result.out
    assert "bool" not in result.out  # a flag takes no value


@pytest.mark.parametrize("name", ["systemd", "reminders"])
def test_what_does_nothing_itself_shows_its_help_and_says_so(cli: Cli, name: str) -> None:
    result = cli(name)
    assert (result.status, "Commands" in result.out) == (2, True)
    assert result.error == f"no command is named (miniclaw-sessions {name} --help explains)"


def test_a_paragraph_of_help_is_wrapped_by_the_terminal_alone(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    said = next(line for line in cli("migrate", "--help").out.splitlines() if "A daemon may go on" in line)
    assert "what is said afterwards by running this again" in said


def test_the_version_is_shown(cli: Cli) -> None:
    assert re.fullmatch(r"miniclaw-sessions \d+\.\d+\.\d+\S*\n", cli("--version").out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lst"], "No such command 'lst'"),
        (["list", "--jsn"], "No such option: --jsn"),
        (["show"], "Missing argument 'SESSION'"),
        (["list", "--limit", "many"], "Invalid value for '--limit'"),
        (["export", "a_1", "--format", "pdf"], "Invalid value for '--format'"),
        (["serve", "--window", "x"], "Invalid value for '--window'"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line_with_status_2(cli: Cli, arguments: list[str], said: str) -> None:
    result = cli(*arguments)
    assert result.status == 2
    assert said in result.error
    assert "--help explains" in result.error


def modules_after(*arguments: str) -> set[str]:
    """What a fresh process has loaded when it has run a command line."""
    code = f"import sys; from miniclaw_sessions.service.cli import main; main({list(arguments)}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.splitlines()[-1].split())


def test_the_version_and_the_list_of_commands_load_no_command() -> None:
    assert not {"typer", "rich", "asyncio", "msgspec", "structlog"} & modules_after("--version")
    commands = {f"miniclaw_sessions.service.cli.{module}" for module, _ in COMMANDS.values()}
    assert not {*commands, "asyncio", "sqlalchemy", "httpx2", "starlette", "structlog"} & modules_after("--help")


def test_a_help_loads_no_parser_of_markdown_and_no_highlighter_and_leaves_them_to_who_needs_them() -> None:
    code = (
        "import sys; from miniclaw_sessions.service.cli import main; main(['show', '--help']); "
        "heavy = {'markdown_it', 'pygments', 'rich.markdown', 'rich.traceback'} & {*sys.modules}; "
        "from rich.markdown import Markdown; from rich.traceback import Traceback; "
        "print(heavy, Markdown('*a*').markup, Traceback.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "set() *a* rich.traceback"


@pytest.mark.usefixtures("served")
def test_a_command_that_asks_a_daemon_loads_no_store_no_manager_and_no_log(filled: Cli) -> None:
    loaded = modules_after("list", "--workspace", str(filled.workspace))
    assert "miniclaw_sessions.service.client.http" in loaded
    rooms = ("core.manager", "core.session", "core.stores", "core.persistence", "agent")
    heavy = {f"miniclaw_sessions.{room}" for room in rooms}
    assert not {*heavy, "sqlalchemy", "starlette", "structlog", "pydantic", "aiofiles"} & loaded


def test_a_command_loads_no_other() -> None:
    loaded = modules_after("list", "--help")
    assert "miniclaw_sessions.service.cli.sessions" in loaded
    assert (
        not {
            "miniclaw_sessions.service.cli.chat",
            "miniclaw_sessions.service.cli.transfer",
            "miniclaw_sessions.service.cli.serve",
        }
        & loaded
    )
    assert not {"sqlalchemy", "starlette", "uvicorn", "structlog", "miniclaw_sessions.core.manager"} & loaded


def test_a_process_that_runs_one_command_never_walks_over_what_it_has_loaded() -> None:
    code = (
        "import gc, sys; from miniclaw_sessions.service.cli import main; sys.argv[1:] = ['list', '--help']; main(); "
        "print(gc.get_stats()[-1]['collections'], gc.get_freeze_count() > 10_000)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0 True"


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "nobody_1"], "no session 'nobody_1'"),
        (["show", "../../etc/passwd"], "is not a session id"),
        (["export", "nobody_1"], "no session 'nobody_1'"),
        (["delete", "nobody_1", "--yes"], "no session 'nobody_1'"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line_with_status_1(filled: Cli, arguments: list[str], said: str) -> None:
    result = filled(*arguments)
    assert result.status == 1
    assert said in result.error
    assert result.out == ""


@pytest.mark.parametrize("arguments", [["list"], ["show", "a_1"], ["stats"], ["check"], ["delete", "a_1", "--yes"]])
def test_a_workspace_that_does_not_exist_is_an_error_and_is_not_made(cli: Cli, arguments: list[str]) -> None:
    result = cli(*arguments)
    assert result.status == (3 if arguments == ["check"] else 1)
    assert f"there is no workspace at {cli.workspace}" in result.error
    assert not cli.workspace.exists()


@pytest.mark.parametrize("first", ["--repair", "--acknowledge-losses"])
def test_a_check_that_could_not_look_ends_with_3_whatever_it_was_to_do_first(cli: Cli, first: str) -> None:
    result = cli("check", first)
    assert result.status == 3
    assert f"there is no workspace at {cli.workspace}" in result.error
    assert not cli.workspace.exists()


def test_a_workspace_that_is_held_is_waited_for_and_the_holder_is_named(
    filled: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw_sessions.service.cli.opening.PATIENCE_S", 0.2)
    descriptor = os.open(filled.workspace / ".lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, str(os.getpid()).encode())
        result = filled("rename", "telegram_123", "x")
        assert result.status == 1
        waiting, error = result.err.splitlines()
        assert waiting == f"waiting for process {os.getpid()}, which holds {filled.workspace}"
        assert f"cannot open {filled.workspace}: process {os.getpid()} holds it" in error
    finally:
        os.close(descriptor)


READING = (
    *(["list"], ["show", "telegram_123"], ["show", "telegram_123", "--all"], ["tree", "telegram_123"], ["check"]),
    *(["branch", "telegram_123"], ["label", "telegram_123"], ["export", "telegram_123"]),
)


def test_whoever_only_looks_needs_no_lock_and_changes_nothing(filled: Cli) -> None:
    before = contents(filled.workspace)
    descriptor = os.open(filled.workspace / ".lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for arguments in READING:
            result = filled(*arguments)
            assert (arguments, result.status) == (arguments, 0)
            assert "waiting" not in result.err
    finally:
        os.close(descriptor)
    assert contents(filled.workspace) == before


@pytest.mark.parametrize("arguments", READING)
def test_a_directory_that_is_not_ours_stays_as_it_is(tmp_path: Path, cli: Cli, arguments: list[str]) -> None:
    cli.workspace.mkdir(mode=0o755)
    (cli.workspace / "sessions").mkdir(mode=0o755)
    (cli.workspace / "sessions" / "theirs.json").write_text('{"another": "program"}')
    modes = {path: path.stat().st_mode for path in [cli.workspace, *cli.workspace.rglob("*")]}
    assert cli(*arguments).status != 0 or arguments == ["list"]
    assert {path: path.stat().st_mode for path in [cli.workspace, *cli.workspace.rglob("*")]} == modes
    del tmp_path


def test_another_users_workspace_is_not_opened(filled: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "run this as that user" in filled("rename", "telegram_123", "x").error
    assert filled("list").status == 0  # what may be read may be looked at


def test_a_value_that_is_none_of_a_few_is_answered_with_the_right_ones(cli: Cli) -> None:
    assert cli("serve", "--log-level", "loud").error.endswith("it must be debug, info, warning or error")


def test_a_wrong_setting_is_told_in_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINICLAW_SESSIONS_WINDOW", "1")
    result = cli("config", "show")
    assert result.status == 1
    assert "sessions.window is" in result.error
    assert cli("serve").status == 78  # tells systemd that starting again cannot help


def test_a_failure_nobody_foresaw_shows_neither_its_text_nor_a_trace_unless_asked(
    filled: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object) -> None:
        del self
        raise RuntimeError("somebody said something")

    monkeypatch.setattr("miniclaw_sessions.core.manager.readonly.ReadOnlyDirectory.statistics", fail)
    result = filled("stats")
    assert result.status == 1
    assert result.error == "unexpected RuntimeError; the same command with --debug shows where"
    assert "Traceback" in filled("stats", "--debug").err


def test_an_interrupt_ends_with_130(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str) -> bool:
        raise KeyboardInterrupt(name)

    monkeypatch.setattr("miniclaw_sessions.service.cli.app.run", interrupt)
    assert cli("list").status == 130


# --- looking ---------------------------------------------------------------------------------------------------------


def test_list_shows_the_sessions(filled: Cli) -> None:
    result = filled("list")
    assert result.status == 0
    rows = [row.split("\t") for row in result.out.splitlines()]
    assert {row[0] for row in rows} == {*(f"a%5Fb_c%2F{n}" for n in range(3)), "telegram_123"}
    assert next(row[1:4] for row in rows if row[0] == "telegram_123") == [f"Trip {printable(NASTY)}", "4", "6"]


def test_list_can_be_restricted(filled: Cli) -> None:
    assert [one["session_id"] for one in filled("list", "--channel", "telegram", "--json").document["sessions"]] == [
        "telegram_123"
    ]
    limited = filled("list", "--limit", "1")
    assert len(limited.out.splitlines()) == 1
    assert re.fullmatch(r"there are more: --after \d+\.\S+\n", limited.err)


@pytest.mark.parametrize("chat_id", ["019e742e-9d84-7578-9001-000000000001", "123456789", "by-hand"])
def test_list_shows_how_a_session_begins_that_has_no_title(cli: Cli, chat_id: str) -> None:
    async def fill() -> None:
        async with SessionManager(cli.workspace) as manager:
            await (await manager.get_or_create("codex", chat_id)).add_message(
                Message.user("mend the\nclock" + " soon" * 9)
            )

    anyio.run(fill)
    assert cli("list").out.startswith(f"codex_{chat_id}\tmend the clock{' soon' * 9}\t")
    cli("rename", f"codex_{chat_id}", "Clocks")
    assert cli("list").out.startswith(f"codex_{chat_id}\tClocks\t")


def made(workspace: Path) -> None:
    """A workspace without a session."""

    async def run() -> None:
        async with SessionManager(workspace):
            pass

    anyio.run(run)


def test_an_empty_workspace_has_no_sessions(cli: Cli) -> None:
    made(cli.workspace)
    assert cli("list") == Result(0, "", "no sessions yet\n")
    assert cli("list", "--json").document == {"sessions": [], "next": None}


def test_show_prints_the_window(filled: Cli) -> None:
    result = filled("show", "telegram_123")
    assert result.status == 0
    for expected in ("telegram_123", "4 in the window of 50", "→ weather", "  Sunny in Rome, 25 °C.", "gpt-x"):
        assert expected in result.out
    assert result.err == "\n6 entries in all; --all shows them\n"


def test_show_all_prints_the_transcript(filled: Cli) -> None:
    result = filled("show", "telegram_123", "--all")
    assert "model_change" in result.out
    assert result.err == ""
    entries = filled("show", "telegram_123", "--all", "--json").document["entries"]
    assert [entry["sequence"] for entry in entries] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("arguments", [["list"], ["show", "telegram_123"], ["show", "telegram_123", "--all"]])
def test_what_strangers_wrote_never_reaches_the_terminal_raw(filled: Cli, arguments: list[str]) -> None:
    result = filled(*arguments)
    assert not UNSAFE.search(result.out + result.err)
    assert "\\x1b[31m" in result.out


def test_stats_shows_the_managers_numbers(filled: Cli) -> None:
    assert "sessions\t4" in filled("stats").out.splitlines()
    assert filled("stats", "--json").document["sessions"] == 4


def test_the_shared_options_may_stand_before_or_after_the_command(filled: Cli) -> None:
    elsewhere = ["--workspace", "/nonexistent"]
    assert filled("--json", "list") == filled("list", "--json")
    assert "/nonexistent" in filled(*elsewhere, "list").error
    assert "/nonexistent" in filled("list", *elsewhere).error
    assert filled(*elsewhere, "list", "--workspace", str(filled.workspace)).status == 0


# --- carrying off ----------------------------------------------------------------------------------------------------


def test_export_as_jsonl_has_every_entry(filled: Cli) -> None:
    header, *entries = map(json.loads, filled("export", "telegram_123").out.splitlines())
    assert (header["type"], header["id"]) == ("session", "telegram_123")
    stored = filled("show", "telegram_123", "--all", "--json").document["entries"]
    assert [entry["id"] for entry in entries] == [entry["id"] for entry in stored]
    assert entries[1]["message"]["content"][0]["text"]["content"] == f"Hello {NASTY}\n## Assistant"


def test_export_as_json_is_one_document(filled: Cli) -> None:
    document = filled("export", "telegram_123", "--format", "json").document
    assert document["session"]["session_id"] == "telegram_123"
    assert [entry["sequence"] for entry in document["entries"]] == [1, 2, 3, 4, 5, 6]


def test_export_as_markdown_can_be_read(filled: Cli) -> None:
    text = filled("export", "telegram_123", "--format", "markdown").out
    assert text.startswith("# Trip red")
    assert '\n**Calls weather**\n\n```json\n{"city": "Rome"}\n```\n' in text
    assert not UNSAFE.search(text)


def test_export_to_a_file_makes_a_private_one(filled: Cli, tmp_path: Path) -> None:
    output = tmp_path / "chat.jsonl"
    result = filled("export", "telegram_123", "--output", str(output), "--json")
    assert result.document == {
        "session_id": "telegram_123",
        "output": str(output),
        "bytes": output.stat().st_size,
        "problems": [],
    }
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    assert output.read_text() == filled("export", "telegram_123").out


def test_an_export_that_fails_leaves_the_old_file_and_nothing_else(filled: Cli, tmp_path: Path) -> None:
    output = tmp_path / "out" / "chat.jsonl"
    assert f"cannot write {output}" in filled("export", "telegram_123", "--output", str(output)).error
    output.parent.mkdir()
    output.write_text("old")
    assert filled("export", "nobody_1", "--output", str(output)).status == 1
    assert [path.name for path in output.parent.iterdir()] == ["chat.jsonl"]
    assert output.read_text() == "old"


# --- upkeep ----------------------------------------------------------------------------------------------------------


def test_delete_asks_nobody_when_nobody_is_there(filled: Cli) -> None:
    assert "add --yes" in filled("delete", "telegram_123").error
    assert filled("show", "telegram_123").status == 0


def test_delete_with_yes_forgets_the_session(filled: Cli) -> None:
    assert filled("delete", "a%5Fb_c%2F1", "--yes", "--json").document == {
        "deleted": True,
        "session_id": "a%5Fb_c%2F1",
        "remains": [],
    }
    assert filled("show", "a%5Fb_c%2F1").status == 1
    assert not (filled.workspace / "sessions" / "a%5Fb_c%2F1.json").exists()


def test_check_of_sound_files_ends_with_0(filled: Cli) -> None:
    assert filled("check") == Result(0, "sound: 4 sessions, 9 entries\n", "")
    assert filled("check", "--json").document == {
        "sound": True,
        "sessions": 4,
        "entries": 9,
        "problems": [],
        "notes": [],
    }


def test_check_finds_a_damaged_snapshot_and_repairs_nothing(filled: Cli) -> None:
    file = filled.workspace / "sessions" / "telegram_123.json"
    file.write_bytes(file.read_bytes()[:-20])
    before = contents(filled.workspace)
    result = filled("check")
    assert result.status == 1
    assert result.out.startswith("problem: telegram_123.json: ")
    assert result.out.endswith("1 problem: 4 sessions, 3 entries\n")
    assert contents(filled.workspace) == before
    assert filled("check", "--json").document["sound"] is False


def test_check_finds_a_lost_store_and_makes_no_new_one(filled: Cli) -> None:
    for file in filled.workspace.glob("sessions.db*"):
        file.unlink()
    before = contents(filled.workspace)
    result = filled("check")
    assert result.status == 1
    assert "the store does not know this session" in result.out
    assert contents(filled.workspace) == before


def test_a_check_of_a_workspace_without_its_store_is_one_line_and_says_how_many(filled: Cli) -> None:
    for file in filled.workspace.glob("sessions.db*"):
        file.unlink()
    lines = filled("check").out.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("a restart writes it back (and 3 more like it: --verbose)")
    assert len(filled("check", "--verbose").out.splitlines()) == 5
    assert len(filled("check", "--json").document["problems"]) == 4


def test_check_repair_makes_a_damaged_database_anew_and_says_what_is_lost(filled: Cli) -> None:
    path = filled.workspace / "sessions.db"
    data = bytearray(path.read_bytes())
    page = data.rindex(b'"type":"message"') // 4096
    data[page * 4096 : page * 4096 + 4096] = bytes(4096)
    path.write_bytes(data)
    assert filled("check").status == 1
    repaired = filled("check", "--repair")
    assert (repaired.status, "were lost with a former store" in repaired.out) == (1, True)  # the windows had no labels
    assert any((filled.workspace / "quarantine").glob("*-sessions.db"))
    assert filled("check", "--acknowledge-losses").status == 0


def test_check_of_an_empty_workspace_is_sound(cli: Cli) -> None:
    made(cli.workspace)
    assert cli("check").status == 0


def test_config_show_tells_every_option_with_its_source(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "other.toml"
    file.write_text("[sessions]\nwindow = 77\n")
    monkeypatch.setenv("MINICLAW_SESSIONS_TTL_DAYS", "5")
    monkeypatch.setenv("MINICLAW_MODEL_BASE_URL", "http://me:hunter2@host")
    options = cli("config", "show", "--json", "--config", str(file)).document["options"]
    assert list(options) == option_names()
    assert options["sessions.window"]["value"] == 77
    assert options["sessions.window"]["source"] == f"{file} line 2"
    assert options["sessions.ttl_days"]["source"] == "environment MINICLAW_SESSIONS_TTL_DAYS"
    table = cli("config", "show", "--config", str(file)).out
    assert f"sessions.window\t77\t{file} line 2" in table.splitlines()
    assert "hunter2" not in table + json.dumps(options)


# --- chatting --------------------------------------------------------------------------------------------------------


def test_a_conversation_goes_on_where_it_ended(cli: Cli) -> None:
    first = cli("chat", "--message", "My name is Ada.")
    assert first.status == 0, first.err
    assert first.out.startswith("(offline)")
    assert cli("chat", "--message", "What is my name?") == Result(0, "(offline) Your name is Ada.\n", "")


def test_each_line_of_standard_input_is_a_message(cli: Cli) -> None:
    result = cli("chat", "--chat-id", "me", stdin="My name is Ada.\n\nWhat is my name?\n/quit\nnot this\n")
    assert result.out.splitlines()[-1] == "(offline) Your name is Ada."
    assert [one["messages"] for one in cli("list", "--json").document["sessions"]] == [4]
    assert cli("show", "cli_me").status == 0


def test_a_dash_reads_one_message_of_many_lines(cli: Cli) -> None:
    cli("chat", "--chat-id", "me", "--message", "-", stdin="My name\nis long.\n")
    assert cli("show", "cli_me", "--json").document["messages"][0]["content"] == "My name\nis long."


def test_a_chat_for_programs_answers_with_documents(cli: Cli) -> None:
    document = cli("chat", "--chat-id", "me", "--message", "My name is Ada.", "--json").document
    assert document["session_id"] == "cli_me"
    assert document["reply"]["role"] == "assistant"
    result = cli("chat", "--chat-id", "me", "--json", stdin="one\ntwo\n")
    assert [json.loads(line)["session_id"] for line in result.out.splitlines()] == ["cli_me", "cli_me"]


def test_a_chat_can_be_looked_back_on_and_begun_anew(cli: Cli) -> None:
    result = cli("chat", stdin="/history\nMy name is Ada.\n/history\n/clear\nWhat is my name?\n/nonsense\n/help\n")
    assert result.status == 0
    assert result.err.splitlines() == [
        "nothing was said yet",
        "cleared; the transcript is kept",
        "no such command: /nonsense; /help lists them, // begins a message with a slash",
    ]
    assert "\n  My name is Ada.\n" in result.out
    assert "You have not told me that" in result.out
    assert "/new      begin anew" in result.out


def test_a_conversation_whose_last_message_has_no_answer_says_so(filled: Cli) -> None:
    rows = filled("list", "--channel", "a_b", "--json").document["sessions"]
    resumed = f"/resume {rows[0]['session_id']}\n"
    assert "the last message has no answer yet; /retry asks again" in filled("chat", stdin=resumed).err
    assert "(offline)" in filled("chat", stdin=f"{resumed}/retry\n").out
    assert "no answer" not in filled("chat", stdin=resumed).err
    assert "no answer" not in filled("chat", stdin="/resume telegram_123\n").err


def test_a_chat_shows_its_tree_and_a_number_leads_to_a_branch(cli: Cli) -> None:
    said = "My name is Ada.\n/tree\n/edit My name is Bea.\n/tree\n/tree 3\n/tree 2\nWhat is my name?\n"
    result = cli("chat", "--chat-id", "me", stdin=f"{said}/thinking\n/thinking high\n")
    assert "write the number of a branch, from 1 to 2" in result.err
    assert "offline has no levels of thinking to choose from" in result.err
    numbers = [line.split("\t")[0] for line in result.out.splitlines() if line.count("\t") > 3]
    assert numbers == ["1*", "2"], "one branch is no choice"
    context = cli("show", "cli_me", "--json").document["messages"]
    assert [message["content"] for message in context][0::2] == ["My name is Ada.", "What is my name?"]


def test_what_nobody_has_titled_is_called_by_its_first_words_everywhere(cli: Cli) -> None:
    cli("chat", "--channel", "web", "--chat-id", "01J-4711", stdin="How do trains run?\nAnd back?\n")
    assert "How do trains run?" in cli("list").out
    assert cli("show", "web_01J-4711").out.startswith("How do trains run?\n")
    assert cli("tree", "web_01J-4711").out.startswith("How do trains run?\n")
    assert "How do trains run? · " in cli("chat", "web_01J-4711", stdin="/resume web_01J-4711\n").out
    found = cli("search", "back", "--json").document["results"]
    assert {one["first_words"] for one in found} == {"How do trains run?"}


def test_two_slashes_begin_a_message_with_one(cli: Cli) -> None:
    cli("chat", "--chat-id", "me", stdin="//quit\n")
    assert cli("show", "cli_me", "--json").document["messages"][0]["content"] == "/quit"


def test_a_chat_that_cannot_be_is_told_in_one_line(cli: Cli) -> None:
    result = cli("chat", "--channel", "", "--message", "x")
    assert result.status == 1
    assert "channel is empty" in result.error


def test_an_answer_cannot_obey_the_terminal(cli: Cli) -> None:
    cli("chat", "--message", f"My name is {NASTY}")
    result = cli("chat", "--message", "What is my name?")
    assert not UNSAFE.search(result.out + result.err)


# --- at a terminal ---------------------------------------------------------------------------------------------------


@pytest.mark.proof
def test_at_a_terminal_a_chat_has_a_prompt_and_streams(cli: Cli) -> None:
    terminal = Terminal(cli.workspace, "chat", "--chat-id", "me")
    terminal.expect("cli_me · a new conversation")
    terminal.expect("you>")
    terminal.type("My name is Ada.\n")
    terminal.expect("(offline)")
    terminal.expect("you>")
    terminal.type("\x1b[A\x7f\x7f.\n")  # line editing: the line before, its end replaced
    terminal.expect("(offline)")
    terminal.expect("you>")
    terminal.type("/quit\n")
    assert terminal.end() == 0
    assert len(cli("show", "cli_me", "--json").document["messages"]) == 4


@pytest.mark.proof
@pytest.mark.parametrize("key", ["\x03", "\x04"])
def test_at_a_terminal_ctrl_c_and_ctrl_d_leave_the_chat(cli: Cli, key: str) -> None:
    terminal = Terminal(cli.workspace, "chat")
    terminal.expect("you>")
    terminal.type(key)
    assert terminal.end() == 0


@pytest.mark.proof
def test_at_a_terminal_a_sentence_breaks_between_its_words(cli: Cli) -> None:
    terminal = Terminal(cli.workspace, "show", "nothing", columns=40)
    assert terminal.end() == 1
    told = cli("show", "nothing").err
    lines = terminal.seen.splitlines()
    assert len(lines) > 1
    assert [word for line in lines for word in line.split()] == told.split()
    assert [line for line in lines if len(line) > 40 and " " in line] == []


@pytest.mark.proof
def test_at_a_terminal_a_chat_survives_its_daemon_and_says_what_became_of_a_message(cli: Cli) -> None:
    with serving(cli.workspace):
        terminal = Terminal(cli.workspace, "chat", "--chat-id", "me", columns=400)
        terminal.expect("you>")
    terminal.type("hello\n")
    terminal.expect("nothing was sent")
    terminal.expect("you>")
    with serving(cli.workspace):
        terminal.type("hello\n")
        terminal.expect("(offline)")
        terminal.expect("you>")
        terminal.type("/quit\n")
        assert terminal.end() == 0


@pytest.mark.proof
def test_at_a_terminal_the_meaning_of_a_command_stands_in_a_column_of_its_own(cli: Cli) -> None:
    terminal = Terminal(cli.workspace, "chat", "--chat-id", "me", columns=60)
    terminal.expect("you>")
    terminal.type("/help\n/quit\n")
    assert terminal.end() == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.seen)
    rows = plain.partition("/retry    let")[2].partition("Enter sends")[0].splitlines()[1:]
    assert len(rows) > len(CHAT_COMMANDS)
    assert [row for row in rows if not re.match(r"/\w+ +\S| {10}\S", row)] == []


@pytest.mark.proof
def test_at_a_terminal_leaving_the_list_of_conversations_is_no_error(filled: Cli) -> None:
    terminal = Terminal(filled.workspace, "chat", "--chat-id", "me")
    terminal.expect("you>")
    terminal.type("/resume\n")
    terminal.expect("conversation:")
    terminal.type("\x1b")
    terminal.expect("you>")
    terminal.type("/quit\n")
    assert terminal.end() == 0
    assert "error" not in terminal.seen
    terminal = Terminal(filled.workspace, "chat", "--resume")
    terminal.expect("conversation:")
    terminal.type("\x1b")
    assert terminal.end() == 0
    assert "error" not in terminal.seen


@pytest.mark.proof
@pytest.mark.parametrize("key", ["\x03", "\x1b"], ids=["ctrl-c", "esc"])
def test_at_a_terminal_ctrl_c_and_esc_stop_an_answer_and_not_the_conversation(
    cli: Cli, slow_model: str, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("MINICLAW_MODEL_BASE_URL", slow_model)
    monkeypatch.setenv("MINICLAW_MODEL_MODEL", "slow")
    terminal = Terminal(cli.workspace, "chat", "--chat-id", "me")
    terminal.expect("you>")
    terminal.type("Tell me a story.\n")
    terminal.expect("Once upon a time")
    terminal.type(key)
    terminal.expect("(stopped; what was said so far is kept)")
    terminal.expect("you>")
    terminal.type("/quit\n")
    assert terminal.end() == 0
    messages = cli("show", "cli_me", "--json").document["messages"]
    assert [message["content"] for message in messages] == ["Tell me a story.", "Once upon a time"]
    assert messages[-1]["stop_reason"] == "aborted"
    assert "(interrupted)" in cli("show", "cli_me").out


@pytest.fixture
def slow_model() -> Iterator[str]:
    """The address of a model that begins an answer and never ends it."""
    finished = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            delta = {"index": 0, "delta": {"role": "assistant", "content": "Once upon a time"}, "finish_reason": None}
            chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "slow", "choices": [delta]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.flush()
            finished.wait()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    finished.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.proof
def test_at_a_terminal_delete_asks_and_no_means_no(filled: Cli) -> None:
    for answer, status in (("n\n", 1), ("y\n", 0)):
        terminal = Terminal(filled.workspace, "delete", "telegram_123")
        terminal.expect("with its 6 entries, for good? [y/N]: ")
        terminal.type(answer)
        terminal.expect("nothing was done" if status else "deleted telegram_123")
        assert terminal.end() == status
    assert filled("show", "telegram_123").status == 1


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=pytest.mark.proof) for form in ("jsonl", "json", "markdown")]
)
def test_at_a_terminal_an_export_is_escaped_too(filled: Cli, form: str) -> None:
    terminal = Terminal(filled.workspace, "export", "telegram_123", "--format", form)
    terminal.expect("25 °C.")
    terminal.expect("gpt-x")
    assert terminal.end() == 0
    assert not re.search("[\x1b\x9b]", terminal.seen)


# --- with a daemon ---------------------------------------------------------------------------------------------------


@pytest.fixture
def served(filled: Cli) -> Iterator[None]:
    """A daemon on the filled workspace, in a thread of this process."""
    with serving(filled.workspace):
        yield


@pytest.fixture
def daemon(filled: Cli) -> Iterator[int]:
    """A running daemon on the filled workspace; its pid."""
    with running_daemon(filled.workspace) as pid:
        yield pid


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["list", "--channel", "a_b"],
        ["show", "telegram_123"],
        ["show", "telegram_123", "--all"],
        ["show", "a%5Fb_c%2F1"],
        ["export", "telegram_123", "--format", "json"],
        ["check"],
        ["stats"],
    ],
)
def test_a_daemon_and_the_files_answer_with_documents_of_the_same_form(
    filled: Cli, tmp_path: Path, arguments: list[str]
) -> None:
    with_daemon = filled(*arguments, "--json")
    copy = Cli(tmp_path / "copy", filled._monkeypatch)
    filled_by(fill, copy.workspace)
    with_files = copy(*arguments, "--json")
    assert (with_daemon.status, with_daemon.err) == (0, "")
    assert shape(with_daemon.document) == shape(with_files.document)
    if arguments[0] == "list":
        ids = [[row["session_id"] for row in found.document["sessions"]] for found in (with_daemon, with_files)]
        newest_first = [*(f"a%5Fb_c%2F{number}" for number in (2, 1, 0)), "telegram_123"]
        assert ids[0] == ids[1] == (newest_first[:3] if "--channel" in arguments else newest_first)


@pytest.mark.usefixtures("served")
def test_a_long_list_is_read_a_page_at_a_time(filled: Cli) -> None:
    rows = [row["session_id"] for row in filled("list", "--json").document["sessions"]]
    page = filled("list", "--json", "--limit", "3").document
    assert [row["session_id"] for row in page["sessions"]] == rows[:3]
    assert "there are more: --after " in filled("list", "--limit", "1").err


@pytest.mark.usefixtures("served")
def test_a_chat_goes_through_the_daemon(filled: Cli) -> None:
    assert filled("chat", "--message", "My name is Ada.").status == 0
    assert filled("chat", "--message", "What is my name?") == Result(0, "(offline) Your name is Ada.\n", "")
    document = filled("chat", "--message", "What is my name?", "--json").document
    assert document["reply"]["content"] == "(offline) Your name is Ada."


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("options", [["telegram_123"], ["telegram_123", "--everywhere"], ["--channel", "telegram"]])
def test_what_is_deleted_is_in_no_file_of_a_running_daemon(filled: Cli, options: list[str]) -> None:
    said = b"Sunny in Rome"
    assert any(said in data for _, data in contents(filled.workspace).values())
    assert filled("delete", *options, "--yes", "--json").document["remains"] == []
    assert [name for name, (_, data) in contents(filled.workspace).items() if said in data] == []


@pytest.mark.usefixtures("served")
def test_what_a_reader_keeps_in_the_log_is_told_by_a_deletion_and_gone_with_the_next(filled: Cli) -> None:
    said = b"Sunny in Rome"
    assert filled("rename", "telegram_123", "Rome").status == 0  # so that there is a log to be read
    with closing(sqlite3.connect(filled.workspace / "sessions.db")) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM sessions").fetchone()
        told = filled("delete", "telegram_123", "--yes").err
        assert "remains: the store's log, because it is being read" in told
    assert filled("chat", "--channel", "web", "--chat-id", "9", "--message", "hello").status == 0
    assert "remains" not in filled("delete", "web_9", "--yes").err
    assert [name for name, (_, data) in contents(filled.workspace).items() if said in data] == []


@pytest.mark.usefixtures("served")
def test_the_daemon_clears_and_deletes(filled: Cli) -> None:
    assert filled("chat", "--channel", "telegram", "--chat-id", "123", stdin="/clear\n/history\n").out == ""
    assert filled("show", "telegram_123", "--json").document["messages"] == []
    assert filled("delete", "telegram_123", "--yes").status == 0
    assert "no session 'telegram_123'" in filled("delete", "telegram_123", "--yes").error


@pytest.mark.proof
@pytest.mark.usefixtures("served")
def test_a_second_daemon_is_refused(filled: Cli) -> None:
    command = [sys.executable, "-m", "miniclaw_sessions", "serve", "--workspace", str(filled.workspace)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_LIMIT_S, check=False)
    assert done.returncode == 75


@pytest.mark.proof
def test_a_daemon_that_hangs_is_told_by_its_process(filled: Cli, daemon: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miniclaw_sessions.service.cli.opening.PATIENCE_S", 0.2)
    os.kill(daemon, signal.SIGSTOP)
    try:
        result = filled("rename", "telegram_123", "x")
        assert result.status == 1
        assert f"process {daemon} holds it" in result.err.splitlines()[-1]
    finally:
        os.kill(daemon, signal.SIGCONT)


@pytest.mark.usefixtures("served")
def test_another_workspaces_daemon_is_not_asked(filled: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINICLAW_LISTEN_SOCKET", str(filled.workspace / "miniclaw.sock"))
    other = Cli(tmp_path / "other", monkeypatch)
    filled_by(fill, other.workspace)
    assert other("delete", "telegram_123", "--yes").status == 0
    assert filled("show", "telegram_123").status == 0


def test_a_service_is_found_at_its_own_socket(filled: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = tmp_path / "run.sock"
    monkeypatch.setattr("miniclaw_sessions.service.cli.opening.SERVICE_SOCKETS", (tmp_path / "none.sock", service))
    with serving(filled.workspace, listen__socket=str(service)):
        assert filled("list").status == 0
        assert not (filled.workspace / "miniclaw.sock").exists()


def test_a_dead_daemons_socket_is_no_obstacle(filled: Cli) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(filled.workspace / "miniclaw.sock"))
    assert filled("list").status == 0


@pytest.mark.proof
def test_serve_saves_everything_at_ctrl_c(cli: Cli) -> None:
    command = [sys.executable, "-m", "miniclaw_sessions", "serve", "--workspace", str(cli.workspace), "--debug"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            assert isinstance(json.loads(line), dict)
            if '"daemon.ready"' in line:
                process.send_signal(signal.SIGINT)
        assert process.wait(START_LIMIT_S) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["chat", "--message", " "], "the message is empty"),
        (["chat", "--message", "caf\udce9"], "not valid UTF-8"),
        (["chat", "--chat-id", "", "--message", "hi"], "chat_id is empty"),
    ],
)
def test_a_message_or_a_chat_that_is_none_is_refused_before_anything_is_said(
    cli: Cli, arguments: list[str], said: str
) -> None:
    result = cli(*arguments)
    assert result.status == 1
    assert said in result.error


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("telegram_123", "telegram_123"),
        ("telegram", "telegram_123"),
        ("gram_12", "telegram_123"),
        ("TRIP", "telegram_123"),
        ("%2F2", "a%5Fb_c%2F2"),
    ],
)
def test_a_session_is_found_by_a_part_of_its_id_or_title(filled: Cli, name: str, expected: str) -> None:
    assert filled("show", name, "--json").document["session"]["session_id"] == expected


def test_a_name_that_several_sessions_have_names_them_all(filled: Cli) -> None:
    result = filled("show", "a%5Fb")
    assert result.status == 1
    assert all(f"a%5Fb_c%2F{number}" in result.error for number in range(3))


def test_a_renamed_session_is_found_by_its_new_title(filled: Cli) -> None:
    assert filled("rename", "gram_123", "Winter in Oslo", "--json").document == {
        "session_id": "telegram_123",
        "title": "Winter in Oslo",
    }
    assert filled("show", "oslo", "--json").document["session"]["title"] == "Winter in Oslo"
    assert filled("rename", "oslo", "").err == "telegram_123 has no title any more\n"
    assert filled("show", "oslo").status == 1


@pytest.mark.proof
def test_the_shell_completes_sessions_and_commands(filled: Cli) -> None:
    def offered(words: str) -> set[str]:
        environ = {
            **os.environ,
            "MINICLAW_WORKSPACE": str(filled.workspace),
            "_MINICLAW_SESSIONS_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        code = "from miniclaw_sessions.service.cli.app import app; app(prog_name='miniclaw-sessions')"
        done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
        return set(done.stdout.split())

    assert offered("miniclaw-sessions ren") == {"rename"}
    assert offered("miniclaw-sessions show tele") == {"telegram_123"}
    assert {f"a%5Fb_c%2F{number}" for number in range(3)} <= offered("miniclaw-sessions show ")


# --- files that a service needs --------------------------------------------------------------------------------------


def test_config_alone_shows_the_configuration(cli: Cli) -> None:
    assert cli("config").out == cli("config", "show").out


def test_config_init_writes_the_shipped_file_and_replaces_nothing(cli: Cli, tmp_path: Path) -> None:
    shipped = Path(__file__).parents[3] / "config" / "miniclaw.toml"
    assert cli("config", "init").status == 0
    written = tmp_path / ".miniclaw" / "miniclaw.toml"
    assert written.read_text().startswith(shipped.read_text())
    assert "\n# [channels.telegram]\n\n# # ids of users" in written.read_text(), (
        "behind it, the plug-ins that are there"
    )
    assert cli("config").status == 0
    assert "is there already" in cli("config", "init").error
    assert cli("config", "init", "--print").out == written.read_text()


def test_systemd_install_prints_units_that_start_this_very_program(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/opt/elsewhere")
    monkeypatch.setattr("shutil.which", lambda name: f"/opt/elsewhere/bin/{name}")
    out = cli("systemd", "install", "--print", "--no-network").out
    assert "ExecStart=/opt/elsewhere/bin/miniclaw-sessions serve" in out
    for name in ("service", "socket"):
        assert f"# /etc/systemd/system/miniclaw-sessions.{name}\n" in out
    assert "PrivateNetwork=yes" in out


def test_systemd_install_writes_what_the_service_can_read_whatever_the_umask(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units, config = tmp_path / "etc/systemd/system", tmp_path / "etc/miniclaw-sessions/miniclaw.toml"
    monkeypatch.setattr(settings, "UNITS", units)
    monkeypatch.setattr(settings, "SYSTEM_CONFIG", config)
    before = os.umask(0o077)
    try:
        assert cli("systemd", "install").status == 0
    finally:
        os.umask(before)
    files = [*units.iterdir(), config]
    assert len(files) == 5
    assert {file.stat().st_mode & 0o777 for file in files} == {0o644}
    assert {place.stat().st_mode & 0o777 for place in (units, config.parent)} == {0o755}
    config.write_text("mine")
    assert "is there already" in cli("systemd", "install").error
    assert cli("systemd", "install", "--force").status == 0
    assert config.read_text() == "mine"


# --- which daemon ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("served")
def test_a_named_socket_is_asked_whatever_the_workspace_is(filled: Cli, tmp_path: Path) -> None:
    path = str(filled.workspace / "miniclaw.sock")
    listed = filled("list", "--workspace", str(tmp_path / "none"), "--socket", path, "--json").document
    assert len(listed["sessions"]) == 4
    assert filled("--socket", path, "show", "telegram_123").status == 0


def test_an_address_without_a_scheme_is_refused_and_not_taken_for_a_directory(filled: Cli, tmp_path: Path) -> None:
    result = filled("list", "--url", "127.0.0.1:8080")
    assert (result.status, result.out) == (1, "")
    assert "write http://127.0.0.1:8080" in result.error
    assert not (tmp_path / "127.0.0.1:8080").exists()
    assert not Path("127.0.0.1:8080").exists()


@pytest.mark.parametrize("where", [["--socket", "/nonexistent/a.sock"], ["--url", "http://127.0.0.1:9"]])
def test_a_named_daemon_that_does_not_answer_is_told_and_nothing_is_opened_instead(
    filled: Cli, where: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniclaw_sessions.service.cli.opening.PATIENCE_S", 0.1)
    result = filled("list", *where)
    assert result.status == 1
    assert "does not answer" in result.error or "nobody" in result.error


def test_a_service_that_does_not_answer_is_no_reason_for_a_workspace_of_ones_own(tmp_path: Path) -> None:
    service = tmp_path / "service.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(service))
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            (
                "import sys; from pathlib import Path; from miniclaw_sessions.service.cli import main, opening; "
                f"opening.SERVICE_SOCKETS = (Path({str(service)!r}),); sys.exit(main(['chat', '--message', 'hi']))"
            ),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"the service at {service} does not answer" in done.stderr
    assert not (tmp_path / ".miniclaw" / "workspace").exists()
