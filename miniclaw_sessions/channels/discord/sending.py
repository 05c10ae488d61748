"""What Discord is sent: answers in as many messages as they need, each taken once, and marks."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import discord
from discord.http import Route, handle_message_parameters

from miniclaw_sessions.channels.base import Last
from miniclaw_sessions.channels.buttons import asked_in
from miniclaw_sessions.channels.discord.buttons import Fields, buttons_for
from miniclaw_sessions.channels.discord.client import Client, sentence_of
from miniclaw_sessions.channels.discord.reading import Exchange, escaped
from miniclaw_sessions.channels.markdown import images_in, model_message
from miniclaw_sessions.channels.splitting import split, utf16_units
from miniclaw_sessions.clock import Clock
from miniclaw_sessions.core.protocol.messages import ImagePart
from miniclaw_sessions.errors import Unreachable
from miniclaw_sessions.log import get_logger

log = get_logger(__name__)

MAX_TEXT = 2000
"""Characters of one message; counted as UTF-16 has them, of which there are never fewer."""

_MAX_IMAGES = 10  # of one message
_MAX_NONCE = 25
_BACKOFF_S = (1.0, 60.0)
_TOO_MANY, _ACKNOWLEDGED = 429, 40060
_NO_EMBEDS = discord.MessageFlags(suppress_embeds=True)  # else the address of a link is asked for its picture
_NO_MENTIONS = discord.AllowedMentions.none()  # the model calls no one
_SEEN = "☑️"  # below a message that gets no answer, such as one that was stopped
_NO_PICTURE = "(The answer has a picture that Discord does not take.)"
_CALLBACK = "/interactions/{webhook_id}/{webhook_token}/callback"
_ORIGINAL = "/webhooks/{webhook_id}/{webhook_token}/messages/@original"


class Refused(Unreachable):
    """Discord itself refuses something for good."""


class Sender:
    """Sends, until Discord's own reply confirms it.

    Args:
        channel: the channel's name, for the log.
        client: the connection.
        clock: for the pauses after a failure.
    """

    def __init__(self, channel: str, client: Client, clock: Clock) -> None:
        self._channel = channel
        self._client = client
        self._clock = clock

    async def answer(self, exchange: Exchange, last: Last) -> None:
        """Send a final outcome; only its last message refers to the question.

        Raises:
            Refused: Discord does not take it.
        """
        message = model_message(last)
        # a question for approval is not the model's: it is shown to the letter
        pieces = _to_the_letter(last.text) if message is None else split(last.text, MAX_TEXT, utf16_units)
        images, buttons = images_in(message)[:_MAX_IMAGES], buttons_for(asked_in(last))
        if not (pieces or images):
            await self.mark(exchange)
        if exchange.token and pieces and await self._fill_in(exchange, pieces[0], buttons if len(pieces) == 1 else []):
            pieces = pieces[1:]
        for number, piece in enumerate(pieces):
            if number == len(pieces) - 1 and not images:
                await self.post(exchange, piece, number, ends=True, buttons=buttons)
            elif piece not in exchange.stands:
                await self.post(exchange, piece, number)
        if images:
            await self._post_images(exchange, images)

    async def announce(self, exchange: Exchange, text: str) -> None:
        """Say something that answers no message.

        Raises:
            Refused: Discord does not take it.
        """
        for number, piece in enumerate(_to_the_letter(text)):
            await self.post(exchange, piece, number)

    async def post(  # noqa: PLR0913 - options, each with a name and a default
        self,
        exchange: Exchange,
        text: str,
        part: int | str,
        *,
        ends: bool = False,
        images: Sequence[ImagePart] = (),
        buttons: Sequence[Fields] = (),
    ) -> None:
        """Send a message, which Discord takes once.

        Args:
            exchange: where.
            text: what it says.
            part: which part of the answer it is.
            ends: whether it is the last one, which refers to what it answers.
            images: what is attached.
            buttons: what is below it.

        Raises:
            Refused: Discord does not take it.
        """
        key = f"{exchange.message_id}.{part}.{text}"
        options: dict[str, Any] = {"nonce": hashlib.sha256(key.encode()).hexdigest()[:_MAX_NONCE]}
        if ends and exchange.reply_to is not None:
            options["message_reference"] = {"message_id": exchange.reply_to, "fail_if_not_exists": False}

        async def send() -> None:
            if images:  # read to their ends by the attempt before
                options["files"] = [_file(number, one) for number, one in enumerate(images)]
            params = handle_message_parameters(text, allowed_mentions=_NO_MENTIONS, flags=_NO_EMBEDS, **options)
            if buttons and params.payload is not None:
                params.payload["components"] = buttons
            await self._client.http.send_message(exchange.channel_id, params=params)

        await self._insist(send)

    async def _post_images(self, exchange: Exchange, images: Sequence[ImagePart]) -> None:
        try:
            await self.post(exchange, "", "images", ends=True, images=images)
        except Refused:  # one of them is too large
            await self.post(exchange, _NO_PICTURE, "no images", ends=True)

    async def _fill_in(self, exchange: Exchange, text: str, buttons: Sequence[Fields]) -> bool:
        """Put an answer in the place of "is thinking"; whether that was still possible."""
        fields = {
            "content": text,
            "allowed_mentions": _NO_MENTIONS.to_dict(),
            "flags": _NO_EMBEDS.value,
            "components": buttons,
        }
        try:
            await self._insist(lambda: self._original("PATCH", exchange, json=fields))
        except Refused:  # after a quarter of an hour, it is not
            exchange.token = ""
            return False
        return True

    async def _original(self, method: str, exchange: Exchange, **options: Any) -> None:
        route = Route(method, _ORIGINAL, webhook_id=self._client.application_id, webhook_token=exchange.token)
        await self._client.http.request(route, **options)

    async def mark(self, exchange: Exchange) -> None:
        """Show that a message is done and gets no answer; where the bot may not, a restart asks for it once more."""
        with suppress(Refused):
            if exchange.token:
                await self._insist(lambda: self._original("DELETE", exchange))
            elif (message_id := exchange.reply_to) is not None:
                http = self._client.http
                await self._insist(lambda: http.add_reaction(exchange.channel_id, message_id, quote(_SEEN)))

    async def respond(self, interaction: discord.Interaction, fields: Fields) -> bool | None:
        """Answer an interaction; whether Discord has taken that. There is no time to try it again.

        Returns:
            None: another gateway of this bot has answered it, and it is that one's.
        """
        route = Route("POST", _CALLBACK, webhook_id=interaction.id, webhook_token=interaction.token)
        try:
            await self._client.http.request(route, json=fields)
        except discord.HTTPException as error:  # it was too late
            if error.code == _ACKNOWLEDGED:
                return None
            why = sentence_of(error)
        except Unreachable as error:
            why = str(error)
        else:
            return True
        log.warning(
            "a command or a button was not confirmed in time",
            action="channel.unconfirmed",
            channel=self._channel,
            detail=why,
        )
        return False

    async def _insist(self, call: Callable[[], Awaitable[Any]]) -> None:
        """Ask again and again, until Discord's own reply confirms or refuses it."""
        delay, longest = _BACKOFF_S
        while True:
            try:
                await call()
            except discord.HTTPException as error:
                if error.status != _TOO_MANY:  # else the library has waited several times, and gives up
                    raise Refused(f"Discord does not take an answer: {sentence_of(error)}") from None
            except Unreachable as error:
                if delay == _BACKOFF_S[0]:
                    why = {"channel": self._channel, "detail": str(error)}
                    log.warning("what Discord does not confirm is sent again", action="channel.unconfirmed", **why)
            else:
                return
            await self._clock.sleep(delay)
            delay = min(2 * delay, longest)


def _to_the_letter(text: str) -> list[str]:
    """A text in pieces that Discord shows as it is."""
    return [escaped(one) for one in split(text, MAX_TEXT, lambda one: utf16_units(escaped(one)))]


def _file(number: int, image: ImagePart) -> discord.File:
    name = f"image{number}.{image.media_type.partition('/')[2] or 'png'}"
    return discord.File(io.BytesIO(base64.b64decode(image.data or "")), name)
