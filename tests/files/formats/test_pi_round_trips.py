"""What is odd in a file of pi's comes back as it was, and so does every entry of ours that pi has held."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miniclaw_sessions.core.history.transcript import Transcript
from miniclaw_sessions.core.protocol.entries import (
    METADATA,
    Custom,
    Entry,
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
from miniclaw_sessions.files.formats.codec import Outcome, SessionFacts
from miniclaw_sessions.files.formats.pi import PI
from tests.files.formats.codec_files import check, read
from tests.files.formats.our_entries import counts, texts, trees
from tests.files.formats.pi_files import (
    AT,
    HEADER,
    MOMENT,
    SAID,
    call,
    line,
    reply,
    said,
    texts_of,
    write,
    written,
)

# --- form: what is absent, odd or unknown comes back as it was -------------------------------------------------------

ODD = [
    said("u", None, [], note="unknown field"),
    said("u", None, None),
    said("u", None, ""),
    line("u", None, "message", message={"role": "user"}),
    line("u", None, "message", message={"timestamp": SAID, "content": "x", "role": "user"}),
    line("u", None, "message", message={"role": "user", "content": "x", "timestamp": "2026-01-01"}),
    line("u", None, "message", message={"role": "user", "content": "x", "timestamp": SAID + 0.5}),
    line("u", None, "message", message={"role": "user", "content": "x", "timestamp": 10**18}),
    line("u", None, "message", message={"role": "critic", "content": "x", "stars": 3}),
    line("u", None, "message", message={"role": "tool", "content": "x", "timestamp": SAID}),
    line("u", None, "message", message={"role": "other", "timestamp": SAID}),
    line("u", None, "message", message={"role": "assistant", "content": "text, not a list", "timestamp": SAID}),
    line("u", None, "message", message={"role": "assistant", "content": None}),
    line("u", None, "message", message={"role": "toolResult", "content": [], "isError": "yes", "toolCallId": 7}),
    line("u", None, "message", message={"role": "branchSummary", "fromId": "x"}),
    line("u", None, "message", message={"role": "branchSummary", "summary": 5, "content": "x"}),
    line("u", None, "message", message={"role": "bashExecution", "content": "x", "command": 5, "output": None}),
    line("u", None, "message", message={"role": "user", "content": "x", "timestamp": SAID}, flag=True, why=[None]),
    {"type": "message", "timestamp": AT, "message": {"role": "user", "content": "x"}, "id": "u", "parentId": None},
    {"id": "u", "type": "session_info", "parentId": None, "timestamp": "2026-02-03T05:05:06+01:00"},
    line("u", None, "session_info", name=None),
    line("u", None, "session_info", name=5),
    line("u", None, "compaction", summary="s"),
    line("u", None, "compaction", summary="s", tokensBefore=1.5, firstKeptEntryId=5, retainedTail=[]),
    line("u", None, "branch_summary", summary=""),
    line("u", None, "model_change", modelId="m"),
    line("u", None, "custom", data=None, customType="x"),
    line("u", None, "message", message={"role": "custom", "content": []}),
    line("u", None, "custom_message", customType="c", content=[5, {"type": "toolCall"}, call("c")], display="no"),
    {**reply("u", None), "miniclaw": "not ours"},
    reply("u", None, usage=None),
    reply("u", None, usage={"output": 1, "input": 2, "cost": {"total": 1, "tax": 0.5}}),
    reply("u", None, usage={"input": 1.5, "output": True, "cacheRead": 0, "cacheWrite": 0, "cost": {"total": "1"}}),
    reply(
        "u", None, usage={"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "cost": {"input": 0, "total": 0}}
    ),
    reply("u", None, model=None, stopReason=7, api=None),
    reply("u", None, {"type": "text", "text": 5}, {"type": "text"}, "bare", None, [], {"type": "pi", "part": 1}),
    reply("u", None, {"text": "x", "type": "text"}, {"type": "thinking", "thinking": "t", "redacted": False}),
    reply("u", None, {"type": "thinking", "thinking": "t", "thinkingSignature": 5, "redacted": "yes"}),
    reply("u", None, {"type": "image", "data": "QUJD"}, {"type": "image", "mimeType": "x", "data": "", "alt": "y"}),
    reply("u", None, call("c", arguments="{}"), {"type": "toolCall", "id": "d", "name": "n"}, call("e", x={"y": 1})),
    reply("u", None, call("c", arguments=["a"]), call("", name=""), {"type": "toolCall", "name": "no id"}),
    reply("u", None, call("c", arguments={"n": 1e300, "s": "\u2028", "z": {"deep": [[]]}}), {"type": "video", "u": 1}),
    line("u", None, "active_tools_change", seq=7, tools=["a"]),
    line("u", None, "label", targetId="not there", label="x"),
    line("u", None, "message", message="not an object"),
    line("u", None, "message", message={"content": "no role"}),
    line("u", None, "message", message={"role": "user", "content": 5}),
    line("u", None, "thinking_level_change", thinkingLevel=3),
    line("u", None, "custom", customType=None),
    line("u", None, "custom_message", customType="x"),
    line("u", None, "compaction", summary="s", retainedTail=[{"role": "user", "content": "x"}, 5]),
    line("u", None, "custom", customType="metadata", data={"title": "not ours"}),
    line("u", None, "custom", customType="pi:line", data={"line": "not ours"}),
    line("u", None, "custom", customType="pi:metadata"),
]


@pytest.mark.parametrize("fields", ODD, ids=[str(number) for number in range(len(ODD))])
def test_what_is_odd_comes_back_as_it_was(fields: dict[str, Any]) -> None:
    lines = [orjson.dumps(fields) for fields in (HEADER, fields)]
    result = read(PI, lines)
    check(result)
    assert written(result) == [lines[0], lines[1]]


def test_what_cannot_be_understood_is_kept_with_a_finding() -> None:
    lines = [HEADER, said("u", None, "hi"), said("v", "u", 5), said("w", "v", "still here")]
    result = read(PI, lines)
    (finding,) = result.findings
    assert (finding.line, finding.outcome) == (3, Outcome.REPAIRED)
    assert "neither text nor a list" in finding.text
    assert texts_of(result) == ["hi", "still here"]


def test_a_foreign_metadata_entry_does_not_become_ours() -> None:
    fields = line("u", None, "custom", customType=METADATA, data={"title": "stolen"})
    (entry,) = read(PI, [HEADER, fields]).entries
    assert isinstance(entry, Custom)
    assert entry.custom_type == "pi:metadata"


def test_the_header_comes_back_with_what_it_had() -> None:
    header = {**HEADER, "parentSession": "/a/b.jsonl", "gitBranch": "main"}
    result = read(PI, [header])
    assert (result.facts.source_id, result.facts.parent_session) == ("session-1", "/a/b.jsonl")
    assert result.facts.header == {"cwd": "/home/ada/ship", "gitBranch": "main"}
    assert written(result) == [orjson.dumps(header)]
    assert result.findings == []


# --- our entries through pi ------------------------------------------------------------------------------------------

ids = st.from_regex(r"[a-z0-9]{1,6}", fullmatch=True)
json_objects = st.dictionaries(texts, st.none() | st.booleans() | st.integers(-9, 9) | texts, max_size=3)
arguments = st.sampled_from(
    ["", "{}", '{"a":1}', '{"a": 1}', '{"a":', "[1]", "null", '{"n":123456789012345678901}', " "]
)
calls = st.builds(ToolCall, ids, ids, arguments, st.none() | texts, st.sampled_from([None, {"partialJson": '{"a'}]))
parts = st.one_of(
    st.builds(TextPart, texts),
    st.builds(ThinkingPart, texts, st.none() | texts, st.booleans()),
    st.builds(ImagePart, texts, st.none() | texts, st.none() | texts),
    st.builds(OtherPart, st.fixed_dictionaries({"type": st.sampled_from(["video", "pi2"])}, optional={"x": texts})),
)
moments = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)).map(lambda naive: naive.replace(tzinfo=UTC))  # noqa: DTZ001 - the zone follows


def in_ms(moment: datetime) -> datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


in_milliseconds = moments.map(in_ms)
usages = st.builds(
    Usage, counts, counts, counts, counts, st.none() | counts, st.none() | st.floats(0, 1e9) | st.just(1e20)
)


@st.composite
def messages(draw: st.DrawFn, logged_at: datetime) -> Message:
    role = draw(st.sampled_from(Role))
    extra: dict[str, Any] | None = {"role": draw(st.sampled_from(["critic", "x"]))} if role is Role.OTHER else None
    if role is Role.BASH_EXECUTION and draw(st.booleans()):
        extra = {"command": draw(texts), "output": draw(texts), "excludeFromContext": draw(st.booleans())}
    return Message(
        role,
        draw(texts | st.lists(parts, max_size=3).map(tuple)),
        draw(st.none() | st.just(logged_at) | in_milliseconds.filter(lambda moment: moment != in_ms(logged_at))),
        draw(st.none() | st.lists(calls, min_size=1, max_size=2).map(tuple)),
        draw(st.none() | ids),
        draw(st.none() | texts),
        draw(st.booleans()),
        draw(st.none() | texts),
        draw(st.none() | texts),
        draw(st.none() | usages),
        draw(st.none() | texts),
        extra,
    )


NAMES = [METADATA, "mine", "pi:x", "pi:metadata", "pi:pi:x", "pi:line", "leaf", "miniclaw-sessions/leaf"]
NAMES += ["miniclaw-sessions/entry", "miniclaw-sessions/pi:line"]
datas = json_objects | st.sampled_from([{"left": None}, {"line": "x"}, {"line": '"x"'}])
sessions = trees(
    messages=messages,
    moments=moments,
    customs=st.tuples(st.sampled_from(NAMES), datas),
    extras=st.none(),
    unknown=st.nothing(),  # pi keeps no name of what is not there
)


@given(sessions)
def test_any_tree_of_ours_comes_back_from_pi(tree: list[Entry]) -> None:
    lines = write(tree, SessionFacts(session_id="telegram_1", created_at=MOMENT))
    result = read(PI, lines)
    assert result.findings == []
    assert result.entries == tree
    assert result.facts.leaf_id == Transcript(tree).leaf_id
    assert write(result.entries, result.facts) == lines


@settings(deadline=None)
@given(sessions)
def test_pi_finds_in_our_files_what_it_counts_on(tree: list[Entry]) -> None:
    header, *lines = [orjson.loads(line) for line in write(tree, SessionFacts(session_id="s", created_at=MOMENT))]
    assert header.keys() >= {"type", "version", "id", "timestamp", "cwd"}
    for fields in lines:
        assert fields.keys() >= {"type", "id", "parentId", "timestamp"}
        message = fields.get("message")
        if message is not None:
            assert type(message["timestamp"]) is int
            if message["role"] == "assistant":
                assert isinstance(message["content"], list)
                assert message.keys() >= {"api", "provider", "model", "usage", "stopReason"}
                assert message["usage"].keys() >= {"input", "output", "cacheRead", "cacheWrite"}
                assert message["usage"]["cost"].keys() >= {"input", "output", "cacheRead", "cacheWrite", "total"}
                assert all(isinstance(part["arguments"], dict) for part in message["content"] if "arguments" in part)
