"""Feishu, for the contract: the interface and the long connection of a local server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from miniclaw_sessions.channels.base import Channel
from miniclaw_sessions.channels.feishu.channel import FeishuChannel, FeishuSettings
from tests.channels import feishu_server
from tests.channels.clocks import HastyClock
from tests.channels.contract import GROUP, Failure, Network, Person
from tests.channels.feishu_server import APP, BOT, BROKEN, LIMITED, LOST, SECRET, STRANGE, FeishuServer, chat_of

_PEOPLE = {Person.ANN: feishu_server.ANN, Person.BOB: feishu_server.BOB, Person.EVE: feishu_server.EVE}
_CHATS = {person: chat_of(user) for person, user in _PEOPLE.items()} | {GROUP: feishu_server.GROUP}
_FAILURES = {Failure.ERROR: BROKEN, Failure.LIMIT: LIMITED, Failure.STRANGE: STRANGE, Failure.LOST: LOST}


class Feishu(Network):
    name = "feishu"
    has_edits = False
    has_buttons = True
    has_captions = False

    def __init__(self) -> None:
        self.server = FeishuServer()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        async with self.server.serve(), anyio.create_task_group() as tasks:
            tasks.start_soon(self._deliver_what_is_pending)
            yield
            tasks.cancel_scope.cancel()
        assert self.server.problems == []

    async def _deliver_what_is_pending(self) -> None:
        """As Feishu does after 15 seconds, 5 minutes, an hour and six hours."""
        while True:
            await anyio.sleep(0.2)
            for event_id in sorted(self.server.pending):
                await self.server.deliver_again(event_id)

    def channel(self, directory: Path) -> Channel:
        del directory
        settings = FeishuSettings(allow=(feishu_server.ANN, feishu_server.BOB), app_id=APP, api_url=self.server.url)
        return FeishuChannel("feishu", settings, {"FEISHU_APP_SECRET": SECRET}, HastyClock())

    def environment(self, home: Path) -> dict[str, str]:
        del home
        return {
            "FEISHU_APP_SECRET": SECRET,
            "MINICLAW_CHANNELS_FEISHU_ALLOW": f"{feishu_server.ANN},{feishu_server.BOB}",
            "MINICLAW_CHANNELS_FEISHU_APP_ID": APP,
            "MINICLAW_CHANNELS_FEISHU_API_URL": self.server.url,
        }

    async def say(self, text: str, by: Person = Person.ANN, *, in_group: bool = False, to_bot: bool = True) -> str:
        where: dict[str, Any] = {"chat": feishu_server.GROUP} if in_group else {}
        if in_group and to_bot:
            return await self.server.say(f"@_user_1 {text}", _PEOPLE[by], mentions=(BOT,), **where)
        return await self.server.say(text, _PEOPLE[by], **where)

    async def send_file(self, name: str, data: bytes, caption: str = "") -> str:
        key = f"{'img' if name.endswith('.png') else 'file'}_{len(self.server.files)}"
        self.server.files[key] = data
        if name.endswith(".png"):
            picture = {"tag": "img", "image_key": key}
            words = [[{"tag": "text", "text": caption}]] if caption else []
            return await self.server.say({"title": "", "content": [[picture], *words]}, kind="post")
        if name == "voice.ogg":
            return await self.server.say({"file_key": key, "duration": 1000}, kind="audio")
        return await self.server.say({"file_key": key, "file_name": name}, kind="file")

    async def deliver_again(self, message_id: str) -> None:
        await self.server.deliver_again(message_id)

    async def press(self, by: Person = Person.ANN, *, yes: bool) -> None:
        await self.server.press("yes" if yes else "no", _PEOPLE[by], _CHATS[Person.ANN])

    def fail(self, failure: Failure, count: int = 1) -> None:
        self.server.fail("send", *[_FAILURES[failure]] * count)

    @property
    def failing(self) -> int:
        return len(self.server.refused["send"])

    async def break_off(self) -> None:
        await self.server.break_off()

    def shown(self, chat: str = Person.ANN) -> list[str]:
        return self.server.texts(_CHATS[chat])

    @property
    def is_done(self) -> bool:
        return not self.server.pending

    async def until(self, is_so: Callable[[], bool]) -> None:
        await self.server.until(is_so)
