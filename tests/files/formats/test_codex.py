"""Codex's rollouts: items of replies, the events beside them, rollbacks and compactions, in two generations."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from miniclaw_sessions.core.history.context import NO_RESULT
from miniclaw_sessions.core.protocol.entries import Compaction, Custom, ModelChange, ThinkingLevelChange
from miniclaw_sessions.core.protocol.messages import ImagePart, OtherPart, Role, TextPart, ThinkingPart
from miniclaw_sessions.files.formats.codex import CODEX
from tests.files.formats.codec_files import Read, check, read
from tests.texts import texts_of

_seconds = count()


def line(kind: str, /, **payload: Any) -> dict[str, Any]:
    minutes, seconds = divmod(next(_seconds), 60)
    return {"timestamp": f"2026-03-04T05:{minutes:02}:{seconds:02}.250Z", "type": kind, "payload": payload}


def item(kind: str, /, **fields: Any) -> dict[str, Any]:
    return line("response_item", **{"type": kind, **fields})


def event(kind: str, /, **fields: Any) -> dict[str, Any]:
    return line("event_msg", **{"type": kind, **fields})


def said(role: str, text: str, **fields: Any) -> dict[str, Any]:
    part = {"type": "output_text" if role == "assistant" else "input_text", "text": text}
    return item("message", role=role, content=[part], **fields)


def call(call_id: str, arguments: Any = '{"cmd":  "ls"}') -> dict[str, Any]:
    return item("function_call", name="exec_command", arguments=arguments, call_id=call_id)


def output(call_id: str, text: Any) -> dict[str, Any]:
    return item("function_call_output", call_id=call_id, output=text)


def tokens(so_far: int = 999, /, **last: int) -> dict[str, Any]:
    info = {"last_token_usage": last, "total_token_usage": {"total_tokens": so_far}, "model_context_window": 1000}
    return event("token_count", info=info, rate_limits=None)


HEADER = line(
    "session_meta",
    id="0196-r",
    timestamp="2026-03-04T05:00:00Z",
    cwd="/home/ada/ship",
    originator="codex_cli_rs",
    cli_version="0.77.0",
    model_provider="openai",
    forked_from_id="0195-q",
)
CONTEXT = {"cwd": "/home/ada/ship", "model": "gpt-test-5", "effort": "high"}

TURNS = [
    HEADER,
    said("developer", "Be careful."),
    said("user", "<environment_context>\n  <cwd>/home/ada/ship</cwd>\n</environment_context>"),
    said("user", "Compare the two logs."),
    event("user_message", message="Compare the two logs.", images=[], kind="plain"),
    line("turn_context", **CONTEXT),
    event("agent_reasoning", text="**Both at once**"),
    item(
        "reasoning",
        summary=[{"type": "summary_text", "text": "**Both at once**"}],
        content=None,
        encrypted_content="c2V",
    ),
    event("agent_message", message="Reading both."),
    said("assistant", "Reading both.", phase="commentary"),
    call("c1"),
    call("c2", '{"cmd":"cat b.log"}'),
    tokens(input_tokens=1200, cached_input_tokens=1000, output_tokens=40, total_tokens=1240),
    output("c1", "rain"),
    output("c2", [{"type": "input_text", "text": "wind"}]),
    line("turn_context", **CONTEXT),
    said("assistant", "Rain, then wind."),
    event("agent_message", message="Rain, then wind."),
    tokens(2000, input_tokens=1300, cached_input_tokens=1200, output_tokens=9),
    event("task_complete", last_agent_message="Rain, then wind."),
]

COMPACTED = [
    *TURNS,
    line(
        "compacted",
        message="Two logs were compared.",
        replacement_history=[
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Compare the two logs."}]},
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "So far: Two logs were compared."}],
            },
            {"type": "compaction", "encrypted_content": "eHl6"},
        ],
    ),
    event("context_compacted"),
    said("user", "And the third?"),
    said("assistant", "Snow."),
]

OLD = [
    {"id": "0190-o", "timestamp": "2025-06-01T10:00:00.5Z", "instructions": None, "git": {"branch": "main"}},
    {"record_type": "state"},
    {"type": "message", "id": None, "role": "user", "content": [{"type": "input_text", "text": "List the files."}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "b3A"},
    {"type": "function_call", "id": "fc_1", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "call_1"},
    {"record_type": "state"},
    {"type": "function_call_output", "call_id": "call_1", "output": '{"output":"a.log","metadata":{"exit_code":0}}'},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "One file."}]},
]


def customs(found: Read) -> list[str]:
    return [entry.custom_type for entry in found.entries if isinstance(entry, Custom)]


# --- messages --------------------------------------------------------------------------------------------------------


def test_the_items_of_one_reply_become_one_message_with_its_usage() -> None:
    found = read(CODEX, TURNS)
    reply = next(message for message in found.messages if message.is_assistant)
    assert reply.content == (ThinkingPart("**Both at once**", "c2V"), TextPart("Reading both."))
    assert [(c.id, c.name, c.arguments) for c in reply.tool_calls or ()] == [
        ("c1", "exec_command", '{"cmd":  "ls"}'),
        ("c2", "exec_command", '{"cmd":"cat b.log"}'),
    ]
    assert reply.model == "gpt-test-5"
    assert reply.extra == {"codex": {"phase": "commentary"}}
    assert reply.usage is not None
    usage = reply.usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens, usage.total) == (200, 1000, 40, 1240)
    assert usage.extra is not None
    assert usage.extra["codex"]["info"]["total_token_usage"] == {"total_tokens": 999}


def test_nothing_is_said_twice() -> None:
    found = read(CODEX, TURNS)
    assert found.said == [
        "Be careful.",
        "<environment_context>\n  <cwd>/home/ada/ship</cwd>\n</environment_context>",
        *("Compare the two logs.", "Reading both.", "rain", "wind", "Rain, then wind."),
    ]
    assert customs(found) == ["codex.turn_context", "codex.task_complete"]
    assert [m.role for m in found.messages][:2] == [Role.SYSTEM, Role.USER]


def test_the_entries_are_a_chain_in_the_order_of_the_file() -> None:
    entries = read(CODEX, TURNS).entries
    assert [entry.parent_id for entry in entries] == [None, *(entry.id for entry in entries[:-1])]
    assert [entry.timestamp for entry in entries] == sorted(entry.timestamp for entry in entries)


def test_an_event_that_no_item_repeats_is_kept() -> None:
    found = read(CODEX, [HEADER, event("user_message", message="Alone"), said("user", "Other")])
    assert found.said == ["Other"]
    assert [e.data for e in found.entries if isinstance(e, Custom)] == [{"type": "user_message", "message": "Alone"}]


def test_what_only_the_event_says_is_kept_without_its_text() -> None:
    shown = event("user_message", message="Look", images=[], local_images=["/a.png"])
    for lines in ([said("user", "Look"), shown], [shown, said("user", "Look")]):
        found = read(CODEX, [HEADER, *lines])
        assert [e.data for e in found.entries if isinstance(e, Custom)] == [{"local_images": ["/a.png"]}]


def test_many_events_without_items_are_not_held_for_ever() -> None:
    lines = [HEADER, *(event("agent_message", message=str(number)) for number in range(500))]
    reader_findings = read(CODEX, lines)
    assert len(customs(reader_findings)) == 500


def test_calls_in_a_row_stand_on_one_message_whatever_stands_between() -> None:
    lines = [
        *(said("user", "Go."), call("c1"), event("exec_command_begin"), item("reasoning", summary=[]), call("c2")),
        *(output("c2", "two"), output("c1", "one")),
    ]
    found = read(CODEX, lines)
    assert [message.role.value for message in found.messages] == ["user", "assistant", "tool_result", "tool_result"]
    assert texts_of(found.context) == ["Go.", "", "one", "two"]


def test_two_texts_in_a_row_are_two_messages() -> None:
    found = read(CODEX, [said("user", "Go."), said("assistant", "One."), said("assistant", "Two."), call("c1")])
    assert found.said == ["Go.", "One.", "Two."]
    assert [bool(message.tool_calls) for message in found.messages] == [False, False, True]


def test_calls_of_every_kind() -> None:
    action = {"type": "exec", "command": ["ls"]}
    lines = [
        said("user", "Go."),
        item("custom_tool_call", call_id="c1", name="apply_patch", input="*** Begin", status="completed"),
        item("local_shell_call", call_id="c2", status="completed", action=action),
        item("web_search_call", status="completed", action={"type": "search", "query": "x"}),
        call("c3", {"a": 1}),
        item("custom_tool_call_output", call_id="c1", output="Done"),
        output("c2", {"content": "refused", "success": False}),
        output("c3", [{"type": "input_image", "image_url": "data:image/png;base64,QUJD"}]),
    ]
    found = read(CODEX, lines)
    _, reply, *results = found.messages
    assert [(c.name, c.arguments) for c in reply.tool_calls or ()] == [
        ("apply_patch", '{"input":"*** Begin"}'),
        ("local_shell", '{"type":"exec","command":["ls"]}'),
        ("exec_command", '{"a":1}'),
    ]
    assert reply.content == (OtherPart(lines[3]["payload"]),)
    assert [(r.tool_call_id, r.is_error) for r in results] == [("c1", False), ("c2", True), ("c3", False)]
    assert results[2].content == (ImagePart("image/png", "QUJD"),)
    assert NO_RESULT not in texts_of(found.context)
    check(found)


@pytest.mark.parametrize(
    ("part", "read_part"),
    [
        ({"type": "input_image", "image_url": "https://a.example/b"}, ImagePart(url="https://a.example/b")),
        ({"type": "refusal", "refusal": "No."}, TextPart("No.", extra={"codex": {"type": "refusal"}})),
        (
            {"type": "output_text", "text": "x", "annotations": [1]},
            TextPart("x", extra={"codex": {"annotations": [1]}}),
        ),
        ({"type": "input_file", "file_id": "f"}, OtherPart({"type": "input_file", "file_id": "f"})),
        ({"type": "text", "text": 5}, OtherPart({"type": "codex", "part": {"type": "text", "text": 5}})),
        (7, OtherPart({"type": "codex", "part": 7})),
    ],
)
def test_content_parts_of_every_kind(part: Any, read_part: Any) -> None:
    found = read(CODEX, [HEADER, item("message", role="user", content=[part])])
    assert found.messages[0].content == (read_part,)
    check(found)


def usage_of_replies(lines: list[Any]) -> list[int | None]:
    found = read(CODEX, lines)
    usages = [message.usage for message in found.messages if message.is_assistant]
    return [None if usage is None else usage.output_tokens for usage in usages]


def test_a_count_may_come_before_the_reply_and_be_repeated() -> None:
    before = [
        said("user", "Go."),
        *(tokens(1, output_tokens=1), call("c1"), output("c1", "one"), tokens(1, output_tokens=1)),
        *(tokens(2, output_tokens=2), said("assistant", "Done."), tokens(2, output_tokens=2)),
    ]
    assert usage_of_replies(before) == [1, 2]
    assert customs(read(CODEX, before)) == ["codex.token_count"] * 2


def test_a_count_that_comes_too_late_is_not_given_to_another_reply() -> None:
    late = [
        *(said("user", "Go."), call("c1"), output("c1", "one"), tokens(1, output_tokens=1)),
        *(said("assistant", "Done."), tokens(2, output_tokens=2)),
    ]
    assert usage_of_replies(late) == [None, 2]


def test_a_count_without_a_reply_is_kept() -> None:
    lines = [said("user", "Go."), tokens(1, output_tokens=1), said("user", "Go on."), tokens(2, output_tokens=2)]
    found = read(CODEX, [*lines, event("token_count", info=None)])
    assert customs(found) == ["codex.token_count"] * 3


# --- what else the lines say -----------------------------------------------------------------------------------------


def test_the_header_is_kept_and_a_second_one_is_an_entry() -> None:
    found = read(CODEX, [*TURNS, HEADER])
    facts = found.facts
    assert (facts.format, facts.source_id, facts.parent_session) == ("codex", "0196-r", "0195-q")
    assert facts.header == HEADER["payload"]
    assert facts.created_at is not None
    assert facts.created_at.isoformat() == "2026-03-04T05:00:00+00:00"
    assert customs(found)[-1] == "codex.session_meta"


def test_a_change_of_model_or_effort_is_an_entry_once() -> None:
    lines = [*TURNS, line("turn_context", **{**CONTEXT, "model": "gpt-test-6"}), said("assistant", "Hi")]
    found = read(CODEX, lines)
    assert [(e.provider, e.model_id) for e in found.entries if isinstance(e, ModelChange)] == [
        ("openai", "gpt-test-5"),
        ("openai", "gpt-test-6"),
    ]
    assert [e.thinking_level for e in found.entries if isinstance(e, ThinkingLevelChange)] == ["high"]
    assert [m.model for m in found.messages if m.is_assistant] == ["gpt-test-5", "gpt-test-5", "gpt-test-6"]


def test_the_name_of_a_thread_is_its_title() -> None:
    found = read(CODEX, [HEADER, event("thread_name_updated", thread_name="Ship logs")])
    assert found.facts.title == "Ship logs"


def test_a_rollback_makes_a_branch() -> None:
    lines = [
        *TURNS,
        *(said("user", "Delete them."), said("assistant", "Deleted."), event("thread_rolled_back", num_turns=1)),
        *(said("user", "Keep them."), said("assistant", "Kept.")),
    ]
    found = read(CODEX, lines)
    assert "Deleted." in found.said
    assert texts_of(found.context)[-3:] == ["Rain, then wind.", "Keep them.", "Kept."]


@pytest.mark.parametrize("turns", [0, -1, 99, None, "x"])
def test_a_rollback_of_any_number_of_turns_is_survived(turns: Any) -> None:
    found = read(CODEX, [*TURNS, event("thread_rolled_back", num_turns=turns), said("user", "Next")])
    assert texts_of(found.context)[-1] == "Next"
    assert ("Compare the two logs." in texts_of(found.context)) == (turns != 99)


def test_a_rollback_after_another_counts_from_what_is_left() -> None:
    turns = [said("user", "One"), said("assistant", "1"), said("user", "Two"), said("user", "Three")]
    rollback = event("thread_rolled_back", num_turns=1)
    found = read(CODEX, [HEADER, *turns, rollback, rollback, said("user", "Two, better")])
    assert texts_of(found.context) == ["One", "1", "Two, better"]


def test_a_compaction_goes_on_with_the_history_that_it_brings() -> None:
    found = read(CODEX, COMPACTED)
    (compaction,) = [entry for entry in found.entries if isinstance(entry, Compaction)]
    assert compaction.summary == ""
    assert compaction.extra == {
        "codex": {
            "message": "Two logs were compared.",
            "replacement_history": [{"type": "compaction", "encrypted_content": "eHl6"}],
        }
    }
    assert texts_of(found.branch.messages()) == [
        *("Compare the two logs.", "So far: Two logs were compared.", "And the third?", "Snow.")
    ]
    assert "Rain, then wind." in found.said


def test_an_old_compaction_has_its_summary_only() -> None:
    found = read(CODEX, [*TURNS, line("compacted", message="Two logs."), said("user", "And the third?")])
    assert texts_of(found.branch.messages()) == ["Two logs.", "And the third?"]


def test_the_oldest_generation_is_read_too() -> None:
    found = read(CODEX, OLD)
    assert texts_of(found.context) == [
        "List the files.",
        "",
        '{"output":"a.log","metadata":{"exit_code":0}}',
        "One file.",
    ]
    assert found.facts.source_id == "0190-o"
    assert {entry.timestamp.isoformat() for entry in found.entries} == {"2025-06-01T10:00:00.500000+00:00"}
    assert found.facts.header == OLD[0]


def test_unknown_lines_and_items_are_kept_whole() -> None:
    lines = [
        HEADER,
        item("ghost_snapshot", ghost_commit={"id": "x"}),
        {"type": "future", "payload": {"a": 1}},
        {"b": 2},
    ]
    found = read(CODEX, lines)
    assert customs(found) == ["codex.ghost_snapshot", "codex.future", "codex.unknown"]
    assert [e.data for e in found.entries if isinstance(e, Custom)] == [lines[1]["payload"], *lines[2:]]


# --- every file ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"role": 5},
        {"role": "critic"},
        {"role": "tool"},
        {"role": "other"},
        {"role": ""},
        {"content": 5},
        {"content": {"type": "input_text"}},
        {"content": None},
        {"type": 5},
        {"type": "function_call", "call_id": 5},
        {"type": "function_call_output", "call_id": None, "output": None},
        {"type": "reasoning", "summary": 5, "encrypted_content": 5},
        {"type": "local_shell_call", "action": []},
    ],
)
def test_fields_of_a_wrong_type_lose_no_neighbor(fields: dict[str, Any]) -> None:
    odd = item("message", role="user", content=[{"type": "input_text", "text": "odd"}])
    odd["payload"] |= fields
    found = read(CODEX, [HEADER, said("user", "One"), odd, said("user", "Two")])
    assert (found.said[0], found.said[-1]) == ("One", "Two")
    assert len(found.entries) == 3
    check(found)
