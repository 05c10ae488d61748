"""Dive's session files (document 001) come back as they were; damage costs what it hit; our sessions become Dive's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miniclaw_sessions.core.history.context import build_context
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
    SessionInfo,
)
from miniclaw_sessions.core.protocol.messages import (
    ImagePart,
    Message,
    OtherPart,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    Usage,
)
from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.formats.codec import Outcome, Sample, SessionFacts
from miniclaw_sessions.files.formats.dive import DIVE
from miniclaw_sessions.files.formats.pi import PI
from tests.files.formats import codec_files
from tests.files.formats.codec_files import NOW, Read
from tests.legality import is_legal

REAL = Path(__file__).parents[2] / "data" / "pi-v1-large-session.jsonl"
TIME = "2026-02-08T10:00:00Z"
HEADER = {"line_type": "header", "data": {"id": "sess-123", "title": "Weather", "created_at": TIME}}


def read(*lines: Any) -> Read:
    return codec_files.read(DIVE, lines)


def written(entries: Sequence[Entry], facts: SessionFacts | None = None) -> list[bytes]:
    return codec_files.written(DIVE, entries, facts)


def events(entries: Sequence[Entry]) -> list[Any]:
    """The events, as they are written."""
    return [json.loads(line)["data"] for line in written(entries)[1:]]


def there_and_back(*lines: Any) -> list[Any]:
    """The lines as they are written after they were read and stored; nothing in them may have been wrong."""
    result = read(*lines)
    assert result.findings == []
    stored = [decode_entry(encode_entry(entry)) for entry in result.entries]
    return [json.loads(line) for line in written(stored, result.facts)]


def event(event_id: str, *messages: Any, kind: str = "turn", **more: Any) -> dict[str, Any]:
    data = {"type": kind, "id": event_id, "timestamp": TIME, "messages": list(messages), **more}
    return {"line_type": "event", "data": data}


def said(role: str, *blocks: Any, **more: Any) -> dict[str, Any]:
    return {**more, "role": role, "content": list(blocks)}


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **more}


def use(call_id: str, call_input: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "get_weather", "input": call_input, **more}


def result(call_id: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


USAGE = {"input_tokens": 7, "output_tokens": 5, "cache_read_input_tokens": 3}
HELLO = event("evt-1", said("user", text("Hello")), said("assistant", text("Hi!"), id="msg_1"), usage=USAGE)
WEATHER = event(
    "evt-2",
    said("user", text("Paris and Rome?")),
    said("assistant", text("I look."), use("c1", {"city": "Paris"}), use("c2", {"city": "Rome"})),
    said("user", result("c1", "sunny"), result("c2", [text("rain")], is_error=True)),
    said("assistant", text("Sun and rain.")),
    usage=USAGE,
    metadata={"request": "r-1"},
)


# --- document 001 ----------------------------------------------------------------------------------------------------


def test_s1_35_to_s1_38_header_and_events() -> None:
    session = read(HEADER, HELLO)
    assert session.findings == []
    assert session.facts == SessionFacts(
        format="dive",
        source_id="sess-123",
        title="Weather",
        created_at=datetime(2026, 2, 8, 10, tzinfo=UTC),
        leaf_id=session.entries[-1].id,
    )
    user, assistant = session.entries
    assert isinstance(user, MessageEntry)
    assert isinstance(assistant, MessageEntry)
    assert user.message == Message.user("Hello")
    assert (user.parent_id, assistant.parent_id) == (None, user.id)
    assert (user.continues, assistant.continues) == (False, True)
    assert (user.extra, assistant.extra) == ({"dive": {"id": "evt-1"}}, None)  # the usage is the answer's
    assert (assistant.message.text, assistant.message.usage) == ("Hi!", Usage(7, 5, 3))


def test_s1_24_every_field_of_an_event_is_written_back() -> None:
    assert there_and_back(HEADER, HELLO, WEATHER) == [HEADER, HELLO, WEATHER]


def test_s1_26_all_events_together_are_the_conversation() -> None:
    session = read(HEADER, HELLO, WEATHER)
    assert [entry.continues for entry in session.entries if isinstance(entry, MessageEntry)] == [
        *(False, True),
        *(False, True, True, True, True),
    ]
    context = build_context(session.messages)
    assert is_legal(context) == []
    assert [message.content for message in context] == [message.content for message in session.messages]


def test_the_results_of_several_calls_become_a_message_each() -> None:
    _, _, one, two, last = read(HEADER, WEATHER).messages
    assert (one.role, one.tool_call_id, one.content, one.is_error) == (Role.TOOL_RESULT, "c1", "sunny", False)
    assert (two.role, two.tool_call_id, two.content, two.is_error) == (
        Role.TOOL_RESULT,
        "c2",
        (TextPart("rain"),),
        True,
    )
    assert last.usage == Usage(7, 5, 3)


def test_calls_keep_their_arguments_and_their_places() -> None:
    line = event("e", said("assistant", text("a"), use("c1", {"b": [1.5, None]}), text("b"), use("c2", [1])))
    (message,) = read(HEADER, line).messages
    assert message.content == (TextPart("a"), TextPart("b"))
    assert [call.arguments for call in message.tool_calls or ()] == ['{"b":[1.5,null]}', "[1]"]
    assert there_and_back(HEADER, line)[1] == line


def test_s1_25_a_compaction_stands_for_everything_before_it() -> None:
    compacted = event(
        "evt-3",
        said("user", text("Summary: weather.")),
        said("assistant", use("c1", {})),
        said("user", result("c1", "ok"), text("and")),
        kind="compaction",
        metadata={"original_event_count": 2, "original_message_count": 6},
    )
    session = read(HEADER, HELLO, WEATHER, compacted, HELLO)
    compaction = session.entries[7]
    assert isinstance(compaction, Compaction)
    assert (compaction.summary, compaction.first_kept_entry_id) == ("", None)
    assert [message.role for message in compaction.messages] == [
        *(Role.USER, Role.ASSISTANT, Role.TOOL_RESULT, Role.USER)
    ]
    assert there_and_back(HEADER, HELLO, WEATHER, compacted, HELLO) == [HEADER, HELLO, WEATHER, compacted, HELLO]


@pytest.mark.parametrize("messages", [None, []])
def test_an_event_without_messages_is_kept(messages: Any) -> None:
    for kind in ("turn", "compaction", "other"):
        line = event("e", kind=kind)
        line["data"]["messages"] = messages
        assert there_and_back(HEADER, HELLO, line, HELLO) == [HEADER, HELLO, line, HELLO]


def test_a_later_version_s_fields_are_written_back() -> None:
    header = {
        "line_type": "header",
        "data": {
            **HEADER["data"],  # type: ignore[dict-item]
            "created_at": "2026-02-08T10:00:00.123456789-05:00",
            "updated_at": TIME,
            "metadata": {"a": 1},
            "forked_from": "sess-1",
            "suspended": True,
            "pending_tool_calls": [{"id": "c1", "name": "f", "input": {}}],
        },
    }
    odd_time = event("e", said("user", text("a"), id="m"), usage={"input_tokens": 1, "output_tokens": 0}, later=[1])
    odd_time["data"]["timestamp"] = "2026-02-08T10:00:00.123456789-05:00"
    unknown_type = event("e", said("user", text("a")), kind="suspension")
    unknown_line = {"line_type": "index", "data": [1], "more": {"a": None}}
    lines = [header, odd_time, unknown_type, unknown_line, HELLO]
    assert there_and_back(*lines) == lines
    assert read(*lines).facts.parent_session == "sess-1"
    assert read(*lines).said == ["a", "a", "Hello", "Hi!"]


def test_a_turn_without_an_answer_keeps_its_usage() -> None:
    line = event("e", said("user", text("a")), usage=USAGE)
    assert read(HEADER, line).messages[0].usage is None
    assert there_and_back(HEADER, line)[1] == line


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": 1, "output_tokens": 2, "cache_creation_input_tokens": 0, "reasoning_tokens": 5},
        {"input_tokens": 1, "output_tokens": 2, "cost": {"total": 0.5, "currency": "USD"}, "speed": "fast"},
        {"input_tokens": 1, "output_tokens": 2, "cost": None},
        {"input_tokens": "many"},
        {"input_tokens": True},
        {"input_tokens": 1.5},
        [],
        "much",
    ],
)
def test_usage_of_any_kind_is_written_back(usage: Any) -> None:
    line = event("e", said("assistant", text("a")), usage=usage)
    assert there_and_back(HEADER, line)[1] == line


def test_what_a_turn_cost_is_known() -> None:
    usage = {"input_tokens": 1, "output_tokens": 2, "cache_creation_input_tokens": 4, "cost": {"total": 0.5}}
    (message,) = read(HEADER, event("e", said("assistant", text("a")), usage=usage)).messages
    assert message.usage is not None
    assert (message.usage.input_tokens, message.usage.cache_write_tokens, message.usage.cost) == (1, 4, 0.5)


BLOCKS: list[Any] = [
    text("a", citations=[{"type": "char_location"}], cache_control={"type": "ephemeral"}),
    text(""),
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
    {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}, "cache_control": {}},
    {"type": "image", "source": {"type": "file", "file_id": "f"}},
    {"type": "image", "source": {"type": "base64", "data": "aGk=", "generation_id": "g"}},
    {"type": "image", "source": {"type": "base64", "media_type": "m", "data": "aGk=", "generation_id": "g"}},
    {"type": "image"},
    {"type": "thinking", "thinking": "hm", "signature": "s", "id": "t1"},
    {"type": "thinking", "thinking": "hm"},
    {"type": "thinking", "thinking": "hm", "signature": 5},
    {"type": "redacted_thinking", "data": "EmwK"},
    {"type": "document", "source": {"type": "text", "data": "x"}, "title": "T"},
    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
    {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
    {"type": "reminder", "name": "env", "tier": "operator", "content": "x"},
    {"type": "summary", "summary": "s"},
    {"type": "hologram", "data": [1]},
    {"type": "dive", "block": 1},
    {"type": 5},
    {"text": "no type"},
    {"type": "text", "text": 5},
    {"type": "tool_use", "id": 5},
    {"type": "tool_use", "id": "c", "name": "f"},
    {"type": "tool_result", "content": "for nobody"},
    *("bare", 5, None, [], {}),
    use("c1", {"a": 1}, metadata={"thought_signature": "s"}),
    use("c2", "text"),
    result("c1", "x"),
    result("c1", None),
    result("c1", {"any": ["json"]}),
    result("c1", []),
    result("c1", [text("a"), {"type": "image", "source": {"type": "url", "url": "u"}}, {"type": "document"}]),
    result("c1", ["bare", text("a")]),
    result("c1", [use("c9", {})]),
    result("c1", "x", is_error=False),
    result("c1", "x", is_error="yes"),
    result("c1", "x", is_error=True, cache_control={"type": "ephemeral"}),
]


@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer", "tool", "model", "narrator", "other"])
def test_every_block_is_written_back(role: str) -> None:
    for block in BLOCKS:
        alone, beside = event("e", said(role, block)), event("e", said(role, text("a"), block, text("b"), text("c")))
        assert there_and_back(HEADER, alone, beside) == [HEADER, alone, beside]


@pytest.mark.parametrize("message", [{"role": "assistant", "content": None}, {"role": "user"}, said("user")])
def test_a_message_without_content_is_written_back(message: dict[str, Any]) -> None:
    (_, line) = there_and_back(HEADER, event("e", message))
    assert line["data"]["messages"] == [{"content": None, **message}]


def test_a_result_without_content_is_an_empty_one() -> None:
    (message,) = read(HEADER, event("e", said("user", {"type": "tool_result", "tool_use_id": "c1"}))).messages
    assert (message.tool_call_id, message.content) == ("c1", "")


def test_results_in_separate_messages_stay_apart() -> None:
    line = event(
        "e", said("assistant", use("c1", {}), use("c2", {})), *(said("user", result(c, "x")) for c in ("c1", "c2"))
    )
    assert there_and_back(HEADER, line)[1] == line


wire_texts = st.text(st.characters(codec="utf-8"), max_size=8)
wire_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | wire_texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(wire_texts, inner, max_size=2),
)
wire_objects = st.dictionaries(wire_texts, wire_values, max_size=2)
wire_blocks = st.one_of(
    st.sampled_from(BLOCKS),
    st.builds(text, wire_texts),
    st.builds(use, wire_texts, wire_values),
    st.builds(result, wire_texts, wire_texts | st.lists(st.builds(text, wire_texts), max_size=2)),
)
wire_messages = st.builds(
    lambda role, content, more: {**more, "role": role, "content": content},
    st.sampled_from(["user", "assistant", "system", "developer"]),
    st.lists(wire_blocks, max_size=4),
    st.fixed_dictionaries({}, optional={"id": wire_texts, "usage": wire_values}),
)
wire_events = st.builds(
    lambda kind, messages, more: event("evt", *messages, kind=kind, **more),
    st.sampled_from(["turn", "compaction"]),
    st.lists(wire_messages, max_size=4),
    st.fixed_dictionaries(
        {},
        optional={
            "usage": st.fixed_dictionaries(
                {"input_tokens": st.integers(0, 9), "output_tokens": st.integers(0, 9)},
                optional={"cache_read_input_tokens": st.integers(0, 9), "cost": st.just({"total": 0.25})},
            ),
            "metadata": wire_objects,
        },
    ),
)


@given(st.lists(wire_events, max_size=4))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_file_of_dive_comes_back_as_it_was(lines: list[dict[str, Any]]) -> None:
    assert there_and_back(HEADER, *lines) == [HEADER, *lines]


# --- recognizing -----------------------------------------------------------------------------------------------------


UNKNOWN = {"line_type": "manifest", "data": {"id": "x"}}


def test_file_store_unrecognized_header_not_overwritten() -> None:
    """Nothing is written, because nothing is read; who holds the file leaves it as it is."""
    with pytest.raises(ImportRefused, match="neither header nor event"):
        DIVE.recognize(Sample(lines=[UNKNOWN, HELLO]))
    with pytest.raises(ImportRefused, match="neither header nor event"):
        read(UNKNOWN, HELLO)


# --- damage ----------------------------------------------------------------------------------------------------------


def test_file_store_torn_append_recovery() -> None:
    torn = json.dumps(WEATHER).encode()[:-20]
    session = read(HEADER, HELLO, torn)
    assert session.said == ["Hello", "Hi!"]
    assert session.outcomes == [(3, Outcome.SET_ASIDE)]
    assert session.findings[0].raw == torn
    fused = read(HEADER, torn + json.dumps(HELLO).encode(), HELLO)
    assert fused.said == ["Hello", "Hi!"] * 2
    assert fused.outcomes == [(2, Outcome.SET_ASIDE), (2, Outcome.REPAIRED)]


@pytest.mark.parametrize(
    "line",
    [
        *({"line_type": "event"}, {"line_type": "event", "data": [1]}, {"line_type": "header", "data": "x"}, HEADER),
        {"line_type": "event", "data": {"type": "turn", "id": "e", "timestamp": TIME, "messages": 5}},
        {"line_type": "event", "data": {"type": "turn", "id": "e", "timestamp": TIME, "messages": {"a": 1}}},
        *(event("e", message) for message in (None, 5, {}, {"role": 5}, {"role": ""}, {"role": "user", "content": 5})),
    ],
    ids=lambda line: str(line)[:60],
)
def test_a_bad_line_in_the_middle_is_set_aside_and_its_neighbours_are_taken(line: Any) -> None:
    session = read(HEADER, HELLO, line, WEATHER)
    assert session.outcomes == [(3, Outcome.SET_ASIDE)]
    assert session.findings[0].raw == orjson.dumps(line)
    assert len(session.entries) == 2 + 5


def test_a_bad_message_costs_only_itself() -> None:
    bad = {"role": "user", "content": {"secret": "secret"}}
    session = read(HEADER, event("e", said("user", text("a")), bad, said("assistant", text("b"))))
    assert session.said == ["a", "b"]
    assert session.outcomes == [(2, Outcome.SET_ASIDE)]
    assert json.loads(session.findings[0].raw) == bad
    assert "secret" not in session.findings[0].text


def test_a_damaged_header_costs_what_it_said() -> None:
    session = read(b'{"line_type":"header","data":{"id"', HELLO)
    assert (session.said, session.outcomes) == (["Hello", "Hi!"], [(1, Outcome.SET_ASIDE)])
    wrong = {"line_type": "header", "data": {"id": 5, "title": [], "created_at": "?", "forked_from": 5}}
    assert there_and_back(wrong, HELLO) == [wrong, HELLO]


@pytest.mark.parametrize("timestamp", [None, "?", 5, [], "2026-02-30T00:00:00Z"])
def test_an_event_without_a_time_has_that_of_the_one_before(timestamp: Any) -> None:
    line = event("e", said("user", text("a")))
    line["data"]["timestamp"] = timestamp
    session = read(HEADER, HELLO, line)
    assert session.entries[-1].timestamp == session.entries[0].timestamp
    assert session.outcomes == [(3, Outcome.REPAIRED)]
    assert json.loads(written(session.entries, session.facts)[-1]) == line


def test_a_message_as_a_bare_text_is_understood() -> None:
    assert read(HEADER, event("e", {"role": "user", "content": "Hello"})).messages == [Message.user("Hello")]


def test_fields_beside_the_envelope_are_reported() -> None:
    assert read(HEADER, {**HELLO, "more": 1}).outcomes == [(2, Outcome.REPAIRED)]


def test_file_store_large_event() -> None:
    line = event("e", said("user", text("x" * 2_000_000)))
    assert there_and_back(HEADER, line)[1] == line


SESSION = [
    *(HEADER, HELLO, WEATHER, {"line_type": "index", "data": [1]}, event("evt-4", kind="other")),
    event("evt-3", said("user", *BLOCKS[:12]), said("assistant", *BLOCKS[12:25]), kind="compaction"),
    event("evt-5", said("user", *BLOCKS[25:])),
]


# --- sessions of ours ------------------------------------------------------------------------------------------------


class Branch:
    """Makes the entries of a branch."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, kind: type[Any], **fields: Any) -> str:
        number = len(self.entries) + 1
        parent_id = self.entries[-1].id if self.entries else None
        timestamp = NOW + timedelta(seconds=number)
        self.entries.append(kind(id=f"e{number}", parent_id=parent_id, timestamp=timestamp, sequence=number, **fields))
        return f"e{number}"

    def say(self, message: Message, *, continues: bool = False) -> str:
        return self.add(MessageEntry, message=message, continues=continues)


def test_our_turns_become_events() -> None:
    branch = Branch()
    calls = (ToolCall("c1", "f", '{"a": 1}'), ToolCall("c2", "g", ""), ToolCall("c3", "h", "{torn"))
    branch.say(Message.user("a"))
    branch.say(
        Message(Role.ASSISTANT, "", tool_calls=calls, usage=Usage(1, 2, 3, 4, cost=0.5), model="m"), continues=True
    )
    branch.add(Label, target_id="e1", label="x")
    branch.say(Message.tool_result(calls[0], "one"), continues=True)
    branch.say(Message.tool_result(calls[1], (TextPart("two"), ImagePart("image/png", "aGk="))), continues=True)
    branch.say(Message.tool_result(calls[2], "three", is_error=True), continues=True)
    branch.say(Message(Role.ASSISTANT, "Done", usage=Usage(10, 20)), continues=True)
    branch.say(Message.user("b"))
    first, second = events(branch.entries)
    assert first == {
        "type": "turn",
        "id": "e1",
        "timestamp": "2026-01-01T00:00:01Z",
        "messages": [
            said("user", text("a")),
            said(
                "assistant",
                {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
                {"type": "tool_use", "id": "c2", "name": "g", "input": {}},
                {"type": "tool_use", "id": "c3", "name": "h", "input": {"value": "{torn"}},
            ),
            said(
                "user",
                result("c1", "one"),
                result("c2", [text("two"), BLOCKS[2]]),
                result("c3", "three", is_error=True),
            ),
            said("assistant", text("Done")),
        ],
        "usage": {
            "input_tokens": 11,
            "output_tokens": 22,
            "cache_read_input_tokens": 3,
            "cache_creation_input_tokens": 4,
            "cost": {"total": 0.5, "breakdown_unavailable": True},
        },
    }
    assert second["messages"] == [said("user", text("b"))]


def test_a_compaction_of_ours_repeats_what_it_keeps() -> None:
    branch = Branch()
    branch.say(Message.user("one"))
    kept = branch.say(Message.user("two"))
    branch.say(Message.assistant("three"))
    branch.add(Compaction, summary="They counted.", first_kept_entry_id=kept)
    branch.say(Message.user("four"))
    branch.add(Compaction, summary="They went on.", first_kept_entry_id="e3", messages=(Message.user("extra"),))
    branch.add(Compaction, summary="", first_kept_entry_id="gone")
    *_, first, four, second, third = events(branch.entries)
    assert [event["type"] for event in (first, four, second, third)] == [
        "compaction",
        "turn",
        "compaction",
        "compaction",
    ]
    texts = [[message["content"][0]["text"] for message in event["messages"]] for event in (first, second, third)]
    assert [len(told) for told in texts] == [3, 4, 0]
    assert texts[0][0].endswith("They counted.")
    assert texts[0][1:] == ["two", "three"]
    assert texts[1][0].endswith("They went on.")
    assert texts[1][1:] == ["extra", "three", "four"]


def test_what_dive_does_not_have_is_told_or_left_out() -> None:
    branch = Branch()
    branch.add(ModelChange, provider="p", model_id="m")
    branch.add(SessionInfo, name="x")
    branch.add(Custom, custom_type="metadata", data={"line": {}})
    branch.add(LeafMove, target_id=None)
    branch.add(BranchSummary, summary="a dead end", from_id="e1")
    branch.say(Message(Role.BASH_EXECUTION, "", extra={"command": "ls", "output": "a.txt"}))
    branch.say(Message(Role.BASH_EXECUTION, "", extra={"command": "ls", "excludeFromContext": True}))
    branch.say(Message(Role.OTHER, "once upon a time", extra={"role": "narrator"}))
    parts = (TextPart("a"), OtherPart({"type": "input_audio"}), ImagePart(), ThinkingPart("hm"), OtherPart(BLOCKS[12]))
    branch.say(Message.user(parts))
    branch.say(Message(Role.TOOL_RESULT, "for some call"))
    branch.say(
        Message(Role.TOOL_RESULT, "", tool_calls=(ToolCall("c1", "f", output="x"), ToolCall("c2", "f", output="y")))
    )
    messages = [message for event in events(branch.entries) for message in event["messages"]]
    assert {message["role"] for message in messages} == {"user"}
    assert [message["content"][0].get("text", "")[-16:] for message in messages] == [
        *("was left:\n\na dead end"[-16:], "Ran `ls`:\n\na.txt"[-16:], "once upon a time", "a", "for some call", "")
    ]
    assert [block["type"] for block in messages[3]["content"]] == ["text", "thinking", "document"]
    assert messages[5]["content"] == [result("c1", "x"), result("c2", "y")]


def test_the_header_of_a_session_of_ours() -> None:
    facts = SessionFacts(
        session_id="telegram_1",
        title="Holiday",
        created_at=NOW,
        parent_session="telegram_0",
        metadata={"a": 1, "title": ""},
    )
    assert json.loads(written([], facts)[0]) == {
        "line_type": "header",
        "data": {
            "id": "telegram_1",
            "title": "Holiday",
            "created_at": "2026-01-01T00:00:00Z",
            "metadata": {"a": 1},
            "forked_from": "telegram_0",
        },
    }
    other = SessionFacts(format="pi", header={"cwd": "/x"})
    assert "cwd" not in json.loads(written([], other)[0])["data"]


def test_a_real_session_of_another_program_means_the_same_to_dive() -> None:
    session = codec_files.read(PI, REAL.read_bytes().splitlines())
    again = read(*written(session.entries))
    assert again.findings == []
    assert [(message.role, message.text) for message in again.messages if message.text] == [
        (message.role, message.text) for message in session.messages if message.text
    ]
    assert sum(len(message.tool_calls or ()) for message in again.messages) == 391
    assert is_legal(build_context(again.messages)) == []


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(lambda value: value.strip() != "")
calls = st.lists(st.builds(ToolCall, texts, texts, st.sampled_from(["{}", '{"a":1}'])), min_size=1, max_size=3)
turns = st.lists(
    st.one_of(
        texts.map(lambda content: [Message.user(content)]),
        texts.map(lambda content: [Message.assistant(content)]),
        st.builds(
            lambda asked, content: [
                Message(Role.ASSISTANT, content, tool_calls=tuple(asked)),
                *(Message(Role.TOOL_RESULT, f"{content} {call.id}", tool_call_id=call.id) for call in asked),
            ],
            calls,
            texts,
        ),
    ),
    min_size=1,
    max_size=3,
).map(lambda groups: [message for group in groups for message in group])


@given(st.lists(turns, min_size=1, max_size=3))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_our_conversations_come_back(conversation: list[list[Message]]) -> None:
    branch = Branch()
    for turn in conversation:
        for place, message in enumerate(turn):
            branch.say(message, continues=place > 0)
    session = read(*written(branch.entries))
    assert session.findings == []
    assert [msgspec.structs.replace(message, extra=None) for message in session.messages] == [
        message for turn in conversation for message in turn
    ]
    assert [entry.continues for entry in session.entries if isinstance(entry, MessageEntry)] == [
        place > 0 for turn in conversation for place in range(len(turn))
    ]
