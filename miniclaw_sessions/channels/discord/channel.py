"""Discord: a bot in servers, threads and direct messages, over discord.py's client.

Discord delivers nothing again, but keeps what was said: what has no answer is looked for there. The last message of an
answer refers to its question, so a chat itself shows what is done, wherever the program was killed. What was sent
before that is not sent twice: Discord takes each `nonce` once, and it stands in the chat.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from miniclaw_sessions.channels.addresses import check_address
from miniclaw_sessions.channels.allowed import Allowed, AllowSettings
from miniclaw_sessions.channels.base import Incoming, Last, Outgoing, comes_again, meanwhile
from miniclaw_sessions.channels.commands import is_stop
from miniclaw_sessions.channels.discord.buttons import approvals_in, menu, pressed
from miniclaw_sessions.channels.discord.reading import (
    Exchange,
    address_of,
    attachments_of,
    buttons_of,
    id_of,
    is_addressed,
    is_picture,
    is_said,
    server_of,
    text_of,
    unanswered,
    unseen_beside,
    unseen_file,
)
from miniclaw_sessions.channels.unseen import MAX_FILE_BYTES, Unseen, file_in, with_unseen
from miniclaw_sessions.channels.waiting import take_next
from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.config.settings import Bytes
from miniclaw_sessions.core.protocol.images import image_of
from miniclaw_sessions.core.protocol.messages import Message, Part, Role, TextPart
from miniclaw_sessions.errors import ConfigError, Unreachable, to_install
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.secret import channel_secret

if TYPE_CHECKING:
    import discord

    from miniclaw_sessions.channels.discord.client import Chat, Client, Event
    from miniclaw_sessions.channels.discord.sending import Sender

log = get_logger(__name__)

_LOOK_BACK = timedelta(days=1)
_REMEMBERED = 10_000  # messages that are done
_AGAIN_S = 10.0
_DOWNLOAD_S = 30.0  # then the others' messages have waited long enough
_TYPING_EVERY_S = 8.0  # it is shown for ten seconds
_COMMAND, _BUTTON = 2, 3  # the types of what a person chooses or presses
_DEFERRED, _UPDATED = {"type": 5}, 7
_NOT_ALLOWED = {"type": 4, "data": {"content": "You are not allowed to speak to this bot.", "flags": 64}}


class DiscordSettings(AllowSettings, frozen=True, kw_only=True):
    """A Discord bot. `allow` names people and servers by their numbers.

    Attributes:
        token_file: file with the bot's token. Empty: the systemd credential `NAME_token`, else the environment variable
            `NAME_BOT_TOKEN` (for the channel `discord`, `DISCORD_BOT_TOKEN`).
        max_image_bytes: how large a picture may be; of a larger one a smaller version is taken.
        max_file_bytes: how large the pictures, sounds, PDF and texts of one message may be together; what is beyond it
            is only named. `sessions.max_message_bytes` must have room for a third more.
        api_url: where Discord's HTTP interface is served.
    """

    token_file: str = ""
    max_image_bytes: Bytes = 700_000
    max_file_bytes: Bytes = MAX_FILE_BYTES
    api_url: str = "https://discord.com/api/v10"


class DiscordChannel:
    """See `channels.base.Channel`.

    Args:
        name: names its sessions.
        settings: the bot's.
        environ: where the token may be.
        clock: for waiting and pacing.

    Raises:
        ConfigError: there is no token, or discord.py is not installed.
    """

    Settings = DiscordSettings
    send_timeout_s = 600.0  # Discord may say that the next message has to wait

    def __init__(
        self,
        name: str,
        settings: DiscordSettings,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        logging.getLogger("discord").setLevel(logging.CRITICAL + 1)  # it would log what people say
        try:
            import discord  # noqa: F401, PLC0415 - found out now, and not with the first message
        except ImportError:
            raise ConfigError(f"the channel discord needs discord.py: {to_install('discord')}") from None
        check_address(f"channels.{name}.api_url", settings.api_url, may_have_path=True)
        self.name = name
        self._settings = settings
        self._clock = clock or SystemClock()
        self._allowed = Allowed(name, settings)
        known = os.environ if environ is None else environ
        self._token = channel_secret(name, "token", settings.token_file, known, variable="BOT_TOKEN")
        self._made: tuple[Client, Sender] | None = None
        self._events: deque[Event] = deque()
        self._missed: deque[Chat] = deque()  # in which something may have been
        self._looked_back: set[int] = set()  # in which it was looked for
        self._held: dict[str, tuple[Incoming, Exchange]] = {}  # by their ids, until there is room in their chats
        self._in_hand: dict[Incoming, Exchange] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._done: OrderedDict[str, None] = OrderedDict()  # the newest
        self._changed = anyio.Event()

    def __repr__(self) -> str:
        return f"<DiscordChannel {self.name}, {len(self._in_hand)} in hand, {len(self._held)} held>"

    @property
    def _client(self) -> Client:
        assert self._made is not None, "nothing is sent before something was received"  # noqa: S101
        return self._made[0]

    @property
    def _sender(self) -> Sender:
        assert self._made is not None, "nothing is sent before something was received"  # noqa: S101
        return self._made[1]

    @property
    def _user_id(self) -> int:
        user = self._client.user
        return 0 if user is None else user.id

    async def aclose(self) -> None:
        """Close its connections."""
        for task in self._tasks:
            task.cancel()
        if self._made is not None:
            await self._client.close()

    # --- hearing -----------------------------------------------------------------------------------------------------

    async def receive(self) -> AsyncGenerator[Incoming, None]:
        """As `channels.base.Channel`; first what was said since the last answers, as far back as a day.

        Raises:
            ConfigError: the token is none, or the bot may not hear what the settings want.
            Unreachable: Discord is not there, or breaks off.
        """
        from miniclaw_sessions.channels.discord.client import explained  # noqa: PLC0415 - loads the extra

        async with explained(self.name):
            gateway = await self._connected()
            try:
                while True:
                    self._changed = anyio.Event()
                    while (incoming := self._next()) is not None:
                        yield incoming
                    if self._events or self._missed:
                        await self._take_one()
                    elif gateway.done():
                        gateway.result()
                        raise Unreachable("Discord has closed the connection")
                    else:
                        await self._changed.wait()
            finally:
                gateway.cancel()
                self._client.stop_listening()

    async def _connected(self) -> asyncio.Task[None]:
        """Log in, and listen in a task of its own, in which the library takes up what breaks off."""
        from discord import Intents  # noqa: PLC0415 - an extra, and slow to load

        from miniclaw_sessions.channels.discord.client import Client  # noqa: PLC0415 - loads the extra
        from miniclaw_sessions.channels.discord.sending import Sender  # noqa: PLC0415 - same

        if self._made is not None:
            await self._client.close()
        wants_all = self._settings.groups == "all"  # what is said to the bot, it hears without this
        intents = Intents(guilds=True, guild_messages=True, dm_messages=True, message_content=wants_all)
        client = Client(self._settings.api_url, intents, self._clock, self._hear, self._interact)
        self._made = client, Sender(self.name, client, self._clock)
        self._events.clear()
        self._missed.clear()
        await client.login(self._token.reveal())
        await client.http.bulk_upsert_global_commands(client.application_id or self._user_id, menu())
        gateway = asyncio.create_task(client.connect())

        def end(gateway: asyncio.Task[None]) -> None:
            if not gateway.cancelled():
                gateway.exception()  # else asyncio logs it as never retrieved
            self._changed.set()

        gateway.add_done_callback(end)
        return gateway

    def _hear(self, event: Event) -> None:
        self._events.append(event)
        self._changed.set()

    async def _take_one(self) -> None:
        """Take what came first; where it was said, what was missed is looked for before that."""
        from miniclaw_sessions.channels.discord.client import Said, chats_of  # noqa: PLC0415 - loads the extra

        if self._missed:
            await self._look_back(self._missed.popleft())
        elif isinstance(event := self._events.popleft(), Said):
            if self._is_for_bot(event.message):
                await self._look_back(event.message.channel)  # else it would go before what was missed there
                await self._read(event.message, is_edit=event.is_edit)
        elif event.server is None:
            self._looked_back.clear()
            servers = {str(one.id) for one in self._client.guilds}
            allowed = (str(one).strip() for one in self._settings.allow)
            people = [one for one in allowed if one.isdecimal() and one not in servers]
            self._missed.extend(await self._client.direct_chats(people))
        elif self._settings.groups != "none":
            self._missed.extend(chats_of(event.server, self._clock.now() - _LOOK_BACK))

    async def _look_back(self, chat: Chat) -> None:
        """Take what has no answer in a chat; once in a session, in which Discord reports all the rest.

        Raises:
            Unreachable: Discord is not there.
        """
        from discord import HTTPException  # noqa: PLC0415 - an extra, and slow to load

        if chat.id in self._looked_back:
            return
        self._looked_back.add(chat.id)
        try:
            said = await self._client.history(chat, self._clock.now() - _LOOK_BACK)
        except HTTPException as error:
            why = {"channel": self.name, "error_type": type(error).__name__}
            log.warning("what was said in a chat cannot be read", action="channel.unreadable", **why)
            return
        for message, is_edit, stands in unanswered(self._user_id, said):
            await self._read(message, is_edit=is_edit, stands=stands)

    # --- what is said ------------------------------------------------------------------------------------------------

    async def _read(self, message: discord.Message, *, is_edit: bool, stands: frozenset[str] = frozenset()) -> None:
        """Hold what a message says to the bot, unless it is known."""
        if self._is_known(id_of(message, is_edit=is_edit)):
            return
        try:
            found = await self._incoming(message, is_edit=is_edit)
        except Exception as error:  # noqa: BLE001 - Discord may send what the library does not know
            kind = type(error).__name__
            log.warning("a message cannot be read", action="channel.unreadable", channel=self.name, error_type=kind)
            return
        if found is not None:
            incoming, exchange = found
            exchange.stands = stands
            self._hold(incoming, exchange)

    async def _incoming(self, message: discord.Message, *, is_edit: bool) -> tuple[Incoming, Exchange] | None:
        """The message, if it must be answered."""
        exchange = Exchange(message.channel.id, id_of(message, is_edit=is_edit), message.id)
        if message.author.id == self._user_id:
            approvals = approvals_in(buttons_of(message))  # None: they wait to be pressed
            return None if approvals is None else (_answer_to(message, approvals), exchange)
        server = server_of(message)
        chat_id = str(server or message.channel.id)
        is_admitted = self._is_for_bot(message) and self._allowed.admits(
            user_id=str(message.author.id), chat_id=chat_id, is_group=server is not None
        )
        if not is_admitted:
            return None
        files, missed = await self._files(message)
        text = with_unseen(missed, text_of(self._user_id, message))
        if not (text or files):
            return None
        said = Message(
            Role.USER,
            (*([TextPart(text)] if text else []), *files) if files else text,
            author=str(message.author.id),  # a name is changed, and shared
            name=None if server is None else message.author.display_name,
        )
        incoming = Incoming(
            str(message.channel.id),
            said,
            exchange.message_id,
            answer_again=True,
            replaces=str(message.id) if is_edit else None,
            is_addressed=server is None or is_addressed(self._user_id, message),
            unseen=missed,
            is_private=server is None,
        )
        return incoming, exchange

    def _is_for_bot(self, message: discord.Message) -> bool:
        """Whether the bot is to answer it, if its author is allowed."""
        groups = self._settings.groups
        is_heard = server_of(message) is None or groups == "all"
        return is_said(message) and (is_heard or (groups == "addressed" and is_addressed(self._user_id, message)))

    async def _files(self, message: discord.Message) -> tuple[list[Part], list[Unseen]]:
        """What is attached, as far as there is room, and what no model sees of it."""
        room, missed = self._settings.max_file_bytes, unseen_beside(message)
        parts: list[Part] = []
        deadline = anyio.current_time() + _DOWNLOAD_S  # of all files: each by itself could take as long
        for file in attachments_of(message):
            most = min(room, self._settings.max_image_bytes) if is_picture(file) else room
            data = await self._content(address_of(file, most), most, deadline)
            part = image_of(data) if is_picture(file) else file_in(file.filename, data, most)
            if part is not None:
                room -= len(data)
                parts.append(part)
            else:
                missed.append(unseen_file(file))
        return parts, missed

    async def _content(self, address: str, most: int, deadline: float) -> bytes:
        """The bytes of a file; none where they cannot be had in time."""
        import discord  # noqa: PLC0415 - an extra, and slow to load
        from aiohttp import ClientError  # noqa: PLC0415 - loaded with it

        data = b""
        with anyio.CancelScope(deadline=deadline), suppress(discord.DiscordException, ClientError, OSError):
            data = await self._client.http.get_from_cdn(address) if address else b""
        return data if len(data) <= most else b""

    # --- what is chosen or pressed -----------------------------------------------------------------------------------

    async def _interact(self, interaction: discord.Interaction) -> None:
        """Answer within the three seconds that Discord gives, and hand it over."""
        chat_id = str(interaction.guild_id or interaction.channel_id)
        is_group = not _is_private(interaction)
        if not self._allowed.admits(user_id=str(interaction.user.id), chat_id=chat_id, is_group=is_group):
            await self._sender.respond(interaction, _NOT_ALLOWED)
        elif interaction.type.value == _COMMAND:
            await self._choose(interaction)
        elif interaction.type.value == _BUTTON and interaction.message is not None:
            await self._press(interaction, interaction.message)

    async def _choose(self, interaction: discord.Interaction) -> None:
        """Take a command of the menu, whose answer is said to come."""
        fields: dict[str, Any] = dict(interaction.data or {})
        channel_id, is_private = interaction.channel_id or 0, _is_private(interaction)
        words = [f"/{fields.get('name')}", *(str(one.get("value")) for one in fields.get("options", ()))]
        name = None if is_private else interaction.user.display_name
        said = Message(Role.USER, " ".join(words), author=str(interaction.user.id), name=name)
        has_taken = await self._sender.respond(interaction, _DEFERRED)
        if has_taken is not None:
            exchange = Exchange(channel_id, str(interaction.id), token=interaction.token if has_taken else "")
            self._hold(Incoming(str(channel_id), said, exchange.message_id, is_private=is_private), exchange)

    async def _press(self, interaction: discord.Interaction, question: discord.Message) -> None:
        """Take the answer to a question, whose buttons cannot be pressed from now on."""
        fields: dict[str, Any] = dict(interaction.data or {})
        buttons, custom_id = buttons_of(question), str(fields.get("custom_id"))
        approvals = approvals_in(buttons, custom_id)
        if approvals is None:
            return
        shown = {"type": _UPDATED, "data": {"components": pressed(buttons, custom_id)}}
        if await self._sender.respond(interaction, shown) is not None:
            incoming = _answer_to(question, approvals, str(interaction.user.id))
            self._hold(incoming, Exchange(question.channel.id, str(incoming.message_id), question.id))

    # --- what waits --------------------------------------------------------------------------------------------------

    def _is_known(self, message_id: str) -> bool:
        is_in_hand = any(one.message_id == message_id for one in self._in_hand.values())
        return is_in_hand or message_id in self._held or message_id in self._done

    def _hold(self, incoming: Incoming, exchange: Exchange) -> None:
        if not self._is_known(exchange.message_id):
            self._held[exchange.message_id] = (incoming, exchange)
            self._changed.set()

    def _next(self) -> Incoming | None:
        """The first message whose chat has room."""
        found = take_next(
            self._held,
            (one.chat_id for one in self._in_hand),
            lambda held: (held[0].chat_id, is_stop(held[0].message)),
            lambda held: self._pass_over(held[1]),
        )
        if found is None:
            return None
        incoming, exchange = found
        self._in_hand[incoming] = exchange
        return incoming

    def _pass_over(self, exchange: Exchange) -> None:
        """It has no answer, because the person said `/stop` behind it."""
        self._start(self._sender.mark(exchange))
        self._end(exchange.message_id)

    def _end(self, message_id: str) -> None:
        self._done[message_id] = None
        while len(self._done) > _REMEMBERED:
            self._done.popitem(last=False)

    def _hold_later(self, incoming: Incoming, exchange: Exchange) -> None:
        async def wait() -> None:
            await self._clock.sleep(_AGAIN_S)
            self._hold(msgspec.structs.replace(incoming), exchange)

        self._start(wait())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something while listening goes on."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- answering ---------------------------------------------------------------------------------------------------

    async def send(self, chat_id: str, outgoing: Outgoing) -> None:
        """As `channels.base.Channel`; what no reply of Discord's own confirms was not sent.

        What cannot be sent is handed over again after a while, and after a restart, because nothing refers to it.

        Raises:
            Unreachable: Discord refuses it.
        """
        from miniclaw_sessions.channels.discord.sending import Refused  # noqa: PLC0415 - loads the extra

        del chat_id  # the exchange knows more
        if not isinstance(outgoing, Last):
            return
        incoming = outgoing.incoming
        exchange = self._in_hand[incoming]
        is_done = False
        try:
            if not comes_again(outgoing):
                await self._sender.answer(exchange, outgoing)
                is_done = True
            elif (text := meanwhile(outgoing)) and not exchange.is_patient:
                exchange.is_patient = True
                await self._sender.post(exchange, text, "meanwhile")
        except Exception as error:  # not when it is cut off, waiting for Discord
            is_done = isinstance(error, Refused) or not isinstance(error, Unreachable)  # it would fail each time
            raise
        finally:
            del self._in_hand[incoming]
            if is_done:
                self._end(exchange.message_id)
            else:
                self._hold_later(incoming, exchange)
            self._changed.set()

    async def announce(self, chat_id: str, text: str, key: str) -> None:
        """As `channels.base.Channel`.

        Raises:
            Unreachable: Discord refuses it.
        """
        await self._sender.announce(Exchange(int(chat_id), f"announced.{key}"), text)

    @asynccontextmanager
    async def typing(self, chat_id: str) -> AsyncIterator[None]:
        """As `channels.base.Channel`."""

        async def keep() -> None:
            while True:
                await self._client.http.send_typing(int(chat_id))
                await self._clock.sleep(_TYPING_EVERY_S)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep)
            yield
            tasks.cancel_scope.cancel()


def _is_private(interaction: discord.Interaction) -> bool:
    """Whether only one person and the bot read along. A person may use the app in a chat with others, too."""
    return bool(interaction.context.dm_channel)


def _answer_to(question: discord.Message, approvals: Mapping[str, bool], person: str | None = None) -> Incoming:
    """The answer that was given by a button; one to a question, so it has the question's id."""
    chat_id, message_id = str(question.channel.id), id_of(question, is_edit=False)
    return Incoming(chat_id, None, message_id, approvals=approvals, author=person, answer_again=True)
