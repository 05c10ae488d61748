"""Markdown with WhatsApp's marks, and texts that are shown to the letter; see test_fences.py for words left out."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from miniclaw_sessions.channels.whatsapp.text import literal, whatsapp_text
from tests.channels.whatsapp_server import shown


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("# A **b** c\n\nx", "*A b c*\n\nx"),
        ("**b** _i_ ~~s~~ `c` ``c`d``", "*b* _i_ ~s~ `c` c`d"),
        ("***both***", "_*both*_"),
        ("**over\nlines**", "*over*\n*lines*"),
        ("- a\n- b\n  1. c\n  2. d\n\ne", "- a\n- b\n  1. c\n  2. d\n\ne"),
        ("3. c\n4. d", "3. c\n4. d"),
        ("> a\n> b\n>\n> c", "> a\n> b\n>\n> c"),
        ("```py\n1 < 2\n```", "```\n1 < 2\n```"),
        ("~~~\na ``` b\n~~~", "```\na `\N{ZERO WIDTH SPACE}`` b\n```"),
        ("|a|b|\n|-|-|\n|1|**2**|", "```\n|a|b|\n|-|-|\n|1|**2**|\n```"),
        ("[l](http://x/?a&b 't') <http://y> [](http://z)", "l (http://x/?a&b) http://y http://z"),
        ("![p](http://i/)", "p (http://i/)"),
        ("<me@x.org>", "me@x.org"),
        ("a\nb  \nc", "a\nb\nc"),
        ("***\n\nsnake_case_x & <b> \\*", "\N{EM DASH}\N{EM DASH}\N{EM DASH}\n\nsnake_case_x & <b> *"),
        ("```see there\nx\n```", "see there\n\n```\nx\n```"),
        ("[x]: http://y\n\nz", "[x]: http://y\n\nz"),
        ("", ""),
    ],
)
def test_markdown_has_whatsapps_marks(markdown: str, text: str) -> None:
    assert whatsapp_text(markdown) == text


def test_what_nests_too_deep_stays_as_it_was_written() -> None:
    deep = "> " * 60 + "word"
    assert whatsapp_text(deep) == deep


@given(st.text(alphabet="*_~` a>\n-1."))
@example("````")
@example("`````````")
def test_a_literal_text_is_shown_to_the_letter(text: str) -> None:
    message = {"text": {"body": literal(text)}}
    assert shown(message).replace("\N{ZERO WIDTH SPACE}", "") == text


def test_what_has_no_marks_is_no_code() -> None:
    assert literal("/model NAME - choose (1 * 2)") == "/model NAME - choose (1 * 2)"
    assert literal("delete *a*") == "```\ndelete *a*\n```"
