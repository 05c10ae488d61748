"""Files within what a model is asked: each as its bytes and with the type that it really has, and where it stands.

A message keeps the whole file, whichever way it came: it is deleted, exported and encrypted with the words around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from miniclaw_sessions.core.protocol.content import DATA_URL
from miniclaw_sessions.core.protocol.images import MAX_IMAGE_BYTES
from miniclaw_sessions.files.formats.attached import Attached, audio_type, in_bytes, real_file
from miniclaw_sessions.service.api.openai.shapes import Document, bad_request

_FIELDS = ("content", "output")
"""Where a message, or the output of a call, has its parts."""


class GivenFile(NamedTuple):
    """A file for a model.

    Attributes:
        param: where it stands in the request.
        file: what it is.
    """

    param: str
    file: Attached


def with_real_types(given: Sequence[Document], at: str) -> tuple[list[Document], tuple[GivenFile, ...]]:
    """The messages or items of a request, the files in them with their real types; and where which file stands.

    What is of another shape is left as it is: it is refused, by its name, where that is looked at.

    Args:
        given: what was sent; it is not changed.
        at: the name of the parameter.

    Raises:
        RequestError: a file is no base64, or a sound is none (400, with its place as `param`).
    """
    files: list[GivenFile] = []
    made: list[Document] = []
    for place, one in enumerate(given):
        here, changed = f"{at}[{place}]", {}
        for field in _FIELDS:
            if isinstance(parts := one.get(field), list):
                changed[field] = [_part(part, f"{here}.{field}[{n}]", files) for n, part in enumerate(parts)]
        made.append({**one, **changed} if changed else one)
    return made, tuple(files)


def _part(part: Any, at: str, files: list[GivenFile]) -> Any:
    match part:
        case {"type": "file", "file": {"file_data": str(data), **rest}}:
            place = f"{at}.file.file_data"
            file = _read(data, rest.get("filename"), place)
            picture = {"type": "image_url", "image_url": {"url": file.address}}
            made = {"type": "file", "file": file.fields}
        case {"type": "input_file", "file_data": str(data), **rest}:
            place = f"{at}.file_data"
            file = _read(data, rest.get("filename"), place)
            picture = {"type": "input_image", "detail": "auto", "image_url": file.address}
            made = {"type": "input_file", **file.fields}
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(form)}}:
            place = f"{at}.input_audio"
            file = Attached(f"sound.{form}", audio_type(form), data)
            if not in_bytes(file):
                raise bad_request(f"Invalid '{place}.data': expected a sound in base64.", f"{place}.data")
            picture = made = part
        case _:
            return part
    if file.is_picture:  # every model is shown one
        return picture
    files.append(GivenFile(place, file))
    return made


def _read(data: str, name: Any, param: str) -> Attached:
    """A file's own data: a data URL, or base64 alone."""
    inline = DATA_URL.fullmatch(data)
    named = name if isinstance(name, str) and name.strip() else "file"
    file = Attached(named, inline[1].lower() if inline else "application/octet-stream", inline[2] if inline else data)
    if (held := in_bytes(file)) is None:
        raise bad_request(f"Invalid '{param}': expected a file in base64, or as a data URL.", param)
    real = real_file(named, held) or file
    if real.is_picture and len(held) > MAX_IMAGE_BYTES:
        raise bad_request(f"Invalid '{param}': an image has at most {MAX_IMAGE_BYTES} bytes.", param)
    return real
