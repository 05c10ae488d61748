"""All commands in one application."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from miniclaw_sessions.cli import chat, encryption, serve, sessions, settings, transfer, tree
from miniclaw_sessions.cli.invocation import merged, shared_parameters

PROGRAM = "miniclaw-sessions"

app = typer.Typer(
    name=PROGRAM,
    help="Conversations that survive restarts, crashes and power cuts.",
    epilog=(
        "Commands talk to the daemon if one runs, and open the files themselves if not. "
        "Exit status: 0 done, 1 not done (or, for check, not sound), 2 wrong usage, 130 interrupted; "
        "serve has more, for systemd."
    ),
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; errors come out as exceptions."""
    status: int | None = app(args=arguments, prog_name=PROGRAM, standalone_mode=False)
    return status or 0


def _print_version(wanted: bool | None) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - only here

        typer.echo(f"{PROGRAM} {version('miniclaw-sessions')}")
        raise typer.Exit


def _shared_options(context: typer.Context, **given: Any) -> None:
    given.pop("version")
    merged(context, given)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


_shared_options.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
        *shared_parameters(),
        inspect.Parameter(
            "version",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                bool | None,
                typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
            ],
        ),
    ]
)
app.callback(invoke_without_command=True)(_shared_options)
serve.register(app)
chat.register(app)
sessions.register(app)
tree.register(app)
transfer.register(app)
encryption.register(app)
settings.register(app)
