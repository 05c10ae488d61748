"""A text that grows is shown as it will stand, in pieces of any size, and at a cost in proportion."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from miniclaw_sessions.files.formats.html import growing
from miniclaw_sessions.files.formats.html.allowance import Allowance
from miniclaw_sessions.files.formats.html.growing import GrowingProse
from miniclaw_sessions.files.formats.html.prose import prose

FENCE = "````python\nprint(1)\n```\n\nstill code\n````\n"
ALL = (
    f"# Head\nA *first* paragraph\non two lines.\n\n- one\n\n- two, of the same list\n\n  ```\n  x\n  ```\nand lazy\n\n"
    f"Behind.\n{FENCE}Then\n| a | b |\n|---|--:|\n| 1 | **2** |\n\n> said\n> by **her**\n\n"
    "***\n1. x\n\n2. y\n\n    code\n\n"
    "<b>no tag</b> \u202e\x00 שלום עולם\r\n\r\n12\n\n3) three\n\n~~~ what to run\nls\n~~~\n✅ done\n"
)
LINES = (
    *("$$", "x = 1", "$$ y", "z $$", "\\[", "- x \\]"),
    "word",
    "**b**",
    "- item",
    "  more",
    "1. one",
    "2",
    "",
    "",
    "```",
    "````",
    "```py",
    "~~~",
    "| a | b |",
)
TEXTS = st.lists(
    st.sampled_from((*LINES, "|---|---|", "> q", "***", "# h", "    c", "\t- d", "\u202e", "שלום", "- ", "*", "12. z"))
)
FORMULAS = "so\n$$\n- x\n```\n# y\n$$\nand $$ z $$\n\n$$\na\n\n- b\n$$\n\n$$ c $$\n\\[\n= 1\n\\] no\n\\]\n\n- d\n$$ e"
CODE = "```py\n" + "x = 1\n" * 700 + "```\n\n" + "- in\n\n  ```py\n" + "  x = 1\n" * 200 + "  ```\n\n" + FENCE * 100


class Shown:
    """What a page shows of it."""

    def __init__(self) -> None:
        self.closed = ""
        self.open = ""
        self.text = ""
        self.sent = 0
        self._growing = GrowingProse()

    def add(self, text: str) -> None:
        self._take(self._growing.add(text))

    def end(self) -> None:
        self._take(self._growing.end())

    def _take(self, piece: growing.Piece) -> None:
        self.sent += sum(map(len, (piece.closed, piece.opened or "", piece.text)))
        if piece.opened is not None:
            self.closed += piece.closed
            self.open, self.text = piece.opened, ""
        else:
            assert not piece.closed
        assert not piece.text or self.open, "text without a block to stand in"
        self.text += piece.text


def in_pieces(text: str, size: int) -> Shown:
    shown = Shown()
    for place in range(0, len(text), size):
        before = shown.closed
        shown.add(text[place : place + size])
        assert shown.closed.startswith(before), "what has closed stays"
        assert squeezed(prose(text)).startswith(squeezed(shown.closed)), text[: place + size]
    return shown


def squeezed(html: str) -> str:
    return re.sub(r">\s+<", "><", html.strip())


@pytest.mark.parametrize(
    ("text", "size"), [*((ALL, size) for size in (1, 3, 7, 40, 10_000)), (FORMULAS, 1), (FORMULAS, 5), (CODE, 900)]
)
def test_what_has_closed_is_what_the_saved_message_shows_in_pieces_of_any_size(text: str, size: int) -> None:
    shown = in_pieces(text, size)
    shown.end()
    assert squeezed(shown.closed) == squeezed(prose(text))
    assert shown.open == shown.text == ""


@given(TEXTS, st.integers(1, 9))
@example(lines=["$$", "$$", "- item", "$$"], size=1)
@example(lines=["> q", "$$", "- item", "$$"], size=1)
@example(lines=["- item", "$$", "> q", "$$"], size=1)
@settings(deadline=None)
def test_no_text_is_divided_where_it_belongs_together(lines: list[str], size: int) -> None:
    text = "\n".join(lines)
    if squeezed(prose(text)) == squeezed(f"<pre>{text}</pre>"):
        return
    shown = in_pieces(text, size)
    shown.end()
    assert squeezed(shown.closed) == squeezed(prose(text))


@pytest.mark.parametrize(
    ("text", "is_open", "shows"),
    [
        ("Some **wor", "<p ", "Some **wor"),
        ("Words.\n\nMore", "<p ", "More"),
        ("```python\nprint(", "<pre", "print("),
        ("```\na\n``", "<pre", "a"),
        ("```\na\n``\nb", "<pre", "a\n``\nb"),
        ("Words\n``", "<p ", "Words"),
        ("- one\n- two", "<ul>", ""),
        ("# Hea", "heading", ""),
        ("- one\n\nBehind it", "<p ", "Behind it"),
        ("\u202eturned", "<p ", "\\u202eturned"),
        ("<b>x", "<p ", "<b>x"),
    ],
)
def test_the_open_block_is_shown_as_what_it_is(text: str, is_open: str, shows: str) -> None:
    shown = in_pieces(text, 1)
    assert is_open in shown.open
    assert shown.text == shows


@pytest.mark.proof
def test_a_piece_costs_in_proportion_to_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the characters that are parsed, and those that are sent."""
    parsed = 0

    def counted(text: str, allowance: Allowance | None = None) -> str:
        nonlocal parsed
        parsed += len(text)
        return prose(text, allowance)

    monkeypatch.setattr(growing, "prose", counted)
    for unit in ("word " * 200 + "\n\n", "- an item\n", "```py\n" + "x = 1\n" * 200 + "```\n", "| a | b |\n"):
        for count in (4_000, 16_000):
            text = unit * (count // len(unit))
            parsed = 0
            shown = Shown()
            for place in range(0, len(text), 4):
                shown.add(text[place : place + 4])
            shown.end()
            assert parsed < 25 * len(text), unit
            assert shown.sent < 60 * len(text), unit
