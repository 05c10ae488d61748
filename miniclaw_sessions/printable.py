"""Text from strangers, made safe to look at.

A message, a title or a chat id may hold escape sequences that move the cursor, colour the screen or forge a line, and
bidirectional marks that make a text read as another one. `printable` shows such characters instead of obeying them.
"""

from __future__ import annotations

import re

_UNSAFE = (
    r"\x00-\x1f\x7f-\x9f"  # control characters: ESC, CSI, newline, backspace
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks and overrides of the writing direction
    r"\u2028\u2029\ufeff"  # line and paragraph separators, byte order mark
    r"\ud800-\udfff"  # lone surrogates: no terminal and no file can take them
)
_IN_LINE = re.compile(f"[{_UNSAFE}]")
_IN_BLOCK = re.compile(f"(?![\n\t])[{_UNSAFE}]")


def printable(text: str, *, lines: bool = False) -> str:
    r"""The text with its control characters shown as `\x1b`, `\n` or `\u202e`; everything else stays as it is.

    Args:
        text: anything.
        lines: keep line feeds and tabs, for a text of several lines.
    """
    return (_IN_BLOCK if lines else _IN_LINE).sub(_escaped, text)


def printable_json(text: str) -> str:
    r"""JSON text with the same characters as `\u009b`: still JSON, and of the same meaning."""
    return _IN_BLOCK.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _escaped(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]
