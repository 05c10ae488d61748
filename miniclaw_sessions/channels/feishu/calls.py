"""Calls of Feishu's interface: with the app's token, and as often as Feishu lets it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp
import msgspec

from miniclaw_sessions.channels.feishu.replies import (
    DONE,
    REFUSED_CONNECTION,
    TOKEN_CODES,
    WRONG_APP_CODES,
    Refused,
    Reply,
    Request,
    Unclear,
)
from miniclaw_sessions.clock import Clock
from miniclaw_sessions.config.settings import show_value
from miniclaw_sessions.errors import ConfigError, Unreachable
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.secret import Secret

log = get_logger(__name__)

_TIMEOUT_S = 20.0
_BACKOFF_S = (1.0, 60.0)
_EARLY_S = 600.0  # a token is replaced so long before it ends; Feishu gives a new one in its last half hour
_PING_S = 120.0
_MAX_REPLY_BYTES = 2**20


class Endpoint(NamedTuple):
    """Where the long connection is, for one use, and how often it is kept alive."""

    url: str
    ping_s: float


def ping_seconds(config: Any, former: float) -> float:
    """How often the long connection is kept alive, by Feishu's `ClientConfig`; as before, if that says nothing."""
    seconds = config.get("PingInterval") if isinstance(config, dict) else None
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else former


class Calls:
    """Calls Feishu as one app.

    Args:
        url: where Feishu is, without a slash at the end.
        app_id: the app's.
        secret: the app's.
        channel: names the channel in the log.
        clock: for waiting.
    """

    def __init__(self, url: str, app_id: str, secret: Secret, channel: str, clock: Clock) -> None:
        self._url = url
        self._app_id = app_id
        self._secret = secret
        self._channel = channel
        self._clock = clock
        self._opened: aiohttp.ClientSession | None = None
        self._token = Secret("")
        self._token_ends = float("-inf")

    @property
    def session(self) -> aiohttp.ClientSession:
        """The connections, which belong to the running event loop."""
        if self._opened is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_TIMEOUT_S, sock_read=_TIMEOUT_S)
            self._opened = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        return self._opened

    async def aclose(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            await self._opened.close()

    async def bot_id(self) -> str:
        """The bot's own id, by which it is mentioned.

        Raises:
            ConfigError: there is no such app, or it has no bot.
            Unreachable: Feishu is not there, or refuses.
        """
        document = await self.call(Request("name the bot", "GET", "/open-apis/bot/v3/info"))
        match document:
            case {"bot": {"open_id": str(open_id)}} if open_id:
                return open_id
        raise ConfigError(f"the app {self._app_id} of the channel {self._channel} has no bot; add one in its console")

    async def endpoint(self) -> Endpoint:
        """Where the long connection is.

        Raises:
            ConfigError: Feishu refuses the app.
            Unreachable: Feishu is not there, or says something else.
        """
        wanted = {"AppID": self._app_id, "AppSecret": self._secret.reveal()}
        request = Request("name the long connection", "POST", "/callback/ws/endpoint", json=wanted)
        document, _ = await self._asked(request, {}, insist=False)
        if (code := document["code"]) in REFUSED_CONNECTION:
            raise ConfigError(f"Feishu gives the app {self._app_id} no long connection: {REFUSED_CONNECTION[code]}")
        match document:
            case {"code": 0, "data": {"URL": str(url), **data}} if self._is_as_safe(url):
                return Endpoint(url, ping_seconds(data.get("ClientConfig"), _PING_S))
        raise Refused(code, request.what)

    async def call(self, request: Request, *, insist: bool = False) -> dict[str, Any]:
        """Call the interface, as late as Feishu says; its reply, of which `code` is 0.

        Args:
            request: what is asked for.
            insist: ask again and again until Feishu's own reply says what became of it.

        Raises:
            Refused: Feishu says no.
            Unclear: there is no reply of its own, and `insist` is not set.
            ConfigError: Feishu knows no such app.
        """
        document, _ = await self._authorized(request, insist=insist)
        return document

    async def file(self, request: Request) -> bytes:
        """The bytes of a file, of which there are at most `most`; none where it cannot be had."""
        try:
            _, data = await self._authorized(request, insist=False)
        except Unreachable:
            return b""
        return data

    async def _authorized(self, request: Request, *, insist: bool) -> tuple[dict[str, Any], bytes]:
        """What Feishu says to the app; with a new token, where the former is none."""
        has_new_token = False
        while True:
            headers = {"Authorization": f"Bearer {await self._valid_token(insist=insist)}"}
            document, data = await self._asked(request, headers, insist=insist)
            if document["code"] == 0:
                return document, data
            if document["code"] not in TOKEN_CODES or has_new_token:
                raise Refused(document["code"], request.what)
            self._token_ends, has_new_token = float("-inf"), True

    async def _valid_token(self, *, insist: bool) -> str:
        """The app's token, a new one where the former is over soon."""
        if self._clock.monotonic() < self._token_ends:
            return self._token.reveal()
        wanted = {"app_id": self._app_id, "app_secret": self._secret.reveal()}
        path = "/open-apis/auth/v3/tenant_access_token/internal"
        document, _ = await self._asked(Request("give a token", "POST", path, json=wanted), {}, insist=insist)
        match document:
            case {"code": 0, "tenant_access_token": str(token), "expire": int(seconds)} if token:
                self._token = Secret(token)
                self._token_ends = self._clock.monotonic() + max(seconds - _EARLY_S, seconds / 2)
                return token
        if document["code"] in WRONG_APP_CODES:
            raise ConfigError(
                f"Feishu does not take the app id {show_value(self._app_id)} with the secret of the channel "
                f"{self._channel}; both stand under Credentials in the app's console"
            )
        raise Refused(document["code"], "give the app a token")

    async def _asked(
        self, request: Request, headers: Mapping[str, str], *, insist: bool
    ) -> tuple[dict[str, Any], bytes]:
        """What Feishu itself says, and the file, once it says something else than that it is asked too much."""
        delay, longest = _BACKOFF_S
        while True:
            try:
                reply = await self._reply(request, headers)
                if request.most is not None and reply.status == DONE:
                    return {"code": 0}, reply.body
                document = reply.document()
            except Unclear as error:
                if not insist:
                    raise
                pause, why = None, str(error)
            else:
                if not reply.is_limit(document):
                    return document, b""
                pause, why = reply.pause_s, f"Feishu is asked too much: code {document['code']}"
            if pause is None:
                if delay == _BACKOFF_S[0]:
                    said = {"channel": self._channel, "detail": why}
                    log.warning("what Feishu does not confirm is sent again", action="channel.unconfirmed", **said)
                pause, delay = delay, min(2 * delay, longest)
            await self._clock.sleep(pause)

    async def _reply(self, request: Request, headers: Mapping[str, str]) -> Reply:
        data: bytes | aiohttp.FormData | None = None
        if request.json is not None:
            data = msgspec.json.encode(request.json)
            headers = {**headers, "Content-Type": "application/json; charset=utf-8"}
        elif request.form is not None:
            data = aiohttp.FormData()
            for name, value in request.form.items():
                data.add_field(name, value, filename=name if isinstance(value, bytes) else None)
        address, most = self._url + request.path, _MAX_REPLY_BYTES if request.most is None else request.most
        try:
            async with self.session.request(
                request.method, address, params=request.query, data=data, headers=headers, allow_redirects=False
            ) as response:
                body = await _body(response, most)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unclear(f"Feishu cannot be reached at {self._url}: {type(error).__name__}") from None
        headers = response.headers
        return Reply(response.status, headers.get("content-type", ""), headers.get("x-ogw-ratelimit-reset", ""), body)

    def _is_as_safe(self, url: str) -> bool:
        """Whether the long connection is encrypted where all else is."""
        return url.startswith("wss://") or (url.startswith("ws://") and self._url.startswith("http://"))


async def _body(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The bytes of a reply; none where there are more than that."""
    data = bytearray()
    if (response.content_length or 0) <= most:
        async for chunk in response.content.iter_any():
            data += chunk
            if len(data) > most:
                break
    return bytes(data) if len(data) <= most else b""
