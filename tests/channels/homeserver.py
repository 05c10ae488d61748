"""A homeserver with one room, whose events a test makes up: such as no homeserver of ours would take, but federates."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import anyio
from aiohttp import web

BOT = "@bot:example.org"
ROOM = "!room:example.org"


class Homeserver:
    """`say` is heard by the bot, `answers` is what it sent; so many replies of /sync fail as `broken` says, and so many
    answers as `refused` says. Of each kind of request, `instead` holds what comes first in the homeserver's place: its
    status, its type and its body.

    `since` is where the bot listens from now, and `position` where it would go on after a start.
    """

    def __init__(self, people: int = 2) -> None:
        self.url = ""
        self.broken = 0
        self.refused = 0
        self.media = b""
        self.instead: defaultdict[str, list[tuple[int, str, bytes]]] = defaultdict(list)
        self.asked: list[str] = []
        self.invitations: list[str] = []
        self.answers: dict[str, str] = {}
        self.since: str | None = None
        self.position: str | None = None
        self._people = people
        self._events: list[dict[str, Any]] = []
        self._changed = anyio.Event()

    def say(self, body: Any, sender: str, **content: Any) -> str:
        event_id = f"${len(self._events)}"
        event = {"event_id": event_id, "sender": sender, "type": "m.room.message", "origin_server_ts": 1}
        self.add({**event, "content": {"msgtype": "m.text", "body": body, **content}})
        return event_id

    def add(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        self.change()

    def change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self._changed.wait()

    async def until_position(self, position: int) -> None:
        """Wait until so many events are done."""
        await self.until(lambda: self.position == str(position))

    async def until_answers(self, count: int) -> None:
        """Wait until the bot has sent so many events, or more."""
        await self.until(lambda: len(self.answers) >= count)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        app = web.Application(middlewares=[self._between])
        app.router.add_get("/_matrix/client/v3/account/whoami", self._whoami)
        app.router.add_get("/_matrix/client/v3/sync", self._sync)
        app.router.add_get("/_matrix/client/v3/rooms/{room}/event/{event}", self._event)
        app.router.add_post("/_matrix/client/v3/join/{room}", self._join)
        app.router.add_get("/_matrix/client/v1/media/download/{server}/{name}", self._media)
        app.router.add_put("/_matrix/client/v3/rooms/{room}/send/{type}/{id}", self._send)
        app.router.add_put("/_matrix/client/v3/rooms/{room}/typing/{user}", self._typing)
        app.router.add_route("*", "/_matrix/client/v3/user/{user}/account_data/{type}", self._keep)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield
        finally:
            await runner.cleanup()

    @web.middleware
    async def _between(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """A proxy, which has something of its own to say."""
        kind = f"{request.method} {handler.__name__}"
        self.asked.append(kind)
        if self.instead[kind]:
            status, media_type, body = self.instead[kind].pop(0)
            self.change()
            return web.Response(status=status, body=body, headers={"Content-Type": media_type})
        return await handler(request)

    async def _join(self, request: web.Request) -> web.Response:
        self.invitations.remove(request.match_info["room"])
        self.change()
        return web.json_response({"room_id": request.match_info["room"]})

    async def _whoami(self, _: web.Request) -> web.Response:
        return web.json_response({"user_id": BOT})

    async def _sync(self, request: web.Request) -> web.Response:
        since = self.since = request.query.get("since")
        self.change()
        begin = len(self._events) if since is None else int(since)
        while since is not None and begin == len(self._events) and not self.broken:
            await self._changed.wait()
        if since is not None and self.broken:
            self.broken -= 1
            return web.json_response({"errcode": "M_UNKNOWN"}, status=500)
        room = {
            "timeline": {"events": self._events[begin:], "limited": False, "prev_batch": "0"},
            "summary": {"m.joined_member_count": self._people, "m.invited_member_count": 0, "m.heroes": []},
        }
        rooms = {"join": {ROOM: room}, "invite": dict.fromkeys(self.invitations, _INVITED)}
        return web.json_response({"next_batch": str(len(self._events)), "rooms": rooms})

    async def _media(self, _: web.Request) -> web.Response:
        return web.Response(body=self.media, content_type="application/octet-stream")

    async def _event(self, request: web.Request) -> web.Response:
        found = [one for one in self._events if one["event_id"] == request.match_info["event"]]
        return web.json_response({**found[0], "room_id": ROOM}) if found else _not_found()

    async def _send(self, request: web.Request) -> web.Response:
        if self.refused:
            self.refused -= 1
            self.change()
            return web.json_response({"errcode": "M_UNKNOWN"}, status=502)
        self.answers.setdefault(request.match_info["id"], json.loads(await request.text())["body"])
        self.change()
        return web.json_response({"event_id": f"$answer{next(_numbers)}"})

    async def _typing(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def _keep(self, request: web.Request) -> web.Response:
        if request.method == "PUT":
            self.position = json.loads(await request.text())["since"]
            self.change()
        if request.method == "GET" and self.position is None:
            return _not_found()
        return web.json_response({"since": self.position} if request.method == "GET" else {})


def _not_found() -> web.Response:
    return web.json_response({"errcode": "M_NOT_FOUND", "error": "there is none"}, status=404)


_numbers = count()
_INVITED = {
    "invite_state": {
        "events": [
            {
                "type": "m.room.member",
                "sender": "@alice:example.org",
                "state_key": BOT,
                "content": {"membership": "invite"},
            }
        ]
    }
}
