"""Calls of Slack's Web API: a call is done when Slack's own reply says `ok`, and refused when Slack itself says why.

Any other reply, a proxy's page, half a document, none in time, says nothing about the outcome of the call: it is
`Unreachable`. Slack's rate limits are waited out, as long as it says.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.errors import SessionsError, Unreachable
from miniclaw_sessions.log import get_logger

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from slack_sdk.web.async_client import AsyncWebClient

log = get_logger(__name__)

BACKOFF_S = (1.0, 60.0)
"""How long it takes until what Slack did not confirm is tried again: at first, doubled each time, and at most."""

_TIMEOUT_S = 30
_LIMITED_S = 30.0  # where Slack does not say how long it wants to be left alone
_TOO_MANY_REQUESTS, _SUCCESS = 429, 200
_FOR_NOW = {"internal_error", "fatal_error", "service_unavailable", "request_timeout", "team_added_to_org"}

Fields = dict[str, Any]


class Refused(SessionsError):
    """Slack does not do it, and would not the next time.

    Attributes:
        code: Slack's own word for why.
    """

    def __init__(self, method: str, code: str) -> None:
        super().__init__(f"Slack refuses {method}: {code}")
        self.code = code


class _Limited(Exception):
    """Slack wants to be left alone for a while."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.pause_s = pause_s


class Client:
    """Slack's own library, with every reply judged. Made within a running event loop.

    Args:
        channel: the channel's name, for the log.
        token: the bot's.
        url: where the Web API is served, without `/api`.
        clock: for waiting.
    """

    def __init__(self, channel: str, token: str, url: str, clock: Clock) -> None:
        from aiohttp import ClientSession, ClientTimeout  # noqa: PLC0415 - an extra, and slow to load
        from slack_sdk.web.async_client import AsyncWebClient  # noqa: PLC0415 - an extra, and slow to load

        self._channel = channel
        self._token = token
        self._url = url.rstrip("/")
        self._clock = clock
        self._logger = logging.getLogger("slack_sdk")
        self._session: ClientSession = ClientSession(timeout=ClientTimeout(total=_TIMEOUT_S))
        self.web: AsyncWebClient = AsyncWebClient(
            token, f"{self._url}/api/", session=self._session, retry_handlers=[], logger=self._logger
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    def socket(self, app_token: str) -> Any:
        """The library's client for Socket Mode; it is not connected."""
        from slack_sdk.socket_mode.aiohttp import SocketModeClient  # noqa: PLC0415 - an extra, and slow to load

        return SocketModeClient(app_token, self._logger, self.web)

    async def asked(
        self, method: Callable[..., Awaitable[Any]], *, insist: bool = False, needs: str = "ok", **arguments: Any
    ) -> Fields:
        """Call a method of the library's client, as late as Slack says; what Slack's own reply says.

        Args:
            method: such as `client.web.auth_test`.
            insist: whether it is called again and again until Slack's own reply is there. Not for what would be done
                twice.
            needs: what the reply must have besides `ok`.
            arguments: the method's.

        Raises:
            Refused: Slack does not do it.
            Unreachable: the outcome is unknown.
        """
        delay, longest = BACKOFF_S
        while True:
            try:
                return await self._once(method, needs, arguments)
            except _Limited as limited:
                pause = limited.pause_s
            except Unreachable as error:
                if not insist:
                    raise
                self.unconfirmed(error)
                pause, delay = delay, min(2 * delay, longest)
            await self._clock.sleep(pause)

    def unconfirmed(self, error: Unreachable) -> None:
        """Log that something is asked again."""
        why = {"channel": self._channel, "detail": str(error)}
        log.warning("what Slack does not confirm is asked again", action="channel.unconfirmed", **why)

    async def _once(self, method: Callable[..., Awaitable[Any]], needs: str, arguments: Fields) -> Fields:
        from aiohttp import ClientError  # noqa: PLC0415 - an extra, and slow to load
        from slack_sdk.errors import SlackApiError  # noqa: PLC0415 - an extra, and slow to load

        name = getattr(method, "__name__", "a method")
        try:
            reply = await method(**arguments)
        except SlackApiError as error:
            reply = error.response
        except (ClientError, OSError, TimeoutError, AttributeError, ValueError) as error:
            # the library reads `.get` of any JSON that came
            raise Unreachable(f"Slack does not reply to {name}: {type(error).__name__}") from None
        return judged(name, reply, needs)

    async def upload(self, url: str, data: bytes) -> None:
        """Put a file where `files.getUploadURLExternal` says.

        Raises:
            Unreachable: it is not confirmed.
        """
        from aiohttp import ClientError  # noqa: PLC0415 - an extra, and slow to load

        try:
            async with self._session.post(url, data=data) as reply:
                status = reply.status
        except (ClientError, OSError, TimeoutError) as error:
            raise Unreachable(f"Slack does not take a file: {type(error).__name__}") from None
        if status != _SUCCESS:
            raise Unreachable(f"Slack does not take a file: status {status}")

    async def content(self, url: str, most: int) -> bytes:
        """The bytes of a file that Slack keeps; none where they are more than that, or cannot be had.

        The bot's token goes to Slack alone, and a page to log in is no file.
        """
        from aiohttp import ClientError  # noqa: PLC0415 - an extra, and slow to load

        where, own = urlsplit(url), urlsplit(self._url)
        is_slacks = where.scheme == "https" and f".{where.hostname or ''}".endswith(".slack.com")
        if not is_slacks and (where.scheme, where.netloc) != (own.scheme, own.netloc):
            return b""
        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            async with self._session.get(url, headers=headers, allow_redirects=False) as reply:
                if reply.status != _SUCCESS or (reply.content_length or 0) > most:
                    return b""
                data = bytearray()
                async for piece in reply.content.iter_chunked(2**16):
                    data += piece
                    if len(data) > most:
                        return b""
                return bytes(data)
        except (ClientError, OSError, TimeoutError):
            return b""


def judged(method: str, reply: Any, needs: str) -> Fields:
    """What Slack's reply says.

    Args:
        method: what was called.
        reply: the library's response; where that is no JSON, the response of its HTTP library.
        needs: what it must have.

    Raises:
        Refused: Slack does not do it.
        Unreachable: it is none of Slack's, or Slack cannot do it now.
    """
    status = getattr(reply, "status_code", None) or getattr(reply, "status", None)
    headers: Mapping[str, Any] = getattr(reply, "headers", {})
    data = getattr(reply, "data", None)
    said = data if isinstance(data, dict) else {}
    if status == _TOO_MANY_REQUESTS or said.get("error") == "ratelimited":
        raise _Limited(_seconds(headers.get("Retry-After")))
    if said.get("ok") is True and status == _SUCCESS and said.get(needs):
        return said
    code = said.get("error")
    if said.get("ok") is not False or not (isinstance(code, str) and code.isidentifier()):
        raise Unreachable(f"the reply to {method} is not Slack's own (status {status})")
    if code in _FOR_NOW:
        raise Unreachable(f"Slack cannot do {method} now: {code}")
    raise Refused(method, code)


def _seconds(text: Any) -> float:
    try:
        return max(1.0, min(float(text), 3600.0))
    except (TypeError, ValueError):
        return _LIMITED_S
