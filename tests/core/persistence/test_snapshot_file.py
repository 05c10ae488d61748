"""The snapshot file: document 004's keys exactly, other programs' files welcome, damage always recognized."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.history.state import SCHEMA_VERSION, Snapshot, State, Totals
from miniclaw_sessions.core.history.window import Packed, Window, keep
from miniclaw_sessions.core.persistence.snapshot_file import DamagedSnapshot, decode_snapshot, encode_snapshot, head_of
from miniclaw_sessions.core.protocol.entries import INCOMPLETE, Compaction, MessageEntry
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message, Role, TextPart, ToolCall
from miniclaw_sessions.errors import InvalidMessage, SchemaTooNew
from tests.files.formats.codec_files import json_values

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
CREATED = datetime(2026, 2, 14, 10, 30, tzinfo=UTC)

SAMPLE = """{
  "session_id": "telegram_123456789",
  "channel": "telegram",
  "chat_id": "123456789",
  "created_at": "2026-02-14T10:30:00Z",
  "last_accessed": "2026-02-14T15:45:00Z",
  "messages": [
    {
      "role": "user",
      "content": "Hello miniclaw!",
      "timestamp": "2026-02-14T15:45:00Z",
      "tool_calls": null
    },
    {
      "role": "assistant",
      "content": "Hello! How can I help you?",
      "timestamp": "2026-02-14T15:45:05Z",
      "tool_calls": [{"id": "call_1", "name": "search", "arguments": "{\\"q\\": 1}"}]
    },
    {
      "role": "tool_result",
      "content": "{\\"result\\": \\"...\\"}",
      "timestamp": "2026-02-14T15:45:10Z",
      "tool_calls": null
    }
  ]
}"""
"""Document 004's example; its elided tool calls are filled in."""

RUST_FILE = (
    '{"session_id":"telegram_a_b","channel":"telegram","chat_id":"a_b","created_at":"2026-02-14T10:30:00.123456789Z",'
    '"last_accessed":"2026-02-14T15:45:00.987654321Z","messages":['
    '{"role":"user","content":"hi","timestamp":"2026-02-14T15:45:00.000000001Z"},'
    '{"role":"assistant","content":"","timestamp":"2026-02-14T15:45:01.5Z",'
    '"tool_calls":[{"id":"c1","name":"ls","arguments":"{}"}]},'
    '{"role":"tool_result","content":"a.txt","timestamp":"2026-02-14T15:45:02.999999999Z","tool_call_id":"c1"}]}'
)
"""As the Rust original writes: nanoseconds, no null fields, no schema_version."""


def numbered() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"new-{next(numbers)}"


def load(data: bytes | str | dict[str, Any], stem: str = "telegram_123456789") -> Snapshot:
    if isinstance(data, dict):
        data = json.dumps(data)
    encoded = data if isinstance(data, bytes) else data.encode()
    return decode_snapshot(encoded, stem=stem, now=NOW, new_id=numbered())


def real_snapshot(**changes: Any) -> Snapshot:
    call = ToolCall("c1", "search", '{"q":  1}')
    messages = [
        Message(Role.USER, "Grüße 👋", timestamp=CREATED),
        Message(Role.ASSISTANT, "", timestamp=CREATED + timedelta(microseconds=1), tool_calls=(call,)),
        Message(Role.TOOL_RESULT, '{"a": 1}', timestamp=CREATED, tool_call_id="c1", name="search"),
        Message(Role.OTHER, (TextPart("x", extra={"cache": True}),), timestamp=CREATED, extra={"role": "developer"}),
    ]
    entries = tuple(
        MessageEntry(
            id=f"e{n}",
            parent_id=f"e{n - 1}" if n > 3 else None,
            timestamp=message.timestamp or NOW,
            sequence=n,
            message=message,
            idempotency_key="k3" if n == 3 else None,
        )
        for n, message in enumerate(messages, 3)
    )
    fields: dict[str, Any] = {
        "key": SessionKey("telegram", "123456789"),
        "incarnation": "i1",
        "created_at": CREATED,
        "updated_at": NOW,
        "last_accessed": NOW + timedelta(microseconds=123456),
        "entries": entries,
        "metadata": {"title": "Holiday", "nested": {"a": [1, None, 2.5]}},
        "idempotency_keys": {"k1": "e1", "k3": "e3"},
        "leaf_id": "e6",
        "last_sequence": 6,
        "totals": Totals(4, 4),
    }
    fields |= changes
    kept, extra = [keep(entry) for entry in fields.pop("entries")], fields.pop("extra", {})
    return Snapshot(State.new(fields.pop("key"), **fields), kept, extra)


REAL = encode_snapshot(real_snapshot())
CHECKSUM_BYTES = len(',"crc32":"0a1b2c3d"}')


def without_checksum(data: bytes) -> bytes:
    """A file of ours as an older version wrote it."""
    return data[:-CHECKSUM_BYTES] + b"}"


PLAIN = without_checksum(REAL)


def fields_of(data: bytes | str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(data)
    return fields


# --- writing ---------------------------------------------------------------------------------------------------------


def test_the_keys_are_those_of_document_004_followed_by_ours() -> None:
    fields = fields_of(REAL)
    assert list(fields)[:6] == ["session_id", "channel", "chat_id", "created_at", "last_accessed", "messages"]
    assert list(fields)[6:] == [
        *("schema_version", "incarnation", "updated_at", "last_sequence", "sequences", "ids", "leaf_id"),
        *("leaf_sequence", "totals"),
        *("metadata", "idempotency_keys", "crc32"),
    ]
    assert fields["session_id"] == "telegram_123456789"
    assert fields["chat_id"] == "123456789"
    assert fields["schema_version"] == SCHEMA_VERSION == 1


def test_every_message_has_the_four_keys_of_document_004() -> None:
    for message in fields_of(REAL)["messages"]:
        assert {"role", "content", "timestamp", "tool_calls"} <= message.keys()
    user, assistant, result, _ = fields_of(REAL)["messages"]
    assert user["tool_calls"] is None
    assert (assistant["content"], assistant["tool_calls"][0]["arguments"]) == ("", '{"q":  1}')
    assert result["tool_calls"] is None
    assert b'"tool_calls":null' in REAL


def test_times_end_in_z() -> None:
    fields = fields_of(REAL)
    times = [fields[name] for name in ("created_at", "last_accessed", "updated_at")]
    times += [message["timestamp"] for message in fields["messages"]]
    assert all(time.endswith("Z") and "T" in time for time in times)
    assert fields["last_accessed"] == "2026-03-01T12:00:00.123456Z"


def test_no_key_occurs_twice() -> None:
    def refuse_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        assert len(set(names)) == len(names), names
        return dict(pairs)

    message = Message(Role.ASSISTANT, "x", timestamp=CREATED, tool_calls=())
    entry = MessageEntry(id="e1", parent_id=None, timestamp=CREATED, sequence=1, message=message)
    for data in (REAL, encode_snapshot(real_snapshot(entries=(entry,)))):
        json.loads(data, object_pairs_hook=refuse_twins)


@pytest.mark.parametrize(
    "metadata", [{"a": {1}}, {"a": 2**64}, {"a": "\ud800"}, {"a": object()}], ids=["set", "int", "str", "object"]
)
def test_metadata_that_is_no_json_is_refused_with_our_own_error(metadata: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match="telegram_123456789"):
        encode_snapshot(real_snapshot(metadata=metadata))


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_snapshot_survives_a_round_trip() -> None:
    assert load(REAL) == real_snapshot()


@pytest.mark.parametrize("ours", [True, False])
def test_a_compaction_survives_a_round_trip_with_what_nobody_knows_of_it(ours: bool) -> None:
    said = Message(Role.USER, (TextPart("x", extra={"cache": True}),), timestamp=CREATED, extra={"deep": {"a": [1]}})
    compaction = Compaction(
        id="c", parent_id="e6", timestamp=CREATED, sequence=7, summary="s", messages=(said,), extra={"new": 1}
    )
    snapshot = real_snapshot(last_sequence=7)
    assert b'"compaction"' not in encode_snapshot(snapshot)
    snapshot.state.compaction = compaction
    written = encode_snapshot(snapshot)
    read = load(written if ours else without_checksum(written)[:-1] + b',"theirs":1}')
    assert read.state == snapshot.state
    assert read.state.compaction == compaction
    assert encode_snapshot(replace(read, extra={})) == written


def test_an_empty_session_survives_a_round_trip() -> None:
    snapshot = real_snapshot(entries=(), metadata={}, idempotency_keys={}, leaf_id=None, last_sequence=0)
    assert load(encode_snapshot(snapshot)) == snapshot


def test_the_sample_of_document_004_loads_and_stays_the_same() -> None:
    snapshot = load(SAMPLE)
    assert snapshot.state.key == ("telegram", "123456789")
    assert snapshot.state.created_at == datetime(2026, 2, 14, 10, 30, tzinfo=UTC)
    assert snapshot.state.last_accessed == datetime(2026, 2, 14, 15, 45, tzinfo=UTC)
    assert snapshot.state.updated_at == datetime(2026, 2, 14, 15, 45, 10, tzinfo=UTC)
    user, assistant, result = (entry.message for entry in snapshot.entries)
    assert user == Message(Role.USER, "Hello miniclaw!", datetime(2026, 2, 14, 15, 45, tzinfo=UTC))
    assert assistant.tool_calls == (ToolCall("call_1", "search", '{"q": 1}'),)
    assert (result.role, result.tool_call_id) == (Role.TOOL_RESULT, None)
    assert [entry.sequence for entry in snapshot.entries] == [1, 2, 3]
    assert snapshot.state.last_sequence == 3
    assert load(encode_snapshot(snapshot)) == snapshot
    assert {name: fields_of(encode_snapshot(snapshot))[name] for name in fields_of(SAMPLE)} == fields_of(SAMPLE)


def test_a_file_of_the_rust_original_loads_and_stays_the_same() -> None:
    snapshot = load(RUST_FILE, "telegram_a_b")
    user, assistant, result = (entry.message for entry in snapshot.entries)
    assert snapshot.state.created_at == datetime(2026, 2, 14, 10, 30, 0, 123457, tzinfo=UTC)
    assert user.timestamp == datetime(2026, 2, 14, 15, 45, tzinfo=UTC)
    assert user.tool_calls is None
    assert assistant.tool_calls == (ToolCall("c1", "ls", "{}"),)
    assert result.tool_call_id == "c1"
    assert load(encode_snapshot(snapshot), "telegram_a_b") == snapshot


def test_a_file_of_the_rust_original_keeps_its_name_when_the_channel_has_an_underscore() -> None:
    fields = {**fields_of(SAMPLE), "channel": "my_bot", "chat_id": "1", "session_id": "my_bot_1"}
    snapshot = load(fields, "my_bot_1")
    assert snapshot.state.key.session_id == "my%5Fbot_1"
    assert load(encode_snapshot(snapshot), "my%5Fbot_1") == snapshot


def test_what_a_foreign_file_lacks_is_made_up_once() -> None:
    fields = {"channel": "telegram", "chat_id": "123456789", "messages": [{"role": "user", "content": "hi"}]}
    snapshot = load(fields)
    assert snapshot.state.created_at == snapshot.state.updated_at == snapshot.state.last_accessed == NOW
    assert snapshot.entries[0].timestamp == snapshot.entries[0].message.timestamp == NOW
    assert snapshot.state.incarnation
    assert snapshot.state.leaf_id == snapshot.entries[0].id
    later = decode_snapshot(
        encode_snapshot(snapshot), stem="telegram_123456789", now=NOW + timedelta(9), new_id=numbered()
    )
    assert later == snapshot


def test_times_without_a_zone_are_utc_and_can_be_gone_on_from() -> None:
    fields = json.loads(SAMPLE.replace('Z"', '"'))
    snapshot = load(fields)
    assert snapshot == load(SAMPLE)
    entry = MessageEntry(id="n", parent_id=None, timestamp=NOW, sequence=4, message=Message.user("x"))
    Conversation.from_snapshot(snapshot, capacity=50).apply(entry)


def test_unknown_fields_at_the_top_and_in_messages_survive_untouched() -> None:
    fields = fields_of(SAMPLE)
    fields["theirs"] = {"a": [1, {"b": None}]}
    fields["$extra"] = "ours?"
    fields["messages"][0] |= {"reactions": ["👍"], "$extra": {"role": "system"}}
    fields["messages"][1]["tool_calls"][0]["index"] = 0
    snapshot = load(fields)
    assert snapshot.entries[0].message.role is Role.USER
    written = fields_of(encode_snapshot(snapshot))
    assert {name: written[name] for name in fields} == fields
    assert load(encode_snapshot(snapshot)) == snapshot


def test_more_messages_than_the_window_holds_are_cut_by_the_unit_rule_when_it_is_filled() -> None:
    fields = fields_of(SAMPLE)
    fields["messages"] = [{"role": "assistant", "content": str(number)} for number in range(80)]
    snapshot = load(fields)
    assert len(snapshot.entries) == 80
    conversation = Conversation.from_snapshot(snapshot, capacity=50)
    assert [entry.message.text for entry in conversation.window][:1] == ["30"]


def test_orphan_results_at_the_beginning_do_not_reach_the_window() -> None:
    fields = fields_of(SAMPLE)
    fields["messages"] = [
        {"role": "tool_result", "content": "?"},
        {"role": "tool", "content": "?"},
        *fields["messages"],
    ]
    conversation = Conversation.from_snapshot(load(fields), capacity=50)
    assert [entry.message.role for entry in conversation.window] == [Role.USER, Role.ASSISTANT, Role.TOOL_RESULT]


def test_equal_messages_are_kept_each() -> None:
    fields = fields_of(SAMPLE)
    fields["messages"] *= 2
    assert len(load(fields).entries) == 6


def test_times_in_the_future_are_accepted_as_they_are() -> None:
    fields = json.loads(SAMPLE.replace("2026-02", "9998-02"))
    snapshot = load(fields)
    assert snapshot.state.last_accessed.year == 9998
    assert load(encode_snapshot(snapshot)) == snapshot


def with_state(**changes: Any) -> bytes:
    snapshot = real_snapshot()
    return encode_snapshot(replace(snapshot, state=replace(snapshot.state, **changes)))


# --- the head --------------------------------------------------------------------------------------------------------


def test_the_head_of_a_file_is_what_the_whole_file_says() -> None:
    snapshot = real_snapshot()
    head = head_of(REAL, stem="telegram_123456789")
    assert head is not None
    state = snapshot.state
    assert head[:3] == (state.session_id, state.incarnation, state.last_sequence)
    assert (head.last_accessed, head.messages) == (state.last_accessed.timestamp(), len(snapshot.kept))


@pytest.mark.parametrize(
    ("data", "stem"),
    [
        (REAL, "telegram_1"),
        (PLAIN, "telegram_123456789"),
        (SAMPLE.encode(), "telegram_123456789"),
        (REAL[:-1], "telegram_123456789"),
        (b"", "telegram_123456789"),
        (encode_snapshot(real_snapshot(metadata={INCOMPLETE: "fork"})), "telegram_123456789"),
        (with_state(schema_version=SCHEMA_VERSION + 1), "telegram_123456789"),
        (encode_snapshot(real_snapshot(metadata={"a": {"b": [1], "schema_version": 1}})), "telegram_123456789"),
    ],
)
def test_a_file_that_must_be_decoded_to_be_judged_has_no_head(data: bytes, stem: str) -> None:
    assert head_of(data, stem=stem) is None


def test_no_bit_flips_in_a_file_that_has_a_head() -> None:
    for bit in range(8 * (len(REAL) - CHECKSUM_BYTES)):
        data = bytearray(REAL)
        data[bit // 8] ^= 1 << bit % 8
        assert head_of(bytes(data), stem="telegram_123456789") is None, f"bit {bit}"


# --- the checksum ----------------------------------------------------------------------------------------------------


def test_no_bit_of_a_file_flips_unnoticed() -> None:
    for bit in range(8 * len(REAL)):
        data = bytearray(REAL)
        data[bit // 8] ^= 1 << bit % 8
        try:
            snapshot = load(bytes(data))
        except DamagedSnapshot:
            continue
        assert bit // 8 >= len(REAL) - CHECKSUM_BYTES, f"bit {bit}"  # the name of the checksum's own field
        assert replace(snapshot, extra={}) == real_snapshot()


def test_a_file_of_an_older_version_without_a_checksum_loads_and_gets_one() -> None:
    assert "crc32" not in fields_of(PLAIN)
    assert load(PLAIN) == real_snapshot()
    assert encode_snapshot(load(PLAIN)) == REAL


def test_a_message_of_a_file_without_a_checksum_is_validated() -> None:
    with pytest.raises(DamagedSnapshot):
        load(PLAIN.replace(b'"role":"user"', b'"role":5'))


def test_whoever_edits_a_file_and_formats_it_anew_is_believed() -> None:
    fields = fields_of(REAL)
    fields["messages"][0]["content"] = "edited"
    assert load(json.dumps(fields, indent=2)).entries[0].message.text == "edited"


def test_the_end_of_line_of_an_editor_is_no_damage() -> None:
    assert load(REAL + b"\n") == real_snapshot()


def test_a_session_that_nobody_uses_keeps_the_bytes_of_its_file_and_writes_them_back() -> None:
    snapshot = load(REAL)
    assert isinstance(snapshot.kept, Packed)
    conversation = Conversation.from_snapshot(snapshot, capacity=50)
    captured = conversation.capture(6)
    assert captured is not None
    assert captured.kept is snapshot.kept
    assert encode_snapshot(captured) == REAL
    assert len(conversation.window.messages()) == len(conversation.window) == 4
    captured = conversation.capture(6)
    assert captured is not None
    assert not isinstance(captured.kept, Packed)
    assert encode_snapshot(captured) == REAL


@pytest.mark.parametrize("capacity", [2, 3, 4, 50])
@pytest.mark.parametrize(
    "use",
    [
        lambda window: window.push(real_snapshot().entries[0]),
        lambda window: window.push(real_snapshot().entries[2]),
        lambda window: window.keep_from(5),
        lambda window: window.keep_to(4),
        lambda window: window.clear(),
        lambda window: window.find("e4"),
        lambda window: window.messages(),
        lambda window: (repr(window), window.kept),
    ],
    ids=["push", "push a result", "keep_from", "keep_to", "clear", "find", "messages", "repr"],
)
def test_a_window_that_is_packed_behaves_like_any_other(use: Callable[[Window], object], capacity: int) -> None:
    packed, plain = Window(capacity, kept=load(REAL).kept), Window(capacity, kept=real_snapshot().kept)
    assert use(packed) == use(plain)
    assert packed.kept == plain.kept
    assert (len(packed), packed.newest_evicted) == (len(plain), plain.newest_evicted)


def test_a_window_without_its_oldest_messages_is_packed_and_one_of_several_branches_is_not() -> None:
    first, *others = real_snapshot().entries
    older = encode_snapshot(real_snapshot(entries=(replace(first, parent_id="e2"), *others)))
    assert isinstance(load(older).kept, Packed)
    assert load(older).entries[0].parent_id == "e2"
    crossing = encode_snapshot(
        real_snapshot(entries=(*real_snapshot().entries[:3], replace(others[-1], parent_id="e3")))
    )
    assert not isinstance(load(crossing).kept, Packed)
    assert load(crossing).entries[-1].parent_id == "e3"


# --- a newer version -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3, 99, 2**63])
def test_a_file_of_a_newer_version_is_recognized_whatever_else_it_holds(version: int) -> None:
    for fields in (fields_of(REAL), {"format": "new", "messages": {"a": 1}}, {**fields_of(SAMPLE), "channel": [1]}):
        with pytest.raises(SchemaTooNew, match=r"telegram_123456789\.json has schema_version") as refused:
            load({**fields, "schema_version": version})
        assert not isinstance(refused.value, DamagedSnapshot)


@pytest.mark.parametrize("version", ["2", 1.5, None, True, [], {}], ids=repr)
def test_a_version_that_is_no_number_is_damage(version: object) -> None:
    with pytest.raises(DamagedSnapshot, match="schema_version"):
        load({**fields_of(SAMPLE), "schema_version": version})


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b" ", b"\n", b"\0", b"\0" * 4096, b"{", b"{}", b"[]", b"null", b"true", b"5", b'"text"', b"NaN"),
        *(b"\xef\xbb\xbf" + REAL, REAL + b"x", REAL + REAL, REAL[1:], SAMPLE.encode("utf-16"), SAMPLE.encode("utf-32")),
        *(SAMPLE.encode()[:-1], b"[" * 10**6, b'{"messages":' + b"[" * 10**6, REAL.replace(b"e3", b"\xff\xfe")),
    ],
    ids=lambda data: repr(data[:12]),
)
def test_what_is_no_session_is_damage(data: bytes) -> None:
    with pytest.raises(DamagedSnapshot):
        load(data)


def test_a_file_that_is_cut_off_anywhere_is_damage() -> None:
    for data in (REAL, SAMPLE.encode(), RUST_FILE.encode()):
        for length in range(len(data)):
            with pytest.raises(DamagedSnapshot):
                load(data[:length])


@pytest.mark.parametrize("name", ["channel", "chat_id", "messages"])
@pytest.mark.parametrize("source", [REAL, SAMPLE], ids=["ours", "theirs"])
def test_without_its_key_or_messages_it_is_damage(source: bytes | str, name: str) -> None:
    fields = fields_of(source)
    del fields[name]
    with pytest.raises(DamagedSnapshot):
        load(fields)


WRONG: list[Any] = [None, True, 0, -1, 1.5, "", "text", [], [None], [[]], {}, {"a": 1}, 2**64, 2**63, [5, 5, 5, 5]]


@pytest.mark.parametrize("source", [REAL, SAMPLE], ids=["ours", "theirs"])
def test_a_wrong_value_in_any_field_is_damage_or_harmless(source: bytes | str) -> None:
    for name in fields_of(REAL):
        for value in WRONG:
            check_outcome(json.dumps({**fields_of(source), name: value}).encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"session_id": "telegram_1"},
        {"session_id": 5},
        {"channel": "discord"},
        {"chat_id": "12345678"},
        {"chat_id": ""},
        {"chat_id": None},
        {"channel": "telegram\0"},
        {"channel": "../../etc/passwd"},
        {"channel": "telegram_123456789", "chat_id": "1"},
        {"messages": [5]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"content": "who?"}]},
        {"messages": "text"},
        {"created_at": "yesterday"},
        {"last_accessed": 5},
        {"last_sequence": 2},
        {"last_sequence": 2**63},
        {"last_sequence": -1},
        {"sequences": [1, 1, 2, 3]},
        {"sequences": [4, 3, 2, 1]},
        {"sequences": [0, 1, 2, 3]},
        {"sequences": [3, 4, 5]},
        {"sequences": [3, 4, 5, 7]},
        {"sequences": "1234"},
        {"ids": ["a", "b", "c"]},
        {"ids": ["a", "b", "b", "c"]},
        {"ids": 5},
        {"ids": {"a": 1}},
        {"ids": "abcd"},
        {"metadata": []},
        {"metadata": {"a": 2**64}},
        {"idempotency_keys": {"a": 5}},
        {"theirs": 2**64},
    ],
    ids=repr,
)
def test_what_contradicts_itself_is_damage(changes: dict[str, Any]) -> None:
    for unknown in ({}, {"unknown": 1}):
        with pytest.raises(DamagedSnapshot) as refused:
            load({**fields_of(REAL), **changes, **unknown})
        assert "Grüße" not in str(refused.value)


def test_a_file_under_another_session_s_name_is_damage() -> None:
    for stem in ("telegram_1", "telegram_123456789.bak", "", "TELEGRAM_123456789", "telegram%5F123456789"):
        with pytest.raises(DamagedSnapshot, match="another file name"):
            load(REAL, stem)


def check_outcome(data: bytes) -> None:
    """Every file is a snapshot that can be used and written again, or damaged, or too new: nothing else."""
    try:
        snapshot = load(data)
    except (DamagedSnapshot, SchemaTooNew):
        return
    assert snapshot.state.key.session_id == "telegram_123456789"
    assert load(encode_snapshot(snapshot)) == snapshot
    conversation = Conversation.from_snapshot(snapshot, capacity=50)
    number = snapshot.state.last_sequence + 1
    leaf = conversation.state.leaf_id
    conversation.apply(MessageEntry(id="n", parent_id=leaf, timestamp=NOW, sequence=number, message=Message.user("x")))
    assert conversation.lacks_branch or conversation.capture(number) is not None


@given(st.integers(0, len(PLAIN) - 1), st.integers(1, 255))
def test_a_flipped_byte_is_never_more_than_damage(place: int, flip: int) -> None:
    data = bytearray(PLAIN)
    data[place] ^= flip
    check_outcome(bytes(data))


@given(st.data())
def test_a_mangled_file_is_never_more_than_damage(data: st.DataObject) -> None:
    source = data.draw(st.sampled_from([REAL, PLAIN, SAMPLE.encode(), RUST_FILE.replace("a_b", "123456789").encode()]))
    start = data.draw(st.integers(0, len(source)))
    end = data.draw(st.integers(start, min(len(source), start + 40)))
    pieces = [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'"',
        b",",
        b"-1",
        b"1e400",
        b"\\u0000",
        b"\\ud800",
        b"\0",
        b"true",
        b"[[",
        b"}}",
    ]
    check_outcome(source[:start] + data.draw(st.sampled_from(pieces) | st.binary(max_size=8)) + source[end:])


@given(st.sampled_from([REAL, SAMPLE.encode()]), st.data())
def test_any_json_in_any_field_is_never_more_than_damage(source: bytes, data: st.DataObject) -> None:
    fields = fields_of(source)
    names = [*fields, "incarnation", "ids", "sequences", "leaf_id", "schema_version", "$extra", "unknown"]
    for name in data.draw(st.lists(st.sampled_from(names), max_size=3)):
        fields[name] = data.draw(json_values)
    for name in data.draw(
        st.lists(st.sampled_from(["role", "content", "timestamp", "tool_calls", "$extra"]), max_size=2)
    ):
        if isinstance(fields["messages"], list) and fields["messages"] and isinstance(fields["messages"][0], dict):
            fields["messages"][0][name] = data.draw(json_values)
    check_outcome(json.dumps(fields).encode())
