"""Slack on one local port: the Web API, Socket Mode and its files, as strict as Slack about what a bot may ask.

    async with SlackServer() as server:
        server.say("hello")
        await server.until(lambda: server.texts() == ["hi"])

Conversations are kept; events are not: each is delivered once, to one connection or to `post`, and is lost where nobody
takes it, unless a test delivers it again. What it refuses it refuses with Slack's own codes (https://docs.slack.dev).

As a process of its own, for trying by hand: `python -m tests.channels.slack_server --port 8083`. Each line of its input
is said by Ann to the bot; `/yes` and `/no` press the newest buttons, `/send PATH` sends a file.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import json
import re
import sys
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import anyio
from aiohttp import WSMsgType, web

from tests.channels.rooms import PATIENCE_S

Json = dict[str, Any]
TOKEN, APP_TOKEN, SECRET = "xoxb-local", "xapp-local", "the-signing-secret"
BOT, BOT_ID = "U0BOT", "B0BOT"
ANN, BOB, EVE = "U0ANN", "U0BOB", "U0EVE"
DIRECT = {ANN: "D0ANN", BOB: "D0BOB", EVE: "D0EVE"}
GENERAL = "C0GENERAL"
MAX_TEXT, MAX_BLOCK_TEXT, MAX_VALUE, MAX_METADATA = 40_000, 3_000, 2_000, 8_000

PARAMETERS: dict[str, tuple[set[str], set[str]]] = {
    "auth.test": (set(), set()),
    "apps.connections.open": (set(), set()),
    "users.conversations": ({"types"}, {"exclude_archived", "limit", "cursor"}),
    "conversations.history": ({"channel"}, {"oldest", "inclusive", "include_all_metadata", "limit", "cursor"}),
    "conversations.replies": ({"channel", "ts"}, {"oldest", "inclusive", "include_all_metadata", "limit", "cursor"}),
    "chat.postMessage": (
        {"channel", "text"},
        {"thread_ts", "blocks", "metadata", "unfurl_links", "unfurl_media", "mrkdwn"},
    ),
    "chat.update": ({"channel", "ts", "text"}, {"blocks", "metadata", "mrkdwn"}),
    "files.getUploadURLExternal": ({"filename", "length"}, set()),
    "files.completeUploadExternal": ({"files"}, {"channel_id", "thread_ts"}),
}
"""What each method needs, and what else is known of it here; another parameter is a problem."""


class Failure(Exception):
    """What comes in place of a reply.

    Args:
        status: HTTP's; 0: the connection is cut.
        body: what comes.
        headers: what comes with it.
        is_done: whether Slack has done what was asked, and only its reply gets lost.
    """

    def __init__(
        self, status: int, body: str = "", headers: Json | None = None, *, kind: str = "", is_done: bool = False
    ) -> None:
        super().__init__(body)
        self.status, self.body, self.headers, self.is_done = status, body, headers or {}, is_done
        self.kind = kind or "application/json"

    def response(self, request: web.Request) -> web.Response:
        if self.status == 0:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.Response(status=self.status, text=self.body, headers=self.headers, content_type=self.kind)


def refusal(code: str) -> Failure:
    return Failure(200, json.dumps({"ok": False, "error": code}))


LIMITED = Failure(429, '{"ok": false, "error": "ratelimited"}', {"Retry-After": "30"})
PAGE = Failure(200, "<html><title>Log in to the proxy</title></html>", kind="text/html")
HALF = Failure(200, '{"ok": true, "message": {"text": "my secret is 42"')
WORDS = Failure(200, "the proxy is well", kind="text/plain")
CUT = Failure(0)
CUT_AFTERWARDS = Failure(0, is_done=True)


class SlackServer:
    """Listens on a port of its own while it is entered.

    Args:
        port: where to listen; 0: anywhere.
    """

    def __init__(self, port: int = 0) -> None:
        self.calls: list[tuple[str, Json]] = []
        self.problems: list[str] = []
        """What Slack would overlook, and no bot should do."""
        self.messages: dict[str, list[Json]] = {channel: [] for channel in (*DIRECT.values(), GENERAL)}
        """What stands in each conversation, in order."""
        self.events: list[Json] = []
        """What was delivered, in order."""
        self.acknowledged: dict[str, Json] = {}
        """The envelopes that were, and with what."""
        self.files: dict[str, bytes] = {}
        self.post: Callable[[dict[str, str], bytes], Awaitable[tuple[int, bytes]]] | None = None
        """How events get to the webhook; None: by Socket Mode."""
        self.is_delivering = True
        self.page = 50
        """How many messages one reply has."""
        self.connections: list[web.WebSocketResponse] = []
        self.tokens = {TOKEN, APP_TOKEN}
        self.missing_scopes: set[str] = set()
        """Methods that the bot may not call."""
        self.on_message: Callable[[Json], None] = lambda _: None
        self._failures: defaultdict[str, deque[Failure]] = defaultdict(deque)
        self._numbers = count(1)
        self._began = int(time.time())
        self._port = port
        self._uploads: dict[str, Json] = {}
        self._transports: dict[web.WebSocketResponse, asyncio.Transport] = {}
        self._changed = anyio.Event()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**28)
        app.router.add_route("*", "/api/{method}", self._answer)
        app.router.add_get("/link", self._link)
        app.router.add_get("/files/{name}", self._file)
        app.router.add_post("/upload/{name}", self._upload)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tasks.cancel_scope.cancel()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    # --- what people do ----------------------------------------------------------------------------------------------

    def say(self, text: str = "", *, user: str = ANN, channel: str = "", thread: str = "", **fields: Any) -> Json:
        """Somebody says something, in the conversation with the bot or in a channel."""
        channel = channel or DIRECT[user]
        message = {"type": "message", "user": user, "text": text, "ts": self._ts(), "client_msg_id": self._ts()}
        message |= {"thread_ts": thread} if thread else {}
        if thread:
            message["parent_user_id"] = self.found(channel, thread)["user"]
        message |= fields
        self._put(channel, message)
        self.deliver(self.event(channel, message))
        return message

    def mention(self, text: str, **fields: Any) -> Json:
        """Somebody speaks to the bot in the channel."""
        message = self.say(f"<@{BOT}> {text}", **{"channel": GENERAL, **fields})
        self.deliver(self.event(fields.get("channel", GENERAL), {**message, "type": "app_mention"}))
        return message

    def send_file(self, name: str, data: bytes, kind: str, text: str = "", **fields: Any) -> Json:
        """Ann sends a file."""
        number = f"F{next(self._numbers)}-{name}"
        self.files[number] = data
        address = f"{self.url}/files/{number}"
        file = {"id": number, "name": name, "mimetype": kind, "size": len(data), "url_private": address, **fields}
        return self.say(text, subtype="file_share", files=[file], upload=False)

    def edit(self, channel: str, ts: str, text: str, *, deliver: bool = True) -> None:
        """Somebody gives his message another wording."""
        message = self.found(channel, ts)
        before = dict(message)
        message |= {"text": text, "edited": {"user": message["user"], "ts": self._ts()}}
        changed = {"message": dict(message), "previous_message": before, "hidden": True, "ts": self._ts()}
        if deliver:
            self.deliver(self.event(channel, {"type": "message", "subtype": "message_changed", **changed}))

    def press(self, action_id: str, *, user: str = ANN, channel: str = "", ts: str = "") -> Json:
        """Somebody presses a button, of the newest message that has some unless another one is named."""
        channel = channel or DIRECT[user]
        asked = [one for one in self.messages[channel] if (one["ts"] == ts if ts else _buttons(one))]
        message = asked[-1]
        (button,) = [one for one in _buttons(message) if one["action_id"] == action_id]
        action = {"type": "button", "action_id": action_id, "value": button["value"], "action_ts": self._ts()}
        shown = {name: value for name, value in message.items() if name != "metadata"}
        payload = {"type": "block_actions", "user": {"id": user}, "channel": {"id": channel}, "message": shown}
        event = {"kind": "interactive", "payload": payload | {"actions": [action]}, "id": self._ts()}
        self.deliver(event)
        return event

    def command(self, text: str, *, user: str = ANN, channel: str = "") -> Json:
        """Somebody writes a slash command."""
        payload = {"command": "/claw", "text": text, "user_id": user, "channel_id": channel or DIRECT[user]}
        event = {"kind": "slash_commands", "payload": payload, "id": self._ts()}
        self.deliver(event)
        return event

    # --- delivering --------------------------------------------------------------------------------------------------

    def event(self, channel: str, fields: Json) -> Json:
        """An event that is not delivered yet."""
        event = {**fields, "channel": channel, "channel_type": "im" if channel.startswith("D") else "channel"}
        event_id = f"Ev{next(self._numbers)}"
        payload = {"type": "event_callback", "event_id": event_id, "event": json.loads(json.dumps(event))}
        return {"kind": "events_api", "payload": payload, "id": event_id}

    def deliver(self, event: Json, attempt: int = 0) -> None:
        """Deliver an event, unless nobody listens or the test wants it lost."""
        if self.is_delivering:
            self.events.append(event)
            self._tasks.start_soon(self._deliver, event, attempt)

    async def _deliver(self, event: Json, attempt: int) -> None:
        envelope_id = f"{event['id']}-{attempt}"
        if self.post is not None:
            status, reply = await self.post(*signed(event, attempt))
            if 200 <= status < 300:
                self.acknowledged[envelope_id] = json.loads(reply or b"{}")
            self._note()
            return
        envelope = {"type": event["kind"], "envelope_id": envelope_id, "payload": event["payload"]}
        envelope |= {"accepts_response_payload": event["kind"] != "events_api"}
        if event["kind"] == "events_api":
            envelope |= {"retry_attempt": attempt, "retry_reason": "timeout" if attempt else ""}
        for connection in self.connections[-1:]:
            with suppress(ConnectionError):
                await connection.send_json(envelope)

    def is_acknowledged(self, event: Json, attempt: int = 0) -> bool:
        return f"{event['id']}-{attempt}" in self.acknowledged

    async def drop(self, *, politely: bool = True) -> None:
        """Break off the connections of Socket Mode."""
        while self.connections:
            connection = self.connections.pop()
            if politely:
                await connection.close()
            else:
                self._transports[connection].abort()

    async def refresh(self) -> None:
        """Ask for another connection, as Slack does every few hours."""
        for connection in list(self.connections):
            await connection.send_json({"type": "disconnect", "reason": "refresh_requested"})

    def fail(self, method: str, *failures: Failure) -> None:
        """The next calls of a method fail."""
        self._failures[method].extend(failures)

    def failing(self, method: str) -> int:
        return len(self._failures[method])

    def heal(self, method: str) -> None:
        self._failures[method].clear()

    # --- looking -----------------------------------------------------------------------------------------------------

    def texts(self, channel: str = DIRECT[ANN], thread: str | None = None) -> list[str]:
        """What the bot has said in a conversation, or in one of its threads, as it stands there now."""
        return [one["text"] for one in self.posts(channel, thread) if "files" not in one]

    def posts(self, channel: str = DIRECT[ANN], thread: str | None = None) -> list[Json]:
        """The bot's messages."""
        found = [one for one in self.messages[channel] if one["user"] == BOT]
        return [one for one in found if thread is None or one.get("thread_ts", "") == thread]

    def has_buttons(self, channel: str) -> bool:
        return any(map(_buttons, self.messages[channel]))

    def called(self, method: str) -> list[Json]:
        return [parameters for name, parameters in self.calls if name == method]

    def found(self, channel: str, ts: str) -> Json:
        (message,) = [one for one in self.messages.get(channel, ()) if one["ts"] == ts]
        return message

    async def until(self, is_so: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not is_so():
                await self._changed.wait()

    def _note(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _ts(self) -> str:
        return f"{self._began}.{next(self._numbers):06d}"

    def _put(self, channel: str, message: Json) -> None:
        if channel not in self.messages:
            raise refusal("channel_not_found")
        if thread := message.get("thread_ts"):
            root = next((one for one in self.messages[channel] if one["ts"] == thread), None)
            if root is None:
                raise refusal("thread_not_found")
            root |= {"thread_ts": thread, "latest_reply": message["ts"]}
            root["reply_count"] = root.get("reply_count", 0) + 1
        self.messages[channel].append(message)
        self._note()

    # --- the Web API -------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        failure = None
        try:
            parameters = await _parameters(request)
            self.calls.append((method, parameters))
            if self._failures[method]:
                failure = self._failures[method].popleft()
                if not failure.is_done:
                    raise failure
            self._check(method, request.headers.get("Authorization", ""), parameters)
            reply = {"ok": True, **getattr(self, "_" + re.sub(r"\W", "_", method))(parameters)}
            if failure is not None:
                raise failure
            return web.json_response(reply)
        except Failure as error:
            return error.response(request)
        finally:
            self._note()

    def _check(self, method: str, authorization: str, parameters: Json) -> None:
        wanted = APP_TOKEN if method == "apps.connections.open" else TOKEN
        token = authorization.removeprefix("Bearer ")
        if not token:
            raise refusal("not_authed")
        if token != wanted or token not in self.tokens:
            raise refusal("invalid_auth")
        if method not in PARAMETERS:
            raise refusal("unknown_method")
        if method in self.missing_scopes:
            raise refusal("missing_scope")
        needed, known = PARAMETERS[method]
        self.problems += [f"{method}: unknown parameter {name}" for name in parameters.keys() - needed - known]
        if missing := needed - parameters.keys():
            raise refusal("no_text" if "text" in missing else "invalid_arguments")
        if parameters.get("channel", GENERAL) not in self.messages:
            raise refusal("channel_not_found")

    def _auth_test(self, _: Json) -> Json:
        return {"user_id": BOT, "bot_id": BOT_ID, "team_id": "T0", "user": "claw", "team": "Local"}

    def _apps_connections_open(self, _: Json) -> Json:
        return {"url": f"{self.url.replace('http', 'ws')}/link?ticket={next(self._numbers)}"}

    def _users_conversations(self, parameters: Json) -> Json:
        return self._paged(parameters, "channels", [{"id": channel} for channel in self.messages])

    def _conversations_history(self, parameters: Json) -> Json:
        messages = self.messages[parameters["channel"]]
        roots = [one for one in messages if one.get("thread_ts", one["ts"]) == one["ts"]]
        return self._listed(parameters, roots[::-1])

    def _conversations_replies(self, parameters: Json) -> Json:
        messages = self.messages[parameters["channel"]]
        thread = [one for one in messages if one.get("thread_ts", one["ts"]) == parameters["ts"]]
        if not thread:
            raise refusal("thread_not_found")
        return self._listed(parameters, thread)

    def _listed(self, parameters: Json, messages: list[Json]) -> Json:
        if parameters.get("inclusive") not in {"1", "true", "True"}:
            self.problems.append("the oldest message is left out")
        found = [one for one in messages if one["ts"] >= parameters.get("oldest", "0")]
        if parameters.get("include_all_metadata") not in {"1", "true", "True"}:
            found = [{name: value for name, value in one.items() if name != "metadata"} for one in found]
        return self._paged(parameters, "messages", found)

    def _paged(self, parameters: Json, name: str, found: list[Json]) -> Json:
        start, size = int(parameters.get("cursor") or 0), min(int(parameters.get("limit", 100)), self.page)
        following = str(start + size) if start + size < len(found) else ""
        return {name: found[start : start + size], "response_metadata": {"next_cursor": following}}

    def _chat_postMessage(self, parameters: Json) -> Json:  # noqa: N802 - the API's name
        _check_text(parameters)
        message = {"type": "message", "user": BOT, "bot_id": BOT_ID, "ts": self._ts(), "text": parameters["text"]}
        message |= {key: parameters[key] for key in ("thread_ts", "blocks", "metadata") if key in parameters}
        if "thread_ts" in message:
            roots = [one for one in self.messages[parameters["channel"]] if one["ts"] == message["thread_ts"]]
            message["parent_user_id"] = roots[0]["user"] if roots else ""
        self._put(parameters["channel"], message)
        self.deliver(self.event(parameters["channel"], message))
        self.on_message(message)
        return {"ts": message["ts"], "channel": parameters["channel"], "message": message}

    def _chat_update(self, parameters: Json) -> Json:
        _check_text(parameters)
        found = [one for one in self.messages[parameters["channel"]] if one["ts"] == parameters["ts"]]
        if not found or found[0]["user"] != BOT:
            raise refusal("cant_update_message" if found else "message_not_found")
        before = dict(found[0])
        found[0] |= {key: parameters[key] for key in ("text", "blocks", "metadata") if key in parameters}
        changed = {"subtype": "message_changed", "message": dict(found[0]), "previous_message": before}
        self.deliver(self.event(parameters["channel"], {"type": "message", "ts": self._ts(), **changed}))
        self.on_message(found[0])
        return {"ts": parameters["ts"], "channel": parameters["channel"], "text": parameters["text"]}

    def _files_getUploadURLExternal(self, parameters: Json) -> Json:  # noqa: N802 - the API's name
        number = f"F{next(self._numbers)}"
        self._uploads[number] = {"id": number, "name": parameters["filename"], "size": int(parameters["length"])}
        return {"upload_url": f"{self.url}/upload/{number}", "file_id": number}

    def _files_completeUploadExternal(self, parameters: Json) -> Json:  # noqa: N802 - the API's name
        files = [self._uploads[one["id"]] for one in json.loads(parameters["files"])]
        if any(one["id"] not in self.files for one in files):
            raise refusal("file_not_found")
        message = {"type": "message", "user": BOT, "ts": self._ts(), "text": "", "files": files}
        message |= {"thread_ts": parameters["thread_ts"]} if "thread_ts" in parameters else {}
        self._put(parameters["channel_id"], message)
        self.deliver(self.event(parameters["channel_id"], {**message, "subtype": "file_share"}))
        return {"files": files}

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        number = request.match_info["name"]
        if request.headers.get("Authorization"):
            self.problems.append("the token is sent along with a file")
        data = await request.read()
        if len(data) != self._uploads[number]["size"]:
            return web.Response(status=400)
        self.files[number] = data
        return web.Response(text=f"OK - {len(data)}")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise web.HTTPFound("/login")
        return web.Response(body=self.files[request.match_info["name"]])

    # --- Socket Mode -------------------------------------------------------------------------------------------------

    async def _link(self, request: web.Request) -> web.StreamResponse:
        connection = web.WebSocketResponse()
        await connection.prepare(request)
        await connection.send_json({"type": "hello", "num_connections": 1})
        self.connections.append(connection)
        assert request.transport is not None
        self._transports[connection] = request.transport
        self._note()
        async for message in connection:
            if message.type is WSMsgType.TEXT:
                said = json.loads(message.data)
                self.acknowledged[said["envelope_id"]] = said.get("payload") or {}
                self._note()
        if connection in self.connections:
            self.connections.remove(connection)
        self._note()
        return connection


# --- shapes ----------------------------------------------------------------------------------------------------------


def signed(
    event: Json, attempt: int = 0, *, secret: str = SECRET, at: float | None = None
) -> tuple[dict[str, str], bytes]:
    """An event as Slack posts it to a webhook: headers and body."""
    kind, payload = event["kind"], event["payload"]
    if kind == "events_api":
        body, media_type = json.dumps(payload).encode(), "application/json"
    else:
        form = {"payload": json.dumps(payload)} if kind == "interactive" else payload
        body, media_type = urlencode(form).encode(), "application/x-www-form-urlencoded"
    sent_at = f"{time.time() if at is None else at:.0f}"
    signature = hmac.new(secret.encode(), f"v0:{sent_at}:".encode() + body, hashlib.sha256).hexdigest()
    headers = {
        "content-type": media_type,
        "x-slack-request-timestamp": sent_at,
        "x-slack-signature": f"v0={signature}",
    }
    again = {"x-slack-retry-num": str(attempt), "x-slack-retry-reason": "connection_failed"} if attempt else {}
    return headers | again, body


def _buttons(message: Json) -> list[Json]:
    blocks = [block for block in message.get("blocks", ()) if block["type"] == "actions"]
    return [button for block in blocks for button in block["elements"]]


async def _parameters(request: web.Request) -> Json:
    found: Json = dict(request.query)
    if request.content_type == "application/json":
        found |= await request.json()
    elif request.can_read_body:
        found |= dict(await request.post())
    return found


def _check_text(parameters: Json) -> None:
    if not parameters["text"].strip():
        raise refusal("no_text")
    if len(parameters["text"]) > MAX_TEXT:
        raise refusal("msg_too_long")
    if len(json.dumps(parameters.get("metadata", {}))) > MAX_METADATA:
        raise refusal("metadata_too_large")
    for block in parameters.get("blocks", ()):
        texts = [block["text"]] if "text" in block else []
        if any(not 1 <= len(one["text"]) <= MAX_BLOCK_TEXT for one in texts):
            raise refusal("invalid_blocks")
        if any(len(one.get("value", "")) > MAX_VALUE for one in block.get("elements", ())):
            raise refusal("invalid_blocks")


# --- as a process ----------------------------------------------------------------------------------------------------


async def _by_hand(port: int) -> None:
    async with SlackServer(port) as server:
        print(f"Slack is at {server.url}", flush=True)  # noqa: T201 - this is what it is for
        server.on_message = lambda message: print(f"bot> {message['text']}", flush=True)  # noqa: T201
        lines = anyio.wrap_file(sys.stdin)
        async with aclosing(lines):
            async for line in lines:
                word, _, rest = line.strip().partition(" ")
                if word in {"/yes", "/no"}:
                    server.press(f"miniclaw_{word[1:]}")
                elif word == "/send":
                    path = Path(rest)
                    server.send_file(path.name, await anyio.Path(path).read_bytes(), "application/octet-stream")
                elif word == "/claw":
                    server.command(rest)
                else:
                    server.say(line.rstrip("\n"))
        await anyio.sleep_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Slack on a local port; what is typed is said to the bot.")
    parser.add_argument("--port", type=int, default=8083)
    anyio.run(_by_hand, parser.parse_args().port)
