"""What is said in a conversation of Slack, where, and which of it has no answer yet.

What the bot posts says in its metadata which message it answers, which part of the answer it is, and whether the answer
ends with it. So the conversation itself shows what is done, to each process that reads it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from miniclaw_sessions.channels.commands import is_stop
from miniclaw_sessions.channels.slack.mrkdwn import unescaped
from miniclaw_sessions.core.protocol.messages import Message

Fields = dict[str, Any]

ANSWER = "miniclaw_answer"
"""The type of the metadata of all that answers a message."""

ASKED = "miniclaw_asked"
"""The type of the metadata of what a person has said by a slash command."""

PICTURE = "answer-"
"""How the name of a picture of an answer begins; it is posted without metadata."""

_SAID_AS = {None, "file_share", "thread_broadcast", "me_message"}
_OF_SLACK = "USLACKBOT"


class Bot(NamedTuple):
    """Who the bot is.

    Attributes:
        user_id: by which people mention it.
        bot_id: under which it posts.
    """

    user_id: str
    bot_id: str

    def has_posted(self, message: Fields) -> bool:
        """Whether a message is its own."""
        return message.get("user") == self.user_id or message.get("bot_id") == self.bot_id


class Place(NamedTuple):
    """A conversation, and its thread. Each thread is a chat; what is said in a channel begins one."""

    channel_id: str
    thread_ts: str = ""

    @classmethod
    def of(cls, chat_id: str) -> Place:
        """From its text: `D1`, with a thread `C1,1790000000.000100`."""
        channel_id, _, thread_ts = chat_id.partition(",")
        return cls(channel_id, thread_ts)

    @classmethod
    def where(cls, channel_id: str, message: Fields) -> Place:
        """Where a message stands. The first one of a thread names itself, and in direct messages is outside of it."""
        ts, thread_ts = str(message.get("ts") or ""), str(message.get("thread_ts") or "")
        if is_direct(channel_id):
            return cls(channel_id, "" if thread_ts == ts else thread_ts)
        return cls(channel_id, thread_ts or ts)

    def __str__(self) -> str:
        return f"{self.channel_id},{self.thread_ts}" if self.thread_ts else self.channel_id


class Said(msgspec.Struct, frozen=True):
    """Something that a person says, or a press of a button.

    Attributes:
        place: where.
        ts: Slack's time stamp, which orders and names all of a conversation.
        message_id: by which it is recognized: the time stamp, with that of its edit or its press.
        user_id: who.
        text: what, without the bot's name.
        files: what Slack says of its files.
        replaces: the message that it is another wording of.
        is_addressed: whether it mentions the bot, or stands in a thread that the bot has begun.
        approvals: the calls that a press decides about.
    """

    place: Place
    ts: str
    message_id: str
    user_id: str
    text: str = ""
    files: Sequence[Fields] = ()
    replaces: str | None = None
    is_addressed: bool = True
    approvals: Mapping[str, bool] | None = None

    @property
    def key(self) -> tuple[str, str]:
        """By which it is recognized among those of all conversations."""
        return self.place.channel_id, self.message_id

    @property
    def is_group(self) -> bool:
        """Whether others read along."""
        return not is_direct(self.place.channel_id)

    @property
    def is_stop(self) -> bool:
        """Whether it stops the answer that is under way."""
        return self.approvals is None and is_stop(Message.user(self.text))


def is_direct(channel_id: str) -> bool:
    """Whether a conversation is one of the bot and one person."""
    return channel_id.startswith("D")


def said_in(event: Fields, channel_id: str, bot: Bot) -> Said | None:
    """What an event says to the bot; None: nothing, as it is a program's, or an edit that changes no word."""
    if event.get("subtype") == "message_changed":
        before, event = table(event, "previous_message"), table(event, "message")
        said = _said(event, channel_id, bot)
        changed = event.get("text") != before.get("text")
        return _edited(said, event) if said is not None and changed else None
    return _said(event, channel_id, bot)


def _said(message: Fields, channel_id: str, bot: Bot) -> Said | None:
    user_id, text, ts = message.get("user"), str(message.get("text") or ""), str(message.get("ts") or "")
    if bot.has_posted(message) and (asked := _metadata(message, ASKED)):
        user_id, text = str(asked.get("by")), text.partition(": ")[2]
    elif message.get("subtype") not in _SAID_AS or message.get("bot_id") or user_id in {bot.user_id, _OF_SLACK}:
        return None
    if not (isinstance(user_id, str) and ts):
        return None
    mention = rf"<@{re.escape(bot.user_id)}(?:\|[^<>]*)?>"
    is_addressed = (
        bool(re.search(mention, text)) or message.get("parent_user_id") == bot.user_id or bool(asked_by(message))
    )
    words = unescaped(re.sub(rf"^\s*{mention}\s*[:,]?\s*", "", text))
    files = [one for one in message.get("files") or () if isinstance(one, dict)]
    is_spoken_to = is_addressed or is_direct(channel_id)
    return Said(Place.where(channel_id, message), ts, ts, user_id, words, files, is_addressed=is_spoken_to)


def asked_by(message: Fields) -> str:
    """Who has said it by a slash command; empty: it is a message of another kind."""
    return str(_metadata(message, ASKED).get("by") or "")


def _edited(said: Said, message: Fields) -> Said | None:
    """The new wording of a message; None: it has none."""
    edited_ts = table(message, "edited").get("ts")
    if not edited_ts:
        return None
    return msgspec.structs.replace(said, message_id=f"{said.ts}.{edited_ts}", replaces=said.ts)


# --- what has no answer ----------------------------------------------------------------------------------------------


class Read(NamedTuple):
    """What a conversation shows.

    Attributes:
        unanswered: what is not done, in order.
        done: the ids of the messages that are.
    """

    unanswered: Sequence[Said] = ()
    done: Collection[str] = ()


def read(messages: Iterable[Fields], channel_id: str, bot: Bot, since: str) -> Read:
    """What was said in a conversation since then, and what of it is done.

    A message is done when the bot's answer to it has ended. Past is also all before a `/stop`, and all before an answer
    of the bot that has no mark: another program has given that. What people say to each other counts only since the bot
    has answered in the conversation: a bot that is new there answers no old talk.

    Args:
        messages: of the conversation and its threads, in any order.
        channel_id: the conversation.
        bot: who the bot is.
        since: the time stamp of the oldest that is answered.
    """
    done: set[str] = set()
    past: dict[Place, str] = {}
    said: list[Said] = []
    has_answered = False
    for message in sorted(messages, key=lambda one: str(one.get("ts") or "")):
        place, ts = Place.where(channel_id, message), str(message.get("ts") or "")
        if bot.has_posted(message) and not asked_by(message):
            mark = _metadata(message, ANSWER)
            has_answered = has_answered or bool(mark)
            if mark.get("done"):
                done.add(str(mark.get("to")))
            if mark.get("press") and (press := pressed(mark, place)) is not None:
                said.append(press)
            if not mark and not pictures_in(message):
                past[place] = ts
        elif (one := _said(message, channel_id, bot)) is not None and (one.is_addressed or has_answered):
            said += [one, *filter(None, [_edited(one, message)])]
            if one.is_stop:
                past[place] = ts
    said = [one for one in said if one.message_id not in done and one.ts >= since]
    return Read([one for one in said if one.ts > past.get(one.place, "")], done)


def pressed(mark: Fields, place: Place) -> Said | None:
    """The press of a button that a question's metadata keeps."""
    ids, by, press, ts = mark.get("ids"), mark.get("by"), mark.get("press"), mark.get("at")
    if not all(isinstance(one, str) and one for one in (ids, by, press, ts)):
        return None
    approvals = dict.fromkeys(str(ids).split(","), bool(mark.get("agreed")))
    return Said(place, str(ts), str(press), str(by), approvals=approvals)


def parts_of(messages: Iterable[Fields], message_id: str, bot: Bot) -> dict[str, str]:
    """The parts of the answer to a message that stand in a conversation, by their names, each with its time stamp."""
    found: dict[str, str] = {}
    for message in messages:
        if bot.has_posted(message):
            mark = _metadata(message, ANSWER)
            names = [str(mark.get("part"))] if mark.get("to") == message_id else pictures_in(message)
            found.update(dict.fromkeys(names, str(message.get("ts"))))
    return found


def pictures_in(message: Fields) -> list[str]:
    """The names of an answer's pictures in a message."""
    names = [str(one.get("name")) for one in message.get("files") or () if isinstance(one, dict)]
    return [name for name in names if name.startswith(PICTURE)]


def _metadata(message: Fields, kind: str) -> Fields:
    metadata = table(message, "metadata")
    return table(metadata, "event_payload") if metadata.get("event_type") == kind else {}


def table(content: Any, name: str) -> Fields:
    """A table within what came; an empty one where it is none."""
    found = content.get(name) if isinstance(content, dict) else None
    return found if isinstance(found, dict) else {}
