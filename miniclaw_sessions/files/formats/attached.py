"""Files within messages: PDF, sound and text, in the spellings of all services, and as they are kept here.

A picture is a part of its own (`ImagePart`). A text is a text, behind a line with its file's name: every model reads
it, and a search finds it. Anything else stands as chat completions have it, `{"type": "file", "file": {...}}`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any, overload

import msgspec

from miniclaw_sessions.core.protocol.content import DATA_URL
from miniclaw_sessions.core.protocol.images import IMAGE_TYPES, image_of
from miniclaw_sessions.core.protocol.messages import ImagePart, OtherPart, Part, TextPart

PDF = "application/pdf"
_OFFICE = "application/vnd.openxmlformats-officedocument"
DOCX = f"{_OFFICE}.wordprocessingml.document"
XLSX = f"{_OFFICE}.spreadsheetml.sheet"

PICTURES = frozenset(IMAGE_TYPES)
"""The media types of pictures that every model is shown."""

MAX_TEXT_CHARACTERS = 400_000
"""How long a text file may be: about a hundred thousand tokens."""

UPLOADED = "openai.file"
"""The `custom_type` of the entry that an uploaded file is, until it is shown to a model; its data are the file's."""

_KEPT = "file"
_OPTIONAL = "may_be_unseen"
_IN_WORDS = "in_words"
_TEXT = "text/plain"
_THOUSAND, _TEN = 1_000, 10
_LONGEST_NAME = 120
_LINE = "\n\n[File: {name}]\n"
_FORMS = {
    PDF: re.compile(rb".{0,1024}?%PDF-", re.DOTALL),
    DOCX: re.compile(rb"PK\x03\x04.*word/document\.xml", re.DOTALL),
    XLSX: re.compile(rb"PK\x03\x04.*xl/workbook\.xml", re.DOTALL),
    "audio/wav": re.compile(rb"RIFF.{4}WAVE", re.DOTALL),
    "audio/mpeg": re.compile(rb"ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]", re.DOTALL),
    "audio/flac": re.compile(rb"fLaC"),
    "audio/ogg": re.compile(rb"OggS"),
    "audio/mp4": re.compile(rb".{4}ftypM4A", re.DOTALL),
}
"""How a file of each type begins, or what is in it."""

EVERY_KIND = PICTURES | _FORMS.keys()
"""The media types of all files that can be kept as such."""

SOUNDS = frozenset(kind for kind in _FORMS if kind.startswith("audio/"))
"""The media types of all sounds that can be kept."""

_OF_CHAT_COMPLETIONS = {"audio/wav": "wav", "audio/mpeg": "mp3"}
_FORMATS = {"wav": "audio/wav", "mp3": "audio/mpeg", "m4a": "audio/mp4"}


class Attached(msgspec.Struct, frozen=True):
    """A file that a message holds.

    Attributes:
        name: as people call it; it may hold anything.
        media_type: such as application/pdf.
        data: the bytes in base64.
        is_optional: whether the message is kept also where the model does not take the file: a chat network has
            delivered it, and its sender cannot take it back.
    """

    name: str
    media_type: str
    data: str
    is_optional: bool = False

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return len(self.data) * 3 // 4 - self.data[-2:].count("=")

    @property
    def address(self) -> str:
        """The whole file as a URL."""
        return f"data:{self.media_type};base64,{self.data}"

    @property
    def fields(self) -> dict[str, str]:
        """Its name and its data, as OpenAI calls them."""
        return {"filename": self.name, "file_data": self.address}

    @property
    def is_picture(self) -> bool:
        """Whether it is a picture that models are shown."""
        return self.media_type in PICTURES

    @property
    def is_text(self) -> bool:
        """Whether it is a text, which every model reads."""
        return self.media_type == _TEXT

    @property
    def is_sound(self) -> bool:
        """Whether it can be heard."""
        return self.media_type.startswith("audio/")

    @property
    def audio_format(self) -> str | None:
        """What OpenAI calls a sound that it takes; None for every other file."""
        return _OF_CHAT_COMPLETIONS.get(self.media_type)

    def part(self) -> OtherPart:
        """The part that holds it."""
        optional = {_OPTIONAL: True} if self.is_optional else {}
        return OtherPart({"type": "file", _KEPT: self.fields, **optional})


# --- reading ---------------------------------------------------------------------------------------------------------


def attached(part: Part) -> Attached | None:  # noqa: PLR0911 - one for each spelling
    """The file that a part holds, in the spelling of any service; None: it holds none, or only names one."""
    if not isinstance(part, OtherPart):
        return None
    fields: Any = part.fields.get("content") if part.fields.get("type") == "openai_content" else part.fields
    match fields:
        case {"type": "file", "file": {"file_data": str(data), **rest}}:
            return _at(data, rest.get("filename"), is_optional=fields.get(_OPTIONAL) is True)
        case {"type": "input_file", "file_data": str(data), **rest}:
            return _at(data, rest.get("filename"))
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(kind)}}:
            return Attached(f"sound.{kind}", audio_type(kind), data)
        case {"type": "document", "source": {"type": "base64", "media_type": str(kind), "data": str(data)}, **rest}:
            return Attached(_named(rest.get("title"), kind), kind, data)
        case {"inline_data": {"mime_type": str(kind), "data": str(data), **rest}}:
            return Attached(_named(rest.get("display_name"), kind), kind, data)
    return None


def uploaded(custom_type: str, data: Mapping[str, Any]) -> Attached | None:
    """The uploaded file that a custom entry is; None: it is none."""
    match data:
        case {"filename": str(name), "file_data": str(address)} if custom_type == UPLOADED:
            return _at(address, name)
    return None


def audio_type(form: str) -> str:
    """The media type of what OpenAI calls a format of sounds."""
    return _FORMATS.get(form, f"audio/{form}")


def attached_to(content: str | tuple[Part, ...]) -> Iterable[Attached]:
    """The files of a content; its pictures and texts are none."""
    return () if isinstance(content, str) else (file for part in content if (file := attached(part)) is not None)


def words_in(file: Attached, words: str, *, is_first: bool) -> TextPart:
    """What is said in a sound or written in a document, as the part that stands before it for those who read only text.

    Args:
        file: the sound or the document.
        words: what was found in it.
        is_first: whether nothing of the message precedes it.
    """
    extra: dict[str, Any] = {_IN_WORDS: {"filename": file.name}}
    if file.is_sound:
        said = words.strip() or f"(No words are heard in {file.name}.)"
        return TextPart(said if is_first else f"\n{said}", extra=extra)
    written = words.strip() or "(There is no text in it. Its pages may be pictures.)"
    extra[_KEPT] = {"filename": file.name, "media_type": _TEXT}
    return TextPart(_LINE.format(name=file.name) + written, extra=extra)


def files_in_words(content: str | tuple[Part, ...]) -> frozenset[int]:
    """The places of the files of a content whose words stand right before them; two files may have one name."""
    if isinstance(content, str):
        return frozenset()
    return frozenset(place for place in range(1, len(content)) if _are_words_of(content[place - 1], content[place]))


def _are_words_of(part: Part, file_part: Part) -> bool:
    found = (part.extra or {}).get(_IN_WORDS) if isinstance(part, TextPart) else None
    file = attached(file_part)
    return file is not None and isinstance(found, dict) and found.get("filename") == file.name


@overload
def without_words(content: str) -> str: ...
@overload
def without_words(content: tuple[Part, ...]) -> tuple[Part, ...]: ...
@overload
def without_words(content: str | tuple[Part, ...]) -> str | tuple[Part, ...]: ...
def without_words(content: str | tuple[Part, ...]) -> str | tuple[Part, ...]:
    """A content as its sender sent it, without the words that were found in its files."""
    if isinstance(content, str):
        return content
    return tuple(part for part in content if not isinstance(part, TextPart) or _IN_WORDS not in (part.extra or {}))


def text_of_file(part: TextPart) -> tuple[str, str] | None:
    """The name and the content of the file that a text was; None: it was written."""
    match (part.extra or {}).get(_KEPT):
        case {"filename": str(name)}:
            return name, part.text.removeprefix(_LINE.format(name=name))
    return None


def _at(url: str, name: Any, *, is_optional: bool = False) -> Attached | None:
    if (inline := DATA_URL.fullmatch(url)) is None:
        return None
    kind = inline[1].lower()
    return Attached(_named(name, kind), kind, inline[2], is_optional)


def _named(name: Any, kind: str) -> str:
    return name if isinstance(name, str) and name.strip() else f"file.{kind.rpartition('/')[2]}"


def size_in_words(size: int) -> str:
    """A number of bytes, as people read it."""
    amount, units = float(size), ["bytes", "KB", "MB", "GB"]
    while amount >= _THOUSAND and len(units) > 1:
        amount /= _THOUSAND
        units.pop(0)
    return f"{amount:.1f} {units[0]}" if amount < _TEN and units[0] != "bytes" else f"{amount:.0f} {units[0]}"


# --- taking what is sent ---------------------------------------------------------------------------------------------


def part_of(name: str, data: bytes, *, is_optional: bool = False) -> Part | None:
    """A file as the part that holds it; None where no model reads its kind.

    A service refuses a file that is not what it says, and with it each later request of that chat.

    Args:
        name: as its sender calls it.
        data: its bytes.
        is_optional: see `Attached`.
    """
    if (file := real_file(name, data)) is None:
        return None
    if file.is_picture:
        return ImagePart(file.media_type, data=file.data)
    if not file.is_text:
        return msgspec.structs.replace(file, is_optional=is_optional).part()
    text = _LINE.format(name=file.name) + (_text_in(data) or "")
    return TextPart(text, extra={_KEPT: {"filename": file.name, "media_type": _TEXT}})


def real_file(name: str, data: bytes) -> Attached | None:
    """A file with the type that its bytes have, and a harmless name; None where no model reads its kind."""
    media_type = None if (image := image_of(data)) is None else image.media_type
    media_type = media_type or next((kind for kind, form in _FORMS.items() if form.match(data)), None)
    if media_type is None and _text_in(data) is None:
        return None
    return Attached(_safe_name(name), media_type or _TEXT, base64.b64encode(data).decode())


def in_bytes(file: Attached) -> bytes | None:
    """The bytes of a file; None: its data are no base64."""
    try:
        return base64.b64decode(file.data, validate=True)
    except (binascii.Error, ValueError):
        return None


def _safe_name(name: str) -> str:
    """A file's name without its folder, on one line, and of a length that fits everywhere."""
    last = re.split(r"[/\\]", name)[-1]
    shown = "".join(char for char in last if char.isprintable() and char not in "[]").strip()
    if len(shown) > _LONGEST_NAME:
        stem, dot, ending = shown.rpartition(".")
        ending = dot + ending if stem and len(ending) < _LONGEST_NAME // 4 else ""
        shown = shown[: _LONGEST_NAME - len(ending) - 1] + "…" + ending
    return shown or "file"


def _text_in(data: bytes) -> str | None:
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text.replace("\r\n", "\n")
