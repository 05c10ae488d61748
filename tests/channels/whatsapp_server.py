"""WhatsApp's Cloud API on one local port: the Graph API, as strict as Meta's, and Meta, which posts what people do.

    async with CloudServer() as server:
        server.webhook = channel.webhook  # or server.post_to(socket), where a daemon takes it
        server.say("hello")
        await server.until(lambda: server.texts() == ["hi"])

What it refuses it refuses with Meta's codes
(https://developers.facebook.com/documentation/business-messaging/whatsapp/support/error-codes). A post is repeated
until it is taken, each time after a longer while, as Meta does it, in hundredths of seconds and not in minutes.

As a process of its own, for trying by hand: `python -m tests.channels.whatsapp_server --daemon SOCKET`. Each line of
its input is said by Ann; `/button yes` presses one, `/file PATH` sends one, and what the bot says is printed.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import re
import socket
import sys
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import httpx2
import orjson
import uvicorn
from anyio.abc import TaskGroup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from miniclaw_sessions.channels.base import WebhookReply, WebhookRequest
from miniclaw_sessions.channels.splitting import utf16_units
from tests.agent.providers.strict_server import SuddenServer
from tests.service.gateway.daemons import PATIENCE_S

Json = dict[str, Any]
TOKEN, APP_SECRET, VERIFY_TOKEN = "EAAlocal", "app-secret", "chosen-by-us"
NUMBER_ID, NUMBER = "106540352242922", "15550783881"
ANN, BOB, EVE = "491701234567", "491701234568", "491701234569"
GROUP = "Y2FwaV9ncm91cDoxNzA1NTU1MDEzOToxMjAzNjM0MDQ2OTQyMzM4MjAZD"
NAMES = {ANN: "Ann", BOB: "Bob", EVE: "Eve"}
VERSION = "v24.0"
PATH = "/channels/whatsapp"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.04
MAX_TEXT, MAX_BODY, MAX_BUTTONS, MAX_TITLE, MAX_BUTTON_ID = 4096, 1024, 3, 20, 256


class Refused(Exception):
    """An error of the Graph API, or no reply of its own at all.

    Args:
        code: Meta's.
        status: HTTP's.
        retry_after: seconds, as the header says them; None: it says nothing.
    """

    is_done = False

    def __init__(self, code: int, status: int = 400, *, retry_after: int | None = None) -> None:
        super().__init__(f"(#{code}) refused")
        self.code, self.status, self.retry_after = code, status, retry_after

    def response(self) -> Response:
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        error = {"message": str(self), "type": "OAuthException", "code": self.code, "fbtrace_id": "A1b2"}
        return JSONResponse({"error": error}, self.status, headers)


class Strange(Refused):
    """A reply that is not Meta's own."""

    def __init__(self, body: bytes, kind: str = "application/json", status: int = 200) -> None:
        super().__init__(0, status)
        self.body, self.kind = body, kind

    def response(self) -> Response:
        return Response(self.body, self.status, media_type=self.kind)


class Cut(Refused):
    """The connection is cut, before it is done, or afterwards."""

    def __init__(self, *, is_done: bool) -> None:
        super().__init__(0, 200)
        self.is_done = is_done

    def response(self) -> Response:
        return StreamingResponse(_cut())


BROKEN = Refused(131_000, 500)
TOO_MANY = Refused(130_429, 429, retry_after=30)
PAIR_LIMIT = Refused(131_056)
TOO_LATE = Refused(131_047)
EXPIRED = Refused(190, 401)
PAGE = Strange(b"<html><title>Sign in</title></html>", "text/html")
CUT, CUT_AFTERWARDS = Cut(is_done=False), Cut(is_done=True)


class Post:
    """Something that Meta posts, until it is taken."""

    def __init__(self, value: Json) -> None:
        change = {"field": "messages", "value": {"messaging_product": "whatsapp", "metadata": _METADATA} | value}
        payload = {"object": "whatsapp_business_account", "entry": [{"id": "1022", "changes": [change]}]}
        self.body = orjson.dumps(payload)
        self.times = 0
        self.is_under_way = False
        self.arrived = anyio.Event()
        """Set when the bot has read it, or the post has failed."""

    @property
    def headers(self) -> dict[str, str]:
        digest = hmac.new(APP_SECRET.encode(), self.body, hashlib.sha256).hexdigest()
        return {"content-type": "application/json", "x-hub-signature-256": f"sha256={digest}"}


_METADATA = {"display_phone_number": NUMBER, "phone_number_id": NUMBER_ID}


class CloudServer:
    """Listens on a port of its own while it is entered, and posts what people do.

    Args:
        port: where to listen; 0: anywhere.
    """

    def __init__(self, *, port: int = 0) -> None:
        self.calls: list[tuple[str, Json]] = []
        self.problems: list[str] = []
        """What no bot should do."""
        self.messages: list[Json] = []
        """What the bot has sent, in order."""
        self.pending: list[Post] = []
        """What the bot has not taken."""
        self.files: dict[str, bytes] = {}
        self.uploads: dict[str, tuple[str, bytes]] = {}
        self.reads: list[Json] = []
        self.posts = 0
        """How often something was posted."""
        self.webhook: Callable[[WebhookRequest], Awaitable[WebhookReply]] | None = None
        """What takes the posts to this server's own `/channels/whatsapp`."""
        self._post: Callable[[Post], Awaitable[int]] = self._post_here
        self.pace_s = 0.2
        """How long a post waits until the one before has arrived; a daemon does not say that it has read something."""
        self.too_late: set[str] = set()
        """Persons whose last message is more than 24 hours ago."""
        self.on_message: Callable[[Json], None] = lambda _: None
        self._failures: defaultdict[str, deque[Refused]] = defaultdict(deque)
        self._numbers = count(1001)
        self._known: set[str] = set()
        self._changed = anyio.Event()
        self._port = port
        self._socket = socket.socket()
        self._tasks: TaskGroup | None = None
        self._waiting: set[anyio.CancelScope] = set()
        self._pause_s = FIRST_PAUSE_S

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    @property
    def url(self) -> str:
        return f"{self.address}/{VERSION}"

    async def __aenter__(self) -> Self:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", self._port))
        self._socket.listen()
        routes = [
            Route(f"/{VERSION}/{{id}}", self._answer, methods=["GET"]),
            Route(f"/{VERSION}/{{id}}/{{edge}}", self._answer, methods=["POST"]),
            Route("/file/{id}", self._file),
            Route(PATH, self._take, methods=["GET", "POST"]),
        ]
        self._server = SuddenServer(uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off"))
        self._clients = [httpx2.AsyncClient(timeout=PATIENCE_S, verify=False)]
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._server.serve, [self._socket])
        self._tasks.start_soon(self._deliver)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        self._server.told_to_stop.set()
        self._tasks.cancel_scope.cancel()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            with anyio.CancelScope(shield=True):
                for client in self._clients:
                    await client.aclose()
            self._socket.close()

    # --- what people do ----------------------------------------------------------------------------------------------

    def say(self, text: str = "", *, by: str = ANN, group: str | None = None, **fields: Any) -> Json:
        """Somebody says something, alone with the bot or in a group."""
        said = self.message(text, by=by, group=group, **fields)
        self.payload(said)
        return said

    def message(self, text: str = "", *, by: str = ANN, group: str | None = None, **fields: Any) -> Json:
        """What somebody says, as Meta describes it, which is not posted yet."""
        number = next(self._numbers)
        said: Json = {"from": by, "id": f"wamid.in{number}", "timestamp": str(1_790_000_000 + number), "type": "text"}
        if text:
            said["text"] = {"body": text}
        if group:
            said["group_id"] = group
        self._known |= {by, said["id"], group or by}
        return said | fields

    def payload(self, *said: Json, **value: Any) -> Post:
        """Post several messages at once."""
        people = {one["from"]: {"wa_id": one["from"], "profile": {"name": NAMES.get(one["from"], "?")}} for one in said}
        post = Post({"contacts": [*people.values()], "messages": [*said]} | value)
        self.pending.append(post)
        self.look()
        return post

    def send_file(self, kind: str, data: bytes, media_type: str, *, caption: str = "", **fields: Any) -> Json:
        """Ann sends a picture, a voice message, a document."""
        media_id = f"media{len(self.files)}"
        self.files[media_id] = data
        digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
        media = {"id": media_id, "mime_type": media_type, "sha256": digest} | ({"caption": caption} if caption else {})
        content: Json = {"type": kind, kind: media | fields}
        return self.say(**content)

    def press(self, title: str, *, by: str = ANN, chat: str = ANN) -> Json:
        """Somebody presses a button of the newest message in a chat that has any."""
        asked = next(one for one in reversed(self.messages) if one["chat"] == chat and one["type"] == "interactive")
        buttons = {one["reply"]["title"]: one["reply"] for one in asked["interactive"]["action"]["buttons"]}
        pressed = {"type": "button_reply", "button_reply": buttons[title]}
        return self.say(by=by, type="interactive", interactive=pressed, context={"from": NUMBER, "id": asked["id"]})

    def edit(self, said: Json, text: str) -> Json:
        """Somebody gives a message of theirs another wording."""
        message = {"type": "text", "text": {"body": text}} | {k: said[k] for k in ("context",) if k in said}
        edit = {"original_message_id": said["id"], "message": message}
        return self.say(by=said["from"], group=said.get("group_id"), type="edit", edit=edit)

    def report(self, message_id: str, status: str, code: int = 0) -> Post:
        """Meta posts what became of a message that the bot has sent."""
        errors = {"errors": [{"code": code, "title": "?"}]} if code else {}
        return self.payload(statuses=[{"id": message_id, "status": status, "recipient_id": ANN} | errors])

    def fail(self, edge: str, *failures: Refused) -> None:
        """The next calls fail: `messages`, `read`, `media`, or `get` with whatever is got."""
        self._failures[edge].extend(failures)

    def heal(self, edge: str) -> None:
        """From now on they do not fail."""
        self._failures[edge].clear()

    def failing(self, edge: str) -> int:
        return len(self._failures[edge])

    def break_off(self) -> None:
        """Cut the posts that wait for their replies; each comes again."""
        for scope in self._waiting:
            scope.cancel()

    # --- looking -----------------------------------------------------------------------------------------------------

    def texts(self, chat: str = ANN) -> list[str]:
        """What a person reads in a chat, as WhatsApp's programs show it."""
        return [shown(one) for one in self.messages if one["chat"] == chat and shown(one)]

    def is_pending(self, said: Json) -> bool:
        """Whether something that somebody said is not taken yet."""
        return any(said["id"].encode() in post.body for post in self.pending)

    async def until(self, is_so: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not is_so():
                await self._changed.wait()

    def look(self) -> None:
        """Let `until` look once more."""
        self._changed.set()
        self._changed = anyio.Event()

    # --- posting -----------------------------------------------------------------------------------------------------

    async def _deliver(self) -> None:
        """Post what is not taken, each when the one before has arrived: what people do is heard in its order."""
        assert self._tasks is not None
        while True:
            changed = self._changed
            for post in [one for one in self.pending if not one.is_under_way]:
                post.is_under_way, post.arrived = True, anyio.Event()
                self._tasks.start_soon(self._deliver_one, post)
                with anyio.move_on_after(self.pace_s):
                    await post.arrived.wait()
                if post in self.pending and not post.is_under_way:
                    break  # nobody is there, or it has to come again before what is behind it
            is_refused = any(not one.is_under_way for one in self.pending)
            with anyio.move_on_after(self._pause_s if is_refused else PATIENCE_S):
                await changed.wait()
            if is_refused:
                self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    async def _deliver_one(self, post: Post) -> None:
        status = 0
        self.posts += 1
        post.times += 1
        self.look()
        with anyio.CancelScope() as scope:
            self._waiting.add(scope)
            status = await self._post(post)
        self._waiting.discard(scope)
        if 200 <= status < 300:
            self.pending.remove(post)
            self._pause_s = FIRST_PAUSE_S
        post.is_under_way = False
        post.arrived.set()
        self.look()

    def post_to(self, daemon: Path | str) -> None:
        """From now on what people do is posted to the socket of a daemon."""
        transport = httpx2.AsyncHTTPTransport(uds=str(daemon), verify=False)
        self._clients.append(client := httpx2.AsyncClient(transport=transport, timeout=PATIENCE_S))
        self._post = lambda post: self._posted(f"http://bot{PATH}", post, client)

    async def _post_here(self, post: Post) -> int:
        return await self._posted(f"{self.address}{PATH}", post, self._clients[0])

    async def _posted(self, url: str, post: Post, client: httpx2.AsyncClient) -> int:
        """The status of a post to an address; 0: nobody is there."""
        try:
            reply = await client.post(url, headers=post.headers | {"x-post": str(id(post))}, content=post.body)
        except httpx2.TransportError:
            return 0
        return reply.status_code

    async def _take(self, request: Request) -> Response:
        """What a gateway does with what comes to `/channels/whatsapp`."""
        if self.webhook is None:
            return Response(status_code=503)
        post = next((one for one in self.pending if str(id(one)) == request.headers.get("x-post")), None)

        async def body() -> bytes:
            data = await request.body()
            if post is not None:
                post.arrived.set()
            return data

        query = dict(request.query_params)
        taken = await self.webhook(WebhookRequest(request.method, "", query, dict(request.headers), body))
        return Response(taken.body, taken.status, media_type=taken.media_type)

    # --- the Graph API -----------------------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> Response:
        failure = None
        try:
            if request.headers.get("authorization") != f"Bearer {TOKEN}":
                raise EXPIRED
            edge = request.path_params.get("edge", "get")
            fields = orjson.loads(await request.body()) if edge == "messages" else {}
            edge = "read" if fields.get("status") == "read" else edge
            self.calls.append((edge, fields))
            if self._failures[edge]:
                failure = self._failures[edge].popleft()
                if not failure.is_done:
                    raise failure
            document = await getattr(self, f"_{edge}")(request, fields)
            if failure is not None:
                raise failure
            return JSONResponse(document)
        except Refused as refused:
            return refused.response()
        finally:
            self.look()

    async def _get(self, request: Request, _: Json) -> Json:
        name = request.path_params["id"]
        if name == NUMBER_ID:
            return {"id": NUMBER_ID, "display_phone_number": "+1 555-078-3881"}
        if name not in self.files:
            raise Refused(100)
        data = self.files[name]
        digest = hashlib.sha256(data).hexdigest()
        return {"id": name, "url": f"{self.address}/file/{name}", "sha256": digest, "file_size": str(len(data))}

    async def _file(self, request: Request) -> Response:
        self.calls.append(("file", {}))
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return Response(status_code=401)
        if self._failures["file"]:
            return self._failures["file"].popleft().response()
        return Response(self.files[request.path_params["id"]], media_type="application/octet-stream")

    async def _read(self, _: Request, fields: Json) -> Json:
        if fields["message_id"] not in self._known:
            raise Refused(100)
        self.reads.append(fields)
        return {"success": True}

    async def _media(self, request: Request, _: Json) -> Json:
        async with request.form() as form:
            file = form["file"]
            assert not isinstance(file, str)
            self.uploads[name := f"upload{len(self.uploads)}"] = (str(form["type"]), await file.read())
        return {"id": name}

    async def _messages(self, _: Request, fields: Json) -> Json:
        if fields.get("messaging_product") != "whatsapp":
            raise Refused(100)
        is_group = fields.get("recipient_type") == "group"
        chat = fields.get("recipient") or fields["to"]
        if is_group is not (chat == GROUP) or ("recipient" in fields) is not ("." in chat):
            self.problems.append(f"addressed in another way: {fields.get('recipient_type')} {chat}")
        if chat not in self._known:
            raise Refused(131_026)
        if chat in self.too_late and fields["type"] != "template":
            raise TOO_LATE
        self._check(fields, is_group=is_group)
        message = fields | {"id": f"wamid.out{next(self._numbers)}", "chat": chat}
        self.messages.append(message)
        self.on_message(message)
        contacts = [{"input": chat, "wa_id": chat}]
        return {"messaging_product": "whatsapp", "contacts": contacts, "messages": [{"id": message["id"]}]}

    def _check(self, fields: Json, *, is_group: bool) -> None:
        match fields:
            case {"type": "text", "text": {"body": str(body)}}:
                if not body.strip() or utf16_units(body) > MAX_TEXT:
                    raise Refused(100)
            case {
                "type": "interactive",
                "interactive": {"type": "button", "body": {"text": str(body)}, "action": action},
            }:
                buttons = [one["reply"] for one in action["buttons"]]
                is_long = any(len(one["title"]) > MAX_TITLE or len(one["id"]) > MAX_BUTTON_ID for one in buttons)
                titles = {one["title"] for one in buttons}
                if is_group or is_long or utf16_units(body) > MAX_BODY or not 1 <= len(titles) <= MAX_BUTTONS:
                    raise Refused(131_009)
            case {"type": "image" | "document" as kind}:
                if fields[kind]["id"] not in self.uploads:
                    raise Refused(100)
            case {"type": "template", "template": {"name": str(), "language": {"code": str()}, "components": [body]}}:
                ((parameter),) = body["parameters"]
                if re.search(r"[\n\t]| {5}", parameter["text"]) or utf16_units(parameter["text"]) > MAX_BODY:
                    raise Refused(132_000)
            case _:
                raise Refused(131_008)


async def _cut() -> AsyncIterator[bytes]:
    yield b'{"messages": [{"id": "wami'
    raise ConnectionError("the cable was cut, as the test wants it")


_INLINE = re.compile(r"(?<![\w*_~])([*_~])(?=\S)(.+?)(?<=\S)\1(?![\w*_~])")


def shown(message: Json) -> str:
    """The text of a message as WhatsApp's programs show it: without the marks that they understand."""
    body: Json = message.get("interactive", {}).get("body", {})
    template: Json = next(iter(message.get("template", {}).get("components", [])), {})
    words = [one["text"] for one in template.get("parameters", [])]
    text = message.get("text", {}).get("body") or body.get("text") or " ".join(words)
    pieces = re.split(r"```\n?(.*?)\n?```", text, flags=re.DOTALL)
    return "".join(piece if index % 2 else _without_marks(piece) for index, piece in enumerate(pieces))


def _without_marks(text: str) -> str:
    pieces = re.split(r"`([^`\n]+)`", text)
    return "".join(piece if index % 2 else _INLINE.sub(r"\2", piece) for index, piece in enumerate(pieces))


# --- as a process ----------------------------------------------------------------------------------------------------


async def _by_hand(port: int, daemon: str) -> None:
    async with CloudServer(port=port) as server:
        server.post_to(daemon)
        print(f"the Graph API is at {server.url}", flush=True)  # noqa: T201 - this is what it is for
        server.on_message = lambda message: print(f"bot> {shown(message) or message}", flush=True)  # noqa: T201
        lines = anyio.wrap_file(sys.stdin)
        async with aclosing(lines):
            async for line in lines:
                word, _, rest = line.strip().partition(" ")
                if word == "/button":
                    server.press(rest.title())
                elif word == "/file":
                    path = anyio.Path(rest)
                    _sent_by_hand(server, Path(rest), await path.read_bytes())
                else:
                    server.say(line.rstrip("\n"))
        await anyio.sleep_forever()


def _sent_by_hand(server: CloudServer, path: Path, data: bytes) -> None:
    kinds = {".ogg": ("audio", "audio/ogg; codecs=opus"), ".png": ("image", "image/png")}
    kind, media_type = kinds.get(path.suffix, ("document", "application/pdf"))
    more: Json = {"voice": True} if kind == "audio" else {"filename": path.name} if kind == "document" else {}
    server.send_file(kind, data, media_type, **more)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The Cloud API on a local port; what is typed is said to the bot.")
    parser.add_argument("--port", type=int, default=8082)
    parser.add_argument("--daemon", required=True, help="the daemon's socket")
    options = parser.parse_args()
    anyio.run(_by_hand, options.port, options.daemon)
