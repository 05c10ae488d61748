"""The log of `llm`: as version 0.36 kept it (tests/data/agents), and as those before did (its `docs/logging.md`)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from miniclaw_sessions.core.protocol.entries import Custom
from miniclaw_sessions.core.protocol.messages import Role, Usage
from miniclaw_sessions.files.formats.llm import LLM
from tests.agents import make_database, out_of
from tests.files.formats.codec_files import check, read


def _sessions() -> list[list[Any]]:
    with tempfile.TemporaryDirectory() as home:
        return out_of("llm", make_database(Path(home), "llm"))


LLM_LINES, SECOND = _sessions()
BEFORE: list[Any] = [
    {"conversation": {"id": "01h", "name": "Tides", "model": "gpt-4o"}},
    {
        "response": {
            "id": "01r1",
            "model": "gpt-4o",
            "prompt": "What time is it?",
            "system": "Be brief.",
            "response": "",
            "datetime_utc": "2025-06-01T10:00:00+00:00",
            "input_tokens": 20,
            "output_tokens": 5,
        },
        "tool_calls": [{"id": 1, "name": "time", "arguments": "{}", "tool_call_id": "c1"}],
        "tool_results": [],
    },
    {
        "response": {
            "id": "01r2",
            "model": "gpt-4o",
            "prompt": "",
            "system": "Be brief.",
            "response": "Ten.",
            "datetime_utc": "2025-06-01T10:00:02+00:00",
            "input_tokens": 30,
            "output_tokens": 2,
        },
        "tool_calls": [],
        "tool_results": [{"id": 1, "name": "time", "output": "10:00", "tool_call_id": "c1", "exception": None}],
    },
]


def test_a_thread_with_a_tool_is_read_as_it_went() -> None:
    found = read(LLM, LLM_LINES)
    check(found)
    assert [message.role for message in found.messages] == [
        *(Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.USER),
        *(Role.ASSISTANT, Role.TOOL_RESULT, Role.ASSISTANT),
    ]
    assert found.messages[1].text == "What is the length of the Rhine?"
    calls = found.messages[4].tool_calls
    assert calls is not None
    assert (calls[0].name, calls[0].id) == ("llm_version", found.messages[5].tool_call_id)
    assert found.messages[5].text == "0.36"
    assert found.messages[6].usage == Usage(input_tokens=64, output_tokens=7, cache_read_tokens=40)
    assert (found.facts.title, found.messages[6].model) == ("What is the length of the Rhine?", "local")
    assert read(LLM, SECOND).said == ["A second conversation about tides", "The answer number 5: all is well."]


def test_a_conversation_before_0_36_is_read_as_it_went() -> None:
    found = read(LLM, BEFORE)
    check(found)
    assert found.said == ["Be brief.", "What time is it?", "", "10:00", "Ten."]
    assert found.messages[2].tool_calls is not None
    assert found.messages[3].tool_call_id == found.messages[2].tool_calls[0].id


def test_lines_that_nobody_knows_are_kept() -> None:
    (kept,) = read(LLM, [LLM_LINES[0], {"novelty": 1}]).entries
    assert isinstance(kept, Custom)
    assert kept.data == {"novelty": 1}
