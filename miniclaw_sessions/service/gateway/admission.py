"""Who is let in by TCP, put together from the settings: tokens, names of this server, web pages.

Where only this machine can connect, no token need be configured: one is made, as Jupyter does, kept in the workspace
for its owner alone, and shown in the terminal that started the daemon.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.config import LoadedSettings
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.secret import Secret, credential_path, read_secret
from miniclaw_sessions.service.gateway.listeners import Listener
from miniclaw_sessions.service.gateway.security import AccessPolicy
from miniclaw_sessions.service.gateway.token_table import TokenTable
from miniclaw_sessions.service.gateway.tokens import new_token, tokens_path

log = get_logger(__name__)

MIN_TOKEN_LENGTH = 16
MADE_TOKEN = "token"  # noqa: S105 - the name of a file
"""The file in the workspace that has the token that was made."""


def access_policy(
    listeners: Sequence[Listener], loaded: LoadedSettings, environ: Mapping[str, str]
) -> AccessPolicy | None:
    """What TCP requests must show; None when there is no TCP.

    Args:
        listeners: what is listened on.
        loaded: the settings.
        environ: the environment, for systemd's credentials.

    Raises:
        ConfigError: there is TCP but no token worth the name.
    """
    tcp = [listener for listener in listeners if not listener.is_unix]
    if not tcp:
        return None
    limits = loaded.settings.listen
    admin = read_secret(limits.token_file, "token", environ) or _own_token(tcp, loaded)
    if admin is not None and len(admin.reveal()) < MIN_TOKEN_LENGTH:
        raise ConfigError(f"the token has fewer than {MIN_TOKEN_LENGTH} characters; `openssl rand -hex 32` helps")
    files = [path for path in (credential_path("tokens", environ), tokens_path(loaded)) if path is not None]
    text = None if admin is None else admin.reveal()
    table = TokenTable(text, files, SystemClock(), rate=limits.token_rate)
    if not len(table):
        raise ConfigError(
            "TCP needs a token where other machines can connect, or no workspace can keep one: name a file in "
            "listen.token_file, pass the credential `token`, or make one with `miniclaw-sessions tokens create`"
        )
    names = [f"{name}:{listener.port}" for listener in tcp for name in ("localhost", "127.0.0.1", "[::1]")]
    hosts = [*names, *(listener.address for listener in tcp), *limits.allowed_hosts]
    return AccessPolicy.of(table, hosts, limits.allowed_origins)


def make_token(listeners: Sequence[Listener], loaded: LoadedSettings, environ: Mapping[str, str]) -> None:
    """Make the token in the workspace, if one is needed and missing; it blocks.

    Raises:
        ConfigError: it cannot be kept there.
    """
    path = _own_token_file(listeners, loaded)
    if path is None or read_secret(loaded.settings.listen.token_file, "token", environ) is not None:
        return
    try:
        with Directory(path.parent, is_ours=False) as directory:
            (failure,) = directory.create([(path.name, new_token().encode)])
    except OSError as error:
        failure = error
    if failure is None:
        log.info("a token for TCP was made; it is in this file", action="tokens.made", path=path)
    elif not isinstance(failure, FileExistsError):
        raise ConfigError(f"cannot keep a token for TCP in {path}: {failure}; name one in listen.token_file")


def _own_token(listeners: Sequence[Listener], loaded: LoadedSettings) -> Secret | None:
    path = _own_token_file(listeners, loaded)
    return None if path is None or not path.exists() else read_secret(str(path), "", {})


def _own_token_file(listeners: Sequence[Listener], loaded: LoadedSettings) -> Path | None:
    """The file of the made token; None where other machines can connect, or TCP is off, or no directory is used."""
    tcp = [listener for listener in listeners if not listener.is_unix]
    is_local = bool(tcp) and all(listener.is_local for listener in tcp)
    return loaded.directory / MADE_TOKEN if is_local and loaded.directory is not None else None


def print_address(listeners: Sequence[Listener], loaded: LoadedSettings, environ: Mapping[str, str]) -> None:
    """Say in the terminal where the daemon is reached, with the token if it was made; never where it would be logged.

    The token stands in the fragment, which no browser sends to anybody.
    """
    tcp = [listener for listener in listeners if not listener.is_unix]
    with suppress(OSError, ValueError):  # there is no terminal, or it is gone
        if not tcp or _is_logged(environ):
            return
        has_own = read_secret(loaded.settings.listen.token_file, "token", environ) is not None
        made = None if has_own else _own_token(tcp, loaded)
        sys.stdout.write(f"open http://{tcp[0].address}/{f'#token={made.reveal()}' if made is not None else ''}\n")
        sys.stdout.flush()


def _is_logged(environ: Mapping[str, str]) -> bool:
    """Whether standard output comes into the log: it is the journal, or where standard error goes, or closed."""
    if sys.stdout is None or sys.stderr is None:
        return True
    if sys.stdout.isatty():
        return False
    out, err = os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno())
    is_journal = environ.get("JOURNAL_STREAM") == f"{out.st_dev}:{out.st_ino}"
    return is_journal or (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino)
