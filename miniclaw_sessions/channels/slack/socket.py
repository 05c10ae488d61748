"""Socket Mode: one connection that Slack delivers over, and that is renewed as Slack asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio

from miniclaw_sessions.channels.slack.client import Client, Fields
from miniclaw_sessions.clock import Clock
from miniclaw_sessions.errors import Unreachable

_CONNECTED_S = 30.0
_CLOSED_S = 1.0


class Socket:
    """The library's client, with an eye on it.

    Args:
        client: calls Slack.
        token: the app's.
        clock: says how long the connection is gone.
        take: takes what is delivered, its kind and its payload, and returns what to acknowledge it with.
        missed: called when there is a further connection: something may have been missed before it.
    """

    def __init__(
        self,
        client: Client,
        token: str,
        clock: Clock,
        take: Callable[[str, Fields], Awaitable[Fields]],
        missed: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._take = take
        self._missed = missed
        self._connections = 0
        self._connected_at = clock.monotonic()
        self._library: Any = client.socket(token)
        self._library.message_listeners.append(self._greeted)
        self._library.socket_mode_request_listeners.append(self._delivered)

    async def connect(self, url: str) -> None:
        """Connect to an address that Slack has given out.

        Raises:
            Unreachable: there is no connection.
        """
        self._library.wss_uri = url
        with anyio.move_on_after(_CONNECTED_S):
            await self._library.connect()  # tries it again and again, without a word
            return
        raise Unreachable("Slack takes no connection by Socket Mode")

    async def check(self) -> None:
        """See that the connection is there.

        The library asks for another one where it is not, but may wait for ever at an address that holds no more.

        Raises:
            Unreachable: it is gone for a while.
        """
        now = self._clock.monotonic()
        if await self._library.is_connected():
            self._connected_at = now
        elif now - self._connected_at > _CONNECTED_S:
            raise Unreachable("the connection to Slack by Socket Mode is gone")

    async def close(self) -> None:
        """Close it, also where the program stops."""
        with anyio.move_on_after(_CLOSED_S, shield=True):
            await self._library.close()

    async def _greeted(self, _: Any, message: Fields, __: str | None = None) -> None:
        if message.get("type") == "hello":
            self._connections += 1
            if self._connections > 1:
                self._missed()

    async def _delivered(self, _: Any, request: Any) -> None:
        reply = await self._take(request.type, request.payload)
        with suppress(ConnectionError):  # Slack delivers it again
            acknowledged = {"envelope_id": request.envelope_id, **({"payload": reply} if reply else {})}
            await self._library.send_socket_mode_response(acknowledged)
