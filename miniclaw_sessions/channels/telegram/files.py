"""Pictures, voice messages, PDF and texts that people send on Telegram, fetched as far as they may be kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import anyio

from miniclaw_sessions.channels.telegram.reading import images_of, name_of
from miniclaw_sessions.channels.unseen import file_in
from miniclaw_sessions.core.protocol.images import image_of
from miniclaw_sessions.core.protocol.messages import Part

if TYPE_CHECKING:
    import telegram

_DOWNLOAD_S = 30.0  # then the others' messages have waited long enough


class Asked(Protocol):
    """Calls Telegram again and again until its own reply confirms that it was done."""

    async def __call__(self, call: Callable[[], Awaitable[bytes]], *, insist: bool) -> bytes:
        """What the call gives."""
        ...


class Files:
    """Fetches what messages hold.

    Args:
        bot: the bot.
        asked: how Telegram is called.
        max_image_bytes: how large a picture may be.
        max_file_bytes: how large another file may be.
    """

    def __init__(self, bot: telegram.Bot, asked: Asked, max_image_bytes: int, max_file_bytes: int) -> None:
        self._bot = bot
        self._asked = asked
        self._max_image_bytes = max_image_bytes
        self._max_file_bytes = max_file_bytes

    async def of(self, message: telegram.Message) -> list[Part]:
        """The file of a message, which is kept also where the model does not take it; none: it cannot be had."""
        if images := images_of(message):
            fitting = [one for one in images if (one.file_size or 0) <= self._max_image_bytes]
            part: Part | None = image_of(await self._content(fitting[-1])) if fitting else None
        else:
            file = message.voice or message.audio or message.document
            if file is None or (file.file_size or 0) > self._max_file_bytes:
                return []
            part = file_in(name_of(file), await self._content(file), self._max_file_bytes)
        return [] if part is None else [part]

    async def _content(self, file: telegram.PhotoSize | telegram.Document | telegram.Voice | telegram.Audio) -> bytes:
        """The bytes of a file; none where they cannot be had in time."""
        from telegram import error  # noqa: PLC0415 - an extra, and slow to load

        async def download() -> bytes:
            return bytes(await (await self._bot.get_file(file)).download_as_bytearray())

        with anyio.move_on_after(_DOWNLOAD_S), suppress(error.TelegramError):
            return await self._asked(download, insist=True)
        return b""
