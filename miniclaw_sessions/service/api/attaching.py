"""The files of a message that is sent, each made the part that it really is, before anything is stored."""

from __future__ import annotations

import msgspec

from miniclaw_sessions.core.protocol.images import IMAGE_TYPES, MAX_IMAGE_BYTES, image_of, inlined
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, OtherPart, Part, TextPart
from miniclaw_sessions.files.formats.attached import MAX_TEXT_CHARACTERS, attached, in_bytes, part_of
from miniclaw_sessions.printable import printable
from miniclaw_sessions.service.api.error_table import RequestError, invalid

_OF_FILES = ("file", "input_file", "input_audio")
_KINDS = "send a picture (PNG, JPEG, GIF, WebP), a PDF, a sound (WAV, MP3, FLAC, OGG, M4A) or a text in UTF-8"


def with_real_files(message: Message) -> Message:
    """The message, each picture and file that it holds with the type that it really has; texts as texts.

    A service that checks the type would refuse this message, and each later one of the chat.

    Raises:
        RequestError: one of them is of no kind that models are shown, or too large (422).
    """
    if isinstance(message.content, str):
        return message
    parts: list[Part] = []
    for place, part in enumerate(message.content):
        param = f"message.content[{place}]"
        match part:
            case ImagePart():
                parts.append(_real_image(part, param))
            case OtherPart(fields=fields) if fields.get("type") in _OF_FILES:
                parts.append(_real_file(part, f"{param}.{fields['type']}"))
            case _:
                parts.append(part)
    return msgspec.structs.replace(message, content=tuple(parts))


def _real_image(part: ImagePart, param: str) -> ImagePart:
    image = inlined(part)
    if image.data is None:
        return part
    if (real := image_of(image.data)) is None:
        wanted = f"one of {', '.join(IMAGE_TYPES)} in base64, of at most {MAX_IMAGE_BYTES} bytes"
        param = f"{param}.{'data' if image is part else 'url'}"
        raise invalid(f"`{param}` is no image that a model can be shown: {wanted}", param)
    return msgspec.structs.replace(image, media_type=real.media_type, data=real.data)


def _real_file(part: OtherPart, param: str) -> Part:
    file = attached(part)
    data = None if file is None else in_bytes(file)
    if file is None or data is None:
        raise invalid(f"`{param}` holds no file: send its bytes as a data URL, `data:TYPE;base64,...`", param)
    real = part_of(file.name, data)
    if real is None or (isinstance(real, ImagePart) and len(data) > MAX_IMAGE_BYTES):
        raise invalid(f"{printable(file.name)} is of a kind that no model is shown: {_KINDS}", param)
    if isinstance(real, TextPart) and len(real.text) > MAX_TEXT_CHARACTERS:
        raise too_long(file.name, len(real.text), param)
    return real


def too_long(name: str, characters: int, param: str) -> RequestError:
    """The error for a text that would fill a model's whole context."""
    sentence = (
        f"{printable(name)} has {characters} characters, and a text may have {MAX_TEXT_CHARACTERS}: send a part of it"
    )
    return invalid(sentence, param)
