"""Discord, for the contract: its gateway and its HTTP interface on this machine."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from miniclaw_sessions.channels.base import Channel
from miniclaw_sessions.channels.discord.channel import DiscordChannel, DiscordSettings
from tests.channels.clocks import HastyClock
from tests.channels.contract import GROUP, Failure, Network, Person
from tests.channels.discord_server import (
    ANN,
    BOB,
    BOT,
    EVE,
    LOST,
    PRIVATE,
    ROOM,
    TOKEN,
    UNAVAILABLE,
    DiscordServer,
    Json,
    Strange,
    too_many,
)

_PEOPLE: dict[str, Json] = {Person.ANN: ANN, Person.BOB: BOB, Person.EVE: EVE}
_CHATS = {person: PRIVATE[user["id"]] for person, user in _PEOPLE.items()} | {GROUP: ROOM}
_FAILURES = {
    Failure.ERROR: UNAVAILABLE,
    Failure.LIMIT: too_many(0.01),
    Failure.STRANGE: Strange(b"<html><title>Sign in</title></html>"),
    Failure.LOST: LOST,
}
_KINDS = {"png": "image/png", "ogg": "audio/ogg", "pdf": "application/pdf"}


class Discord(Network):
    name = "discord"
    has_buttons = True

    def __init__(self) -> None:
        self._server = DiscordServer()
        self._said: dict[str, Json] = {}
        self._meant: list[Json] = []

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        async with self._server:
            yield
        assert self._server.problems == []

    def channel(self, directory: Path) -> Channel:
        del directory
        settings = DiscordSettings(allow=(42, 43), api_url=self._server.url)
        return DiscordChannel("discord", settings, {"DISCORD_BOT_TOKEN": TOKEN}, HastyClock())

    def environment(self, home: Path) -> dict[str, str]:
        del home
        return {
            "DISCORD_BOT_TOKEN": TOKEN,
            "MINICLAW_CHANNELS_DISCORD_ALLOW": "42,43",
            "MINICLAW_CHANNELS_DISCORD_API_URL": self._server.url,
        }

    async def say(self, text: str, by: Person = Person.ANN, *, in_group: bool = False, to_bot: bool = True) -> str:
        words = f"<@{BOT['id']}> {text}" if in_group and to_bot else text
        message = self._server.say(words, _PEOPLE[by], ROOM if in_group else None)
        return self._note(message, is_meant=by is not Person.EVE and (to_bot or not in_group))

    def _note(self, message: Json, *, is_meant: bool = True) -> str:
        self._said[message["id"]] = message
        if is_meant:
            self._meant.append(message)
        return str(message["id"])

    async def send_file(self, name: str, data: bytes, caption: str = "") -> str:
        about = {"duration_secs": 1.0, "waveform": "AAAA"} if name == "voice.ogg" else {}
        file = self._server.attach(name, data, _KINDS.get(name.rpartition(".")[2], ""), **about)
        return self._note(self._server.say(caption, attachments=[file]))

    async def deliver_again(self, message_id: str) -> None:
        self._server.deliver(self._said[message_id])

    async def edit(self, message_id: str, text: str) -> None:
        self._server.edit(self._said[message_id], text)

    async def press(self, by: Person = Person.ANN, *, yes: bool) -> None:
        await self.until(lambda: self._server.is_listened_to)
        question = [one for one in self._server.said(PRIVATE[ANN["id"]]) if one["components"]][-1]
        self._server.press(question, "Yes" if yes else "No", _PEOPLE[by])

    def fail(self, failure: Failure, count: int = 1) -> None:
        self._server.instead["send"] = [_FAILURES[failure]] * count

    @property
    def failing(self) -> int:
        return len(self._server.instead["send"])

    async def break_off(self) -> None:
        await self._server.drop()

    def shown(self, chat: str = Person.ANN) -> list[str]:
        return [re.sub(r"\\([^0-9A-Za-z\s])", r"\1", text) for text in self._server.texts(_CHATS[chat])]

    @property
    def is_done(self) -> bool:
        return all(self._server.is_answered(one) for one in self._meant)

    async def until(self, is_so: Callable[[], bool]) -> None:
        await self._server.until(is_so)
