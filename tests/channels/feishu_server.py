"""Feishu, as far as a bot meets it: the interface of HTTP, and the long connection with its frames.

It is as strict as Feishu about tokens, sizes and ids, and as forgetful: what was not answered is delivered again when a
bot connects.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple

import anyio
from aiohttp import WSMsgType, web

from tests.channels.feishu_frames import parsed, protobuf_frame
from tests.channels.rooms import PATIENCE_S

APP, SECRET, BOT = "cli_a1", "feishu-app-secret", "ou_bot"
ANN, BOB, EVE = "ou_ann", "ou_bob", "ou_eve"
GROUP = "oc_group"

Json = dict[str, Any]
Answer = Callable[[], web.Response]


class Failure(NamedTuple):
    """How a request fails: with which reply, and whether what it asks for is done all the same."""

    status: int
    body: bytes
    headers: Mapping[str, str] = MappingProxyType({})
    is_done: bool = False


def refusal(code: int, status: int = 400, **headers: str) -> Failure:
    return Failure(status, json.dumps({"code": code, "msg": "no"}).encode(), headers)


BROKEN = refusal(1, 500)
LIMITED = refusal(99991400, 429, **{"x-ogw-ratelimit-limit": "100", "x-ogw-ratelimit-reset": "7"})
STRANGE = Failure(200, b"<html><title>Sign in</title></html>", {"Content-Type": "text/html"})
LOST = Failure(0, b"", is_done=True)
"""The connection breaks off behind the request."""


class FeishuServer:
    """One tenant with one app. What people do is delivered in the order of the calls.

    Attributes:
        url: where it is.
        pending: the ids of the events that have no answer.
        messages: all messages by their ids, with what is shown of each: its chat, its texts, its card.
        refused: of each kind of request, such as `send`, what comes first in place of its reply.
        asked: the kinds of the requests that came, in order.
        tokens: those that are valid.
        files: the bytes of pictures and files by their keys.
        uploaded: the bytes of the bot's pictures by their keys.
        toasts: what the programs of people who pressed a button have shown.
        ping_s: how often the bot is to ping.
        pings: how many came.
        answers_pings: whether they are answered.
        part_bytes: how large a frame's payload may be before an event comes in several.
        problems: what Feishu would not take from a bot.
    """

    def __init__(self) -> None:
        self.url = ""
        self.pending: set[str] = set()
        self.messages: dict[str, Json] = {}
        self.refused: defaultdict[str, deque[Failure]] = defaultdict(deque)
        self.asked: list[str] = []
        self.tokens: set[str] = set()
        self.token_lasts_s = 7200
        self.files: dict[str, bytes] = {}
        self.uploaded: dict[str, bytes] = {}
        self.toasts: list[str] = []
        self.ping_s: float = 120
        self.pings = 0
        self.answers_pings = True
        self.part_bytes = 2**20
        self.problems: list[str] = []
        self.deliveries: defaultdict[str, int] = defaultdict(int)
        self._events: dict[str, Json] = {}
        self._sent: dict[str, str] = {}  # the messages that were sent, by their uuids
        self._connections: list[web.WebSocketResponse] = []
        self._numbers = count(1)
        self._changed = anyio.Event()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[FeishuServer]:
        app = web.Application(middlewares=[self._between], client_max_size=2**24)
        api = "/open-apis"
        app.router.add_post(f"{api}/auth/v3/tenant_access_token/internal", self.token)
        app.router.add_get(f"{api}/bot/v3/info", self.info)
        app.router.add_post(f"{api}/im/v1/messages", self.send)
        app.router.add_post(f"{api}/im/v1/messages/{{message}}/reply", self.send)
        app.router.add_patch(f"{api}/im/v1/messages/{{message}}", self.change)
        app.router.add_get(f"{api}/im/v1/messages/{{message}}", self.look)
        app.router.add_get(f"{api}/im/v1/messages/{{message}}/resources/{{key}}", self.resource)
        app.router.add_post(f"{api}/im/v1/images", self.image)
        app.router.add_post("/callback/ws/endpoint", self.endpoint)
        app.router.add_get("/ws/v2", self.connect)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            await self.break_off()
            await runner.cleanup()

    # --- what people do ----------------------------------------------------------------------------------------------

    async def say(
        self,
        content: str | Json,
        sender: str = ANN,
        chat: str = "",
        *,
        kind: str = "",
        mentions: tuple[str, ...] = (),
        sender_type: str = "user",
        **more: str,
    ) -> str:
        """A person says something; its id. A text mentions whom it names as `@_user_1`, the first of `mentions`."""
        message_id = f"om_{next(self._numbers)}"
        chat = chat or chat_of(sender)
        content = {"text": content} if isinstance(content, str) else content
        message: Json = {
            "message_id": message_id,
            "chat_id": chat,
            "chat_type": "group" if chat == GROUP else "p2p",
            "message_type": kind or "text",
            "content": json.dumps(content),
            "create_time": "1700000000000",
            **more,
        }
        if mentions:
            names = {BOT: "Claw", ANN: "Ann", BOB: "Bob"}
            message["mentions"] = [
                {"key": f"@_user_{place}", "id": {"open_id": one, "user_id": None}, "name": names[one]}
                for place, one in enumerate(mentions, 1)
            ]
        self.messages[message_id] = {"chat": chat, "sender": sender, "sender_type": sender_type}
        said = {"sender": {"sender_id": {"open_id": sender}, "sender_type": sender_type}, "message": message}
        await self.happen("im.message.receive_v1", said, message_id)
        return message_id

    async def happen(self, kind: str, event: Any, event_id: str = "", *, is_kept: bool = True) -> None:
        """Something has happened, and the bot is to hear of it until it answers; of a callback only once."""
        event_id = event_id or f"event{next(self._numbers)}"
        header = {"event_id": event_id, "event_type": kind, "app_id": APP, "token": "", "tenant_key": "t"}
        self._events[event_id] = {"schema": "2.0", "header": header, "event": event}
        if is_kept:
            self.pending.add(event_id)
        await self._push(event_id)

    async def deliver_again(self, event_id: str) -> None:
        """Deliver an event once more, whether it was answered or not."""
        self.pending.add(event_id)
        await self._push(event_id)

    def forget_what_was_sent(self) -> None:
        """An hour has passed: what is sent once more is shown once more."""
        self._sent.clear()

    async def _push(self, event_id: str) -> None:
        """Deliver an event, if a bot is connected."""
        if not self._connections:
            return
        connection, payload = self._connections[-1], json.dumps(self._events[event_id]).encode()
        self.deliveries[event_id] += 1
        parts = [payload[at : at + self.part_bytes] for at in range(0, len(payload), self.part_bytes)]
        for number, part in enumerate(parts):
            headers = {"type": "event", "message_id": event_id, "sum": str(len(parts)), "seq": str(number)}
            headers["trace_id"] = "trace"
            frame = protobuf_frame(headers=headers, payload=part, method=1, service=7, SeqID=3, LogID=4)
            try:
                await connection.send_bytes(frame)
            except ConnectionError:
                return

    async def press(self, answer: str, by: str = ANN, chat: str = "", card_id: str = "") -> None:
        """Press a button of the newest card in a chat, as it was first. Its callback comes once, to a bot."""
        await self.until(lambda: bool(self._connections))
        chat = chat or chat_of(by)
        cards = [key for key, one in self.messages.items() if one["chat"] == chat and "asked" in one]
        card_id = card_id or cards[-1]
        buttons = [one for part in self.messages[card_id]["asked"]["elements"] for one in part.get("actions", ())]
        (value,) = (one["value"] for one in buttons if one["value"]["answer"] == answer)
        event = {
            "operator": {"open_id": by, "tenant_key": "t"},
            "token": "c-1",
            "action": {"value": value, "tag": "button"},
            "context": {"open_message_id": card_id, "open_chat_id": chat},
        }
        await self.happen("card.action.trigger", event, is_kept=False)

    # --- what goes wrong ---------------------------------------------------------------------------------------------

    def fail(self, kind: str, *failures: Failure) -> None:
        """The next requests of a kind, such as `send`, fail so."""
        self.refused[kind] = deque(failures)

    async def break_off(self) -> None:
        connections, self._connections = self._connections, []
        for connection in connections:
            await connection.close()

    # --- what people see ---------------------------------------------------------------------------------------------

    @property
    def sent(self) -> int:
        """How many messages the bot has sent."""
        return len(self._sent)

    def texts(self, chat: str) -> list[str]:
        """What the bot shows in a chat, in order."""
        return [one["text"] for one in self.messages.values() if one["chat"] == chat and one["sender"] == BOT]

    def buttons(self, card_id: str) -> list[str]:
        """The words on a card's buttons now."""
        elements = self.messages[card_id]["card"]["elements"]
        return [button["text"]["content"] for part in elements for button in part.get("actions", ())]

    async def until(self, is_so: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not is_so():
                await self._changed.wait()

    def change_seen(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    # --- the interface -----------------------------------------------------------------------------------------------

    @web.middleware
    async def _between(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        kind = handler.__name__
        self.asked.append(kind)
        try:
            failure = self.refused[kind].popleft() if self.refused[kind] else None
            if failure is not None and not failure.is_done:
                return web.Response(status=failure.status, body=failure.body, headers=failure.headers)
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if request.path.startswith("/open-apis/") and kind != "token" and token not in self.tokens:
                return _said(99991663 if token else 99991661, status=400)
            reply = await handler(request)
            if failure is not None and request.transport is not None:
                request.transport.close()
            return reply
        finally:
            self.change_seen()

    async def token(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        if (wanted["app_id"], wanted["app_secret"]) != (APP, SECRET):
            return _said(10014)
        token = f"t-{next(self._numbers)}"
        self.tokens.add(token)
        return _said(0, tenant_access_token=token, expire=self.token_lasts_s)

    async def info(self, _: web.Request) -> web.Response:
        return _said(0, bot={"open_id": BOT, "app_name": "Claw", "activate_status": 2})

    async def send(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        answers = self.messages.get(request.match_info.get("message", ""))
        if answers is None and request.query.get("receive_id_type") != "chat_id":
            return _said(230001)
        chat = answers["chat"] if answers else wanted["receive_id"]
        uuid, content, kind = wanted["uuid"], json.loads(wanted["content"]), wanted["msg_type"]
        if len(uuid) > 50 or len(await request.read()) > 30 * 1024:
            self.problems.append(f"{len(uuid)} characters of uuid, {len(await request.read())} bytes")
            return _said(230025)
        if uuid in self._sent:  # once within an hour
            return _said(0, data={"message_id": self._sent[uuid]})
        shown: Json = {"chat": chat, "sender": BOT, "answers": request.match_info.get("message"), "kind": kind}
        shown["in_thread"] = wanted.get("reply_in_thread")
        if kind == "post":
            ((element,),) = content["zh_cn"]["content"]
            shown |= {"text": element["text"], "tag": element["tag"]}
            if element["tag"] == "md" and "![" in element["text"]:
                return _said(230001)
        elif kind == "interactive":
            shown |= {"card": content, "asked": content, "text": content["elements"][0]["text"]["content"]}
        else:
            shown |= {"image": content["image_key"], "text": f"[{kind}]"}
        message_id = f"om_{next(self._numbers)}"
        self.messages[message_id], self._sent[uuid] = shown, message_id
        return _said(0, data={"message_id": message_id})

    async def change(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        self.messages[request.match_info["message"]]["card"] = json.loads(wanted["content"])
        return _said(0)

    async def look(self, request: web.Request) -> web.Response:
        found = self.messages.get(request.match_info["message"])
        if found is None:
            return _said(230002)
        sender = APP if found["sender"] == BOT else found["sender"]
        return _said(0, data={"items": [{"sender": {"id": sender, "sender_type": "app"}}]})

    async def resource(self, request: web.Request) -> web.Response:
        data = self.files.get(request.match_info["key"])
        wanted = "image" if request.match_info["key"].startswith("img") else "file"
        if data is None or request.query["type"] != wanted or request.match_info["message"] not in self.messages:
            return _said(234003, status=400)
        return web.Response(body=data, content_type="application/octet-stream")

    async def image(self, request: web.Request) -> web.Response:
        form = await request.post()
        assert form["image_type"] == "message"
        field, key = form["image"], f"img_{next(self._numbers)}"
        self.uploaded[key] = field.file.read() if isinstance(field, web.FileField) else str(field).encode()
        return _said(0, data={"image_key": key})

    # --- the long connection -----------------------------------------------------------------------------------------

    async def endpoint(self, request: web.Request) -> web.Response:
        if await request.json() != {"AppID": APP, "AppSecret": SECRET}:
            return _said(514)
        url = self.url.replace("http://", "ws://") + "/ws/v2?device_id=1&service_id=7&ticket=secret-ticket"
        return _said(0, data={"URL": url, "ClientConfig": self._config()})

    def _config(self) -> Json:
        return {"ReconnectCount": -1, "ReconnectInterval": 120, "ReconnectNonce": 30, "PingInterval": self.ping_s}

    async def connect(self, request: web.Request) -> web.WebSocketResponse:
        assert request.query["ticket"] == "secret-ticket"
        connection = web.WebSocketResponse()
        await connection.prepare(request)
        self._connections.append(connection)
        self.change_seen()
        for event_id in [one for one in self._events if one in self.pending]:
            await self._push(event_id)
        try:
            async for message in connection:
                assert message.type is WSMsgType.BINARY
                await self._take(connection, parsed(message.data))
                self.change_seen()
        finally:
            if connection in self._connections:
                self._connections.remove(connection)
            self.change_seen()
        return connection

    async def _take(self, connection: web.WebSocketResponse, frame: Any) -> None:
        headers = {one.key: one.value for one in frame.headers}
        if frame.method == 0:
            assert (headers["type"], frame.service) == ("ping", 7)
            self.pings += 1
            if self.answers_pings:
                config = json.dumps(self._config()).encode()
                await connection.send_bytes(protobuf_frame(headers={"type": "pong"}, payload=config, service=7))
            return
        said = json.loads(frame.payload)
        assert (headers["type"], frame.SeqID, frame.LogID, said["code"]) == ("event", 3, 4, 200)
        assert int(headers["biz_rt"]) >= 0
        self.pending.discard(headers["message_id"])
        shown = json.loads(base64.b64decode(said["data"])) if "data" in said else {}
        if "toast" in shown:
            self.toasts.append(shown["toast"]["content"])
        if "card" in shown:
            pressed = self._events[headers["message_id"]]["event"]["context"]["open_message_id"]
            self.messages[pressed]["card"] = shown["card"]["data"]


def chat_of(person: str) -> str:
    """A person's own chat with the bot."""
    return person.replace("ou_", "oc_")


def _said(code: int, status: int = 200, **more: Any) -> web.Response:
    return web.json_response({"code": code, "msg": "", **more}, status=status)
