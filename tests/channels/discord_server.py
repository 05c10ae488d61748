"""Discord on one local port: its HTTP interface and its gateway, as discord.py uses them, failing as they fail.

    async with DiscordServer() as server:
        server.say("hello")
        await server.until(lambda: server.texts() == ["hi"])

What it refuses, it refuses with Discord's own codes (https://discord.com/developers/docs). Events are kept for each
session, so a connection that breaks can be resumed; what was said while no bot listened is not delivered later.

As a process of its own, for trying by hand: `python -m tests.channels.discord_server --port 8082`. Each line of its
input is said by Ann in a direct message; `!yes` presses a button, `!/new` chooses a command; what the bot says is
printed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import re
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from itertools import count
from typing import Any, Self

import anyio
from aiohttp import BodyPartReader, WSMsgType, web

from tests.channels.rooms import PATIENCE_S

Json = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

TOKEN = "bot.token.secret"
BOT: Json = {"id": "900", "username": "claw", "discriminator": "0", "avatar": None, "global_name": None, "bot": True}
ANN: Json = {"id": "42", "username": "ann", "discriminator": "0", "avatar": None, "global_name": "Ann"}
BOB: Json = {"id": "43", "username": "bob", "discriminator": "0", "avatar": None, "global_name": "Bob"}
EVE: Json = {"id": "44", "username": "eve", "discriminator": "0", "avatar": None, "global_name": "Eve"}
SERVER, ROOM, THREAD, ROLE = "700", "701", "702", "703"
"""A server with one channel, in that one thread; and the bot's own role there."""

PRIVATE = {ANN["id"]: "542", BOB["id"]: "543", EVE["id"]: "544"}
"""The direct messages of each person."""

MESSAGE_CONTENT = 1 << 15
_EPOCH = 1_420_070_400_000
_MAX_TEXT, _MAX_NONCE = 2000, 25
_NO_MESSAGE, _NO_EMPTY, _BAD_FORM, _NO_INTERACTION, _BLOCKED = 10008, 50006, 50035, 10062, 50007


class Refused(Exception):
    """A reply with one of Discord's codes."""

    def __init__(self, status: int, code: int = 0, text: str = "refused") -> None:
        super().__init__(text)
        self.status, self.code = status, code

    def response(self) -> web.Response:
        return _json({"message": str(self), "code": self.code}, self.status)


class Strange(Exception):
    """A reply that is not Discord's own; `is_done`: what was asked is done all the same."""

    def __init__(self, body: bytes, kind: str = "text/html", status: int = 200, *, is_done: bool = False) -> None:
        super().__init__("not Discord's own reply")
        self.body, self.kind, self.status, self.is_done = body, kind, status, is_done
        self.headers: dict[str, str] = {}

    def response(self) -> web.Response:
        return web.Response(body=self.body, status=self.status, headers={"content-type": self.kind, **self.headers})


BLOCKED = Refused(403, _BLOCKED, "Cannot send messages to this user")
UNAVAILABLE = Strange(b"<html><title>503</title>", status=503)
LOST = Strange(b"<html><title>Welcome</title>", is_done=True)


def too_many(seconds: float, *, is_global: bool = False) -> Strange:
    """A limit is reached: what Discord says to that, with the header by which the library knows Discord."""
    body = {"message": "You are being rate limited.", "retry_after": seconds, "global": is_global}
    made = Strange(json.dumps(body).encode(), "application/json", 429)
    made.headers = {"Via": "1.1 google", "Retry-After": f"{seconds:.0f}", "X-RateLimit-Global": str(is_global).lower()}
    return made


class Session:
    """What one connection, or those that resume it, is sent."""

    def __init__(self, intents: int) -> None:
        self.intents = intents
        self.events: list[Json] = []
        self.changed = asyncio.Event()

    def add(self, kind: str, fields: Json) -> None:
        self.events.append({"op": 0, "t": kind, "s": len(self.events) + 1, "d": fields})
        self.changed.set()


class DiscordServer:
    """Listens while it is entered, and keeps everything over that.

    Attributes:
        url: where the HTTP interface is.
        instead: for each kind of request, such as `send`, what comes first in place of its reply.
        asked: the kinds of all requests, in order.
        refuses_files: whether every file is too large.
        closes_with: the code with which the gateway refuses every session; 0: it does not.
        may_read_content: whether the message content intent is turned on.
        problems: what a bot may not do, and has done.
    """

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self.url = ""
        self.instead: defaultdict[str, list[Refused | Strange]] = defaultdict(list)
        self.asked: list[str] = []
        self.identified = self.resumed = 0
        self.may_read_content = self.refuses_files = False
        self.closes_with = 0
        self.commands: list[Json] = []
        self.whispers: list[str] = []
        self.problems: list[str] = []
        self.typing_in: set[str] = set()
        self.files: dict[str, bytes] = {}
        self.history: dict[str, list[Json]] = {one: [] for one in (ROOM, THREAD, *PRIVATE.values())}
        self.acknowledged: dict[str, Json] = {}
        self._originals: dict[str, Json] = {}
        self._sessions: dict[str, Session] = {}
        self._sockets: set[web.WebSocketResponse] = set()
        self._interactions: dict[str, Json] = {}
        self._intents = self._listeners = 0
        self._ids = count(1)
        self._changed = anyio.Event()

    # --- what people do ----------------------------------------------------------------------------------------------

    def say(self, text: str, sender: Json = ANN, chat: str | None = None, **fields: Any) -> Json:
        """A person says something, in a direct message unless a chat is named."""
        message = self._message(chat or PRIVATE[sender["id"]], sender, {"content": text, **fields})
        self._report("MESSAGE_CREATE", message)
        return message

    def keep(self, text: str, sender: Json = ANN, chat: str | None = None, **fields: Any) -> Json:
        """A person says something that no session is told of, as while it is broken."""
        return self._message(chat or PRIVATE[sender["id"]], sender, {"content": text, **fields})

    def deliver(self, message: Json, kind: str = "MESSAGE_CREATE") -> None:
        """Report what was said, once more or at last."""
        self._report(kind, message)

    def attach(self, name: str, data: bytes, kind: str, **fields: Any) -> Json:
        """A file, to be said with a message."""
        number = self._new_id()
        self.files[number] = data
        url = f"{self.url.removesuffix('/api/v10')}/files/{number}/{name}"
        found = {"id": number, "filename": name, "size": len(data), "url": url, "proxy_url": f"{url}?proxy=1"}
        return {**found, "content_type": kind, **fields}

    def edit(self, message: Json, text: str) -> None:
        message |= {"content": text, "edited_timestamp": datetime.now(UTC).isoformat()}
        self._report("MESSAGE_UPDATE", message)

    def press(self, message: Json, label: str, sender: Json = ANN) -> str:
        """Press a button below a message; the id of what that begins."""
        buttons = [one for row in message["components"] for one in row["components"]]
        button = next(one for one in buttons if one["label"] == label)
        data = {"custom_id": button["custom_id"], "component_type": 2}
        return self._interact(3, message["channel_id"], sender, data, message=message)

    def choose(
        self, name: str, text: str = "", sender: Json = ANN, chat: str | None = None, *, among_others: bool = False
    ) -> str:
        """Choose a command of the menu; the id of what that begins.

        Args:
            name: the command's.
            text: what is written behind it.
            sender: who chooses it.
            chat: where; by default in the chat with the bot.
            among_others: whether that is a chat of people, in which one of them uses an app that only he has installed.
        """
        known = {one["name"]: one for one in self.commands}
        assert name in known, f"there is no command {name}"
        options = [{"name": "text", "type": 3, "value": text}] if text else []
        data = {"id": "1", "name": name, "type": 1, "options": options}
        fields = {"context": 2} if among_others else {}
        return self._interact(2, chat or PRIVATE[sender["id"]], sender, data, **fields)

    def _interact(self, kind: int, chat: str, sender: Json, data: Json, **fields: Any) -> str:
        number = self._new_id()
        place: Json = {"user": sender, "context": 1}
        if chat in (ROOM, THREAD):
            place = {"context": 0, "guild_id": SERVER, "member": {"user": sender, **_MEMBER}}
        interaction = {
            "id": number,
            "application_id": BOT["id"],
            "type": kind,
            "token": f"token{number}",
            "version": 1,
            "channel_id": chat,
            "channel": self._channel(chat),
            "data": data,
            "attachment_size_limit": 10_000_000,
            "app_permissions": "0",
            **place,
            **fields,
        }
        self._report("INTERACTION_CREATE", interaction)
        return number

    # --- what is seen ------------------------------------------------------------------------------------------------

    def said(self, chat: str = PRIVATE[ANN["id"]]) -> list[Json]:
        """What the bot has said in a chat, in order."""
        return [one for one in self.history[chat] if one["author"]["id"] == BOT["id"] and not one["flags"] & 128]

    def texts(self, chat: str = PRIVATE[ANN["id"]]) -> list[str]:
        return [one["content"] for one in self.said(chat)]

    def is_answered(self, message: Json) -> bool:
        """Whether the newest wording of a message has an answer, or a mark instead."""
        said = [one for one in self.said(message["channel_id"]) if _answered(one) == message["id"]]
        newest = message["edited_timestamp"] or ""
        return bool(message["reactions"]) or any(one["timestamp"] > newest for one in said)

    def answers_to(self, message: Json) -> list[str]:
        """What the bot has said in answer to a message."""
        said = self.said(message["channel_id"])
        return [one["content"] for one in said if _answered(one) == message["id"]]

    def is_marked(self, message: Json) -> bool:
        return bool(message["reactions"])

    def change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, is_so: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not is_so():
                await self._changed.wait()

    # --- connections -------------------------------------------------------------------------------------------------

    async def drop(self, code: int = 1001, *, session_is_lost: bool = False) -> None:
        """Break all connections; `session_is_lost`: nothing can be resumed."""
        if session_is_lost:
            self._sessions.clear()
        for socket in [*self._sockets]:
            await socket.close(code=code)

    def lose_sessions(self) -> None:
        """No session can be resumed, and what is said now is not reported."""
        self._sessions.clear()

    @property
    def is_listened_to(self) -> bool:
        """Whether a session is under way: a button that is pressed before that fails, and Discord says so."""
        return self._listeners > 0

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._between], client_max_size=30_000_000)
        api = "/api/v10"
        for method, path, handler in (
            ("GET", f"{api}/users/@me", self._me),
            ("GET", f"{api}/oauth2/applications/@me", self._application),
            ("GET", f"{api}/gateway/bot", self._address),
            ("PUT", f"{api}/applications/{{id}}/commands", self._register),
            ("POST", f"{api}/users/@me/channels", self._open),
            ("GET", f"{api}/channels/{{chat}}/messages", self._list),
            ("POST", f"{api}/channels/{{chat}}/messages", self._send),
            ("PUT", f"{api}/channels/{{chat}}/messages/{{id}}/reactions/{{emoji}}/@me", self._react),
            ("POST", f"{api}/channels/{{chat}}/typing", self._type),
            ("POST", f"{api}/interactions/{{id}}/{{token}}/callback", self._acknowledge),
            ("PATCH", f"{api}/webhooks/{{id}}/{{token}}/messages/@original", self._fill_in),
            ("DELETE", f"{api}/webhooks/{{id}}/{{token}}/messages/@original", self._take_back),
            ("GET", "/files/{id}/{name}", self._file),
            ("GET", "/gateway/", self._gateway),
        ):
            app.router.add_route(method, path, handler)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}{api}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drop()
        await self._runner.cleanup()

    @web.middleware
    async def _between(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        kind = getattr(handler, "__name__", "").removeprefix("_")
        self.asked.append(kind)
        is_open = kind in ("gateway", "file", "handle")
        if not is_open and request.headers.get("Authorization") != f"Bot {TOKEN}":
            return Refused(401, 0, "401: Unauthorized").response()
        try:
            failure = self.instead[kind].pop(0) if self.instead[kind] else None
            if failure is not None and not (isinstance(failure, Strange) and failure.is_done):
                raise failure
            response = await handler(request)
            if failure is not None:
                raise failure
        except (Refused, Strange) as error:
            response = error.response()
        finally:
            self.change()
        return response

    # --- HTTP --------------------------------------------------------------------------------------------------------

    async def _me(self, _: web.Request) -> web.Response:
        return _json(BOT)

    async def _application(self, _: web.Request) -> web.Response:
        owner = {"name": "claw", "description": "", "icon": None, "bot_public": True, "bot_require_code_grant": False}
        return _json({"id": BOT["id"], "owner": ANN, "verify_key": "", "flags": 0, "summary": "", **owner})

    async def _address(self, _: web.Request) -> web.Response:
        limit = {"total": 1000, "remaining": 999, "reset_after": 0, "max_concurrency": 1}
        return _json({"url": self._gateway_url, "shards": 1, "session_start_limit": limit})

    @property
    def _gateway_url(self) -> str:
        return f"ws://127.0.0.1:{self._port}/gateway/"

    async def _register(self, request: web.Request) -> web.Response:
        self.commands = await request.json()
        for one in self.commands:
            if not re.fullmatch(r"[a-z]{1,32}", one["name"]) or not 1 <= len(one["description"]) <= 100:
                self.problems.append(f"no command: {one}")
        return _json(self.commands)

    async def _open(self, request: web.Request) -> web.Response:
        person = str((await request.json())["recipient_id"])
        if person not in PRIVATE:
            raise Refused(400, 50033, "Invalid Recipient(s)")
        return _json(self._channel(PRIVATE[person]))

    async def _list(self, request: web.Request) -> web.Response:
        said = self._chat(request)
        if "before" in request.query:
            said = [one for one in said if int(one["id"]) < int(request.query["before"])]
        shown = [self._as_seen(one, self._intents) for one in said[::-1][: int(request.query["limit"])]]
        return _json(shown)

    async def _send(self, request: web.Request) -> web.Response:
        self._chat(request)
        fields, files = await _form(request)
        chat, nonce = request.match_info["chat"], fields.get("nonce")
        if not (fields.get("content") or files):
            raise Refused(400, _NO_EMPTY, "Cannot send an empty message")
        if len(fields.get("content") or "") > _MAX_TEXT or len(str(nonce or "")) > _MAX_NONCE:
            raise Refused(400, _BAD_FORM, "Invalid Form Body")
        if fields.get("allowed_mentions", {}).get("parse") != []:
            self.problems.append("an answer may call everybody")
        if files and self.refuses_files:
            raise Refused(413, 40005, "Request entity too large")
        same = [one for one in self.history[chat] if nonce and one["nonce"] == nonce]
        if same and fields.get("enforce_nonce"):
            return _json(same[0])
        attached = [self.attach(name, data, "image/png") for name, data in files]
        fields["attachments"] = attached
        message = self._message(chat, BOT, fields)
        self._report("MESSAGE_CREATE", message)
        return _json(message)

    async def _react(self, request: web.Request) -> web.Response:
        message = self._found(request.match_info["chat"], request.match_info["id"])
        emoji = {"id": None, "name": request.match_info["emoji"]}
        message["reactions"] = [{"count": 1, "me": True, "emoji": emoji}]
        return web.Response(status=204)

    async def _type(self, request: web.Request) -> web.Response:
        self.typing_in.add(request.match_info["chat"])
        return web.Response(status=204)

    async def _acknowledge(self, request: web.Request) -> web.Response:
        number, fields = request.match_info["id"], await request.json()
        if number in self.acknowledged:
            raise Refused(400, 40060, "Interaction has already been acknowledged.")
        interaction = self._interactions[number]
        self.acknowledged[number] = fields
        data = fields.get("data") or {}
        if fields["type"] == 7:
            interaction["message"] |= data
            self._report("MESSAGE_UPDATE", interaction["message"])
        elif data.get("flags", 0) & 64:
            self.whispers.append(data["content"])
        else:
            is_loading = 128 if fields["type"] == 5 else 0
            made = {"content": data.get("content", ""), "flags": is_loading}
            self._originals[interaction["token"]] = self._message(interaction["channel_id"], BOT, made)
        return web.Response(status=204)

    async def _fill_in(self, request: web.Request) -> web.Response:
        message = self._originals.get(request.match_info["token"])
        if message is None:
            raise Refused(404, _NO_MESSAGE, "Unknown Message")
        fields, _ = await _form(request)
        if len(fields["content"]) > _MAX_TEXT:
            raise Refused(400, _BAD_FORM, "Invalid Form Body")
        message |= {**fields, "flags": 0}
        return _json(message)

    async def _take_back(self, request: web.Request) -> web.Response:
        message = self._originals.pop(request.match_info["token"])
        self.history[message["channel_id"]].remove(message)
        return web.Response(status=204)

    async def _file(self, request: web.Request) -> web.Response:
        self.asked.append(f"file?{request.query_string}")
        return web.Response(body=self.files[request.match_info["id"]], content_type="application/octet-stream")

    def _chat(self, request: web.Request) -> list[Json]:
        found = self.history.get(request.match_info["chat"])
        if found is None:
            raise Refused(404, 10003, "Unknown Channel")
        return found

    def _found(self, chat: str, number: str) -> Json:
        found = [one for one in self.history[chat] if one["id"] == number]
        if not found:
            raise Refused(404, _NO_MESSAGE, "Unknown Message")
        return found[0]

    # --- what is said ------------------------------------------------------------------------------------------------

    def _new_id(self) -> str:
        return str(((int(time.time() * 1000) - _EPOCH) << 22) + next(self._ids))

    def _message(self, chat: str, author: Json, fields: Json) -> Json:
        answered = (fields.get("message_reference") or {}).get("message_id")
        text = fields.get("content") or ""
        message = {
            "id": self._new_id(),
            "channel_id": chat,
            "author": author,
            "timestamp": datetime.now(UTC).isoformat(),
            "edited_timestamp": None,
            "tts": False,
            "mention_everyone": False,
            "mentions": [one for one in (ANN, BOB, EVE, BOT) if f"<@{one['id']}>" in text],
            "mention_roles": [ROLE] if f"<@&{ROLE}>" in text else [],
            "attachments": [],
            "embeds": [],
            "pinned": False,
            "type": 19 if answered else 0,
            "components": [],
            "reactions": [],
            "nonce": None,
            "flags": 0,
            **{name: value for name, value in fields.items() if name != "message_reference"},
        }
        if answered:
            message["message_reference"] = {"message_id": str(answered), "channel_id": chat}
            shown = [one for one in self.history[chat] if one["id"] == str(answered)]
            message["referenced_message"] = {**shown[0], "referenced_message": None} if shown else None
        if chat in (ROOM, THREAD):
            message |= {"guild_id": SERVER, "member": _MEMBER}
        self.history[chat].append(message)
        self.change()
        return message

    def _as_seen(self, message: Json, intents: int) -> Json:
        """A message without what a bot may not see that has not the message content intent."""
        is_named = BOT in message["mentions"] or ROLE in message["mention_roles"]
        is_open = "guild_id" not in message or message["author"]["id"] == BOT["id"] or is_named
        if is_open or intents & MESSAGE_CONTENT:
            return message
        return {**message, "content": "", "attachments": [], "components": []}

    def _channel(self, chat: str) -> Json:
        newest = self.history[chat][-1]["id"] if self.history[chat] else None
        if chat not in (ROOM, THREAD):
            return {"id": chat, "type": 1, "recipients": [], "last_message_id": newest}
        about = {"id": chat, "guild_id": SERVER, "last_message_id": newest, "name": "general", "flags": 0}
        if chat == ROOM:
            return {**about, "type": 0, "position": 0, "permission_overwrites": []}
        archive = {"archived": False, "auto_archive_duration": 60, "archive_timestamp": "2026-01-01T00:00:00+00:00"}
        counts = {"message_count": 0, "member_count": 2, "rate_limit_per_user": 0}
        return {**about, "type": 11, "parent_id": ROOM, "owner_id": ANN["id"], "thread_metadata": archive, **counts}

    # --- the gateway -------------------------------------------------------------------------------------------------

    def _report(self, kind: str, fields: Json) -> None:
        if kind == "INTERACTION_CREATE":
            self._interactions[fields["id"]] = fields
        for session in self._sessions.values():
            is_message = kind.startswith("MESSAGE_")
            shown = self._as_seen(fields, session.intents) if is_message else fields
            session.add(kind, json.loads(json.dumps(shown)))
        self.change()

    async def _gateway(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        compressed = _compressor(request.query.get("compress", ""))

        async def send(fields: Json) -> None:
            await socket.send_bytes(compressed(json.dumps(fields).encode()))

        self._sockets.add(socket)
        telling: asyncio.Task[None] | None = None
        try:
            await send({"op": 10, "d": {"heartbeat_interval": 41_250}})
            async for one in socket:
                if one.type is not WSMsgType.TEXT:
                    continue
                asked = one.json()
                if asked["op"] == 1:
                    await send({"op": 11})
                elif asked["op"] in (2, 6):
                    begun = await self._begun(socket, asked, send)
                    if begun is not None:
                        self._listeners += 1
                        telling = asyncio.create_task(self._tell(*begun, send))
        finally:
            self._sockets.discard(socket)
            if telling is not None:
                self._listeners -= 1
                telling.cancel()
            self.change()
        return socket

    async def _begun(
        self, socket: web.WebSocketResponse, asked: Json, send: Callable[[Json], Awaitable[None]]
    ) -> tuple[Session, int] | None:
        """The session that a connection begins or resumes, and how much of it it has."""
        fields = asked["d"]
        if self.closes_with or fields["token"] != TOKEN:
            await socket.close(code=self.closes_with or 4004)
            return None
        if asked["op"] == 6:
            session = self._sessions.get(fields["session_id"])
            if session is None:
                await send({"op": 9, "d": False})
                return None
            self.resumed += 1
            session.add("RESUMED", {})
            return session, fields["seq"]
        if fields["intents"] & MESSAGE_CONTENT and not self.may_read_content:
            await socket.close(code=4014)
            return None
        self.identified += 1
        self._intents = fields["intents"]
        name = f"session{self.identified}"
        session = Session(fields["intents"])
        ready = {"v": 10, "user": BOT, "guilds": [{"id": SERVER, "unavailable": True}], "session_id": name}
        address = {"resume_gateway_url": self._gateway_url, "application": {"id": BOT["id"], "flags": 0}}
        session.add("READY", {**ready, **address, "private_channels": []})
        session.add("GUILD_CREATE", self._server())
        self._sessions[name] = session
        return session, 0

    async def _tell(self, session: Session, place: int, send: Callable[[Json], Awaitable[None]]) -> None:
        while True:
            session.changed.clear()
            for event in session.events[place:]:
                await send(event)
                place += 1
                self.change()
            await session.changed.wait()

    def _server(self) -> Json:
        role = {"color": 0, "hoist": False, "position": 1, "permissions": "0", "managed": True, "mentionable": True}
        own = {**role, "id": ROLE, "name": "claw", "tags": {"bot_id": BOT["id"]}, "flags": 0}
        everyone = {**role, "id": SERVER, "name": "@everyone", "position": 0, "managed": False, "flags": 0}
        return {
            "id": SERVER,
            "name": "Friends",
            "owner_id": ANN["id"],
            "unavailable": False,
            "member_count": 3,
            "roles": [everyone, own],
            "channels": [self._channel(ROOM)],
            "threads": [self._channel(THREAD)],
            "members": [{"user": BOT, **_MEMBER}],
            **{name: [] for name in ("emojis", "features", "voice_states", "presences", "stickers")},
            **{name: [] for name in ("stage_instances", "guild_scheduled_events", "soundboard_sounds")},
            **dict.fromkeys(("verification_level", "default_message_notifications", "mfa_level"), 0),
            **dict.fromkeys(("explicit_content_filter", "nsfw_level", "premium_tier", "system_channel_flags"), 0),
            "preferred_locale": "en-US",
            "afk_timeout": 60,
        }


_MEMBER: Json = {
    "roles": [],
    "joined_at": "2026-01-01T00:00:00+00:00",
    "deaf": False,
    "mute": False,
    "flags": 0,
    "nick": None,
    "permissions": "0",
}


def _json(document: Any, status: int = 200) -> web.Response:
    """A reply as Discord's, whose type names no charset."""
    return web.Response(body=json.dumps(document), status=status, headers={"content-type": "application/json"})


def _answered(message: Json) -> str | None:
    """The id of the message that this one answers."""
    found: str | None = message.get("message_reference", {}).get("message_id")
    return found


async def _form(request: web.Request) -> tuple[Json, list[tuple[str, bytes]]]:
    """What a request holds, and the files in it."""
    if request.content_type != "multipart/form-data":
        return await request.json(), []
    fields, files = {}, []
    async for part in await request.multipart():
        assert isinstance(part, BodyPartReader)
        if part.name == "payload_json":
            fields = json.loads(await part.text())
        else:
            files.append((part.filename or "", bytes(await part.read())))
    return fields, files


def _compressor(kind: str) -> Callable[[bytes], bytes]:
    """Compresses as the client wants it, each message to its end."""
    if kind == "zstd-stream":  # the library asks for it where Python, or another package, has it
        try:
            import zstandard  # noqa: PLC0415 - it may be missing
        except ImportError:
            newer = importlib.import_module("compression.zstd").ZstdCompressor()
            return lambda data: bytes(newer.compress(data, newer.FLUSH_BLOCK))
        stream = zstandard.ZstdCompressor().compressobj()
        return lambda data: stream.compress(data) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    assert kind == "zlib-stream"
    deflate = zlib.compressobj()
    return lambda data: deflate.compress(data) + deflate.flush(zlib.Z_SYNC_FLUSH)


async def _by_hand(port: int) -> None:
    async with DiscordServer(port) as server, anyio.create_task_group() as tasks:
        print(f"MINICLAW_CHANNELS_DISCORD_API_URL={server.url} DISCORD_BOT_TOKEN={TOKEN}", flush=True)  # noqa: T201

        async def show() -> None:
            shown: dict[str, str] = {}
            while True:
                for one in server.said():
                    state = f"{one['content']}{' [Yes] [No]' if one['components'] else ''}"
                    if shown.get(one["id"]) != state:
                        shown[one["id"]] = state
                        print(f"bot: {state}", flush=True)  # noqa: T201
                await server._changed.wait()

        tasks.start_soon(show)
        async with await anyio.open_file(sys.stdin.fileno()) as lines:
            async for line in lines:
                said = line.rstrip("\n")
                if said.startswith("!/"):
                    word, _, text = said.removeprefix("!/").partition(" ")
                    server.choose(word, text)
                elif said.startswith("!"):
                    server.press(server.said()[-1], said.removeprefix("!").capitalize())
                elif said.startswith("@"):
                    name, _, kind = said.removeprefix("@").partition(" ")
                    data = await anyio.Path(name).read_bytes()
                    server.say("", attachments=[server.attach(anyio.Path(name).name, data, kind)])
                elif said:
                    server.say(said)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Discord, for trying a bot by hand")
    parser.add_argument("--port", type=int, default=8082)
    anyio.run(_by_hand, parser.parse_args().port)
