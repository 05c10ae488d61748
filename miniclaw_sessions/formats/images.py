"""Images by address: one elsewhere, or a `data:` URL that holds the image itself."""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from miniclaw_sessions.protocol.messages import ImagePart

NOT_SHOWABLE = "(an image that cannot be shown here)"
"""What stands for an image that a service would refuse, and with it the whole request."""

_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
_SHOWABLE = re.compile(r"https?://\S|data:image/(png|jpeg|gif|webp);base64,")


def image_at(url: str, extra: dict[str, Any] | None = None) -> ImagePart:
    """The image of an address."""
    if inline := _DATA_URL.fullmatch(url):
        return ImagePart(inline[1], inline[2], extra=extra)
    return ImagePart(url=url, extra=extra)


def address_of(image: ImagePart) -> str:
    """The address of an image; of one that is inline, one that holds it. Empty if there is none."""
    if image.data is not None:
        return f"data:{image.media_type or 'image/png'};base64,{image.data}"
    return image.url or ""


def is_showable(url: str) -> bool:
    """Whether OpenAI's services take an image by this address."""
    return _SHOWABLE.match(url) is not None


def inlined(image: ImagePart) -> ImagePart:
    """The image with its data and type in their own fields, where its address holds them."""
    if image.data is None and (inline := _DATA_URL.fullmatch(image.url or "")):
        return replace(image, media_type=inline[1], data=inline[2], url=None)
    return image
