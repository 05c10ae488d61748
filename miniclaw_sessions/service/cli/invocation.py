"""What every command has: the shared options, the settings they lead to, where output goes, and its sessions.

`command` registers a function or a coroutine function as a command and gives it the shared options, so that `--json`,
`--workspace` and their like may stand before or after the command's name.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from miniclaw_sessions.config import LoadedSettings, LogSettings, config_path, load_settings
from miniclaw_sessions.log import configured_when_used
from miniclaw_sessions.printable import printable_json
from miniclaw_sessions.service.cli.output import (
    Brief,
    Report,
    one_line,
    print_sentence,
    progress_on,
    unwatched,
    verbatim,
)
from miniclaw_sessions.service.cli.parameters import LightCommand, LightGroup
from miniclaw_sessions.service.cli.tables import Rows

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from rich.console import Console

    from miniclaw_sessions.service.client import Client

_UNWRAPPED = 100_000  # columns: what goes into a pipe or file is not broken into lines
SHARED_PANEL = "Options of every command"
WHERE_PANEL = "Where the sessions are"


def _option(*names: str, help: str, panel: str = SHARED_PANEL, **more: Any) -> Any:  # noqa: A002 - as typer calls it
    return typer.Option(*names, help=help, rich_help_panel=panel, **{"show_default": False, **more})


_EVERYWHERE: dict[str, Any] = {
    "config": Annotated[
        Path | None,
        _option(
            help="The configuration file.", metavar="FILE", show_default="$MINICLAW_CONFIG or ~/.miniclaw/miniclaw.toml"
        ),
    ],
    "as_json": Annotated[bool | None, _option("--json", help="One JSON document on standard output.")],
    "debug": Annotated[bool | None, _option("--debug", help="Log everything; show where an error arose.")],
}
_IN_FILES: dict[str, Any] = {
    "workspace": Annotated[
        str | None,
        _option(
            help="The directory that holds all files, or the URL of a store that gateways share.",
            metavar="DIRECTORY|URL",
            show_default="~/.miniclaw/workspace",
            panel=WHERE_PANEL,
        ),
    ],
    "key_file": Annotated[
        str | None,
        _option(
            help="The keys, instead of encryption.key_file.",
            metavar="FILE",
            panel=WHERE_PANEL,
        ),
    ],
}
_IN_A_DAEMON: dict[str, Any] = {
    "socket": Annotated[
        str | None, _option(help="The Unix socket of the daemon to talk to.", metavar="PATH", panel=WHERE_PANEL)
    ],
    "url": Annotated[
        str | None, _option(help="The address of the daemon to talk to.", metavar="URL", panel=WHERE_PANEL)
    ],
    "token_file": Annotated[
        str | None, _option(help="File with the token that the address asks for.", metavar="FILE", panel=WHERE_PANEL)
    ],
}
SHARED = {**_IN_FILES, **_IN_A_DAEMON, **_EVERYWHERE}
"""The options that may stand before the command's name."""


@dataclass
class Invocation:
    """One run of the command line.

    Attributes:
        workspace, config, key_file, socket, url, token_file: the flags of these names, where given.
        as_json: whether a program reads the output.
        debug: whether to log everything and to show stack traces.
        overrides: settings that the command's own flags set, by dotted name.
        channels: channels that they turn on.
        report: called with the progress of the work.
    """

    workspace: str | None = None
    config: Path | None = None
    key_file: str | None = None
    socket: str | None = None
    url: str | None = None
    token_file: str | None = None
    as_json: bool = False
    debug: bool = False
    overrides: dict[str, object] = field(default_factory=dict)
    channels: Sequence[str] = ()
    report: Report = unwatched

    @functools.cached_property
    def loaded(self) -> LoadedSettings:
        """The settings from file, environment and flags, as they were when they were first asked for.

        Raises:
            ConfigError: one of them is wrong.
        """
        return self.load()

    @functools.cached_property
    def local(self) -> LoadedSettings:
        """`loaded`, for opening the workspace in this process: with the store that lies in it, where none is named.

        Raises:
            ConfigError: one of them is wrong.
        """
        from miniclaw_sessions.core.stores import stores_in  # noqa: PLC0415 - a client of a daemon does without

        loaded, lying = self.loaded, []
        if loaded.sources["sessions.store"] == "default":
            with suppress(OSError):  # opening it says what is wrong
                lying = [f"{place.kind}:" for place in stores_in(loaded.workspace)]
        if not lying or loaded.settings.sessions.store in lying:
            return loaded
        sessions = msgspec.structs.replace(loaded.settings.sessions, store=lying[0])
        return msgspec.structs.replace(loaded, settings=msgspec.structs.replace(loaded.settings, sessions=sessions))

    def load(self) -> LoadedSettings:
        """Read the settings from file, environment and flags.

        Raises:
            ConfigError: one of them is wrong.
        """
        flags = {
            "workspace": self.workspace,
            "encryption.key_file": self.key_file,
            "listen.socket": self.socket,
            "listen.token_file": self.token_file,
            **self.overrides,
        }
        return load_settings(self.config or config_path(os.environ), os.environ, flags, channels=self.channels)

    def sessions(self, *, create: bool = False, reads: bool = False) -> AbstractAsyncContextManager[Client]:
        """The sessions, of the daemon or in the files; see `cli.opening.open_client`."""
        from miniclaw_sessions.service.cli.opening import open_client  # noqa: PLC0415 - commands without sessions

        return open_client(self, create=create, reads=reads)

    @functools.cached_property
    def console(self) -> Console:
        """Standard output, for people."""
        from rich.console import Console  # noqa: PLC0415 - `--json` does not need it

        width = None if sys.stdout.isatty() else _UNWRAPPED
        return Console(highlight=False, width=width, markup=False, emoji=False)

    @functools.cached_property
    def errors(self) -> Console:
        """Standard error, for progress and questions."""
        from rich.console import Console  # noqa: PLC0415 - `--json` does not need it

        return Console(stderr=True, highlight=False, markup=False, emoji=False)

    def print_rows(self, rows: Rows, *, paged: bool = False) -> None:
        """Rows, as the terminal is wide, or for a pipe; in a pager where they are `paged` and more than it is high."""
        if not sys.stdout.isatty():  # loading rich, and laying out, took a fifth of the time of `list`
            sys.stdout.write(rows.text())
            return
        lines = rows.lines(self.console)
        pager: AbstractContextManager[object] = nullcontext()
        if paged and len(lines) >= self.console.height:
            os.environ.setdefault("LESS", "FRX")  # as git does: colours, and nothing to leave where all fits
            pager = self.console.pager(styles=True)
        with pager:
            for line in lines:
                self.console.print(line, soft_wrap=True)

    def print_facts(self, facts: Mapping[str, object], *, numeric: bool = False, style: str = "") -> None:
        """What is known of one thing: a name and a value on each line."""
        rows = Rows("NAME", "VALUE", headed=False, numeric={"VALUE"} if numeric else (), fold={"VALUE"})
        for name, value in facts.items():
            rows.add(one_line(name), value if isinstance(value, Brief) else one_line(value), style=style)
        self.print_rows(rows)

    def print_json(self, document: Any) -> None:
        """One JSON document, indented on a terminal and on one line otherwise."""
        encoded = msgspec.json.encode(document)
        write_bytes((msgspec.json.format(encoded, indent=2) if sys.stdout.isatty() else encoded) + b"\n")
        sys.stdout.buffer.flush()

    def note(self, sentence: object, style: str = "dim") -> None:
        """Print a remark on one line of standard error; line ends and control characters in it are shown."""
        print_sentence(self.errors, one_line(sentence), style)

    def done(self, document: Any, sentence: object) -> None:
        """Say what was done: to a program as a document, to a person as a sentence."""
        if self.as_json:
            self.print_json(document)
        else:
            self.note(sentence)

    def configure_logging(self) -> None:
        """Warnings go to standard error in readable form; with `--debug` everything does."""
        from miniclaw_sessions.log.records import configure_logging  # noqa: PLC0415 - most commands log nothing

        configure_logging(LogSettings(level="debug" if self.debug else "warning", format="pretty"))


def write_bytes(data: bytes) -> None:
    """JSON or Markdown to standard output: as it is, but on a terminal with its control characters escaped."""
    sys.stdout.flush()
    sys.stdout.buffer.write(printable_json(data.decode()).encode() if sys.stdout.isatty() else data)


# --- commands --------------------------------------------------------------------------------------------------------


def command(
    app: typer.Typer, name: str | None = None, *, examples: Mapping[str, str], talks: bool = True, group: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function whose first parameter is the `Invocation` as a command; a coroutine is run.

    Args:
        app: where.
        name: the command's name; the function's by default.
        examples: command lines (without the program's name) and what they do, shown at the end of the help.
        talks: whether it can ask a daemon, and has the options that say which one.
        group: it is what the group `app` does without a subcommand.
    """
    shared = SHARED if talks else {**_IN_FILES, **_EVERYWHERE}

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        paragraphs = (inspect.getdoc(function) or "").split("\n\n")
        text = verbatim("\n\n".join(one.replace("\n", " ") for one in paragraphs))  # a terminal wraps by its width
        epilog = "[bold]Examples[/bold]"
        for line, does in examples.items():
            epilog += f"\n\nminiclaw-sessions {verbatim(line)}  [dim]# {verbatim(does)}[/dim]"
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        for parameter in own:
            info = parameter.annotation.__metadata__[0]
            if parameter.default is None and info.show_default is True:
                info.show_default = False  # help would say `default: None`

        @functools.wraps(function)
        def run(context: typer.Context, **given: Any) -> None:
            invocation = merged(context, {option: given.pop(option) for option in shared})
            if context.invoked_subcommand is None:
                _complete(invocation, function(invocation, **given))

        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
                *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own),
                *parameters_of(shared),
            ]
        )
        if group:
            app.callback(cls=LightGroup, invoke_without_command=True, help=text, epilog=epilog)(run)
        else:
            app.command(name, cls=LightCommand, help=text, epilog=epilog)(run)
        return function

    return register


def parameters_of(options: Mapping[str, Any]) -> list[inspect.Parameter]:
    """Options as parameters of a function."""
    return [
        inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for option, annotation in options.items()
    ]


def merged(context: typer.Context, given: Mapping[str, Any]) -> Invocation:
    """The invocation so far, with what was given here; the later place on the command line wins."""
    invocation = context.ensure_object(Invocation)
    for option, value in given.items():
        if value is not None:
            setattr(invocation, option, value)
    return invocation


def _complete(invocation: Invocation, result: Coroutine[Any, Any, None] | None) -> None:
    """Run what a coroutine command made to its end, with a bar when it takes its time."""
    if result is None:
        return
    import asyncio  # noqa: PLC0415 - help does not need it

    if invocation.debug:
        invocation.configure_logging()
    with configured_when_used(invocation.configure_logging), progress_on(lambda: invocation.errors) as report:
        invocation.report = report
        asyncio.run(result)
