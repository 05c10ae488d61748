"""Telegram: a bot, by long polling or by webhook, over python-telegram-bot's `Bot`.

Telegram keeps a message until it is confirmed, so Telegram is the queue: what waits here in memory is unconfirmed
there, and comes again after a crash. By long polling that holds until the answer was sent: a killed turn is taken up.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import anyio
import msgspec

from miniclaw_sessions.agent.events import ReplyFinished, TurnFinished, TurnSuspended
from miniclaw_sessions.agent.provider import TextDelta
from miniclaw_sessions.channels.allowed import Allowed, AllowSettings
from miniclaw_sessions.channels.base import (
    Accepted,
    Answered,
    Incoming,
    Last,
    Outgoing,
    Progress,
    WebhookReply,
    WebhookRequest,
    comes_again,
    meanwhile,
)
from miniclaw_sessions.channels.buttons import asked_in
from miniclaw_sessions.channels.commands import COMMANDS
from miniclaw_sessions.channels.splitting import split, utf16_units
from miniclaw_sessions.channels.telegram.buttons import approvals_in, buttons_for
from miniclaw_sessions.channels.telegram.exchanges import Album, Exchange, State
from miniclaw_sessions.channels.telegram.files import Files
from miniclaw_sessions.channels.telegram.html import telegram_html
from miniclaw_sessions.channels.telegram.reading import (
    Place,
    album_in,
    is_addressed,
    place_of,
    text_of,
    unseen_in,
)
from miniclaw_sessions.channels.unseen import MAX_FILE_BYTES, notice_of, with_notice
from miniclaw_sessions.clock import Clock, SystemClock, sleep_unless
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, Role, TextPart
from miniclaw_sessions.errors import ConfigError, Unreachable, to_install
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.secret import channel_secret

if TYPE_CHECKING:
    import telegram

log = get_logger(__name__)

MAX_TEXT = 4096
"""UTF-16 units of one message."""

MAX_UPDATES = 100
"""How many updates Telegram hands over before the first of them is confirmed."""

_POLL_S = 50
_LOOK_AGAIN_S = 1.0  # while something is unconfirmed, Telegram does not wait for what is new
_OUTAGE_S = 10.0
_WEBHOOK_PATIENCE_S = 25.0
_EDIT_EVERY_S = 1.0
_EDIT_EVERY_S_IN_GROUPS = 3.0  # a group takes 20 messages a minute
_READ_S = 5.0
_TYPING_EVERY_S = 4.0  # it is shown for five seconds
_BACKOFF_S = (1.0, 60.0)
_CROWDED_S = 10.0  # how long a message that waits for its turn may keep others from being heard
_MAY_BE_FORGOTTEN = "I am busy. If I do not answer this in a while, please send it again."
_KINDS = ["message", "edited_message", "callback_query"]

Fields = dict[str, Any]
T = TypeVar("T")


class TelegramSettings(AllowSettings, frozen=True, kw_only=True):
    """A Telegram bot.

    Attributes:
        token_file: file with the token that @BotFather gives. Empty: the systemd credential `NAME_token`, else the
            environment variable `NAME_BOT_TOKEN` (for the channel `telegram`, `TELEGRAM_BOT_TOKEN`).
        webhook_url: the https URL under which Telegram reaches `/channels/NAME` of this daemon; empty: long polling.
        stream: show an answer while it is written.
        max_image_bytes: how large an image may be; of a photograph a smaller version is taken, any other is left out,
            and the model gets a note. `sessions.max_message_bytes` must have room for a third more.
        max_file_bytes: how large a voice message, a sound, a PDF or a text may be; a larger one is only named.
        api_url: where the Bot API is served.
    """

    token_file: str = ""
    webhook_url: str = ""
    stream: bool = True
    max_image_bytes: int = 700_000
    max_file_bytes: int = MAX_FILE_BYTES
    api_url: str = "https://api.telegram.org"


class TelegramChannel:
    """See `channels.base.Channel`.

    Args:
        name: names its sessions.
        settings: the bot's.
        environ: where the token may be.
        clock: for waiting and pacing.

    Raises:
        ConfigError: there is no token, or python-telegram-bot is not installed.
    """

    Settings = TelegramSettings
    send_timeout_s = 600.0
    shows_twice = True

    def __init__(
        self,
        name: str,
        settings: TelegramSettings,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        os.environ.setdefault("PTB_TIMEDELTA", "true")  # the library's own switch; else it warns of each "retry after"
        # it would log what people say, where that arrives damaged
        logging.getLogger("telegram").setLevel(logging.CRITICAL + 1)
        try:
            import telegram  # noqa: PLC0415 - an extra, and slow to load

            from miniclaw_sessions.channels.telegram.replies import judging_request  # noqa: PLC0415 - loads the extra
        except ImportError:
            sentence = f"the channel telegram needs python-telegram-bot: {to_install('telegram')}"
            raise ConfigError(sentence) from None
        self.name = name
        self._settings = settings
        self._clock = clock or SystemClock()
        self._allowed = Allowed(name, settings)
        known = os.environ if environ is None else environ
        token = channel_secret(name, "token", settings.token_file, known, variable="BOT_TOKEN").reveal()
        url = settings.api_url.rstrip("/")
        self._bot = telegram.Bot(
            token,
            base_url=f"{url}/bot",
            base_file_url=f"{url}/file/bot",
            request=judging_request(token),
            get_updates_request=judging_request(token),
        )
        self._webhook_secret = hmac.new(token.encode(), b"webhook", hashlib.sha256).hexdigest()
        self._files = Files(self._bot, self._asked, settings.max_image_bytes, settings.max_file_bytes)
        self._exchanges: dict[int, Exchange] = {}
        self._of: dict[Incoming, Exchange] = {}
        self._albums: OrderedDict[tuple[int, str], Album] = OrderedDict()  # the newest
        self._changed = anyio.Event()
        self._posted: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        return f"<TelegramChannel {self.name}, {len(self._exchanges)} unconfirmed>"

    async def aclose(self) -> None:
        """Close its connections."""
        await self._bot.shutdown()

    # --- hearing -----------------------------------------------------------------------------------------------------

    async def receive(self) -> AsyncGenerator[Incoming, None]:
        """As `channels.base.Channel`.

        Raises:
            ConfigError: the token is none, or another program listens to the same bot.
            Unreachable: Telegram is not there, or breaks off.
        """
        from telegram import error  # noqa: PLC0415 - an extra, and slow to load

        from miniclaw_sessions.channels.telegram.replies import sentence_of  # noqa: PLC0415 - loads the extra

        try:
            await self._asked(self._bot.initialize)
            menu = [(word.removeprefix("/"), one.help) for word, one in COMMANDS.items() if one.help]
            await self._asked(partial(self._bot.set_my_commands, menu))
            async with aclosing(self._posts() if self._settings.webhook_url else self._polls()) as updates:
                async for fields in updates:
                    if (incoming := await self._heard(fields)) is not None:
                        yield incoming
        except (error.InvalidToken, error.EndPointNotFound):
            sentence = f"Telegram knows no bot with the token of the channel {self.name}; ask @BotFather for a new one"
            raise ConfigError(sentence) from None  # the library's own sentence shows the token
        except error.Conflict:
            raise ConfigError(
                f"another program asks for the messages of the bot @{self._bot.username}, and Telegram lets only one; "
                f"stop that one, or give the channel {self.name} a bot of its own"
            ) from None
        except error.BadRequest as refusal:
            raise ConfigError(f"Telegram refuses what the channel {self.name} asks: {refusal.message}") from None
        except error.TelegramError as failure:
            host = urlsplit(self._settings.api_url).hostname
            raise Unreachable(f"Telegram cannot be reached at {host}: {sentence_of(failure)}") from None

    async def _polls(self) -> AsyncGenerator[Fields, None]:
        """Ask for updates, and by that confirm the first ones, as far as each of them is over."""
        await self._asked(self._bot.delete_webhook)
        while True:
            self._changed = anyio.Event()
            confirmed = list(takewhile(self._is_confirmed, self._exchanges))
            seconds = 0 if len(confirmed) < len(self._exchanges) else _POLL_S
            wanted: Fields = {"limit": MAX_UPDATES, "timeout": seconds, "allowed_updates": _KINDS}
            if confirmed:
                wanted["offset"] = confirmed[-1] + 1
            for update_id in confirmed:
                self._exchanges[update_id].may_be_forgotten = True
            updates: list[Fields] = await self._call("GetUpdates", **wanted, read_timeout_s=seconds + 10.0)
            for fields in updates:
                self._noted(fields)  # before the first of them is read, which may take as long as its picture
            for fields in updates:
                yield fields
            for update_id in confirmed:
                del self._exchanges[update_id]
            await self._make_room()
            if self._exchanges:
                fails = any(one.message is None for one in self._exchanges.values())  # what comes again, comes slowly
                await sleep_unless(self._clock, _OUTAGE_S if fails else _LOOK_AGAIN_S, self._changed)

    def _is_confirmed(self, update_id: int) -> bool:
        # a slow answer must not keep all others from being heard
        exchange = self._exchanges[update_id]
        return exchange.state >= State.KEPT if self._is_crowded else exchange.is_over

    @property
    def _is_crowded(self) -> bool:
        """Whether Telegram hands over nothing more before something is confirmed."""
        return len(self._exchanges) >= MAX_UPDATES

    async def _make_room(self) -> None:
        """Where what waits behind a slow answer keeps all others from being heard: let Telegram forget the first of it.

        It is still answered in its turn, unless a crash comes first, and its sender gets a note.
        """
        from telegram.error import BadRequest, Forbidden  # noqa: PLC0415 - an extra, and slow to load

        first = next(iter(self._exchanges.values()), None)
        if not self._is_crowded or first is None or first.state is not State.HEARD or first.message is None:
            return
        if self._clock.monotonic() - first.heard_at < _CROWDED_S:
            return
        with suppress(BadRequest, Forbidden):  # the chat is unreachable
            await self._call("SendMessage", text=_MAY_BE_FORGOTTEN, **self._to(place_of(first.message), first))
        if first.state is State.HEARD:
            self._settle(first, State.KEPT)

    async def _posts(self) -> AsyncGenerator[Fields, None]:
        """Have updates posted to `webhook`."""
        post = partial(
            self._bot.set_webhook,
            self._settings.webhook_url,
            secret_token=self._webhook_secret,
            allowed_updates=_KINDS,
            max_connections=MAX_UPDATES,
        )
        await self._asked(post)
        while True:
            self._changed = anyio.Event()
            while self._posted:
                yield self._posted.pop(0)
            for update_id in [*takewhile(self._is_confirmed, self._exchanges)][:-MAX_UPDATES]:
                del self._exchanges[update_id]  # those of the last minutes may come twice
            await self._changed.wait()

    async def webhook(self, request: WebhookRequest) -> WebhookReply:
        """Take an update from Telegram, and confirm it when the store has it; till then it is delivered again."""
        given = request.headers.get("x-telegram-bot-api-secret-token", "")
        if not hmac.compare_digest(given.encode(), self._webhook_secret.encode()):
            return WebhookReply(403, b"the secret token is missing or wrong")
        try:
            fields = msgspec.json.decode(await request.body(), type=dict[str, Any])
            update_id = int(fields["update_id"])
        except (ValueError, TypeError, KeyError):
            return WebhookReply(400, b"this is not an update")
        exchange = self._noted({**fields, "update_id": update_id})
        if exchange.message is None:
            self._posted.append(fields)
            self._changed.set()
        with anyio.move_on_after(_WEBHOOK_PATIENCE_S):
            await exchange.settled.wait()
        return WebhookReply(503 if exchange.state is State.HEARD else 200)

    async def _heard(self, fields: Fields) -> Incoming | None:
        """What an update says to the bot; None: nothing, or it is under way already."""
        from telegram import Update  # noqa: PLC0415 - an extra, and slow to load

        exchange = self._noted(fields)
        if exchange.message is not None or exchange.state is State.OVER:
            return None
        try:
            update = Update.de_json(dict(fields), self._bot)
            message = update.effective_message
            if update.callback_query is not None:
                incoming = await self._pressed(update.callback_query, message)
            else:
                is_meant = message is not None and self._is_admitted(message)
                incoming = await self._incoming(message, exchange) if message is not None and is_meant else None
        except Exception as error:  # noqa: BLE001 - a new Telegram may send what the library does not know
            message = incoming = None
            kind = type(error).__name__
            log.warning("an update cannot be read", action="channel.unreadable", channel=self.name, error_type=kind)
        if incoming is None:
            self._settle(exchange, State.OVER)
        else:
            exchange.message, exchange.heard_at = message, self._clock.monotonic()
            self._of[incoming] = exchange
        if exchange.album is not None:
            exchange.album.is_admitted = exchange.album.is_admitted or incoming is not None
            exchange.album.change()
        return incoming

    def _noted(self, fields: Fields) -> Exchange:
        """What is known of an update, and of the album that it is of, before it is read."""
        exchange = self._exchanges.setdefault(int(fields["update_id"]), Exchange())
        if (found := album_in(fields)) is not None:
            album, message_id = found
            self._albums.setdefault(album, Album()).add(message_id, exchange)
            while len(self._albums) > MAX_UPDATES:
                self._albums.popitem(last=False)
        return exchange

    def _settle(self, exchange: Exchange, state: State) -> None:
        exchange.state = state
        exchange.settled.set()
        if state is not State.HEARD:  # else there is nothing to confirm, and a repeated message has time
            self._changed.set()

    # --- what is heard -----------------------------------------------------------------------------------------------

    def _is_admitted(self, message: telegram.Message) -> bool:
        sender = message.sender_chat or message.from_user
        return (
            sender is not None
            and not (message.from_user is sender and message.from_user.is_bot)
            and self._allowed.admits(
                user_id=str(sender.id),
                chat_id=str(message.chat.id),
                is_group=message.chat.type != "private",
                is_addressed=self._is_addressed(message),
            )
        )

    def _is_addressed(self, message: telegram.Message) -> bool:
        """Whether the bot is spoken to; of an album, in the words below its first picture."""
        album = self._albums.get((message.chat.id, message.media_group_id or ""))
        return is_addressed(self._bot, message) or (album is not None and album.is_admitted)

    async def _incoming(self, message: telegram.Message, exchange: Exchange) -> Incoming | None:
        files = await self._files.of(message)
        missed = [] if files else unseen_in(message)
        text = text_of(self._bot, message, missed)
        is_step = message.edit_date is not None and message.location is not None  # of a live location
        if is_step or not (text or files):
            return None  # a person has joined, a message was pinned
        content = tuple(part for part in (TextPart(text) if text else None, *files) if part is not None)
        sender = message.from_user
        said = Message(
            Role.USER,
            content if files else text,
            author=None if sender is None else str(sender.id),  # a name is changed, and shared
            name=(sender.username or sender.full_name) if sender and message.chat.type != "private" else None,
        )
        chat_id, message_id = str(place_of(message)), str(message.message_id)
        Place.of(chat_id)  # else nothing could be said there
        edited = message.edit_date
        album = exchange.album
        return Incoming(
            chat_id,
            said,
            message_id if edited is None else f"{message_id}.{edited.timestamp():.0f}",
            answer_again=not self._settings.webhook_url,  # else what comes again may be on its way at another gateway
            replaces=None if edited is None else message_id,
            is_addressed=message.chat.type == "private" or self._is_addressed(message),
            is_private=message.chat.type == "private",
            goes_on=None if album is None else partial(album.goes_on, message.message_id, self._clock),
            unseen=missed,
        )

    async def _pressed(self, press: telegram.CallbackQuery, question: telegram.Message | None) -> Incoming | None:
        """What a person has answered by a button."""
        from telegram.error import TelegramError  # noqa: PLC0415 - an extra, and slow to load

        with suppress(TelegramError):  # too late for that, and only an ornament
            await self._asked(press.answer)
        approvals, person = approvals_in(press), str(press.from_user.id)
        if question is None or approvals is None:
            return None
        is_private = question.chat.type == "private"
        chat_id = person if is_private else str(question.chat.id)
        if not self._allowed.admits(user_id=person, chat_id=chat_id, is_group=not is_private):
            return None
        return Incoming(
            str(place_of(question)),
            None,
            f"press.{press.id}",
            approvals=approvals,
            author=person,
            answer_again=not self._settings.webhook_url,
            is_private=is_private,
        )

    # --- sending -----------------------------------------------------------------------------------------------------

    async def send(self, chat_id: str, outgoing: Outgoing) -> None:
        """As `channels.base.Channel`; what no reply of Telegram's own confirms was not sent.

        Raises:
            Unreachable: Telegram refuses it, or is not there.
        """
        from miniclaw_sessions.channels.telegram.replies import unreachable  # noqa: PLC0415 - loads the extra

        with unreachable():
            await self._sent(chat_id, outgoing)

    async def announce(self, chat_id: str, text: str, key: str) -> None:  # noqa: ARG002 - Telegram takes none
        """As `channels.base.Channel`; raises as `send` does."""
        from miniclaw_sessions.channels.telegram.replies import unreachable  # noqa: PLC0415 - loads the extra

        exchange = Exchange()
        exchange.is_verbatim = True
        with unreachable():
            await self._show(Place.of(chat_id), exchange, text, insist=True)

    async def _sent(self, chat_id: str, outgoing: Outgoing) -> None:
        exchange = self._of.setdefault(outgoing.incoming, Exchange())
        match outgoing:
            case Accepted():
                exchange.shown_at = self._clock.monotonic()  # a quick answer is sent whole
                self._settle(exchange, State.KEPT)
            case Progress(event=TextDelta(text=text)) if self._settings.stream:
                exchange.text += text
                every = _EDIT_EVERY_S_IN_GROUPS if chat_id.startswith("-") else _EDIT_EVERY_S
                if self._clock.monotonic() - exchange.shown_at >= every:
                    text = with_notice(notice_of(outgoing.incoming.unseen), exchange.text)
                    await self._show(Place.of(chat_id), exchange, text, insist=False)
            case Progress(event=ReplyFinished(message=message)) if message.tool_calls:
                exchange.text = ""  # the next reply takes the place of what was said before the tools
            case Progress():
                pass
            case last:
                del self._of[outgoing.incoming]
                await self._end(Place.of(chat_id), exchange, last)

    async def _end(self, place: Place, exchange: Exchange, last: Last) -> None:
        """Send the final outcome; an interrupted or unsent one must come again, if it still can."""
        from telegram.error import BadRequest, Forbidden, TelegramError  # noqa: PLC0415 - an extra, and slow to load

        is_known = exchange in self._exchanges.values() and not exchange.may_be_forgotten
        is_kept = is_known and not self._settings.webhook_url  # by Telegram
        again = exchange.state is State.HEARD or is_kept
        try:
            if not (again and comes_again(last)):
                exchange.is_verbatim = not isinstance(last, Answered) or isinstance(last.event, TurnSuspended)
                exchange.buttons = buttons_for(asked_in(last))
                await self._show(place, exchange, last.text, insist=True)
                if last.incoming.approvals is not None and exchange.message is not None:
                    with suppress(TelegramError):  # where they stay, they decide about nothing
                        question_id = exchange.message.message_id
                        await self._call("EditMessageReplyMarkup", chat_id=place.chat_id, message_id=question_id)
                if isinstance(last, Answered) and isinstance(last.event, TurnFinished):
                    await self._send_images(place, exchange, last.event.message)
                again = False
            elif (text := meanwhile(last)) and not exchange.is_patient:
                exchange.is_patient = True
                with suppress(TelegramError):
                    await self._call("SendMessage", text=text, **self._to(place, exchange))
        except Exception as error:  # not when it is cut off, waiting for Telegram
            is_refused = isinstance(error, BadRequest | Forbidden)  # the bot was blocked, the chat is gone
            is_telegrams = isinstance(error, TelegramError)  # else it is the answer, and would fail each time
            again = again and not is_refused and (is_telegrams or exchange.state is State.HEARD)
            raise
        finally:
            self._settle(exchange, State.HEARD if again else State.OVER)
            if again:
                exchange.begin()

    async def _show(self, place: Place, exchange: Exchange, text: str, *, insist: bool) -> None:
        """Let the messages that show an answer say this: edit what is there, send what is not, delete what is left."""
        pieces = split(text, MAX_TEXT, utf16_units)
        for index, piece in enumerate(pieces):
            message_id, shown = exchange.shown[index] if index < len(exchange.shown) else (None, "")
            if piece != shown:
                buttons = exchange.buttons if index == len(pieces) - 1 else None
                put = await self._put(place, exchange, piece, message_id, insist=insist, reply_markup=buttons)
                exchange.shown[index : index + 1] = [(put, piece)]
        while len(exchange.shown) > len(pieces):
            message_id, _ = exchange.shown.pop()
            await self._call("DeleteMessage", chat_id=place.chat_id, message_id=message_id, insist=insist)
        exchange.shown_at = self._clock.monotonic()

    async def _put(
        self, place: Place, exchange: Exchange, piece: str, message_id: int | None, *, insist: bool, **fields: Any
    ) -> int:
        """Send or edit a message, with tags, else as it is; its id."""
        from telegram.error import BadRequest  # noqa: PLC0415 - an extra, and slow to load

        forms = [(piece, None)] if exchange.is_verbatim else [(telegram_html(piece), "HTML"), (piece, None)]
        for text, mode in forms:
            try:
                if message_id is None:
                    to = self._to(place, exchange)
                    sent = await self._call("SendMessage", text=text, parse_mode=mode, **to, **fields, insist=insist)
                    return int(sent["message_id"])
                shown = {"chat_id": place.chat_id, "message_id": message_id}
                await self._call("EditMessageText", text=text, parse_mode=mode, **shown, **fields, insist=insist)
            except BadRequest as error:
                if "not modified" in error.message:
                    return message_id or 0
                if mode is None and message_id is None:
                    raise
            else:
                return message_id
        return await self._put(place, exchange, piece, None, insist=insist, **fields)  # a person has deleted it

    async def _send_images(self, place: Place, exchange: Exchange, message: Message) -> None:
        """Send the images of an answer; never a text in place of one, which the library takes for a file's path."""
        from telegram import InputFile  # noqa: PLC0415 - an extra, and slow to load
        from telegram.error import BadRequest  # noqa: PLC0415 - an extra, and slow to load

        for part in message.content if isinstance(message.content, tuple) else ():
            to = self._to(place, exchange)
            if isinstance(part, ImagePart) and part.data:
                image = InputFile(base64.b64decode(part.data))
                try:
                    await self._call("SendPhoto", photo=image, **to, insist=True)
                except BadRequest:  # too large or too long for a photograph
                    await self._call("SendDocument", document=image, **to, insist=True)
            elif isinstance(part, ImagePart) and part.url and re.match("https?://", part.url):
                await self._call("SendMessage", text=part.url, **to, insist=True)

    @staticmethod
    def _to(place: Place, exchange: Exchange) -> Fields:
        """Where a message goes; in a group the first one shows what it answers."""
        answers = None
        if exchange.message is not None and exchange.message.chat.type != "private" and not exchange.shown:
            answers = {"message_id": exchange.message.message_id, "allow_sending_without_reply": True}
        return {"chat_id": place.chat_id, "message_thread_id": place.topic_id, "reply_parameters": answers}

    @asynccontextmanager
    async def typing(self, chat_id: str) -> AsyncIterator[None]:
        """As `channels.base.Channel`."""
        place = Place.of(chat_id)

        async def keep() -> None:
            while True:
                await self._bot.send_chat_action(place.chat_id, "typing", message_thread_id=place.topic_id)
                await self._clock.sleep(_TYPING_EVERY_S)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep)
            yield
            tasks.cancel_scope.cancel()

    async def _call(self, method: str, *, insist: bool = False, read_timeout_s: float = _READ_S, **fields: Any) -> Any:
        """Call a method by its name, which begins with a capital; what Telegram itself says that it has done.

        In capitals, which are all the same to Telegram, the library leaves the result as it is: it would read all of
        it, and fail where Telegram has something new.
        """
        call = partial(self._bot.do_api_request, method, api_kwargs=fields, read_timeout=read_timeout_s)
        return await self._asked(call, insist=insist)

    async def _asked(self, call: Callable[[], Awaitable[T]], *, insist: bool = False) -> T:
        """Call Telegram, as late as it says; with `insist`, again and again until its own reply confirms it."""
        from telegram.error import BadRequest, NetworkError, RetryAfter  # noqa: PLC0415 - an extra, and slow to load

        from miniclaw_sessions.channels.telegram.replies import sentence_of  # noqa: PLC0415 - loads the extra

        delay, longest = _BACKOFF_S
        while True:
            try:
                return await call()
            except RetryAfter as error:
                pause = msgspec.convert(error.retry_after, timedelta).total_seconds()
            except BadRequest:  # which is a NetworkError to the library
                raise
            except NetworkError as error:
                if not insist:
                    raise
                if delay == _BACKOFF_S[0]:
                    why = {"channel": self.name, "detail": sentence_of(error)}
                    log.warning("what Telegram does not confirm is sent again", action="channel.unconfirmed", **why)
                pause, delay = delay, min(2 * delay, longest)
            await self._clock.sleep(pause)
