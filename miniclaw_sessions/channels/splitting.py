"""Text that is longer than a network takes, in pieces that each can stand alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import takewhile

from miniclaw_sessions.files.formats.fences import language_and_words

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)
_BOUNDARIES = ("\n\n", "\n", " ")  # between paragraphs, lines, words


def utf16_units(text: str) -> int:
    """How long a text is where UTF-16 is counted: characters beyond the basic plane are two."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def split(text: str, limit: int, size: Callable[[str], int] = len) -> list[str]:
    """Split a text at paragraphs, else at lines, else at words, and only where a word alone is too long within it.

    A code fence that a piece ends in is closed there and opened again, with its language, in the next one. A longer
    text with the same beginning has the same first pieces, once they are full.

    Args:
        text: Markdown or anything else.
        limit: how large a piece may be; at least 64, so that a fence has room.
        size: measures a text; at least 1 for each character.

    Returns:
        The pieces, none of them empty or of white space alone.
    """
    pieces, start, fence = [], 0, ""
    while start < len(text):
        opening = f"{fence}\n" if fence else ""
        room = limit - size(opening)
        end, fence_left = _cut(text, start, room, size, fence)
        closing = ""
        if fence_left and end < len(text):
            closing = "\n" + _marker(fence_left)
            end, fence_left = _cut(text, start, room - size(closing), size, fence)
        body = text[start:end]
        if body.strip():
            pieces.append((opening + body.rstrip() + (closing if fence_left else "")).strip("\n"))
        start, fence = end + _white_space(text, end, within_fence=bool(fence_left)), fence_left
    return pieces


def _cut(text: str, start: int, room: int, size: Callable[[str], int], fence: str) -> tuple[int, str]:
    """Where a piece ends that begins at `start`, and the opening line of the fence that it ends in."""
    low, high = start + 1, min(start + room, len(text))
    while low < high:  # the longest that fits
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size(text[start:middle]) <= room else (low, middle - 1)
    end = low
    if end < len(text):
        least = start + (end - start) // 3  # a piece that is nearly empty is worse than a line that is cut
        ends = (text.rfind(boundary, least, end + 1) for boundary in _BOUNDARIES)
        end = next((found for found in ends if found > start), end)
    return end, _fence_after(text[start:end], fence, limit=room // 4)


def _fence_after(text: str, fence: str, limit: int) -> str:
    """The opening line of the code fence that is open behind a text; empty: none is."""
    for match in _FENCE.finditer(text):
        marker, rest = match.groups()
        if not fence:
            if not (marker[0] == "`" and "`" in rest):  # else it is code within a line
                language, _ = language_and_words(rest)  # words are shown once
                fence = match[0].removesuffix(rest) + language
                fence = fence if len(fence) <= limit else marker[:3]
        elif marker.startswith(_marker(fence)) and not rest.strip():
            fence = ""
    return fence


def _marker(fence: str) -> str:
    line = fence.lstrip()
    return "".join(takewhile(line[0].__eq__, line))


def _white_space(text: str, start: int, *, within_fence: bool) -> int:
    """How much white space between two pieces belongs to neither; in code, indentation does."""
    if within_fence:
        return 1 if text[start : start + 1] == "\n" else 0
    rest = text[start : start + 1000]
    blank = len(rest) - len(rest.lstrip())
    return blank if "\n" not in rest[:blank] else rest[:blank].rindex("\n") + 1
