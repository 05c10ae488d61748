"""The command that runs the daemon."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from miniclaw_sessions.config import flag_of
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.service.cli.failures import print_error
from miniclaw_sessions.service.cli.invocation import Invocation, command
from miniclaw_sessions.service.gateway.exit_status import ExitStatus

app = typer.Typer()

_SESSIONS, _LISTEN, _MODEL, _LOG = "Sessions", "Where it listens", "The model", "The log"
_CHANNEL_HELP = "Turn a channel on, as [channels.NAME] does; may be repeated."


def _flag(name: str, text: str, panel: str) -> Any:
    return typer.Option(flag_of(name), help=text, rich_help_panel=panel)


@command(
    app,
    talks=False,
    examples={
        "serve": "listens on <workspace>/miniclaw.sock",
        "serve --tcp 127.0.0.1:8080": "and on TCP, on this machine: prints an address to open in a browser",
        "serve --tcp 0.0.0.0:8080 --token-file token": "and for other machines, if they know the token",
        "serve --channel telegram": "and on a chat network",
        "serve --config /etc/miniclaw-sessions/miniclaw.toml": "as systemd starts it",
    },
)
def serve(  # noqa: PLR0913 - one parameter per flag
    invocation: Invocation,
    *,
    store: Annotated[
        str | None, _flag("sessions.store", "Where transcripts live: sqlite:, none:, ...", _SESSIONS)
    ] = None,
    window: Annotated[int | None, _flag("sessions.window", "Messages that stay in memory.", _SESSIONS)] = None,
    flush_interval: Annotated[
        float | None, _flag("sessions.flush_interval_s", "Seconds between two checkpoints.", _SESSIONS)
    ] = None,
    ttl_days: Annotated[
        float | None, _flag("sessions.ttl_days", "Days until an idle session expires; 0: never.", _SESSIONS)
    ] = None,
    socket: Annotated[str | None, _flag("listen.socket", "Path of the Unix socket, or none.", _LISTEN)] = None,
    tcp: Annotated[str | None, _flag("listen.tcp", "Address such as 127.0.0.1:8080.", _LISTEN)] = None,
    token_file: Annotated[str | None, _flag("listen.token_file", "File with the token for TCP.", _LISTEN)] = None,
    channel: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help=_CHANNEL_HELP, rich_help_panel=_LISTEN)
    ] = None,
    base_url: Annotated[str | None, _flag("model.base_url", "The provider's address.", _MODEL)] = None,
    model: Annotated[str | None, _flag("model.model", "The model's name.", _MODEL)] = None,
    log_level: Annotated[str | None, _flag("log.level", "debug, info, warning or error.", _LOG)] = None,
    log_format: Annotated[str | None, _flag("log.format", "auto, json or pretty.", _LOG)] = None,
) -> None:
    """Run the daemon until SIGTERM or Ctrl-C. Every setting can also stand in the configuration file."""
    invocation.channels = channel or ()
    invocation.overrides = {
        "sessions.store": store,
        "sessions.window": window,
        "sessions.flush_interval_s": flush_interval,
        "sessions.ttl_days": ttl_days,
        "listen.socket": socket or invocation.socket,
        "listen.tcp": tcp,
        "listen.token_file": token_file or invocation.token_file,
        "model.base_url": base_url,
        "model.model": model,
        "log.level": log_level or ("debug" if invocation.debug else None),
        "log.format": log_format,
    }
    try:
        loaded = invocation.local
    except ConfigError as error:
        print_error(error)
        raise typer.Exit(int(ExitStatus.CONFIG)) from None  # by which systemd knows that starting again cannot help
    from miniclaw_sessions.service.gateway.daemon import run  # noqa: PLC0415 - loads everything

    raise typer.Exit(run(loaded, invocation.load))
