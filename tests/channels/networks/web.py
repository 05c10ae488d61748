"""A website's visitors, for the contract: their browsers keep each message until the daemon is done with it."""

from __future__ import annotations

import base64
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2

from miniclaw_sessions.channels.base import Channel
from miniclaw_sessions.channels.web.channel import WebChannel
from miniclaw_sessions.channels.web.settings import WebSettings
from miniclaw_sessions.config import ListenSettings
from miniclaw_sessions.service.gateway.exchange import Exchange
from miniclaw_sessions.service.gateway.http import webhook_reply
from miniclaw_sessions.service.gateway.listeners import listen_tcp
from miniclaw_sessions.service.gateway.server import Server
from tests.channels.contract import Failure, Network, Person
from tests.channels.rooms import PATIENCE_S
from tests.channels.website import SITE, Browser

MANY = 1_000_000
PAUSE_S = 0.01


class Door:
    """A gateway with nothing but the channel, which may be away."""

    def __init__(self) -> None:
        self.channel: WebChannel | None = None
        self._under_way: dict[Exchange, anyio.CancelScope] = {}

    async def __call__(self, exchange: Exchange) -> None:
        if self.channel is None:
            exchange.break_off()
            return
        with anyio.CancelScope() as scope:
            self._under_way[exchange] = scope
            try:
                await exchange.reply(await webhook_reply(exchange, self.channel.webhook, ListenSettings()))
            finally:
                del self._under_way[exchange]

    def slam(self) -> None:
        """Break off what is under way."""
        for exchange, scope in list(self._under_way.items()):
            exchange.break_off()
            scope.cancel()


class Leaving(WebChannel):
    """A channel that is not reached any more when its program has ended."""

    door: Door

    async def aclose(self) -> None:
        self.door.channel = None
        self.door.slam()


class Visitor:
    """One person's browser: what it has still to say, and what was answered, by the ids of the messages."""

    def __init__(self, web: Web, origin: str = SITE) -> None:
        self.browser = Browser("", origin)
        self.outbox: list[dict[str, Any]] = []
        self.answers: dict[str, str] = {}
        self._web = web
        self._there: set[str] = set()
        self._news = anyio.Event()

    def enqueue(self, said: dict[str, Any]) -> str:
        self.outbox.append(said)
        self._news.set()
        return str(said["id"])

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._push)
            tasks.start_soon(self._ask)

    async def _push(self) -> None:
        """Send what the daemon does not have, in order."""
        while True:
            self._news = anyio.Event()
            while left := [one for one in self.outbox if one["id"] not in self._there]:
                await self._exchange(left[0]["id"], left[0])
            await self._news.wait()

    async def _ask(self) -> None:
        """Ask what became of the first."""
        while True:
            if self.outbox and (first := self.outbox[0]["id"]) in self._there:
                await self._exchange(first, {"id": first})
            else:
                await anyio.sleep(PAUSE_S)

    async def _exchange(self, message_id: str, body: dict[str, Any]) -> None:
        try:
            if not self.browser.visitor:
                await self.browser.enter()
            reply = await self.browser.post("say", body)
        except httpx2.TransportError:
            self._again()
            await anyio.sleep(PAUSE_S)
            return
        if reply.status_code == 202:
            self._there.add(message_id)
        elif reply.status_code == 200 and not self._web.loses():
            self.outbox = [one for one in self.outbox if one["id"] != message_id]
            if text := reply.json()["text"]:
                self.answers.setdefault(message_id, text)  # it is shown in its place, however often it comes
        else:
            self._again()
            await anyio.sleep(PAUSE_S)
        self._web.note()

    def _again(self) -> None:
        self._there.clear()
        self._news.set()


class Web(Network):
    name = "web"
    has_gateways = False
    has_groups = False
    has_edits = False
    has_buttons = True
    has_links = False  # a visitor sees the session of his own chat alone
    failures = frozenset({Failure.ERROR, Failure.STRANGE, Failure.LOST})  # all the same: the browser asks again

    def __init__(self) -> None:
        self._door = Door()
        self._visitors = {person: Visitor(self) for person in (Person.ANN, Person.BOB)}
        self._eve = Browser("", "https://evil.example")
        self._failing = 0
        self._pressed = ""
        self._changed = anyio.Event()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        (listener,) = listen_tcp("127.0.0.1:0")
        server = Server(self._door, max_connections=100, request_timeout_s=30.0, graceful_timeout_s=1.0)
        self._go_to(listener.port)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve_until_stopped, [listener.socket])
            for visitor in self._visitors.values():
                tasks.start_soon(visitor.run)
            yield
            self._door.slam()
            server.hurry()
            server.stop()
            await server.stopped.wait()
            tasks.cancel_scope.cancel()
        listener.close()
        for browser in (self._eve, *(one.browser for one in self._visitors.values())):
            await browser.aclose()

    def _go_to(self, port: int) -> None:
        for browser in (self._eve, *(one.browser for one in self._visitors.values())):
            browser.go_to(f"http://127.0.0.1:{port}/channels/web")

    def channel(self, directory: Path) -> Channel:
        del directory
        settings = WebSettings(
            origins=(SITE,),
            messages_per_minute=MANY,
            all_messages_per_minute=MANY,
            requests_per_minute=MANY,
            commands=True,
        )
        made = Leaving("web", settings, {})
        made.door, self._door.channel = self._door, made
        return made

    def environment(self, home: Path) -> dict[str, str]:
        del home
        (listener,) = listen_tcp("127.0.0.1:0")
        port = listener.port
        listener.close()
        self._go_to(port)
        return {
            "MINICLAW_LISTEN_TCP": f"127.0.0.1:{port}",
            "MINICLAW_CHANNELS_WEB_ORIGINS": SITE,
            "MINICLAW_CHANNELS_WEB_MESSAGES_PER_MINUTE": str(MANY),
            "MINICLAW_CHANNELS_WEB_ALL_MESSAGES_PER_MINUTE": str(MANY),
            "MINICLAW_CHANNELS_WEB_REQUESTS_PER_MINUTE": str(MANY),
        }

    # --- what people do ----------------------------------------------------------------------------------------------

    async def say(self, text: str, by: Person = Person.ANN, *, in_group: bool = False, to_bot: bool = True) -> str:
        del in_group, to_bot
        return await self._send({"id": uuid.uuid4().hex, "text": text}, by)

    async def _send(self, said: dict[str, Any], by: Person = Person.ANN) -> str:
        if by is Person.EVE:
            assert (await self._eve.post("say", said)).status_code == 403
            return str(said["id"])
        return self._visitors[by].enqueue(said)

    async def send_file(self, name: str, data: bytes, caption: str = "") -> str:
        file = {"name": name, "data": base64.b64encode(data).decode()}
        return await self._send({"id": uuid.uuid4().hex, "text": caption, "files": [file]})

    async def deliver_again(self, message_id: str) -> None:
        browser = self._visitors[Person.ANN].browser
        reply = await browser.post("say", {"id": message_id, "text": "slow"})
        assert reply.status_code in {200, 202}

    async def press(self, by: Person = Person.ANN, *, yes: bool) -> None:
        ann = self._visitors[Person.ANN].browser
        async with ann.open():
            await ann.until(lambda: any(one["kind"] == "asks" for one in ann.lines))
            for call in ann.lines[-1].get("calls", []):
                self._pressed = call["id"]
        await self._send({"id": f"pressed-{yes}-{by}-1", "approvals": {self._pressed: yes}}, by)

    # --- what goes wrong ---------------------------------------------------------------------------------------------

    def fail(self, failure: Failure, count: int = 1) -> None:
        del failure
        self._failing = count

    def loses(self) -> bool:
        """Whether what became of a message does not arrive."""
        is_lost = self._failing > 0
        self._failing -= is_lost
        return is_lost

    @property
    def failing(self) -> int:
        return self._failing

    async def break_off(self) -> None:
        self._door.slam()

    # --- what people see ---------------------------------------------------------------------------------------------

    def shown(self, chat: str = Person.ANN) -> list[str]:
        return [] if chat == Person.EVE else list(self._visitors[Person(chat)].answers.values())

    async def seen(self, chat: str = Person.ANN) -> list[str]:
        browser = self._visitors[Person(chat)].browser
        async with browser.open():
            return [text for row, text in zip(browser.rows, browser.texts, strict=True) if row["who"] == "assistant"]

    @property
    def is_done(self) -> bool:
        return not any(visitor.outbox for visitor in self._visitors.values())

    def note(self) -> None:
        """Something has changed."""
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, is_so: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not is_so():
                await self._changed.wait()
