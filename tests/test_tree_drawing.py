"""A session's tree in a terminal, line by line."""

from __future__ import annotations

from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from miniclaw_sessions.core.protocol.entries import BranchSummary, Compaction, Entry, Label, SessionInfo
from miniclaw_sessions.core.protocol.messages import ToolCall
from miniclaw_sessions.service.cli.tree_drawing import draw_tree
from tests.growing import Growing, grown_at_random

GREP = ToolCall("c1", "grep", '{"pattern": "utcnow"}')


@pytest.fixture
def logins() -> Growing:
    session = Growing()
    session.add(SessionInfo, name="Logins")
    session.user("Why do logins fail?")
    asked = session.assistant("I'll search.", GREP)
    found = session.result(GREP, "token.py:41")
    session.add(Label, target_id=asked, label="start")
    left = session.assistant("It might be the cache.")
    session.user("There is no cache.")
    session.go_to(found)
    session.add(BranchSummary, summary="No cache here", from_id=left)
    session.assistant("Found it.")
    session.add(Compaction, summary="All about logins", tokens_before=7)
    session.user("Thank you.")
    return session


def lines(entries: list[Entry], width: int = 60, *, show_all: bool = False, encoding: str = "utf-8") -> list[str]:
    drawn = draw_tree(entries, width=width, show_all=show_all, encoding=encoding, zone=UTC)
    return [line.plain.rstrip() for line in drawn]


def style_of(line: Text, words: str) -> str:
    """All styles of a piece of a line."""
    at = line.plain.index(words)
    return " ".join(str(style) for style in (line.style, *(s.style for s in line.spans if s.start <= at < s.end)))


def test_the_current_branch_is_straight_and_the_rest_stands_aside(logins: Growing) -> None:
    assert lines(logins.entries) == [
        "· title      Logins                         2026-03-14 09:01",
        "● user       Why do logins fail?                       09:02",
        "● assistant  I'll search. → grep utcnow [start]        09:03",
        "├─○ assistant  It might be the cache.                  09:06",
        "│ ○ user       There is no cache.                      09:07",
        "■ summary    No cache here                             09:09",
        "● assistant  Found it.                                 09:10",
        "■ compaction All about logins                          09:11",
        "● user       Thank you. ◀                              09:12",
    ]


def test_a_terminal_without_box_characters_gets_ascii(logins: Growing) -> None:
    logins.user("Grüße, мир")
    drawn = lines(logins.entries, encoding="ascii")
    assert drawn[2] == "* assistant  I'll search. -> grep utcnow [start]       09:03"
    assert drawn[3] == "|-o assistant  It might be the cache.                  09:06"
    assert drawn[-1] == "* user       Gr??e, ??? <                              09:13"
    assert all(line.isascii() for line in drawn)


def test_with_all_every_entry_has_a_line(logins: Growing) -> None:
    for number in range(30):
        logins.user(f"{number}")
    moves = 1
    assert len(lines(logins.entries, show_all=True)) == len(logins.entries) - moves
    assert "● tool       token.py:41                               09:04" in lines(logins.entries, show_all=True)
    assert "├─· label      start                                   09:05" in lines(logins.entries, show_all=True)


def test_a_long_run_is_folded(logins: Growing) -> None:
    for number in range(30):
        logins.user(f"question {number}")
    drawn = lines(logins.entries)
    assert "… 22 more entries" in drawn
    assert "question 29 ◀" in drawn[-1]


def test_what_is_left_is_dim_and_what_is_current_is_bold(logins: Growing) -> None:
    drawn = list(draw_tree(logins.entries, width=60, zone=UTC))
    assert "bold green" in style_of(drawn[2], "assistant")
    assert "dim" not in style_of(drawn[2], "I'll search")
    assert "dim green" in style_of(drawn[3], "assistant")
    assert "dim" in style_of(drawn[3], "It might")
    assert "bold cyan" in style_of(drawn[-1], "user")


def test_a_cleared_session_begins_anew() -> None:
    session = Growing()
    session.user("before")
    session.go_to(None)
    assert [line.split()[0] for line in lines(session.entries)] == ["○"]
    session.user("after")
    assert lines(session.entries)[1] == "a new beginning"


def test_nothing_is_drawn_of_nothing() -> None:
    assert lines([]) == []


def test_long_words_give_way_to_the_label_and_the_time() -> None:
    session = Growing()
    said = session.user("漢字" * 60)
    session.add(Label, target_id=said, label="a label that is far too long for any line")
    (line,) = draw_tree(session.entries, width=60, zone=UTC)
    assert line.cell_len == 60
    assert line.plain.endswith("◀  2026-03-14 09:01")
    assert "[a label that is f…]" in line.plain


@given(seed=st.integers(0, 2**32), width=st.integers(0, 120), show_all=st.booleans())
def test_no_line_is_wider_than_the_terminal(seed: int, width: int, show_all: bool) -> None:
    for line in draw_tree(grown_at_random(seed, 60), width=width, show_all=show_all, zone=UTC):
        assert line.cell_len <= max(width, 40)


@given(text=st.text(), label=st.text(min_size=1))
def test_no_text_can_leave_its_line(text: str, label: str) -> None:
    session = Growing()
    said = session.user(text)
    session.add(Label, target_id=said, label=label)
    (line,) = draw_tree(session.entries, width=80, zone=UTC)
    assert not any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in line.plain)
    assert "\u202e" not in line.plain
