"""The events of an answer as documents, beside what the interface's description says about them."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from miniclaw_sessions import Message, MessageEntry, Role, ToolCall, Usage
from miniclaw_sessions.agent.events import (
    AgentEvent,
    MessageAccepted,
    PendingCall,
    ReplyFinished,
    SessionCompacted,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStopped,
    TurnSuspended,
)
from miniclaw_sessions.agent.provider import TextDelta
from miniclaw_sessions.channels.delivery import event_document
from miniclaw_sessions.core.session.compacting import CompactionOutcome, CompactionStatus
from miniclaw_sessions.service.api.chat import EVENTS
from miniclaw_sessions.service.api.events import PendingCallRow
from miniclaw_sessions.service.api.shapes import UsageReply

CALL = ToolCall("call_1", "add", "{}")
ENTRY = MessageEntry(
    id="1", parent_id=None, timestamp=datetime(2026, 1, 1, tzinfo=UTC), sequence=1, message=Message.user("hello")
)
REPLY = Message(Role.ASSISTANT, "hello", model="small", usage=Usage(1, 2))
EVENTS_OF_A_TURN: list[AgentEvent] = [
    MessageAccepted(ENTRY),
    TextDelta("he"),
    ToolStarted(CALL),
    ToolFinished(CALL, Message.tool_result(CALL, "2")),
    ReplyFinished(REPLY),
    SessionCompacted(CompactionOutcome(status=CompactionStatus.SKIPPED, detail="small enough")),
    TurnSuspended((PendingCall(CALL, "may it?", {}, "2"),), Usage(1, 2)),
    TurnStopped(REPLY, Usage(1, 2)),
    TurnFinished(REPLY, Usage(1, 2)),
]


@pytest.mark.parametrize("event", EVENTS_OF_A_TURN, ids=lambda event: type(event).__name__)
def test_a_document_has_the_fields_of_its_description(event: AgentEvent) -> None:
    kind, document = event_document(event)
    assert list(document) == list(EVENTS[kind].__struct_fields__)
    assert list(document.get("usage", UsageReply.__struct_fields__)) == list(UsageReply.__struct_fields__)
    for call in document.get("pending", ()):
        assert msgspec.to_builtins(msgspec.convert(call, PendingCallRow)) == call
        assert list(call) == list(PendingCallRow.__struct_fields__)
