"""pi's session files: real ones of versions 1 and 3, every type of entry, every upgrade, and the leaf."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import orjson
import pytest

from miniclaw_sessions.core.history.branch import resolve
from miniclaw_sessions.core.history.context import NO_RESULT, build_context
from miniclaw_sessions.core.history.transcript import Transcript
from miniclaw_sessions.core.protocol.entries import (
    METADATA,
    BranchSummary,
    Compaction,
    Custom,
    Entry,
    Label,
    LeafMove,
    MessageEntry,
    ModelChange,
    SessionInfo,
    ThinkingLevelChange,
)
from miniclaw_sessions.core.protocol.messages import (
    ImagePart,
    Message,
    Role,
    TextPart,
    ThinkingPart,
)
from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.formats.codec import Sample, SessionFacts
from miniclaw_sessions.files.formats.pi import PI
from tests.files.formats.codec_files import Read, check, prefixes, read
from tests.files.formats.pi_files import (
    AT,
    EVENTS,
    HEADER,
    LARGE,
    MOMENT,
    OLD_HEADER,
    RESUMED,
    SAID,
    SESSION,
    TREE,
    call,
    line,
    old,
    old_compaction,
    old_user,
    reply,
    said,
    text,
    texts_of,
    write,
    written,
)
from tests.legality import is_legal

# --- real files ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large() -> Read:
    return read(PI, LARGE)


def test_the_large_file_of_version_1_is_taken_whole(large: Read) -> None:
    messages = large.messages
    assert (len(large.entries), len(messages), large.findings) == (1018, 914, [])
    roles = [message.role for message in messages]
    assert [roles.count(role) for role in (Role.USER, Role.ASSISTANT, Role.TOOL_RESULT)] == [88, 453, 373]
    assert sum(isinstance(entry, ThinkingLevelChange) for entry in large.entries) == 103
    assert sum(not message.content and not message.tool_calls for message in messages if message.is_assistant) == 14
    assert large.facts.created_at is not None
    logged = [large.facts.created_at, *(entry.timestamp for entry in large.entries)]
    assert sum(b < a for a, b in pairwise(logged)) == 1  # the header is younger than the first entry
    moments = [message.timestamp for message in messages if message.timestamp is not None]
    assert (len(moments), sum(b < a for a, b in pairwise(moments))) == (914, 2)
    check(large)


def test_the_large_files_calls_are_those_of_pi(large: Read) -> None:
    calls = [call for message in large.messages for call in message.tool_calls or ()]
    answered = {message.tool_call_id for message in large.messages if message.is_tool_result}
    assert (len(calls), sum(call.id not in answered for call in calls)) == (391, 18)
    assert sum("partialJson" in (call.extra or {}) for call in calls) == 3
    assert max(len(message.tool_calls or ()) for message in large.messages) == 16


def test_the_large_files_costs_add_up(large: Read) -> None:
    usages = [message.usage for message in large.messages if message.usage is not None]
    assert len(usages) == 453
    assert sum(usage.input_tokens for usage in usages) == 1049
    assert sum(usage.output_tokens for usage in usages) == 83156
    assert sum(usage.cache_read_tokens for usage in usages) == 43229469
    assert sum(usage.cache_write_tokens for usage in usages) == 4296232
    assert round(sum(usage.cost or 0 for usage in usages), 6) == 30.330198
    assert all(usage.total_tokens is None for usage in usages)


def test_the_large_file_ends_in_a_state(large: Read) -> None:
    branch = large.branch
    state = (branch.provider, branch.model, branch.thinking_level)
    assert state == ("anthropic", "claude-sonnet-4-5", "off")
    assert large.facts.source_id == "d703a1a9-1b7b-4fb1-b512-c9738b1fe617"
    assert large.facts.created_at == datetime(2025, 11, 20, 23, 33, 50, 805000, tzinfo=UTC)
    assert large.facts.header["provider"] == "anthropic"
    assert large.facts.leaf_id == large.entries[-1].id


def test_every_beginning_of_the_large_file_makes_a_legal_context(large: Read) -> None:
    for end in [*range(1, 915, 7), 913, 914]:
        assert is_legal(build_context(large.messages[:end])) == []


def test_version_1_is_upgraded_without_losing_a_value(large: Read) -> None:
    upgraded = [orjson.loads(line) for line in written(large)]
    assert upgraded[0]["version"] == 3
    parents = [None, *(fields["id"] for fields in upgraded[1:])]
    assert [fields["parentId"] for fields in upgraded[1:]] == parents[:-1]
    for fields in upgraded:
        for name in ("id", "parentId") if fields["type"] != "session" else ("version",):
            del fields[name]
    assert upgraded == [orjson.loads(line) for line in LARGE]


def test_the_upgraded_file_is_read_as_the_same_and_written_as_the_same(large: Read) -> None:
    upgraded = written(large)
    again = read(PI, upgraded)
    assert again.entries == large.entries
    assert (again.facts, again.findings) == (large.facts, [])
    assert written(again) == upgraded


def test_the_resumed_file_of_version_3_comes_back_byte_for_byte() -> None:
    result = read(PI, RESUMED)
    assert written(result) == RESUMED
    assert (len(result.entries), result.findings) == (6, [])
    branch = result.branch
    assert (branch.provider, branch.model, branch.thinking_level) == ("openai-codex", "gpt-5.5", "medium")
    assert result.said[-1] == "42"
    assert result.facts.header == {"cwd": "/home/mattpocock/repos/ai/sandcastle"}
    check(result)


# --- every type of entry and message, as pi writes them --------------------------------------------------------------


def test_every_beginning_of_a_tree_comes_back() -> None:
    lines = [orjson.dumps(fields) for fields in SESSION]
    for beginning in prefixes(lines):
        if beginning:
            result = read(PI, beginning)
            check(result)
            assert written(result) == beginning


def test_every_type_of_entry_means_what_it_means_in_pi() -> None:
    entries = {entry.id: entry for entry in read(PI, SESSION).entries}
    kinds = [ModelChange, ThinkingLevelChange, SessionInfo, Label, BranchSummary, Compaction, Custom, MessageEntry]
    assert all(any(isinstance(entry, kind) for entry in entries.values()) for kind in kinds)
    assert {entry.id: entry.parent_id for entry in entries.values()} == {e["id"]: e["parentId"] for e in TREE}
    assert entries["l2"] == Label(id="l2", parent_id="l1", timestamp=MOMENT, target_id="u1")
    summary = entries["b2"]
    assert isinstance(summary, BranchSummary)
    assert summary.from_id == "root"
    compaction = entries["k1"]
    assert isinstance(compaction, Compaction)
    assert (compaction.first_kept_entry_id, compaction.tokens_before) == ("s2", 50000)
    assert entries["z1"] == Custom(
        id="z1",
        parent_id="k2",
        timestamp=MOMENT,
        custom_type="pi:line",
        data={"line": orjson.dumps(TREE[-3]).decode()},
    )
    custom = entries["x1"]
    assert isinstance(custom, Custom)
    assert (custom.custom_type, custom.data) == ("my-state", {"n": 1})


def test_messages_mean_what_they_mean_in_pi() -> None:
    messages = {e.id: e.message for e in read(PI, SESSION).entries if isinstance(e, MessageEntry)}
    first = messages["a1"]
    assert isinstance(first.content, tuple)
    assert first.content[0] == ThinkingPart("hm", "c2ln")
    assert first.content[1] == ThinkingPart("", "b3BhcXVl", redacted=True)
    assert first.tool_calls is not None
    assert [(c.id, c.name, c.arguments) for c in first.tool_calls] == [
        ("c1", "read", '{"path":"a"}'),
        ("c2", "list", "{}"),
    ]
    assert (first.model, first.stop_reason) == ("model-1", "toolUse")
    assert first.usage is not None
    assert (first.usage.input_tokens, first.usage.total_tokens, first.usage.cost) == (1, 3, 1.5)
    assert messages["u1"].timestamp == datetime.fromtimestamp(SAID / 1000, UTC)
    result = messages["r2"]
    assert (result.tool_call_id, result.name, result.is_error) == ("c2", "read", False)
    assert result.content == (TextPart("see"), ImagePart("image/png", "QUJD"))
    assert (messages["y1"].role, messages["y1"].text) == (Role.CUSTOM, "injected")
    assert (messages["s2"].role, messages["s2"].content) == (Role.CUSTOM, "note")
    assert (messages["s3"].role, messages["s3"].content) == (Role.BRANCH_SUMMARY, "b")
    assert (messages["s4"].role, messages["s4"].content) == (Role.COMPACTION_SUMMARY, "c")
    assert messages["s5"] == Message(Role.SYSTEM, "be kind", timestamp=messages["u1"].timestamp)


def test_the_context_of_a_branch_with_an_interrupted_call_is_legal() -> None:
    result = read(PI, [HEADER, said("u", None, "go"), reply("a", "u", call("c")), said("v", "a", "well?")])
    assert [message.text for message in result.context] == ["go", "", NO_RESULT, "well?"]
    assert resolve(Transcript(result.entries).path()).model == "model-1"


def test_a_half_streamed_call_never_reaches_a_model() -> None:
    context = read(PI, [HEADER, said("u", None, "go"), reply("a", "u", text("ok"), call("1", partialJson="{"))]).context
    assert [message.tool_calls for message in context] == [None, None]


def test_a_shell_command_is_told_unless_it_was_run_in_private() -> None:
    def context(**fields: Any) -> list[str]:
        message = {"role": "bashExecution", "command": "ls", "output": "a b", "timestamp": SAID, **fields}
        return texts_of(read(PI, [HEADER, said("u", None, "go"), line("s", "u", "message", message=message)]))

    assert context() == ["go", "Ran `ls`:\n\na b"]
    assert context(excludeFromContext=True) == ["go"]


def test_only_the_newest_compaction_of_the_branch_counts() -> None:
    lines = [
        HEADER,
        *(said("u1", None, "one"), said("u2", "u1", "two")),
        line("k1", "u2", "compaction", summary="first", firstKeptEntryId="u2", tokensBefore=1),
        said("u3", "k1", "three"),
        line("k2", "u3", "compaction", summary="second", firstKeptEntryId="u3", tokensBefore=2),
        said("u4", "k2", "four"),
    ]
    assert texts_of(read(PI, lines)) == ["Summary of the conversation before this point:\n\nsecond", "three", "four"]
    # a branch that went off before the compactions knows nothing of them
    assert texts_of(read(PI, [*lines, said("u5", "u1", "five")])) == ["one", "five"]


def test_a_retained_tail_stands_for_what_was_before() -> None:
    tail = [{"role": "user", "content": "kept", "timestamp": SAID}]
    compaction = line("k", "u", "compaction", summary="sum", tokensBefore=1, retainedTail=tail)
    result = read(PI, [HEADER, said("u", None, "gone"), compaction, said("v", "k", "next")])
    assert texts_of(result) == ["Summary of the conversation before this point:\n\nsum", "kept", "next"]


# --- upgrades --------------------------------------------------------------------------------------------------------


def test_version_1_counts_the_header_as_line_0() -> None:
    result = read(PI, [OLD_HEADER, old_user("one"), old_user("two"), old_compaction(2), old_user("three")])
    assert result.findings == []
    assert texts_of(result) == ["Summary of the conversation before this point:\n\nsum", "two", "three"]
    upgraded = [orjson.loads(line) for line in written(result)]
    assert upgraded[3]["firstKeptEntryId"] == upgraded[2]["id"]
    assert "firstKeptEntryIndex" not in upgraded[3]


def test_version_1_counts_only_lines_that_are_json() -> None:
    lines = [*map(orjson.dumps, (OLD_HEADER, old_user("one"))), b'{"type":"mess', b""]
    lines += map(orjson.dumps, (old_user("two"), OLD_HEADER, old_user("three"), old_compaction(4)))
    entries = {entry.id: entry for entry in read(PI, lines).entries}
    (compaction,) = [entry for entry in entries.values() if isinstance(entry, Compaction)]
    kept = entries[compaction.first_kept_entry_id or ""]
    assert isinstance(kept, MessageEntry)
    assert kept.message.text == "three"  # header, one, two, the second header, three


@pytest.mark.parametrize("index", [0, 3, 99, -1])
def test_an_index_that_is_none_is_reported_and_keeps_nothing(index: int) -> None:
    result = read(PI, [OLD_HEADER, old_user("one"), old_user("two"), old_compaction(index)])
    (finding,) = result.findings
    assert (finding.line, finding.raw) == (4, str(index).encode())
    assert texts_of(result) == ["Summary of the conversation before this point:\n\nsum"]


def test_the_state_that_only_an_old_header_says_is_said_at_the_end() -> None:
    result = read(PI, [OLD_HEADER, old_user("one")])
    *_, model, level = result.entries
    assert isinstance(model, ModelChange)
    assert isinstance(level, ThinkingLevelChange)
    assert (model.provider, model.model_id, level.thinking_level) == ("openai", "gpt", "low")
    assert (model.parent_id, level.parent_id, result.facts.leaf_id) == (result.entries[0].id, model.id, level.id)
    assert result.facts.parent_session == "/old.jsonl"
    assert read(PI, written(result)).entries == result.entries


def test_an_assistants_message_says_the_model_later_than_an_old_header() -> None:
    message = reply("-", None, text("hi"))["message"]
    result = read(PI, [OLD_HEADER, old_user("one"), old("message", message=message)])
    (model,) = [entry for entry in result.entries if isinstance(entry, ModelChange)]
    assert (model.provider, model.model_id) == ("test", "model-1")


def test_an_entry_of_an_old_file_that_says_the_state_is_enough() -> None:
    model, level = old("model_change", provider="p", modelId="m"), old("thinking_level_change", thinkingLevel="off")
    assert len(read(PI, [OLD_HEADER, model, level]).entries) == 2


def test_version_2s_hook_messages_are_custom_ones() -> None:
    hook = {"role": "hookMessage", "customType": "h", "content": "hooked", "display": True, "timestamp": SAID}
    result = read(PI, [{**HEADER, "version": 2}, said("u", None, "hi"), line("h", "u", "message", message=hook)])
    assert result.messages[1].role is Role.CUSTOM
    assert result.findings == []
    assert [orjson.loads(line) for line in written(result)][2]["message"] == {**hook, "role": "custom"}
    assert orjson.loads(written(result)[0])["version"] == 3


def test_a_newer_version_is_read_with_a_finding() -> None:
    result = read(PI, [{**HEADER, "version": 4}, said("u", None, "hi")])
    assert [finding.text for finding in result.findings] == ["the file is of version 4; it is read as version 3"]
    assert result.said == ["hi"]


# --- the leaf --------------------------------------------------------------------------------------------------------


def entry_at(number: int, parent: str | None, content: str = "x") -> MessageEntry:
    moment = MOMENT + timedelta(seconds=number)
    return MessageEntry(
        id=f"e{number}", parent_id=parent, timestamp=moment, message=Message(Role.USER, content, moment)
    )


def pis_leaf(lines: list[bytes]) -> dict[str, Any]:
    """The entry that pi goes on from when it opens a file: the last one."""
    last: dict[str, Any] = orjson.loads(lines[-1])
    return last


@pytest.mark.parametrize("target", ["e1", None])
def test_a_move_of_the_leaf_survives_and_pi_follows_it(target: str | None) -> None:
    move = LeafMove(id="move", parent_id="e2", timestamp=MOMENT, target_id=target)
    entries: list[Entry] = [entry_at(1, None), entry_at(2, "e1"), move]
    lines = write(entries, SessionFacts(created_at=MOMENT))
    assert pis_leaf(lines)["type"] == "custom"
    assert pis_leaf(lines)["parentId"] == target
    result = read(PI, lines)
    assert result.entries == entries
    assert result.facts.leaf_id == target


@pytest.mark.parametrize("target", ["e1", None])
def test_what_pi_adds_after_a_move_follows_what_it_moved_to(target: str | None) -> None:
    move = LeafMove(id="move", parent_id="e2", timestamp=MOMENT, target_id=target)
    lines = write([entry_at(1, None, "one"), entry_at(2, "e1", "two"), move], SessionFacts(created_at=MOMENT))
    result = read(PI, [*lines, orjson.dumps(said("new", "move", "three"))])
    assert result.entries[-1].parent_id == target
    assert texts_of(result) == (["one", "three"] if target else ["three"])
    assert result.findings == []


def test_a_move_whose_target_is_missing_moves_nothing() -> None:
    move = LeafMove(id="move", parent_id="e2", timestamp=MOMENT, target_id="e1")
    lines = write([entry_at(1, None), entry_at(2, "e1"), move], SessionFacts(created_at=MOMENT))
    result = read(PI, [lines[0], lines[2], lines[3]])
    assert not any(isinstance(entry, LeafMove) for entry in result.entries)
    assert len(result.findings) == 2
    check(result)


def test_a_leaf_and_a_title_that_no_entry_says_are_said_at_the_end() -> None:
    entries: list[Entry] = [entry_at(1, None), entry_at(2, "e1")]
    moved = write(entries, SessionFacts(created_at=MOMENT, leaf_id="e1"))
    assert pis_leaf(moved)["parentId"] == "e1"
    assert read(PI, moved).facts.leaf_id == "e1"
    titled = write(entries, SessionFacts(created_at=MOMENT, leaf_id="e1", title="Ships"))
    assert {name: pis_leaf(titled)[name] for name in ("type", "name", "parentId")} == {
        "type": "session_info",
        "name": "Ships",
        "parentId": "e1",
    }
    assert len(write(entries, SessionFacts(created_at=MOMENT, leaf_id="e2"))) == 3


def test_metadata_is_not_a_place_to_go_on_from() -> None:
    metadata = Custom(id="m", parent_id="e1", timestamp=MOMENT, custom_type=METADATA, data={"a": 1})
    result = read(PI, write([entry_at(1, None), metadata], SessionFacts(created_at=MOMENT)))
    assert result.entries[-1] == metadata
    assert result.facts.leaf_id == "e1"


# --- recognition -----------------------------------------------------------------------------------------------------


def test_an_event_stream_is_refused_at_once() -> None:
    with pytest.raises(ImportRefused, match="event stream"):
        PI.recognize(Sample(lines=[orjson.loads(line) for line in EVENTS]))


def test_an_event_stream_is_refused_by_the_reader() -> None:
    with pytest.raises(ImportRefused, match="event stream"):
        read(PI, EVENTS)
    with pytest.raises(ImportRefused, match="event stream"):
        read(PI, EVENTS[:2])


def test_events_among_many_entries_are_kept() -> None:
    stray = {"type": "turn_start", "id": "ev", "parentId": "df79f975", "timestamp": AT}
    result = read(PI, [*RESUMED, stray])
    assert result.findings == []
    assert written(result)[-1] == orjson.dumps(stray)
