"""The next message that a channel hands over, on messages that are a chat and a text."""

from __future__ import annotations

from collections.abc import Iterable

from miniclaw_sessions.channels.waiting import HELD, IN_HAND, take_next

Waiting = dict[int, tuple[str, str]]


def taken(waiting: Waiting, in_hand: Iterable[str] = (), *, late: str = "") -> tuple[str, list[str]]:
    """The text of what is taken out, empty where nothing is; and of what is not answered."""
    ended: list[tuple[str, str]] = []
    found = take_next(
        waiting, in_hand, lambda one: (one[0], one[1] == "/stop"), ended.append, is_due=lambda one: one[1] != late
    )
    return "" if found is None else found[1], [text for _, text in ended]


def test_the_first_whose_chat_has_room_goes_first() -> None:
    waiting = {1: ("ann", "one"), 2: ("ann", "two"), 3: ("bob", "hi")}
    full = ["ann"] * IN_HAND
    assert taken(waiting, full) == ("hi", [])
    assert taken(waiting, full) == ("", [])
    assert taken(waiting, full[1:]) == ("one", [])
    assert waiting == {2: ("ann", "two")}


def test_stop_needs_no_room_and_what_waits_before_it_in_its_chat_is_not_answered() -> None:
    said = [("ann", "one"), ("bob", "hi"), ("ann", "two"), ("ann", "/stop"), ("ann", "three")]
    waiting = dict(enumerate(said))
    assert taken(waiting, ["ann", "bob"] * IN_HAND) == ("/stop", ["one", "two"])
    assert [text for _, text in waiting.values()] == ["hi", "three"]


def test_what_is_not_due_lets_others_go_first_and_a_stop_ends_it() -> None:
    waiting = {1: ("ann", "again"), 2: ("ann", "two"), 3: ("ann", "/stop")}
    assert taken(waiting, late="again") == ("two", [])
    assert taken(waiting, late="again") == ("/stop", ["again"])


def test_beyond_the_bound_the_first_is_handed_over_to_be_answered_that_too_many_wait() -> None:
    waiting = {number: ("ann", str(number)) for number in range(HELD + 1)}
    assert taken(waiting, ["ann"] * IN_HAND) == ("0", [])
    assert taken(waiting, ["ann"] * IN_HAND) == ("", [])
