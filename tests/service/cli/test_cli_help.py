"""The help of every command says all that was written for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.cells import cell_len

from miniclaw_sessions.service.cli.app import COMMANDS, app
from miniclaw_sessions.service.cli.narrow_help import NARROW
from tests.command_line import Cli
from tests.sampled import sampled

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("COLUMNS", "600")
    return Cli(tmp_path / "workspace", monkeypatch)


PROGRAM = typer.main.get_command(app)


@contextmanager
def command_at(path: str) -> Iterator[Any]:
    """A command as the parser has it; without a path, the program itself."""
    command: Any = PROGRAM
    with command.make_context("miniclaw-sessions", [], resilient_parsing=True) as context:
        for name in path.split():
            command = command.resolve_command(context, [name])[1]
        yield command


def with_subcommands(name: str) -> list[str]:
    with command_at(name) as command:
        return [name, *(f"{name} {sub}" for sub in getattr(command, "commands", ()))]


def squeezed(text: str) -> str:
    """Without what a layout adds: blanks, and the frames of panels."""
    return re.sub(r"[\s│]", "", text)


def written_for(command: Any) -> list[str]:
    """Every text of a command's help, without the marks that make it look well."""
    styled = [command.help or "", *(command.epilog or "").split("\n\n")]
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    styled += [getattr(parameter, "help", None) or "" for parameter in shown]
    return [re.sub(r"\[/?(bold|dim)\]", "", text).replace("\\[", "[") for text in styled]


@pytest.mark.parametrize(
    "path", sampled(["", *(path for name in COMMANDS for path in with_subcommands(name))], every=3)
)
def test_a_help_shows_all_that_was_written_for_it_brackets_too(cli: Cli, path: str) -> None:
    with command_at(path) as command:
        written = written_for(command)
    shown = squeezed(cli(*path.split(), "--help").out)
    assert [text for text in written if squeezed(text) not in shown] == []
    assert any(written)


def test_the_help_of_a_channel_names_its_table(cli: Cli) -> None:
    assert squeezed("Turn a channel on, as [channels.NAME] does") in squeezed(cli("serve", "--help").out)


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize(
    "path", sampled(["", *(path for name in COMMANDS for path in with_subcommands(name))], every=6)
)
def test_no_word_of_a_help_is_cut_on_a_terminal(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, path: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = cli(*path.split(), "--help").out
    assert "…" not in shown
    assert all(cell_len(line) <= columns for line in shown.splitlines())
    with command_at(path) as command:
        visible = [one for one in command.params if not one.hidden]
        written, names = written_for(command), [name for one in visible for name in one.opts]
    if columns < NARROW:  # in columns, the words of several texts stand on one line
        assert [text for text in written if squeezed(text) not in squeezed(shown)] == []
    assert [name for name in names if name.startswith("--") and name not in shown] == []


@pytest.mark.parametrize("columns", [40, 80])
def test_a_help_of_any_width_says_what_holds_without_an_option(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert "[default:(yourown)]" in squeezed(cli("chat", "--help").out)


def test_every_option_and_argument_has_a_sentence_of_its_own() -> None:
    paths = ["", *(path for name in COMMANDS for path in with_subcommands(name))]
    for path in paths:
        with command_at(path) as command:
            silent = [one.name for one in command.params if not one.hidden and not (one.help or "").strip()]
        assert (path, silent) == (path, [])
