"""The files of a message on the page: a name, a size, and the bytes to be saved; a sound to be heard, a text folded.

The bytes are within the page. They have no type but one of ours, so that a browser runs none of it.
"""

from __future__ import annotations

import re

from miniclaw_sessions.files.formats.attached import EVERY_KIND, Attached, size_in_words
from miniclaw_sessions.files.formats.html.prose import escaped, preformatted

_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]+")
_UNKNOWN = "application/octet-stream"


def file_shown(file: Attached, at: str | None) -> str:
    """A file that can be saved, and heard if it is a sound.

    Args:
        file: what it is.
        at: where the page fetches it when it is asked for; None: it is within the page.
    """
    if at is not None:
        listen = f'<button type="button" data-listen="{escaped(at)}">Listen</button>' if file.is_sound else ""
        name = f'<button type="button" data-file="{escaped(at)}"><bdi>{escaped(file.name)}</bdi></button>'
        return f'<div class="file"><p>{name} <span>{size_in_words(file.size)}</span> {listen}</p></div>'
    if _BASE64.fullmatch(file.data) is None:
        return f'<p class="missing">File: {escaped(file.name)}</p>'
    kind = file.media_type if file.media_type in EVERY_KIND else _UNKNOWN
    address, name = f"data:{kind};base64,{file.data}", escaped(file.name)
    player = f'<audio controls preload="none" aria-label="{name}" src="{address}"></audio>' if file.is_sound else ""
    link = f'<a download="{name}" href="{address}"><bdi>{name}</bdi></a> <span>{size_in_words(file.size)}</span>'
    return f'<div class="file"><p>{link}</p>{player}</div>'


def file_named(name: str, size: int) -> str:
    """A file that is only named, with its size in bytes."""
    return f'<p class="file"><bdi>{escaped(name)}</bdi> <span>{size_in_words(size)}</span></p>'


def text_shown(name: str, text: str) -> str:
    """A text that came as a file, folded."""
    size = size_in_words(len(text.encode(errors="replace")))
    summary = f"<summary><bdi>{escaped(name)}</bdi> <span>{size}</span></summary>"
    return f'<details class="file">{summary}{preformatted(text)}</details>'
