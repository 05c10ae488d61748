"""Goose's sessions: its older files, its database and its export (tests/programs/goose.py)."""

from __future__ import annotations

from pathlib import Path

from miniclaw_sessions.core.protocol.entries import Compaction
from miniclaw_sessions.core.protocol.messages import ThinkingPart, Usage
from miniclaw_sessions.files.formats.goose import GOOSE, GOOSE_EXPORT
from tests.agents import out_of
from tests.files.formats.codec_files import check, read
from tests.programs import goose


def test_a_session_out_of_the_database_is_read_as_it_went(tmp_path: Path) -> None:
    (lines,) = out_of("goose", goose.put_database(tmp_path))
    found = read(GOOSE, lines)
    check(found)
    asked, called, result, answer = found.messages
    assert (asked.text, answer.text) == ("What is a lagoon?", "Shallow water behind a bar.")
    assert called.tool_calls is not None
    assert (called.tool_calls[0].name, called.tool_calls[0].arguments) == ("developer__shell", '{"command":"ls"}')
    assert isinstance(called.content[0], ThinkingPart)
    assert (called.content[0].thinking, called.content[0].signature) == ("Let me look.", "sig")
    assert (called.model, called.usage) == ("claude-sonnet-4-5", Usage(10_165, 61, total_tokens=10_226, cost=0.03141))
    assert (result.text, result.name, result.tool_call_id) == ("README.md\nsrc", "developer__shell", "call_1")
    assert (found.facts.source_id, found.facts.title) == (goose.ID, "A lagoon")
    assert str(found.facts.created_at) == "2026-08-31 15:10:23+00:00"
    assert str(asked.timestamp) == "2026-08-31 15:10:23+00:00"
    assert found.facts.header["accumulated_cost"] == 0.03141


def test_a_file_and_an_export_say_the_same(tmp_path: Path) -> None:
    (lines,) = out_of("goose", goose.put_database(tmp_path))
    of_the_database = read(GOOSE, lines).entries
    assert read(GOOSE, goose.SESSION).entries == of_the_database
    document = {**goose.HEADER, "conversation": goose.SESSION[1:]}
    assert read(GOOSE_EXPORT, [document]).entries == of_the_database


def test_a_file_of_an_older_version_is_read_with_its_results() -> None:
    found = read(GOOSE, goose.OLD)
    check(found)
    assert found.said == ["Is there an isthmus here?", "", "total 0", "There is none."]
    assert found.facts.title == "Say hello"
    assert read(GOOSE, goose.OLD[1:]).said == found.said  # the first versions had no header


def test_a_compaction_is_one_and_adds_nothing_twice() -> None:
    found = read(GOOSE, goose.COMPACTED)
    check(found)
    (compaction,) = (entry for entry in found.entries if isinstance(entry, Compaction))
    assert compaction.summary == "A lagoon was explained."
    assert [message.text.rsplit("\n\n", 1)[-1] for message in found.context] == [
        *("A lagoon was explained.", "I go on from the summary.", "And a fjord?")
    ]
    before = {entry.id for entry in read(GOOSE, goose.SESSION).entries}
    assert before <= {entry.id for entry in found.entries}


def test_a_call_that_failed_and_parts_that_nobody_knows_are_kept() -> None:
    failed = {"type": "toolRequest", "id": "c", "toolCall": {"status": "error", "error": "-32603: no"}}
    novelty = {"type": "hologram", "of": "a reef"}
    refused = {"type": "toolResponse", "id": "c", "toolResult": {"status": "error", "error": "not allowed"}}
    lines = [*goose.SESSION, goose.said("assistant", 7, failed, novelty), goose.said("user", 8, refused)]
    found = read(GOOSE, lines)
    check(found)
    kept, result = found.messages[-2:]
    assert [getattr(part, "fields", None) for part in kept.content] == [failed, novelty]
    assert (result.is_error, result.text) == (True, "not allowed")
