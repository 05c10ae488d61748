"""Cursor's chats, out of its databases (tests/programs/cursor.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from miniclaw_sessions.core.protocol.messages import ThinkingPart, Usage
from miniclaw_sessions.files.discovery.databases import sessions_in
from miniclaw_sessions.files.formats.cursor import CURSOR
from tests.agents import out_of
from tests.files.formats.codec_files import check, read
from tests.programs import cursor

GLOBAL = cursor.PLACE / "globalStorage/state.vscdb"
WORKSPACE = cursor.PLACE / "workspaceStorage/0123abcd/state.vscdb"
SAID = ["What is karst?", "", "", "karst.txt\n", "Dissolved limestone."]


@pytest.mark.parametrize("has_headers", [True, False])
def test_the_chats_of_the_program_s_database_are_read_as_they_went(tmp_path: Path, has_headers: bool) -> None:
    cursor.put(tmp_path, has_headers=has_headers)
    listed = sessions_in("cursor", tmp_path / GLOBAL)
    assert {one.id: one.messages for one in listed} == {cursor.ID: 4, cursor.OLD_ID: 2}
    assert {one.modified for one in listed if one.id == cursor.ID} == {(cursor.AT + 9_000) * 1_000_000}
    old, lines = out_of("cursor", tmp_path / GLOBAL)
    found = read(CURSOR, lines)
    check(found)
    assert found.said == SAID
    asked, thought, called, result, answer = found.messages
    assert isinstance(thought.content[0], ThinkingPart)
    assert (thought.content[0].thinking, thought.content[0].signature) == ("Limestone.", "sig")
    assert called.tool_calls is not None
    assert (called.tool_calls[0].name, called.tool_calls[0].arguments) == (
        "run_terminal_command_v2",
        '{"command":"ls"}',
    )
    assert (called.usage, called.model) == (Usage(20, 9), "claude-4.5-sonnet")
    assert (result.tool_call_id, result.is_error, answer.usage) == ("toolu_012X", False, None)
    assert (found.facts.source_id, found.facts.title) == (cursor.ID, "Karst")
    assert str(asked.timestamp) == "2026-08-31 16:00:01.627000+00:00"
    assert read(CURSOR, old).said == ["What is a doline?", "A sinkhole."]


def test_the_chats_of_the_first_versions_are_in_the_workspaces(tmp_path: Path) -> None:
    cursor.put(tmp_path)
    (lines,) = out_of("cursor", tmp_path / WORKSPACE)
    found = read(CURSOR, lines)
    check(found)
    assert found.said == ["What is a polje?", "A large flat plain."]
    assert (found.facts.source_id, found.facts.title) == (cursor.TAB_ID, "Poljes")
    assert read(CURSOR, lines).entries == found.entries


def test_what_is_being_written_is_left_out(tmp_path: Path) -> None:
    cursor.put(tmp_path, composer={**cursor.COMPOSER, "status": "generating"})
    _, lines = out_of("cursor", tmp_path / GLOBAL)
    assert read(CURSOR, lines).said == SAID[:4]


def test_a_bubble_without_a_word_is_kept_and_no_message() -> None:
    blank = cursor.bubble("b5", 2, 5, thinking={"text": "", "signature": "sig"}, novelty="a kept value")
    found = read(CURSOR, [*cursor.LINES, {"bubble": blank}])
    check(found)
    assert found.said == SAID
    assert "a kept value" in str(found.entries[-1])
