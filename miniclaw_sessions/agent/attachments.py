"""Files in what a model is shown: whether it takes them, and what it reads in place of one that it does not take."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from miniclaw_sessions.core.protocol.messages import Message, OtherPart, Part, TextPart
from miniclaw_sessions.errors import FileNotTaken
from miniclaw_sessions.files.formats.attached import (
    DOCX,
    PDF,
    PICTURES,
    XLSX,
    Attached,
    attached,
    files_in_words,
    in_bytes,
    part_of,
)
from miniclaw_sessions.printable import printable


@runtime_checkable
class FilesProvider(Protocol):
    """A provider that says which files its model takes; of every other one it is supposed that it takes pictures."""

    @property
    def takes(self) -> Collection[str]:
        """Their media types. Texts are taken by all, and are not among them."""
        ...


def taken_by(provider: object) -> frozenset[str]:
    """The media types that a provider's model takes, beside texts."""
    return frozenset(provider.takes) if isinstance(provider, FilesProvider) else PICTURES


def refuse_unseen(provider: object, model: str, said: Iterable[Message]) -> None:
    """Refuse what a turn begins with if its model would not be shown a file in it, before anything is stored.

    Raises:
        FileNotTaken: it holds a file of another kind than the model takes, and its sender can still take it back.
    """
    for message in said:
        for file in unseen_files(provider, message):
            if not file.is_optional:
                raise FileNotTaken(f"{printable(file.name)} was not sent: {refusal(taken_by(provider), model, file)}")


def refusal(takes: Collection[str], model: str, file: Attached) -> str:
    """What a model takes, and what it does not."""
    return f"{model} takes {in_words(takes)}, and no {kind_of(file)}"


def unseen_files(provider: object, message: Message) -> list[Attached]:
    """The files of a message that reach a model neither as they are nor in words."""
    if isinstance(message.content, str):
        return []
    in_words = files_in_words(message.content)
    files = [(place, _not_taken(provider, part)) for place, part in enumerate(message.content)]
    return [file for place, file in files if file is not None and not file.is_text and place not in in_words]


def as_taken(provider: object, messages: Sequence[Message]) -> Sequence[Message]:
    """A context in which a sentence stands for each file that the model does not take.

    Such a file was said to another model. The service would refuse it, and with it every later request of the chat.
    """
    return [_shown(provider, message) for message in messages]


def _shown(provider: object, message: Message) -> Message:
    if isinstance(message.content, str) or not any(_not_taken(provider, part) for part in message.content):
        return message
    in_words = files_in_words(message.content)
    parts = tuple(
        _shown_part(provider, part, is_in_words=place in in_words) for place, part in enumerate(message.content)
    )
    return msgspec.structs.replace(message, content=parts)


def _shown_part(provider: object, part: Part, *, is_in_words: bool) -> Part:
    if (file := _not_taken(provider, part)) is None:
        return part
    data = in_bytes(file) if file.is_text else None
    text = None if data is None else part_of(file.name, data)
    if isinstance(text, TextPart):
        return text
    name = printable(file.name)
    if is_in_words:
        return TextPart(f"\n[said aloud, in {name}]\n" if file.is_sound else f"\n[end of {name}]\n")
    return TextPart(f"\n[{name}, {kind_of(file)}: you cannot be shown it]\n")


def _not_taken(provider: object, part: Part) -> Attached | None:
    """The file in a part, if the model does not take it; OpenAI's own part is for services that speak items."""
    if not isinstance(part, OtherPart) or (file := attached(part)) is None or file.media_type in taken_by(provider):
        return None
    return None if part.fields.get("type") == "openai_content" and getattr(provider, "takes_items", False) else file


def kind_of(file: Attached) -> str:
    """The kind of a file, as people call it."""
    kind, _, form = file.media_type.partition("/")
    office = {DOCX: "Word file", XLSX: "Excel file"}
    named = office.get(file.media_type) or {"mpeg": "MP3", "mp4": "M4A"}.get(form, form.removeprefix("x-").upper())
    return f"{named} sound" if kind == "audio" else named


def in_words(takes: Collection[str]) -> str:
    """What a model takes, in a few words."""
    kinds = {kind.partition("/")[0] for kind in takes}
    named = ["texts", *(["pictures"] if "image" in kinds else [])]
    named += [word for kind, word in ((PDF, "PDF"), (XLSX, "Excel files"), (DOCX, "Word files")) if kind in takes]
    sounds = sorted(kind_of(Attached("", kind, "")) for kind in takes if kind.startswith("audio/"))
    named += sounds
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
