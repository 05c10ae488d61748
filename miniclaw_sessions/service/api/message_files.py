"""The files within messages, one at a time: as bytes, for who looks at them or saves them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from miniclaw_sessions.core.protocol.entries import Custom, MessageEntry
from miniclaw_sessions.core.protocol.images import inlined
from miniclaw_sessions.core.protocol.messages import ImagePart, Part, TextPart
from miniclaw_sessions.files.formats.attached import EVERY_KIND, attached, in_bytes, text_of_file, uploaded
from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.api.operation import Content, operation
from miniclaw_sessions.service.api.sessions import ONE

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context

_UNKNOWN = "application/octet-stream"


class OneFile(msgspec.Struct, frozen=True):
    """A request for a file of a message.

    Attributes:
        place: which part of the message's content it is, from 0 on.
    """

    session_id: str
    entry_id: str
    place: str


@operation(
    "GET",
    f"{ONE}/entries/{{entry_id}}/files/{{place}}",
    OneFile,
    Content,
    media_types=(_UNKNOWN, "application/pdf", "image/png", "audio/wav", "text/plain"),
    errors=("entry_not_found", "not_found"),
)
async def show_file(context: Context, request: OneFile) -> Content:
    """A picture or file of a message, as it was sent; a text that came as a file, too."""
    session = await context.find(request.session_id)
    entry = await session.tree.get_entry(request.entry_id)
    content = entry.message.content if isinstance(entry, MessageEntry) else ""
    parts = () if isinstance(content, str) else content
    wanted = (part for place, part in enumerate(parts) if str(place) == request.place)
    found = next(map(_file_in, wanted), None)
    if isinstance(entry, Custom) and request.place == "0" and (file := uploaded(entry.custom_type, entry.data)):
        found = file.name, file.media_type, in_bytes(file) or b""
    if found is None:
        raise RequestError(404, "not_found", "this part of the message is no file")
    name, media_type, data = found
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='', errors='replace')}",
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
    return Content.tagged(data, media_type if media_type in EVERY_KIND else _UNKNOWN, **headers)


def _file_in(part: Part) -> tuple[str, str, bytes] | None:
    """The name, the type and the bytes of a part that is a file."""
    match part:
        case TextPart():
            text = text_of_file(part)
            return None if text is None else (text[0], _UNKNOWN, text[1].encode(errors="replace"))
        case ImagePart():
            image = inlined(part)
            try:
                data = base64.b64decode(image.data or "")
            except ValueError:
                return None
            kind = image.media_type or _UNKNOWN
            return (f"image.{kind.rpartition('/')[2]}", kind, data) if data else None
    file = attached(part)
    held = None if file is None else in_bytes(file)
    return None if file is None or held is None else (file.name, file.media_type, held)


OPERATIONS = (show_file,)
