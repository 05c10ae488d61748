"""Slack: a bot, by Socket Mode or by the Events API, over slack_sdk.

Slack delivers an event a few times within minutes, and only so often. What lasts is the conversation itself, so
that is the queue: each answer says in its metadata which message it answers, and after a start, or a new connection,
what has no answer is taken up. So an event is acknowledged when the store has it, or after `ACKNOWLEDGE_S`, because the
conversation has it; what is in no conversation, a slash command or the press of a button, is written into it first.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec

from miniclaw_sessions.channels.addresses import check_address
from miniclaw_sessions.channels.allowed import Allowed, AllowSettings
from miniclaw_sessions.channels.base import (
    Accepted,
    Incoming,
    Last,
    Outgoing,
    WebhookReply,
    WebhookRequest,
    comes_again,
    meanwhile,
)
from miniclaw_sessions.channels.commands import COMMANDS
from miniclaw_sessions.channels.slack.client import BACKOFF_S, Client, Fields, Refused
from miniclaw_sessions.channels.slack.exchanges import Exchange, Exchanges
from miniclaw_sessions.channels.slack.history import History
from miniclaw_sessions.channels.slack.posts import DECISIONS, Posts
from miniclaw_sessions.channels.slack.reading import Bot, Place, Read, Said, is_direct, pressed, said_in, table
from miniclaw_sessions.channels.slack.socket import Socket
from miniclaw_sessions.channels.slack.webhook import posted_in
from miniclaw_sessions.channels.unseen import (
    MAX_FILE_BYTES,
    Unseen,
    file_in,
    kind_of,
    unseen,
    with_unseen,
)
from miniclaw_sessions.clock import Clock, SystemClock, sleep_unless
from miniclaw_sessions.config.settings import Bytes
from miniclaw_sessions.core.protocol.images import image_of
from miniclaw_sessions.core.protocol.messages import Message, Part, TextPart
from miniclaw_sessions.errors import ConfigError, Unreachable, to_install
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.secret import Secret, channel_secret

log = get_logger(__name__)

ACKNOWLEDGE_S = 2.0
"""How long an event may wait for its turn before it is acknowledged; Slack waits for three seconds."""

_LOOK_S = 5.0
_DOWNLOAD_S = 30.0
_NO_LOGIN = {
    "invalid_auth",
    "not_authed",
    "account_inactive",
    "token_revoked",
    "token_expired",
    "not_allowed_token_type",
}
_THUMBNAILS = ("thumb_1024", "thumb_960", "thumb_720", "thumb_480", "thumb_360")
_NOT_HERE = "I am not in this conversation. Invite me, and write it again."
_NOT_NOW = "Slack does not take this just now. Please write it again in a while."


class SlackSettings(AllowSettings, frozen=True, kw_only=True):
    """A Slack app. `allow` names people (`U012ABC`) and conversations (`C012ABC`) by their ids.

    Attributes:
        token_file: file with the bot's token (`xoxb-...`); empty: the systemd credential `NAME_token`, else the
            environment variable `NAME_BOT_TOKEN` (for the channel `slack`, `SLACK_BOT_TOKEN`).
        app_token_file: file with the app's token (`xapp-...`) for Socket Mode; empty: the credential `NAME_app_token`,
            else `NAME_APP_TOKEN`.
        webhook: whether Slack posts to `/channels/NAME` of this daemon; false: Socket Mode, which needs no address.
        signing_secret_file: file with the app's signing secret, by which its posts are known; empty: the credential
            `NAME_signing_secret`, else `NAME_SIGNING_SECRET`.
        max_image_bytes: how large an image may be; of a larger one, a smaller version of Slack's is taken.
            `sessions.max_message_bytes` must have room for a third more.
        max_file_bytes: how large a voice clip, a sound, a PDF or a text may be; a larger one is only named.
        api_url: where the Web API is served, without `/api`.
    """

    token_file: str = ""
    app_token_file: str = ""
    webhook: bool = False
    signing_secret_file: str = ""
    max_image_bytes: Bytes = 700_000
    max_file_bytes: Bytes = MAX_FILE_BYTES
    api_url: str = "https://slack.com"


class SlackChannel:
    """See `channels.base.Channel`.

    Args:
        name: names its sessions.
        settings: the app's.
        environ: where the tokens may be.
        clock: for waiting, and for the age of what is signed.

    Raises:
        ConfigError: a token is missing, or slack_sdk is not installed.
    """

    Settings = SlackSettings
    send_timeout_s = 600.0  # Slack may say that the next message has to wait
    shows_twice = True

    def __init__(
        self, name: str, settings: SlackSettings, environ: Mapping[str, str] | None = None, clock: Clock | None = None
    ) -> None:
        try:
            import aiohttp  # noqa: F401, PLC0415 - found out now, and not with the first message
            import slack_sdk  # noqa: F401, PLC0415 - the same
        except ImportError:
            raise ConfigError(f"the channel slack needs slack_sdk and aiohttp: {to_install('slack')}") from None
        check_address(f"channels.{name}.api_url", settings.api_url)
        # it would log what people say, where that arrives damaged
        logging.getLogger("slack_sdk").setLevel(logging.CRITICAL + 1)
        known = os.environ if environ is None else environ
        self.name = name
        self._settings = settings
        self._clock = clock or SystemClock()
        self._allowed = Allowed(name, settings)
        self._token = channel_secret(name, "token", settings.token_file, known, variable="BOT_TOKEN")
        self._app_token = self._signing_secret = Secret("")
        if settings.webhook:
            self._signing_secret = channel_secret(name, "signing_secret", settings.signing_secret_file, known)
        else:
            self._app_token = channel_secret(name, "app_token", settings.app_token_file, known)
        self._exchanges = Exchanges()
        self._of: dict[Incoming, Exchange] = {}
        self._is_behind = anyio.Event()
        self._is_listening = False
        self._bot = Bot("", "")
        # made by `receive`, within its event loop, before anything comes or is sent
        self._client: Client
        self._history: History
        self._posts: Posts

    def __repr__(self) -> str:
        return f"<SlackChannel {self.name}, {len(self._exchanges)} messages>"

    async def aclose(self) -> None:
        """Close the connections."""
        if self._bot.user_id:
            await self._client.close()

    # --- hearing -----------------------------------------------------------------------------------------------------

    async def receive(self) -> AsyncGenerator[Incoming, None]:
        """As `channels.base.Channel`; what was said within a day and has no answer is answered.

        Raises:
            ConfigError: Slack does not take a token.
            Unreachable: Slack is not there, or breaks off.
        """
        await self._log_in()
        await self._look_behind()
        socket = None if self._settings.webhook else await self._connected()
        catching_up = asyncio.create_task(self._catch_up())
        self._is_listening = True
        try:
            while True:
                self._exchanges.changed = anyio.Event()
                if catching_up.done():
                    catching_up.result()
                if socket is not None:
                    await socket.check()
                while (exchange := self._exchanges.next(self._clock.monotonic())) is not None:
                    if (incoming := await self._incoming(exchange)) is not None:
                        yield incoming
                await sleep_unless(self._clock, _LOOK_S, self._exchanges.changed)
        finally:
            self._is_listening = False
            catching_up.cancel()
            if socket is not None:
                await socket.close()

    async def _log_in(self) -> None:
        if not self._bot.user_id:
            self._client = Client(self.name, self._token.reveal(), self._settings.api_url, self._clock)
        try:
            who = await self._logged_in(self._client.web.auth_test, "bot", needs="user_id")
        except BaseException:
            if not self._bot.user_id:
                await self._client.close()
            raise
        bot = Bot(str(who["user_id"]), str(who.get("bot_id")))
        if bot != self._bot:
            self._bot = bot
            self._history = History(self._client, bot, self._clock)
            self._posts = Posts(self._client, self._history, self._clock)

    async def _connected(self) -> Socket:
        """Connect by Socket Mode."""
        token = self._app_token.reveal()
        # asked here: the library would ask with a wrong token for ever, without a word
        opened = await self._logged_in(self._client.web.apps_connections_open, "app", needs="url", app_token=token)
        socket = Socket(self._client, token, self._clock, self._taken, self._missed)
        try:
            await socket.connect(str(opened["url"]))
        except BaseException:
            await socket.close()
            raise
        return socket

    async def _logged_in(self, method: Any, kind: str, **arguments: Any) -> Fields:
        try:
            return await self._client.asked(method, **arguments)
        except Refused as refusal:
            if refusal.code not in _NO_LOGIN:
                raise Unreachable(f"{refusal}, for the {kind} token of the channel {self.name}") from None
            raise ConfigError(
                f"Slack does not take the {kind} token of the channel {self.name} ({refusal.code}); copy it once more "
                "from the app's page at https://api.slack.com/apps"
            ) from None

    async def webhook(self, request: WebhookRequest) -> WebhookReply:
        """Take what Slack posts, if it is signed, and acknowledge it."""
        posted = await posted_in(request, self._signing_secret.reveal(), self._clock.now().timestamp())
        if isinstance(posted, WebhookReply):
            return posted
        if not self._is_listening:
            return WebhookReply(503, b"the channel is not listening; please post it again")
        if request.headers.get("x-slack-retry-reason", "http_timeout") != "http_timeout":
            self._missed()  # posts got lost on their way, others perhaps for good
        kind, payload = posted
        reply = await self._taken(kind, payload)
        return WebhookReply(200, json.dumps(reply).encode() if reply else b"", "application/json")

    async def _taken(self, kind: str, payload: Fields) -> Fields:
        """Take what Slack delivers, by either way; what it is acknowledged with."""
        try:
            if kind == "slash_commands":
                return await self._commanded(payload)
            if kind == "interactive":
                await self._decided(payload)
            elif kind == "events_api" and (exchange := self._heard(table(payload, "event"))) is not None:
                await sleep_unless(self._clock, ACKNOWLEDGE_S, exchange.settled)
        except Exception as error:  # noqa: BLE001 - a new Slack may send what is not known here
            kind = type(error).__name__
            log.warning("an event cannot be read", action="channel.unreadable", channel=self.name, error_type=kind)
        return {}

    def _heard(self, event: Fields) -> Exchange | None:
        """The message of an event; None: it is done, or not to be answered."""
        channel_id = event.get("channel")
        if event.get("type") not in {"message", "app_mention"} or not isinstance(channel_id, str):
            return None
        said = said_in(event, channel_id, self._bot)
        return self._exchanges.add(said) if said is not None and self._is_admitted(said) else None

    def _is_admitted(self, said: Said) -> bool:
        return self._allowed.admits(
            user_id=said.user_id, chat_id=said.place.channel_id, is_group=said.is_group, is_addressed=said.is_addressed
        )

    # --- what is in no conversation is written into one --------------------------------------------------------------

    async def _commanded(self, payload: Fields) -> Fields:
        """Say for a person what was written as a slash command; then it is a message like any other."""
        user_id, channel_id = str(payload.get("user_id")), str(payload.get("channel_id"))
        if not self._allowed.admits(user_id=user_id, chat_id=channel_id, is_group=not is_direct(channel_id)):
            return {}
        text = str(payload.get("text") or "").strip() or "help"
        if f"/{text.split()[0].lower()}" in COMMANDS:
            text = f"/{text}"
        try:
            message = await self._posts.ask(channel_id, user_id, text)
        except Refused:
            return {"response_type": "ephemeral", "text": _NOT_HERE}
        except Unreachable:
            return {"response_type": "ephemeral", "text": _NOT_NOW}
        said = said_in({**message, "user": self._bot.user_id}, channel_id, self._bot)
        if said is not None:
            self._exchanges.add(said)
        return {}

    async def _decided(self, payload: Fields) -> None:
        """Write a person's yes or no into the question, in place of its buttons; then it counts."""
        message, channel_id = table(payload, "message"), str(table(payload, "channel").get("id"))
        user_id = str(table(payload, "user").get("id"))
        for action in payload.get("actions") or ():
            if action.get("action_id") not in DECISIONS:
                continue
            agreed, word, _ = DECISIONS[action["action_id"]]
            press = {"agreed": agreed, "by": user_id, "press": f"press.{message.get('ts')}", "at": action["action_ts"]}
            mark = {**json.loads(action["value"]), **press}
            place = Place.where(channel_id, message)
            said = pressed(mark, place)
            if said is None or not self._is_admitted(said) or self._exchanges.knows(said):
                continue  # the first press counts
            exchange = self._exchanges.hold(said)
            try:
                await self._posts.decide(place, message, f"<@{user_id}>: {word}", mark)
            except Refused as refusal:  # the question was deleted; the answer counts all the same
                log.warning("a question is not marked", action="slack.refused", channel=self.name, detail=str(refusal))
            except BaseException:
                self._exchanges.let_go(exchange)  # it may be pressed again
                raise
            self._exchanges.wait(exchange)

    # --- what was missed ---------------------------------------------------------------------------------------------

    async def _look_behind(self) -> None:
        """List the conversations that have to be read; what comes there meanwhile waits."""
        try:
            for channel_id in await self._history.conversations():
                self._exchanges.behind.setdefault(channel_id, [])
        except Refused as refusal:
            self._not_read(refusal)

    async def _catch_up(self) -> None:
        """Read what was missed: now, and after each further connection."""
        while True:
            delay, longest = BACKOFF_S
            while self._exchanges.behind:
                channel_id = next(iter(self._exchanges.behind))
                read = Read()
                try:
                    read = await self._history.read(channel_id)
                except Refused as refusal:
                    self._not_read(refusal)
                except Unreachable as error:  # the others do not wait for it
                    self._client.unconfirmed(error)
                    self._exchanges.behind.move_to_end(channel_id)
                    await self._clock.sleep(delay)
                    delay = min(2 * delay, longest)
                    continue
                delay = BACKOFF_S[0]
                self._exchanges.catch_up(channel_id, filter(self._is_admitted, read.unanswered), read.done)
            await self._is_behind.wait()
            self._is_behind = anyio.Event()
            await self._look_behind()

    def _missed(self) -> None:
        self._is_behind.set()

    def _not_read(self, refusal: Refused) -> None:
        log.warning("what was missed is not found", action="slack.refused", channel=self.name, detail=str(refusal))

    # --- what is heard -----------------------------------------------------------------------------------------------

    async def _incoming(self, exchange: Exchange) -> Incoming | None:
        said = exchange.said
        content, missed = await self._content(said) if said.files else (said.text, ())
        if not content and said.approvals is None:
            self._exchanges.end(exchange)
            return None
        message = msgspec.structs.replace(Message.user(content), author=said.user_id)
        incoming = Incoming(
            str(said.place),
            message if said.approvals is None else None,
            said.message_id,
            approvals=said.approvals,
            author=said.user_id,
            replaces=said.replaces,
            answer_again=True,
            is_addressed=said.is_addressed,
            unseen=missed,
            is_private=not said.is_group,
        )
        self._of[incoming] = exchange
        return incoming

    async def _content(self, said: Said) -> tuple[str | tuple[Part, ...], Sequence[Unseen]]:
        """The text of a message, with its files; and those that no model sees."""
        parts: list[Part] = []
        missed: list[Unseen] = []
        deadline = anyio.current_time() + _DOWNLOAD_S  # of all files: each by itself could take as long
        for file in said.files:
            part = None
            with anyio.CancelScope(deadline=deadline):
                part = await self._file(file)
            if part is None:
                missed.append(_unseen_in(file))
            else:
                parts.append(part)
        text = with_unseen(missed, said.text)
        return (*([TextPart(text)] if text else []), *parts) if parts else text, missed

    async def _file(self, file: Fields) -> Part | None:
        """A picture, in the largest version that fits, or another file that models are shown."""
        is_picture = str(file.get("mimetype")).startswith("image/")
        most = self._settings.max_image_bytes if is_picture else self._settings.max_file_bytes
        size = file.get("size")
        fits = not isinstance(size, int) or size <= most
        urls = [file.get("url_private_download") or file.get("url_private")] if fits else []
        urls += [file.get(name) for name in _THUMBNAILS] if is_picture else []
        for url in filter(None, urls):
            data = await self._client.content(str(url), most)
            part = image_of(data) if is_picture else file_in(str(file.get("name") or "file"), data, most)
            if part is not None:
                return part
        return None

    # --- answering ---------------------------------------------------------------------------------------------------

    async def announce(self, chat_id: str, text: str, key: str) -> None:
        """As `channels.base.Channel`. Raises Unreachable where Slack does not take it."""
        del key  # Slack takes none
        if not self._bot.user_id:
            raise Unreachable(f"the channel {self.name} has not logged in to Slack yet")
        await self._posts.announce(Place.of(chat_id), text)

    async def send(self, chat_id: str, outgoing: Outgoing) -> None:
        """As `channels.base.Channel`; what no reply of Slack's own confirms was not sent.

        What Slack does not take in time is handed over once more after a while.

        Raises:
            Unreachable: Slack refuses it, or is not there.
        """
        del chat_id  # the message knows more
        exchange = self._of[outgoing.incoming]
        if isinstance(outgoing, Accepted):
            exchange.settled.set()
        if not isinstance(outgoing, Last):
            return
        del self._of[outgoing.incoming]
        is_done = False
        try:
            if not comes_again(outgoing):
                await self._posts.answer(exchange.said, outgoing, is_again=exchange.is_again)
                is_done = True
            elif (text := meanwhile(outgoing)) and not exchange.is_patient:
                exchange.is_patient = True
                await self._posts.note(exchange.said, text)
        except Refused as refusal:  # and would be each time: the bot was removed, the conversation is archived
            is_done = True
            raise Unreachable(f"Slack does not take an answer: {refusal}") from None
        except Unreachable:
            raise
        except Exception:
            is_done = True  # it is the answer, and would fail each time
            raise
        finally:
            if is_done:
                self._exchanges.end(exchange)
            else:
                self._exchanges.begin_again(exchange, self._clock.monotonic())

    @asynccontextmanager
    async def typing(self, chat_id: str) -> AsyncIterator[None]:  # noqa: ARG002 - see `Channel`
        """Slack shows nothing of the kind for bots."""
        yield


def _unseen_in(file: Fields) -> Unseen:
    """What no model is shown of a message."""
    milliseconds = file.get("duration_ms")
    if file.get("subtype") == "slack_audio":
        return unseen("voice message", seconds=milliseconds / 1000 if isinstance(milliseconds, int) else 0)
    return unseen(kind_of(str(file.get("mimetype"))), str(file.get("name") or ""))
