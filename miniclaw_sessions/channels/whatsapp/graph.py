"""Meta's Graph API, as far as a WhatsApp number needs it: a request is done when a reply of Meta's own says so.

There is no library of Meta's for it that is kept, and those of others judge no reply.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import msgspec

from miniclaw_sessions.channels.replies import what_came
from miniclaw_sessions.clock import Clock
from miniclaw_sessions.errors import Unreachable
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.secret import Secret

log = get_logger(__name__)
T = TypeVar("T")

WINDOW_CLOSED = 131_047
"""Meta's code where the person has written nothing for 24 hours: then only templates are taken."""

LIMITS = frozenset({4, 80_007, 130_429, 131_048, 131_056, 131_208})
"""Its codes where too much is sent: by the app, for the account, by the number, to one person, to groups."""

TRANSIENT = frozenset({1, 2, 131_000, 131_016, 131_057})
"""Its codes where something is wrong with Meta, and may not be soon."""

_OF_THE_TOKEN = frozenset({0, 3, 10, 190, *range(200, 300)})
"""Its codes where the token is expired, or lacks a permission: another one helps, and the message can wait for it."""

_SUCCESS = range(200, 300)
_TOO_MANY_REQUESTS, _SERVER_ERROR = 429, 500
_BACKOFF_S = (1.0, 60.0)
_LONGEST_PAUSE_S = 300.0
_TIMEOUT_S = 10.0
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Refused(Unreachable):
    """Meta refuses a request for good.

    Attributes:
        code: Meta's, whose meaning stands at
            https://developers.facebook.com/documentation/business-messaging/whatsapp/support/error-codes
        is_for_now: whether it is taken later, with another token.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"Meta refuses a request with its error {code}")
        self.code = code
        self.is_for_now = code in _OF_THE_TOKEN


class Limited(Unreachable):
    """Too much is sent.

    Attributes:
        pause_s: how long Meta says to wait; None: it does not say.
    """

    def __init__(self, code: int, pause_s: float | None) -> None:
        super().__init__(f"Meta takes nothing now: too much is sent (its error {code})")
        self.pause_s = pause_s


class Unconfirmed(Unreachable):
    """The outcome of the request is unknown: no reply came, or none of Meta's own, or something is wrong with Meta."""


class _Fault(msgspec.Struct):
    code: int
    is_transient: bool = False


class _FaultReply(msgspec.Struct):
    error: _Fault


class _Id(msgspec.Struct):
    id: str


class Sent(msgspec.Struct):
    """Meta has taken a message."""

    messages: Annotated[list[_Id], msgspec.Meta(min_length=1)]


class Done(msgspec.Struct):
    """Meta has done something."""

    success: bool


class Uploaded(msgspec.Struct):
    """Meta has taken a file."""

    id: str


class Number(msgspec.Struct):
    """The bot's telephone number."""

    id: str
    display_phone_number: str


class Place(msgspec.Struct):
    """From where a file is fetched, for five minutes."""

    url: str
    sha256: str = ""
    file_size: int = 0


def judged(status: int, headers: Mapping[str, str], body: bytes, shape: type[T], secret: str) -> T:
    """What a reply says.

    Args:
        status: HTTP's.
        headers: by their names in lower case.
        body: the reply.
        shape: what it has at least, where Meta has done what was asked.
        secret: what must not be shown of it.

    Raises:
        Refused, Limited, Unconfirmed: Meta has not done it, or nothing says so.
    """
    try:
        document = json.loads(body)
        if status in _SUCCESS:
            return msgspec.convert(document, shape, strict=False)
        fault = msgspec.convert(document, _FaultReply, strict=False).error
    except (ValueError, RecursionError) as error:
        came = what_came(status, headers.get("content-type", ""), body, secret)
        if status == _TOO_MANY_REQUESTS:
            raise Limited(status, _pause_in(headers)) from None
        why = str(error) if isinstance(error, msgspec.ValidationError) else "no JSON"
        raise Unconfirmed(f"the reply is not Meta's own ({came}): {why}") from None
    if fault.code in LIMITS or status == _TOO_MANY_REQUESTS:
        raise Limited(fault.code, _pause_in(headers))
    if fault.code in TRANSIENT or fault.is_transient or status >= _SERVER_ERROR:
        raise Unconfirmed(f"something is wrong with Meta (its error {fault.code})")
    raise Refused(fault.code)


def _pause_in(headers: Mapping[str, str]) -> float | None:
    said = headers.get("retry-after", "")
    return min(float(said), _LONGEST_PAUSE_S) if re.fullmatch(r"\d{1,9}", said) else None


@cache
def _trusted() -> ssl.SSLContext:
    """The authorities that sign Meta's certificate: one for all clients, for each takes 50 ms to read them."""
    import httpx2  # noqa: PLC0415 - an extra

    return httpx2.create_ssl_context()


class GraphClient:
    """Asks the Graph API.

    Args:
        channel: named in the log.
        url: of the API, with its version.
        token: the access token.
        clock: for pauses.
    """

    def __init__(self, channel: str, url: str, token: Secret, clock: Clock) -> None:
        import httpx2  # noqa: PLC0415 - an extra

        self._failures = (httpx2.HTTPError, httpx2.InvalidURL)
        self._channel = channel
        self._url = url
        self._token = token
        self._clock = clock
        headers = {"Authorization": f"Bearer {token.reveal()}", "Accept-Encoding": "identity"}
        self._client = httpx2.AsyncClient(headers=headers, timeout=_TIMEOUT_S, verify=_trusted())

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def ask(self, method: str, path: str, shape: type[T], *, insist: bool = False, **options: Any) -> T:
        """Ask for something; with `insist` again and again, as slowly as Meta wants it, until its own reply says it.

        Args:
            method: HTTP's.
            path: below the API's address.
            shape: what the reply has at least.
            insist: whether only a refusal ends it.
            options: for the library, such as `json`.

        Raises:
            Refused: Meta refuses it.
            Limited, Unconfirmed: it was not confirmed; not with `insist`.
        """
        delay, longest = _BACKOFF_S
        while True:
            pause = delay
            try:
                return await self._once(method, path, shape, options)
            except Limited as error:
                if not insist:
                    raise
                pause = max(delay, error.pause_s or 0.0)
            except Unconfirmed as error:
                if not insist:
                    raise
                if delay == _BACKOFF_S[0]:
                    why = {"channel": self._channel, "detail": str(error)}
                    log.warning("what Meta does not confirm is sent again", action="channel.unconfirmed", **why)
            await self._clock.sleep(pause)
            delay = min(2 * delay, longest)

    async def _once(self, method: str, path: str, shape: type[T], options: Mapping[str, Any]) -> T:
        try:
            response = await self._client.request(method, f"{self._url}/{path}", **options)
        except self._failures as error:
            raise Unconfirmed(f"Meta's Graph API does not reply: {type(error).__name__}") from None
        return judged(response.status_code, response.headers, response.content, shape, self._token.reveal())

    async def download(self, url: str, most: int) -> bytes:
        """The bytes at an address that Meta gave; none where they are more than that.

        Raises:
            Unconfirmed: they cannot be had.
        """
        if not url.startswith(("https://", self._url.partition("://")[0] + "://")):
            raise Unconfirmed("a file is not at an https address")  # the token would be read on the way
        data = bytearray()
        try:
            async with self._client.stream("GET", url) as response:
                if response.status_code not in _SUCCESS:
                    raise Unconfirmed(f"a file cannot be fetched: status {response.status_code}")
                async for chunk in response.aiter_bytes():
                    data += chunk
                    if len(data) > most:
                        return b""
        except self._failures as error:
            raise Unconfirmed(f"a file cannot be fetched: {type(error).__name__}") from None
        return bytes(data)
