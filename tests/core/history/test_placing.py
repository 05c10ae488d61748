"""Entries from elsewhere get their places, and those of what they refer to."""

from __future__ import annotations

from datetime import UTC, datetime

from miniclaw_sessions.core.history.placing import LOOSE, Places
from miniclaw_sessions.core.protocol.entries import Compaction, Custom, LeafMove, place_of_parent

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def entry(entry_id: str, parent_id: str | None) -> Custom:
    return Custom(id=entry_id, parent_id=parent_id, timestamp=NOW, custom_type="x")


def test_a_parent_right_before_is_not_written_down() -> None:
    places = Places()
    assert places.place(entry("a", None), 5).parent_sequence is None
    child = places.place(entry("b", "a"), 6)
    assert (child.sequence, child.parent_sequence, place_of_parent(child)) == (6, None, 5)
    assert places.place(entry("c", "a"), 7).parent_sequence == 5


def test_what_is_unknown_is_looked_for_by_its_id() -> None:
    assert Places().place(entry("b", "missing"), 6).parent_sequence == 0


def test_moves_and_compactions_learn_where_their_entries_stand() -> None:
    places = Places()
    places.place(entry("a", None), 1)
    move = places.place(LeafMove(id="m", parent_id="a", timestamp=NOW, target_id="a", target_sequence=99), 2)
    compaction = places.place(Compaction(id="c", parent_id="a", timestamp=NOW, first_kept_entry_id="a"), 3)
    cleared = places.place(LeafMove(id="n", parent_id="c", timestamp=NOW, target_id=None, target_sequence=99), 4)
    assert isinstance(move, LeafMove)
    assert isinstance(compaction, Compaction)
    assert isinstance(cleared, LeafMove)
    assert (move.target_sequence, compaction.first_kept_sequence, cleared.target_sequence) == (1, 1, None)


def test_any_number_of_places_is_remembered() -> None:
    places, many = Places(), 2 * LOOSE + 1_000
    for number in range(1, many):
        places.note(f"e{number}", number)
    for number in range(1, many, 97):
        assert places.place(entry("child", f"e{number}"), many + 1).parent_sequence == number
