"""A homeserver with one room, whose events a test makes up: such as no homeserver of ours would take, but federates."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import anyio
from aiohttp import web

BOT = "@bot:example.org"
ROOM = "!room:example.org"


class Homeserver:
    """`say` is heard by the bot, `answers` is what it sent; so many replies of /sync fail as `broken` says, and so many
    answers as `refused` says.

    `since` is where the bot listens from now, and `position` where it would go on after a start.
    """

    def __init__(self, people: int = 2) -> None:
        self.url = ""
        self.broken = 0
        self.refused = 0
        self.media = b""
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
        app = web.Application()
        app.router.add_get("/_matrix/client/v3/account/whoami", self._whoami)
        app.router.add_get("/_matrix/client/v3/sync", self._sync)
        app.router.add_get("/_matrix/client/v3/rooms/{room}/event/{event}", self._event)
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
        return web.json_response({"next_batch": str(len(self._events)), "rooms": {"join": {ROOM: room}}})

    async def _media(self, _: web.Request) -> web.Response:
        return web.Response(body=self.media, content_type="application/octet-stream")

    async def _event(self, request: web.Request) -> web.Response:
        found = [one for one in self._events if one["event_id"] == request.match_info["event"]]
        return web.json_response({**found[0], "room_id": ROOM}) if found else web.json_response({}, status=404)

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
        return web.json_response({"since": self.position} if self.position else {})


_numbers = count()
