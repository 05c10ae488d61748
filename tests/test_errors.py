"""Errors that are raised again for each of those who wait."""

from __future__ import annotations

import pytest

from miniclaw_sessions.errors import AmbiguousName, SessionsError, StoreUnavailable, TurnTaken, renewed


@pytest.mark.parametrize(
    "error", [TurnTaken("telegram_1"), AmbiguousName("a", ["a_1", "a_2"]), StoreUnavailable("the disk is slow")]
)
def test_an_error_that_is_raised_again_says_the_same_and_keeps_its_fields(error: SessionsError) -> None:
    again = renewed(error)
    assert again is not error
    assert again.__cause__ is error
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_a_note_stands_behind_what_an_error_says() -> None:
    taken = TurnTaken("telegram_1")
    again = renewed(taken, "try again")
    assert str(again) == f"{taken}; try again"
    assert again.session_id == "telegram_1"
