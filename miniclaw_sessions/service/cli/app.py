"""All commands in one table; the module of a command is loaded when the command is asked for, and no other."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from miniclaw_sessions.service.cli.invocation import SHARED, merged, parameters_of
from miniclaw_sessions.service.cli.output import verbatim
from miniclaw_sessions.service.cli.parameters import LightGroup, lighten_completion
from miniclaw_sessions.service.cli.version import PROGRAM, print_version

_COMPLETING = "_MINICLAW_SESSIONS_COMPLETE"
"""The variable of the environment with which a shell asks what may follow."""

COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("serve", "Run the daemon until SIGTERM or Ctrl-C."),
    "chat": ("chat", "Talk to the model."),
    "list": ("sessions", "List the sessions, the most recently used first."),
    "show": ("sessions", "Show a session."),
    "follow": ("follow", "Show what is said, in one session or in all, as it is said."),
    "search": ("search", "Search everything that was said."),
    "usage": ("usage", "Show what models were sent and what they said, in tokens, and what it cost."),
    "mcp": ("mcp", "Let an agent's program (Claude Code, Codex) search and read all sessions."),
    "rename": ("sessions", "Give a session another title."),
    "delete": (
        "forgetting",
        "Delete a session with its transcript, its archived and its quarantined copies, for good; or all by a rule.",
    ),
    "hold": (
        "forgetting",
        "Put a session under legal hold: no command, rule or expiry deletes it while that stands.",
    ),
    "stats": ("sessions", "Show the numbers of the daemon, or of the files if no daemon runs."),
    "check": ("sessions", "Compare every snapshot with the store."),
    "stop": ("upkeep", "End the answer that is under way in a session, no matter who asked for it."),
    "backup": ("upkeep", "Copy the whole workspace into a directory, consistently, while it is used."),
    "restore": ("upkeep", "Put a backup where no workspace is."),
    "sweep": ("upkeep", "Expire the sessions that were idle for longer than sessions.ttl_days, or list them."),
    "unarchive": ("upkeep", "Bring an expired session back from the archive, whole."),
    "migrate": ("upkeep", "Copy every session into another store, and compare the copies; the old one stays as it is."),
    "tree": ("tree", "Draw a session's tree."),
    "branch": ("tree", "Go back to an entry."),
    "label": ("tree", "Bookmark an entry, or take its bookmark away."),
    "fork": ("tree", "Copy a session into a new one with its whole tree, or with one branch."),
    "compact": ("tree", "Let a summary stand for the older part of the conversation, so that a model is sent less."),
    "import": ("transfer", "Make sessions of other programs' files, or of our own exports."),
    "export": ("transfer", "Write out a session."),
    "formats": ("transfer", "List the formats of session files, and what a round trip through each loses."),
    "rekey": (
        "encryption",
        "Encrypt everything in the workspace with the first key, also what another key encrypted; or decrypt it.",
    ),
    "decrypt": ("encryption", "Write what is in an encrypted file to standard output."),
    "reminders": ("reminders", "Set, list, pause and delete what is said in a chat at its time."),
    "tokens": ("tokens", "Make, list and revoke the tokens of those who may ask the daemon by TCP."),
    "plugins": ("plugins", "List the plug-ins that are installed, or write a new one."),
    "config": ("settings", "Show the configuration, or write a file to change it in."),
    "systemd": ("settings", "Run the daemon as a systemd service."),
}
"""For every command: the module beside this one whose `app` has it, and what the list of commands says."""


class _Commands(LightGroup):
    """The table as a group of commands; what is only listed is never loaded."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=verbatim(summary)) for name, (_, summary) in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command that the arguments begin with."""
        if args and args[0] in COMMANDS:
            module = import_module(f"miniclaw_sessions.service.cli.{COMMANDS[args[0]][0]}")
            self.commands[args[0]] = typer.main.get_group(module.app).commands[args[0]]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Commands,
    name=PROGRAM,
    help="Conversations that survive restarts, crashes and power cuts.",
    epilog=(
        "Commands talk to the daemon if one runs, and open the files themselves if not. "
        "A list that goes into a pipe is a line for each row, with tabs between the cells and no headings. "
        "Exit status: 0 done, 1 not done (or, for check, not sound), 2 wrong usage, 3 check could not look, "
        "130 interrupted; "
        "serve has more, for systemd."
    ),
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; errors come out as exceptions."""
    if _COMPLETING in os.environ:
        lighten_completion()
    status: int | None = app(args=arguments, prog_name=PROGRAM, standalone_mode=False)
    return status or 0


def _version(wanted: bool | None) -> None:
    if wanted:
        print_version()
        raise typer.Exit


def _shared_options(context: typer.Context, **given: Any) -> None:
    given.pop("version")
    merged(context, given)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


_shared_options.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
        *parameters_of(SHARED),
        inspect.Parameter(
            "version",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                bool | None,
                typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit."),
            ],
        ),
    ]
)
app.callback(invoke_without_command=True)(_shared_options)
