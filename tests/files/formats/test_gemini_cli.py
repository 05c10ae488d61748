"""Gemini CLI's chats, as version 0.61.0 wrote them (tests/data/agents), and what its source says of them."""

from __future__ import annotations

from typing import Any

import orjson

from miniclaw_sessions.core.protocol.entries import Custom
from miniclaw_sessions.core.protocol.messages import Role, ThinkingPart, Usage
from miniclaw_sessions.files.formats.gemini_cli import GEMINI_CLI, GEMINI_CLI_JSON
from tests.agents import written
from tests.files.formats.codec_files import chain, check, read

GEMINI = written(".gemini")
HEADER = GEMINI[0]
RECORDS = {line["id"]: line for line in GEMINI if "id" in line}
GEMINI_ONCE = [*GEMINI[:2], *(line for line in GEMINI if "id" in line)]
"""Without what was said again when the chat was resumed."""

GEMINI_DOCUMENT = {**HEADER, "messages": list(RECORDS.values())}


def user(message_id: str, text: str) -> dict[str, Any]:
    return {"id": message_id, "timestamp": "2026-01-01T00:00:00Z", "type": "user", "content": [{"text": text}]}


def model(message_id: str, text: str, **more: Any) -> dict[str, Any]:
    return {"id": message_id, "timestamp": "2026-01-01T00:00:01Z", "type": "gemini", "content": text, **more}


def test_a_resumed_chat_with_a_tool_is_read_as_it_went() -> None:
    found = read(GEMINI_CLI, GEMINI)
    check(found)
    _, asked, called, result, answer, again, last = found.messages
    assert (asked.text, again.text) == ("Please list what is here. TOOL", "And what is a volcano?")
    assert called.tool_calls is not None
    assert (called.tool_calls[0].name, result.tool_call_id) == ("run_shell_command", called.tool_calls[0].id)
    assert "tool-output-here" in result.text
    assert isinstance(called.content[0], ThinkingPart)
    assert answer.usage == Usage(input_tokens=80, output_tokens=9, cache_read_tokens=40, total_tokens=129)
    assert (last.text, last.model) == ("The answer number 22: all is well.", "gemini-3.8-flash")
    assert found.facts.source_id == HEADER["sessionId"]
    assert [message.text for message in found.branch.messages()] == found.said  # the checkpoints made no branch


def test_the_older_document_says_the_same() -> None:
    lines, document = read(GEMINI_CLI, [HEADER, *RECORDS.values()]), read(GEMINI_CLI_JSON, [GEMINI_DOCUMENT])
    assert document.said == lines.said
    assert document.facts.source_id == lines.facts.source_id


def test_a_message_that_is_written_again_counts_once_and_is_shown_before() -> None:
    assert GEMINI_CLI.reader is not None
    reader: Any = GEMINI_CLI.reader(chain())
    lines = map(orjson.dumps, [HEADER, user("u", "hi"), model("m", "let me see")])
    assert [entry.id for line in lines for entry in reader.feed(line)] == ["u"]
    assert [entry.message.text for entry in reader.pending()] == ["let me see"]
    calls = [{"id": "c", "name": "ls", "args": {}, "result": "a file", "status": "success", "timestamp": "x"}]
    again = orjson.dumps(model("m", "let me see", toolCalls=calls))
    assert reader.feed(again) == []
    assert [entry.message.role for entry in reader.pending()] == [Role.ASSISTANT, Role.TOOL_RESULT]
    assert [entry.id for entry in reader.finish()] == ["m", "m.1"]


def test_a_rewind_begins_a_branch() -> None:
    found = read(
        GEMINI_CLI,
        [HEADER, user("u1", "one"), model("m1", "1"), user("u2", "two"), model("m2", "2"), {"$rewindTo": "u2"},
         user("u3", "three")],
    )  # fmt: skip
    assert [message.text for message in found.branch.messages()] == ["one", "1", "three"]
    assert len(found.messages) == 5


def test_a_checkpoint_says_which_messages_there_are_now() -> None:
    poorer = {**model("m1", ""), "content": [{"text": "hm", "thought": True}, {"text": "1"}]}
    kept = {"$set": {"messages": [user("u1", "one"), poorer, user("s", "a summary")]}}
    found = read(GEMINI_CLI, [HEADER, user("u1", "one"), model("m1", "1"), user("u2", "two"), kept, user("u3", "on")])
    assert [message.text for message in found.branch.messages()] == ["one", "1", "a summary", "on"]
    assert "two" in found.said
    masked = {"$set": {"messages": [user("u1", "one"), {**poorer, "content": "1, shortened"}]}}
    found = read(GEMINI_CLI, [HEADER, user("u1", "one"), model("m1", "1"), masked])
    assert [message.text for message in found.branch.messages()] == ["one", "1, shortened"]


def test_lines_that_nobody_knows_are_kept() -> None:
    found = read(GEMINI_CLI, [HEADER, user("u", "hi"), {"type": "novelty", "of": "tomorrow"}, user("v", "there")])
    (kept,) = (entry for entry in found.entries if isinstance(entry, Custom))
    assert kept.data == {"type": "novelty", "of": "tomorrow"}
    assert [message.text for message in found.branch.messages()] == ["hi", "there"]
