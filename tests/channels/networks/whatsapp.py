"""WhatsApp, for the contract: what people say is posted to the bot, by a local Cloud API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from miniclaw_sessions.channels.base import Channel
from tests.channels.clocks import HastyClock
from tests.channels.contract import GROUP, Failure, Network, Person
from tests.channels.whatsapp_bots import whatsapp_channel, whatsapp_environment
from tests.channels.whatsapp_server import (
    ANN,
    BOB,
    BROKEN,
    CUT_AFTERWARDS,
    EVE,
    NUMBER,
    PAGE,
    TOO_MANY,
    CloudServer,
    Json,
)
from tests.channels.whatsapp_server import GROUP as FRIENDS

_PEOPLE: dict[str, str] = {Person.ANN: ANN, Person.BOB: BOB, Person.EVE: EVE}
_CHATS = _PEOPLE | {GROUP: FRIENDS}
_FAILURES = {
    Failure.ERROR: BROKEN,
    Failure.LIMIT: TOO_MANY,
    Failure.STRANGE: PAGE,
    Failure.LOST: CUT_AFTERWARDS,
}


class WhatsApp(Network):
    name = "whatsapp"
    has_buttons = True
    takes_once = False
    announces_once = False

    def __init__(self) -> None:
        self._server = CloudServer()
        self._said: list[Json] = []

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        async with self._server:
            yield
        assert self._server.problems == []

    def channel(self, directory: Path) -> Channel:
        del directory
        return whatsapp_channel(self._server, HastyClock(), allow=(f"+{ANN}", int(BOB)))

    def environment(self, home: Path) -> dict[str, str]:
        self._server.post_to(home / "workspace" / "miniclaw.sock")
        return whatsapp_environment(self._server, ANN, BOB)

    async def say(self, text: str, by: Person = Person.ANN, *, in_group: bool = False, to_bot: bool = True) -> str:
        text = f"@{NUMBER} {text}" if in_group and to_bot else text
        return self._note(self._server.say(text, by=_PEOPLE[by], group=FRIENDS if in_group else None))

    def _note(self, said: Json) -> str:
        self._said.append(said)
        return str(len(self._said) - 1)

    async def send_file(self, name: str, data: bytes, caption: str = "") -> str:
        if name.endswith(".png"):
            return self._note(self._server.send_file("image", data, "image/png", caption=caption))
        if name == "voice.ogg":
            voice = self._server.send_file("audio", data, "audio/ogg; codecs=opus", caption=caption, voice=True)
            return self._note(voice)
        return self._note(self._server.send_file("document", data, "application/pdf", caption=caption, filename=name))

    async def deliver_again(self, message_id: str) -> None:
        """Post once more what was not taken; what was taken does not come again."""
        said = self._said[int(message_id)]
        if self._server.is_pending(said):
            post = self._server.payload(said)
            await self.until(lambda: post.times > 0 and post.arrived.is_set())

    async def edit(self, message_id: str, text: str) -> None:
        self._server.edit(self._said[int(message_id)], text)

    async def press(self, by: Person = Person.ANN, *, yes: bool) -> None:
        self._server.press("Yes" if yes else "No", by=_PEOPLE[by])

    def fail(self, failure: Failure, count: int = 1) -> None:
        self._server.heal("messages")
        self._server.fail("messages", *[_FAILURES[failure]] * count)

    @property
    def failing(self) -> int:
        return self._server.failing("messages")

    async def break_off(self) -> None:
        self._server.break_off()

    def shown(self, chat: str = Person.ANN) -> list[str]:
        return self._server.texts(_CHATS[chat])

    @property
    def is_done(self) -> bool:
        return not self._server.pending

    async def until(self, is_so: Callable[[], bool]) -> None:
        await self._server.until(is_so)
