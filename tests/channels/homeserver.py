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

from tests.channels.rooms import Changes

BOT = "@bot:example.org"
ROOM = "!room:example.org"


class Homeserver:
    """`say` is heard by the bot, `answers` is what it sent; so many replies of /sync fail as `broken` says, and so many
    answers as `refused` says; so many replies to answers are lost as `lost` says. Of each kind of request, `instead`
    holds what comes first in the homeserver's place: its status, its type and its body.

    `since` is where the bot listens from now, and `position` where it would go on after a start.

    Args:
        people: how many are in the usual room.
        wait_s: after how long /sync returns with nothing; None: never.
    """

    def __init__(self, people: int = 2, wait_s: float | None = None) -> None:
        self.url = ""
        self.broken = 0
        self.refused = 0
        self.lost = 0
        self.media = b""
        self.files: dict[str, bytes] = {}
        self.rooms = {ROOM: people}
        """How many people each room has."""
        self.instead: defaultdict[str, list[tuple[int, str, bytes]]] = defaultdict(list)
        self.asked: list[str] = []
        self.invitations: list[str] = []
        self.answers: dict[str, str] = {}
        self.answered_in: list[str] = []
        """The rooms of the answers."""
        self.since: str | None = None
        self.position: str | None = None
        self.events: list[tuple[str, dict[str, Any]]] = []
        """What was said, each with its room."""
        self._wait_s = wait_s
        self._changes = Changes()
        self.change, self.until = self._changes.note, self._changes.until

    def say(self, body: Any, sender: str, room: str = ROOM, /, **content: Any) -> str:
        event_id = f"${len(self.events)}"
        event = {"event_id": event_id, "sender": sender, "type": "m.room.message", "origin_server_ts": 1}
        self.add({**event, "content": {"msgtype": "m.text", "body": body, **content}}, room)
        return event_id

    def add(self, event: dict[str, Any], room: str = ROOM) -> None:
        self.events.append((room, event))
        self.change()

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
        begin = len(self.events) if since is None else int(since)
        if since is not None:
            with anyio.move_on_after(self._wait_s):
                await self.until(lambda: len(self.events) > begin or bool(self.broken))
        if since is not None and self.broken:
            self.broken -= 1
            return web.json_response({"errcode": "M_UNKNOWN"}, status=500)
        joined = {
            room: {
                "timeline": {
                    "events": [event for said_in, event in self.events[begin:] if said_in == room],
                    "limited": False,
                    "prev_batch": "0",
                },
                "summary": {"m.joined_member_count": people, "m.invited_member_count": 0, "m.heroes": []},
            }
            for room, people in self.rooms.items()
        }
        rooms = {"join": joined, "invite": dict.fromkeys(self.invitations, _INVITED)}
        return web.json_response({"next_batch": str(len(self.events)), "rooms": rooms})

    async def _media(self, request: web.Request) -> web.Response:
        data = self.files.get(request.match_info["name"], self.media)
        return web.Response(body=data, content_type="application/octet-stream")

    async def _event(self, request: web.Request) -> web.Response:
        for room, event in self.events:
            if event["event_id"] == request.match_info["event"]:
                return web.json_response({**event, "room_id": room})
        return _not_found()

    async def _send(self, request: web.Request) -> web.Response:
        if self.refused:
            self.refused -= 1
            self.change()
            return web.json_response({"errcode": "M_UNKNOWN"}, status=502)
        if request.match_info["id"] not in self.answers:
            self.answers[request.match_info["id"]] = json.loads(await request.text())["body"]
            self.answered_in.append(request.match_info["room"])
        if self.lost:
            self.lost -= 1
            assert request.transport is not None
            request.transport.abort()
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
