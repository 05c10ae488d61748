"""The Bot API on one local port: real HTTP, as strict as Telegram about what a bot may ask, and failing as it fails.

    async with BotServer() as server:
        server.say("hello")
        await server.until(lambda: server.texts() == ["hi"])

What it refuses it refuses in Telegram's words (https://core.telegram.org/bots/api, and the server that Telegram
publishes, tdlib/telegram-bot-api). An update stays until a later offset confirms it, or a webhook takes it.

As a process of its own, for trying by hand: `python -m tests.channels.telegram_server --port 8081`. Each line of its
input is said by user 42 in a private chat, and what the bot says is printed.
"""

from __future__ import annotations

import argparse
import base64
import email
import re
import socket
import sys
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from html.parser import HTMLParser
from itertools import count
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl

import anyio
import orjson
import uvicorn
from anyio.abc import TaskGroup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from miniclaw_sessions.channels.splitting import utf16_units
from tests.agent.providers.strict_server import SuddenServer
from tests.service.gateway.daemons import PATIENCE_S

Json = dict[str, Any]
TOKEN = "123456:local-token"
BOT: Json = {"id": 123456, "is_bot": True, "first_name": "Claw", "username": "claw_bot"}
ANN: Json = {"id": 42, "is_bot": False, "first_name": "Ann", "username": "ann"}
BOB: Json = {"id": 43, "is_bot": False, "first_name": "Bob"}
GROUP: Json = {"id": -100200, "type": "supergroup", "title": "Friends", "is_forum": True}
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
MAX_TEXT, MAX_FILE = 4096, 20 * 2**20

REQUIRED = {
    "getMe": set(),
    "getUpdates": set(),
    "deleteWebhook": set(),
    "setWebhook": {"url"},
    "sendMessage": {"chat_id", "text"},
    "editMessageText": {"chat_id", "message_id", "text"},
    "editMessageReplyMarkup": {"chat_id", "message_id"},
    "answerCallbackQuery": {"callback_query_id"},
    "deleteMessage": {"chat_id", "message_id"},
    "sendChatAction": {"chat_id", "action"},
    "sendPhoto": {"chat_id", "photo"},
    "sendDocument": {"chat_id", "document"},
    "getFile": {"file_id"},
    "setMyCommands": {"commands"},
}
OPTIONAL = {
    "getUpdates": {"offset", "limit", "timeout", "allowed_updates"},
    "deleteWebhook": {"drop_pending_updates"},
    "setWebhook": {"secret_token", "allowed_updates", "max_connections"},
    "sendMessage": {"parse_mode", "message_thread_id", "reply_parameters", "reply_markup"},
    "editMessageText": {"parse_mode", "reply_markup"},
    "editMessageReplyMarkup": {"reply_markup"},
    "sendChatAction": {"message_thread_id"},
    "sendPhoto": {"message_thread_id", "reply_parameters"},
    "sendDocument": {"message_thread_id", "reply_parameters"},
}
"""What is known of each method here; another parameter is a problem, though Telegram would overlook it."""

METHODS = {method.lower(): method for method in REQUIRED}


class Refused(Exception):
    """An answer with `ok: false`, or none at all."""

    def __init__(self, status: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.status, self.parameters = status, parameters

    def response(self) -> Response:
        document = {"ok": False, "error_code": self.status, "description": str(self)}
        return JSONResponse(document | ({"parameters": self.parameters} if self.parameters else {}), self.status)


class Strange(Refused):
    """A reply that is not Telegram's own: a page of a proxy, half a document, a document of another shape.

    Args:
        body: what comes.
        kind: its type.
        status: HTTP's.
        is_done: whether Telegram did what was asked, and only its own reply got lost.
    """

    def __init__(
        self, body: bytes, kind: str = "application/json", status: int = 200, *, is_done: bool = False
    ) -> None:
        super().__init__(status, "not Telegram's own reply")
        self.body, self.kind, self.is_done = body, kind, is_done

    def response(self) -> Response:
        return Response(self.body, self.status, media_type=self.kind)


TOO_MANY = Refused(429, "Too Many Requests: retry after 30", retry_after=30)
BAD_GATEWAY = Refused(502, "Bad Gateway")
CONFLICT = Refused(409, "Conflict: terminated by other getUpdates request; make sure that only one bot is running")
BLOCKED = Refused(403, "Forbidden: bot was blocked by the user")
GARBAGE = Strange(b'{"ok": true, "result": [{"text": "my secret is 42", ')
CUT = Refused(0, "the connection is cut before anything is done")
CUT_AFTERWARDS = Refused(1, "the connection is cut when it is done, before it is said")


class BotServer:
    """Listens on a port of its own while it is entered.

    Args:
        token: the bot's.
        port: where to listen; 0: anywhere.
    """

    def __init__(self, token: str = TOKEN, *, port: int = 0) -> None:
        self.token = token
        self.calls: list[tuple[str, Json]] = []
        self.problems: list[str] = []
        """What Telegram would overlook, and no bot should do."""
        self.messages: list[Json] = []
        """What the bot has said, as it stands now."""
        self.updates: list[Json] = []
        """What is not confirmed."""
        self.files: dict[str, bytes] = {}
        self.typing: list[Json] = []
        self.webhook: Json = {}
        self.post: Callable[[dict[str, str], bytes], Awaitable[int]] | None = None
        """How an update gets to the webhook; its status."""
        self.deliveries: defaultdict[int, int] = defaultdict(int)
        self.on_message: Callable[[Json], None] = lambda _: None
        self._failures: defaultdict[str, deque[Refused]] = defaultdict(deque)
        self._numbers = count(1001)
        self._chats: set[int] = set()
        self._topics: set[int] = set()
        self._polling: anyio.Event | None = None
        self._changed = anyio.Event()
        self._port = port
        self._socket = socket.socket()
        self._tasks: TaskGroup | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", self._port))
        self._socket.listen()
        routes = [
            Route("/bot{token}/{method}", self._answer, methods=["GET", "POST"]),
            Route("/file/bot{token}/{path:path}", self._file),
        ]
        self._server = SuddenServer(uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off"))
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._server.serve, [self._socket])
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
            self._socket.close()

    # --- what people do ----------------------------------------------------------------------------------------------

    def say(self, text: str = "", *, sender: Json = ANN, group: Json | None = None, **fields: Any) -> Json:
        """Somebody says something, in a private chat or in a group."""
        chat = group or {"id": sender["id"], "type": "private", "first_name": sender["first_name"]}
        message = {"message_id": next(self._numbers), "date": 1_790_000_000, "chat": chat, "from": sender}
        if text:
            message |= {"text": text, "entities": _entities(text)}
        self.update(message=message | fields)
        return message | fields

    def edit(self, message: Json, text: str) -> None:
        """Somebody gives his message another wording."""
        self.update(edited_message=message | {"text": text, "edit_date": message["date"] + 60})

    def press(self, text: str, *, sender: Json = ANN, question: Json | None = None) -> Json:
        """Somebody presses a button of the newest message that has any, or of one as it was; the question."""
        question = question or next(one for one in reversed(self.messages) if "reply_markup" in one)
        (data,) = [
            one["callback_data"] for one in question["reply_markup"]["inline_keyboard"][0] if one["text"] == text
        ]
        shown = {name: value for name, value in question.items() if name != "raw"}
        press = {"id": str(next(self._numbers)), "from": sender, "message": shown, "chat_instance": "1", "data": data}
        self.update(callback_query=press)
        return dict(question)

    def photograph(self, *sizes: bytes, caption: str = "", **fields: Any) -> Json:
        """Somebody sends a picture, which there is in these sizes, the largest last."""
        photo = []
        for data in sizes or (PNG,):
            self.files[file_id := f"file{len(self.files)}"] = data
            size = {"file_id": file_id, "file_unique_id": file_id, "width": 9, "height": 9, "file_size": len(data)}
            photo.append(size)
        return self.say(photo=photo, caption=caption, **fields)

    def update(self, **fields: Any) -> Json:
        """Something happens that a bot hears of."""
        update = {"update_id": next(self._numbers), **fields}
        for message in (fields.get("message"), fields.get("edited_message")):
            if isinstance(message, dict) and "chat" in message:
                self._chats.add(message["chat"]["id"])
                self._topics.add(message.get("message_thread_id", 0))
        self.updates.append(update)
        self._note()
        return update

    def fail(self, method: str, *failures: Refused) -> None:
        """The next calls of a method fail."""
        self._failures[method].extend(failures)

    def heal(self, method: str) -> None:
        """From now on the calls of a method do not fail."""
        self._failures[method].clear()

    def failing(self, method: str) -> int:
        """How many calls of a method are still to fail."""
        return len(self._failures[method])

    # --- looking -----------------------------------------------------------------------------------------------------

    def texts(self, chat_id: int = 42) -> list[str]:
        """What stands in a chat of the bot, without tags."""
        return [one.get("text", "") for one in self.messages if one["chat"]["id"] == chat_id]

    def called(self, method: str) -> list[Json]:
        return [parameters for name, parameters in self.calls if name == method]

    async def until(self, is_so: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not is_so():
                await self._changed.wait()

    def _note(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    # --- the methods -------------------------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> Response:
        failure = None
        try:
            if request.path_params["token"] != self.token:
                raise Refused(401, "Unauthorized")  # noqa: TRY301 - as every other refusal
            if (method := METHODS.get(request.path_params["method"].lower())) is None:
                raise Refused(404, "Not Found")  # noqa: TRY301
            parameters = _parameters(request.headers.get("content-type", ""), await request.body())
            self.calls.append((method, parameters))
            if self._failures[method]:
                failure = self._failures[method].popleft()
                if not (failure is CUT_AFTERWARDS or getattr(failure, "is_done", False)):
                    raise failure
            self._check(method, parameters)
            handler = getattr(self, f"_{method}", self._send)
            result = await handler(parameters)
            if failure is not None:
                raise failure
            return JSONResponse({"ok": True, "result": result})
        except Refused as refused:
            return StreamingResponse(_cut()) if refused.status in {0, 1} else refused.response()
        finally:
            self._note()

    def _check(self, method: str, parameters: Json) -> None:
        for name in parameters.keys() - REQUIRED[method] - OPTIONAL.get(method, set()):
            self.problems.append(f"{method}: unknown parameter {name}")
        for name in REQUIRED[method] - parameters.keys():
            raise Refused(400, f"Bad Request: {'message text' if name == 'text' else name} is empty")
        if "chat_id" in parameters and parameters["chat_id"] not in self._chats:
            raise Refused(400, "Bad Request: chat not found")
        if parameters.get("message_thread_id", 0) not in self._topics | {0}:
            raise Refused(400, "Bad Request: message thread not found")

    async def _getMe(self, _: Json) -> Json:  # noqa: N802 - the API's name, as below
        return BOT | {"can_join_groups": True, "can_read_all_group_messages": False, "supports_inline_queries": False}

    async def _getUpdates(self, parameters: Json) -> list[Json]:  # noqa: N802
        if self.webhook:
            raise Refused(409, "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook")
        limit = parameters.get("limit", 100)
        if not 1 <= limit <= 100:
            self.problems.append("getUpdates: limit")
        if self._polling is not None:
            self._polling.set()
        self._polling = mine = anyio.Event()
        self.updates = [one for one in self.updates if one["update_id"] >= parameters.get("offset", 0)]
        self._note()
        with anyio.move_on_after(parameters.get("timeout", 0)):
            while not self.updates and not mine.is_set():
                await self._changed.wait()
        if mine.is_set():
            raise CONFLICT
        self._polling = None
        for update in self.updates[:limit]:
            self.deliveries[update["update_id"]] += 1
        return self.updates[:limit]

    async def _deleteWebhook(self, _: Json) -> bool:  # noqa: N802
        self.webhook = {}
        return True

    async def _setWebhook(self, parameters: Json) -> bool:  # noqa: N802
        if not str(parameters["url"]).startswith("https://"):
            raise Refused(400, "Bad Request: bad webhook: An HTTPS URL must be provided for webhook")
        if not re.fullmatch(r"[\w-]{1,256}", parameters.get("secret_token", "")):
            raise Refused(400, "Bad Request: secret token contains unallowed characters")
        if not 1 <= parameters.get("max_connections", 40) <= 100:
            self.problems.append("setWebhook: max_connections")
        if not self.webhook and self._tasks is not None:
            self._tasks.start_soon(self._deliver)
        self.webhook = parameters
        return True

    async def _deliver(self) -> None:
        """Post each update until it is taken: those of a chat one after the other, as Telegram does."""
        assert self._tasks is not None
        busy: dict[int, Json] = {}
        while self.webhook:
            for update in self.updates:
                chat_id = next(iter(one["chat"]["id"] for one in update.values() if isinstance(one, dict)))
                if busy.get(chat_id) not in self.updates:
                    busy[chat_id] = update
                    self._tasks.start_soon(self._deliver_one, update)
            await self._changed.wait()

    async def _deliver_one(self, update: Json) -> None:
        headers = {"content-type": "application/json", "x-telegram-bot-api-secret-token": self.webhook["secret_token"]}
        while update in self.updates:
            assert self.post is not None
            self.deliveries[update["update_id"]] += 1
            self._note()
            if 200 <= await self.post(headers, orjson.dumps(update)) < 300 and update in self.updates:
                self.updates.remove(update)
                self._note()
            else:
                await anyio.sleep(0.05)

    async def _sendMessage(self, parameters: Json) -> Json:  # noqa: N802
        text = _plain(parameters)
        return self._put(parameters, {"text": text, "raw": parameters["text"]})

    async def _send(self, parameters: Json) -> Json:
        """A photograph or a document."""
        ((name, data),) = [(name, parameters[name]) for name in ("photo", "document") if name in parameters]
        if isinstance(data, bytes) and name == "photo" and not data.startswith((b"\x89PNG", b"\xff\xd8", b"GIF8")):
            raise Refused(400, "Bad Request: IMAGE_PROCESS_FAILED")
        return self._put(parameters, {name: data})

    def _put(self, parameters: Json, content: Json) -> Json:
        message = {"message_id": next(self._numbers), "date": 1_790_000_000, "from": BOT} | content
        message["chat"] = {"id": parameters["chat_id"], "type": "private"}
        kept = ("message_thread_id", "reply_parameters", "reply_markup")
        message |= {key: parameters[key] for key in kept if key in parameters}
        for one in parameters.get("reply_markup", {}).get("inline_keyboard", [[]])[0]:
            if not 1 <= len(one["callback_data"].encode()) <= 64:
                raise Refused(400, "Bad Request: BUTTON_DATA_INVALID")
        self.messages.append(message)
        self.on_message(message)
        shown = ("message_id", "date", "chat", "text", "from")
        return {name: message[name] for name in shown if name in message}

    async def _editMessageText(self, parameters: Json) -> Json:  # noqa: N802
        text, message = _plain(parameters), self._own(parameters, "edit")
        if message["raw"] == parameters["text"]:
            raise Refused(400, "Bad Request: message is not modified: specified new message content is the same")
        message |= {"text": text, "raw": parameters["text"]}
        self.on_message(message)
        return {name: message[name] for name in ("message_id", "date", "chat", "text", "from")}

    async def _editMessageReplyMarkup(self, parameters: Json) -> Json:  # noqa: N802
        message = self._own(parameters, "edit")
        if message.pop("reply_markup", None) is None:
            raise Refused(400, "Bad Request: message is not modified")
        return {name: message[name] for name in ("message_id", "date", "chat", "text", "from")}

    async def _answerCallbackQuery(self, _: Json) -> bool:  # noqa: N802
        return True

    async def _deleteMessage(self, parameters: Json) -> bool:  # noqa: N802
        self.messages.remove(self._own(parameters, "delete"))
        return True

    def _own(self, parameters: Json, verb: str) -> Json:
        for message in self.messages:
            if message["message_id"] == parameters["message_id"]:
                return message
        raise Refused(400, f"Bad Request: message to {verb} not found")

    async def _setMyCommands(self, parameters: Json) -> bool:  # noqa: N802
        for one in parameters["commands"]:
            if not re.fullmatch(r"[a-z0-9_]{1,32}", one["command"]) or not 1 <= len(one["description"]) <= 256:
                raise Refused(400, "Bad Request: BOT_COMMAND_INVALID")
        return True

    async def _sendChatAction(self, parameters: Json) -> bool:  # noqa: N802
        if parameters["action"] not in {"typing", "upload_photo", "upload_document"}:
            raise Refused(400, "Bad Request: wrong parameter action in request")
        self.typing.append(parameters)
        return True

    async def _getFile(self, parameters: Json) -> Json:  # noqa: N802
        if (data := self.files.get(parameters["file_id"])) is None:
            raise Refused(400, "Bad Request: wrong file_id or the file is temporarily unavailable")
        if len(data) > MAX_FILE:
            raise Refused(400, "Bad Request: file is too big")
        name = parameters["file_id"]
        return {"file_id": name, "file_unique_id": name, "file_size": len(data), "file_path": f"photos/{name}"}

    async def _file(self, request: Request) -> Response:
        if request.path_params["token"] != self.token:
            return Refused(401, "Unauthorized").response()
        return Response(self.files[request.path_params["path"].removeprefix("photos/")])


# --- shapes ----------------------------------------------------------------------------------------------------------


async def _cut() -> AsyncIterator[bytes]:
    yield b'{"ok": tr'
    raise ConnectionError("the cable was cut, as the test wants it")


def _parameters(content_type: str, body: bytes) -> Json:
    """What a form says, whose values are JSON where they are no text."""
    if not content_type.startswith("multipart/"):
        return {name: _value(name, text) for name, text in parse_qsl(body.decode(), keep_blank_values=True)}
    form, found = email.message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body), {}
    for part in form.get_payload():
        assert isinstance(part, email.message.Message)
        data = part.get_payload(decode=True)
        assert isinstance(data, bytes)
        name = str(part.get_param("name", header="content-disposition"))
        found[name] = data if part.get_filename() else _value(name, data.decode())
    return {
        name: found[str(value)[9:]] if str(value).startswith("attach://") else value for name, value in found.items()
    }


def _value(name: str, text: str) -> Any:
    if name in {"text", "url", "secret_token", "parse_mode", "action", "file_id", "photo", "document"}:
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _entities(text: str) -> list[Json]:
    found = [("mention", one) for one in re.finditer(r"@\w+", text)]
    found += [("bot_command", one) for one in re.finditer(r"^/\w+(@\w+)?", text)]
    return [
        {"type": kind, "offset": utf16_units(text[: one.start()]), "length": utf16_units(one[0])} for kind, one in found
    ]


def _plain(parameters: Json) -> str:
    """The text without its tags, if Telegram would take it."""
    text = parameters["text"]
    if "parse_mode" in parameters:
        if parameters["parse_mode"] != "HTML":
            raise Refused(400, "Bad Request: unsupported parse_mode")
        tags = _Tags()
        tags.feed(text)
        tags.close()
        if tags.open:
            raise Refused(400, f"Bad Request: can't parse entities: Can't find end tag of {tags.open[-1]!r}")
        text = "".join(tags.text)
    if not text.strip():
        raise Refused(400, "Bad Request: message text is empty")
    if utf16_units(text) > MAX_TEXT:
        raise Refused(400, "Bad Request: message is too long")
    return str(text.strip())


class _Tags(HTMLParser):
    KNOWN = frozenset(
        ["b", "strong", "i", "em", "u", "ins", "s", "strike", "del", "a", "code", "pre", "blockquote", "tg-spoiler"]
    )

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        wanted = {"a": {"href"}, "code": {"class"}}.get(tag, set())
        if tag not in self.KNOWN or names - wanted or (tag == "a" and not names):
            raise Refused(400, f'Bad Request: can\'t parse entities: Unsupported start tag "{tag}"')
        if tag == "blockquote" and tag in self.open:
            raise Refused(400, "Bad Request: can't parse entities: Nested blockquote")
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            raise Refused(400, f'Bad Request: can\'t parse entities: Unmatched end tag "{tag}"')

    def handle_data(self, data: str) -> None:
        if "<" in data:
            raise Refused(400, "Bad Request: can't parse entities: Unsupported start tag")
        self.text.append(data)

    def handle_entityref(self, name: str) -> None:
        self.text.append({"lt": "<", "gt": ">", "amp": "&", "quot": '"'}.get(name, f"&{name};"))

    def handle_charref(self, name: str) -> None:
        self.text.append(chr(int(name)))


# --- as a process ----------------------------------------------------------------------------------------------------


async def _by_hand(port: int, token: str) -> None:
    async with BotServer(token, port=port) as server:
        print(f"the Bot API is at {server.url}", flush=True)  # noqa: T201 - this is what it is for
        server.on_message = lambda message: print(f"bot> {message.get('text', message)}", flush=True)  # noqa: T201
        lines = anyio.wrap_file(sys.stdin)
        async with aclosing(lines):
            async for line in lines:
                server.say(line.rstrip("\n"))
        await anyio.sleep_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The Bot API on a local port; what is typed is said to the bot.")
    parser.add_argument("--port", type=int, default=8081)
    parser.add_argument("--token", default=TOKEN)
    options = parser.parse_args()
    anyio.run(_by_hand, options.port, options.token)
