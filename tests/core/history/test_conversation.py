"""A conversation is the fold of its entries, and a snapshot of it plus the later entries is the later conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.core.history.conversation import REMEMBERED_KEYS, Conversation
from miniclaw_sessions.core.history.state import Snapshot, State
from miniclaw_sessions.core.persistence.snapshot_file import decode_snapshot, encode_snapshot
from miniclaw_sessions.core.protocol.entries import (
    METADATA,
    Compaction,
    Custom,
    Entry,
    Label,
    LeafMove,
    MessageEntry,
    ModelChange,
    OtherEntry,
    SessionInfo,
    ThinkingLevelChange,
    moves_leaf,
)
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall

KEY = SessionKey("telegram", "1")
START = datetime(2026, 1, 1, tzinfo=UTC)

Step = Callable[[dict[str, Any]], Entry]
"""Makes an entry from what all entries have."""


def empty(capacity: int = 50) -> Conversation:
    return Conversation.new(KEY, incarnation="i1", created_at=START, capacity=capacity)


def logged(steps: Sequence[Step]) -> list[Entry]:
    """The steps as a live session would log them: numbered from 1, each one the child of the leaf."""
    entries: list[Entry] = []
    leaf: str | None = None
    place = 0
    for number, step in enumerate(steps, 1):
        entry = step(
            {
                "id": f"e{number}",
                "parent_id": leaf,
                "timestamp": START + timedelta(seconds=number),
                "sequence": number,
                "parent_sequence": None if leaf is None or place == number - 1 else place,
            }
        )
        if isinstance(entry, LeafMove):
            leaf, place = entry.target_id, entry.target_sequence or 0
        elif moves_leaf(entry):
            leaf, place = entry.id, number
        entries.append(entry)
    return entries


def fold(entries: Sequence[Entry], conversation: Conversation | None = None, capacity: int = 50) -> Conversation:
    conversation = conversation or empty(capacity)
    for entry in entries:
        conversation.apply(entry)
    return conversation


def said(message: Message, key: str | None = None) -> Step:
    return lambda base: MessageEntry(**base, message=message, idempotency_key=key)


def changed(**data: Any) -> Step:
    return lambda base: Custom(**base, custom_type=METADATA, data=data)


def named(name: str) -> Step:
    return lambda base: SessionInfo(**base, name=name)


def cleared(base: dict[str, Any]) -> Entry:
    return LeafMove(**base, target_id=None)


def captured(conversation: Conversation, committed: int | None = None) -> Snapshot:
    snapshot = conversation.capture(conversation.state.last_sequence if committed is None else committed)
    assert snapshot is not None
    return snapshot


def state(conversation: Conversation) -> tuple[object, ...]:
    return (
        list(conversation.window),
        dict(conversation.state.metadata),
        conversation.state.leaf_id,
        conversation.state.last_sequence,
        list((conversation.state.idempotency_keys or {}).items()),
        conversation.state.updated_at,
        conversation.state.last_accessed,
        conversation.state.created_at,
        conversation.state.incarnation,
        conversation.extra,
    )


# --- the fold --------------------------------------------------------------------------------------------------------


def test_a_new_conversation_is_empty_and_stamped_with_its_creation() -> None:
    conversation = empty()
    assert list(conversation.window) == []
    assert conversation.state.metadata == {}
    assert conversation.state.created_at == conversation.state.updated_at == conversation.state.last_accessed == START
    assert (conversation.state.leaf_id, conversation.state.last_sequence) == (None, 0)


def test_messages_fill_the_window_and_move_the_leaf() -> None:
    conversation = fold(logged([said(Message.user("q")), said(Message.assistant("a"))]))
    assert [entry.message.text for entry in conversation.window] == ["q", "a"]
    assert (conversation.state.leaf_id, conversation.state.last_sequence) == ("e2", 2)
    assert conversation.state.updated_at == START + timedelta(seconds=2)


def test_apply_tells_how_many_messages_left_the_window() -> None:
    conversation = empty(capacity=2)
    assert [conversation.apply(entry) for entry in logged([said(Message.assistant("x"))] * 4)] == [0, 0, 1, 1]


def test_clearing_empties_the_window_and_keeps_metadata_and_keys() -> None:
    conversation = fold(logged([named("Holiday"), said(Message.user("q"), "k1"), cleared]))
    assert list(conversation.window) == []
    assert conversation.state.metadata == {"title": "Holiday"}
    assert conversation.state.leaf_id is None
    assert conversation.state.idempotency_keys == {"k1": "e2"}
    assert conversation.state.last_sequence == 3


def test_the_conversation_goes_on_after_clearing() -> None:
    conversation = fold(logged([said(Message.user("old")), cleared, said(Message.user("new"))]))
    assert [entry.message.text for entry in conversation.window] == ["new"]
    assert next(iter(conversation.window)).parent_id is None


def test_the_title_is_the_last_one_given_and_an_empty_one_removes_it() -> None:
    assert fold(logged([named("a"), named("b")])).state.metadata == {"title": "b"}
    assert fold(logged([named("a"), named("")])).state.metadata == {}


def test_model_and_thinking_level_are_metadata() -> None:
    steps: list[Step] = [
        lambda base: ModelChange(**base, provider="openai", model_id="gpt-x"),
        lambda base: ThinkingLevelChange(**base, thinking_level="high"),
    ]
    conversation = fold(logged(steps))
    assert conversation.state.metadata == {"provider": "openai", "model": "gpt-x", "thinking_level": "high"}
    steps += [lambda base: ModelChange(**base), lambda base: ThinkingLevelChange(**base, thinking_level="")]
    assert fold(logged(steps)).state.metadata == {}


def test_none_removes_a_metadata_key_and_the_others_stay() -> None:
    conversation = fold(logged([changed(a=1, b=[2], c=False), changed(b=None, d="")]))
    assert conversation.state.metadata == {"a": 1, "c": False, "d": ""}


def test_metadata_does_not_follow_the_caller_s_lists() -> None:
    tags = ["a"]
    conversation = fold(logged([changed(tags=tags)]))
    tags.append("b")
    assert conversation.state.metadata == {"tags": ["a"]}


def test_entries_that_are_not_for_the_window_change_only_the_leaf() -> None:
    steps: list[Step] = [
        said(Message.user("q")),
        lambda base: Label(**base, target_id="e1", label="x"),
        lambda base: Compaction(**base, summary="s", first_kept_entry_id="e1"),
        lambda base: Custom(**base, custom_type="theirs", data={"title": "not ours"}),
        lambda base: OtherEntry(**base, encoded=msgspec.Raw(b"{}")),
    ]
    conversation = fold(logged(steps))
    assert [entry.message.text for entry in conversation.window] == ["q"]
    assert conversation.state.metadata == {}
    assert (conversation.state.leaf_id, conversation.state.last_sequence) == ("e5", 5)


def test_time_never_runs_backwards_when_the_clock_does() -> None:
    late, early = logged([said(Message.user("q")), said(Message.assistant("a"))])
    late = msgspec.structs.replace(late, timestamp=START + timedelta(days=400))
    conversation = fold([late, early])
    assert conversation.state.updated_at == conversation.state.last_accessed == START + timedelta(days=400)


def test_the_newest_256_idempotency_keys_are_remembered() -> None:
    conversation = fold(logged([said(Message.user("q"), f"k{number}") for number in range(300)]))
    keys = conversation.state.idempotency_keys or {}
    assert len(keys) == REMEMBERED_KEYS == 256
    assert next(iter(keys)) == "k44"
    assert list(keys)[-1] == "k299"
    assert keys["k299"] == "e300"


def test_a_key_is_remembered_after_its_message_has_left_the_window() -> None:
    conversation = fold(logged([said(Message.user("q"), "k"), *[said(Message.user("x"))] * 60]))
    assert conversation.state.idempotency_keys == {"k": "e1"}


# --- snapshots -------------------------------------------------------------------------------------------------------


def test_a_snapshot_of_everything_is_complete() -> None:
    snapshot = captured(fold(logged([named("t"), said(Message.user("q"), "k")])))
    assert snapshot.state.complete
    assert [entry.id for entry in snapshot.entries] == ["e2"]
    assert (snapshot.state.leaf_id, snapshot.state.last_sequence) == ("e2", 2)
    assert snapshot.state.metadata == {"title": "t"}
    assert snapshot.state.idempotency_keys == {"k": "e2"}


def test_a_snapshot_leaves_out_what_the_store_does_not_have_yet() -> None:
    conversation = fold(logged([named("t"), said(Message.user("q"), "k1"), said(Message.assistant("a"), "k2")]))
    snapshot = captured(conversation, 2)
    assert not snapshot.state.complete
    assert [entry.id for entry in snapshot.entries] == ["e2"]
    assert (snapshot.state.leaf_id, snapshot.state.last_sequence) == ("e2", 2)
    assert snapshot.state.idempotency_keys == {"k1": "e2"}
    assert [entry.id for entry in conversation.window] == ["e2", "e3"], "the conversation itself is as it was"


@pytest.mark.parametrize("left_out", [1, 20, 49])
def test_a_snapshot_has_the_keys_that_only_what_it_leaves_out_has_pushed_out(left_out: int) -> None:
    entries = logged([said(Message.user("q"), f"k{number}") for number in range(2 * REMEMBERED_KEYS)])
    committed = len(entries) - left_out
    snapshot = captured(fold(entries), committed)
    exact = fold(entries[:committed]).state.idempotency_keys
    assert list(snapshot.state.idempotency_keys.items()) == list(exact.items())
    assert len(exact) == REMEMBERED_KEYS
    gone_on = fold(entries[committed:], Conversation.from_snapshot(snapshot, capacity=50))
    assert list(gone_on.state.idempotency_keys) == [entry.idempotency_key for entry in entries[-REMEMBERED_KEYS:]]


def test_a_snapshot_leaves_out_few_keys_of_a_session_that_forgot_none_before() -> None:
    entries = logged([said(Message.user("q"), f"k{number}") for number in range(REMEMBERED_KEYS + 4)])
    snapshot = captured(fold(entries), REMEMBERED_KEYS - 6)
    assert list(snapshot.state.idempotency_keys) == [f"k{number}" for number in range(REMEMBERED_KEYS - 6)]


def test_the_leaf_of_a_partial_snapshot_is_the_last_entry_that_is_in_it() -> None:
    conversation = fold(logged([said(Message.user("q")), named("t"), said(Message.assistant("a"))]))
    assert captured(conversation, 2).state.leaf_id == "e2"
    conversation = fold(logged([said(Message.user("q")), cleared, said(Message.assistant("a"))]))
    assert captured(conversation, 2).state.leaf_id is None


@pytest.mark.parametrize("step", [named("t"), changed(a=1), cleared])
def test_there_is_no_partial_snapshot_behind_a_change_of_state(step: Step) -> None:
    conversation = fold(logged([said(Message.user("q")), step, said(Message.assistant("a"))]))
    assert conversation.capture(1) is None
    assert conversation.capture(2) is not None


def test_there_is_no_partial_snapshot_when_a_younger_message_has_left_the_window() -> None:
    call = ToolCall("c1", "f")
    steps = [
        said(Message.user("q")),
        said(Message.assistant("", (call,))),
        said(Message.tool_result(call, "r")),
        said(Message.assistant("", (ToolCall("c2", "f"),))),
        said(Message.tool_result(ToolCall("c2", "f"), "r")),
    ]
    conversation = fold(logged(steps), capacity=4)
    assert [entry.id for entry in conversation.window] == ["e1", "e4", "e5"]
    assert conversation.capture(2) is None, "e3 would come back without its call"
    assert conversation.capture(3) is not None


def test_there_is_no_snapshot_when_nothing_of_a_full_window_is_committed() -> None:
    conversation = fold(logged([said(Message.user(str(number))) for number in range(60)]))
    assert conversation.capture(10) is None
    assert len(captured(conversation, 11).entries) == 1


def test_a_snapshot_does_not_change_with_the_conversation() -> None:
    entries = logged([changed(a=[1]), said(Message.user("q"), "k"), changed(b=2), said(Message.user("r"), "l")])
    conversation = fold(entries[:2])
    snapshot = captured(conversation)
    before = msgspec.structs.asdict(snapshot)
    fold(entries[2:], conversation)
    assert msgspec.structs.asdict(snapshot) == before


def test_a_smaller_window_cuts_a_snapshot_by_the_unit_rule() -> None:
    call = ToolCall("c1", "f")
    messages = [
        Message.assistant("", (call,)),
        Message.tool_result(call, "r"),
        Message.user("q"),
        Message.assistant("a"),
    ]
    snapshot = captured(fold(logged([said(message) for message in messages])))
    smaller = Conversation.from_snapshot(snapshot, capacity=3)
    assert [entry.message.text for entry in smaller.window] == ["q", "a"]
    assert smaller.state.last_sequence == 4


# --- properties ------------------------------------------------------------------------------------------------------

call_ids = st.sampled_from(["a", "b", "c", "d"])
messages = st.one_of(
    st.builds(Message, st.sampled_from([Role.USER, Role.ASSISTANT, Role.SYSTEM]), st.sampled_from(["x", ""])),
    st.lists(call_ids, max_size=4, unique=True).map(
        lambda ids: Message.assistant("", tuple(ToolCall(call_id, "f") for call_id in ids))
    ),
    call_ids.map(lambda call_id: Message(Role.TOOL_RESULT, "r", tool_call_id=call_id)),
)
changes = st.one_of(
    st.builds(named, st.sampled_from(["", "t", "u"])),
    st.dictionaries(st.sampled_from(["a", "b", "title"]), st.none() | st.integers(0, 3)).map(lambda d: changed(**d)),
    st.just(cleared),
    st.just(lambda base: Label(**base, target_id="e1")),
)
steps_of_a_session = st.lists(
    st.one_of(
        *[st.tuples(messages, st.booleans())] * 5,
        changes,
    ),
    max_size=40,
)
capacities = st.integers(2, 8)


def as_steps(drawn: list[Any]) -> list[Step]:
    """Every second message or so carries a key of its own."""
    return [
        said(one[0], f"k{number}" if one[1] else None) if isinstance(one, tuple) else one
        for number, one in enumerate(drawn)
    ]


@given(steps_of_a_session, capacities, st.data())
def test_a_snapshot_and_the_later_entries_are_the_live_conversation(drawn: list[Any], capacity: int, data: Any) -> None:
    entries = logged(as_steps(drawn))
    seen = data.draw(st.integers(0, len(entries)), label="accepted when the snapshot was taken")
    committed = data.draw(st.integers(0, seen), label="committed then")
    at_capture = fold(entries[:seen], capacity=capacity)
    snapshot = at_capture.capture(committed)
    if snapshot is None:
        assert committed < seen
        return
    live = fold(entries, capacity=capacity)
    restored = fold(entries[snapshot.state.last_sequence :], Conversation.from_snapshot(snapshot, capacity=capacity))
    assert state(restored) == state(live)


@given(steps_of_a_session, capacities)
def test_no_snapshot_is_ahead_of_what_is_committed(drawn: list[Any], capacity: int) -> None:
    entries = logged(as_steps(drawn))
    conversation = fold(entries, capacity=capacity)
    for committed in range(len(entries) + 1):
        exact = fold(entries[:committed], capacity=capacity)
        snapshot = conversation.capture(committed)
        if snapshot is None:
            assert committed < len(entries)
            continue
        assert snapshot.state.complete == (committed == len(entries))
        assert snapshot.state.last_sequence == committed
        assert all(entry.sequence <= committed for entry in snapshot.entries)
        assert dict(snapshot.state.metadata) == dict(exact.state.metadata)
        assert (snapshot.state.leaf_id, snapshot.state.leaf_sequence) == (
            exact.state.leaf_id,
            exact.state.leaf_sequence,
        )
        assert snapshot.state.totals == exact.state.totals
        assert dict(snapshot.state.idempotency_keys) == (exact.state.idempotency_keys or {})
        assert {entry.id for entry in snapshot.entries} <= {entry.id for entry in exact.window}


@given(steps_of_a_session, capacities)
def test_what_was_written_to_a_file_goes_on_as_if_it_had_never_stopped(drawn: list[Any], capacity: int) -> None:
    entries = logged(as_steps(drawn))
    half = len(entries) // 2
    before = fold(entries[:half], capacity=capacity)
    encoded = encode_snapshot(captured(before))
    snapshot = decode_snapshot(encoded, stem=KEY.session_id, now=START, new_id=lambda: "unused")
    after = fold(entries[half:], Conversation.from_snapshot(snapshot, capacity=capacity))
    live = fold(entries, capacity=capacity)
    names = ("last_sequence", "leaf_id", "leaf_sequence", "compaction", "totals", "incarnation")
    times = ("created_at", "updated_at", "last_accessed")
    assert [getattr(after.state, name) for name in names + times] == [
        getattr(live.state, name) for name in names + times
    ]
    assert after.state.metadata == live.state.metadata
    assert after.state.idempotency_keys == live.state.idempotency_keys
    assert [(entry.id, entry.sequence, entry.idempotency_key) for entry in after.window] == [
        (entry.id, entry.sequence, entry.idempotency_key) for entry in live.window
    ]
    assert [entry.message.text for entry in after.window] == [entry.message.text for entry in live.window]


@given(steps_of_a_session, capacities, capacities)
def test_restoring_into_another_capacity_keeps_the_newest(drawn: list[Any], capacity: int, other: int) -> None:
    conversation = fold(logged(as_steps(drawn)), capacity=capacity)
    restored = Conversation.from_snapshot(captured(conversation), capacity=other)
    assert len(restored.window) <= other
    if other >= capacity:
        assert list(restored.window) == list(conversation.window)
    assert {entry.id for entry in restored.window} <= {entry.id for entry in conversation.window}


def test_a_snapshot_has_safe_defaults() -> None:
    snapshot = Snapshot(State.new(KEY, incarnation="i", created_at=START))
    assert snapshot.state.metadata == {}
    conversation = Conversation.from_snapshot(snapshot, capacity=50)
    assert state(conversation) == state(
        Conversation.new(KEY, incarnation="i", created_at=START, capacity=50),
    )
