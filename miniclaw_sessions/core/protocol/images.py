"""Images by URL or in a `data:` URL, and the check that bytes are an image."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from miniclaw_sessions.core.protocol.content import DATA_URL
from miniclaw_sessions.core.protocol.messages import ImagePart

NOT_SHOWABLE = "(an image that cannot be shown here)"
"""The text for an image with which a service would refuse the whole request."""

MAX_IMAGE_BYTES = 5 * 2**20 * 3 // 4
"""The largest size of an image: 5 MiB in base64, the smallest limit of a service."""

IMAGE_TYPES: Mapping[str, re.Pattern[bytes]] = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n.*IEND", re.DOTALL),
    "image/jpeg": re.compile(rb"\xff\xd8\xff.*\xff\xd9", re.DOTALL),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
}
"""The types that services take, and the beginning, and perhaps the end, of an image of each."""

_SHOWABLE = re.compile(r"https?://\S|data:image/(png|jpeg|gif|webp);base64,")


def image_of(data: bytes | str) -> ImagePart | None:
    """The image in these bytes, with its real type; None: it is not an image that can be shown.

    A service refuses a false or truncated image, and with it each later request of that chat.

    Args:
        data: the bytes, or these in base64.
    """
    try:
        content = base64.b64decode("".join(data.split()), validate=True) if isinstance(data, str) else data
    except ValueError:
        return None
    found = (media_type for media_type, form in IMAGE_TYPES.items() if form.match(content))
    if len(content) > MAX_IMAGE_BYTES or (media_type := next(found, None)) is None:
        return None
    if media_type == "image/webp" and len(content) < 8 + int.from_bytes(content[4:8], "little"):
        return None
    return ImagePart(media_type, base64.b64encode(content).decode())


def image_at(url: str, extra: dict[str, Any] | None = None) -> ImagePart:
    """The image with this URL."""
    if inline := DATA_URL.fullmatch(url):
        return ImagePart(inline[1], inline[2], extra=extra)
    return ImagePart(url=url, extra=extra)


def address_of(image: ImagePart) -> str:
    """The URL of an image; a `data:` URL if the image is inline. Empty if it has neither."""
    if image.data is not None:
        return f"data:{image.media_type or 'image/png'};base64,{image.data}"
    return image.url or ""


def is_showable(url: str) -> bool:
    """Whether OpenAI's services take an image by this URL."""
    return _SHOWABLE.match(url) is not None


def inlined(image: ImagePart) -> ImagePart:
    """The image, with data and type from a `data:` URL in their own fields."""
    if image.data is None and (inline := DATA_URL.fullmatch(image.url or "")):
        return replace(image, media_type=inline[1], data=inline[2], url=None)
    return image
