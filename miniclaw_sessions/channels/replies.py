"""A reply that is not the network's own, such as a proxy's page: what came, in few words, none of them a person's."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import quote

_TITLE = re.compile(r"<title[^>]*>([^<]{1,500})<", re.IGNORECASE)
_MAX_TITLE = 60
_HEAD = 4096  # bytes of a page, in which its title stands


def what_came(status: int, media_type: str, body: bytes, secret: str = "") -> str:
    """Its status, type and size, and the beginning of its title where it is an HTML page.

    Args:
        status: HTTP's.
        media_type: as the header says.
        body: the reply.
        secret: what stands in the address that was asked, and might be shown in the title.
    """
    kind = media_type.partition(";")[0].strip().lower()
    kind = kind if re.fullmatch(r"[\w.+-]{1,40}/[\w.+-]{1,40}", kind) else "no type"
    said = f"status {status}, {kind}, {len(body)} bytes"
    head = body[:_HEAD].decode("utf-8", "replace")
    found = _TITLE.search(head) if head.lstrip().startswith("<") else None
    if found is None:
        return said
    title = unescape(found[1])
    for shown in filter(None, (secret, quote(secret, safe=""))):
        title = title.replace(shown, "***")
    title = "".join(letter for letter in " ".join(title.split()) if letter.isprintable())[:_MAX_TITLE]
    return f"{said}, titled {title!r}"
