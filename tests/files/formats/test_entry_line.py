"""Document 003's JSON Lines: its files are read and written back, and whatever our entries hold comes back equal."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.history.transcript import Transcript
from miniclaw_sessions.core.protocol.encoding import encode_entry
from miniclaw_sessions.core.protocol.entries import (
    Compaction,
    Entry,
    Label,
    LeafMove,
    MessageEntry,
    OtherEntry,
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
from miniclaw_sessions.files.formats.codec import Outcome, SessionFacts
from miniclaw_sessions.files.formats.pi import PI
from tests.files.formats import codec_files
from tests.files.formats.codec_files import NOW
from tests.files.formats.entry_line_files import (
    BASE,
    FLAT,
    HEADER,
    SEVERAL,
    entry,
    nested,
    objects,
    read,
    result,
    said,
    text,
    there_and_back,
    use,
    written,
)
from tests.files.formats.our_entries import anything, texts, trees
from tests.legality import is_legal

REAL = Path(__file__).parents[2] / "data" / "pi-v1-large-session.jsonl"
# --- the scenarios of document 003 -----------------------------------------------------------------------------------

SIMPLE = b"""\
{"type":"session","id":"sess-123","version":1,"timestamp":"2024-01-01T10:00:00Z"}
{"type":"message","id":"msg-1","parent_id":null,"timestamp":"2024-01-01T10:00:01Z","message":{"role":"user","content":[{"type":"text","text":{"content":"Hello"}}]}}
{"type":"message","id":"msg-2","parent_id":"msg-1","timestamp":"2024-01-01T10:00:02Z","message":{"role":"assistant","content":[{"type":"text","text":{"content":"Hi there!"}}]}}
""".splitlines()  # noqa: E501 - lines of a file

COMPLEX = b"""\
{"type":"session","id":"sess-456","version":1,"timestamp":"2024-02-01T12:00:00Z"}
{"type":"message","id":"m-1","parent_id":null,"timestamp":"2024-02-01T12:00:01Z","message":{"role":"user","content":[{"type":"text","text":{"content":"Read main.go"}}]}}
{"type":"message","id":"m-2","parent_id":"m-1","timestamp":"2024-02-01T12:00:02Z","message":{"role":"assistant","content":[{"type":"tool_use","tool_use":{"id":"call_abc","name":"read_file","input":{"path":"main.go"}}}]}}
{"type":"message","id":"m-3","parent_id":"m-2","timestamp":"2024-02-01T12:00:03Z","message":{"role":"tool","content":[{"type":"tool_result","tool_result":{"tool_use_id":"call_abc","content":"package main..."}}]}}
""".splitlines()  # noqa: E501 - lines of a file

WALKTHROUGH = b"""\
{"type":"session","id":"sess-123","version":1,"timestamp":"2024-01-01T10:00:00Z","cwd":"/path/to/project"}
{"type":"message","id":"msg-1","parent_id":null,"timestamp":"...","message":{"role":"user","content":[{"type":"text","text":{"content":"Hello, Agent!"}}]}}
{"type":"message","id":"msg-2","parent_id":"msg-1","timestamp":"...","message":{"role":"assistant","content":[{"type":"text","text":{"content":"Hello! How can I help?"}}]}}
{"type":"message","id":"msg-3","parent_id":"msg-1","timestamp":"...","message":{"role":"user","content":[{"type":"text","text":{"content":"Actually, tell me a joke."}}]}}
{"type":"label","id":"lbl-1","parent_id":"msg-3","target_id":"msg-1","label":"first-greeting","timestamp":"..."}
{"type":"compaction","id":"comp-1","parent_id":"lbl-1","summary":"User greeted and then asked for a joke.","first_kept_entry_id":"msg-3","tokens_before":1500,"timestamp":"..."}
""".splitlines()  # noqa: E501 - lines of a file


def test_simple_session() -> None:
    """S3.87."""
    simple = read(*SIMPLE)
    assert simple.findings == []
    assert simple.facts == SessionFacts(
        format="jsonl", source_id="sess-123", created_at=datetime(2024, 1, 1, 10, tzinfo=UTC), leaf_id="msg-2"
    )
    assert simple.entries == [
        MessageEntry(
            id="msg-1",
            parent_id=None,
            timestamp=datetime(2024, 1, 1, 10, 0, 1, tzinfo=UTC),
            message=Message.user("Hello"),
        ),
        MessageEntry(
            id="msg-2",
            parent_id="msg-1",
            timestamp=datetime(2024, 1, 1, 10, 0, 2, tzinfo=UTC),
            message=Message.assistant("Hi there!"),
        ),
    ]


def test_complex_session_with_tools() -> None:
    """S3.88: the result does not say whether it is an error, so it is none."""
    call = ToolCall("call_abc", "read_file", '{"path":"main.go"}')
    messages = [e.message for e in read(*COMPLEX).entries if isinstance(e, MessageEntry)]
    assert messages == [
        Message.user("Read main.go"),
        Message.assistant("", (call,)),
        Message(Role.TOOL_RESULT, "package main...", tool_call_id="call_abc"),
    ]
    assert is_legal(build_context(messages)) == []


def test_the_walkthrough() -> None:
    """S3.89, S3.90; its times are dots, as the document has them."""
    walkthrough = read(*WALKTHROUGH)
    assert walkthrough.outcomes == [(line, Outcome.REPAIRED) for line in range(2, 7)]
    assert walkthrough.facts.header == {"cwd": "/path/to/project"}
    transcript = Transcript(walkthrough.entries)
    assert transcript.problems == []
    assert transcript.labels == {"msg-1": "first-greeting"}
    assert [e.id for e in transcript.children("msg-1")] == ["msg-2", "msg-3"]
    assert [e.id for e in transcript.path()] == ["msg-1", "msg-3", "lbl-1", "comp-1"]
    compaction = transcript.get("comp-1")
    assert isinstance(compaction, Compaction)
    assert (compaction.summary, compaction.first_kept_entry_id, compaction.tokens_before) == (
        "User greeted and then asked for a joke.",
        "msg-3",
        1500,
    )


@pytest.mark.parametrize("lines", [SIMPLE, COMPLEX], ids=["simple", "complex"])
def test_the_document_s_files_are_written_back(lines: list[bytes]) -> None:
    original = objects(lines)
    if lines is COMPLEX:
        original[-1]["message"]["content"][0]["tool_result"]["is_error"] = False
    assert there_and_back(*lines) == original


def test_the_walkthrough_is_written_back() -> None:
    """With what its label and its compaction say under their names, as section 4 of the document has it."""
    lines = [line.replace(b'"..."', b'"2024-01-01T10:00:01Z"') for line in WALKTHROUGH]
    *said, label, compaction = objects(lines)
    assert there_and_back(*lines) == [*said, nested(label), nested(compaction)]


# --- the rules of document 003 ---------------------------------------------------------------------------------------


def test_s3_9_and_s3_13_the_header_is_the_first_line() -> None:
    facts = SessionFacts(session_id="telegram_1", channel="telegram", chat_id="1", created_at=NOW, title="Holiday")
    assert objects(written([], facts)) == [
        {
            "type": "session",
            "id": "telegram_1",
            "version": 1,
            "timestamp": "2026-01-01T00:00:00Z",
            "session_id": "telegram_1",
            "channel": "telegram",
            "chat_id": "1",
            "title": "Holiday",
        }
    ]


def test_s3_10_and_s3_16_what_every_entry_has() -> None:
    (_, line) = objects(written([MessageEntry(**BASE, sequence=7, parent_sequence=3, message=Message.user("hi"))]))
    assert line == {
        "type": "message",
        "id": "e1",
        "parent_id": None,
        "timestamp": "2026-01-01T00:00:00Z",
        "message": {"role": "user", "content": [text("hi")]},
    }


@pytest.mark.parametrize("kind", FLAT)
def test_s3_15_every_type_is_written_with_its_payload_under_its_name_and_read_flat_too(kind: str) -> None:
    flat, payload = entry(kind, "e1", None, **FLAT[kind]), entry(kind, "e1", None, **{kind: FLAT[kind]})
    assert nested(flat) == payload
    assert read(HEADER, flat).entries == read(HEADER, payload).entries
    assert read(HEADER, payload).findings == []
    assert there_and_back(HEADER, flat)[1] == there_and_back(HEADER, payload)[1] == payload


def test_s3_15_a_field_of_ours_is_no_payload() -> None:
    line = entry("custom", "e1", None, custom_type="a", data={}, custom={"custom_type": "b"})
    assert there_and_back(HEADER, line)[1] == line


def test_a_message_whose_fields_stand_beside_its_id_is_read_too() -> None:
    assert read(HEADER, entry("message", "e1", None, role="user", content=[text("hi")])).message == Message.user("hi")


@pytest.mark.parametrize(
    ("text_of_role", "role"),
    [
        ("user", Role.USER),
        ("assistant", Role.ASSISTANT),
        ("tool", Role.TOOL_RESULT),
        ("bashExecution", Role.BASH_EXECUTION),
        ("custom", Role.CUSTOM),
        ("branchSummary", Role.BRANCH_SUMMARY),
        ("compactionSummary", Role.COMPACTION_SUMMARY),
        ("system", Role.SYSTEM),
    ],
)
def test_s3_12_roles(text_of_role: str, role: Role) -> None:
    assert read(HEADER, said("e1", None, text_of_role)).message.role is role
    (_, line) = objects(written([MessageEntry(**BASE, message=Message(role, "x"))]))
    assert line["message"]["role"] == text_of_role


def test_s3_12_a_role_that_nobody_knows_is_kept() -> None:
    line = said("e1", None, "narrator")
    assert read(HEADER, line).message.role_text == "narrator"
    assert there_and_back(HEADER, line)[1] == line


def test_s3_17_a_message_tells_its_model() -> None:
    line = entry("message", "e1", None, message={"role": "assistant", "content": [text("Hi")], "model": "gpt-x"})
    assert read(HEADER, line).message.model == "gpt-x"
    assert there_and_back(HEADER, line)[1] == line


def test_s3_20_a_label_that_is_left_out_is_removed() -> None:
    for line in (entry("label", "e1", None, target_id="e0"), entry("label", "e1", None, label={"target_id": "e0"})):
        (label,) = read(HEADER, line).entries
        assert isinstance(label, Label)
        assert (label.target_id, label.label) == ("e0", "")


def test_s3_22_an_empty_first_kept_entry_is_none() -> None:
    line = entry("compaction", "e1", None, summary="s", first_kept_entry_id="", tokens_before=0)
    (compaction,) = read(HEADER, line).entries
    assert isinstance(compaction, Compaction)
    assert compaction.first_kept_entry_id is None
    assert there_and_back(HEADER, line)[1] == nested(line)


IMAGE = {"type": "image", "image": {"source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}}
LINKED = {"type": "image", "image": {"source": {"type": "url", "media_type": "", "data": "https://example.org/a.png"}}}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([text("a")], Message.user("a")),
        ([text("a"), text("b")], Message.user((TextPart("a"), TextPart("b")))),
        ([text("")], Message.user((TextPart(""),))),
        ([], Message.user(())),
        ([text("a"), IMAGE], Message.user((TextPart("a"), ImagePart("image/png", "aGk=")))),
        ([LINKED], Message.user((ImagePart(url="https://example.org/a.png"),))),
    ],
)
def test_s3_25_to_s3_27_text_and_images(parts: list[Any], message: Message) -> None:
    line = entry("message", "e1", None, message={"role": "user", "content": parts})
    assert read(HEADER, line).message == message
    assert there_and_back(HEADER, line)[1] == line


def test_s3_28_a_call_keeps_its_place_among_the_text() -> None:
    line = said("e1", None, "assistant", text("a"), use("c1"), text("b"), text("c"), use("c2", path="x"))
    message = read(HEADER, line).message
    assert message.content == (TextPart("a"), TextPart("b"), TextPart("c"))
    assert [(call.id, call.arguments) for call in message.tool_calls or ()] == [("c1", "{}"), ("c2", '{"path":"x"}')]
    assert there_and_back(HEADER, line)[1] == line


@pytest.mark.parametrize(
    ("arguments", "as_input"),
    [
        ('{"a":1}', {"a": 1}),
        ('{ "a": 1.0,\n"a": 1e3 }', {"a": 1000}),
        ("", {}),
        ('{"a":', {}),
        ("[1]", {}),
        ("null", {}),
        ('{"a":"é\\u00e9"}', {"a": "éé"}),
        ('{"a":1180591620717411303424}', {}),
        ('{"a":' * 65 + "1" + "}" * 65, {}),
    ],
)
def test_s3_28_the_model_s_own_arguments_come_back_as_they_were(arguments: str, as_input: dict[str, Any]) -> None:
    original = MessageEntry(**BASE, message=Message.assistant("", (ToolCall("c1", "f", arguments),)))
    lines = written([original])
    assert objects(lines)[1]["message"]["content"][0]["tool_use"]["input"] == as_input
    assert read(*lines).entries == [original]


def test_the_output_that_a_source_keeps_on_a_call_stands_among_its_fields() -> None:
    original = MessageEntry(**BASE, message=Message.assistant("", (ToolCall("c1", "f", "{}", "done"),)))
    lines = written([original])
    assert objects(lines)[1]["message"]["content"] == [
        {"type": "tool_use", "tool_use": {"id": "c1", "name": "f", "input": {}, "output": "done"}}
    ]
    assert read(*lines).entries == [original]


def test_s3_29_a_result_is_text_with_its_parts_beside_it() -> None:
    content = (TextPart("a"), ImagePart("image/png", "aGk="), TextPart("b"))
    message = Message(Role.TOOL_RESULT, content, tool_call_id="c1", name="f", is_error=True)
    lines = written([MessageEntry(**BASE, message=message)])
    assert objects(lines)[1]["message"]["content"] == [
        {
            "type": "tool_result",
            "tool_result": {
                "tool_use_id": "c1",
                "is_error": True,
                "content": "ab",
                "parts": [text("a"), IMAGE, text("b")],
            },
        }
    ]
    assert read(*lines).message == message


def test_s3_30_the_content_of_a_file_stands_in_a_text() -> None:
    line = said("msg-123", None, "user", text('Analyze this file:\n<file name="main.go">\npackage main\n...</file>'))
    assert there_and_back(HEADER, line)[1] == line


def test_s3_31_to_s3_35_text_that_another_service_told_becomes_one_text() -> None:
    for content in ("hi", [{"type": "text", "text": "hi"}], [{"type": "text", "text": {"content": "hi"}}]):
        line = entry("message", "e1", None, message={"role": "user", "content": content})
        written_line = there_and_back(HEADER, line)[1]
        assert written_line["message"]["content"] == [text("hi")]


def test_what_others_added_is_written_back_where_it_was() -> None:
    line = said(
        "e1",
        None,
        "assistant",
        {"type": "text", "text": {"content": "a", "in": 1}, "out": 2},
        {
            "type": "image",
            "image": {"source": {"type": "url", "data": "u", "media_type": "m", "in": 1}, "mid": 2},
            "o": 3,
        },
        {"type": "image", "image": {"source": {"type": "file", "file_id": "f"}}},
        {"type": "thinking", "thinking": "hm", "signature": "s", "more": 1},
        {"type": "audio", "audio": {"a": [1]}},
        {"type": "tool_use", "tool_use": {"id": "c", "name": "f", "input": {}, "in": 1}, "out": {"a": 2}},
    )
    line["message"] |= {"theirs": {"b": None}, "jsonl": {"c": 1}}
    line["also"] = [1]
    answer = said("e2", "e1", "user", {**result("c", "ok"), "out": 1})
    answer["message"]["content"][0]["tool_result"]["in"] = 2
    header = {**HEADER, "cwd": "/x", "parent_session": "older", "theirs": {"a": 1}}
    assert there_and_back(header, line, answer) == [header, line, answer]
    messages = [e.message for e in read(header, line, answer).entries if isinstance(e, MessageEntry)]
    assert messages[1].role is Role.TOOL_RESULT


# --- several results in one message ----------------------------------------------------------------------------------


def test_several_results_become_a_message_each_and_the_tree_stays_whole() -> None:
    several = read(*SEVERAL)
    assert several.findings == []
    results = [e.message for e in several.entries if isinstance(e, MessageEntry) and e.message.is_tool_result]
    assert [(m.tool_call_id, m.content, m.is_error) for m in results] == [
        ("c1", "one", False),
        ("c2", "two", True),
        ("c3", "three", False),
    ]
    following = {"m2": "m1", "m3": "m2", "new-1": "m3", "new-2": "new-1", "m4": "new-2", "m5": "new-2", "b1": "m5"}
    assert several.parents == {"m1": None, "l1": None, **following}
    assert Transcript(several.entries).problems == []
    assert [e.target_id for e in several.entries if isinstance(e, LeafMove)] == ["new-2"]


def test_several_results_are_one_message_again_when_written() -> None:
    several = read(*SEVERAL)
    lines = written(several.entries, several.facts)
    again = objects(lines)
    assert [part.pop("entry", None) for part in again[3]["message"]["content"]] == [None, "new-1", "new-2"]
    assert again == SEVERAL
    assert read(*lines).entries == several.entries


def test_text_among_results_keeps_its_place() -> None:
    line = said("m1", None, "user", text("a"), result("c1", "one"), text("b"), text("c"), result("c2", "two"))
    mixed = read(HEADER, line)
    messages = [e.message for e in mixed.entries if isinstance(e, MessageEntry)]
    assert [m.role for m in messages] == [Role.USER, Role.TOOL_RESULT, Role.USER, Role.TOOL_RESULT]
    lines = written(mixed.entries, mixed.facts)
    assert len(lines) == 2
    assert read(*lines).entries == mixed.entries


def test_pieces_that_no_longer_belong_together_stay_apart() -> None:
    _, _, first, second, third, *_ = read(*SEVERAL).entries
    for rest in ([third], [msgspec.structs.replace(second, timestamp=NOW), third]):
        entries = [first, *rest]
        assert len(written(entries)) == 1 + len(entries)


# --- our own entries -------------------------------------------------------------------------------------------------

extras = st.none() | st.dictionaries(st.sampled_from(["pi", "theirs", "anthropic", "é", "x"]), anything, min_size=1)
moments = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001 - given one
jsons = st.dictionaries(texts, anything, max_size=3)
arguments = st.builds(json.dumps, jsons) | jsons.map(lambda value: msgspec.json.encode(value).decode()) | texts
call_extras = st.none() | st.fixed_dictionaries(
    {}, optional={"content_before": st.integers(-1, 3), "type": texts, "input": anything, "tool_use": anything}
).map(lambda extra: extra or None)
parts = st.one_of(
    st.builds(TextPart, texts, extra=extras),
    st.builds(ImagePart, texts, st.none() | texts, st.none() | texts, extra=extras),
    st.builds(ThinkingPart, texts, st.none() | texts, st.booleans(), extra=extras),
    st.builds(lambda kind, rest: OtherPart({**rest, "type": kind}), st.sampled_from(["audio", "tool_use"]), jsons),
)
messages = st.builds(
    Message,
    st.sampled_from(Role),
    texts | st.lists(parts, max_size=4).map(tuple),
    timestamp=st.none() | moments,
    tool_calls=st.none()
    | st.lists(st.builds(ToolCall, texts, texts, arguments, st.none() | texts, extra=call_extras), min_size=1).map(
        tuple
    ),
    tool_call_id=st.none() | texts,
    name=st.none() | texts,
    is_error=st.booleans(),
    author=st.none() | texts,
    model=st.none() | texts,
    usage=st.none()
    | st.builds(Usage, st.integers(0, 9), st.integers(0, 9), cost=st.none() | st.floats(0, 9), extra=extras),
    stop_reason=st.none() | texts,
    extra=extras,
)
sessions = trees(
    messages=lambda _: messages,
    moments=moments,
    customs=st.tuples(texts, jsons),
    extras=extras | st.builds(lambda name: {name: {"a": 1}}, st.sampled_from(["model_change", "compaction"])),
    unknown=texts.filter(bool),
).filter(lambda entries: not any(isinstance(one, Label) and "label" in (one.extra or ()) for one in entries))


@given(sessions)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_whatever_our_entries_hold_comes_back_equal(entries: list[Entry]) -> None:
    again = read(*written(entries))
    assert again.findings == []
    assert again.entries == entries


@given(sessions)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_the_lines_of_our_stores_are_read_too(entries: list[Entry]) -> None:
    numbered = [e if isinstance(e, OtherEntry) else msgspec.structs.replace(e, sequence=7) for e in entries]
    again = read(HEADER, *map(encode_entry, numbered))
    assert again.findings == []
    assert again.entries == entries


def test_a_real_session_of_another_program_comes_back_equal() -> None:
    session = codec_files.read(PI, REAL.read_bytes().splitlines())
    assert len(session.entries) == 1_018
    again = read(*written(session.entries))
    assert again.findings == []
    assert again.entries == session.entries


def test_places_in_a_store_are_left_out() -> None:
    entries: list[Entry] = [
        MessageEntry(**BASE, sequence=5, parent_sequence=3, message=Message.user("hi")),
        LeafMove(id="e2", parent_id="e1", timestamp=NOW, sequence=6, target_id="e1", target_sequence=5),
        Compaction(id="e3", parent_id="e1", timestamp=NOW, sequence=7, first_kept_entry_id="e1", first_kept_sequence=5),
    ]
    for lines in (written(entries), [encode_entry(e) for e in entries]):
        assert b"sequence" not in b"".join(written(read(*lines).entries))


def test_facts_of_our_sessions_come_back() -> None:
    facts = SessionFacts(
        format="jsonl",
        source_id="telegram_1",
        title="Holiday",
        created_at=NOW,
        parent_session="telegram_0",
        header={"cwd": "/x"},
        metadata={"a": [1]},
        session_id="telegram_1",
        channel="telegram",
        chat_id="1",
        leaf_id="e1",
    )
    again = read(*written([MessageEntry(**BASE, message=Message.user("hi"))], facts))
    assert (again.facts, again.findings) == (facts, [])


def test_an_unknown_entry_stays_on_one_line() -> None:
    encoded = json.dumps(entry("lane", "e1", None, lane=[1, {"a": "b\nc"}]), indent=1).encode()
    (_, line) = written([OtherEntry(**BASE, encoded=msgspec.Raw(encoded))])
    assert json.loads(line) == json.loads(encoded)


def test_an_unknown_entry_is_kept_byte_for_byte_and_told_its_parent_where_that_was_mended() -> None:
    raw = (
        b'{ "type" : "lane","id":"e1","parent_id":null,"timestamp":"2024-01-01T10:00:00+01:00","sequence":4, "n":1.50}'
    )
    (other,) = read(HEADER, raw).entries
    assert isinstance(other, OtherEntry)
    assert (bytes(other.encoded), other.sequence, other.timestamp.hour) == (raw, 0, 9)
    (mended,) = read(HEADER, raw.replace(b"null", b'"gone"')).entries
    assert isinstance(mended, OtherEntry)
    assert mended.parent_id is json.loads(bytes(mended.encoded))["parent_id"] is None


def test_the_deepest_that_we_store_comes_back() -> None:
    deep: Any = "bottom"
    for _ in range(62):
        deep = [deep]
    call = ToolCall("c", "f", json.dumps({"deep": deep}, separators=(",", ":")), extra={"deep": deep})
    message = Message(Role.ASSISTANT, (TextPart("a", extra={"deep": deep}),), tool_calls=(call,), extra={"deep": deep})
    entries: list[Entry] = [MessageEntry(**BASE, message=message)]
    lines = written(entries)
    assert read(*lines).entries == entries


# --- recognizing -----------------------------------------------------------------------------------------------------


def test_a_header_alone_is_an_empty_session() -> None:
    assert read(HEADER).entries == []


def test_a_file_of_a_newer_version_is_refused() -> None:
    with pytest.raises(ImportRefused, match="version 2, and only version 1"):
        read({**HEADER, "version": 2}, said("e1", None))
