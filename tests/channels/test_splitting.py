"""Splitting: nothing is lost, nothing is too long, and code stays code."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from miniclaw_sessions.channels.splitting import split, utf16_units

LIMIT = 64


def words(pieces: list[str]) -> str:
    return "".join("".join(pieces).split())


def test_what_fits_is_one_piece() -> None:
    assert split("one\n\ntwo", 100) == ["one\n\ntwo"]
    assert split("", 100) == []
    assert split(" \n\n ", 100) == []


def test_it_is_split_at_paragraphs_then_lines_then_words() -> None:
    assert split("a" * 40 + "\n\n" + "b" * 40, LIMIT) == ["a" * 40, "b" * 40]
    assert split("a" * 40 + "\n" + "b" * 40, LIMIT) == ["a" * 40, "b" * 40]
    assert split("a" * 40 + " " + "b" * 40, LIMIT) == ["a" * 40, "b" * 40]
    assert split("a" * 100, LIMIT) == ["a" * 64, "a" * 36]


def test_a_piece_is_measured_as_the_network_measures() -> None:
    assert utf16_units("\N{GRINNING FACE}a") == 3
    assert split("\N{GRINNING FACE}" * 64, LIMIT, utf16_units) == ["\N{GRINNING FACE}" * 32] * 2
    assert split("ä" * 64, LIMIT, lambda text: len(text.encode())) == ["ä" * 32] * 2


def test_a_code_fence_is_closed_and_opened_again() -> None:
    code = "\n".join(f"    line {number}" for number in range(12))
    pieces = split(f"look:\n\n```python\n{code}\n```\n\nthat is all", LIMIT)
    assert len(pieces) > 2
    for piece in pieces:
        assert len(piece) <= LIMIT
        assert piece.count("```") % 2 == 0
    fences = [token for piece in pieces for token in MarkdownIt().parse(piece) if token.type == "fence"]
    assert {token.info for token in fences} == {"python"}
    assert "".join(token.content for token in fences) == f"{code}\n"
    assert pieces[-1].endswith("that is all")


def test_the_first_pieces_stay_as_they_are_when_more_is_written() -> None:
    text = " ".join(f"word{number}" for number in range(100))
    whole = split(text, LIMIT)
    for length in range(LIMIT + 1, len(text)):
        assert split(text[:length], LIMIT)[:-2] == whole[: len(split(text[:length], LIMIT)) - 2]


@pytest.mark.parametrize("fence", ["`" * 5000, "~" * 200, "```" + "x" * 5000])
def test_a_fence_that_no_piece_could_hold_does_no_harm(fence: str) -> None:
    text = f"{fence}\nsome code\n" * 3
    pieces = split(text, LIMIT)
    assert all(0 < len(piece) <= LIMIT for piece in pieces)
    assert "somecode" in words(pieces)


@settings(max_examples=60)
@given(st.text(st.sampled_from("ab \n`~\N{GRINNING FACE}"), max_size=400))
def test_whatever_it_is_no_piece_is_too_long_or_empty(text: str) -> None:
    pieces = split(text, LIMIT, utf16_units)
    assert all(utf16_units(piece) <= LIMIT and piece.strip() for piece in pieces)
    assert words(pieces).replace("`", "").replace("~", "") == words([text]).replace("`", "").replace("~", "")
