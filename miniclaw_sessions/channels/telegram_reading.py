"""What a message of Telegram says, and where: to the bot or to others, in words and in pictures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from miniclaw_sessions.channels.unseen import Unseen
from miniclaw_sessions.core.protocol.images import IMAGE_TYPES

if TYPE_CHECKING:
    import telegram


_MAX_NAME = 100
_UNSEEN = {
    "Animation": ("an animation", "watch", False),
    "Audio": ("an audio file", "listen to", True),
    "Contact": ("a contact", "open", True),
    "Dice": ("a die", "see", False),
    "Document": ("a file", "open", True),
    "Location": ("a place on a map", "see", True),
    "Poll": ("a poll", "see", True),
    "Sticker": ("a sticker", "see", False),
    "Story": ("a story", "watch", True),
    "Venue": ("a place on a map", "see", True),
    "Video": ("a video", "watch", True),
    "VideoNote": ("a video message", "watch", True),
    "Voice": ("a voice message", "listen to", True),
}
"""What is sent beside text and pictures, by the library's names: what it is, what this program cannot do with it, and
whether the person is answered so."""


class Place(NamedTuple):
    """A chat, and in a forum one of its topics."""

    chat_id: int
    topic_id: int | None = None

    @classmethod
    def of(cls, chat_id: str) -> Place:
        """From its text: `-100123`, with a topic `-100123.45`."""
        chat, _, topic = chat_id.partition(".")
        return cls(int(chat), int(topic) if topic else None)

    def __str__(self) -> str:
        return str(self.chat_id) if self.topic_id is None else f"{self.chat_id}.{self.topic_id}"


def album_in(fields: Mapping[str, Any]) -> tuple[tuple[int, str], int] | None:
    """The album that an update is a picture of, by its chat and its id, and the id of its message; None: of none."""
    match fields.get("message"):
        case {"media_group_id": str(group), "message_id": int(message_id), "chat": {"id": int(chat_id)}} if group:
            return (chat_id, group), message_id
    return None


def place_of(message: telegram.Message) -> Place:
    """Where a message was said."""
    return Place(message.chat.id, message.message_thread_id if message.is_topic_message else None)


def is_addressed(bot: telegram.Bot, message: telegram.Message) -> bool:
    """Whether a group's message mentions the bot, answers it, or is a command that is not another bot's."""
    to = message.reply_to_message
    if to is not None and to.from_user == bot.bot and to.forum_topic_created is None:
        return True
    entities = message.parse_entities() or message.parse_caption_entities()
    name = f"@{bot.username}".lower()
    for entity, text in entities.items():
        named = entity.type == "mention" and text.lower() == name
        commanded = entity.type == "bot_command" and text.lower().partition("@")[2] in ("", name[1:])
        if named or commanded or (entity.user is not None and entity.user.id == bot.id):
            return True
    return False


def text_of(bot: telegram.Bot, message: telegram.Message) -> str:
    """What is said, without the bot's name, and behind what it answers; of what no model sees, that it was sent."""
    text = message.text or message.caption or ""
    if message.chat.type != "private":
        text = re.sub(rf"^\s*@{bot.username}\b[,:]?\s*", "", text, flags=re.IGNORECASE)
        text = re.sub(rf"^(/\w+)@{bot.username}\b", r"\1", text, flags=re.IGNORECASE)
    if (unseen := unseen_in(message)) is not None:
        text = f"{unseen.to_model}\n{text}".rstrip()
    quoted = None if text.startswith("/") else message.reply_to_message
    if quoted is not None and quoted.from_user != bot.bot and (said := quoted.text or quoted.caption):
        text = "".join(f"> {line}\n" for line in said.splitlines()) + text
    return text


def unseen_in(message: telegram.Message) -> Unseen | None:
    """What a message holds that no model sees; None: nothing."""
    attachment = message.effective_attachment
    if attachment is None or images_of(message):
        return None
    what, verb, is_answered = _UNSEEN.get(type(attachment).__name__, ("something", "read", True))
    named = getattr(attachment, "file_name", None) or getattr(attachment, "emoji", None)
    seconds = getattr(attachment, "duration", None)
    if named:
        what = f"{what} ({' '.join(str(named).split())[:_MAX_NAME]})"
    elif seconds:
        seconds = int(msgspec.convert(seconds, timedelta).total_seconds())
        what = f"{what} of {seconds} second{'' if seconds == 1 else 's'}"
    return Unseen(what, verb, is_answered)


def images_of(message: telegram.Message) -> Sequence[telegram.PhotoSize | telegram.Document]:
    """A photograph in all its sizes, the largest last, or a file that is a picture."""
    if message.photo:
        return message.photo
    file = message.document
    return [file] if file is not None and file.mime_type in IMAGE_TYPES else []
