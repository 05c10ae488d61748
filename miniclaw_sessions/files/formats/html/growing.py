"""A text that grows, as HTML that grows with it: its blocks as they close, and the one that is open.

What has closed is rendered once, with the renderer of saved messages, and never again. What is open is plain text, code
within its block. A list, a table or a quotation is rendered again each time it has grown by a twentieth, so that a text
costs in proportion to its length.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from markdown_it.token import Token

from miniclaw_sessions.files.formats.html.allowance import Allowance
from miniclaw_sessions.files.formats.html.notation import may_become_formula
from miniclaw_sessions.files.formats.html.prose import blocks, prose
from miniclaw_sessions.printable import printable

MAX_RENDERED = 20_000
"""Characters of a list, table or quotation that is open; a longer one is plain text until it closes."""

_STEPS = 20  # an open block is looked at again when it has grown by this part,
_SMALL = 4_000  # or at the end of each line, up to this length
_LINE = 200  # characters by which a line is known
_WORDS = "\N{HORIZONTAL ELLIPSIS}"
_PARAGRAPH = prose(_WORDS).replace(_WORDS, "")
_LETTER = re.compile(r"[^\W\d_]")
_FENCE = re.compile(r"(?:[ \t>*+-]|\d+[.)])*(?:```|~~~)")
_FENCE_MARKS = re.compile(r"[ \t`~]*")
_AT_ONCE = ("heading_open", "hr", "formula")
_AT_A_BLANK_LINE = ("paragraph_open", "blockquote_open", "table_open")
_INDENTED = {"paragraph_open": 3, "blockquote_open": 3, "bullet_list_open": 1, "ordered_list_open": 2}
"""By how many blanks a line of a block may be indented, at most, and begin a formula that ends it."""

_PLAIN, _CODE, _RENDERED = "plain", "code", "rendered"


class Piece(NamedTuple):
    """What a further piece of a text changes.

    Attributes:
        closed: HTML of blocks that have closed: they take the place of what was open.
        opened: HTML of what is open behind them; None: that is as it was, and nothing has closed.
        text: further text of what is open, for the end of its last block.
    """

    closed: str = ""
    opened: str | None = None
    text: str = ""


class GrowingProse:
    """One text from its beginning on: call `add` for each piece of it, then `end`."""

    def __init__(self) -> None:
        self._begin("")
        self._line = ""
        self._feed = ""
        self._allowance = Allowance()

    def add(self, text: str) -> Piece:
        """A further piece of the text."""
        text = self._feed + text
        self._feed = "\r" if text.endswith("\r") else ""  # the first half of a line's end, perhaps
        text = text.removesuffix("\r").replace("\r\n", "\n")
        self._pieces.append(text)
        self._length += len(text)
        *lines, line = (self._line + text).split("\n")
        self._line = line[:_LINE]
        if self._is_due(lines):
            return self._look(text)
        return Piece(text=self._released(text)) if self._kind in (_PLAIN, _CODE) else Piece()

    def end(self) -> Piece:
        """Nothing more comes: what was open is closed, and the next text begins."""
        rest, allowance = "".join(self._pieces) + self._feed, self._allowance
        self._begin("")
        self._line = self._feed = ""
        self._allowance = Allowance()
        return Piece(prose(rest, allowance), "") if rest.strip() else Piece()

    def _begin(self, rest: str) -> None:
        self._pieces = [rest]  # from the open block on; a service may send single characters, and a million of them
        self._length = len(rest)
        self._looked_at = 0
        self._kind = ""
        self._held = ""
        self._is_new = True

    def _is_due(self, lines: Sequence[str]) -> bool:
        """Whether to look for blocks; `lines` ended just now."""
        if self._kind == _CODE:
            return any(self._fence.fullmatch(line) for line in lines)
        if (self._length - self._looked_at) * _STEPS >= self._looked_at:
            return True
        return self._kind == _PLAIN and any(self._length < _SMALL or not line.strip() for line in lines)

    def _look(self, text: str) -> Piece:
        """Look for blocks that have closed, and for what is open; `text` has come just now."""
        rest = "".join(self._pieces)
        whole, feed, line = rest.rpartition("\n")
        found = blocks(rest if _is_told(line) else whole + feed)
        lines = rest.split("\n")
        formula = _beginning_of_formula(found, lines)
        place = min(_end_of_closed(found, lines), len(lines) if formula is None else formula)
        is_open = bool(found) and (found[-1].map or [0, len(lines)])[1] > place
        before = self._kind
        closed = prose("\n".join(lines[:place]), self._allowance) if place else ""
        if place:
            rest = "\n".join(lines[place:])
            self._begin(rest)
        self._looked_at = self._length
        kind, frame, content = self._opened(found[-1] if is_open else None, rest, is_plain=formula is not None)
        if not place and kind == before and kind != _RENDERED:
            return Piece(text=self._released(text)) if kind else Piece()
        self._kind, self._held, self._is_new = kind, "", True
        return Piece(closed, frame, self._released(content))

    def _opened(self, block: Token | None, rest: str, *, is_plain: bool) -> tuple[str, str, str]:
        """How an open block is shown, as what, and the text in it."""
        if block is None:
            return "", "", ""
        if block.type == "fence" and not is_plain:
            opening, _, content = rest.lstrip("\n").partition("\n")
            self._fence = _closing(block)
            return _CODE, prose(opening), content
        if is_plain or block.type == "paragraph_open" or len(rest) > MAX_RENDERED:
            return _PLAIN, _PARAGRAPH, rest.lstrip()
        whole, _, line = rest.rpartition("\n")
        return _RENDERED, prose(rest if _is_told(line) else whole, replace(self._allowance)), ""

    def _released(self, text: str) -> str:
        """Text that stays text: not the beginning of a line that may close this block or begin another one."""
        text = self._held + text
        whole, feed, line = text.rpartition("\n")
        is_told = not _FENCE_MARKS.fullmatch(line) if self._kind == _CODE else _is_told(line)
        if is_told or len(line) >= _LINE or not (feed or self._is_new):
            self._held = ""
        else:
            text = whole if self._kind == _CODE else whole.rstrip("\n")
            self._held = (whole + feed + line)[len(text) :]
        self._is_new = self._is_new and not text
        return printable(text, lines=True)


def _is_told(line: str) -> bool:
    """Whether it is known which block a line belongs to that goes on: marks may become others, letters decide."""
    return bool(_LETTER.search(line)) and not _FENCE.match(line)


def _beginning_of_formula(found: Sequence[Token], lines: Sequence[str]) -> int | None:
    """Where a block begins from which on all may become a formula yet."""
    for one in found:
        most_indented = _INDENTED.get(one.type)
        if one.map and most_indented is not None:
            begin, end = one.map
            if may_become_formula(lines[begin:], end - begin, most_indented):
                return begin
    return None


def _end_of_closed(found: Sequence[Token], lines: Sequence[str]) -> int:
    """The line behind the blocks that nothing can change any more; the last one of `lines` goes on."""
    if not found:
        return 0
    before, last = found[:-1], found[-1]
    behind = next((one.map[1] for one in reversed(before) if one.map), 0)
    if last.map is None:
        return behind
    begin, end = last.map
    if last.type == "fence":
        is_closing = _closing(last).fullmatch(lines[end - 1]) is not None
        has_closed = end - begin > 1 and end < len(lines) and is_closing
    else:
        has_closed = end + (last.type in _AT_A_BLANK_LINE) < len(lines) and last.type in _AT_ONCE + _AT_A_BLANK_LINE
    return end if has_closed else begin if before else 0


def _closing(fence: Token) -> re.Pattern[str]:
    """The line that closes a fence."""
    mark = fence.markup[:1]
    return re.compile(rf" {{0,3}}{re.escape(mark)}{{{len(fence.markup)},}}[ \t]*")
