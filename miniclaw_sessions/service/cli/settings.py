"""Commands that show the configuration, and that write the files which a service needs."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

import miniclaw_sessions
from miniclaw_sessions.config import PLUGINS, masked, options_shown, show_value, table_shown, type_shown
from miniclaw_sessions.errors import PluginFailed, SessionsError
from miniclaw_sessions.service.cli.invocation import Invocation, command
from miniclaw_sessions.service.cli.output import counted
from miniclaw_sessions.service.cli.tables import Rows

SYSTEM_CONFIG = Path("/etc/miniclaw-sessions/miniclaw.toml")
UNITS = Path("/etc/systemd/system")
PROGRAM_IN_UNITS = "/opt/miniclaw-sessions/bin/miniclaw-sessions"

_SERVICE = "miniclaw-sessions.service"
_UNIT_FILES = (_SERVICE, "miniclaw-sessions@.service", "miniclaw-sessions.socket", "miniclaw-sessions-rekey.service")
_NO_NETWORK = f"{_SERVICE}.d/socket-activated.conf"

app = typer.Typer()
config = typer.Typer()
app.add_typer(config, name="config", help="Show the configuration, or write a file to change it in.")
systemd = typer.Typer(no_args_is_help=True)
app.add_typer(systemd, name="systemd", help="Run the daemon as a systemd service.")

Force = Annotated[bool, typer.Option("--force", help="Replace files that are there already.")]


# --- config ----------------------------------------------------------------------------------------------------------


@command(
    config,
    talks=False,
    group=True,
    examples={
        "config": "every option, its value, and where it came from",
        "config show --config other.toml": "as another file would have it",
        "config init": "a file with all options and what they cost, in ~/.miniclaw",
    },
)
@command(
    config,
    talks=False,
    examples={
        "config show": "every option, its value, and where it came from",
        "config show --config other.toml": "as another file would have it",
    },
)
def show(invocation: Invocation) -> None:
    """Show every option with its value and where that came from, those of plug-ins that are turned on too.

    The environment variable of `sessions.window` is MINICLAW_SESSIONS_WINDOW, and so on; `--json` names them all.
    """
    rows, failed = [*options_shown(invocation.loaded)], []
    for one in (one for kind in invocation.loaded.settings.plugins.values() for one in kind.values()):
        from miniclaw_sessions.plugins import load  # noqa: PLC0415 - only who has plug-ins pays for it

        rows.append((f"{one.shown}.type", *type_shown(one)))
        try:
            plugin = load(one)
        except PluginFailed as error:
            failed.append(str(error))
        else:
            rows += table_shown(one, plugin.settings, plugin.sources) if plugin.settings is not None else ()
    if invocation.as_json:
        options = {
            name: {"value": masked(value, name), "source": source, "variable": variable}
            for name, variable, value, source in rows
        }
        invocation.print_json({"options": options, **({"failed": failed} if failed else {})})
        return
    table = Rows("OPTION", "VALUE", "SOURCE", fold={"VALUE"})
    for name, _, value, source in rows:
        table.add(name, show_value(value, name), source, style="dim" if source == "default" else "bold")
    invocation.print_rows(table)
    for sentence in failed:
        invocation.note(sentence, "red")


@command(
    config,
    talks=False,
    examples={
        "config init": "writes ~/.miniclaw/miniclaw.toml",
        "config init --print": "shows it",
        "config init --output /etc/miniclaw-sessions/miniclaw.toml": "where the systemd unit looks",
    },
)
def init(
    invocation: Invocation,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to.", show_default="--config, or ~/.miniclaw/miniclaw.toml"),
    ] = None,
    prints: Annotated[bool, typer.Option("--print", help="Only show it.")] = False,
    force: Force = False,
) -> None:
    """Write a configuration file with every option at its default, and what each buys and costs.

    At its end are the tables of the plug-ins that are installed, to be taken into use.
    """
    if prints:
        _print(_configuration())
        return
    path = output or invocation.config or Path("~/.miniclaw/miniclaw.toml").expanduser()
    write_files({path: _configuration()}, force=force)
    invocation.done({"written": [str(path)]}, f"written: {path}")


# --- systemd ---------------------------------------------------------------------------------------------------------


@command(
    systemd,
    talks=False,
    examples={
        "systemd install --print": "shows the units and where they would go",
        "systemd install": "writes them, and the configuration file if it is missing",
        "systemd install --no-network": "for a daemon that asks no model",
    },
)
def install(
    invocation: Invocation,
    prints: Annotated[bool, typer.Option("--print", help="Only show the files.")] = False,
    no_network: Annotated[
        bool, typer.Option("--no-network", help="Let the daemon reach nothing but its own socket.")
    ] = False,
    force: Force = False,
) -> None:
    """Write the units of a hardened service with its own socket, as root; it is not started."""
    names = (*_UNIT_FILES, _NO_NETWORK) if no_network else _UNIT_FILES
    beside = Path(sys.prefix, "bin", "miniclaw-sessions")  # this very program, for the unit to start
    program = (beside if beside.exists() else Path(shutil.which(beside.name) or PROGRAM_IN_UNITS)).absolute()
    files = {
        UNITS / name: shipped(f"systemd/{name}").replace(PROGRAM_IN_UNITS.encode(), os.fsencode(program))
        for name in names
    }
    if prints:
        _print(b"\n".join(b"# %s\n%s" % (os.fsencode(path), content) for path, content in files.items()))
        return
    if not SYSTEM_CONFIG.exists():
        files[SYSTEM_CONFIG] = _configuration()
    write_files(files, force=force)
    for path in files:  # against the umask: the service runs as a user of its own
        path.parent.chmod(0o755)
        path.chmod(0o644)
    if invocation.as_json:
        invocation.print_json({"written": [str(path) for path in files]})
        return
    errors = invocation.errors
    errors.print(f"{counted(len(files), 'file', 'files')} written:", style="dim")
    for path in files:
        errors.print(f"  {path}", style="dim", soft_wrap=True)
    if program.is_relative_to("/home") or program.is_relative_to("/root"):
        errors.print(f"the service cannot see {program}: install the package outside of home directories", style="red")
    now = "systemctl daemon-reload && systemctl enable --now miniclaw-sessions.socket miniclaw-sessions"
    errors.print(f"now: {now}", soft_wrap=True)


def _configuration() -> bytes:
    """The shipped file, and the tables of the plug-ins that are installed."""
    from miniclaw_sessions.plugins import declared, template  # noqa: PLC0415 - other commands do without

    installed = [(kind, name) for kind in PLUGINS for name in sorted(declared(kind))]
    tables = ["\n".join(lines) for kind, name in installed if len(lines := [*template(kind, name)]) > 1]
    return b"\n".join([shipped("config/miniclaw.toml"), *(f"{table}\n".encode() for table in tables)])


# --- what is shipped -------------------------------------------------------------------------------------------------


def shipped(name: str) -> bytes:
    """A file that comes with the package, by its name in the repository: `config/miniclaw.toml`, `systemd/...`."""
    package = Path(miniclaw_sessions.__file__).parent
    installed = package / "shipped" / name
    return (installed if installed.exists() else package.parent / name).read_bytes()


def write_files(files: dict[Path, bytes], *, force: bool) -> None:
    """Write them all, or none where one is there already."""
    if not force and (there := [path for path in files if path.exists()]):
        raise SessionsError(f"{there[0]} is there already; --force replaces it")
    for path, content in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise SessionsError(f"cannot write {path}: {error.strerror}") from error


def _print(content: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
