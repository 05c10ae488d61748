"""Whether what somebody sends is an image at all: else each later request of its chat would be refused with it."""

from __future__ import annotations

import base64

import pytest

from miniclaw_sessions.core.protocol.images import MAX_IMAGE_BYTES, image_of
from miniclaw_sessions.core.protocol.messages import ImagePart
from tests.channels.telegram_server import PNG

JPEG = b"\xff\xd8\xff\xe0\0\x10JFIF\0" + b"x" * 40 + b"\xff\xd9"
WEBP = b"RIFF" + (20).to_bytes(4, "little") + b"WEBPVP8 " + b"x" * 12
GIF = b"GIF89a" + b"\1\0\1\0\0\0\0;"


@pytest.mark.parametrize(
    ("data", "media_type"), [(PNG, "image/png"), (JPEG, "image/jpeg"), (WEBP, "image/webp"), (GIF, "image/gif")]
)
def test_an_image_has_the_type_that_its_bytes_say(data: bytes, media_type: str) -> None:
    image = ImagePart(media_type, base64.b64encode(data).decode())
    assert image_of(data) == image
    assert image_of(base64.encodebytes(data).decode()) == image, "with line breaks, which services do not take"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"%PDF-1.7",
        b"<svg/>",
        PNG[:-20],
        JPEG[:-2],
        WEBP[:-1],
        PNG[1:],
        PNG + b"x" * MAX_IMAGE_BYTES,
        "",
        "AAAA",
        "no base64!",
        "\u00e4\u00f6",
        base64.b64encode(PNG).decode()[:-1],
    ],
)
def test_what_is_no_image_or_cut_off_or_too_large_is_none(data: bytes | str) -> None:
    assert image_of(data) is None
