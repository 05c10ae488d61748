"""Text from strangers is shown, never obeyed."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.printable import printable, printable_json

ANY_TEXT = st.text(st.characters(codec=None))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünïcode 日本 👍🏽", "plain, ünïcode 日本 👍🏽"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x9b31m", r"\x9b31m"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\ud800", r"\ud800"),
        ("\x7f\x00", r"\x7f\x00"),
    ],
)
def test_control_characters_are_shown_and_everything_else_stays(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_line_feeds_and_tabs_may_stay() -> None:
    assert printable("a\n\tb\r\x1b", lines=True) == "a\n\tb\\r\\x1b"


@given(ANY_TEXT)
def test_nothing_that_controls_a_terminal_is_left(text: str) -> None:
    for shown in (printable(text), printable(text, lines=True).replace("\n", "").replace("\t", "")):
        assert {unicodedata.category(character) for character in shown}.isdisjoint({"Cc", "Cs", "Zl", "Zp"})
        shown.encode()


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_keeps_its_meaning(document: object) -> None:
    text = printable_json(json.dumps(document, ensure_ascii=False))
    assert json.loads(text) == document
    assert printable(text, lines=True) == text
