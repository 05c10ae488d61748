"""What every command has: the shared options, the settings they lead to, and where output goes.

`command` registers a function as a command and gives it the shared options, so that `--json`, `--workspace`, `--config`
and `--debug` may stand before or after the command's name.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from miniclaw_sessions.config import LoadedSettings, config_path, load_settings
from miniclaw_sessions.protocol.printable import printable_json

if TYPE_CHECKING:
    from rich.console import Console

_UNWRAPPED = 100_000  # columns: what goes into a pipe or file is not broken into lines
SHARED_PANEL = "Options of every command"

_SHARED: dict[str, Any] = {
    "workspace": Annotated[
        Path | None,
        typer.Option(
            help="The directory that holds all files.",
            metavar="DIRECTORY",
            show_default="~/.miniclaw/workspace",
            rich_help_panel=SHARED_PANEL,
        ),
    ],
    "config": Annotated[
        Path | None,
        typer.Option(
            help="The configuration file.",
            metavar="FILE",
            show_default="$MINICLAW_CONFIG or ~/.miniclaw/miniclaw.toml",
            rich_help_panel=SHARED_PANEL,
        ),
    ],
    "as_json": Annotated[
        bool | None,
        typer.Option(
            "--json", help="One JSON document on standard output.", show_default=False, rich_help_panel=SHARED_PANEL
        ),
    ],
    "debug": Annotated[
        bool | None,
        typer.Option(
            "--debug",
            help="Log everything; show where an error arose.",
            show_default=False,
            rich_help_panel=SHARED_PANEL,
        ),
    ],
}


@dataclass
class Invocation:
    """One run of the command line.

    Attributes:
        workspace: the flag `--workspace`, where given.
        config: the flag `--config`, where given.
        as_json: whether a program reads the output.
        debug: whether to log everything and to show stack traces.
        overrides: settings that the command's own flags set, by dotted name.
    """

    workspace: Path | None = None
    config: Path | None = None
    as_json: bool = False
    debug: bool = False
    overrides: dict[str, object] = field(default_factory=dict)

    @functools.cached_property
    def loaded(self) -> LoadedSettings:
        """The settings from file, environment and flags, as they were when they were first asked for.

        Raises:
            ConfigError: one of them is wrong.
        """
        return self.load()

    def load(self) -> LoadedSettings:
        """Read the settings from file, environment and flags.

        Raises:
            ConfigError: one of them is wrong.
        """
        flags = {"workspace": None if self.workspace is None else str(self.workspace), **self.overrides}
        return load_settings(self.config or config_path(os.environ), os.environ, flags)

    @functools.cached_property
    def console(self) -> Console:
        """Standard output, for people."""
        from rich.console import Console  # noqa: PLC0415 - `--json` does not need it

        width = None if sys.stdout.isatty() else _UNWRAPPED
        return Console(highlight=False, width=width, markup=False, emoji=False)

    @functools.cached_property
    def errors(self) -> Console:
        """Standard error, for progress and questions."""
        from rich.console import Console  # noqa: PLC0415 - same

        return Console(stderr=True, highlight=False, markup=False, emoji=False)

    def print_json(self, document: Any) -> None:
        """One JSON document, indented on a terminal and on one line otherwise."""
        import orjson  # noqa: PLC0415 - help does not need it

        options = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if sys.stdout.isatty() else 0)
        write_bytes(orjson.dumps(document, option=options))
        sys.stdout.buffer.flush()

    def configure_logging(self) -> None:
        """Warnings go to standard error in readable form; with `--debug` everything does."""
        from miniclaw_sessions.config import LogSettings  # noqa: PLC0415 - structlog is slow to load
        from miniclaw_sessions.log.records import configure_logging  # noqa: PLC0415 - same

        configure_logging(LogSettings(level="debug" if self.debug else "warning", format="pretty"))


def write_bytes(data: bytes) -> None:
    """JSON or Markdown to standard output: as it is, but on a terminal with its control characters escaped."""
    sys.stdout.flush()
    sys.stdout.buffer.write(printable_json(data.decode()).encode() if sys.stdout.isatty() else data)


def command(
    app: typer.Typer, name: str | None = None, *, examples: Mapping[str, str]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function whose first parameter is the `Invocation` as a command.

    Args:
        app: where.
        name: the command's name; the function's by default.
        examples: command lines (without the program's name) and what they do, shown at the end of the help.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

        @functools.wraps(function)
        def run(context: typer.Context, **given: Any) -> None:
            invocation = merged(context, {option: given.pop(option) for option in _SHARED})
            function(invocation, **given)

        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
                *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own),
                *shared_parameters(),
            ]
        )
        app.command(name, epilog=_epilog(examples))(run)
        return function

    return register


def shared_parameters() -> list[inspect.Parameter]:
    """The shared options as parameters of a function."""
    return [
        inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for option, annotation in _SHARED.items()
    ]


def merged(context: typer.Context, given: Mapping[str, Any]) -> Invocation:
    """The invocation so far, with what was given here; the later place on the command line wins."""
    invocation = context.ensure_object(Invocation)
    for option, value in given.items():
        if value is not None:
            setattr(invocation, option, value)
    return invocation


def _epilog(examples: Mapping[str, str]) -> str:
    lines = [f"miniclaw-sessions {line}  [dim]# {meaning}[/dim]" for line, meaning in examples.items()]
    return "[bold]Examples[/bold]\n\n" + "\n\n".join(lines)
