"""Copilot CLI's sessions (`~/.copilot/session-state/*/events.jsonl`), and its older form, one document; read only.

As the events of its SDK have it (`nodejs/src/generated/session-events.ts`), a line is an event, `{"type", "id",
"parentId", "timestamp", "data"}`. Messages and the results of tools are entries here, with the ids of their events; all
other events are kept as they came. An event that follows an earlier one than its neighbour, or a
`session.snapshot_rewind`, begins a branch. What a subagent says is a branch of its own, beside its call.

The older form (`history-session-state/*.json`) has `chatMessages`, which are OpenAI's, without times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from miniclaw_sessions.core.protocol.entries import Compaction, Entry
from miniclaw_sessions.core.protocol.messages import Message, Part, Role, TextPart, ThinkingPart, ToolCall, Usage
from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.formats.codec import (
    Chain,
    Format,
    amount_of,
    any_line,
    count_of,
    keeping,
    moment_of,
    object_in,
    objects_in,
    plain,
    text_of,
    without,
)
from miniclaw_sessions.files.formats.conversation import ConversationReader
from miniclaw_sessions.files.formats.openai_chat import from_openai
from miniclaw_sessions.files.formats.tool_calls import arguments_text

NAME = "copilot-cli"

_KINDS = ("session.", "user.message", "assistant.", "tool.", "system.", "subagent.", "hook.", "skill.", "abort")
_OF_A_REPLY = ("content", "reasoningText", "toolRequests", "model", "outputTokens")


def _is_event(line: Mapping[str, Any]) -> bool:
    kind = line.get("type")
    is_event = isinstance(kind, str) and kind.startswith(_KINDS) and isinstance(line.get("data"), dict)
    return is_event and isinstance(line.get("id"), str) and "parentId" in line


def _is_document(document: Any) -> bool:
    is_session = isinstance(document, dict) and isinstance(document.get("sessionId"), str)
    return is_session and isinstance(document.get("chatMessages"), list)


class _Reader(ConversationReader):
    def __init__(self, chain: Chain) -> None:
        super().__init__(chain, NAME)
        self._ends: dict[str, str | None] = {}  # of each event: the entry on which the conversation goes on behind it
        self._starts: dict[str, str | None] = {}  # and before it
        self._sides: dict[str, str | None] = {}  # of each call of a subagent: its last entry
        self._tools: dict[str, str] = {}  # the names of tools by their calls
        self._model: str | None = None
        self._thought = ""

    def _header(self, line: dict[str, Any]) -> dict[str, Any] | None:
        if line.get("type") != "session.start" or not isinstance(line.get("data"), dict):
            return None
        data = line["data"]
        self.facts.source_id = text_of(data, "sessionId") or ""
        self.facts.created_at = moment_of(data.get("startTime"))
        self._model = text_of(data, "selectedModel")
        if isinstance(line.get("id"), str):
            self._ends[line["id"]] = self._starts[line["id"]] = None
        return {**data, **without(line, "data", "type")}

    def _take(self, line: dict[str, Any]) -> list[Entry]:
        data, event_id = object_in(line, "data"), text_of(line, "id")
        side = text_of(data, "parentToolCallId") or text_of(line, "agentId")  # newer versions name the agent
        side = side if line.get("type") != "session.start" else None
        main = self.facts.leaf_id
        before = self._sides.get(side, main) if side else self._ends.get(text_of(line, "parentId") or "", main)
        self._chain.last_id = before
        entries = super()._take(line)
        last = self._chain.last_id
        if side:
            self._sides[side] = last
            self._chain.last_id = last = main
        elif line.get("type") == "session.snapshot_rewind" and (back := _taken_back(data)) in self._starts:
            last = self._starts[back]
        self.facts.leaf_id = last
        if event_id:
            self._starts.setdefault(event_id, before)
            self._ends.setdefault(event_id, last)
        return entries

    def _entries(self, line: dict[str, Any]) -> Iterator[Entry]:
        data, event_id = line.get("data"), text_of(line, "id")
        if not isinstance(data, dict) or event_id is None:
            return
        self._said_at = moment_of(line.get("timestamp")) or self._said_at
        kept = without(line, "type", "data", "id", "timestamp", "parentId")
        match line.get("type"):
            case "user.message" if isinstance(data.get("content"), str):
                message = Message(Role.USER, data["content"])
                yield self._said(message, {**without(data, "content"), **kept}, event_id)
            case "assistant.message" if isinstance(data.get("content"), str | None):
                yield self._said(self._reply(data), {**_unread(data), **kept}, event_id)
            case "tool.execution_complete" if text_of(data, "toolCallId") in self._tools:
                yield self._said(self._result(data), {**without(data, "toolCallId", "success"), **kept}, event_id)
            case "session.compaction_complete" if summary := text_of(data, "summaryContent"):
                yield self._compaction(event_id, summary, {**without(data, "summaryContent"), **kept})
            case kind:
                self._note(kind, data)

    def _note(self, kind: Any, data: Mapping[str, Any]) -> None:
        """What an event says that is no entry of its own."""
        match kind:
            case "session.model_change":
                self._model = text_of(data, "newModel") or self._model
            case "session.title_changed":
                self.facts.title = text_of(data, "title") or self.facts.title
            case "assistant.reasoning":
                self._thought = text_of(data, "content") or ""

    def _compaction(self, event_id: str, summary: str, kept: dict[str, Any]) -> Entry:
        before, said_at = amount_of(kept, "preCompactionTokens"), self._said_at or self._time
        fields: dict[str, Any] = {"summary": summary, "tokens_before": before, "extra": keeping(kept, NAME)}
        return self._chain.add(Compaction, timestamp=said_at, entry_id=event_id, **fields)

    def _reply(self, data: Mapping[str, Any]) -> Message:
        thought, self._thought = text_of(data, "reasoningText") or self._thought, ""
        text, output = text_of(data, "content"), count_of(data, "outputTokens")
        parts: tuple[Part, ...] = (*((ThinkingPart(thought),) if thought else ()), *((TextPart(text),) if text else ()))
        calls: list[ToolCall] = []
        for call in objects_in(data, "toolRequests"):
            call_id, name = text_of(call, "toolCallId"), text_of(call, "name")
            if call_id and name:
                self._tools[call_id] = name
                arguments = call.get("arguments")
                written = arguments if isinstance(arguments, str) else arguments_text(arguments or {})
                calls.append(ToolCall(call_id, name, written))
        return Message(
            Role.ASSISTANT,
            plain(parts),
            tool_calls=tuple(calls) or None,
            model=text_of(data, "model") or self._model,
            usage=None if output is None else Usage(output_tokens=max(output, 0)),
        )

    def _result(self, data: Mapping[str, Any]) -> Message:
        call_id, failed = data["toolCallId"], data.get("success") is False
        text = text_of(object_in(data, "error"), "message") if failed else None
        text = text or text_of(object_in(data, "result"), "content") or ""
        return Message(Role.TOOL_RESULT, text, tool_call_id=call_id, name=self._tools[call_id], is_error=failed)


def _taken_back(data: Mapping[str, Any]) -> str:
    """The first event that was taken back."""
    listed = data.get("eventIds")
    first = listed[0] if isinstance(listed, list) and listed else data.get("upToEventId")
    return first if isinstance(first, str) else ""


def _unread(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a reply says beside what is read; its calls too, where one of them could not be."""
    calls = objects_in(data, "toolRequests")
    asked = data.get("toolRequests") or []
    is_read = calls == asked and all(text_of(call, "toolCallId") and text_of(call, "name") for call in calls)
    rest = [without(call, "toolCallId", "name", "arguments") for call in calls]
    kept = without(data, *_OF_A_REPLY)
    if any(rest) or not is_read:
        kept["toolRequests"] = rest if is_read else asked
    return kept


class _DocumentReader(ConversationReader):
    def __init__(self, chain: Chain) -> None:
        super().__init__(chain, f"{NAME}-json")

    def feed(self, piece: Any) -> Iterator[Entry]:  # type: ignore[override]
        """The older form."""
        if not _is_document(piece):
            raise ImportRefused("this document has no sessionId and chatMessages, as Copilot CLI wrote them")
        yield from self._document(without(piece, "chatMessages"), piece["chatMessages"])

    def _header(self, line: dict[str, Any]) -> dict[str, Any]:
        self.facts.source_id = text_of(line, "sessionId") or ""
        self.facts.created_at = self._said_at = moment_of(line.get("startTime"))
        return line

    def _entries(self, line: dict[str, Any]) -> Iterator[Entry]:
        (message,) = from_openai([line])
        yield self._said(message)


COPILOT_CLI = Format(
    name=NAME,
    about="Copilot CLI's sessions, with their rewinds and subagents; read only",
    suffix=".jsonl",
    recognize=any_line(_is_event),
    reader=_Reader,
)
COPILOT_CLI_JSON = Format(
    name=f"{NAME}-json",
    about="Copilot CLI's sessions in their older form, one document; read only",
    suffix=".json",
    recognize=lambda sample: _is_document(sample.document),
    reader=_DocumentReader,
    by_line=False,
)
