"""Telegram, for the contract: long polling from a local Bot API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from miniclaw_sessions.channels.base import Channel
from miniclaw_sessions.channels.telegram.channel import TelegramChannel, TelegramSettings
from tests.channels.clocks import HastyClock
from tests.channels.contract import GROUP, Failure, Network, Person
from tests.channels.telegram_server import (
    ANN,
    BAD_GATEWAY,
    BOB,
    CUT_AFTERWARDS,
    TOKEN,
    TOO_MANY,
    BotServer,
    Json,
    Strange,
)
from tests.channels.telegram_server import GROUP as FRIENDS

_PEOPLE: dict[str, Json] = {
    Person.ANN: ANN,
    Person.BOB: BOB,
    Person.EVE: {"id": 44, "is_bot": False, "first_name": "Eve"},
}
_CHATS = {person: user["id"] for person, user in _PEOPLE.items()} | {GROUP: FRIENDS["id"]}
_FAILURES = {
    Failure.ERROR: BAD_GATEWAY,
    Failure.LIMIT: TOO_MANY,
    Failure.STRANGE: Strange(b"<html><title>Sign in</title></html>", "text/html"),
    Failure.LOST: CUT_AFTERWARDS,
}


class Telegram(Network):
    name = "telegram"
    has_gateways = False
    has_buttons = True
    takes_once = False
    announces_once = False

    def __init__(self) -> None:
        self._server = BotServer()
        self._said: list[Json] = []
        self._question: Json | None = None  # the one whose button was pressed; a program may show it for a while yet

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        async with self._server:
            yield
        assert self._server.problems == []

    def channel(self, directory: Path) -> Channel:
        del directory
        settings = TelegramSettings(allow=("42", "43"), api_url=self._server.url, stream=False)
        return TelegramChannel("telegram", settings, {"TELEGRAM_BOT_TOKEN": TOKEN}, HastyClock())

    def environment(self, home: Path) -> dict[str, str]:
        del home
        return {
            "TELEGRAM_BOT_TOKEN": TOKEN,
            "MINICLAW_CHANNELS_TELEGRAM_ALLOW": "42,43",
            "MINICLAW_CHANNELS_TELEGRAM_API_URL": self._server.url,
        }

    async def say(self, text: str, by: Person = Person.ANN, *, in_group: bool = False, to_bot: bool = True) -> str:
        text = f"@claw_bot {text}" if in_group and to_bot else text
        return self._note(self._server.say(text, sender=_PEOPLE[by], group=FRIENDS if in_group else None))

    def _note(self, message: Json) -> str:
        self._said.append(message)
        return str(len(self._said) - 1)

    async def send_file(self, name: str, data: bytes, caption: str = "") -> str:
        more: dict[str, Any] = {"caption": caption} if caption else {}
        if name.endswith(".png"):
            return self._note(self._server.photograph(data, **more))
        self._server.files[file_id := f"file{len(self._server.files)}"] = data
        file: Json = {"file_id": file_id, "file_unique_id": file_id, "file_size": len(data)}
        sent: Any = (
            {"voice": file | {"duration": 1}} if name == "voice.ogg" else {"document": file | {"file_name": name}}
        )
        return self._note(self._server.say(**sent, **more))

    async def deliver_again(self, message_id: str) -> None:
        """What is not confirmed comes with each poll, and what is confirmed never again."""
        server, said = self._server, self._said[int(message_id)]
        times = dict(server.deliveries)

        def has_come(update: Json) -> bool:
            return update not in server.updates or server.deliveries[update["update_id"]] > times[update["update_id"]]

        for update in [one for one in server.updates if one.get("message") == said]:
            await self.until(partial(has_come, update))

    async def edit(self, message_id: str, text: str) -> None:
        said = self._said[int(message_id)]
        said["date"] += 60  # so that each edit is later than the one before
        self._server.edit(said, text)

    async def press(self, by: Person = Person.ANN, *, yes: bool) -> None:
        self._question = self._server.press("Yes" if yes else "No", sender=_PEOPLE[by], question=self._question)

    def fail(self, failure: Failure, count: int = 1) -> None:
        self._server.heal("sendMessage")
        self._server.fail("sendMessage", *[_FAILURES[failure]] * count)

    @property
    def failing(self) -> int:
        return self._server.failing("sendMessage")

    async def break_off(self) -> None:
        self._server.fail("getUpdates", BAD_GATEWAY)
        self._server.say("who is it?", sender=_PEOPLE[Person.EVE])  # ends the poll that waits
        await self.until(lambda: not self._server.failing("getUpdates"))

    def shown(self, chat: str = Person.ANN) -> list[str]:
        return self._server.texts(_CHATS[chat])

    @property
    def is_done(self) -> bool:
        return not self._server.updates

    async def until(self, is_so: Callable[[], bool]) -> None:
        await self._server.until(is_so)
