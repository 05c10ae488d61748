"""The language of a query, what of an entry is searched, and how it is shown."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from miniclaw_sessions.core.history import searched as judging
from miniclaw_sessions.core.history.search import Piece, Search, cursor_of, folded, place_of
from miniclaw_sessions.core.history.searched import SNIPPET, score, searched, snippet
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall
from miniclaw_sessions.errors import InvalidSearch

_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def of(message: Message) -> MessageEntry:
    return MessageEntry(id="a", parent_id=None, timestamp=_NOON, sequence=1, message=message)


def score_of(query: str, message: Message) -> float:
    found = searched(of(message))
    assert found is not None
    fits = score(Search.parse(query), found)
    assert fits is not None
    return fits


@pytest.mark.parametrize(
    ("query", "terms", "excluded"),
    [
        ("rome flight", ("rome", "flight"), ()),
        ('"At  Nine" -Hotel rome rome', ("at nine", "rome"), ("hotel",)),
        ('-"two words" x', ("x",), ("two words",)),
        ('"unclosed words', ("unclosed words",), ()),
        ('say"so', ('say"so',), ()),
        ("a-b --c -", ("a-b", "-"), ("-c",)),
        ('x "" - ', ("x", "-"), ()),
        ("\uff26ull\u3000Straße é e\u0301 İ", ("full", "strasse", "e", "i"), ()),
    ],
)
def test_a_query_is_words_phrases_and_what_must_not_occur(
    query: str, terms: tuple[str, ...], excluded: tuple[str, ...]
) -> None:
    search = Search.parse(query)
    assert (search.terms, search.excluded) == (terms, excluded)


@pytest.mark.parametrize(
    ("query", "filters", "told"),
    [
        ("", {}, "nothing to search for"),
        ("  \u200b ", {}, "nothing to search for"),
        ("-hotel", {}, "nothing to search for"),
        ("x" * 100_000, {}, "100,000 characters"),
        ("a\0b", {}, "NUL"),
        ("a\ud800b", {}, "surrogate"),
        (" ".join(str(n) for n in range(40)), {}, "more than 32 words"),
        ("a", {"role": "asistant"}, "no role 'asistant'; there are system, user"),
        ("a", {"author": "x\0"}, "the author holds a NUL"),
        ("a", {"limit": 0}, "limit"),
        ("a", {"limit": 10**9}, "limit"),
    ],
)
def test_a_search_that_cannot_be_meant_is_refused_and_never_repeated(
    query: str, filters: dict[str, object], told: str
) -> None:
    with pytest.raises(InvalidSearch, match=told) as refused:
        Search.parse(query, **filters)
    assert len(query) < 3 or query not in str(refused.value)


@given(st.text())
def test_folding_twice_is_folding_once(text: str) -> None:
    assert folded(folded(text)) == folded(text)


@given(st.datetimes(timezones=st.just(UTC)), st.integers(0, 2**63 - 1), st.text(alphabet="abc_.~%1", min_size=1))
def test_a_place_comes_back_from_its_cursor(said_at: datetime, sequence: int, session_id: str) -> None:
    assert place_of(cursor_of((said_at, session_id, sequence))) == (said_at, session_id, sequence)


def test_whole_words_count_more_than_parts_and_what_was_said_more_than_what_tools_return() -> None:
    call = ToolCall("1", "look", "{}")
    said = [score_of("rome", Message.user(text)) for text in ("to Rome.", "romeo", "chrome")]
    assert said == sorted(set(said), reverse=True)
    assert score_of("rome", Message.tool_result(call, "to Rome.")) < said[0]
    assert score_of("rome", Message.user("chrome romeo rome")) == said[0]


def marked(text: str, *terms: str) -> str:
    return "".join(f"[{piece.text}]" if piece.match else piece.text for piece in snippet(text, terms))


@pytest.mark.parametrize(
    ("text", "terms", "shown"),
    [
        ("Book a flight\n to ROME", ("rome", "flight"), "Book a [flight] to [ROME]"),
        ("to\t Rome", ("to rome",), "[to Rome]"),
        ("die Straße dort", ("strasse",), "die [Straße] dort"),
        ("cafe\u0301s", ("cafe",), "[cafe\u0301]s"),
        ("ein \ufb01x", ("f", "ix"), "ein [\ufb01x]"),
        ("ab\u00adcd", ("bc",), "a[b\u00adc]d"),
        ("我在北京吃了烤鸭", ("北京",), "我在[北京]吃了烤鸭"),
        ("abcd", ("ab", "bc"), "[abc]d"),
        ("nothing of it", ("x",), "nothing of it"),
        ("", ("x",), ""),
    ],
)
def test_a_snippet_marks_what_was_searched_for_as_it_was_written(text: str, terms: tuple[str, ...], shown: str) -> None:
    assert marked(text, *terms) == shown


def test_a_snippet_of_a_long_text_is_where_most_of_the_terms_are() -> None:
    text = "rome " + "filler " * 50_000 + "now to rome by train at last " + "more " * 1_000
    shown = marked(text, "rome", "train")
    assert "to [rome] by [train] at last" in shown
    assert (shown[0], shown[-1]) == ("…", "…")


@given(st.text(), st.lists(st.text(min_size=1), max_size=3))
def test_a_snippet_of_any_text_is_short_and_loses_nothing_of_a_short_one(text: str, wanted: list[str]) -> None:
    terms = tuple(term for one in wanted if (term := folded(one)))
    pieces = snippet(text, terms)
    assert all(piece.text for piece in pieces)
    whole = "".join(piece.text for piece in pieces)
    assert len(whole) <= SNIPPET + 2 + max(map(len, text.split()), default=0) * any(piece.match for piece in pieces)
    if len(" ".join(text.split())) <= SNIPPET and not any(piece == Piece("…") for piece in pieces):
        assert folded(whole) == folded(text)


@given(st.text(min_size=1))
def test_every_part_of_a_text_finds_it(text: str) -> None:
    found = searched(of(Message.user(text)))
    assert found is not None
    for word in text.split():
        if term := folded(word):
            assert score(Search(terms=(term,)), found) is not None
            assert any(piece.match for piece in snippet(text[:200], (term,))) or len(text) > 200


@example("a'a a", "aa", 3)
@given(st.text(alphabet="abÄ' \n"), st.text(alphabet="abä ", min_size=1, max_size=5), st.integers(1, 9))
def test_what_is_read_in_pieces_fits_as_what_is_read_at_once(text: str, wanted: str, size: int) -> None:
    found = searched(of(Message.user(text)))
    assert found is not None
    for search in (Search(terms=(folded(wanted) or "a",)), Search(terms=("a",), excluded=(folded(wanted) or "b",))):
        expected = all(term in folded(text) for term in search.terms)
        expected = expected and not any(term in folded(text) for term in search.excluded)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(judging, "_PIECE", size)
            patch.setattr(judging, "_SEEK", size)
            assert (score(search, found) is not None) == expected


def test_a_message_is_searched_with_its_calls_and_without_its_thinking() -> None:
    call = ToolCall("1", "write", '{"path": "a.txt", "text": "line\\nwith \\"quotes\\" and \\u00e9"}', output="done")
    found = searched(of(Message(Role.ASSISTANT, "", tool_calls=(call,), author="coder", name="Max")))
    assert found is not None
    assert (found.tools, found.authors, found.said) == (("write",), ("coder", "Max"), "")
    assert all(word in folded(found.text) for word in ("a.txt", 'with "quotes"', " e", "done", "write"))
