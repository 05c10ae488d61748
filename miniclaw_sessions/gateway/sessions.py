"""The sessions as handlers ask for them: by the id in the path, and no longer than is reasonable."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

import anyio
from starlette.requests import ClientDisconnect, Request

from miniclaw_sessions.config import ListenSettings
from miniclaw_sessions.errors import SessionNotFound
from miniclaw_sessions.gateway.requests import session_id_of
from miniclaw_sessions.gateway.streaming import cancel_when_gone
from miniclaw_sessions.manager import SessionManager
from miniclaw_sessions.protocol.keys import SessionKey
from miniclaw_sessions.session import Session

T = TypeVar("T")


class ServedSessions:
    """One manager's sessions, for those who answer requests.

    Attributes:
        manager: whose sessions they are.
        limits: sizes and times.
    """

    def __init__(self, manager: SessionManager, limits: ListenSettings) -> None:
        self.manager = manager
        self.limits = limits

    async def find(self, request: Request) -> Session:
        """The session that the path names.

        Raises:
            SessionNotFound, InvalidKey: there is none, or the path holds no session id.
        """
        return await self.manager.find(session_id_of(request))

    async def find_or_create(self, request: Request) -> Session:
        """The session that the path names, made if there is none; renews its time to live.

        Raises:
            InvalidKey, SessionLimit: there is none, and none can be made.
        """
        session_id = session_id_of(request)
        try:
            key = (await self.manager.find(session_id)).key
        except SessionNotFound:
            key = SessionKey.parse(session_id)
        return await self.manager.get_or_create(key.channel, key.chat_id)

    async def in_time(self, work: Awaitable[T]) -> T:
        """Wait, but not for ever, for the store or a turn that is in the way: a client learns that it takes long."""
        with anyio.fail_after(self.limits.request_timeout_s):
            return await work


async def while_client_waits(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What may take as long as the session is large, or the model is slow: it ends when the client goes away.

    The request's body must have been read.

    Raises:
        ClientDisconnect: the client has gone, and the work was cancelled.
    """
    done: list[T] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel_when_gone, request.receive, tasks.cancel_scope, name="client watch")
        try:
            done.append(await work)
        except Exception as error:  # noqa: BLE001 - raised again below: a task group would wrap it
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not done:
        raise ClientDisconnect
    return done[0]
