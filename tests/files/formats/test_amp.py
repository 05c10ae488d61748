"""Amp's threads (tests/programs/amp.py)."""

from __future__ import annotations

from miniclaw_sessions.core.protocol.messages import ThinkingPart, Usage
from miniclaw_sessions.files.formats.amp import AMP
from tests.files.formats.codec_files import check, read
from tests.programs import amp


def test_a_thread_is_read_as_it_went() -> None:
    found = read(AMP, [amp.DOCUMENT])
    check(found)
    asked, called, result, answer = found.messages
    assert (asked.text, answer.text, result.text) == ("What is an esker?", "A ridge of gravel.", "esker.txt\n")
    assert isinstance(called.content[0], ThinkingPart)
    assert (called.content[0].thinking, called.content[0].signature) == ("A ridge.", "sig")
    assert called.tool_calls is not None
    assert (called.tool_calls[0].name, called.tool_calls[0].arguments) == ("Bash", '{"cmd":"ls"}')
    assert (called.model, called.usage) == ("claude-opus-4-5-20251101", Usage(12, 80, 3_400, 900))
    assert (result.tool_call_id, result.name, result.is_error) == ("toolu_01", "Bash", False)
    assert (called.stop_reason, answer.stop_reason) == ("tool_use", "end_turn")
    assert (found.facts.source_id, found.facts.title) == (amp.ID, "Eskers")
    assert [str(message.timestamp)[:19] for message in found.messages] == [
        *("2026-01-12 00:36:25", "2026-01-12 00:38:10", "2026-01-12 00:38:10", "2026-01-12 00:38:10")
    ]


def test_what_is_being_written_is_left_out_and_a_call_that_was_refused_says_so() -> None:
    writing = amp.said(4, "assistant", amp.text("I am just say"), state={"type": "streaming"})
    refused = {"type": "tool_result", "toolUseID": "toolu_01", "run": {"status": "rejected-by-user", "reason": "no"}}
    messages = [*amp.MESSAGES[:2], amp.said(2, "user", refused), writing]
    found = read(AMP, [{**amp.DOCUMENT, "messages": messages}])
    check(found)
    assert "I am just say" not in found.said
    assert (found.messages[-1].text, found.messages[-1].is_error) == ("no", True)
