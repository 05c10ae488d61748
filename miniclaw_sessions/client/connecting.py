"""Finding the sessions of a workspace: in the process that holds it, or, if nobody does, in its files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from miniclaw_sessions.api.context import Chats, Context
from miniclaw_sessions.client.client import Client
from miniclaw_sessions.client.transport import LocalTransport
from miniclaw_sessions.errors import DirectoryInUse, SessionsError, Unreachable

if TYPE_CHECKING:
    from miniclaw_sessions.client.http import HttpTransport
    from miniclaw_sessions.config import SessionSettings
    from miniclaw_sessions.encryption import KeyRing
    from miniclaw_sessions.manager import SessionManager
    from miniclaw_sessions.persistence.recovery import Progress
    from miniclaw_sessions.session.compacting import Summarizer

DEFAULT_WORKSPACE = Path("~/.miniclaw/workspace")
SOCKET_NAME = "miniclaw.sock"
PATIENCE_S = 10.0
"""How long a daemon that starts, or starts again, is waited for."""

_LOOK_EVERY_S = 0.1


@asynccontextmanager
async def connect(  # noqa: PLR0913 - each can be left out
    target: str | Path | SessionManager | None = None,
    *,
    token: str | None = None,
    in_process: bool = True,
    patience_s: float = PATIENCE_S,
    sockets: Iterable[Path] = (),
    settings: SessionSettings | None = None,
    encryption: KeyRing | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_waiting: Callable[[int | None], None] | None = None,
    chats: Chats | None = None,
    summarizer: Summarizer | None = None,
) -> AsyncIterator[Client]:
    """The sessions of a workspace, whoever holds it.

        async with connect("~/.miniclaw/workspace") as client:
            session = await client.get_or_create("telegram", "123456789")
            await session.add_message(Message.user("Hello miniclaw!"))

    A daemon that holds the workspace is asked over its Unix socket. If nobody holds it, it is opened in this process,
    and the same operations are called without HTTP in between.

    Args:
        target: the workspace's directory, by default `~/.miniclaw/workspace`; or `unix:/path/of/a.sock`, or an http(s)
            URL; or a manager that is open in this process.
        token: what a URL asks for.
        in_process: open the workspace here if nobody holds it; False: there must be a daemon.
        patience_s: how long a daemon that starts, or starts again, is waited for, in seconds.
        sockets: where else a daemon of this workspace may listen.
        settings: for a workspace that is opened here; see `SessionManager`.
        encryption: same.
        on_progress: same.
        on_waiting: told the process id of whoever holds the workspace and does not answer yet, when that is waited for.
        chats: who answers in a workspace that is opened here.
        summarizer: who summarises there.

    Raises:
        Unreachable: nobody answers, and it was not to be opened here.
        DirectoryInUse: a process holds the workspace and answers on no known socket.
        ConfigError, StoreError, SnapshotUnreadable: it cannot be opened.
    """
    async with AsyncExitStack() as stack:
        if target is not None and not isinstance(target, str | Path):
            context = Context(target, chats=chats, summarizer=summarizer)
            yield Client(LocalTransport(context))
            return
        if (url := _url_of(target)) is not None:
            yield Client(await stack.enter_async_context(_at_url(url, token, patience_s)))
            return
        workspace = _workspace_of(target)
        candidates = list(dict.fromkeys([*sockets, workspace / SOCKET_NAME]))
        give_up = anyio.current_time() + patience_s
        while True:
            async with _found(workspace, candidates, patience_s) as daemon:
                if daemon is not None:
                    yield Client(daemon)
                    return
            failure: SessionsError = Unreachable(
                f"nobody serves {workspace}; start the daemon: miniclaw-sessions serve"
            )
            if in_process:
                from miniclaw_sessions.manager import SessionManager  # noqa: PLC0415 - whoever only asks does without

                manager = SessionManager(workspace, settings=settings, encryption=encryption, on_progress=on_progress)
                try:
                    await stack.enter_async_context(manager)
                except DirectoryInUse as error:  # whoever holds it may be about to listen
                    failure = error
                    if on_waiting is not None:
                        on_waiting(error.pid)
                        on_waiting = None
                else:
                    yield Client(LocalTransport(Context(manager, chats=chats, summarizer=summarizer)))
                    return
            if anyio.current_time() + _LOOK_EVERY_S > give_up:
                raise failure
            await anyio.sleep(_LOOK_EVERY_S)


def _workspace_of(target: str | Path | None) -> Path:
    return Path(target or DEFAULT_WORKSPACE).expanduser().resolve()


def _url_of(target: str | Path | None) -> str | None:
    is_url = isinstance(target, str) and target.startswith(("unix:", "http://", "https://"))
    return str(target) if is_url else None


@asynccontextmanager
async def _at_url(url: str, token: str | None, patience_s: float) -> AsyncIterator[HttpTransport]:
    from miniclaw_sessions.client.http import HttpTransport, unix_client, url_client  # noqa: PLC0415 - heavy

    is_socket = url.startswith("unix:")
    made = unix_client(url.removeprefix("unix:").removeprefix("//")) if is_socket else url_client(url, token)
    async with made as client:
        yield HttpTransport(client, url, patience_s=patience_s)


@asynccontextmanager
async def _found(workspace: Path, sockets: Iterable[Path], patience_s: float) -> AsyncIterator[HttpTransport | None]:
    """The daemon that holds the workspace, or None."""
    listening = [path for path in sockets if path.exists()]
    if not listening:
        yield None
        return
    from miniclaw_sessions.client.http import HttpTransport, health_of, unix_client  # noqa: PLC0415 - heavy

    for path in listening:
        async with unix_client(str(path)) as client:
            health = await health_of(client)
            if health is not None and _holds(health.pid, workspace):
                yield HttpTransport(client, f"unix:{path}", patience_s=patience_s)
                return
    yield None


def _holds(pid: int, workspace: Path) -> bool:
    """Whether the process with this id holds this workspace: its id stands in the lock file, where that can be read."""
    try:
        return (workspace / ".lock").read_bytes().strip() == b"%d" % pid
    except OSError:
        return True
