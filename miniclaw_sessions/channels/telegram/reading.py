"""What a message of Telegram says, and where: to the bot or to others, in words and in pictures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from miniclaw_sessions.channels.unseen import Kind, Unseen, unseen, with_unseen
from miniclaw_sessions.core.protocol.images import IMAGE_TYPES

if TYPE_CHECKING:
    import telegram


_KINDS: dict[str, Kind] = {
    "Animation": "animation",
    "Audio": "audio",
    "Contact": "contact",
    "Dice": "die",
    "Document": "file",
    "Location": "place",
    "Poll": "poll",
    "Sticker": "sticker",
    "Story": "story",
    "Venue": "place",
    "Video": "video",
    "VideoNote": "video message",
    "Voice": "voice message",
}
"""What is sent beside text and pictures, by the library's names."""


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


def text_of(bot: telegram.Bot, message: telegram.Message, missed: Sequence[Unseen]) -> str:
    """What is said, without the bot's name, and behind what it answers; of what no model sees, that it was sent."""
    text = message.text or message.caption or ""
    if message.chat.type != "private":
        text = re.sub(rf"^\s*@{bot.username}\b[,:]?\s*", "", text, flags=re.IGNORECASE)
        text = re.sub(rf"^(/\w+)@{bot.username}\b", r"\1", text, flags=re.IGNORECASE)
    text = with_unseen(missed, text)
    quoted = None if text.startswith("/") else message.reply_to_message
    if quoted is not None and quoted.from_user != bot.bot and (said := quoted.text or quoted.caption):
        text = "".join(f"> {line}\n" for line in said.splitlines()) + text
    return text


def unseen_in(message: telegram.Message) -> list[Unseen]:
    """What a message holds beside its text, where no model sees that."""
    attachment = message.effective_attachment
    if attachment is None:
        return []
    kind = "picture" if images_of(message) else _KINDS.get(type(attachment).__name__, "something")
    named = getattr(attachment, "file_name", None) or getattr(attachment, "emoji", None) or ""
    lasts = getattr(attachment, "duration", None)
    seconds = 0.0 if lasts is None else msgspec.convert(lasts, timedelta).total_seconds()
    return [unseen(kind, str(named), seconds)]


def name_of(file: telegram.Document | telegram.Voice | telegram.Audio) -> str:
    """What a file is called; a voice message has no name of its own."""
    return getattr(file, "file_name", None) or "voice.ogg"


def images_of(message: telegram.Message) -> Sequence[telegram.PhotoSize | telegram.Document]:
    """A photograph in all its sizes, the largest last, or a file that is a picture."""
    if message.photo:
        return message.photo
    file = message.document
    return [file] if file is not None and file.mime_type in IMAGE_TYPES else []
