"""WhatsApp: one number, over Meta's Cloud API; what people write is posted to `/channels/NAME` of the daemon.

Meta posts a message again until it is taken, for a day and a half at least, so Meta is the queue: a post is taken when
each of its messages was answered. What waits here in memory is not taken yet, and comes again after a crash. A post is
held for a while, then refused, and the next one asks how far its messages are.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import anyio
import msgspec

from miniclaw_sessions.channels.addresses import check_address
from miniclaw_sessions.channels.allowed import Allowed, AllowSettings
from miniclaw_sessions.channels.base import (
    Incoming,
    Last,
    Outgoing,
    WebhookReply,
    WebhookRequest,
    comes_again,
    meanwhile,
)
from miniclaw_sessions.channels.commands import is_stop
from miniclaw_sessions.channels.own_chats import OwnChats
from miniclaw_sessions.channels.unseen import MAX_FILE_BYTES, Unseen, file_in, with_unseen
from miniclaw_sessions.channels.waiting import take_next
from miniclaw_sessions.channels.whatsapp.exchanges import Exchange, Outbound, forget
from miniclaw_sessions.channels.whatsapp.graph import (
    LIMITS,
    TRANSIENT,
    WINDOW_CLOSED,
    Done,
    GraphClient,
    Number,
    Place,
    Refused,
    Sent,
    Unconfirmed,
    Uploaded,
)
from miniclaw_sessions.channels.whatsapp.messages import (
    Fields,
    address_of,
    approvals_of,
    is_group,
    literal_messages,
    picture_message,
    pieces_of,
    template_message,
    text_message,
)
from miniclaw_sessions.channels.whatsapp.reading import (
    Media,
    Said,
    Status,
    digits,
    is_addressed,
    name_of,
    read,
    text_of,
    unseen_in,
    values_for,
)
from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.config.settings import Bytes, show_value
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, Part, Role, TextPart
from miniclaw_sessions.errors import ConfigError, Unreachable, to_install
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.secret import channel_secret

log = get_logger(__name__)

_POST_PATIENCE_S = 10.0
_DOWNLOAD_S = 20.0  # then the others' messages have waited long enough
_TYPING_EVERY_S = 20.0  # it is shown for 25 seconds
_ANSWERED_WITHIN = timedelta(hours=24)
_HELD = 20  # messages to a person that wait until something is heard again
_RESENT = 3  # times at most
_FETCHES = 3  # of a file, each with a post of its own; then it is said to be unseen


class WhatsAppSettings(AllowSettings, frozen=True, kw_only=True):
    """A number of the WhatsApp Business Platform. `allow` names people by their numbers, such as +491701234567.

    Attributes:
        phone_number_id: Meta's id of the number, as the App Dashboard shows it beside the number.
        token_file: file with the access token; empty: the systemd credential `NAME_token`, else the environment
            variable `NAME_TOKEN`, such as WHATSAPP_TOKEN.
        app_secret_file: file with the app's secret, with which Meta signs what it posts; empty: the credential
            `NAME_app_secret`, else the variable `NAME_APP_SECRET`.
        verify_token_file: file with the text that you choose and enter in the App Dashboard as "Verify token"; empty:
            the credential `NAME_verify_token`, else the variable `NAME_VERIFY_TOKEN`.
        template: name of an approved template with one variable in its body, which is sent in place of an answer for
            which it is too late, with the answer's beginning; empty: the answer waits for the person's next message.
        template_language: the template's language, such as `en_US`.
        max_image_bytes: how large a picture may be; `sessions.max_message_bytes` must have room for a third more.
        max_file_bytes: how large a voice message, a sound, a PDF or a text may be; a larger one is only named.
        api_url: the Graph API, with its version.
    """

    phone_number_id: str = ""
    token_file: str = ""
    app_secret_file: str = ""
    verify_token_file: str = ""
    template: str = ""
    template_language: str = "en"
    max_image_bytes: Bytes = 700_000
    max_file_bytes: Bytes = MAX_FILE_BYTES
    api_url: str = "https://graph.facebook.com/v24.0"


class WhatsAppChannel:
    """See `channels.base.Channel`.

    Args:
        name: names its sessions.
        settings: the number's.
        environ: where the secrets may be.
        clock: for waiting.

    Raises:
        ConfigError: the settings lack something, or httpx2 is not installed.
    """

    Settings = WhatsAppSettings
    send_timeout_s = 600.0
    shows_twice = True

    def __init__(
        self,
        name: str,
        settings: WhatsAppSettings,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        try:
            import httpx2  # noqa: F401, PLC0415 - found out now, and not with the first message
            import markdown_it  # noqa: F401, PLC0415 - same

        except ImportError:
            raise ConfigError(f"the channel whatsapp needs httpx2: {to_install('whatsapp')}") from None
        _check(name, settings)
        known = os.environ if environ is None else environ
        token = channel_secret(name, "token", settings.token_file, known)
        self.name = name
        self._settings = settings
        self._clock = clock or SystemClock()
        allowed = tuple(digits(str(one)) for one in settings.allow)
        self._allowed = Allowed(name, msgspec.structs.replace(settings, allow=allowed))
        self._app_secret = channel_secret(name, "app_secret", settings.app_secret_file, known)
        self._verify_token = channel_secret(name, "verify_token", settings.verify_token_file, known)
        self._graph = GraphClient(name, settings.api_url.rstrip("/"), token, self._clock)
        self._chats: OwnChats | None = None
        self._number = ""
        self._is_listening = False
        self._changed = anyio.Event()
        self._posted: dict[str, Exchange] = {}  # in order, by their ids
        self._exchanges: OrderedDict[str, Exchange] = OrderedDict()
        self._of: dict[Incoming, Exchange] = {}
        self._newest: OrderedDict[str, str] = OrderedDict()  # the message of each chat that is shown to be read
        self._outbound: OrderedDict[str, Outbound] = OrderedDict()
        self._held: OrderedDict[str, list[Fields]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<WhatsAppChannel {self.name}, {sum(one.is_under_way for one in self._exchanges.values())} under way>"

    def attach(self, chats: OwnChats) -> None:
        """As `channels.base.Channel`."""
        self._chats = chats

    async def aclose(self) -> None:
        """Close the connections."""
        await self._graph.aclose()

    # --- what Meta posts ---------------------------------------------------------------------------------------------

    async def webhook(self, request: WebhookRequest) -> WebhookReply:
        """Show Meta that the address is ours, or take what it posts, when all of that is done."""
        if request.method == "GET":
            return self._verified(request.query)
        signature = request.headers.get("x-hub-signature-256", "")
        if request.method != "POST" or not re.fullmatch(r"sha256=[0-9a-f]{64}", signature):
            return WebhookReply(403, b"this is not signed by Meta")
        if not self._is_listening:
            return WebhookReply(503, b"the bot is not listening now")
        body = await request.body()
        expected = hmac.new(self._app_secret.reveal().encode(), body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(signature, f"sha256={expected}"):
            return WebhookReply(403, b"this is not signed with the secret of the app")
        return WebhookReply(200 if await self._is_taken(body) else 503)

    def _verified(self, query: Mapping[str, str]) -> WebhookReply:
        given = query.get("hub.verify_token", "").encode()
        is_known = hmac.compare_digest(given, self._verify_token.reveal().encode())
        if query.get("hub.mode") != "subscribe" or not is_known:
            return WebhookReply(403, b"the verify token is another one")
        return WebhookReply(200, query.get("hub.challenge", "").encode())

    async def _is_taken(self, body: bytes) -> bool:
        """Whether Meta may forget what it has posted."""
        exchanges: list[Exchange] = []
        statuses: list[Fields] = []
        try:
            for value in values_for(self._settings.phone_number_id, body):
                noted = [self._noted(value.read(fields)) for fields in value.messages]
                exchanges += [one for one in noted if one is not None]
                statuses += value.statuses
        except ValueError as error:
            self._log_unreadable(error)  # the same comes again, and is as damaged
        self._changed.set()
        are_done = [await self._is_done_with(fields) for fields in statuses]
        with anyio.move_on_after(_POST_PATIENCE_S):
            for exchange in exchanges:
                await exchange.settled.wait()
        return all(are_done) and all(one.is_over for one in exchanges)

    def _noted(self, said: Said | None) -> Exchange | None:
        """What is known of a message; None: it is none."""
        if said is None or not said.is_message:
            if said is None:
                self._log_unreadable(ValueError("it is of no known shape"))
            return None
        exchange = self._exchanges.get(said.id)
        if exchange is None:
            exchange = self._exchanges[said.id] = self._posted[said.id] = Exchange(said)
        elif not (exchange.is_over or exchange.is_under_way):
            exchange.begin()
            self._posted[said.id] = exchange
        forget(self._exchanges, lambda one: one.is_over)
        return exchange

    def _log_unreadable(self, error: Exception) -> None:
        kind = type(error).__name__
        log.warning(
            "what Meta has posted cannot be read", action="channel.unreadable", channel=self.name, error_type=kind
        )

    # --- hearing -----------------------------------------------------------------------------------------------------

    async def receive(self) -> AsyncGenerator[Incoming, None]:
        """As `channels.base.Channel`.

        Raises:
            ConfigError: Meta does not know the number, or does not take the token.
            Unreachable: Meta is not there.
        """
        number_id = self._settings.phone_number_id
        try:
            fields = {"fields": "display_phone_number"}
            number = await self._graph.ask("GET", number_id, Number, params=fields)
        except Refused as refusal:
            what = "the token" if refusal.is_for_now else f"the phone_number_id {number_id}"
            raise ConfigError(
                f"Meta refuses {what} of the channel {self.name} with its error {refusal.code}; look at WhatsApp > API "
                "Setup in the App Dashboard"
            ) from None
        self._number = digits(number.display_phone_number)
        self._is_listening = True
        try:
            if self._chats is not None:  # Meta may have given up what a crash has interrupted
                async for left in self._chats.left_behind(self._clock.now() - _ANSWERED_WITHIN):
                    yield left
            while True:
                self._changed = anyio.Event()
                while (exchange := self._next()) is not None:
                    if (incoming := await self._heard(exchange)) is not None:
                        yield incoming
                await self._changed.wait()
        finally:
            self._is_listening = False
            for exchange in self._posted.values():
                exchange.settle(is_over=False)
            self._posted.clear()

    def _next(self) -> Exchange | None:
        return take_next(
            self._posted,
            (one.chat_id for one in self._of),
            lambda exchange: (exchange.said.chat_id, self._is_stop(exchange.said)),
            lambda exchange: exchange.settle(is_over=True),
        )

    def _is_stop(self, said: Said) -> bool:
        return is_stop(Message.user(text_of(said.wording, self._number))) and self._is_admitted(said)

    async def _heard(self, exchange: Exchange) -> Incoming | None:
        """What is said to the bot; None: nothing, or by a person who is not allowed."""
        said = exchange.said
        incoming: Incoming | None = None
        try:
            if self._is_admitted(said):
                incoming = await self._incoming(exchange)
        except Unreachable as error:
            exchange.settle(is_over=False)
            why = {"channel": self.name, "detail": str(error)}
            log.warning("a file is fetched when Meta posts its message again", action="channel.unconfirmed", **why)
            return None
        except Exception as error:  # noqa: BLE001 - a stranger's message, and those behind it must be heard
            self._log_unreadable(error)
        except BaseException:
            exchange.settle(is_over=False)
            raise
        if incoming is None:
            exchange.settle(is_over=True)
        else:
            self._of[incoming] = exchange
            self._newest[incoming.chat_id] = said.id
            self._newest.move_to_end(incoming.chat_id)
            forget(self._newest)
        return incoming

    def _is_admitted(self, said: Said) -> bool:
        return self._allowed.admits(
            user_id=said.person,
            chat_id=said.group_id or said.user_id or said.person,
            is_group=bool(said.group_id),
            is_addressed=is_addressed(said, self._number),
        )

    async def _incoming(self, exchange: Exchange) -> Incoming | None:
        said, wording = exchange.said, exchange.said.wording
        if (approvals := approvals_of(said.pressed)) is not None:
            return Incoming(said.chat_id, None, said.id, approvals=approvals, author=said.person, answer_again=True)
        text = text_of(wording, self._number)
        parts = [] if wording.media is None else await self._files(exchange, wording.media)
        missed: list[Unseen] = []
        if not parts and (wording.media is not None or not text):
            missed = [unseen_in(wording)]
        text = self._quoted(wording, with_unseen(missed, text))
        content = (TextPart(text), *parts) if text else tuple(parts)
        name = said.name if said.group_id else None
        return Incoming(
            said.chat_id,
            Message(Role.USER, content if parts else text, author=said.person, name=name or None),
            said.id,
            answer_again=True,
            replaces=None if said.edit is None else said.edit.original_message_id,
            is_addressed=is_addressed(said, self._number),
            unseen=missed,
            is_private=not said.group_id,
        )

    def _quoted(self, said: Said, text: str) -> str:
        """The text behind what it answers, where that is not the bot's own and is still known here."""
        answered = None if said.context is None else self._exchanges.get(said.context.id)
        if answered is None or text.startswith("/") or not (quoted := text_of(answered.said.wording, self._number)):
            return text
        return "".join(f"> {line}\n" for line in quoted.splitlines()) + text

    async def _files(self, exchange: Exchange, media: Media) -> list[Part]:
        """The file that was sent, where it can be had, and is of a kind that is kept.

        Raises:
            Unreachable: it cannot be had now; not more often than `_FETCHES` says.
        """
        wording, settings, data = exchange.said.wording, self._settings, b""
        is_picture = media is wording.image or media is wording.sticker
        most = settings.max_image_bytes if is_picture else settings.max_file_bytes
        try:
            data = await self._content(media, most)
        except Unreachable:
            exchange.fetches += 1
            if exchange.fetches < _FETCHES:
                raise
        part = file_in(name_of(media), data, most)
        return [] if part is None or is_picture is not isinstance(part, ImagePart) else [part]

    async def _content(self, media: Media, most: int) -> bytes:
        """The bytes of a file; none where they are too many, are others than were sent, or are not there any more.

        Raises:
            Unreachable: they cannot be had now.
        """
        number = {"phone_number_id": self._settings.phone_number_id}
        try:
            with anyio.fail_after(_DOWNLOAD_S):
                place = await self._graph.ask("GET", media.id, Place, params=number, insist=True)
                data = await self._graph.download(place.url, most) if place.file_size <= most else b""
        except TimeoutError:
            raise Unconfirmed(f"a file cannot be fetched within {_DOWNLOAD_S:g} s") from None
        except Refused as refusal:
            if refusal.is_for_now:
                raise
            return b""
        digest = hashlib.sha256(data).digest()
        forms = {"", digest.hex(), base64.b64encode(digest).decode()}  # one place has this, another that
        return data if {media.sha256, place.sha256} <= forms else b""

    # --- sending -----------------------------------------------------------------------------------------------------

    async def send(self, chat_id: str, outgoing: Outgoing) -> None:
        """As `channels.base.Channel`; what no reply of Meta's own confirms was not sent.

        Raises:
            Unreachable: Meta refuses it.
        """
        if isinstance(outgoing, Last):
            exchange = self._of.pop(outgoing.incoming, None)
            self._changed.set()  # its chat has room for one more
            await self._end(chat_id, exchange, outgoing)

    async def announce(self, chat_id: str, text: str, key: str) -> None:
        """As `channels.base.Channel`; what comes too late waits for the person's next message, as answers do.

        Raises:
            Unreachable: Meta refuses it, or does not confirm it.
        """
        del key  # WhatsApp takes none
        payloads = literal_messages(text)
        try:
            while payloads:
                await self._put(chat_id, payloads[0])
                del payloads[0]
        except Refused as refusal:
            if refusal.code != WINDOW_CLOSED:
                raise
            await self._hold(chat_id, payloads)

    async def _end(self, chat_id: str, exchange: Exchange | None, last: Last) -> None:
        """Send the final outcome; what was interrupted, or was not sent, is left for Meta to deliver again."""
        is_over = False
        try:
            if not comes_again(last):
                await self._say(chat_id, exchange, last)
                is_over = True
            elif exchange is not None and (text := meanwhile(last)) and not exchange.is_patient:
                exchange.is_patient = True
                with suppress(Unreachable):
                    await self._put(chat_id, text_message(text), insist=False)
        except Refused as refusal:
            is_over = not refusal.is_for_now
            raise
        except Unreachable:
            raise
        except Exception:  # something is wrong with the answer itself, and would be each time
            is_over = True
            raise
        finally:
            if exchange is not None:
                exchange.settle(is_over=is_over)

    async def _say(self, chat_id: str, exchange: Exchange | None, last: Last) -> None:
        """Send what waits for a person, and an outcome behind it, as far as that was not sent before."""
        sent = [] if exchange is None else exchange.sent
        pieces = pieces_of(chat_id, last, exchange.said.id if exchange is not None and exchange.said.group_id else "")
        if pieces[: len(sent)] != sent:
            sent.clear()
        try:
            await self._catch_up(chat_id)
            for piece in pieces[len(sent) :]:
                await self._put(chat_id, await self._uploaded(piece) if isinstance(piece, ImagePart) else piece)
                sent.append(piece)
        except Refused as refusal:
            if refusal.code != WINDOW_CLOSED:
                raise
            await self._hold(chat_id, [one for one in pieces[len(sent) :] if not isinstance(one, ImagePart)])

    async def _catch_up(self, chat_id: str) -> None:
        """Send what came too late, now that the person was heard again."""
        held = self._held.get(chat_id, [])
        while held:
            payload = held.pop(0)  # before anything is awaited: no other answer sends it too
            is_done = False
            try:
                await self._put(chat_id, payload)
                is_done = True
            except Refused as refusal:
                is_done = refusal.code != WINDOW_CLOSED
                if not is_done:
                    raise
                log.error("Meta refuses a message for good", action="whatsapp.refused", **self._facts(refusal.code))
            finally:
                if not is_done:
                    held.insert(0, payload)
        self._held.pop(chat_id, None)

    async def _uploaded(self, image: ImagePart) -> Fields:
        kind = image.media_type or "image/png"
        name = f"image.{kind.partition('/')[2]}"
        path = f"{self._settings.phone_number_id}/media"
        form = {"messaging_product": "whatsapp", "type": kind}
        files = {"file": (name, base64.b64decode(image.data or ""), kind)}
        stored = await self._graph.ask("POST", path, Uploaded, data=form, files=files, insist=True)
        return picture_message(stored.id, kind, name)

    async def _put(self, chat_id: str, payload: Fields, *, resent: int = 0, insist: bool = True) -> None:
        """Send one message; what Meta takes may fail later, which it then posts."""
        message = {"messaging_product": "whatsapp", **address_of(chat_id), **payload}
        path = f"{self._settings.phone_number_id}/messages"
        taken = await self._graph.ask("POST", path, Sent, json=message, insist=insist)
        self._outbound[taken.messages[0].id] = Outbound(chat_id, payload, resent)
        forget(self._outbound)

    # --- what cannot be sent, or does not arrive ---------------------------------------------------------------------

    async def _hold(self, chat_id: str, payloads: Sequence[Fields]) -> None:
        """Keep what comes too late until the person is heard again, and send the template, once, if there is one.

        It is kept here until a restart, and in the session in any case.
        """
        settings, is_whole = self._settings, False
        held = [*self._held.get(chat_id, ()), *payloads][-_HELD:]
        if settings.template and chat_id not in self._held:
            template, says_all = template_message(settings.template, settings.template_language, held)
            with suppress(Unreachable):
                await self._put(chat_id, template, insist=False)
                is_whole = says_all
        if not is_whole:
            self._held[chat_id] = held
            forget(self._held)
        log.warning(
            "an answer comes more than 24 hours after the person's last message, when WhatsApp takes only templates",
            action="whatsapp.too_late",
            channel=self.name,
            chat_id=chat_id,
            detail="the template says it" if is_whole else "it is sent when the person writes again",
        )

    def _facts(self, code: int) -> Fields:
        return {"channel": self.name, "code": code}

    async def _is_done_with(self, fields: Fields) -> bool:
        """Whether nothing is left to do about a status: one that says that a message failed may have it sent again."""
        status = read(fields, Status)
        if status is None or status.status == "sent":
            return True
        outbound = self._outbound.pop(status.id, None)  # before anything is awaited: the same may be posted twice
        if status.status != "failed":
            return True
        log.warning(
            "WhatsApp has not delivered a message that it had taken; it is in the session",
            action="whatsapp.undelivered",
            chat_id=None if outbound is None else outbound.chat_id,
            **self._facts(status.code),
        )
        if outbound is None:
            return True
        if status.code == WINDOW_CLOSED:
            await self._hold(outbound.chat_id, [outbound.payload])
        elif status.code in LIMITS | TRANSIENT and outbound.resent < _RESENT:
            try:
                await self._put(outbound.chat_id, outbound.payload, resent=outbound.resent + 1, insist=False)
            except Unreachable:
                self._outbound[status.id] = outbound
                return False
        return True

    @asynccontextmanager
    async def typing(self, chat_id: str) -> AsyncIterator[None]:
        """As `channels.base.Channel`; by it, what was said is also shown to be read. Groups have neither."""
        path = f"{self._settings.phone_number_id}/messages"

        async def keep(message_id: str) -> None:
            shown = {"status": "read", "message_id": message_id, "typing_indicator": {"type": "text"}}
            while True:
                await self._graph.ask("POST", path, Done, json={"messaging_product": "whatsapp", **shown})
                await self._clock.sleep(_TYPING_EVERY_S)

        async with anyio.create_task_group() as tasks:
            if chat_id in self._newest and not is_group(chat_id):
                tasks.start_soon(keep, self._newest[chat_id])
            yield
            tasks.cancel_scope.cancel()


def _check(name: str, settings: WhatsAppSettings) -> None:
    table = f"channels.{name}"
    if not re.fullmatch(r"\d+", settings.phone_number_id):
        raise ConfigError(
            f"{table}.phone_number_id is {show_value(settings.phone_number_id)}; set it to the id that stands "
            "below the telephone number in the App Dashboard, WhatsApp > API Setup"
        )
    check_address(f"{table}.api_url", settings.api_url, may_have_path=True)
