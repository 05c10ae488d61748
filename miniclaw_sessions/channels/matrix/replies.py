"""What a homeserver's reply confirms: a request is done when the homeserver itself says so, with what it must say then.

The library looks at neither the status nor where a reply comes from, and takes a page of a proxy for an error of the
homeserver. So each reply is judged before the library reads it; but for pictures, whose content may be anything.
"""

from __future__ import annotations

import json
import re
from typing import Any

from aiohttp import ClientResponse
from nio import AsyncClient

from miniclaw_sessions.channels.replies import what_came
from miniclaw_sessions.errors import Unreachable

_SUCCESS = range(200, 300)
_PICTURE = re.compile(r"/media/[^?]*download/")
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
        if _PICTURE.search(path):
            return response
        body = await response.read()  # kept there for the library
        if (fault := fault_of(path, response.status, body)) is not None:
            came = what_came(response.status, response.headers.get("content-type", ""), body, self.access_token)
            raise Unreachable(f"the reply is not the homeserver's own ({came}): {fault}")
        return response
