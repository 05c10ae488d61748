"""What an event of Feishu says, and where: to the bot or to others, in words, pictures and files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec

from miniclaw_sessions.channels.unseen import Kind, Unseen, unseen

MESSAGE = "im.message.receive_v1"
"""The type of the event that a person has said something."""

PRESS = "card.action.trigger"
"""The type of the callback that a person has pressed a button of a card."""

_MENTION = re.compile(r"@_user_\d+|@_all\b")
_KINDS: dict[str, Kind] = {
    "audio": "voice message",
    "file": "file",
    "folder": "file",
    "location": "place",
    "media": "video",
    "share_user": "contact",
    "sticker": "sticker",
    "vote": "poll",
}
"""What is sent beside text and pictures, by Feishu's names; there are others, and will be more."""


# --- events, as far as they are read ---------------------------------------------------------------------------------


class Ids(msgspec.Struct, frozen=True):
    """A person, by the id that this app knows them by."""

    open_id: str | None = None


class Mention(msgspec.Struct, frozen=True):
    """A person or bot that is mentioned, by the key that stands for them in the text."""

    key: str
    id: Ids = Ids()
    name: str | None = None


class Sender(msgspec.Struct, frozen=True):
    """Who has said it; `sender_type` is `user` for a person."""

    sender_id: Ids = Ids()
    sender_type: str = ""


class Sent(msgspec.Struct, frozen=True):
    """A message as the event has it; `content` is JSON of its own."""

    message_id: str
    chat_id: str
    chat_type: str
    message_type: str
    content: str
    parent_id: str | None = None
    thread_id: str | None = None
    mentions: Sequence[Mention] | None = None

    @property
    def is_group(self) -> bool:
        """Whether others read along."""
        return self.chat_type != "p2p"

    def mentions_bot(self, bot_id: str) -> bool:
        """Whether the bot is mentioned by its own name, and not only as one of all."""
        return any(one.id.open_id == bot_id for one in self.mentions or ())


class MessageEvent(msgspec.Struct, frozen=True):
    """The event `MESSAGE`."""

    sender: Sender
    message: Sent


class Action(msgspec.Struct, frozen=True):
    """The button; `value` is what the card gave it."""

    value: dict[str, Any] = {}


class Context(msgspec.Struct, frozen=True):
    """The message that is the card, and its chat."""

    open_message_id: str
    open_chat_id: str


class PressEvent(msgspec.Struct, frozen=True):
    """The callback `PRESS`."""

    operator: Ids
    action: Action
    context: Context


class Header(msgspec.Struct, frozen=True):
    """What an event is of."""

    event_type: str


class Event(msgspec.Struct, frozen=True):
    """Any event or callback; what `event` is depends on its type."""

    header: Header
    event: msgspec.Raw = msgspec.Raw()


# --- where -----------------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A chat, or one of its threads."""

    chat: str
    thread: str = ""

    @classmethod
    def of(cls, chat_id: str) -> Place:
        """From its text: `oc_1`, of a thread `oc_1,omt_2`."""
        return cls(*chat_id.split(",", 1))

    def __str__(self) -> str:
        return f"{self.chat},{self.thread}" if self.thread else self.chat


# --- what ------------------------------------------------------------------------------------------------------------


class Said(NamedTuple):
    """What a message says.

    Attributes:
        text: its words, without the bot's name at its ends.
        images: the keys of its pictures.
        file: the key and the name of its file; None: it has none that may be kept.
        unseen: what else it holds, and its file where that cannot be kept.
    """

    text: str = ""
    images: Sequence[str] = ()
    file: tuple[str, str] | None = None
    unseen: Sequence[Unseen] = ()


def said_in(message: Sent, bot_id: str) -> Said | None:
    """What a message says; None: it is Feishu's own, such as that a person has come into a group.

    Raises:
        ValueError: its content is not what its type has.
    """
    content: dict[str, Any] = msgspec.json.decode(message.content.encode(), type=dict[str, Any])
    match message.message_type:
        case "system":
            return None
        case "text":
            return Said(_named(str(content.get("text", "")), message, bot_id))
        case "post":
            text, images, missed = _of_post(content)
            return Said(_named(text, message, bot_id), images, unseen=missed)
        case "image":
            return Said(images=[str(content["image_key"])])
        case kind:
            key, name = content.get("file_key"), content.get("file_name")
            kept = (str(key), str(name or "voice.ogg")) if kind in ("audio", "file") and key else None
            return Said(file=kept, unseen=[_unseen(kind, content)])


def _of_post(content: Mapping[str, Any]) -> tuple[str, list[str], list[Unseen]]:
    """The words of a rich text, the keys of its pictures, and what else it holds."""
    if "content" not in content:  # it stands below the name of a language
        content = next((one for one in content.values() if isinstance(one, dict)), {})
    lines: list[str] = []
    images: list[str] = []
    missed: list[Unseen] = []
    for paragraph in content.get("content") or ():
        line = ""
        for element in paragraph:
            match element:
                case {"tag": "img", "image_key": str(key)}:
                    images.append(key)
                case {"tag": "media"}:
                    missed.append(_unseen("media", element))
                case _:
                    line += _words(element)
        lines.append(line)
    title = str(content.get("title") or "")
    text = "\n".join(lines).strip("\n")
    return f"{title}\n\n{text}".strip("\n") if title else text, images, missed


def _words(element: Mapping[str, Any]) -> str:
    """The words of one element of a rich text, in Markdown."""
    match element:
        case {"tag": "a", "text": str(text), "href": str(address)} if text != address:
            words = f"[{text}]({address})"
        case {"tag": "at", "user_id": str(key)} if _MENTION.fullmatch(key):
            words = key
        case {"tag": "at", "user_name": str(name)}:
            words = f"@{name}"
        case {"tag": "code_block", "text": str(text)}:
            words = f"```{str(element.get('language') or '').lower()}\n{text.rstrip()}\n```"
        case {"tag": "emotion", "emoji_type": str(kind)}:
            words = f":{kind}:"
        case {"tag": "hr"}:
            words = "---"
        case {"text": str(text)}:
            words = text
        case _:
            words = ""
    return words


def _named(text: str, message: Sent, bot_id: str) -> str:
    """The text with people's names in place of the keys that mention them; the bot's own is left out at both ends."""
    own = [one.key for one in message.mentions or () if one.id.open_id == bot_id]
    if own:
        keys = "|".join(re.escape(key) + r"\b" for key in own)
        text = re.sub(rf"^\s*(?:(?:{keys})\s*)+[,:]?\s*", "", text)
        last = list(takewhile(own.__contains__, reversed(text.split())))  # a regular expression would try every space
        text = text.rsplit(maxsplit=len(last))[0] if last else text
    names = {one.key: one.name for one in message.mentions or ()} | {"@_all": "all"}
    return _MENTION.sub(lambda found: f"@{name}" if (name := names.get(found[0])) else found[0], text)


def _unseen(kind: str, content: Mapping[str, Any]) -> Unseen:
    name, lasts_ms = content.get("file_name"), content.get("duration")
    seconds = lasts_ms / 1000 if isinstance(lasts_ms, int) else 0
    return unseen(_KINDS.get(kind, "something"), str(name or ""), seconds)
