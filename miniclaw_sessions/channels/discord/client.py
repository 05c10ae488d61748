"""The library's client with two differences: which server it talks to is a setting, and every reply is judged.

A request is done when Discord itself says so. The library takes any text with status 200 for a reply, and a proxy's
page with status 404 for Discord's refusal; here both are `Unreachable`, and the outcome of the request is unknown.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from http import HTTPStatus
from typing import Any, NamedTuple

import aiohttp
import discord
import yarl
from discord.gateway import DiscordWebSocket
from discord.http import HTTPClient, Route

from miniclaw_sessions.channels.replies import what_came
from miniclaw_sessions.clock import Clock
from miniclaw_sessions.errors import ConfigError, Unreachable
from miniclaw_sessions.log import get_logger

log = get_logger(__name__)

IDENTIFY_EVERY_S = 5.0
"""Discord takes one new session in this time; a resumed one is none."""

_NO_TOKEN = 4004

Chat = (
    discord.TextChannel
    | discord.VoiceChannel
    | discord.StageChannel
    | discord.Thread
    | discord.DMChannel
    | discord.GroupChannel
    | discord.PartialMessageable
)
"""Where people write."""

_PAGE, _LOOK_BACK_PAGES = 100, 5  # messages of one reply, and how many replies are asked for


class Said(NamedTuple):
    """Something was said, or is said in other words."""

    message: discord.Message
    is_edit: bool


class Connected(NamedTuple):
    """A session has begun in which nothing earlier is reported: for direct messages, or in a server."""

    server: discord.Guild | None


Event = Said | Connected


class Client(discord.Client):
    """A bot's connection.

    Args:
        api_url: where its requests go.
        intents: what it wants to hear.
        clock: for the pause before another session.
        hear: called with what is reported, in order.
        interact: awaited when a person has chosen a command or pressed a button, which must be answered in 3 seconds.
    """

    def __init__(
        self,
        api_url: str,
        intents: discord.Intents,
        clock: Clock,
        hear: Callable[[Event], None],
        interact: Callable[[discord.Interaction], Awaitable[None]],
    ) -> None:
        super().__init__(
            intents=intents,
            max_messages=None,  # what people say is kept in sessions only
            chunk_guilds_at_startup=False,
            member_cache_flags=discord.MemberCacheFlags.none(),
        )
        self._requests = Requests(self.loop, api_url)
        self.http = self._connection.http = self._requests
        self._clock = clock
        self._hear = hear
        self._interact = interact

    def stop_listening(self) -> None:
        """Let go of the thread that keeps the connection alive; requests go on until `close`."""
        keep_alive = getattr(self.ws, "_keep_alive", None)
        if keep_alive is not None:
            keep_alive.stop()

    async def connect(self, *, reconnect: bool = True) -> None:
        """As the library's, which looks for a connection to resume also where its first one has failed.

        Raises:
            Unreachable: the first connection to the gateway has failed.
        """
        try:
            await super().connect(reconnect=reconnect)
        except AttributeError:
            if self.ws is not None:
                raise
            raise Unreachable("Discord's gateway cannot be reached") from None

    async def setup_hook(self) -> None:
        """Ask where the gateway is; called by the library after the login."""
        _, address, _ = await self._requests.get_bot_gateway()
        self._requests.gateway = yarl.URL(address)

    async def before_identify_hook(self, shard_id: int | None, *, initial: bool = False) -> None:
        """Wait as long as Discord wants, on a clock that can be set."""
        del shard_id
        if not initial:
            await self._clock.sleep(IDENTIFY_EVERY_S)

    async def on_disconnect(self) -> None:
        """The connection to the gateway has broken off, or could not be made; the library goes on trying."""
        log.info("the connection has broken off and is taken up again", action="channel.disconnected")

    async def on_connect(self) -> None:
        """A session has begun that knows nothing of an earlier one."""
        self._hear(Connected(None))

    async def on_guild_available(self, guild: discord.Guild) -> None:
        """A server's channels and threads are known."""
        self._hear(Connected(guild))

    async def on_guild_join(self, guild: discord.Guild) -> None:
        """A server has taken the bot in, or its channels are known a little later."""
        self._hear(Connected(guild))

    async def on_message(self, message: discord.Message) -> None:
        """Something was said."""
        self._hear(Said(message, is_edit=False))

    async def on_raw_message_edit(self, payload: discord.RawMessageUpdateEvent) -> None:
        """A message has changed; also where the library has never seen it."""
        if payload.message.edited_at is not None:  # else a link has got its picture
            self._hear(Said(payload.message, is_edit=True))

    async def on_interaction(self, interaction: discord.Interaction) -> None:
        """A command was chosen or a button pressed."""
        await self._interact(interaction)

    async def on_error(self, event_method: str, /, *_: Any, **__: Any) -> None:
        """Log an error of one of these, without the words that it may hold."""
        kind = getattr(sys.exc_info()[0], "__name__", "")
        log.warning("an event cannot be read", action="channel.unreadable", detail=event_method, error_type=kind)

    async def direct_chats(self, people: Iterable[str]) -> list[Chat]:
        """The direct messages with people; Discord has no list of them. A number that is no person is passed over.

        Raises:
            Unreachable: Discord is not there.
        """
        chats: list[Chat] = []
        for person in people:
            with suppress(discord.HTTPException):
                found = await self.http.start_private_message(person)
                chats.append(self.get_partial_messageable(int(found["id"])))
        return chats

    async def history(self, chat: Chat, since: datetime) -> Sequence[discord.Message]:
        """What was said in a chat, the oldest first; of much the newest. What the library cannot read is passed over.

        Raises:
            discord.HTTPException: the bot may not read it, or it is gone.
            Unreachable: Discord is not there.
        """
        oldest, before = discord.utils.time_snowflake(since), None
        said: deque[discord.Message] = deque()
        for _ in range(_LOOK_BACK_PAGES):
            page = await self.http.logs_from(chat.id, _PAGE, before=before)
            for one in page:
                before = int(one["id"])
                if before > oldest:
                    try:
                        said.appendleft(discord.Message(state=self._connection, channel=chat, data=one))
                    except Exception as error:  # noqa: BLE001 - Discord may send what the library does not know
                        kind = type(error).__name__
                        log.warning("a message cannot be read", action="channel.unreadable", error_type=kind)
            if len(page) < _PAGE or before is None or before < oldest:
                break
        return said


class Requests(HTTPClient):
    """The library's requests, each with its reply judged.

    Args:
        loop: as the library's.
        api_url: where they go.

    Attributes:
        gateway: where a new session begins; a resumed one goes where Discord said at its beginning.
    """

    def __init__(self, loop: Any, api_url: str) -> None:
        super().__init__(loop)
        self._api_url = api_url
        self.gateway = DiscordWebSocket.DEFAULT_GATEWAY

    async def ws_connect(self, url: str, *, compress: int = 0) -> aiohttp.ClientWebSocketResponse:
        """As the library's."""
        address = yarl.URL(url)
        if address.origin() == DiscordWebSocket.DEFAULT_GATEWAY.origin():  # which the library does not ask for
            address = self.gateway.with_query(address.query)
        return await super().ws_connect(str(address), compress=compress)

    async def request(self, route: Route, **options: Any) -> Any:
        """As the library's, which waits as long as Discord's limits say.

        Raises:
            Unreachable: the outcome of the request is unknown.
        """
        route.url = self._api_url + route.url.removeprefix(Route.BASE)
        try:
            reply = await super().request(route, **options)
        except discord.HTTPException as error:
            media_type = error.response.headers.get("content-type", "")
            if media_type == "application/json" and error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            came = what_came(error.status, media_type, error.text.encode(), self.token or "")
            raise Unreachable(f"the reply to {route.method} {route.path} is not Discord's own ({came})") from None
        except ValueError:
            raise Unreachable(f"the reply to {route.method} {route.path} is no JSON") from None
        except (OSError, TimeoutError, aiohttp.ClientError) as error:
            raise Unreachable(f"{route.method} {route.path} has failed: {type(error).__name__}") from None
        if (fault := fault_of(route.method, route.path, reply)) is not None:
            raise Unreachable(f"the reply to {route.method} {route.path} is not Discord's own: {fault}")
        return reply


def fault_of(method: str, path: str, reply: Any) -> str | None:
    """Why a reply is not one of Discord, without a word of it; None: it is."""
    last = path.rpartition("/")[2]
    if method == "GET" and last == "messages":
        return None if isinstance(reply, list) else "it is no list"
    is_message = method != "DELETE" and (last in {"messages", "@original"} or "/messages/" in path)
    if is_message and "/reactions/" not in path:
        is_one = isinstance(reply, dict) and isinstance(reply.get("id"), str) and reply["id"]
        return None if is_one else "it has no `id`"
    return "no JSON" if isinstance(reply, str) and reply else None


def sentence_of(error: discord.HTTPException) -> str:
    """What a log may say of a refusal; Discord's own words may quote a message."""
    return f"status {error.status}, code {error.code}"


def chats_of(server: discord.Guild, since: datetime) -> list[Chat]:
    """The channels and threads of a server in which something was said since then."""
    oldest = discord.utils.time_snowflake(since)
    chats: list[discord.TextChannel | discord.VoiceChannel | discord.StageChannel | discord.Thread]
    chats = [*server.text_channels, *server.voice_channels, *server.stage_channels, *server.threads]
    return [one for one in chats if (one.last_message_id or 0) > oldest]


@asynccontextmanager
async def explained(channel: str) -> AsyncIterator[None]:
    """Make the library's errors ones of ours, without the words that it quotes.

    Raises:
        ConfigError: the token is none, or the bot may not hear what the settings want.
        Unreachable: Discord is not there, or breaks off.
    """
    try:
        yield
    except discord.LoginFailure:
        sentence = f"Discord knows no bot with the token of the channel {channel}; reset it in the developer portal"
        raise ConfigError(sentence) from None
    except discord.PrivilegedIntentsRequired:
        raise ConfigError(
            f"Discord does not let the bot of the channel {channel} read what is not said to it: turn on the message "
            f'content intent in the developer portal, or set channels.{channel}.groups to "addressed"'
        ) from None
    except discord.ConnectionClosed as error:
        if error.code == _NO_TOKEN:
            raise ConfigError(f"Discord does not take the token of the channel {channel} any more") from None
        raise Unreachable(f"Discord has closed the connection with code {error.code}") from None
    except discord.HTTPException as error:
        raise ConfigError(f"Discord refuses what the channel {channel} asks: {sentence_of(error)}") from None
    except (discord.DiscordException, aiohttp.ClientError, OSError, TimeoutError) as error:
        raise Unreachable(f"Discord cannot be reached: {type(error).__name__}") from None
