"""What is logged: every kind of entry survives, and one from a newer version byte for byte."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from miniclaw_sessions.core.protocol.encoding import decode_entry, encode_entry
from miniclaw_sessions.core.protocol.entries import (
    BranchSummary,
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
)
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import InvalidMessage

NOW = datetime(2026, 2, 14, 10, 30, 0, 123456, tzinfo=UTC)
BASE: dict[str, Any] = {"id": "e1", "parent_id": "e0", "timestamp": NOW, "sequence": 7}

ENTRIES: list[Entry] = [
    MessageEntry(**BASE, message=Message.user("hi"), idempotency_key="update-17"),
    ModelChange(**BASE, provider="openai", model_id="gpt-x"),
    ThinkingLevelChange(**BASE, thinking_level="high"),
    SessionInfo(**BASE, name="Holiday"),
    Label(**BASE, target_id="e0", label="needs_review"),
    Compaction(**BASE, summary="they met", first_kept_entry_id="e0", tokens_before=1234),
    BranchSummary(**BASE, summary="a dead end", from_id="e0"),
    LeafMove(**BASE, target_id=None),
    LeafMove(**BASE, target_id="e0"),
    Custom(**BASE, custom_type="metadata", data={"agent_id": "a", "nested": [{"b": None}]}),
]
TYPES = {
    *("message", "model_change", "thinking_level", "session_info", "label", "compaction", "branch_summary", "leaf"),
    "custom",
}


def kind_of(entry: Entry) -> str:
    return str(json.loads(encode_entry(entry))["type"])


def test_there_is_an_example_of_every_kind() -> None:
    assert {type(entry) for entry in ENTRIES} == set(get_args(Entry)) - {OtherEntry}
    assert {kind_of(entry) for entry in ENTRIES} == TYPES


@pytest.mark.parametrize("entry", ENTRIES, ids=kind_of)
def test_every_kind_survives_a_round_trip(entry: Entry) -> None:
    assert decode_entry(encode_entry(entry)) == entry


@pytest.mark.parametrize("entry", ENTRIES, ids=kind_of)
def test_every_kind_keeps_the_fields_of_a_newer_version(entry: Entry) -> None:
    original = {**json.loads(encode_entry(entry)), "theirs": {"a": [1, None]}, "$extra": 5}
    decoded = decode_entry(json.dumps(original).encode())
    assert type(decoded) is type(entry)
    assert json.loads(encode_entry(decoded)) == original


@pytest.mark.parametrize("entry", ENTRIES, ids=kind_of)
@pytest.mark.parametrize("missing", ["id", "parent_id", "timestamp", "type"])
def test_every_kind_needs_its_identity(entry: Entry, missing: str) -> None:
    fields = json.loads(encode_entry(entry))
    del fields[missing]
    with pytest.raises(InvalidMessage):
        decode_entry(json.dumps(fields).encode())


@pytest.mark.parametrize("entry", ENTRIES, ids=kind_of)
@pytest.mark.parametrize(
    "wrong",
    [
        {"id": 5},
        {"id": None},
        {"parent_id": 5},
        {"timestamp": 5},
        {"timestamp": None},
        {"sequence": "1"},
        {"sequence": 1.5},
    ],
    ids=repr,
)
def test_every_kind_refuses_wrong_types(entry: Entry, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage):
        decode_entry(json.dumps({**json.loads(encode_entry(entry)), **wrong}).encode())


def test_the_parent_of_a_root_is_written_as_null() -> None:
    entry = SessionInfo(id="e1", parent_id=None, timestamp=NOW, name="x")
    assert json.loads(encode_entry(entry))["parent_id"] is None
    move = LeafMove(**BASE, target_id=None)
    assert json.loads(encode_entry(move))["target_id"] is None


def test_times_are_written_in_utc_with_a_z() -> None:
    assert json.loads(encode_entry(ENTRIES[0]))["timestamp"] == "2026-02-14T10:30:00.123456Z"


def test_a_time_without_a_zone_is_taken_to_be_utc() -> None:
    fields = {**json.loads(encode_entry(ENTRIES[3])), "timestamp": "2026-02-14T10:30:00.123456"}
    assert decode_entry(json.dumps(fields).encode()) == ENTRIES[3]


scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(st.characters(codec="utf-8"), max_size=8)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))


@given(
    kind=st.text(st.characters(codec="utf-8"), max_size=12),
    payload=st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), values, max_size=4),
    indent=st.sampled_from([None, 1]),
)
def test_an_entry_of_an_unknown_type_is_kept_byte_for_byte(
    kind: str, payload: dict[str, Any], indent: int | None
) -> None:
    assume(kind not in TYPES)
    fields = {**payload, "type": kind, "id": "e9", "parent_id": None, "timestamp": "2026-02-14T10:30:00Z"}
    fields.pop("sequence", None)
    encoded = json.dumps(fields, indent=indent, ensure_ascii=False).encode()
    entry = decode_entry(encoded)
    assert isinstance(entry, OtherEntry)
    assert (entry.id, entry.parent_id, entry.sequence) == ("e9", None, 0)
    assert encode_entry(entry) == encoded
    assert encode_entry(msgspec.structs.replace(entry, sequence=5)) == encoded


def test_an_entry_of_an_unknown_type_keeps_even_what_we_would_not_write() -> None:
    head = b'{"type":"vote","id":"e9","parent_id":null,"timestamp":"2026-02-14T10:30:00.123456789Z"'
    encoded = head + b', "weight": 123456789012345678901234567890.50, "a": 1, "a": 2}'
    assert encode_entry(decode_entry(encoded)) == encoded


def test_our_own_place_for_unknown_entries_cannot_be_filled_from_outside() -> None:
    encoded = (
        b'{"type":"$other","id":"e","parent_id":null,"timestamp":"2026-02-14T10:30:00Z","encoded":{"type":"message"}}'
    )
    entry = decode_entry(encoded)
    assert encode_entry(entry) == encoded


def test_a_message_entry_reads_the_messages_of_other_programs() -> None:
    fields = json.loads(encode_entry(ENTRIES[0]))
    fields["message"] = {
        "role": "model",
        "content": [{"type": "text", "text": "x"}],
        "timestamp": "2026-01-01T00:00:00",
    }
    entry = decode_entry(json.dumps(fields).encode())
    assert isinstance(entry, MessageEntry)
    assert entry.message.is_assistant
    assert entry.message.text == "x"


@pytest.mark.parametrize("message", [None, 5, [], {}, {"role": None}, "text"], ids=repr)
def test_a_message_entry_without_a_message_is_refused(message: object) -> None:
    fields = {**json.loads(encode_entry(ENTRIES[0])), "message": message}
    with pytest.raises(InvalidMessage):
        decode_entry(json.dumps(fields).encode())


def test_entries_are_immutable() -> None:
    with pytest.raises(AttributeError):
        ENTRIES[0].sequence = 8  # type: ignore[misc]


@pytest.mark.parametrize("value", ["18446744073709551616", "-9223372036854775809"])
def test_custom_data_that_could_not_be_written_again_is_refused(value: str) -> None:
    encoded = encode_entry(ENTRIES[-1]).replace(b"null", value.encode())
    with pytest.raises(InvalidMessage, match="64 bits"):
        decode_entry(encoded)
