"""Which row of a tree stands in which column, and what is folded away."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.core.history.transcript import Transcript
from miniclaw_sessions.core.protocol.entries import METADATA, Custom, Entry, Label
from miniclaw_sessions.core.protocol.messages import ToolCall
from miniclaw_sessions.files.formats.outline import Fold, Row, fold_runs, outline
from tests.growing import Growing, grown_at_random

CALL = ToolCall("c1", "look", "{}")


def drawn(entries: list[Entry], *, folds: bool = True) -> list[tuple[str, int]]:
    """The id and the column of each row."""
    return [(row.entry.id, row.depth) for row in outline(Transcript(entries), folds=folds)]


def test_what_was_left_stands_aside_before_the_conversation_goes_on() -> None:
    session = Growing()
    question = session.user("a")
    left = [session.assistant("b"), session.user("c")]
    session.go_to(question)
    taken = session.assistant("d")
    assert drawn(session.entries) == [(question, 0), (left[0], 1), (left[1], 1), (taken, 0)]


def test_the_leaf_ends_the_first_column_even_where_more_was_said() -> None:
    session = Growing()
    question = session.user("a")
    left = session.assistant("b")
    session.go_to(question)
    first, second = outline(Transcript(session.entries))
    assert (first.entry.id, first.is_leaf, first.is_fork) == (question, True, True)
    assert (second.entry.id, second.depth, second.begins, second.is_current) == (left, 1, True, False)


def test_within_a_branch_that_was_left_the_largest_part_keeps_the_column() -> None:
    session = Growing()
    question = session.user("a")
    fork = session.assistant("b")
    small = session.user("c")
    session.go_to(fork)
    large = [session.user("d"), session.assistant("e")]
    session.go_to(question)
    taken = session.assistant("f")
    expected = [(question, 0), (fork, 1), (small, 2), (large[0], 1), (large[1], 1), (taken, 0)]
    assert drawn(session.entries) == expected


def test_results_and_labels_are_folded_into_their_row() -> None:
    session = Growing()
    asked = session.assistant("a", CALL)
    result = session.result(CALL, "seen")
    label = session.add(Label, target_id=asked, label="here")
    (row,) = outline(Transcript(session.entries))
    assert [piece.id for piece in row.folded] == [result, label]
    assert (row.label, row.is_leaf, row.count) == ("here", True, 3)
    assert drawn(session.entries, folds=False) == [(asked, 0), (result, 0), (label, 0)]


def test_a_result_that_is_one_of_two_or_answers_nothing_has_a_row_of_its_own() -> None:
    session = Growing()
    asked = session.assistant("a", CALL)
    first = session.result(CALL, "seen")
    session.go_to(asked)
    second = session.result(CALL, "seen again")
    stray = session.result(ToolCall("unknown", "look"), "?")
    assert drawn(session.entries) == [(asked, 0), (first, 1), (second, 0), (stray, 0)]


def test_a_label_makes_no_branch_where_the_conversation_went_back_before_it() -> None:
    session = Growing()
    question = session.user("a")
    label = session.add(Label, target_id=question, label="here")
    left = session.assistant("b")
    session.go_to(question)
    taken = session.assistant("c")
    assert drawn(session.entries) == [(question, 0), (left, 1), (taken, 0)]
    assert drawn(session.entries, folds=False) == [(question, 0), (label, 1), (left, 1), (taken, 0)]


def test_metadata_makes_no_branch() -> None:
    session = Growing()
    session.user("a")
    session.add(Custom, custom_type=METADATA, data={"a": 1})
    session.user("b")
    assert [depth for _, depth in drawn(session.entries)] == [0, 0]


def test_a_session_without_entries_has_no_rows() -> None:
    assert outline(Transcript()) == []


def test_a_conversation_is_as_deep_as_it_is_long() -> None:
    session = Growing()
    for _ in range(20_000):
        session.user("a")
    rows = outline(Transcript(session.entries))
    (first, *_, last) = folded = fold_runs(rows, stays=lambda row: row.is_landmark, longest=12, edges=(4, 4))
    assert (len(rows), len(folded), first, last) == (20_000, 10, rows[0], rows[-1])
    assert isinstance(folded[4], Fold)
    assert folded[4].count == 20_000 - 9


@given(seed=st.integers(0, 2**32), size=st.integers(1, 150), folds=st.booleans())
def test_every_entry_has_one_place_under_its_parent(seed: int, size: int, folds: bool) -> None:
    transcript = Transcript(grown_at_random(seed, size))
    rows = outline(transcript, folds=folds)
    pieces = [piece.id for row in rows for piece in (row.entry, *row.folded)]
    assert sorted(pieces) == sorted(entry.id for entry in transcript.entries)
    columns: list[Row] = []  # the last row in each column, as a reader's eye follows them
    for row in rows:
        above = columns[row.depth - 1 if row.begins else row.depth] if row.depth or not row.begins else None
        assert row.entry.parent_id in {piece.id for piece in (above.entry, *above.folded)} if above else {None}
        columns[row.depth :] = [row]
    assert max(row.depth for row in rows) <= math.log2(len(transcript)) + 1
    current = {piece.id for row in rows if row.is_current for piece in (row.entry, *row.folded)}
    assert {entry.id for entry in transcript.path()} <= current or transcript.leaf_id is None
    assert all(row.depth == 0 for row in rows if row.is_current)


@given(seed=st.integers(0, 2**32), size=st.integers(1, 150))
def test_folding_hides_rows_and_loses_none(seed: int, size: int) -> None:
    rows = outline(Transcript(grown_at_random(seed, size)))
    folded = fold_runs(rows, stays=lambda row: row.is_landmark, longest=5, edges=(1, 1))
    unfolded = [row for item in folded for row in (item.rows if isinstance(item, Fold) else (item,))]
    assert unfolded == rows
    hidden = [row for item in folded if isinstance(item, Fold) for row in item.rows]
    assert not any(row.is_landmark or row.begins for row in hidden)
