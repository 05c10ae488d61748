"""Connects to the sessions of a workspace: through the process that holds it, else by opening its files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miniclaw_sessions.config import DEFAULT_WORKSPACE, names_server
from miniclaw_sessions.errors import ConfigError, DirectoryInUse, SessionsError, Unreachable, to_install
from miniclaw_sessions.service.api.context import Chats, Context
from miniclaw_sessions.service.client.client import Client
from miniclaw_sessions.service.client.transport import LocalTransport, Transport

if TYPE_CHECKING:
    from miniclaw_sessions.config import SessionSettings
    from miniclaw_sessions.core.manager import SessionManager
    from miniclaw_sessions.core.persistence.recovery import Progress
    from miniclaw_sessions.core.session.compacting import Summarizer
    from miniclaw_sessions.core.stores.base import StorePlace
    from miniclaw_sessions.encryption import KeyRing
    from miniclaw_sessions.service.client.http import HttpTransport

SOCKET_NAME = "miniclaw.sock"
PATIENCE_S = 10.0
"""How long a daemon that starts, or starts again, is waited for."""

_LOOK_EVERY_S = 0.1
Opened = Callable[[Any], Context]


@asynccontextmanager
async def connect(  # noqa: PLR0913 - each can be left out
    target: str | Path | SessionManager | None = None,
    *,
    token: str | None = None,
    in_process: bool = True,
    readonly: bool = False,
    create: bool = True,
    patience_s: float = PATIENCE_S,
    sockets: Iterable[Path] = (),
    settings: SessionSettings | None = None,
    encryption: KeyRing | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_waiting: Callable[[int | None], None] | None = None,
    chats: Chats | None = None,
    summarizer: Summarizer | None = None,
) -> AsyncIterator[Client]:
    """The sessions of a workspace, through its daemon or its files.

        async with connect("~/.miniclaw/workspace") as client:
            session = await client.get_or_create("telegram", "123456789")
            await session.add_message(Message.user("Hello miniclaw!"))

    A daemon that holds the workspace is asked over its Unix socket. If no process holds it, it is opened in this one.

    Args:
        target: the workspace's directory, by default `~/.miniclaw/workspace`, or the URL of a shared store
            (`postgresql:`); or `unix:/path/of/a.sock`, or an http(s) URL; or a manager that is open in this process.
        token: what a URL asks for.
        in_process: open the workspace here if no process holds it. False, for workers beside a daemon: wait for one
            as long as `patience_s`; a worker that starts while the daemon restarts would else take its place.
        readonly: open it here without a lock, and only to read; nothing is made or changed, and no lock is needed.
        create: where it is opened here to be written: make the workspace if it is missing.
        patience_s: how long a daemon that starts, or starts again, is waited for, in seconds.
        sockets: where else a daemon of this workspace may listen.
        settings: for a workspace that is opened here; see `SessionManager`.
        encryption: same.
        on_progress: same.
        on_waiting: called with the process id of a holder that does not answer yet, when the wait begins.
        chats: who answers in a workspace that is opened here.
        summarizer: who summarizes there.

    Raises:
        Unreachable: nothing answers, and `in_process` is False.
        DirectoryInUse: a process holds the workspace and answers on no known socket.
        ConfigError, StoreError, SnapshotUnreadable: it cannot be opened.
    """
    opened = partial(Context, chats=chats, summarizer=summarizer)
    if target is not None and not isinstance(target, str | Path):
        yield Client(LocalTransport(opened(target)))
        return
    if (url := _url_of(target)) is not None:
        transport: AbstractAsyncContextManager[Transport] = _at_url(url, token, patience_s)
    else:
        given: dict[str, Any] = {"settings": settings, "encryption": encryption, "on_progress": on_progress}
        given["create"] = None if readonly else create
        options = {name: value for name, value in given.items() if value is not None}
        local = partial(_opened_here, opened, readonly=readonly, **options) if in_process else None
        transport = _of_workspace(target, sockets, local, patience_s, on_waiting)
    async with transport as found:
        yield Client(found)


@asynccontextmanager
async def _of_workspace(
    target: str | Path | None,
    sockets: Iterable[Path],
    here: Callable[[Path | str], AbstractAsyncContextManager[Transport]] | None,
    patience_s: float,
    on_waiting: Callable[[int | None], None] | None,
) -> AsyncIterator[Transport]:
    """The daemon that holds a workspace, or the workspace opened `here`, whichever is possible first."""
    workspace = _workspace_of(target)
    own = [workspace / SOCKET_NAME] if isinstance(workspace, Path) else []
    candidates = list(dict.fromkeys([*sockets, *own]))
    give_up = asyncio.get_running_loop().time() + patience_s
    async with AsyncExitStack() as stack:
        while True:
            if (daemon := await _found(stack, workspace, candidates, patience_s)) is not None:
                yield daemon
                return
            shown = workspace if isinstance(workspace, Path) else _place_of(workspace).shown
            failure: SessionsError = Unreachable(f"no daemon serves {shown}; start it: miniclaw-sessions serve")
            if here is not None:
                try:
                    local = await stack.enter_async_context(here(workspace))
                except DirectoryInUse as error:  # its holder may be about to listen
                    failure = error
                    if on_waiting is not None:
                        on_waiting(error.pid)
                        on_waiting = None
                else:
                    yield local
                    return
            if asyncio.get_running_loop().time() + _LOOK_EVERY_S > give_up:
                raise failure
            await asyncio.sleep(_LOOK_EVERY_S)


@asynccontextmanager
async def _opened_here(
    opened: Opened, workspace: Path | str, *, readonly: bool, **options: Any
) -> AsyncIterator[Transport]:
    from miniclaw_sessions.core.manager import SessionManager, open_readonly  # noqa: PLC0415 - a daemon's client does without

    sessions: Any = open_readonly if readonly else SessionManager
    async with sessions(workspace, **options) as manager:
        yield LocalTransport(opened(manager), readonly=readonly)


def _workspace_of(target: str | Path | None) -> Path | str:
    """A directory, or the URL of a shared store."""
    if isinstance(target, str) and names_server(target):
        return target
    return Path(target or DEFAULT_WORKSPACE).expanduser().resolve()


def _url_of(target: str | Path | None) -> str | None:
    is_url = isinstance(target, str) and target.startswith(("unix:", "http://", "https://"))
    return str(target) if is_url else None


@asynccontextmanager
async def _at_url(url: str, token: str | None, patience_s: float) -> AsyncIterator[HttpTransport]:
    _require_http()
    from miniclaw_sessions.service.client.connection import Address, Connections  # noqa: PLC0415 - not needed in process
    from miniclaw_sessions.service.client.http import HttpTransport  # noqa: PLC0415 - same

    async with Connections(Address.of(url), token) as connections:
        yield HttpTransport(connections, url, patience_s=patience_s)


async def _found(
    stack: AsyncExitStack, workspace: Path | str, sockets: Iterable[Path], patience_s: float
) -> HttpTransport | None:
    """The daemon that holds the workspace, or None."""
    for path in (path for path in sockets if path.exists()):
        _require_http()
        from miniclaw_sessions.service.client.connection import Address, Connections  # noqa: PLC0415 - not needed in process
        from miniclaw_sessions.service.client.http import HttpTransport, health_of  # noqa: PLC0415 - same

        async with AsyncExitStack() as asking:
            connections = await asking.enter_async_context(Connections(Address(socket=str(path))))
            health = await health_of(connections)
            if health is not None and await asyncio.to_thread(_is_here, health.workspace, workspace):
                await stack.enter_async_context(asking.pop_all())
                return HttpTransport(connections, f"unix:{path}", patience_s=patience_s)
    return None


def _require_http() -> None:
    """Raise ConfigError where what parses HTTP is not installed: a library that opens its workspace does without."""
    if find_spec("httptools") is None:
        raise ConfigError(f"asking a daemon needs httptools: {to_install('client')}")


def _place_of(store: str) -> StorePlace:
    from miniclaw_sessions.core.stores import open_store  # noqa: PLC0415 - only where it is a store

    return open_store(store).place


def _is_here(identity: str, workspace: Path | str) -> bool:
    """Whether a daemon has this directory or store, where that can be seen: its socket may serve another one."""
    if isinstance(workspace, str):
        return identity == _place_of(workspace).identity
    from miniclaw_sessions.disk import lock_identity  # noqa: PLC0415 - not needed where no socket is

    try:
        return lock_identity(workspace) == identity
    except FileNotFoundError:
        return False
    except OSError:
        return True
