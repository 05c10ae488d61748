"""What a homeserver's reply confirms: a request is done when the homeserver itself says so, with what it must say then.

The library looks at neither the status nor where a reply comes from, and takes a page of a proxy for an error of the
homeserver. So each reply is judged before the library reads it. The content of a file may be anything, and its sender's
own server may give it without end, so it is read here.
"""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote, urlsplit

import anyio
from aiohttp import ClientConnectorError, ClientError, ClientResponse
from nio import AsyncClient

from miniclaw_sessions.channels.replies import what_came
from miniclaw_sessions.errors import Unreachable

_SUCCESS = range(200, 300)
_TOO_MANY, _AGAIN_S, _TRIES = 429, 5.0, 3
_SAID: dict[str, re.Pattern[str]] = {
    "event_id": re.compile(r"/rooms/[^/]+/(send|event)/"),
    "content_uri": re.compile(r"/media/[^/]+/upload\b"),
    "next_batch": re.compile(r"/sync\b"),
    "user_id": re.compile(r"/account/whoami\b"),
    "room_id": re.compile(r"/join/"),
}
"""What a homeserver says when it has done what a path asks for."""


def fault_of(path: str, status: int, body: bytes) -> str | None:
    """Why a reply is not one of a homeserver, without a word of it; None: it is."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return "no JSON"
    if not isinstance(document, dict):
        return "no JSON object"
    done = [name for name, asked in _SAID.items() if asked.search(path)]
    needed = done if status in _SUCCESS else ["errcode"]
    missing = [name for name in needed if not (isinstance(document.get(name), str) and document[name])]
    return f"it has no `{missing[0]}`" if missing else None


class Client(AsyncClient):  # type: ignore[misc]  # the library has no types
    """The library's client; a reply that is not the homeserver's own is `Unreachable`, and says what came."""

    async def send(self, method: str, path: str, *args: Any, **options: Any) -> ClientResponse:
        """As the library's.

        Raises:
            Unreachable: the outcome of the request is unknown.
        """
        response: ClientResponse = await super().send(method, path, *args, **options)
        body = await response.read()  # kept there for the library
        if (fault := fault_of(path, response.status, body)) is not None:
            came = what_came(response.status, response.headers.get("content-type", ""), body, self.access_token)
            raise Unreachable(f"the reply is not the homeserver's own ({came}): {fault}")
        return response

    async def content(self, address: str, most: int) -> bytes:
        """The bytes of a file; none where they are more than that, or the homeserver does not have them.

        One whose transfer always breaks off is not had either: asked for with each reply, it would stop all rooms.

        Raises:
            Unreachable: there is no connection to the homeserver.
        """
        url = urlsplit(address)
        path = f"/_matrix/client/v1/media/download/{quote(url.netloc, safe='')}/{quote(url.path[1:], safe='')}"
        headers = {"Authorization": f"Bearer {self.access_token}"}
        failures = 0
        while failures < _TRIES:
            try:
                async with await super().send("GET", path, headers=headers) as response:
                    if response.status != _TOO_MANY:
                        return await _up_to(most, response) if response.status in _SUCCESS else b""
            except ClientConnectorError as error:
                raise Unreachable(f"a file cannot be fetched: {type(error).__name__}") from None
            except ClientError:
                failures += 1
            await anyio.sleep(_AGAIN_S)
        return b""


async def _up_to(most: int, response: ClientResponse) -> bytes:
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > most:
            return b""
    return bytes(data)
