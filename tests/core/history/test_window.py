"""The window: bounded, first in first out, and never a tool call without its result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from miniclaw_sessions.config import MAX_MESSAGES
from miniclaw_sessions.core.history.pairing import open_calls
from miniclaw_sessions.core.history.window import Window
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def logged(messages: Iterable[Message]) -> list[MessageEntry]:
    """Messages as the entries of one session."""
    return [
        MessageEntry(id=f"e{n}", parent_id=f"e{n - 1}" if n > 1 else None, timestamp=NOW, sequence=n, message=message)
        for n, message in enumerate(messages, 1)
    ]


def calling(*ids: str) -> Message:
    return Message.assistant("", tuple(ToolCall(call_id, "f", "{}") for call_id in ids))


def result(call_id: str | None) -> Message:
    return Message(Role.TOOL_RESULT, "done", tool_call_id=call_id)


def filled(messages: Iterable[Message], capacity: int = MAX_MESSAGES) -> Window:
    window = Window(capacity)
    for entry in logged(messages):
        window.push(entry)
    return window


def sequences(window: Iterable[MessageEntry]) -> list[int]:
    return [entry.sequence for entry in window]


def calls_and_results(window: Iterable[MessageEntry]) -> tuple[list[str], list[str | None]]:
    entries = list(window)
    calls = [call.id for entry in entries for call in entry.message.tool_calls or ()]
    return calls, [entry.message.tool_call_id for entry in entries if entry.message.is_tool_result]


# --- the original's own tests ----------------------------------------------------------------------------------------


def test_fifo_rotation() -> None:
    window = filled(Message.user(f"Message {number}") for number in range(51))
    texts = [entry.message.text for entry in window]
    assert len(texts) == MAX_MESSAGES == 50
    assert texts[0] == "Message 1"
    assert texts[-1] == "Message 50"


def test_session_fifo_with_tool_interactions() -> None:
    pairs = [m for n in range(25) for m in (Message.user(f"Question {n}"), Message.assistant(f"Response {n}"))]
    window = filled([*pairs, Message.user("one more")])
    texts = [entry.message.text for entry in window]
    assert len(texts) == 50
    assert texts[0] == "Response 0"
    assert texts[-1] == "one more"


# --- units -----------------------------------------------------------------------------------------------------------


def test_a_call_leaves_together_with_its_results() -> None:
    window = filled(
        [calling("a", "b"), result("a"), result("b"), Message.assistant("x"), Message.user("y")], capacity=5
    )
    assert window.push(logged([Message.user("z")])[0]) == 3
    assert [entry.message.text for entry in window] == ["x", "y", "z"]


def test_sixty_results_in_one_turn_leave_the_question_and_the_newest_exchanges() -> None:
    turn = [Message.user("question")]
    for number in range(60):
        turn += [calling(f"c{number}"), result(f"c{number}")]
    window = filled(turn)
    assert len(window) in (49, 50)
    assert next(iter(window)).message.text == "question"
    calls, results = calls_and_results(window)
    assert calls == results == [f"c{number}" for number in range(36, 60)]


def test_sixty_parallel_calls_leave_the_question_and_the_newest_calls_with_their_results() -> None:
    ids = [f"c{number}" for number in range(60)]
    window = filled([Message.user("question"), calling(*ids), *map(result, ids)])
    assert len(window) == 50
    assert next(iter(window)).message.text == "question"
    calls, results = calls_and_results(window)
    assert calls == results == ids[12:]


def test_parallel_results_in_the_order_of_completion_stay_with_their_calls() -> None:
    ids = [f"c{number}" for number in range(60)]
    window = filled([Message.user("question"), calling(*ids), *map(result, reversed(ids))])
    calls, results = calls_and_results(window)
    assert len(window) == 50
    assert sorted(calls) == sorted(str(r) for r in results)


def test_a_turn_of_146_messages_keeps_its_question_and_its_end() -> None:
    turn = [Message.user("question")]
    for number in range(72):
        turn += [calling(f"c{number}"), result(f"c{number}")]
    turn.append(Message.assistant("answer"))
    assert len(turn) == 146
    window = filled([*(Message.user(f"old {n}") for n in range(30)), *turn])
    entries = list(window)
    assert entries[0].message.text == "question"
    assert entries[-1].message.text == "answer"
    assert len(entries) == 50
    assert sequences(entries)[1:] == list(range(30 + 146 - 48, 30 + 146 + 1))


@pytest.mark.parametrize("call_id", [None, "the same", "unknown"])
@pytest.mark.parametrize("question", [[], [Message.user("question")]])
@pytest.mark.parametrize("calls", [["the same"], ["a", "b"], []])
def test_results_that_fit_no_call_never_empty_the_window(
    call_id: str | None, question: list[Message], calls: list[str]
) -> None:
    window = filled([*question, calling(*calls), *(result(call_id) for _ in range(120))])
    entries = list(window)
    assert len(entries) == 50
    assert entries[0].message == (question[0] if question else entries[0].message)
    assert not entries[0].message.is_tool_result
    assert entries[-1].sequence == 121 + len(question)


def test_results_without_ids_leave_with_the_call_at_their_position() -> None:
    window = filled([Message.user("q"), calling("a", "b", "c"), result(None), result(None), result(None)], capacity=4)
    assert sequences(window) == [1, 2, 4, 5]
    assert calls_and_results(window)[0] == ["b", "c"]


def test_the_results_of_a_call_leave_all_together() -> None:
    turn = [Message.user("q"), calling("a", "b"), result("a"), result("a"), result("b")]
    assert calls_and_results(filled(turn, capacity=4)) == (["b"], ["b"])


def test_results_right_behind_a_question_leave_oldest_first() -> None:
    window = filled([Message.user("q"), *(result("lost") for _ in range(10))], capacity=4)
    assert sequences(window) == [1, 9, 10, 11]


def test_a_result_whose_call_is_gone_stays_in_the_transcript_only() -> None:
    window = Window(5)
    (orphan,) = logged([result("gone")])
    assert window.push(orphan) == 1
    assert list(window) == []


def test_the_smallest_window_keeps_the_question() -> None:
    turn = [Message.user("q"), calling("a"), result("a"), calling("b"), result("b"), Message.assistant("answer")]
    assert sequences(filled(turn, capacity=2)) == [1, 6]
    assert sequences(filled(turn[:3], capacity=2)) == [1]


@pytest.mark.parametrize("capacity", [1, 0, -5])
def test_a_window_holds_a_question_and_its_answer(capacity: int) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        Window(capacity)


def test_an_answered_question_leaves_when_the_next_one_comes() -> None:
    long_answer = [Message.user("q1"), *(Message.assistant(str(n)) for n in range(60))]
    window = filled(long_answer)
    assert sequences(window) == [1, *range(13, 62)]
    window.push(MessageEntry(id="n", parent_id=None, timestamp=NOW, sequence=62, message=Message.user("q2")))
    assert sequences(window) == list(range(13, 63))


def test_clear_forgets_the_question_too() -> None:
    window = filled([Message.user("q"), Message.assistant("a")])
    window.clear()
    assert (len(window), list(window)) == (0, [])
    for entry in logged(Message.assistant(str(n)) for n in range(60)):
        window.push(entry)
    assert sequences(window) == list(range(11, 61))


def test_a_window_says_how_full_it_is() -> None:
    window = filled([Message.user("q"), Message.assistant("a")])
    assert repr(window) == "<Window 2 of 50 messages>"


# --- properties ------------------------------------------------------------------------------------------------------

roles = st.sampled_from([Role.USER, Role.ASSISTANT, Role.SYSTEM, Role.OTHER])
call_ids = st.sampled_from(["a", "b", "c", "d", "e"])
wild = st.lists(
    st.one_of(
        st.builds(Message, roles, st.just("x")),
        st.lists(call_ids, max_size=5).map(lambda ids: calling(*ids)),
        st.builds(result, st.none() | call_ids),
        st.builds(result, call_ids),
    ),
    max_size=60,
)
"""Any messages in any order: orphans, repeated ids, results without ids."""


@st.composite
def well_formed(draw: st.DrawFn) -> list[Message]:
    """Turns as an agent makes them: every call has its own id and is answered right behind, in any order."""
    messages: list[Message] = []
    for turn in range(draw(st.integers(0, 6))):
        messages.append(Message.user(f"q{turn}"))
        for step in range(draw(st.integers(0, 5))):
            ids = [f"{turn}.{step}.{n}" for n in range(draw(st.integers(0, 12)))]
            messages.append(calling(*ids) if ids else Message.assistant("thinking"))
            messages.extend(result(call_id) for call_id in draw(st.permutations(ids)))
        messages.append(Message.assistant(f"a{turn}"))
    return messages


capacities = st.integers(2, 12)


@given(wild, capacities)
@example([Message.user("q"), calling("a"), *[result("a")] * 20], 5)
@example([calling("a", "a"), *[result("a")] * 20], 5)
def test_whatever_comes_the_window_keeps_its_promises(messages: list[Message], capacity: int) -> None:
    window, gone, last_user = Window(capacity), 0, None
    for number, entry in enumerate(logged(messages), 1):
        was_empty = not len(window)
        gone += window.push(entry)
        entries = list(window)
        last_user = entry if entry.message.is_user else last_user
        assert len(entries) <= capacity
        assert len(entries) + gone == number, "every message is in the window or was counted as gone"
        assert sequences(entries) == sorted(set(sequences(entries))), "oldest first, none twice"
        assert not entries or not entries[0].message.is_tool_result
        assert last_user is None or last_user in entries
        assert entries or (was_empty and entry.message.is_tool_result), "never emptied by what comes"
        if not entry.message.is_tool_result:
            assert entries[-1] == entry


@given(wild, capacities)
def test_a_window_equals_one_filled_from_its_own_entries(messages: list[Message], capacity: int) -> None:
    window = filled(messages, capacity)
    again = Window(capacity, window)
    assert list(again) == list(window)
    (more,) = logged([Message.assistant("more")])
    window.push(more)
    again.push(more)
    assert list(again) == list(window), "it remembers the last question as well"


@given(wild, capacities)
def test_the_newest_step_has_every_call_that_is_open(messages: list[Message], capacity: int) -> None:
    window = filled(messages, capacity)
    assert open_calls(window.newest_step()) == open_calls(window.messages())


@given(wild, capacities)
def test_filling_at_once_equals_pushing_one_by_one(messages: list[Message], capacity: int) -> None:
    assert list(Window(capacity, logged(messages))) == list(filled(messages, capacity))


def units(entries: Iterable[MessageEntry]) -> Iterator[list[MessageEntry]]:
    """A message with the results behind it."""
    unit: list[MessageEntry] = []
    for entry in entries:
        if unit and not entry.message.is_tool_result:
            yield unit
            unit = []
        unit.append(entry)
    if unit:
        yield unit


def without_oldest_exchange(unit: list[MessageEntry]) -> list[MessageEntry]:
    head, *results = unit
    answered = [entry.message.tool_call_id for entry in results]
    calls = head.message.tool_calls or ()
    oldest = next(call.id for call in calls if call.id in answered)
    kept = tuple(call for call in calls if call.id != oldest)
    if not kept:
        return []
    message = Message.assistant(head.message.text, kept)
    slim = MessageEntry(id=head.id, parent_id=head.parent_id, timestamp=NOW, sequence=head.sequence, message=message)
    return [slim, *(entry for entry in results if entry.message.tool_call_id != oldest)]


def slow_window(entries: list[MessageEntry], capacity: int) -> list[MessageEntry]:
    """The rules as a person would carry them out on paper, for well-formed turns."""
    kept: list[MessageEntry] = []
    for entry in entries:
        if entry.message.is_tool_result and not kept:
            continue
        kept.append(entry)
        while len(kept) > capacity:
            question = [e for e in kept if e.message.is_user][-1:]
            *older, newest = units(kept)
            removable = [unit for unit in older if unit != question]
            if removable:
                kept = [e for e in kept if e not in removable[0]]
            else:
                kept = [*question, *without_oldest_exchange(newest)]
    return kept


@given(well_formed(), capacities)
def test_on_well_formed_turns_the_window_is_the_obvious_one(messages: list[Message], capacity: int) -> None:
    assert list(filled(messages, capacity)) == slow_window(logged(messages), capacity)


@given(well_formed(), st.integers(3, 12))
def test_on_well_formed_turns_every_result_stands_behind_its_call(messages: list[Message], capacity: int) -> None:
    answered = {message.tool_call_id for message in messages if message.is_tool_result}
    window = Window(capacity)
    for entry in logged(messages):
        window.push(entry)
        for unit in units(window):
            calls = {call.id for call in unit[0].message.tool_calls or ()}
            results = [e.message.tool_call_id for e in unit[1:]]
            assert set(results) <= calls
            assert len(results) == len(set(results))
    calls_left, results_left = calls_and_results(window)
    assert set(calls_left) & answered == set(results_left), "no call lost its answer"


@given(st.lists(st.sampled_from([Role.ASSISTANT, Role.SYSTEM, Role.OTHER]), max_size=40), capacities)
def test_plain_messages_leave_one_by_one(plain: list[Role], capacity: int) -> None:
    messages = [Message(role, str(number)) for number, role in enumerate(plain)]
    assert [entry.message for entry in filled(messages, capacity)] == messages[-capacity:]


@given(well_formed(), st.integers(2, 12), st.integers(2, 12))
def test_a_lowered_capacity_cuts_by_the_same_rules(messages: list[Message], capacity: int, lower: int) -> None:
    window = filled(messages, max(capacity, lower))
    smaller = list(Window(min(capacity, lower), window))
    assert smaller == slow_window(list(window), min(capacity, lower))
    assert not smaller or not smaller[0].message.is_tool_result


def test_a_capacity_lowered_from_50_to_20_never_begins_with_an_orphan() -> None:
    turns = []
    for number in range(20):
        turns += [Message.user(f"q{number}"), calling(f"a{number}", f"b{number}")]
        turns += [result(f"a{number}"), result(f"b{number}"), Message.assistant("done")]
    for cut in range(len(turns)):
        entries = list(Window(20, filled(turns[:cut])))
        assert len(entries) <= 20
        assert not entries or not entries[0].message.is_tool_result
        calls, results = calls_and_results(entries)
        assert set(results) <= set(calls)


def test_a_real_session_never_shows_an_orphan_or_loses_its_question(large_session: list[Message]) -> None:
    window, question = Window(), None
    for entry in logged(large_session):
        window.push(entry)
        entries = list(window)
        question = entry if entry.message.is_user else question
        assert len(entries) <= MAX_MESSAGES
        assert not entries[0].message.is_tool_result
        assert question is None or question in entries
        calls, results = calls_and_results(entries)
        assert set(results) <= set(calls)


@pytest.mark.parametrize("calls", [40, 48, 49, 60, 100])
def test_a_turn_with_very_many_calls_leaves_the_window_full(calls: int) -> None:
    ids = [f"c{number}" for number in range(calls)]
    window = filled([Message.user("q"), calling(*ids), *(result(one) for one in ids)])
    for text in ("done", "and", "more"):
        window.push(logged([Message.assistant(text)])[0])
        assert len(window) >= min(MAX_MESSAGES - 3, calls + 3)
        left, answered = calls_and_results(window)
        assert left == answered
    assert next(iter(window)).message.text == "q"


def test_a_turn_with_very_many_calls_leaves_call_by_call_when_the_next_question_comes() -> None:
    ids = [f"c{number}" for number in range(48)]
    window = filled([Message.user("q"), calling(*ids), *(result(one) for one in ids), Message.assistant("done")])
    for text in ("next", "again"):
        window.push(logged([Message.user(text)])[0])
        assert len(window) >= MAX_MESSAGES - 2
