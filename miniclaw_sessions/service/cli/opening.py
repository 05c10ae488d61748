"""Where the command line finds the sessions: in the daemon that holds the workspace, or in the files themselves."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.config import LoadedSettings, socket_path
from miniclaw_sessions.errors import ConfigError, SessionsError, Unreachable
from miniclaw_sessions.secret import read_secret
from miniclaw_sessions.service.cli.output import Report, one_line, print_sentence
from miniclaw_sessions.service.client import Client, connect
from miniclaw_sessions.service.client.transport import LocalTransport

if TYPE_CHECKING:
    from rich.console import Console

    from miniclaw_sessions.config import LogSettings
    from miniclaw_sessions.core.manager import SessionManager
    from miniclaw_sessions.encryption import KeyRing
    from miniclaw_sessions.service.api.context import Context
    from miniclaw_sessions.service.api.operation import Operation

SERVICE_SOCKETS = (Path("/run/miniclaw-sessions.sock"), Path("/run/miniclaw-sessions/miniclaw.sock"))
"""Where the systemd units put the socket: the socket unit, and the service without it."""


class Target(Protocol):
    """What the command line says about where the sessions are; see `cli.invocation.Invocation`."""

    socket: str | None
    url: str | None

    @property
    def report(self) -> Report:
        """Shows the progress of the work."""
        ...

    @property
    def loaded(self) -> LoadedSettings:
        """The settings."""
        ...

    @property
    def local(self) -> LoadedSettings:
        """The settings for opening the workspace in this process."""
        ...

    @property
    def errors(self) -> Console:
        """Standard error."""
        ...


PATIENCE_S = 10.0
"""How long a workspace that another process holds is waited for, and a daemon that is starting."""


@asynccontextmanager
async def open_client(target: Target, *, create: bool = False, reads: bool = False) -> AsyncIterator[Client]:
    """The daemon that is named or holds the workspace, else the files.

    Args:
        target: says which daemon, which workspace, and where progress is shown.
        create: make a workspace that does not exist yet.
        reads: nothing will be changed: files are read without a lock, and none is made.

    Raises:
        ConfigError: there is no workspace, or it belongs to another user.
        DirectoryInUse: a process holds the workspace and answers on no known socket.
        Unreachable: nothing answers at the address that was named.
    """
    if reads:
        async with _open_to_read(target) as client:
            yield client
        return
    problem = None if _is_named(target) else refused(target.loaded, create=create)
    async with AsyncExitStack() as stack:
        try:
            client = await stack.enter_async_context(_connected(target, in_process=problem is None))
        except Unreachable:
            if problem is not None:
                raise problem from None
            raise
        if client.is_local:
            from miniclaw_sessions.service.cli.answering import answer_with  # noqa: PLC0415 - loads agent and channels

            answer_with(client, target.loaded.settings, stack)
        _audited(client, target.loaded.settings.log, stack)
        yield client


@asynccontextmanager
async def _open_to_read(target: Target) -> AsyncIterator[Client]:
    async with find_daemon(target) as daemon:
        if daemon is not None:
            yield daemon
            return
    loaded = target.loaded
    if isinstance(problem := refused(loaded, create=False), Unreachable):
        raise problem
    from miniclaw_sessions.core.manager import open_readonly  # noqa: PLC0415 - a client of a daemon does without

    if problem is not None and not loaded.workspace.exists():
        raise problem
    reader = open_readonly(
        loaded.shared_store or loaded.workspace,
        settings=target.local.settings.sessions,
        encryption=_keys(loaded),
        on_progress=lambda progress: target.report(progress.stage, progress.done, progress.total),
    )
    with ExitStack() as stack:
        async with reader as sessions, connect(cast("SessionManager", sessions)) as client:  # its reading half
            _audited(client, loaded.settings.log, stack)
            yield client


def _audited(client: Client, settings: LogSettings, stack: AsyncExitStack | ExitStack) -> None:
    """Audit what is done in this process, where the settings name a file for that; a daemon does it itself."""
    transport = client.transport
    if not isinstance(transport, LocalTransport) or not settings.audit_file:
        return
    from miniclaw_sessions.log.audit import AuditLog, Deed  # noqa: PLC0415 - only with an audit file
    from miniclaw_sessions.service.api.error_table import as_request_error  # noqa: PLC0415 - same

    audit = stack.enter_context(AuditLog(settings, SystemClock()))

    def note(operation: Operation[Any, Any], context: Context, error: Exception | None) -> None:
        if not audit.keeps(operation.scope):
            return
        refused = None if error is None else as_request_error(error)
        status = 200 if error is None else 500 if refused is None else refused.status
        for session_id in (context.about, *context.also_about):
            deed = Deed(who="owner", token=None, operation=operation.name, session_id=session_id, status=status)
            audit.note(deed)

    transport.on_done = note


@asynccontextmanager
async def find_daemon(target: Target) -> AsyncIterator[Client | None]:
    """The daemon that is named, or holds the workspace; None where no daemon does."""
    async with AsyncExitStack() as stack:
        try:
            client = await stack.enter_async_context(_connected(target, in_process=False))
        except Unreachable:
            if _is_named(target):
                raise
            client = None
        yield client


def _is_named(target: Target) -> bool:
    return target.url is not None or target.socket is not None


def _connected(target: Target, *, in_process: bool) -> AbstractAsyncContextManager[Client]:
    loaded = target.loaded
    if target.url is not None:
        if not target.url.startswith(("http://", "https://", "unix:")):  # it would be taken for a directory
            raise ConfigError(f"{target.url} is no address; write http://{target.url}, or https:// where it has TLS")
        token = read_secret(loaded.settings.listen.token_file, "token", os.environ)
        return connect(target.url, token=None if token is None else token.reveal(), patience_s=PATIENCE_S)
    if target.socket is not None:
        return connect(f"unix:{Path(target.socket).expanduser()}", patience_s=PATIENCE_S)

    def wait(pid: int | None) -> None:
        holder = "another process" if pid is None else f"process {pid}"
        print_sentence(target.errors, f"waiting for {holder}, which holds {one_line(loaded.workspace)}", "dim")

    return connect(
        loaded.shared_store or loaded.workspace,
        in_process=in_process,
        patience_s=PATIENCE_S if in_process else 0,
        sockets=_sockets(loaded),
        settings=target.local.settings.sessions if in_process else None,
        encryption=_keys(loaded) if in_process else None,
        on_progress=lambda progress: target.report(progress.stage, progress.done, progress.total),
        on_waiting=wait,
    )


def _keys(loaded: LoadedSettings) -> KeyRing | None:
    from miniclaw_sessions.encryption import load_keys  # noqa: PLC0415 - a client of a daemon does without

    return load_keys(loaded.settings.encryption, os.environ)


def _sockets(loaded: LoadedSettings) -> list[Path]:
    """Where the daemon of this workspace may listen, beside the workspace itself."""
    configured = socket_path(loaded, os.environ)
    try:
        may_be_service = loaded.sources["workspace"] == "default" or (loaded.workspace / ".lock").exists()
    except PermissionError:  # the service's own workspace, into which only root can look
        may_be_service = True
    return [*([configured] if configured else []), *(SERVICE_SOCKETS if may_be_service else ())]


def refused(loaded: LoadedSettings, *, create: bool) -> SessionsError | None:
    """Why the workspace is not opened in this process; a shared store always is, which has no files to be made.

    Opening it would make a workspace by mistake, or files in it that its owner's daemon could not read.
    """
    if loaded.shared_store is not None:
        return None
    workspace = loaded.workspace
    try:
        owner = workspace.stat().st_uid
    except FileNotFoundError:
        if loaded.sources["workspace"] == "default" and (path := _silent_service()) is not None:
            return Unreachable(
                f"the service at {path} does not answer: see `systemctl status miniclaw-sessions`; "
                "--workspace names a workspace of your own"
            )
        missing = f"there is no workspace at {workspace}; `serve`, `chat` and `import` make one"
        return None if create else ConfigError(f"{missing}, --workspace names another")
    except OSError as error:
        return ConfigError(f"cannot open the workspace {workspace}: {error.strerror}; run this as its owner")
    if owner != os.geteuid():
        return ConfigError(f"the workspace {workspace} belongs to user id {owner}; run this as that user")
    return None


def _silent_service() -> Path | None:
    """The socket of a service that this user may connect to, and that does not answer."""
    for path in SERVICE_SOCKETS:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(path))
            except (FileNotFoundError, PermissionError):  # none is installed, or it is not for this user
                continue
            except OSError:
                return path
            return path
    return None
