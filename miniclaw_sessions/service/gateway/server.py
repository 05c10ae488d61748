"""The server of the HTTP interface: it accepts clients, keeps the time for their replies, and ends in good order.

It accepts the clients itself, because the event loops turn clients away, and say nothing, when there are no descriptors
for them. `Connection` does the rest.
"""

from __future__ import annotations

import asyncio
import errno
import math
import resource
import socket
from collections.abc import Awaitable, Callable, Sequence
from email.utils import formatdate

import anyio

from miniclaw_sessions.log import get_logger
from miniclaw_sessions.service.gateway.connection import Connection, ServerState
from miniclaw_sessions.service.gateway.exchange import Exchange

IDLE_GRACE_S = 2.0
"""How long an idle connection outlives the order to stop; a client that is about to ask again asks within this time."""

BACKLOG = 2048
"""How many clients may wait to be accepted; the kernel may allow fewer."""

HURRIED_S = 1.0
"""How long, after a second signal, a turn that is cut off may take to be saved and reported."""

_LAST_WORDS_S = 5.0  # turns are cut off when the grace is over; a busy machine needs a while to save that and tell it
_REPLY_S = 1.0
_RETRY_S = 1.0  # until it is tried again to accept a client
_PROBLEM_FOR_S = 5.0  # a shortage of descriptors is a problem of health so long after it was last seen
_LOGGED_EVERY_S = 60.0
_RESERVED_DESCRIPTORS = 32  # for the store and the logs

log = get_logger(__name__)


class Server:
    """Serves an application on sockets that are already bound.

    Args:
        app: answers a request.
        max_connections: how many clients may be connected at once by TCP, and as many by Unix sockets.
        request_timeout_s: how long a request's head may take, and a client that does not take its reply.
        graceful_timeout_s: how long requests in flight may take to finish once the server stops; then they are
            cancelled.
    """

    def __init__(
        self,
        app: Callable[[Exchange], Awaitable[None]],
        *,
        max_connections: int,
        request_timeout_s: float,
        graceful_timeout_s: float,
    ) -> None:
        self.state = ServerState(app, request_timeout_s, max_connections, self._connection_gone)
        self.on_stopping: Callable[[], object] = lambda: None
        """Called when every connection knows that its next reply is its last: what has no end by itself ends now."""
        self.listening = anyio.Event()
        self.stopped = anyio.Event()
        self._told_to_stop = anyio.Event()
        self._one_gone = anyio.Event()
        self._grace_s = graceful_timeout_s
        self._grace = anyio.CancelScope()
        self._last_words = anyio.CancelScope()
        self._short_of_room_at = -math.inf

    async def serve_until_stopped(self, sockets: Sequence[socket.socket]) -> None:
        """Serve until `stop`; on return no request is running any more."""
        self._set_date()
        async with anyio.create_task_group() as tasks:
            for listening in sockets:
                listening.setblocking(False)  # noqa: FBT003 - its only argument
                listening.listen(BACKLOG)
                tasks.start_soon(self._accept, listening, name="accept")
            self.listening.set()
            await self._keep_time()
            tasks.cancel_scope.cancel()
        await self._shut_down(sockets)
        self.stopped.set()

    def problems(self) -> list[str]:
        """What keeps new clients away, or did a moment ago, one sentence each."""
        if anyio.current_time() - self._short_of_room_at > _PROBLEM_FOR_S:
            return []
        return ["there are not enough file descriptors for all clients; raise LimitNOFILE, or look for what holds them"]

    async def _accept(self, listening: socket.socket) -> None:
        """Accept one client after the other; where there is no descriptor for one, it waits, and is not turned away.

        Waiting is all that can be cancelled here: who is accepted is served.
        """
        while True:
            await anyio.wait_readable(listening)
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                continue
            except OSError as error:
                await self._wait_for_room(error.errno)
                continue
            connection.setblocking(False)  # noqa: FBT003 - its only argument
            with anyio.CancelScope(shield=True):
                await asyncio.get_running_loop().connect_accepted_socket(lambda: Connection(self.state), connection)
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if connection.fileno() >= soft - min(_RESERVED_DESCRIPTORS, soft // 4):
                await self._wait_for_room(errno.EMFILE)

    async def _wait_for_room(self, reason: int | None) -> None:
        """Wait until a connection has gone, or for a moment: other code may have freed a descriptor."""
        if anyio.current_time() - self._short_of_room_at > _LOGGED_EVERY_S:
            log.error("clients wait: there is no room to accept them", action="server.no_room", errno=reason)
        self._short_of_room_at = anyio.current_time()
        with anyio.move_on_after(_RETRY_S):
            await self._one_gone.wait()

    async def _keep_time(self) -> None:
        """Keep the `Date` header right until the server stops."""
        while not self._told_to_stop.is_set():
            self._set_date()
            with anyio.move_on_after(1.0):
                await self._told_to_stop.wait()

    def _set_date(self) -> None:
        self.state.date = f"date: {formatdate(usegmt=True)}\r\n".encode()

    async def _shut_down(self, sockets: Sequence[socket.socket]) -> None:
        """Accept nothing more; let requests in flight finish, cancel them when time is up; break off what is left.

        An idle connection stays open until its next request has been answered with `connection: close`, or for
        `IDLE_GRACE_S`: that request may be on its way already.
        """
        for listening in sockets:
            listening.close()
        connections = self.state.connections
        for connection in list(connections):
            connection.shutdown()
        self.on_stopping()
        self._grace.deadline = anyio.current_time() + self._grace_s
        with self._grace:
            with anyio.move_on_after(IDLE_GRACE_S):
                await self._all_gone()
            self._close_idle()
            await self._all_gone()
        self._close_idle()
        self._last_words.deadline = min(self._last_words.deadline, anyio.current_time() + _LAST_WORDS_S)
        with self._last_words:  # turns are cut off now: their clients hear it
            await self._all_gone()
        for task in self.state.tasks:
            task.cancel()
        with anyio.move_on_after(_REPLY_S):
            await self._all_gone()
        for connection in list(connections):
            connection.transport.abort()

    def _close_idle(self) -> None:
        for connection in list(self.state.connections):
            connection.close_if_idle()

    async def _all_gone(self) -> None:
        """Wait for the requests and their replies."""
        while tasks := self.state.tasks:
            await asyncio.wait(tasks)
        while self.state.connections:
            await self._one_gone.wait()

    def _connection_gone(self) -> None:
        gone, self._one_gone = self._one_gone, anyio.Event()
        gone.set()

    def stop(self) -> None:
        """Stop accepting and let the requests in flight finish."""
        self._told_to_stop.set()

    def hurry(self) -> None:
        """Wait no longer for the requests in flight."""
        self._grace.cancel()
        self._last_words.deadline = min(self._last_words.deadline, anyio.current_time() + HURRIED_S)
        self.stop()
