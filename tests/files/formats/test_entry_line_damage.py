"""Damaged files of document 003 cost what was hit: their neighbours are taken, their trees are sound."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miniclaw_sessions.core.history.transcript import Transcript
from miniclaw_sessions.core.protocol.encoding import encode_entry
from miniclaw_sessions.core.protocol.json_values import STORED_DEPTH
from miniclaw_sessions.files.formats.codec import Outcome, SessionFacts
from tests.files.formats.codec_files import NOW
from tests.files.formats.entry_line_files import (
    FLAT,
    HEADER,
    SEVERAL,
    entry,
    objects,
    read,
    result,
    said,
    text,
    use,
    written,
)

texts = st.text(st.characters(codec="utf-8"), max_size=8)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(-1e300, 1e300) | texts
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))


GOOD = json.dumps(said("good", None)).encode()


BAD_MESSAGES: list[Any] = [
    *(None, 5, "x", [], {}, {"role": 5, "content": []}, {"role": "user", "content": 5}),
    *({"role": "user", "content": {"text": "x"}}, {"role": "user", "content": [5]}),
    {"role": "user", "content": [text("a"), {"type": "text", "text": {"content": 5}}]},
    {"role": "assistant", "content": [{"type": "tool_use", "tool_use": {"id": 5, "name": "f"}}]},
    {"role": "tool", "content": [result("c1", "x"), {"type": "tool_result", "tool_result": {"tool_use_id": 5}}]},
    {"role": "tool", "content": [{"type": "tool_result", "tool_result": {"content": {"a": 1}}}]},
]
BAD_ENTRIES: list[dict[str, Any]] = [
    {},
    {**said("m", None), "type": 5},
    {**said("m", None), "type": ["message"]},
    entry("label", "m", None),
    entry("label", "m", None, target_id=5),
    entry("compaction", "m", None, summary="s", tokens_before="many"),
    entry("custom", "m", None, custom_type="c", data=[]),
    entry("leaf", "m", None, target_id="gone"),
    entry("message", "m", None),
    *(entry("message", "m", None, message=message) for message in BAD_MESSAGES),
]
BAD_LINES = [b"[" * 1_000_000, *(json.dumps(bad).encode() for bad in BAD_ENTRIES)]


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: repr(line[-60:]))
def test_a_bad_line_is_set_aside_and_its_neighbours_are_taken(line: bytes) -> None:
    damaged = read(HEADER, GOOD, line, said("after", "good"))
    assert [e.id for e in damaged.entries] == ["good", "after"]
    assert damaged.outcomes == [(3, Outcome.SET_ASIDE)]
    assert damaged.findings[0].raw == line
    assert "Hello" not in damaged.findings[0].text


def test_a_mark_before_an_unknown_entry_is_not_kept_with_it() -> None:
    lane = json.dumps(entry("lane", "e1", None)).encode()
    (other,) = read(b"\xef\xbb\xbf" + lane).entries
    assert json.loads(encode_entry(other)) == json.loads(lane)


def test_an_id_that_occurs_twice_is_taken_once() -> None:
    twice = read(HEADER, said("a", None), said("a", None, "user", text("other")), said("b", "a"))
    assert twice.parents == {"a": None, "b": "a"}
    assert twice.outcomes == [(3, Outcome.SET_ASIDE)]


def test_what_follows_an_entry_that_was_set_aside_follows_its_parent() -> None:
    bad = entry("message", "bad", "a", message=5)
    damaged = read(
        HEADER, said("a", None), said("b", "a"), bad, said("c", "bad"), entry("leaf", "l", None, target_id="bad")
    )
    assert damaged.parents == {"a": None, "b": "a", "c": "a", "l": None}
    assert damaged.facts.leaf_id == "a"


def test_an_unknown_parent_is_the_line_that_could_not_be_read() -> None:
    damaged = read(HEADER, said("a", None), said("b", "a"), b"{torn", said("d", "c"), said("e", "c"), said("f", "d"))
    assert damaged.parents == {"a": None, "b": "a", "d": "b", "e": "b", "f": "d"}
    assert damaged.outcomes == [(4, Outcome.SET_ASIDE), (5, Outcome.REPAIRED)]


@pytest.mark.parametrize("parent_id", ["b", "later", "gone"])
def test_an_entry_whose_parent_is_itself_or_comes_later_or_never_begins_a_branch(parent_id: str) -> None:
    tree = read(HEADER, said("a", None), said("b", parent_id), said("later", "b"), said("d", "later"))
    assert tree.parents == {"a": None, "b": None, "later": "b", "d": "later"}
    assert tree.outcomes == [(3, Outcome.REPAIRED)]


@pytest.mark.parametrize("wrong", [{"parent_id": 5}, {"parent_id": ""}, {"parent_id": ["a"]}, None], ids=repr)
def test_an_entry_that_does_not_name_its_parent_follows_the_one_before(wrong: dict[str, Any] | None) -> None:
    line = said("b", None)
    if wrong is None:
        del line["parent_id"]
    damaged = read(HEADER, said("a", None), {**line, **(wrong or {})})
    assert damaged.parents == {"a": None, "b": "a"}
    assert damaged.outcomes == [(3, Outcome.REPAIRED)]


@pytest.mark.parametrize("entry_id", [None, "", 5, ["x"]], ids=repr)
def test_an_entry_without_an_id_is_given_one(entry_id: object) -> None:
    damaged = read(HEADER, {**said("a", None), "id": entry_id}, {**said("a", None), "id": entry_id})
    assert list(damaged.parents) == ["new-1", "new-2"]


@pytest.mark.parametrize("timestamp", [None, "yesterday", 5, 1e400, {}], ids=repr)
def test_an_entry_without_a_time_has_that_of_the_one_before(timestamp: object) -> None:
    line = json.dumps({**said("b", "a"), "timestamp": timestamp}).replace("Infinity", "[]").encode()
    damaged = read(HEADER, said("a", None), line)
    assert [e.timestamp for e in damaged.entries] == [datetime(2024, 1, 1, 10, 0, 1, tzinfo=UTC)] * 2
    assert read(HEADER, line).entries[0].timestamp == NOW


def test_times_of_go_are_moments() -> None:
    line = {**said("a", None), "timestamp": "2024-01-01T10:00:00.123456789+02:00"}
    assert read(HEADER, line).entries[0].timestamp == datetime(2024, 1, 1, 8, 0, 0, 123457, tzinfo=UTC)


def test_what_follows_a_move_of_the_leaf_follows_the_place_it_went_to() -> None:
    moved = read(HEADER, said("a", None), said("b", "a"), entry("leaf", "l", "b", target_id="a"), said("c", "l"))
    assert moved.parents["c"] == "a"
    assert Transcript(moved.entries).problems == []


def test_the_header_of_a_file_may_be_damaged() -> None:
    wrong = {"id": 5, "timestamp": "?", "parent_session": 5, "title": [], "metadata": [], "channel": 5, "version": "1"}
    damaged = read({**HEADER, **wrong}, GOOD)
    assert damaged.outcomes == [(1, Outcome.REPAIRED)]
    assert damaged.facts == SessionFacts(
        format="jsonl", header={name: value for name, value in wrong.items() if name != "version"}, leaf_id="good"
    )
    assert [e.id for e in damaged.entries] == ["good"]
    assert objects(written([], damaged.facts))[0]["title"] == []


def test_a_second_header_is_set_aside_and_a_late_one_is_read() -> None:
    late = read(GOOD, HEADER, {**HEADER, "id": "other"}, said("b", "good"))
    assert (late.facts.source_id, list(late.parents)) == ("sess-1", ["good", "b"])
    assert late.outcomes == [(3, Outcome.SET_ASIDE)]


noise = st.binary(max_size=40) | anything.map(lambda value: json.dumps(value).encode())
wrong_lines = st.builds(
    lambda line, field, value: json.dumps({**line, field: value}).encode(),
    st.sampled_from([*SEVERAL, *(entry(kind, kind, "m1", **payload) for kind, payload in FLAT.items())]),
    st.sampled_from(
        ["type", "id", "parent_id", "timestamp", "message", "target_id", "label", "jsonl", "data", "version"]
    ),
    anything.filter(lambda value: not (isinstance(value, int) and value > 1)),
)
IMAGE = {"type": "image", "image": {"source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}}
wrong_messages = st.builds(
    lambda role, content, more: json.dumps(
        entry("message", "m", None, message={**more, "role": role, "content": content})
    ),
    st.sampled_from(["user", "assistant", "tool", "narrator"]),
    st.lists(
        st.builds(
            lambda part, name, value: {**part, name: value},
            st.sampled_from([text("a"), IMAGE, use("c", a=1), result("c", "x")]),
            st.sampled_from(["text", "image", "tool_use", "tool_result", "type", "entry", "jsonl"]),
            anything,
        ),
        max_size=4,
    ),
    st.dictionaries(st.sampled_from(["jsonl", "content_form", "tool_calls", "usage", "x"]), anything, max_size=2),
).map(str.encode)


@given(st.lists(noise | wrong_lines | wrong_messages | st.sampled_from(SEVERAL).map(lambda o: json.dumps(o).encode())))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_whatever_a_file_holds_gives_entries_that_can_be_stored_and_a_sound_tree(lines: list[bytes]) -> None:
    damaged = read(HEADER, *lines)
    for one in damaged.entries:
        encode_entry(one)
    problems = Transcript(damaged.entries).problems
    assert [problem for problem in problems if not problem.startswith("label")] == []
    again = read(*written(damaged.entries, damaged.facts))
    assert [e.id for e in again.entries] == [e.id for e in damaged.entries]


def test_depth_is_limited_before_the_line_is_parsed() -> None:
    deep = b'{"type":"lane","id":"e","parent_id":null,"timestamp":"2024-01-01T10:00:00Z","x":%s}'
    assert read(HEADER, deep % (b"[" * (STORED_DEPTH - 1) + b"]" * (STORED_DEPTH - 1))).findings == []
    assert read(HEADER, deep % (b"[" * STORED_DEPTH + b"]" * STORED_DEPTH)).outcomes == [(2, Outcome.SET_ASIDE)]


def test_entries_far_apart_in_time_stay_in_the_order_of_the_file() -> None:
    lines = [{**said(f"m{n}", None), "timestamp": (NOW - timedelta(days=n)).isoformat()} for n in range(3)]
    assert [e.id for e in read(HEADER, *lines).entries] == ["m0", "m1", "m2"]
