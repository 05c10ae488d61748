"""The Rust original's session files: one JSON document, read and written with its exact keys."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.history.state import Snapshot, State
from miniclaw_sessions.core.history.window import keep
from miniclaw_sessions.core.persistence.snapshot_file import encode_snapshot
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, Role, TextPart, ToolCall, Usage
from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.formats.codec import Finding, Outcome, Sample, SessionFacts
from miniclaw_sessions.files.formats.rust_miniclaw import RUST_MINICLAW
from tests.files.formats.codec_files import NOW, Read, check, dumped, json_values, read
from tests.legality import is_legal

DOCUMENT: dict[str, Any] = {
    "session_id": "telegram_123456789",
    "channel": "telegram",
    "chat_id": "123456789",
    "created_at": "2026-02-14T10:30:00.123456789Z",
    "last_accessed": "2026-02-14T15:45:10Z",
    "messages": [
        {"role": "user", "content": "Hello miniclaw!", "timestamp": "2026-02-14T15:45:00Z", "tool_calls": None},
        {
            "role": "assistant",
            "content": "",
            "timestamp": "2026-02-14T15:45:05Z",
            "tool_calls": [
                {"id": "call_1", "name": "read", "arguments": '{"path":  "a"}'},
                {"id": "call_2", "name": "read", "arguments": '{"path": "b"}'},
            ],
        },
        {
            "role": "tool_result",
            "content": '{"result": "one"}',
            "timestamp": "2026-02-14T15:45:08Z",
            "tool_calls": None,
        },
        {"role": "tool_result", "content": "two", "timestamp": "2026-02-14T15:45:09Z", "tool_call_id": "call_2"},
        {"role": "assistant", "content": "Done.", "timestamp": "2026-02-14T15:45:10Z"},
    ],
}


def read_document(document: Any) -> Read:
    return read(RUST_MINICLAW, [document])


def with_fields(**fields: Any) -> dict[str, Any]:
    return {**copy.deepcopy(DOCUMENT), **fields}


def dump(messages: list[Message], facts: SessionFacts) -> Any:
    return orjson.loads(dumped(RUST_MINICLAW, messages, facts))


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_file_of_the_original_becomes_a_chain_of_messages() -> None:
    found = read_document(DOCUMENT)
    assert [entry.parent_id for entry in found.entries] == [None, "new-1", "new-2", "new-3", "new-4"]
    assert found.said == ["Hello miniclaw!", "", '{"result": "one"}', "two", "Done."]
    assert found.messages[1].tool_calls == (
        ToolCall("call_1", "read", '{"path":  "a"}'),
        ToolCall("call_2", "read", '{"path": "b"}'),
    )
    assert [entry.timestamp.second for entry in found.entries] == [0, 5, 8, 9, 10]
    facts = found.facts
    assert (facts.session_id, facts.channel, facts.chat_id) == ("telegram_123456789", "telegram", "123456789")
    assert facts.created_at == datetime(2026, 2, 14, 10, 30, 0, 123457, UTC)
    assert facts.header == {"last_accessed": "2026-02-14T15:45:10Z"}
    assert found.findings == []
    check(found)


def test_a_result_without_an_id_answers_the_call_that_is_left() -> None:
    results = [message for message in read_document(DOCUMENT).context if message.is_tool_result]
    assert [(m.tool_call_id, m.text) for m in results] == [("call_1", '{"result": "one"}'), ("call_2", "two")]


def test_one_of_our_own_snapshots_keeps_its_ids_and_its_idempotency_keys() -> None:
    entries = (
        MessageEntry(
            id="e1", parent_id=None, timestamp=NOW, sequence=4, message=Message(Role.USER, "Hi", timestamp=NOW)
        ),
        MessageEntry(
            id="e2",
            parent_id="e1",
            timestamp=NOW,
            sequence=7,
            message=Message(Role.ASSISTANT, "Hello", timestamp=NOW, usage=Usage(1, 2), extra={"mood": "good"}),
            idempotency_key="k2",
        ),
    )
    state = State.new(
        SessionKey.of("telegram", "1_2"),
        incarnation="i",
        created_at=NOW,
        metadata={"title": "Ship logs", "pinned": True},
        idempotency_keys={"k2": "e2"},
        leaf_id="e2",
        last_sequence=9,
        complete=False,
    )
    snapshot = Snapshot(state, [keep(entry) for entry in entries], {"theirs": 1})
    document = orjson.loads(encode_snapshot(snapshot))
    assert RUST_MINICLAW.recognize(Sample(document=document))
    found = read_document(document)
    assert [(e.id, e.parent_id) for e in found.entries] == [("e1", None), ("e2", "e1")]
    assert found.messages == [entry.message for entry in entries]
    assert [e.idempotency_key for e in found.entries if isinstance(e, MessageEntry)] == [None, "k2"]
    facts = found.facts
    assert (facts.channel, facts.chat_id, facts.leaf_id, facts.title) == ("telegram", "1_2", "e2", "Ship logs")
    assert facts.metadata == {"title": "Ship logs", "pinned": True}
    assert facts.header == {"last_accessed": "2026-01-01T00:00:00Z", "theirs": 1}
    check(found)


@pytest.mark.parametrize(
    "ids", [["a"], ["a", "a", "b", "c", "d"], 5, ["a", "b", "c", "d", 7], ["", "b", "c", "d", "e"]]
)
def test_ids_that_do_not_fit_are_replaced(ids: Any) -> None:
    found = read_document(with_fields(ids=ids, leaf_id="a"))
    assert [entry.id for entry in found.entries] == [f"new-{number}" for number in range(1, 6)]
    assert found.facts.leaf_id is None
    assert [finding.outcome for finding in found.findings] == [Outcome.REPAIRED]


@pytest.mark.parametrize("version", [2, "x"])
def test_a_newer_version_is_refused(version: Any) -> None:
    with pytest.raises(ImportRefused, match="schema_version"):
        read_document(with_fields(schema_version=version))


def test_a_bad_time_is_left_out() -> None:
    document = with_fields(created_at="yesterday")
    document["messages"][0]["timestamp"] = "today"
    found = read_document(document)
    assert found.said == read_document(DOCUMENT).said
    assert found.messages[0].timestamp is None
    assert found.entries[0].timestamp == NOW
    assert found.findings == [
        Finding(0, Outcome.REPAIRED, "created_at is not a time, and was left out"),
        Finding(1, Outcome.REPAIRED, "its timestamp is not a time, and was left out"),
    ]


def test_a_chat_id_that_is_a_number_becomes_text() -> None:
    found = read_document(with_fields(chat_id=123456789, channel=None))
    assert (found.facts.channel, found.facts.chat_id) == ("", "123456789")
    assert len(found.findings) == 2


@given(
    st.dictionaries(
        st.sampled_from([*DOCUMENT, "ids", "metadata", "leaf_id", "idempotency_keys", "other"]), json_values, max_size=3
    )
)
def test_fields_of_any_type_are_read_or_refused(fields: dict[str, Any]) -> None:
    if isinstance(fields.get("messages", []), list):
        found = read_document(with_fields(**fields))
        found.facts.leaf_id = None  # which may be any text here
        check(found)
    else:
        with pytest.raises(ImportRefused):
            read_document(with_fields(**fields))


# --- writing ---------------------------------------------------------------------------------------------------------

times = st.none() | st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - the strategy adds the zone
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
calls = st.builds(ToolCall, texts.filter(bool), texts.filter(bool), st.sampled_from(["", "{}", '{"a":  1}']))
messages = st.one_of(
    st.builds(Message, st.just(Role.SYSTEM), texts, timestamp=times),
    st.builds(Message, st.just(Role.USER), texts, timestamp=times),
    st.builds(
        Message, st.just(Role.ASSISTANT), texts, timestamp=times, tool_calls=st.lists(calls, max_size=3).map(tuple)
    ),
    st.builds(Message, st.just(Role.TOOL_RESULT), texts, timestamp=times, tool_call_id=st.none() | texts.filter(bool)),
)
facts_of_a_chat = SessionFacts(channel="telegram", chat_id="1", created_at=NOW)


def essence(message: Message) -> tuple[Any, ...]:
    return message.role, message.text, message.tool_calls or None, message.tool_call_id


@given(st.lists(messages, max_size=8))
def test_a_legal_context_comes_back_as_it_was(history: list[Message]) -> None:
    context = build_context(history)
    found = read_document(dump(context, facts_of_a_chat))
    assert [essence(message) for message in found.messages] == [essence(message) for message in context]
    assert [message.timestamp for message, known in zip(found.messages, context, strict=True) if known.timestamp] == [
        message.timestamp for message in context if message.timestamp
    ]
    assert is_legal(found.messages) == []


def test_the_keys_are_exactly_those_of_the_original() -> None:
    found = read_document(DOCUMENT)
    written = dump(found.context, found.facts)
    assert list(written) == list(DOCUMENT)
    assert {key: value for key, value in written.items() if key not in ("messages", "created_at")} == {
        key: value for key, value in DOCUMENT.items() if key not in ("messages", "created_at")
    }
    assert [list(message) for message in written["messages"]] == [
        ["role", "content", "timestamp"],
        ["role", "content", "timestamp", "tool_calls"],
        ["role", "content", "timestamp", "tool_call_id"],
        ["role", "content", "timestamp", "tool_call_id"],
        ["role", "content", "timestamp"],
    ]
    assert written["messages"][1]["tool_calls"] == DOCUMENT["messages"][1]["tool_calls"]
    assert RUST_MINICLAW.recognize(Sample(document=written))


def test_every_message_has_text_and_a_time_because_the_original_refuses_others() -> None:
    content = (TextPart("see "), ImagePart(url="https://a.example/b"), TextPart("this"))
    history = [Message(Role.USER, content), Message(Role.ASSISTANT, "ok", timestamp=NOW + timedelta(seconds=1))]
    written = dump(history, SessionFacts(source_id="s-1", created_at=NOW + timedelta(seconds=1)))
    assert [(m["content"], m["timestamp"]) for m in written["messages"]] == [
        ("see this", "2026-01-01T00:00:01Z"),
        ("ok", "2026-01-01T00:00:01Z"),
    ]
    assert (written["session_id"], written["channel"], written["chat_id"]) == ("import_s-1", "import", "s-1")
