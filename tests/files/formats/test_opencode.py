"""opencode's sessions, as version 1.18.33 kept them (tests/data/agents)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from miniclaw_sessions.core.protocol.entries import Compaction, Custom
from miniclaw_sessions.core.protocol.messages import Usage
from miniclaw_sessions.files.formats.opencode import OPENCODE, OPENCODE_EXPORT
from tests.agents import make_database, out_of
from tests.files.formats.codec_files import check, read


def _lines() -> list[Any]:
    with tempfile.TemporaryDirectory() as home:
        (lines,) = out_of("opencode", make_database(Path(home), "opencode"))
        return lines


OPENCODE_LINES = _lines()


def test_a_session_out_of_the_database_is_read_as_it_went() -> None:
    found = read(OPENCODE, OPENCODE_LINES)
    check(found)
    asked, called, result, answer, again, last = found.messages
    assert asked.text == '"Please list what is here. TOOL"'
    assert called.tool_calls is not None
    assert (called.tool_calls[0].name, called.tool_calls[0].id) == ("bash", result.tool_call_id)
    assert result.text == "tool-output-here\n"
    assert answer.usage == Usage(input_tokens=73, output_tokens=7, cache_read_tokens=40, total_tokens=120)
    assert (again.text, last.text) == ('"And what is a delta?"', "The answer number 14: all is well.")
    assert (last.model, last.stop_reason) == ("local-model", "stop")
    assert (found.facts.source_id, found.facts.title) == (
        OPENCODE_LINES[0]["info"]["id"],
        "The answer number 11: all is well.",
    )


def test_an_export_says_the_same() -> None:
    document = {"info": OPENCODE_LINES[0]["info"], "messages": OPENCODE_LINES[1:], "todos": []}
    assert read(OPENCODE_EXPORT, [document]).said == read(OPENCODE, OPENCODE_LINES).said


def test_a_summary_is_a_compaction_and_what_nobody_knows_is_kept() -> None:
    summary = {"info": {"id": "msg_z1", "role": "assistant", "summary": True, "time": {"created": 1, "completed": 2}},
               "parts": [{"id": "prt_z", "type": "text", "text": "What was said so far."}]}  # fmt: skip
    novelty = {"info": {"id": "msg_z2", "role": "oracle"}, "parts": []}
    found = read(OPENCODE, [*OPENCODE_LINES, summary, novelty])
    check(found)
    compaction, kept = found.entries[-2:]
    assert isinstance(compaction, Compaction)
    assert compaction.summary == "What was said so far."
    assert isinstance(kept, Custom)
    assert kept.data == novelty
