"""A damaged file of pi's never costs more than its damaged part, and says what it cost."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import orjson
import pytest

from miniclaw_sessions.files.formats.codec import Chain, Outcome
from miniclaw_sessions.files.formats.pi import PI
from miniclaw_sessions.files.formats.pi.file import PiReader
from tests.files.formats.codec_files import NOW, Read, check, read
from tests.files.formats.pi_files import (
    AT,
    HEADER,
    MOMENT,
    OLD_HEADER,
    RESUMED,
    SAID,
    line,
    old_user,
    said,
    texts_of,
    written,
)

# --- bad input -------------------------------------------------------------------------------------------------------


def read_damaged(lines: list[Any]) -> tuple[Read, list[tuple[int, Outcome]]]:
    result = read(PI, lines)
    check(result)
    return result, [(finding.line, finding.outcome) for finding in result.findings]


def test_a_torn_line_costs_itself_and_its_children_follow_what_stands_before() -> None:
    lines = [
        orjson.dumps(fields) for fields in (HEADER, said("a", None, "1"), said("b", "a", "2"), said("c", "b", "3"))
    ]
    lines[2] = lines[2][:40]
    result, found = read_damaged(lines)
    assert found == [(3, Outcome.SET_ASIDE), (4, Outcome.REPAIRED)]
    assert (result.findings[0].raw, result.findings[1].raw) == (lines[2], b"b")
    assert texts_of(result) == ["1", "3"]


def test_an_unknown_line_in_a_bad_encoding_is_kept_as_it_can_be_read() -> None:
    broken = orjson.dumps(line("z", None, "usage", note="X")).replace(b"X", b"\xff")
    result, _ = read_damaged([b"\xef\xbb\xbf" + orjson.dumps(HEADER), broken])
    assert written(result)[1] == broken.replace(b"\xff", "\ufffd".encode())


def test_ids_that_come_twice_are_told_apart_and_the_later_is_meant() -> None:
    lines = [HEADER, said("a", None, "1"), said("b", "a", "2"), said("a", "b", "3"), said("c", "a", "4")]
    result, found = read_damaged(lines)
    assert found == [(4, Outcome.REPAIRED)]
    assert texts_of(result) == ["1", "2", "3", "4"]


def test_a_file_that_was_appended_to_itself_reads_as_one_conversation() -> None:
    result, found = read_damaged([*RESUMED, *RESUMED])
    assert (len(result.entries), len(found)) == (12, 7)
    assert result.context == read(PI, RESUMED).context
    assert result.findings[0].outcome is Outcome.SET_ASIDE  # the second header


def test_parents_that_make_loops_are_none() -> None:
    lines = [HEADER, said("a", "b", "1"), said("b", "a", "2"), said("c", "c", "3"), said("d", "c", "4")]
    result, found = read_damaged(lines)
    assert found == [(2, Outcome.REPAIRED), (4, Outcome.REPAIRED)]
    assert [entry.parent_id for entry in result.entries] == [None, "a", None, "c"]
    assert [finding.raw for finding in result.findings] == [b"b", b"c"]


@pytest.mark.parametrize("parent", ["gone", "", 5, ["a"], {"a": 1}, False])
def test_a_parent_that_is_none_begins_a_branch_as_in_pi(parent: Any) -> None:
    result, found = read_damaged([HEADER, said("a", None, "1"), said("b", parent, "2")])
    assert texts_of(result) == ["2"]
    assert found == [(3, Outcome.REPAIRED)]


@pytest.mark.parametrize("entry_id", ["", None, 5, ["a"]])
def test_an_entry_without_id_gets_one(entry_id: Any) -> None:
    lines = [HEADER, said("a", None, "1"), {**said("x", "a", "2"), "id": entry_id}, said("c", "a", "3")]
    result, found = read_damaged(lines)
    assert found == [(3, Outcome.REPAIRED)]
    assert result.said == ["1", "2", "3"]
    assert len({entry.id for entry in result.entries}) == 3


def test_an_entry_without_a_parent_follows_the_one_before() -> None:
    orphan = {name: value for name, value in said("b", None, "2").items() if name != "parentId"}
    result, found = read_damaged([HEADER, said("a", None, "1"), orphan])
    assert found == [(3, Outcome.REPAIRED)]
    assert texts_of(result) == ["1", "2"]


def test_an_unknown_line_without_an_id_gets_one_when_it_is_written() -> None:
    result, _ = read_damaged([HEADER, {"type": "usage", "timestamp": AT, "n": 1}])
    fields = orjson.loads(written(result)[1])
    assert fields == {"type": "usage", "timestamp": AT, "n": 1, "id": result.entries[0].id, "parentId": None}


@pytest.mark.parametrize("timestamp", ["yesterday", None, 5.5, "2026-13-01", 10**17, []])
def test_a_time_that_is_none_is_that_of_the_line_before(timestamp: Any) -> None:
    result, found = read_damaged([HEADER, {**said("a", None, "1"), "timestamp": timestamp}])
    assert found == [(2, Outcome.REPAIRED)]
    assert result.entries[0].timestamp == MOMENT


def test_a_time_in_milliseconds_is_understood_and_comes_back() -> None:
    lines = [orjson.dumps(fields) for fields in (HEADER, {**said("a", None, "1"), "timestamp": SAID})]
    result, found = read_damaged(lines)
    assert (found, written(result)) == ([], lines)
    assert result.entries[0].timestamp == datetime.fromtimestamp(SAID / 1000, UTC)


def test_a_compaction_that_keeps_what_is_missing_is_reported() -> None:
    compaction = line("k", "a", "compaction", summary="s", firstKeptEntryId="gone", tokensBefore=1)
    result, found = read_damaged([HEADER, said("a", None, "1"), compaction])
    assert found == [(3, Outcome.REPAIRED)]
    assert result.branch.problems


def test_lines_before_the_header_are_kept() -> None:
    lines = [line("z", None, "title", text="a fork's"), HEADER, said("a", "z", "1")]
    result, found = read_damaged(lines)
    assert found == []
    assert result.facts.source_id == "session-1"
    assert [orjson.loads(line) for line in written(result)] == [HEADER, lines[0], lines[2]]


@pytest.mark.parametrize("header", [[], [b'{"type":"sess'], [b"\0" * 99]])
def test_a_missing_header_is_made_up(header: list[bytes]) -> None:
    result, found = read_damaged([*header, *RESUMED[1:]])
    assert (1, Outcome.REPAIRED) in found
    assert len(result.entries) == 6
    assert result.facts.created_at == result.entries[0].timestamp
    assert read(PI, written(result)).findings == []


def test_a_second_header_is_set_aside() -> None:
    second = orjson.dumps({**HEADER, "id": "other"})
    result, found = read_damaged([HEADER, said("a", None, "1"), second, said("b", "a", "2")])
    assert found == [(3, Outcome.SET_ASIDE)]
    assert (result.findings[0].raw, result.facts.source_id) == (second, "session-1")


def test_a_header_with_wrong_types_is_taken_as_far_as_it_can_be() -> None:
    header = {"type": "session", "version": "3", "id": 5, "timestamp": [], "cwd": None, "parentSession": 7}
    result, found = read_damaged([header, said("a", None, "1")])
    assert [line for line, _ in found] == [1, 1, 1]
    assert result.facts.created_at == MOMENT
    assert result.facts.header == {name: header[name] for name in ("id", "timestamp", "cwd", "parentSession")}


def test_reading_needs_little_memory() -> None:
    number = 3_000
    lines = [orjson.dumps(old_user("x")) for _ in range(number)]
    numbers = iter(range(number + 9))
    reader = PiReader(Chain(new_id=lambda: str(UUID(int=next(numbers))), now=NOW))
    reader.feed(orjson.dumps(OLD_HEADER))
    tracemalloc.start()
    try:
        for piece in lines:
            reader.feed(piece)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held / number < 60  # bytes for each line: below 60 MB for a million
