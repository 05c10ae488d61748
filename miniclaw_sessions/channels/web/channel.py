"""The chat of a website: a script that any page embeds, and the requests of that script, below `/channels/NAME`.

The browser is the queue: it keeps a message until the daemon says that it is done, and sends it again under the same id
after a cut, or when either side was killed. So a turn that was cut off is taken up, and what was answered is not
answered twice.

A visitor reaches one chat, the one of his pass (`visitors`); no request names a chat in any other way. Browsers send
`Origin` with each POST, so everything but the script is a POST, and its page must be among `origins`.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager

import anyio
import msgspec
from anyio import to_thread

from miniclaw_sessions.channels.base import Incoming, Last, Outgoing, WebhookReply, WebhookRequest
from miniclaw_sessions.channels.own_chats import OwnChats
from miniclaw_sessions.channels.web.exchanges import Exchange, outcome
from miniclaw_sessions.channels.web.limits import Rate, Room, client_address
from miniclaw_sessions.channels.web.messages import incoming_of
from miniclaw_sessions.channels.web.requests import (
    LINES,
    SMALL_BYTES,
    Enter,
    Follow,
    Look,
    Refused,
    Say,
    body_of,
    document,
    length_of,
    permission,
    refusal,
)
from miniclaw_sessions.channels.web.script import script_reply
from miniclaw_sessions.channels.web.settings import WebSettings, key_in, key_of_workspace, listed_origins
from miniclaw_sessions.channels.web.transcript import follow, page_of
from miniclaw_sessions.channels.web.visitors import Pass, Visitors
from miniclaw_sessions.channels.web.words import words_in
from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.errors import ConfigError, EntryNotFound, SessionsError
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.printable import printable

log = get_logger(__name__)

WAIT_S = 20.0
"""How long a request waits for what becomes of its message; then the script asks again."""

READY_S = 5.0
"""How long a request waits until the channel has its key."""

_REMEMBERED = 1_000  # messages whose end is known, and origins that were refused


class WebChannel:
    """See `channels.base.Channel`.

    Args:
        name: names its sessions.
        settings: the website's.
        environ: where the keys may be.
        clock: when passes end, and how often visitors do something.

    Raises:
        ConfigError: no page may embed it, or a key is wrong.
    """

    Settings = WebSettings

    def __init__(
        self,
        name: str,
        settings: WebSettings,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self._settings = settings
        self._clock = clock or SystemClock()
        self._origins = listed_origins(name, settings)
        known = os.environ if environ is None else environ
        self._key = key_in(name, "key", settings.key_file, known)
        self._users_key = key_in(name, "users_key", settings.users_key_file, known)
        self._visitors: Visitors | None = None
        self._chats: OwnChats | None = None
        self._of_visitor = Rate(settings.messages_per_minute, self._clock)
        self._of_address = Rate(settings.requests_per_minute, self._clock)
        self._of_all = Rate(settings.all_messages_per_minute, self._clock)
        self._streams = Room(settings.streams_of_visitor, settings.streams_of_address, settings.streams)
        waiting = settings.waiting_bytes_of_visitor, settings.waiting_bytes_of_address, settings.waiting_bytes
        self._waiting = Room(*waiting)
        self._exchanges: OrderedDict[tuple[str, str], Exchange] = OrderedDict()  # the newest
        self._of: dict[Incoming, Exchange] = {}
        self._said: list[Incoming] = []
        self._changed = anyio.Event()
        self._has_key = anyio.Event()
        self._refused_origins: set[str] = set()
        self._routes: dict[str, Callable[[WebhookRequest, str], Awaitable[WebhookReply]]] = {
            "/enter": self._enter,
            "/say": self._say,
            "/earlier": self._earlier,
            "/follow": self._follow,
        }

    def __repr__(self) -> str:
        return f"<WebChannel {self.name}, {len(self._of)} messages under way>"

    def attach(self, chats: OwnChats) -> None:
        """As `channels.base.Channel`."""
        self._chats = chats

    # --- hearing and sending -----------------------------------------------------------------------------------------

    async def receive(self) -> AsyncGenerator[Incoming, None]:
        """As `channels.base.Channel`.

        Raises:
            ConfigError: there is no key, and none can be kept in the workspace.
        """
        if self._visitors is None:
            chats, days = self._own_chats(), self._settings.visitor_days
            key = self._key
            if key is None:
                key = await to_thread.run_sync(key_of_workspace, self.name, chats.directory)
            self._visitors = Visitors(self.name, key, self._users_key, self._clock, days)
            self._has_key.set()
        while True:
            self._changed = anyio.Event()
            while self._said:
                yield self._said.pop(0)
            await self._changed.wait()

    async def send(self, chat_id: str, outgoing: Outgoing) -> None:
        """As `channels.base.Channel`: requests learn what became of a message; the words go by `follow`."""
        del chat_id  # the exchange knows more
        if isinstance(outgoing, Last):
            self._of.pop(outgoing.incoming).end(outgoing)

    async def announce(self, chat_id: str, text: str, key: str) -> None:
        """As `channels.base.Channel`: visitors see it in the session, now or when they come back.

        Raises:
            StoreError: it cannot be saved.
        """
        await self._own_chats().note(chat_id, text, key)

    @asynccontextmanager
    async def typing(self, chat_id: str) -> AsyncIterator[None]:
        """As `channels.base.Channel`: nothing, because `follow` shows it."""
        del chat_id
        yield

    # --- requests ----------------------------------------------------------------------------------------------------

    async def webhook(self, request: WebhookRequest) -> WebhookReply:
        """Answer a visitor's browser."""
        if request.method in ("GET", "HEAD") and request.path == "/widget.js":
            headers = request.headers
            return script_reply(headers.get("if-none-match", ""), headers.get("accept-encoding", ""))
        origin = request.headers.get("origin", "")
        try:
            reply = await self._answer(request, origin)
        except Refused as refused:
            reply = refusal(refused)
        except SessionsError as error:
            kind = type(error).__name__
            log.warning("a visitor's request failed", action="web.failed", channel=self.name, error_type=kind)
            reply = refusal(Refused(503, "unavailable", "This does not work just now.", 5))
        listed = {"Access-Control-Allow-Origin": origin} if origin in self._origins else {}
        return msgspec.structs.replace(reply, headers={**reply.headers, **listed, "Vary": "Origin"})

    async def _answer(self, request: WebhookRequest, origin: str) -> WebhookReply:
        if origin not in self._origins:
            self._note_refused(origin)
            sentence = f"this page may not show this chat: channels.{self.name}.origins does not list its origin"
            raise Refused(403, "forbidden_origin", sentence)
        if request.method == "OPTIONS":
            return permission(request)
        if wait_s := self._of_address.take(self._address_of(request)):
            raise Refused(429, "rate_limited", "Too much comes from your network. It is tried again later.", wait_s)
        answer = self._routes.get(request.path)
        if answer is None or request.method != "POST":
            raise Refused(404, "not_found", "there is nothing here")
        return await answer(request, origin)

    def _note_refused(self, origin: str) -> None:
        """Log an origin that is not listed, once."""
        if origin in self._refused_origins or len(self._refused_origins) >= _REMEMBERED:
            return
        self._refused_origins.add(origin)
        log.warning(
            "a web page that is not listed has asked for the chat; `origins` would have to name it",
            action="web.refused",
            channel=self.name,
            origin=printable(origin)[:200],
        )

    def _address_of(self, request: WebhookRequest) -> str:
        forwarded = request.headers.get("x-forwarded-for", "")
        return client_address(request.address, forwarded, self._settings.trusted_proxies)

    async def _pass_of(self, request: WebhookRequest, origin: str) -> Pass | None:
        """The pass that a request shows; None: it shows none of ours."""
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        return (await self._ready()).read(text.strip(), origin) if scheme.lower() == "bearer" else None

    async def _visitor_of(self, request: WebhookRequest, origin: str) -> Pass:
        """Whose request it is.

        Raises:
            Refused: it shows no pass of ours.
        """
        if (found := await self._pass_of(request, origin)) is None:
            raise Refused(401, "unauthorized", "the pass is missing, wrong or over; ask /enter for one")
        return found

    async def _ready(self) -> Visitors:
        with anyio.move_on_after(READY_S):
            await self._has_key.wait()
        if self._visitors is None:
            raise Refused(503, "unavailable", "The chat is not ready yet.", 1)
        return self._visitors

    def _own_chats(self) -> OwnChats:
        if self._chats is None:
            raise ConfigError(f"the channel {self.name} was attached to no sessions")
        return self._chats

    async def _enter(self, request: WebhookRequest, origin: str) -> WebhookReply:
        """A pass, new or for longer, and what the script needs to know."""
        asked = await body_of(request, Enter, SMALL_BYTES)
        visitors, known = await self._ready(), await self._pass_of(request, origin)
        if asked.user:
            made = visitors.of_user(asked.user, asked.expires, asked.signature)
            if made is None:
                raise Refused(403, "wrong_signature", "the website's signature of its user is missing, wrong or over")
        else:
            made = visitors.new() if known is None or known.is_of_user else visitors.renewed(known)
        return document(
            200,
            visitor=visitors.signed(made, origin),
            takes=sorted(self._own_chats().takes),
            max_file_bytes=self._settings.max_file_bytes,
            max_characters=self._settings.max_characters,
            words=words_in(asked.lang),
        )

    async def _say(self, request: WebhookRequest, origin: str) -> WebhookReply:
        """What became of a message, or of a yes or no, which is handed over if it is new."""
        visitor = await self._visitor_of(request, origin)
        with ExitStack() as held:
            self._hold(held, request, visitor)
            said = await body_of(request, Say, self._settings.max_say_bytes)
            place = (visitor.chat_id, said.id)
            exchange = self._exchanges.get(place)
            if exchange is None or exchange.comes_again:
                if not said.is_whole:
                    raise Refused(404, "unknown", "send the whole message again")
                exchange = self._exchanges[place] = self._hand_over(said, visitor, held)
                while len(self._exchanges) > _REMEMBERED:
                    self._exchanges.popitem(last=False)  # its script sends it whole again, and the session knows it
        if not said.is_whole:  # what follows a whole message may be sent at once, and is behind it
            with anyio.move_on_after(WAIT_S):
                await exchange.over()
        return outcome(exchange)

    def _hold(self, held: ExitStack, request: WebhookRequest, visitor: Pass) -> None:
        """Take room for what a request brings, before it is read; what is small waits within the other limits.

        Raises:
            Refused: so much is on its way already, or it is too large.
        """
        size = length_of(request, self._settings.max_say_bytes)
        if size <= SMALL_BYTES:
            return
        whose = visitor.chat_id, self._address_of(request)
        if not self._waiting.has(*whose, size):
            sentence = "Other files are still on their way. These are sent when those are answered."
            raise Refused(429, "too_many_bytes", sentence, 5)
        held.enter_context(self._waiting.taken(*whose, size))

    def _hand_over(self, said: Say, visitor: Pass, held: ExitStack) -> Exchange:
        incoming = incoming_of(said, visitor, self._settings)
        if wait_s := 0 if said.text == "/stop" else self._of_visitor.take(visitor.chat_id) or self._of_all.take(""):
            raise Refused(429, "rate_limited", "That was much at once. It is sent later.", wait_s)
        exchange = self._of[incoming] = Exchange(held.pop_all())
        self._said.append(incoming)
        self._changed.set()
        return exchange

    async def _earlier(self, request: WebhookRequest, origin: str) -> WebhookReply:
        """The messages before those that are shown."""
        visitor = await self._visitor_of(request, origin)
        asked = await body_of(request, Look, SMALL_BYTES)
        session = await self._own_chats().find(visitor.chat_id)
        try:
            page = {"rows": [], "behind": None} if session is None else await page_of(session, asked.behind)
        except EntryNotFound:
            raise Refused(404, "not_found", "there is no such message in this chat") from None
        return document(200, **page)

    async def _follow(self, request: WebhookRequest, origin: str) -> WebhookReply:
        """The chat, as it goes on."""
        visitor = await self._visitor_of(request, origin)
        await body_of(request, Follow, SMALL_BYTES)
        address = self._address_of(request)
        if not self._streams.has(visitor.chat_id, address):
            raise Refused(429, "too_many_streams", "The chat is open too often. It is tried again later.", 10)
        return WebhookReply(200, self._lines(visitor.chat_id, address), LINES)

    async def _lines(self, chat_id: str, address: str) -> AsyncGenerator[bytes, None]:
        with self._streams.taken(chat_id, address):
            async for line in follow(self._own_chats(), chat_id):
                yield line
