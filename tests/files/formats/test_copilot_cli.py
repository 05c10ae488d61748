"""Copilot CLI's sessions, in both forms (tests/programs/copilot_cli.py)."""

from __future__ import annotations

from typing import Any

import pytest

from miniclaw_sessions.core.protocol.entries import Compaction
from miniclaw_sessions.core.protocol.messages import ThinkingPart, Usage
from miniclaw_sessions.files.formats.copilot_cli import COPILOT_CLI, COPILOT_CLI_JSON
from tests.files.formats.codec_files import check, read
from tests.programs import copilot_cli as copilot


def test_a_session_is_read_as_it_went() -> None:
    found = read(COPILOT_CLI, copilot.EVENTS)
    check(found)
    asked, called, result, answer = found.messages
    assert (asked.text, answer.text) == ("What is a geyser?", "A hot spring that erupts.")
    assert called.tool_calls is not None
    assert (called.tool_calls[0].name, called.tool_calls[0].arguments) == ("bash", '{"command":"ls"}')
    assert isinstance(called.content[0], ThinkingPart)
    assert called.content[0].thinking == "Hot water."
    assert (called.model, called.usage) == ("claude-sonnet-4.5", Usage(output_tokens=40))
    assert (result.text, result.name, result.tool_call_id) == ("geyser.txt", "bash", "call_1")
    assert (found.facts.source_id, found.facts.title) == (copilot.ID, "Geysers")
    assert str(asked.timestamp) == "2026-05-06 08:41:02+00:00"
    assert found.messages == found.context


def test_what_a_subagent_says_is_a_branch_beside_its_call() -> None:
    cut, found = read(COPILOT_CLI, copilot.SUBAGENT[:7]), read(COPILOT_CLI, copilot.SUBAGENT)
    for one in (cut, found):
        check(one)
        assert "The subagent found it." in one.said
        assert "The subagent found it." not in [message.text for message in one.context]
    newer = [
        {**line, "data": {**line["data"], "parentToolCallId": None}, "agentId": "a"} if number in (5, 6) else line
        for number, line in enumerate(copilot.SUBAGENT)
    ]
    assert [message.text for message in read(COPILOT_CLI, newer).context] == [m.text for m in found.context]
    parents, said = found.parents, {entry.id: entry for entry in found.entries}
    second = copilot.SUBAGENT[6]["id"]
    assert parents[second] == copilot.SUBAGENT[5]["id"]
    assert set(parents.values()) <= {None, *said}


def test_what_was_taken_back_is_a_branch() -> None:
    found = read(COPILOT_CLI, copilot.REWOUND)
    check(found)
    assert [message.text for message in found.context] == ["What is a fjord?", "An inlet."]
    rewind = copilot.event(10, "session.snapshot_rewind", upToEventId=copilot.EVENTS[6]["id"], eventsRemoved=3)
    another = copilot.event(11, "assistant.message", messageId="m4", content="It spouts.")
    found = read(COPILOT_CLI, [*copilot.EVENTS, rewind, another])
    check(found)
    said = ["What is a geyser?", "I look.", "geyser.txt", "It spouts."]
    assert [message.text for message in found.context] == said
    listed = copilot.event(10, "session.snapshot_rewind", eventIds=[one["id"] for one in copilot.EVENTS[6:]])
    assert [message.text for message in read(COPILOT_CLI, [*copilot.EVENTS, listed, another]).context] == said


def test_a_compaction_is_one_and_a_failed_call_says_why() -> None:
    said: dict[str, Any] = {"success": True, "summaryContent": "Geysers were explained.", "preCompactionTokens": 64}
    compaction = copilot.event(10, "session.compaction_complete", **said)
    why: dict[str, Any] = {"success": False, "error": {"message": "denied"}}
    failed = copilot.event(6, "tool.execution_complete", toolCallId="call_1", **why)
    found = read(COPILOT_CLI, [*copilot.EVENTS[:5], failed, *copilot.EVENTS[6:], compaction])
    check(found)
    assert (found.messages[2].text, found.messages[2].is_error) == ("denied", True)
    assert isinstance(found.entries[-1], Compaction)
    assert (found.entries[-1].summary, found.entries[-1].tokens_before) == ("Geysers were explained.", 64)


@pytest.mark.parametrize("calls", [True, 5, {"a": 1}, ["x"]])
def test_calls_that_are_none_are_kept_as_they_are(calls: Any) -> None:
    asked = copilot.event(10, "assistant.message", messageId="m4", content="I look.", toolRequests=calls)
    found = read(COPILOT_CLI, [*copilot.EVENTS, asked])
    check(found)
    assert found.entries[-1].extra == {"copilot-cli": {"messageId": "m4", "toolRequests": calls}}


def test_the_older_form_is_read() -> None:
    found = read(COPILOT_CLI_JSON, [copilot.HISTORY])
    check(found)
    assert found.said == ["What is an oasis?", "", "oasis.txt", "Water in a desert."]
    assert found.facts.source_id == copilot.OLD_ID
    assert str(found.messages[0].timestamp) == "2025-10-08 21:10:16.398000+00:00"
