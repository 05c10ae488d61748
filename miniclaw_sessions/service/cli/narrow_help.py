"""The help of a command where a terminal is too narrow for columns: each name on a line, and below it its sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.padding import Padding
from rich.text import Text
from typer.core import TyperArgument, TyperGroup
from typer.rich_utils import ARGUMENTS_PANEL_TITLE, COMMANDS_PANEL_TITLE, OPTIONS_PANEL_TITLE, _get_rich_console

from miniclaw_sessions.service.cli.output import verbatim

NARROW = 72
"""Columns that names, kinds and sentences beside each other need; with fewer, typer cuts names and words."""

_INDENT = (0, 0, 0, 4)

Named = tuple[str, str]
"""A name, and its sentence with marks of style."""


def is_narrow() -> bool:
    """Whether a help has too little room for columns."""
    return _get_rich_console().width < NARROW


def print_narrow_help(command: Any, context: Any) -> None:
    """Print the help of a command or a group; no word of it is cut."""
    console = _get_rich_console()
    console.print(Text(command.get_usage(context), "bold"))
    console.print()
    console.print(_text(command.help or ""))
    for title, rows in _panels(command, context):
        console.print()
        console.print(Text(title, "bold"))
        for name, sentence in rows:
            console.print(Text(name, "bold cyan", overflow="fold"))
            console.print(Padding(_text(sentence), _INDENT))
    if command.epilog:
        console.print()
        for paragraph in command.epilog.split("\n\n"):
            console.print(_text(paragraph))


def _text(marked: str) -> Text:
    text = Text.from_markup(marked)
    text.overflow = "fold"
    return text


def _panels(command: Any, context: Any) -> Iterator[tuple[str, list[Named]]]:
    """The names under their titles, in the order that a wide help has."""
    panels: dict[str, list[Named]] = {ARGUMENTS_PANEL_TITLE: [], OPTIONS_PANEL_TITLE: []}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            own = ARGUMENTS_PANEL_TITLE if isinstance(parameter, TyperArgument) else OPTIONS_PANEL_TITLE
            name, sentence = record
            panels.setdefault(parameter.rich_help_panel or own, []).append((name, verbatim(sentence)))
    if isinstance(command, TyperGroup):
        listed = (command.get_command(context, name) for name in command.list_commands(context))
        panels[COMMANDS_PANEL_TITLE] = [(one.name or "", one.help or "") for one in listed if one and not one.hidden]
    return ((title, rows) for title, rows in panels.items() if rows)
