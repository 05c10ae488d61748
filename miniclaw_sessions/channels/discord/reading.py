"""What a message of Discord says: to the bot or to others, in words, and what stands beside them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast
from urllib.parse import urlencode

import msgspec

from miniclaw_sessions.channels.discord.buttons import Fields
from miniclaw_sessions.channels.unseen import Unseen, kind_of, unseen

if TYPE_CHECKING:
    import discord

_SIDE = 1024  # pixels of a smaller version
_SPECIAL = re.compile(r"([\\`*_~|<>\[\]#-])")


class Exchange(msgspec.Struct, eq=False):
    """Where something was said, and what is known of its answer.

    Attributes:
        channel_id: the chat.
        message_id: the message's id, as it is handed over.
        reply_to: the message that the last part of the answer refers to; None: a command from the menu.
        token: lets a command's answer take the place of "is thinking".
        stands: the bot's messages that stand behind it already, perhaps parts of its answer.
        is_patient: whether its sender was sent word that it waits until something can be saved.
    """

    channel_id: int
    message_id: str
    reply_to: int | None = None
    token: str = ""
    stands: frozenset[str] = frozenset()
    is_patient: bool = False


def escaped(text: str) -> str:
    """A text that Discord shows to the letter, as what a person is to agree to."""
    return _SPECIAL.sub(r"\\\1", text)


def server_of(message: discord.Message) -> int | None:
    """The server in which it was said, also where the library does not know that one yet; None: a direct message."""
    if message.guild is not None:
        return message.guild.id
    found = getattr(message.channel, "guild_id", None)
    return found if isinstance(found, int) else None


def is_said(message: discord.Message) -> bool:
    """Whether a person has said it; Discord has messages of its own, such as that a person is new."""
    return not (message.author.bot or message.webhook_id or message.is_system())


def answered_by(message: discord.Message) -> int | None:
    """The message that this one answers."""
    reference = message.reference
    return None if reference is None or message.message_snapshots else reference.message_id


def is_addressed(user_id: int, message: discord.Message) -> bool:
    """Whether a message mentions the bot, or its role, or answers it."""
    if any(one.id == user_id for one in message.mentions):
        return True
    role = None if message.guild is None else message.guild.self_role
    if role is not None and role in message.role_mentions:
        return True
    answered = _answered(message)
    return answered is not None and answered.author.id == user_id


def text_of(user_id: int, message: discord.Message) -> str:
    """What is said, without the bot's name, and behind what it answers or passes on; people by their names."""
    text = message.content
    role = None if message.guild is None else message.guild.self_role
    own = rf"<@!?{user_id}>" if role is None else rf"<@(?:!?{user_id}|&{role.id})>"
    text = re.sub(rf"^\s*{own}[,:]?\s*", "", text)
    for person in message.mentions:
        text = text.replace(f"<@{person.id}>", f"@{person.display_name}")
    answered = _answered(message)
    passed_on = [one.content for one in message.message_snapshots]
    if answered is not None and answered.author.id != user_id and not text.startswith("/"):
        passed_on.append(answered.content)
    lines = [f"> {line}\n" for said in passed_on for line in said.splitlines()]
    return ("".join(lines) + text).strip()


def attachments_of(message: discord.Message) -> list[discord.Attachment]:
    """The files of a message and of what it passes on."""
    return [*message.attachments, *(one for said in message.message_snapshots for one in said.attachments)]


def buttons_of(message: discord.Message) -> list[Fields]:
    """The rows of buttons below a message, as Discord has them."""
    return [dict(one.to_dict()) for one in message.components]


def address_of(file: discord.Attachment, most: int) -> str:
    """Where a file's bytes are, or of a larger picture those of a smaller version; empty: it is too large."""
    if file.size <= most:
        return file.url
    if not (is_picture(file) and file.width and file.height):
        return ""
    scale = min(1.0, _SIDE / max(file.width, file.height))
    size = {"width": round(scale * file.width), "height": round(scale * file.height), "format": "webp"}
    return f"{file.proxy_url}{'&' if '?' in file.proxy_url else '?'}{urlencode(size)}"


def is_picture(file: discord.Attachment) -> bool:
    """Whether Discord takes it for a picture."""
    return (file.content_type or "").startswith("image/")


def id_of(message: discord.Message, *, is_edit: bool) -> str:
    """By what a message is recognized when it comes again; the press of a button has the id of its question."""
    if is_edit and message.edited_at is not None:
        return f"{message.id}.{message.edited_at.timestamp() * 1000:.0f}"
    return str(message.id)


def unseen_file(file: discord.Attachment) -> Unseen:
    """A file that no model sees."""
    if file.is_voice_message():
        return unseen("voice message", seconds=file.duration or 0)
    return unseen(kind_of(file.content_type or ""), file.filename)


def unseen_beside(message: discord.Message) -> list[Unseen]:
    """What else a message holds that no model sees."""
    stickers = [unseen("sticker", one.name) for one in message.stickers]
    return [*stickers, *([] if message.poll is None else [unseen("poll")])]


def _answered(message: discord.Message) -> discord.Message | None:
    """The message that this one answers, where Discord shows it."""
    resolved = None if message.reference is None else message.reference.resolved
    is_shown = isinstance(getattr(resolved, "content", None), str)  # else it was deleted
    return cast("discord.Message", resolved) if is_shown else None


class Unanswered(NamedTuple):
    """Something in a chat's history that has no answer.

    Attributes:
        message: a person's, or a question of the bot whose button was pressed.
        is_edit: whether its first wording was answered.
        stands: the bot's texts behind it, perhaps the first parts of its answer.
    """

    message: discord.Message
    is_edit: bool
    stands: frozenset[str]


def unanswered(user_id: int, said: Sequence[discord.Message]) -> list[Unanswered]:
    """What has no answer yet. The last part of an answer refers to its message; a mark stands below what gets none.

    What people say to each other counts only since the bot has answered there: a bot that is new answers no old talk.

    Args:
        user_id: the bot's.
        said: the messages of a chat, the oldest first.
    """
    own = [one for one in said if one.author.id == user_id]
    answered_at = {answered_by(one): one.created_at for one in own}
    first_answer_at = min((one.created_at for one in own if answered_by(one) is not None), default=None)
    found = []
    for message in said:
        is_marked = any(one.me for one in message.reactions)
        answered = answered_at.get(message.id)
        is_edit = answered is not None and message.edited_at is not None and message.edited_at > answered
        is_open = not is_marked and (is_edit or answered is None)
        is_new = first_answer_at is None or message.created_at < first_answer_at
        is_talk = is_new and server_of(message) is not None and not is_addressed(user_id, message)
        is_meant = bool(message.components) if message.author.id == user_id else is_said(message) and not is_talk
        if is_open and is_meant:
            since = message.edited_at if is_edit and message.edited_at is not None else message.created_at
            stands = frozenset(one.content for one in own if one.created_at >= since)
            found.append(Unanswered(message, is_edit and message.author.id != user_id, stands))
    return found
