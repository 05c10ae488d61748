"""Sessions, messages and events as JSON documents: what the HTTP interface answers, and the command line prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from miniclaw_sessions.agent.events import (
    AgentEvent,
    MessageAccepted,
    ReplyFinished,
    SessionCompacted,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStopped,
    TurnSuspended,
)
from miniclaw_sessions.agent.provider import TextDelta
from miniclaw_sessions.history.transcript import Transcript
from miniclaw_sessions.protocol.encoding import message_to_dict
from miniclaw_sessions.protocol.entries import MessageEntry, moves_leaf
from miniclaw_sessions.protocol.messages import Message, Usage
from miniclaw_sessions.session import Session
from miniclaw_sessions.session.compacting import CompactionOutcome
from miniclaw_sessions.session.session import SessionContext

if TYPE_CHECKING:
    from miniclaw_sessions.transfer.importing import ImportReport

Document = dict[str, Any]


def session_document(session: Session) -> Document:
    """Everything about a session but its messages."""
    statistics = session.journal.statistics()
    return {
        "session_id": session.session_id,
        "channel": session.key.channel,
        "chat_id": session.key.chat_id,
        "title": session.title,
        "agent_id": session.metadata.get("agent_id"),
        "messages": statistics.messages,
        "window": statistics.window,
        "message_count": session.message_count,
        "event_count": session.event_count,
        "entries": session.last_sequence,
        "leaf_id": session.leaf_id,
        "usage": _usage_document(session.total_usage),
        "committed_sequence": session.journal.committed_sequence,
        "dirty": statistics.dirty,
        "created_at": msgspec.to_builtins(session.created_at),
        "last_accessed": msgspec.to_builtins(session.last_accessed),
        "updated_at": msgspec.to_builtins(session.updated_at),
        "incarnation": session.journal.incarnation,
        "metadata": dict(session.metadata),
    }


def message_document(message: Message) -> Document:
    """A message like its stored form, but with its content also where that is empty."""
    return {"content": "", **message_to_dict(message)}


def entry_document(entry: MessageEntry) -> Document:
    """A message with its entry's id and sequence, which win over fields of these names in the message."""
    return {**message_document(entry.message), "id": entry.id, "sequence": entry.sequence}


def context_document(context: SessionContext) -> Document:
    """What is in force at the leaf, and what is wrong with the branch; the messages follow one by one."""
    return {
        "provider": context.provider,
        "model": context.model,
        "thinking_level": context.thinking_level,
        "problems": list(context.problems),
    }


def tree_document(transcript: Transcript) -> Document:
    """What there is to say of a tree as a whole; `encoded_children` follow one by one."""
    return {
        "session_id": transcript.session_id,
        "leaf_id": transcript.leaf_id,
        "labels": dict(transcript.labels),
        "problems": transcript.problems,
        "roots": _ids_of(transcript, None),
    }


def encoded_children(transcript: Transcript) -> Iterator[bytes]:
    """Who follows whom, one JSON pair for each entry that something follows.

    Free metadata has no place in the tree, and is left out unless something follows it.
    """
    for entry in transcript.entries:
        if children := _ids_of(transcript, entry.id):
            yield orjson.dumps(entry.id) + b":" + orjson.dumps(children)


def _ids_of(transcript: Transcript, parent_id: str | None) -> list[str]:
    following = transcript.children(parent_id)
    return [entry.id for entry in following if moves_leaf(entry) or transcript.children(entry.id)]


def compaction_document(outcome: CompactionOutcome) -> Document:
    """What became of a compaction."""
    document: Document = msgspec.to_builtins(outcome)
    return document


def import_document(report: ImportReport) -> Document:
    """What became of an imported file; what was set aside is told of, and not repeated."""
    return {
        "session_id": report.session_id,
        "format": report.format,
        "title": report.title,
        "entries": report.entries,
        "messages": report.messages,
        "repaired": report.repaired,
        "set_aside": report.set_aside,
        "findings": [{"line": one.line, "outcome": one.outcome.value, "text": one.text} for one in report.findings],
        "bytes_read": report.bytes_read,
        "dry_run": report.dry_run,
    }


def event_document(event: AgentEvent) -> tuple[str, Document]:  # noqa: PLR0911 - one for each kind of event
    """An event of a turn and its data.

    Its names: accepted, text, tool_started, tool_finished, usage, compacted; at the end suspended, stopped or done.
    """
    match event:
        case MessageAccepted(entry=entry):
            return "accepted", {"entry_id": entry.id}
        case TextDelta(text=text):
            return "text", {"text": text}
        case ToolStarted(call=call):
            return "tool_started", {"id": call.id, "name": call.name, "arguments": call.arguments}
        case ToolFinished(call=call):
            return "tool_finished", {"id": call.id, "name": call.name, "is_error": event.is_error}
        case ReplyFinished(message=message):
            return "usage", {"usage": _usage_document(message.usage or Usage()), "model": message.model}
        case SessionCompacted(outcome=outcome):
            return "compacted", {"status": outcome.status.value, "detail": outcome.detail}
        case TurnSuspended(pending=pending, usage=usage):
            waiting = [{"id": one.call.id, "name": one.call.name, "reason": one.reason} for one in pending]
            return "suspended", {"pending": waiting, "usage": _usage_document(usage)}
        case TurnStopped(message=message, usage=usage):
            return "stopped", {"message": message_document(message), "usage": _usage_document(usage)}
        case TurnFinished(message=message, usage=usage):
            return "done", {"message": message_document(message), "usage": _usage_document(usage)}


def _usage_document(usage: Usage) -> Document:
    fields = {name: getattr(usage, name) for name in usage.__struct_fields__ if name != "extra"}
    return {**fields, "total_tokens": usage.total}
