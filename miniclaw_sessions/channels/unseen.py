"""What people send that is neither text nor a picture: the file itself, or a sentence for the model and the person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from miniclaw_sessions.core.protocol.messages import Part, TextPart
from miniclaw_sessions.files.formats.attached import MAX_TEXT_CHARACTERS, part_of
from miniclaw_sessions.printable import printable

MAX_FILE_BYTES = 5_000_000
"""How large a file may be by default; with a picture it fits into a message (`sessions.max_message_bytes`)."""

_MAX_NAME = 100

Kind = Literal[
    "animation",
    "audio",
    "contact",
    "die",
    "file",
    "picture",
    "place",
    "poll",
    "something",
    "sticker",
    "story",
    "video",
    "video message",
    "voice message",
]
"""What people send."""


class Unseen(NamedTuple):
    """Something that reaches no model.

    Attributes:
        what: what it is, such as `a voice message of 12 seconds`.
        verb: what cannot be done with it, such as `listen to`.
        is_answered: whether the person gets this answer too; who sends a sticker expects no apology.
    """

    what: str
    verb: str
    is_answered: bool = True

    @property
    def to_model(self) -> str:
        """What the model reads in its place."""
        return f"(The person sent {self.what}, which you cannot {self.verb}.)"

    @property
    def to_person(self) -> str:
        """What the person reads before the answer; empty: nothing."""
        return f"I cannot {self.verb} {self.what}. Please write what matters in it." if self.is_answered else ""


_KINDS: dict[Kind, Unseen] = {
    "animation": Unseen("an animation", "watch", is_answered=False),
    "audio": Unseen("an audio file", "listen to"),
    "contact": Unseen("a contact", "open"),
    "die": Unseen("a die", "see", is_answered=False),
    "file": Unseen("a file", "open"),
    "picture": Unseen("a picture", "see"),
    "place": Unseen("a place on a map", "see"),
    "poll": Unseen("a poll", "see"),
    "something": Unseen("something", "read"),
    "sticker": Unseen("a sticker", "see", is_answered=False),
    "story": Unseen("a story", "watch"),
    "video": Unseen("a video", "watch"),
    "video message": Unseen("a video message", "watch"),
    "voice message": Unseen("a voice message", "listen to"),
}


def unseen(kind: Kind, name: str = "", seconds: float = 0) -> Unseen:
    """Something that reaches no model; every channel says so in the same words.

    Args:
        kind: what it is.
        name: what its sender calls it, or the sign that it is; empty: it has none.
        seconds: how long it takes; 0: nothing is known of that.
    """
    one = _KINDS[kind]
    if name:
        return one._replace(what=f"{one.what} ({printable(' '.join(name.split())[:_MAX_NAME])})")
    if whole := int(seconds):
        return one._replace(what=f"{one.what} of {whole} second{'' if whole == 1 else 's'}")
    return one


def kind_of(media_type: str) -> Kind:
    """What a file of this type is."""
    return _OF_TYPES.get(media_type.partition("/")[0].strip().lower(), "file")


_OF_TYPES: dict[str, Kind] = {"audio": "audio", "image": "picture", "video": "video"}


def with_unseen(missed: Sequence[Unseen], text: str) -> str:
    """What the model reads: what else was sent, and behind it the words of the person."""
    return "\n".join([*(one.to_model for one in missed), *filter(None, [text])])


def notice_of(missed: Sequence[Unseen]) -> str:
    """What the person reads before the answer: one sentence for each; empty: nothing."""
    return "\n".join(one.to_person for one in missed if one.is_answered)


def file_in(name: str, data: bytes, most: int) -> Part | None:
    """A file that a network has delivered, as a part that is kept also where the model does not take it.

    Args:
        name: as its sender calls it.
        data: its bytes.
        most: how many it may have.

    Returns:
        None: it is too large, or of no kind that models are shown.
    """
    part = part_of(name, data, is_optional=True) if 0 < len(data) <= most else None
    is_too_long = isinstance(part, TextPart) and len(part.text) > MAX_TEXT_CHARACTERS
    return None if is_too_long else part


def with_notice(notice: str, text: str) -> str:
    """An answer behind the sentence about what was not understood; nothing, where there is no answer."""
    return f"{notice}\n\n{text}" if notice and text else text
