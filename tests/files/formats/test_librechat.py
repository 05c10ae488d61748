"""LibreChat's exports (tests/programs/librechat.py)."""

from __future__ import annotations

from typing import Any

from miniclaw_sessions.core.protocol.messages import ThinkingPart
from miniclaw_sessions.files.formats.codec import Sample, without
from miniclaw_sessions.files.formats.librechat import LIBRECHAT
from miniclaw_sessions.files.formats.registry import recognize
from tests.files.formats.codec_files import check, read
from tests.programs import librechat

BRANCH = ["What is an atoll?", "I look.", "a ring", "A ring of coral.", "Where?", "In the Pacific."]


def test_a_conversation_is_read_with_its_branches_from_a_list_and_from_a_tree() -> None:
    tree: dict[str, Any] = {**without(librechat.DOCUMENT, "messages"), "messagesTree": librechat.nested()}
    for document in (librechat.DOCUMENT, tree):
        assert recognize(Sample(document=document)) is LIBRECHAT
        found = read(LIBRECHAT, [document])
        check(found)
        assert sorted(found.said) == sorted([*BRANCH, "A reef."])
        assert [message.text for message in found.context] == BRANCH
        assert (found.facts.source_id, found.facts.title) == (librechat.ID, "Atolls")


def test_thoughts_calls_and_results_are_what_they_are() -> None:
    called, result, answer = read(LIBRECHAT, [librechat.DOCUMENT]).context[1:4]
    assert isinstance(called.content[0], ThinkingPart)
    assert called.tool_calls is not None
    assert (called.tool_calls[0].name, called.tool_calls[0].arguments) == ("web", '{"q":"atoll"}')
    assert (result.tool_call_id, answer.model, answer.stop_reason) == ("c1", "gpt-4o", "stop")
    assert str(called.timestamp) == "2026-05-28 18:08:03.014000+00:00"
