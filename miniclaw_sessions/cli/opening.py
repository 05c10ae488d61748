"""Where the command line finds the sessions: in the daemon that holds the workspace, or in the files themselves."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from miniclaw_sessions.cli.backend import Backend, Report
from miniclaw_sessions.config import LoadedSettings, socket_path
from miniclaw_sessions.errors import ConfigError

if TYPE_CHECKING:
    from miniclaw_sessions.cli.daemon_backend import DaemonBackend

SERVICE_SOCKETS = (Path("/run/miniclaw-sessions/miniclaw.sock"), Path("/run/miniclaw-sessions.sock"))
"""Where the systemd units put the socket."""


@asynccontextmanager
async def open_backend(loaded: LoadedSettings, report: Report, *, create: bool = False) -> AsyncIterator[Backend]:
    """The daemon if one holds the workspace, else the files.

    Args:
        loaded: the settings.
        report: told how opening advances.
        create: make a workspace that does not exist yet.

    Raises:
        ConfigError: there is no workspace, or it belongs to another user.
        DirectoryInUse: a process holds the workspace and answers on no known socket.
    """
    async with find_daemon(loaded) as daemon:
        if daemon is not None:
            yield daemon
            return
    check_workspace(loaded.workspace, create=create)
    from miniclaw_sessions.cli.local_backend import LocalBackend  # noqa: PLC0415 - loads the manager

    async with LocalBackend(loaded, report) as files:
        yield files


@asynccontextmanager
async def find_daemon(loaded: LoadedSettings) -> AsyncIterator[DaemonBackend | None]:
    """The daemon that holds the workspace, or None."""
    from miniclaw_sessions.cli.daemon_backend import connect  # noqa: PLC0415 - loads the HTTP client

    for socket in _candidates(loaded):
        async with connect(socket) as daemon:
            if daemon is not None and _serves(daemon.pid, loaded):
                yield daemon
                return
    yield None


def _candidates(loaded: LoadedSettings) -> list[Path]:
    paths = [socket_path(loaded, os.environ), loaded.workspace / "miniclaw.sock", *SERVICE_SOCKETS]
    return [path for path in dict.fromkeys(paths) if path is not None and path.exists()]


def _serves(pid: int, loaded: LoadedSettings) -> bool:
    """Whether the daemon with this pid holds the workspace that is meant, and not another one.

    Its pid stands in the workspace's lock file. Where that cannot be read, a socket named by flag or environment is
    meant as such.
    """
    try:
        return (loaded.workspace / ".lock").read_bytes().strip() == b"%d" % pid
    except OSError:
        return loaded.sources["listen.socket"].startswith(("--", "environment"))


def check_workspace(workspace: Path, *, create: bool) -> None:
    """Refuse what would make a workspace by mistake, or files in it that its owner's daemon could not read.

    Raises:
        ConfigError: the workspace does not exist, or it belongs to another user.
    """
    try:
        owner = workspace.stat().st_uid
    except FileNotFoundError:
        if create:
            return
        raise ConfigError(
            f"there is no workspace at {workspace}; `serve`, `chat` and `import` make one, --workspace names another"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot open the workspace {workspace}: {error.strerror}; run this as its owner") from None
    if owner != os.geteuid():
        raise ConfigError(f"the workspace {workspace} belongs to user id {owner}; run this as that user")
