"""nanobot's session files, of every generation: a metadata line and chat-completions messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.protocol.entries import Compaction, Custom
from miniclaw_sessions.core.protocol.messages import (
    ImagePart,
    Message,
    OtherPart,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
)
from miniclaw_sessions.files.formats.codec import Outcome, SessionFacts
from miniclaw_sessions.files.formats.nanobot import NANOBOT
from tests.files.formats.codec_files import check, dumped, read
from tests.legality import is_legal

OLDEST: list[dict[str, Any]] = [
    {"_type": "metadata", "created_at": "2026-02-01T10:00:00.5", "updated_at": "2026-02-01T10:00:09", "metadata": {}},
    {"role": "user", "content": "Compare the logs.", "timestamp": "2026-02-01T10:00:01"},
    {"role": "assistant", "content": "Rain, then wind.", "timestamp": "2026-02-01T10:00:09", "tools_used": ["read"]},
]

NEWEST: list[dict[str, Any]] = [
    {
        "_type": "metadata",
        "key": "telegram:42:7",
        "created_at": "2026-08-01T10:00:00",
        "updated_at": "2026-08-01T10:00:09",
        "metadata": {"title": "Ship logs", "session_handle": "brave-owl"},
        "last_consolidated": 0,
    },
    {"_type": "provider_state", "state": {"opaque": "b3A"}},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "And this?"},
            {"type": "image_url", "image_url": {"url": "https://a.example/b"}},
        ],
        "timestamp": "2026-08-01T10:00:01.000250",
        "media": ["/tmp/b.png"],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path":  "a"}'}},
            {"id": "c2", "type": "function", "function": {"name": "read", "arguments": "{}"}},
        ],
        "reasoning_content": "Both at once.",
        "timestamp": "2026-08-01T10:00:02",
    },
    {"role": "tool", "tool_call_id": "c1", "name": "read", "content": "rain", "timestamp": "2026-08-01T10:00:03"},
    {"role": "tool", "tool_call_id": "c2", "name": "read", "content": "wind", "timestamp": "2026-08-01T10:00:04"},
    {
        "role": "assistant",
        "content": "Rain, then wind.",
        "thinking_blocks": [
            {"type": "thinking", "thinking": "Say it.", "signature": "c2ln", "index": 0},
            {"type": "redacted_thinking", "data": "eHl6"},
        ],
        "reasoning_content": "Say it.",
        "latency_ms": 5000,
        "timestamp": "2026-08-01T10:00:05",
    },
]


def consolidated(offset: int, count: int) -> list[dict[str, Any]]:
    head = {**NEWEST[0], "last_consolidated": offset}
    head["metadata"] = {"_last_summary": {"text": "Logs were compared.", "last_active": "2026-08-01T09:00:00"}}
    roles = ["user", "assistant"]
    return [head, *({"role": roles[number % 2], "content": f"message {number}"} for number in range(count))]


def dump(messages: list[Message], facts: SessionFacts) -> list[Any]:
    changed = [message.timestamp for message in messages if message.timestamp is not None]
    facts = msgspec.structs.replace(
        facts, created_at=facts.created_at or min(changed, default=None), updated_at=max(changed, default=None)
    )
    return [orjson.loads(line) for line in dumped(NANOBOT, messages, facts).splitlines()]


# --- reading ---------------------------------------------------------------------------------------------------------


def test_the_oldest_generation() -> None:
    found = read(NANOBOT, OLDEST)
    assert found.said == ["Compare the logs.", "Rain, then wind."]
    assert found.messages[0].timestamp == datetime(2026, 2, 1, 10, 0, 1, tzinfo=UTC)
    assert found.messages[1].extra == {"nanobot": {"tools_used": ["read"]}}
    assert found.facts.created_at == datetime(2026, 2, 1, 10, 0, 0, 500000, UTC)
    assert (found.facts.channel, found.facts.chat_id) == ("", "")


def test_the_newest_generation() -> None:
    found = read(NANOBOT, NEWEST)
    facts = found.facts
    assert (facts.source_id, facts.channel, facts.chat_id) == ("telegram:42:7", "telegram", "42:7")
    assert facts.title == "Ship logs"
    assert facts.header == {name: value for name, value in NEWEST[0].items() if name != "_type"}
    state, *entries = found.entries
    assert isinstance(state, Custom)
    assert (state.custom_type, state.data) == ("nanobot.provider_state", NEWEST[1])
    user, calling, first, _, last = found.messages
    assert user.content == (TextPart("And this?"), ImagePart(url="https://a.example/b"))
    assert user.extra == {"nanobot": {"media": ["/tmp/b.png"]}}
    assert calling.content == (ThinkingPart("Both at once."),)
    assert calling.tool_calls == (ToolCall("c1", "read", '{"path":  "a"}'), ToolCall("c2", "read", "{}"))
    assert (first.tool_call_id, first.name, first.text) == ("c1", "read", "rain")
    assert last.content == (
        ThinkingPart("Say it.", "c2ln", extra={"nanobot": {"index": 0}}),
        ThinkingPart("", "eHl6", redacted=True),
        TextPart("Rain, then wind."),
    )
    assert last.extra == {"nanobot": {"reasoning_content": "Say it.", "latency_ms": 5000}}
    assert [entry.timestamp for entry in entries] == [message.timestamp for message in found.messages]
    assert found.findings == []


@pytest.mark.parametrize(
    ("offset", "count", "first_kept"),
    [(4, 20, "message 4"), (12, 20, "message 12"), (19, 20, "message 12"), (20, 20, "message 12"), (3, 4, "message 0")],
)
def test_a_summary_becomes_a_compaction_that_keeps_what_nanobot_sends(offset: int, count: int, first_kept: str) -> None:
    found = read(NANOBOT, consolidated(offset, count))
    assert isinstance(found.entries[-1], Compaction)
    assert [message.text for message in found.branch.messages()][:2] == ["Logs were compared.", first_kept]
    assert len(found.messages) == count
    check(found)


@pytest.mark.parametrize("offset", [0, -1, 21, None, True, "4"])
def test_a_summary_without_a_usable_offset_is_no_compaction(offset: Any) -> None:
    found = read(NANOBOT, consolidated(offset, 20))
    assert not any(isinstance(entry, Compaction) for entry in found.entries)


def test_a_call_with_arguments_as_an_object_is_repaired() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": {"path": "a"}}}
    found = read(NANOBOT, [NEWEST[0], {"role": "assistant", "content": "", "tool_calls": [call]}])
    assert [(c.id, c.arguments) for c in found.messages[0].tool_calls or ()] == [("c1", '{"path":"a"}')]
    assert [(f.line, f.outcome) for f in found.findings] == [(2, Outcome.REPAIRED)]


@pytest.mark.parametrize("bad", [b'{"content": "no role"}', b'{"role": "user", "content": 5}'])
def test_what_is_no_message_is_set_aside(bad: bytes) -> None:
    found = read(NANOBOT, [*NEWEST[:3], bad, *NEWEST[3:]])
    assert found.said == read(NANOBOT, NEWEST).said
    assert [(f.line, f.outcome, f.raw) for f in found.findings] == [(4, Outcome.SET_ASIDE, bad)]


@pytest.mark.parametrize(
    ("role", "known"),
    [("function", Role.TOOL_RESULT), ("model", Role.ASSISTANT), ("critic", Role.OTHER), ("other", Role.OTHER)],
)
def test_roles_of_other_programs_are_understood(role: str, known: Role) -> None:
    found = read(NANOBOT, [NEWEST[0], {"role": role, "content": "hm"}])
    assert [(message.role, message.text) for message in found.messages] == [(known, "hm")]
    check(found)


def test_a_known_part_with_a_wrong_field_can_be_stored_and_read_again() -> None:
    found = read(NANOBOT, [NEWEST[0], {"role": "user", "content": [{"type": "text", "text": 5}]}])
    assert found.messages[0].content == (OtherPart({"type": "nanobot", "part": {"type": "text", "text": 5}}),)
    check(found)


# --- writing ---------------------------------------------------------------------------------------------------------


def test_a_file_of_the_newest_generation_is_written_back_as_it_was() -> None:
    found = read(NANOBOT, NEWEST)
    written = dump(found.context, found.facts)
    assert written == [{**NEWEST[0], "updated_at": "2026-08-01T10:00:05"}, *NEWEST[2:]]


def test_a_summary_is_written_as_a_message_and_no_longer_as_metadata() -> None:
    found = read(NANOBOT, consolidated(4, 20))
    head, first, *_ = dump(found.context, found.facts)
    assert (head["metadata"], head["last_consolidated"]) == ({}, 0)
    assert "Logs were compared." in first["content"]


def test_the_header_and_fields_of_another_format_are_not_written() -> None:
    message = Message(Role.USER, "Hi", extra={"codex": {"id": 1}, "nanobot": {"role": "system", "_type": "metadata"}})
    facts = SessionFacts(format="pi", source_id="s-1", header={"metadata": {"x": 1}}, title="T")
    head, line = dump([message], facts)
    assert (head["key"], head["metadata"]) == ("import:s-1", {"title": "T"})
    assert line == {"role": "user", "content": "Hi"}


def test_times_are_written_without_a_zone_because_nanobot_compares_them() -> None:
    moment = datetime.fromisoformat("2026-01-01T02:00:00+02:00")
    head, line = dump([Message(Role.USER, "Hi", timestamp=moment)], SessionFacts())
    assert head["created_at"] == head["updated_at"] == line["timestamp"] == "2026-01-01T00:00:00"


times = st.none() | st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - the strategy adds the zone
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text("abc_1", min_size=1, max_size=5)
calls = st.lists(st.builds(ToolCall, names, names, st.sampled_from(["{}", '{"a":  1}'])), max_size=3).map(tuple)
thinking = st.builds(ThinkingPart, texts.filter(bool)) | st.builds(ThinkingPart, texts, texts)
replies = st.builds(lambda part, text: (part, TextPart(text)), thinking, texts.filter(bool))
kept = st.none() | st.just({"nanobot": {"latency_ms": 5}})
messages = st.one_of(
    st.builds(Message, st.just(Role.USER), texts, timestamp=times, extra=kept),
    st.builds(Message, st.just(Role.ASSISTANT), texts | replies, timestamp=times, tool_calls=calls, extra=kept),
    st.builds(Message, st.just(Role.TOOL_RESULT), texts, timestamp=times, tool_call_id=names, name=names),
)


def essence(message: Message) -> tuple[Any, ...]:
    calls_made = message.tool_calls or None
    return (
        message.role,
        message.content,
        message.timestamp,
        calls_made,
        message.tool_call_id,
        message.name,
        message.extra,
    )


@given(st.lists(messages, max_size=8))
def test_a_legal_context_comes_back_as_it_was(history: list[Message]) -> None:
    context = [m for m in build_context(history) if m.role is not Role.TOOL_RESULT or not m.is_error]
    found = read(NANOBOT, dumped(NANOBOT, context, SessionFacts(channel="cli", chat_id="1")).splitlines())
    assert [essence(message) for message in found.messages] == [essence(message) for message in context]
    assert found.findings == []


@given(st.lists(messages, max_size=8))
def test_what_is_written_is_read_as_a_legal_context(history: list[Message]) -> None:
    lines = dumped(NANOBOT, build_context(history), SessionFacts()).splitlines()
    assert is_legal(read(NANOBOT, lines).messages) == []
