"""Claude Code's transcripts: a tree of lines, in which one reply is many lines."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from miniclaw_sessions.core.history.context import NO_RESULT
from miniclaw_sessions.core.protocol.entries import Compaction, Custom
from miniclaw_sessions.core.protocol.messages import ImagePart, OtherPart, Role, TextPart, ThinkingPart, Usage
from miniclaw_sessions.files.formats.claude_code import CLAUDE_CODE
from miniclaw_sessions.files.formats.codec import Outcome
from tests.files.formats.codec_files import check, read
from tests.texts import texts_of

COMMON = {"isSidechain": False, "userType": "external", "cwd": "/home/ada/ship", "sessionId": "s-1", "version": "2.1.0"}


def line(uuid: str, parent: str | None, kind: str, at: int, **fields: Any) -> dict[str, Any]:
    timestamp = f"2026-03-04T05:06:{at:02}.500Z"
    return {"parentUuid": parent, **COMMON, "type": kind, "uuid": uuid, "timestamp": timestamp, **fields}


def user(uuid: str, parent: str | None, content: Any, at: int = 0, **fields: Any) -> dict[str, Any]:
    return line(uuid, parent, "user", at, message={"role": "user", "content": content}, **fields)


def reply(uuid: str, parent: str | None, message_id: str, block: Any, at: int = 0, **fields: Any) -> dict[str, Any]:
    message = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": "claude-test-1",
        "content": [block],
        "stop_reason": None,
        "usage": {"input_tokens": 3, "cache_read_input_tokens": 40, "output_tokens": 1},
        **fields,
    }
    return line(uuid, parent, "assistant", at, message=message, requestId="req-" + message_id)


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def call(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "Read", "input": arguments}


def result(call_id: str, said: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": said, **fields}


PARALLEL = [
    {"type": "file-history-snapshot", "messageId": "u1", "snapshot": {"trackedFileBackups": {}}},
    user("u1", None, "Compare the two logs.", 1),
    reply("a1", "u1", "m1", {"type": "thinking", "thinking": "Both at once.", "signature": "c2ln"}, 2),
    reply("a2", "a1", "m1", call("t1", path="a.log"), 3),
    line("p1", "a2", "progress", 3, data={"type": "hook_progress"}),
    user("r1", "a2", [result("t1", "rain")], 4, toolUseResult={"file": "a.log"}),
    reply("a3", "a2", "m1", call("t2", path="b.log"), 4, stop_reason="tool_use", usage={"output_tokens": 9}),
    user("r2", "a3", [result("t2", "wind", is_error=True)], 5),
    reply("b1", "r2", "m2", text("Rain, then wind."), 6, stop_reason="end_turn"),
    line("d1", "b1", "system", 7, subtype="turn_duration", durationMs=5000),
    {"type": "last-prompt", "leafUuid": "b1", "sessionId": "s-1"},
]

COMPACTED = [
    *PARALLEL,
    line(
        *("c1", None, "system", 10),
        subtype="compact_boundary",
        logicalParentUuid="d1",
        content="Conversation compacted",
        compactMetadata={"trigger": "auto", "preTokens": 9000, "postTokens": 700},
    ),
    user("c2", "c1", "They compared two logs.", 11, isCompactSummary=True, isVisibleInTranscriptOnly=True),
    user("u3", "c2", "And the third?", 12),
    reply("e1", "u3", "m3", text("Snow."), 13),
]

PRESERVED = [
    *PARALLEL,
    user("u2", "d1", "Thanks.", 8),
    reply("a9", "u2", "m9", text("You are welcome."), 9),
    line(
        *("c1", None, "system", 10),
        subtype="compact_boundary",
        logicalParentUuid="a9",
        compactMetadata={
            "trigger": "manual",
            "preservedSegment": {"headUuid": "u2", "anchorUuid": "c2", "tailUuid": "a9"},
        },
    ),
    user("c2", "c1", "They compared two logs.", 11, isCompactSummary=True),
    user("u3", "a9", "And the third?", 12),
    reply("e1", "u3", "m3", text("Snow."), 13),
]


# --- replies and results ---------------------------------------------------------------------------------------------


def test_the_lines_of_one_reply_become_one_message_and_its_usage_counts_once() -> None:
    found = read(CLAUDE_CODE, PARALLEL)
    replies = [message for message in found.messages if message.is_assistant]
    assert len(replies) == 2
    first = replies[0]
    assert first.content == (ThinkingPart("Both at once.", "c2ln"),)
    assert [(c.id, c.name, c.arguments) for c in first.tool_calls or ()] == [
        ("t1", "Read", '{"path":"a.log"}'),
        ("t2", "Read", '{"path":"b.log"}'),
    ]
    assert first.usage == Usage(output_tokens=9)
    assert (first.model, first.stop_reason) == ("claude-test-1", "tool_use")
    assert first.extra == {"claude-code": {"id": "m1", "type": "message"}}


def test_what_each_line_of_a_reply_says_of_itself_is_kept() -> None:
    (entry,) = [e for e in read(CLAUDE_CODE, PARALLEL).entries if e.id == "a1"]
    assert entry.extra is not None
    kept = entry.extra["claude-code"]
    assert kept["requestId"] == "req-m1"
    assert [more["uuid"] for more in kept["lines"]] == ["a2", "a3"]
    assert kept["lines"][0] == {"uuid": "a2", "parentUuid": "a1", "timestamp": "2026-03-04T05:06:03.500Z"}


def test_the_results_of_parallel_calls_stand_on_one_branch() -> None:
    found = read(CLAUDE_CODE, PARALLEL)
    parents = {entry.id: entry.parent_id for entry in found.entries}
    assert (parents["p1"], parents["r1"], parents["r2"], parents["b1"]) == ("a1", "a1", "r1", "r2")
    assert [message.role.value for message in found.context] == [
        *("user", "assistant", "tool_result", "tool_result", "assistant")
    ]
    assert [m.is_error for m in found.messages if m.is_tool_result] == [False, True]
    assert NO_RESULT not in texts_of(found.context)


def test_a_line_that_hangs_on_the_first_of_two_results_follows_both() -> None:
    moved = [dict(fields, parentUuid="r1") if fields.get("uuid") == "b1" else fields for fields in PARALLEL]
    assert texts_of(read(CLAUDE_CODE, moved).context) == texts_of(read(CLAUDE_CODE, PARALLEL).context)


def test_a_second_result_of_the_same_call_is_another_branch() -> None:
    again = [*PARALLEL[:6], user("r9", "a2", [result("t1", "hail")], 5)]
    parents = {entry.id: entry.parent_id for entry in read(CLAUDE_CODE, again).entries}
    assert (parents["r1"], parents["r9"]) == ("a1", "a1")


def test_several_results_and_a_text_in_one_line_become_messages_in_a_row() -> None:
    lines = [
        user("u1", None, "Go."),
        reply("a1", "u1", "m1", call("t1")),
        reply("a2", "a1", "m1", call("t2")),
        user("r1", "a2", [result("t1", "one"), result("t2", "two"), text("[Request interrupted by user]")], x=1),
        user("u2", "r1", "Go on."),
    ]
    found = read(CLAUDE_CODE, lines)
    assert [m.role for m in found.messages][2:] == [Role.TOOL_RESULT, Role.TOOL_RESULT, Role.USER, Role.USER]
    assert texts_of(found.branch.messages()) == ["Go.", "", "one", "two", "[Request interrupted by user]", "Go on."]
    kept = [(entry.extra or {}).get("claude-code", {}).get("x") for entry in found.entries]
    assert kept == [None, None, 1, None, None, None]


def test_results_may_hold_parts_and_lack_an_id() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
    block = {"type": "tool_result", "content": [text("a map"), image, {"type": "tool_reference", "tool_name": "Z"}]}
    found = read(CLAUDE_CODE, [user("u1", None, "?"), reply("a1", "u1", "m1", call("t1")), user("r1", "a1", [block])])
    answer = found.context[-1]
    assert answer.tool_call_id == "t1"
    assert answer.content == (
        TextPart("a map"),
        ImagePart("image/png", "QUJD"),
        OtherPart({"type": "tool_reference", "tool_name": "Z"}),
    )


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"type": "redacted_thinking", "data": "xyz"}, ThinkingPart("", "xyz", redacted=True)),
        (
            {"type": "image", "source": {"type": "url", "url": "https://a.example/b"}},
            ImagePart(url="https://a.example/b"),
        ),
        ({"type": "text", "text": "hi", "citations": [1]}, TextPart("hi", extra={"claude-code": {"citations": [1]}})),
        ({"type": "server_tool_use", "id": "s"}, OtherPart({"type": "server_tool_use", "id": "s"})),
        ({"type": "text", "text": 5}, OtherPart({"type": "claude-code", "block": {"type": "text", "text": 5}})),
        ({"type": "tool_use", "id": 5}, OtherPart({"type": "tool_use", "id": 5})),
        (7, OtherPart({"type": "claude-code", "block": 7})),
    ],
)
def test_content_blocks_of_every_kind(block: Any, part: Any) -> None:
    found = read(CLAUDE_CODE, [reply("a1", None, "m1", block)])
    assert found.messages[0].content == (part,)
    check(found)


# --- the tree --------------------------------------------------------------------------------------------------------


def test_ids_and_parents_are_those_of_the_file_and_a_rewind_is_a_branch() -> None:
    lines = [
        user("u1", None, "One"),
        reply("a1", "u1", "m1", text("first")),
        user("u2", "a1", "Two"),
        user("u3", "a1", "Two, better"),
    ]
    found = read(CLAUDE_CODE, lines)
    assert [(entry.id, entry.parent_id) for entry in found.entries] == [
        *[("u1", None), ("a1", "u1"), ("u2", "a1"), ("u3", "a1")]
    ]
    assert texts_of(found.branch.messages()) == ["One", "first", "Two, better"]
    assert found.findings == []


def test_lines_of_other_types_are_kept_whole_and_carry_the_tree_on() -> None:
    found = read(CLAUDE_CODE, PARALLEL)
    kinds = [(e.id, e.custom_type) for e in found.entries if isinstance(e, Custom)]
    assert kinds == [
        ("new-1", "claude-code.file-history-snapshot"),
        ("p1", "claude-code.progress"),
        ("d1", "claude-code.system"),
        ("new-2", "claude-code.last-prompt"),
    ]
    (kept,) = [e.data for e in found.entries if isinstance(e, Custom) and e.id == "d1"]
    assert kept == PARALLEL[9]
    assert found.facts.leaf_id == "new-2"
    assert texts_of(read(CLAUDE_CODE, [*PARALLEL, user("u2", "d1", "Next")]).context)[-1] == "Next"


def test_a_subagent_is_a_branch_and_never_the_leaf() -> None:
    side = {"isSidechain": True}
    lines = [*PARALLEL[:9], user("x1", None, "Search.", 8, **side), user("x2", "x1", "Go on.", 9, **side)]
    found = read(CLAUDE_CODE, lines)
    assert {"Search.", "Go on."} <= set(found.said)
    assert found.facts.leaf_id == "b1"
    assert "Search." not in texts_of(found.context)
    (entry,) = [e for e in found.entries if e.id == "x1"]
    assert entry.extra == {"claude-code": {"isSidechain": True}}


def test_the_replies_of_two_subagents_may_be_interleaved() -> None:
    lines = [
        user("x1", None, "North?"),
        user("y1", None, "South?"),
        reply("x2", "x1", "mx", text("cold, ")),
        reply("y2", "y1", "my", text("warm, ")),
        reply("x3", "x2", "mx", text("dark")),
        reply("y3", "y2", "my", text("bright")),
    ]
    found = read(CLAUDE_CODE, lines)
    assert found.said == ["North?", "South?", "cold, dark", "warm, bright"]


def test_replies_of_one_id_on_two_branches_stay_two() -> None:
    lines = [
        user("u1", None, "North?"),
        reply("a1", "u1", "m1", text("cold, ")),
        user("u2", None, "South?"),
        reply("b1", "u2", "m1", text("warm, ")),
        reply("a2", "a1", "m1", text("dark")),
        reply("b2", "b1", "m1", text("bright")),
    ]
    found = read(CLAUDE_CODE, lines)
    assert found.said == ["North?", "cold, dark", "South?", "warm, bright"]
    assert texts_of(found.context) == ["South?", "warm, bright"]


def test_replies_without_an_id_stay_apart() -> None:
    lines = [user("u1", None, "Go."), reply("a1", "u1", "", text("one")), reply("a2", "a1", "", text("two"))]
    assert read(CLAUDE_CODE, lines).said == ["Go.", "one", "two"]


@pytest.mark.parametrize("parent", ["u1", "a1", "lost"])
def test_a_block_beside_the_first_of_its_reply_or_behind_a_lost_line_belongs_to_it(parent: str) -> None:
    lines = [user("u1", None, "Both?"), reply("a1", "u1", "m1", text("one, ")), reply("a2", parent, "m1", text("two"))]
    assert read(CLAUDE_CODE, lines).said == ["Both?", "one, two"]


def test_a_parent_that_was_never_written_is_replaced_by_what_stands_before() -> None:
    lines = [user("u1", None, "One"), reply("a1", "lost", "m1", text("first")), user("u2", "u2", "Two")]
    found = read(CLAUDE_CODE, lines)
    assert texts_of(found.context) == ["One", "first", "Two"]
    assert [(f.line, f.outcome) for f in found.findings] == [(2, Outcome.REPAIRED), (3, Outcome.REPAIRED)]
    assert found.entries[1].extra is not None
    assert found.entries[1].extra["claude-code"]["parentUuid"] == "lost"


def test_an_attachment_may_come_before_the_line_it_hangs_on() -> None:
    lines = [
        user("u1", None, "One"),
        line("h1", "a1", "attachment", 2, attachment={"type": "hook_success"}),
        reply("a1", "u1", "m1", text("first")),
        user("u2", "h1", "Two"),
    ]
    assert texts_of(read(CLAUDE_CODE, lines).context) == ["One", "first", "Two"]


def test_a_line_that_is_repeated_is_set_aside() -> None:
    found = read(CLAUDE_CODE, [*PARALLEL, PARALLEL[3], PARALLEL[1]])
    assert [entry.id for entry in found.entries] == [entry.id for entry in read(CLAUDE_CODE, PARALLEL).entries]
    assert [(f.line, f.outcome, f.raw) for f in found.findings] == [
        (12, Outcome.SET_ASIDE, orjson.dumps(PARALLEL[3])),
        (13, Outcome.SET_ASIDE, orjson.dumps(PARALLEL[1])),
    ]


# --- what is said beside the conversation ----------------------------------------------------------------------------


def test_what_the_user_said_meanwhile_is_a_message_and_an_error_of_the_program_is_none() -> None:
    lines = [
        user("u1", None, "One"),
        line("q1", "u1", "attachment", 2, attachment={"type": "queued_command", "prompt": "Hurry."}),
        dict(reply("a1", "q1", "m1", text("API Error: overloaded")), isApiErrorMessage=True),
        user("u2", "a1", "Again", isMeta=True),
    ]
    found = read(CLAUDE_CODE, lines)
    assert texts_of(found.context) == ["One", "Hurry.", "Again"]
    assert found.entries[-1].extra == {"claude-code": {"isMeta": True}}


def test_facts_come_from_the_first_lines_and_the_title_that_weighs_most() -> None:
    titles = [
        {"type": "custom-title", "customTitle": "Ship logs", "sessionId": "s-1"},
        {"type": "ai-title", "aiTitle": "Comparing", "sessionId": "s-1"},
        {"type": "summary", "summary": "Some logs", "leafUuid": "b1"},
    ]
    facts = read(CLAUDE_CODE, [*titles[1:], *PARALLEL]).facts
    assert (facts.format, facts.source_id, facts.title) == ("claude-code", "s-1", "Comparing")
    assert facts.created_at is not None
    assert facts.created_at.isoformat() == "2026-03-04T05:06:01.500000+00:00"
    assert facts.header == COMMON
    assert read(CLAUDE_CODE, [*titles, *PARALLEL]).facts.title == "Ship logs"
    assert read(CLAUDE_CODE, titles[2:]).facts.title == "Some logs"


# --- compaction ------------------------------------------------------------------------------------------------------


def test_a_boundary_and_its_summary_become_one_compaction() -> None:
    found = read(CLAUDE_CODE, COMPACTED)
    (compaction,) = [entry for entry in found.entries if isinstance(entry, Compaction)]
    assert (compaction.id, compaction.parent_id, compaction.first_kept_entry_id) == ("c1", "d1", None)
    assert (compaction.tokens_before, compaction.tokens_after, compaction.reason) == (9000, 700, "threshold")
    assert compaction.summary == "They compared two logs."
    assert texts_of(found.branch.messages()) == ["They compared two logs.", "And the third?", "Snow."]
    assert len(found.messages) == 7


def test_a_preserved_segment_follows_the_summary_and_what_hangs_on_its_end_follows_both() -> None:
    found = read(CLAUDE_CODE, PRESERVED)
    assert found.branch.problems == ()
    assert texts_of(found.branch.messages()) == [
        *("They compared two logs.", "Thanks.", "You are welcome.", "And the third?", "Snow.")
    ]


def test_a_summary_without_a_boundary_is_a_compaction_of_its_own() -> None:
    found = read(CLAUDE_CODE, [user("c1", None, "Before: logs.", isCompactSummary=True), user("u1", "c1", "Next")])
    assert isinstance(found.entries[0], Compaction)
    assert texts_of(found.branch.messages()) == ["Before: logs.", "Next"]


def test_a_boundary_whose_summary_is_missing_still_parts() -> None:
    found = read(CLAUDE_CODE, [*COMPACTED[:12], user("u3", "c1", "And the third?")])
    assert texts_of(found.branch.messages()) == ["And the third?"]


# --- every file ------------------------------------------------------------------------------------------------------


def test_a_reply_that_never_ends_is_not_held_for_ever() -> None:
    lines = [user("u0", None, "Go."), reply("a0", "u0", "m1", call("t1"))]
    lines += [line(f"p{n}", "a0", "progress", 3, data={}) for n in range(2000)]
    assert CLAUDE_CODE.reader is not None
    found = read(CLAUDE_CODE, [*lines, reply("a1", "a0", "m1", text("late"))])
    assert len(found.entries) == 2003
    check(found)


@pytest.mark.parametrize(
    "fields",
    [
        {"uuid": 5},
        {"parentUuid": ["u1"]},
        {"timestamp": 1},
        {"sessionId": None},
        {"message": {"role": "user", "content": {"type": "text", "text": "x"}}},
        {"message": "error"},
        {"type": None},
        {"isCompactSummary": True, "message": {"content": 5}},
    ],
)
def test_fields_of_a_wrong_type_lose_nothing(fields: dict[str, Any]) -> None:
    found = read(
        CLAUDE_CODE, [user("u1", None, "One"), {**user("u2", "u1", "Two"), **fields}, user("u3", "u1", "Three")]
    )
    assert len(found.entries) == 3
    check(found)
