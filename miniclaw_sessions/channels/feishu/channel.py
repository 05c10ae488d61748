"""The channel `feishu`: a bot on Feishu or Lark, which hears by the long connection and speaks by HTTP.

Feishu is the queue. It delivers an event again that it was not answered within three seconds: 15 seconds, 5 minutes, an
hour and 6 hours later. So an event is answered when its message was answered, and not before: what a crash
interrupts is delivered again, and taken up where it was. A message that takes longer than three seconds is delivered
once more for that, and is then known. An answer has an id that is made of its question and of its text, under which
Feishu takes it once within an hour; what it has taken is noted, too (`channels.delivered`), for what comes later.

Feishu's own library for Python is not used. It loads 11,000 modules, which takes 6 seconds and 170 MB. Its client owns
the event loop that it finds when it is imported, has no end, answers an event when a function returns that cannot wait,
and logs the address of the connection with its key.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import anyio
import msgspec

from miniclaw_sessions.channels.addresses import check_address
from miniclaw_sessions.channels.allowed import Allowed, AllowSettings
from miniclaw_sessions.channels.base import Accepted, Incoming, Last, Outgoing, comes_again, meanwhile
from miniclaw_sessions.channels.buttons import asked_in
from miniclaw_sessions.channels.feishu.posts import (
    MAX_BYTES,
    MAX_QUESTION_BYTES,
    Question,
    agrees,
    answered,
    asking,
    post,
    pressed,
    size,
)
from miniclaw_sessions.channels.feishu.reading import (
    MESSAGE,
    PRESS,
    Event,
    MessageEvent,
    Place,
    PressEvent,
    Said,
    Sent,
    said_in,
)
from miniclaw_sessions.channels.feishu.replies import Refused, Request
from miniclaw_sessions.channels.markdown import images_in, model_message
from miniclaw_sessions.channels.splitting import split
from miniclaw_sessions.channels.unseen import MAX_FILE_BYTES, Unseen, file_in, unseen, with_unseen
from miniclaw_sessions.clock import Clock, SystemClock, derived_id
from miniclaw_sessions.config.settings import Bytes
from miniclaw_sessions.core.protocol.images import image_of
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, Part, TextPart
from miniclaw_sessions.errors import ConfigError, Unreachable, to_install
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.secret import channel_secret

if TYPE_CHECKING:
    from miniclaw_sessions.channels.feishu.connection import Heard

log = get_logger(__name__)

_MESSAGES = "/open-apis/im/v1/messages"
_KNOWN = 10_000  # messages that are over, and not answered when they are delivered once more
_DOWNLOAD_S = 30.0  # then the others' messages have waited long enough
_RECONNECT_S = 1.0


class FeishuSettings(AllowSettings, frozen=True, kw_only=True):
    """An app with a bot. `allow` names people by their open_id, such as ou_1a2b, and chats by an id such as oc_3c4d.

    Attributes:
        app_id: the app's id, such as cli_a1b2c3.
        secret_file: file with the app's secret; empty: the systemd credential `NAME_secret`, else the environment
            variable `NAME_APP_SECRET`, such as FEISHU_APP_SECRET.
        api_url: where the interface is: https://open.feishu.cn, and for Lark https://open.larksuite.com.
        max_image_bytes: how large the images of a message may be together; `sessions.max_message_bytes` must have room
            for a third more.
        max_file_bytes: how large a voice message, a sound, a PDF or a text may be; a larger one is only named.
    """

    app_id: str = ""
    secret_file: str = ""
    api_url: str = "https://open.feishu.cn"
    max_image_bytes: Bytes = 700_000
    max_file_bytes: Bytes = MAX_FILE_BYTES


class _Card(NamedTuple):
    """A message that is a card, and what it asks."""

    message_id: str
    question: Question


class _Exchange:
    """A message, or a button that was pressed, until its sender has what comes of it.

    Attributes:
        key: the id of what was said.
        heard: the frames that brought it and have no reply yet.
        is_begun: whether it was handed over.
        is_kept: whether the store has it.
        is_over: whether its sender has what comes of it, or nothing does.
        place: where it was said.
        answers: the id of the message that is answered, where others read along; empty: the chat itself.
        answer: that of the button that was pressed; empty: it is a message.
        card: the question that it answers, or that it puts an end to; None: there was none.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.heard: list[Heard] = []
        self.is_begun = False
        self.is_kept = False
        self.is_over = False
        self.place = Place("")
        self.answers = ""
        self.answer = ""
        self.card: _Card | None = None


class FeishuChannel:
    """See `channels.base.Channel`.

    Args:
        name: of the channel.
        settings: the app.
        environ: where the secret may be.
        clock: for waiting.

    Raises:
        ConfigError: the settings lack something, or aiohttp is not installed.
    """

    Settings = FeishuSettings
    send_timeout_s = 600.0
    shows_twice = True

    def __init__(
        self,
        name: str,
        settings: FeishuSettings,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        try:
            from miniclaw_sessions.channels.feishu.calls import Calls  # noqa: PLC0415 - loads the extra
        except ImportError as error:
            raise ConfigError(f"the channel `feishu` needs {to_install('feishu')}") from error
        if not settings.app_id:
            raise ConfigError(f"channels.{name}.app_id is empty; set it to the app's id, such as cli_a1b2c3")
        check_address(f"channels.{name}.api_url", settings.api_url)
        logging.getLogger("aiohttp").setLevel(logging.CRITICAL + 1)  # an address that it may show has a key in it
        self.name = name
        self._settings = settings
        self._clock = clock or SystemClock()
        self._allowed = Allowed(name, settings)
        known = os.environ if environ is None else environ
        secret = channel_secret(name, "secret", settings.secret_file, known, variable="APP_SECRET")
        self._calls = Calls(settings.api_url.rstrip("/"), settings.app_id, secret, name, self._clock)
        self._bot_id = ""
        self._exchanges: OrderedDict[str, _Exchange] = OrderedDict()
        self._asked: dict[str, _Card] = {}  # the open questions, by their chats
        self._again: list[Incoming] = []  # handed over once more with what comes next

    async def aclose(self) -> None:
        """Close the connections."""
        await self._calls.aclose()

    def typing(self, chat_id: str) -> AbstractAsyncContextManager[None]:
        """Feishu has no sign of typing for bots."""
        del chat_id
        return nullcontext()

    # --- hearing -----------------------------------------------------------------------------------------------------

    async def receive(self) -> AsyncGenerator[Incoming, None]:
        """As `channels.base.Channel`.

        Raises:
            ConfigError: Feishu knows no such app, or it has no bot.
            Unreachable: Feishu is not there, or breaks off.
        """
        from miniclaw_sessions.channels.feishu.connection import events  # noqa: PLC0415 - loads the extra

        self._bot_id = await self._calls.bot_id()
        while True:
            async with aclosing(events(self._calls)) as coming:
                async for heard in coming:
                    if heard is not None and (incoming := await self._incoming(heard)) is not None:
                        yield incoming
                    again, self._again = self._again, []
                    for incoming in again:
                        yield incoming
            await self._clock.sleep(self._clock.jitter(_RECONNECT_S))

    async def _incoming(self, heard: Heard) -> Incoming | None:
        """What an event says to the bot; None: nothing, or it is under way already."""
        try:
            event = msgspec.json.decode(heard.frame.payload, type=Event)
            if event.header.event_type == MESSAGE:
                return await self._message(msgspec.json.decode(event.event, type=MessageEvent), heard)
            if event.header.event_type == PRESS:
                return await self._press(msgspec.json.decode(event.event, type=PressEvent), heard)
        except (ConfigError, Unreachable):  # it comes again
            raise
        except Exception as error:  # noqa: BLE001 - a later Feishu may send anything
            kind = type(error).__name__
            log.warning("an event cannot be read", action="channel.unreadable", channel=self.name, error_type=kind)
        await heard.reply()
        return None

    def _exchange(self, key: str, heard: Heard) -> _Exchange:
        """What is known of a message that has come, perhaps not for the first time."""
        exchange = self._exchanges.setdefault(key, _Exchange(key))
        exchange.heard.append(heard)
        while len(self._exchanges) > _KNOWN and next(iter(self._exchanges.values())).is_over:
            self._exchanges.popitem(last=False)
        return exchange

    async def _message(self, event: MessageEvent, heard: Heard) -> Incoming | None:
        message = event.message
        exchange = self._exchange(message.message_id, heard)
        if exchange.is_begun:
            if exchange.is_over:
                await self._confirm(exchange)
            return None
        incoming = None
        try:
            is_addressed = await self._is_addressed(event)
            if self._is_admitted(event, is_addressed=is_addressed):
                incoming = await self._read(event, exchange, is_addressed=is_addressed)
        finally:
            if incoming is None:
                del self._exchanges[exchange.key]
        if incoming is None:
            await self._confirm(exchange)
        exchange.is_begun = True
        return incoming

    def _is_admitted(self, event: MessageEvent, *, is_addressed: bool) -> bool:
        """Whether an allowed person speaks, and to the bot where others read along."""
        message, user_id = event.message, event.sender.sender_id.open_id
        return (
            event.sender.sender_type == "user"
            and user_id is not None
            and self._allowed.admits(
                user_id=user_id, chat_id=message.chat_id, is_group=message.is_group, is_addressed=is_addressed
            )
        )

    async def _is_addressed(self, event: MessageEvent) -> bool:
        """Whether the bot is spoken to: it is mentioned, or answered, which is only looked at for allowed people."""
        message = event.message
        if not message.is_group or message.mentions_bot(self._bot_id):
            return True
        is_known = self._allowed.knows(user_id=event.sender.sender_id.open_id or "", chat_id=message.chat_id)
        if not message.parent_id or not is_known or self._settings.groups == "none":
            return False
        request = Request("look at what is answered", "GET", f"{_MESSAGES}/{message.parent_id}")
        try:
            document = await self._calls.call(request)
        except Unreachable as error:  # raised, it would stop all chats at this message for as long as it lasts
            why = {"channel": self.name, "detail": str(error)}
            log.warning("a reply is not taken for one to the bot", action="channel.unconfirmed", **why)
            return False
        match document:
            case {"data": {"items": [{"sender": {"id": sender}}, *_]}}:
                return bool(sender == self._settings.app_id)
        return False

    async def _read(self, event: MessageEvent, exchange: _Exchange, *, is_addressed: bool) -> Incoming | None:
        message = event.message
        said = said_in(message, self._bot_id)
        if said is None:
            return None
        parts, missed = await self._parts(message, said)
        text = with_unseen(missed, said.text)
        if not (text or parts):
            return None
        exchange.place = Place(message.chat_id, message.thread_id or "")
        exchange.answers = message.message_id if message.is_group or exchange.place.thread else ""
        content = (*([TextPart(text)] if text else []), *parts) if parts else text
        return Incoming(
            str(exchange.place),
            msgspec.structs.replace(Message.user(content), author=event.sender.sender_id.open_id),
            exchange.key,
            answer_again=True,
            is_addressed=is_addressed,
            unseen=missed,
            is_private=not message.is_group,
        )

    async def _parts(self, message: Sent, said: Said) -> tuple[list[Part], list[Unseen]]:
        """The pictures of a message and its file, as far as they can be kept; and what no model sees."""
        parts: list[Part] = []
        missed: list[Unseen] = []
        left = self._settings.max_image_bytes
        deadline = anyio.current_time() + _DOWNLOAD_S  # of all of them: each by itself could take as long
        for key in said.images:
            data = await self._content(message, key, "image", left, deadline)
            left -= len(data)
            if (image := image_of(data)) is None:
                missed.append(unseen("picture"))
            else:
                parts.append(image)
        if said.file is not None:
            key, name = said.file
            data = await self._content(message, key, "file", self._settings.max_file_bytes, deadline)
            image = image_of(data) if len(data) <= self._settings.max_image_bytes else None
            kept = image or file_in(name, data, self._settings.max_file_bytes)
            if kept is not None:
                return [kept], []
        return parts, [*missed, *said.unseen]

    async def _content(self, message: Sent, key: str, kind: str, most: int, deadline: float) -> bytes:
        """The bytes of a picture or file; none where there are more than that, or they cannot be had in time."""
        path = f"{_MESSAGES}/{message.message_id}/resources/{quote(key, safe='')}"
        with anyio.CancelScope(deadline=deadline):
            return await self._calls.file(Request("give a file", "GET", path, {"type": kind}, most=most))
        return b""

    async def _press(self, event: PressEvent, heard: Heard) -> Incoming | None:
        """The yes or no of a button; it is not delivered again, but may be pressed again."""
        found, context, user_id = pressed(event.action.value), event.context, event.operator.open_id or ""
        if found is None or Place.of(found[0].chat_id).chat != context.open_chat_id:
            await heard.reply()
            return None
        if not self._allowed.admits(user_id=user_id, chat_id=context.open_chat_id):
            await heard.reply({"toast": {"type": "error", "content": "You are not among those who may answer this."}})
            return None
        question, answer = found
        exchange = self._exchange(f"{context.open_message_id}.{answer}", heard)
        if exchange.is_begun:
            if exchange.is_kept or exchange.is_over:
                await self._confirm(exchange)
            return None
        exchange.is_begun = True
        exchange.place = Place.of(question.chat_id)
        exchange.answers = context.open_message_id if question.is_reply else ""
        exchange.card, exchange.answer = _Card(context.open_message_id, question), answer
        agreed = dict.fromkeys(question.calls, agrees(answer))
        return Incoming(question.chat_id, None, exchange.key, approvals=agreed, author=user_id, answer_again=True)

    async def _confirm(self, exchange: _Exchange) -> None:
        """Answer the events that brought a message; the program of a person who pressed a button shows the answer."""
        body = None
        if exchange.answer and exchange.card is not None and exchange.is_kept:
            card = answered(exchange.card.question, exchange.answer, is_over=exchange.is_over)
            body = {
                "toast": {"type": "success", "content": f"Answered: {exchange.answer}."},
                "card": {"type": "raw", "data": card},
            }
        waiting, exchange.heard = exchange.heard, []
        for heard in waiting:
            await heard.reply(body)

    # --- answering ---------------------------------------------------------------------------------------------------

    async def send(self, chat_id: str, outgoing: Outgoing) -> None:
        """As `channels.base.Channel`; what no reply of Feishu's own confirms was not sent.

        Raises:
            Unreachable: Feishu does not take it now.
        """
        exchange = self._exchanges[outgoing.incoming.message_id or ""]
        if isinstance(outgoing, Accepted):
            exchange.is_kept = True
            asked = self._asked.pop(chat_id, None)  # a turn has begun, so it stands no longer
            if exchange.answer:
                await self._confirm(exchange)
            else:
                exchange.card = asked
        elif isinstance(outgoing, Last):
            await self._end(exchange, outgoing)

    async def announce(self, chat_id: str, text: str, key: str) -> None:
        """As `channels.base.Channel`; in a thread Feishu lets a program only answer.

        Raises:
            Unreachable: Feishu does not take it, or it is for a thread.
        """
        exchange = _Exchange(key)
        exchange.place = Place.of(chat_id)
        if exchange.place.thread:
            raise Unreachable("Feishu takes only answers in a thread")
        await self._send(exchange, "announced", "post", post(text, is_markdown=False))

    async def _end(self, exchange: _Exchange, last: Last) -> None:
        """Send the final outcome; where that cannot be done now, hand the message over again a little later."""
        is_done = False
        try:
            if not comes_again(last):
                await self._deliver(exchange, last)
                is_done = True
            elif (text := meanwhile(last)) and not exchange.answer:  # a button has to be pressed again
                await self._send(exchange, "meanwhile", "post", post(text, is_markdown=False))  # however often, once
        except Refused as error:
            is_done = error.is_final
            if not is_done:
                raise
            log.error("an answer is refused for good", action="feishu.refused", channel=self.name, code=error.code)
        except Unreachable:
            raise
        except Exception:  # something is wrong with the answer itself, and would be each time
            is_done = True
            raise
        finally:
            if is_done:
                exchange.is_over = True
                await self._confirm(exchange)
            elif exchange.answer:
                del self._exchanges[exchange.key]
            else:
                self._again.append(msgspec.structs.replace(last.incoming))
        await self._close_card(exchange)

    async def _deliver(self, exchange: _Exchange, last: Last) -> None:
        said, calls = model_message(last), tuple(asked_in(last))
        digest = hashlib.sha256(last.text.encode()).hexdigest()[:16]  # another answer to the same is not taken for it
        pieces = split(last.text, MAX_QUESTION_BYTES if calls else MAX_BYTES, size)
        for number, piece in enumerate(pieces, 1):
            part = f"{digest}.{number}"
            if calls and number == len(pieces):
                question = Question(str(exchange.place), bool(exchange.answers), calls, piece)
                message_id = await self._send(exchange, part, "interactive", asking(question))
                self._asked[question.chat_id] = _Card(message_id, question)
            elif said is None:
                await self._send(exchange, part, "post", post(piece, is_markdown=False))
            else:
                await self._send_markdown(exchange, part, piece)
        for number, image in enumerate(images_in(said)):
            await self._send_image(exchange, f"{digest}.image{number}", image)

    async def _send_markdown(self, exchange: _Exchange, part: str, text: str) -> None:
        """Send a piece of the model's answer; as it stands, where Feishu does not take its Markdown."""
        try:
            await self._send(exchange, part, "post", post(text, is_markdown=True))
        except Refused as error:
            if not error.is_final:
                raise
            await self._send(exchange, f"{part}.plain", "post", post(text, is_markdown=False))

    async def _send_image(self, exchange: _Exchange, part: str, image: ImagePart) -> None:
        form: dict[str, str | bytes] = {"image_type": "message", "image": base64.b64decode(image.data or "")}
        request = Request("take an image", "POST", "/open-apis/im/v1/images", form=form)
        match await self._calls.call(request, insist=True):
            case {"data": {"image_key": str(key)}}:
                await self._send(exchange, part, "image", {"image_key": key})
            case _:
                raise Unreachable("Feishu's reply to an image lacks its key")

    async def _send(self, exchange: _Exchange, part: str, kind: str, content: dict[str, Any]) -> str:
        """Send a message, in the thread of what it answers; Feishu takes each part of an answer once. Its id."""
        body: dict[str, Any] = {
            "msg_type": kind,
            "content": msgspec.json.encode(content).decode(),
            "uuid": derived_id(f"{exchange.key}.{part}"),
        }
        place, path, query = exchange.place, _MESSAGES, None
        if exchange.answers:
            path, body["reply_in_thread"] = f"{_MESSAGES}/{exchange.answers}/reply", bool(place.thread)
        else:
            query, body["receive_id"] = {"receive_id_type": "chat_id"}, place.chat
        match await self._calls.call(Request("send an answer", "POST", path, query, body), insist=True):
            case {"data": {"message_id": str(message_id)}} if message_id:
                return message_id
        raise Unreachable("Feishu's reply to an answer lacks its id")

    async def _close_card(self, exchange: _Exchange) -> None:
        """Show in the card that its question stands no longer."""
        if exchange.card is None or not exchange.is_over:
            return
        message_id, question = exchange.card
        answer = exchange.answer if exchange.is_kept else ""
        content = msgspec.json.encode(answered(question, answer, is_over=True)).decode()
        request = Request("change a card", "PATCH", f"{_MESSAGES}/{message_id}", json={"content": content})
        try:
            await self._calls.call(request)
        except Unreachable as error:  # a button of it that is pressed has no effect
            why = {"channel": self.name, "detail": str(error)}
            log.warning("a card keeps its buttons", action="channel.unconfirmed", **why)
