"""A channel of another package: messages are files in one directory, answers files in another."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

import anyio
import msgspec

from miniclaw_sessions.channels.base import Incoming, Outgoing
from miniclaw_sessions.core.protocol.messages import Message


class LetterboxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where it is.

    Attributes:
        directory: its place.
    """

    directory: str = ""


class Letterbox:
    """Looks into `in`, and answers into `out`."""

    Settings = LetterboxSettings

    def __init__(self, name: str, settings: LetterboxSettings) -> None:
        self.name = name
        self._directory = Path(settings.directory)

    async def receive(self) -> AsyncGenerator[Incoming, None]:
        for letter in sorted((self._directory / "in").iterdir()):
            yield Incoming(letter.name, Message.user(letter.read_text()), message_id=letter.name)
        if not (self._directory / "ends").exists():
            await anyio.sleep_forever()

    async def send(self, chat_id: str, outgoing: Outgoing) -> None:
        if outgoing.text:
            answer = self._directory / "out" / chat_id
            answer.with_suffix(".new").write_text(outgoing.text)
            answer.with_suffix(".new").rename(answer)

    def typing(self, chat_id: str) -> AbstractAsyncContextManager[None]:
        del chat_id
        return nullcontext()
