"""Matrix, for the contract: rooms of a local homeserver."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from miniclaw_sessions.channels.base import Channel
from miniclaw_sessions.channels.matrix.channel import MatrixChannel, MatrixSettings
from tests.channels.contract import GROUP, Failure, Network, Person
from tests.channels.homeserver import BOT, Homeserver

_PEOPLE = {Person.ANN: "@ann:example.org", Person.BOB: "@bob:example.org", Person.EVE: "@eve:example.org"}
_ALLOWED = _PEOPLE[Person.ANN], _PEOPLE[Person.BOB]
_ROOMS = {chat: f"!{chat}:example.org" for chat in (*Person, GROUP)}
_INSTEAD = {
    Failure.LIMIT: (
        429,
        "application/json",
        b'{"errcode": "M_LIMIT_EXCEEDED", "error": "too many", "retry_after_ms": 1}',
    ),
    Failure.STRANGE: (200, "text/html", b"<html><title>Sign in</title></html>"),
}


class Matrix(Network):
    name = "matrix"

    def __init__(self) -> None:
        self._server = Homeserver(wait_s=0.05)
        self._server.rooms = {room: 4 if chat == GROUP else 2 for chat, room in _ROOMS.items()}
        self._server.position = "0"

    def serve(self) -> AbstractAsyncContextManager[None]:
        return self._server.serve()

    def channel(self, directory: Path) -> Channel:
        token = directory / "token"
        token.touch(mode=0o600)
        token.write_text("token")
        return MatrixChannel(
            "matrix", MatrixSettings(homeserver=self._server.url, token_file=str(token), allow=_ALLOWED)
        )

    def environment(self, home: Path) -> dict[str, str]:
        del home
        return {
            "MATRIX_TOKEN": "token",
            "MINICLAW_CHANNELS_MATRIX_ALLOW": ",".join(_ALLOWED),
            "MINICLAW_CHANNELS_MATRIX_HOMESERVER": self._server.url,
        }

    async def say(self, text: str, by: Person = Person.ANN, *, in_group: bool = False, to_bot: bool = True) -> str:
        content: dict[str, Any] = {}
        if in_group and to_bot:
            text, content = f"{BOT}: {text}", {"m.mentions": {"user_ids": [BOT]}}
        return self._server.say(text, _PEOPLE[by], _ROOMS[GROUP if in_group else by], **content)

    async def send_file(self, name: str, data: bytes, caption: str = "") -> str:
        self._server.files[media_id := f"file{len(self._server.files)}"] = data
        kinds = {".png": "m.image", ".ogg": "m.audio"}
        content: dict[str, Any] = {
            "msgtype": kinds.get(Path(name).suffix, "m.file"),
            "url": f"mxc://example.org/{media_id}",
            "filename": name,
            "info": {"size": len(data), "duration": 1000},
        }
        if name == "voice.ogg":
            content["org.matrix.msc3245.voice"] = {}
        return self._server.say(caption or name, _PEOPLE[Person.ANN], _ROOMS[Person.ANN], **content)

    async def deliver_again(self, message_id: str) -> None:
        room, event = next(one for one in self._server.events if one[1]["event_id"] == message_id)
        self._server.add(event, room)

    async def edit(self, message_id: str, text: str) -> None:
        room, event = next(one for one in self._server.events if one[1]["event_id"] == message_id)
        new = {"m.new_content": {"msgtype": "m.text", "body": text}}
        relation = {"m.relates_to": {"rel_type": "m.replace", "event_id": message_id}}
        self._server.say(f"* {text}", event["sender"], room, **new, **relation)

    def fail(self, failure: Failure, count: int = 1) -> None:
        self._server.refused = count if failure is Failure.ERROR else 0
        self._server.lost = count if failure is Failure.LOST else 0
        self._server.instead["PUT _send"] = [_INSTEAD[failure]] * count if failure in _INSTEAD else []

    @property
    def failing(self) -> int:
        return self._server.refused + self._server.lost + len(self._server.instead["PUT _send"])

    async def break_off(self) -> None:
        self._server.broken = 1
        self._server.change()
        await self.until(lambda: not self._server.broken)

    def shown(self, chat: str = Person.ANN) -> list[str]:
        told = zip(self._server.answered_in, self._server.answers.values(), strict=True)
        return [text for room, text in told if room == _ROOMS[chat]]

    @property
    def is_done(self) -> bool:
        return self._server.position == str(len(self._server.events))

    async def until(self, is_so: Callable[[], bool]) -> None:
        await self._server.until(is_so)
