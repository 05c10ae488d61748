"""Goose's sessions: older ones in files (`sessions/*.jsonl`), newer ones in `sessions/sessions.db`; read only.

As its own source has it (`crates/goose/src/session/session_manager.rs`, `storage.rs` and `conversation/message.rs`), a
file has a line about the session and then a line for each message, `{"role", "created", "content": [...]}`. The
database is read as the same lines. `goose session export` writes one document, the session with its `conversation`.

A tool's result is a part of a user's message, and becomes a message of its own. When Goose compacts a conversation, it
hides its messages from the model and adds a summary that only the model sees: the summary is a compaction here.
Goose may write all of a session again, so ids are made of what is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from miniclaw_sessions.core.protocol.entries import Compaction, Entry
from miniclaw_sessions.core.protocol.messages import (
    ImagePart,
    Message,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    Usage,
)
from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.formats.codec import (
    Chain,
    Format,
    amount_of,
    any_line,
    count_of,
    keeping,
    kept_whole,
    moment_of,
    object_in,
    objects_in,
    plain,
    taken_apart,
    text_of,
    without,
)
from miniclaw_sessions.files.formats.conversation import ConversationReader
from miniclaw_sessions.files.formats.times import from_seconds
from miniclaw_sessions.files.formats.tool_calls import arguments_text

NAME = "goose"

_PARTS = ("text", "image", "thinking", "redactedThinking", "toolRequest", "toolResponse", "systemNotification")
_CALLS = ("toolRequest", "frontendToolRequest")
_SHOWN = ("userVisible", "agentVisible", "usage", "inference")


def _is_header(line: Mapping[str, Any]) -> bool:
    if "role" in line or "conversation" in line:
        return False
    names = ("message_count", "extension_data", "accumulated_total_tokens")
    return any(isinstance(line.get(name), str) for name in ("description", "name")) and any(n in line for n in names)


def _is_message(line: Mapping[str, Any]) -> bool:
    parts = objects_in(line, "content")
    is_said = line.get("role") in ("user", "assistant") and count_of(line, "created") is not None
    return is_said and bool(parts) and all(part.get("type") in _PARTS for part in parts)


def _is_document(document: Any) -> bool:
    is_session = isinstance(document, dict) and isinstance(document.get("conversation"), list)
    return is_session and isinstance(document.get("id"), str) and "working_dir" in document


class _Reader(ConversationReader):
    def __init__(self, chain: Chain) -> None:
        super().__init__(chain, NAME)
        self._names: dict[str, str] = {}  # of the tools, by their calls
        self._has_hidden = False

    def _header(self, line: dict[str, Any]) -> dict[str, Any] | None:
        if not _is_header(line):
            return None
        self.facts.source_id = text_of(line, "id") or ""
        self.facts.title = text_of(line, "name") or text_of(line, "description")
        self.facts.parent_session = text_of(line, "parent_session_id")
        created = text_of(line, "created_at")
        self.facts.created_at = moment_of(created.replace(" ", "T")) if created else None
        return line

    def _entries(self, line: dict[str, Any]) -> Iterator[Entry]:
        if line.get("role") not in ("user", "assistant") or not isinstance(line.get("content"), list):
            return
        self._said_at = from_seconds(line.get("created")) or self._said_at
        metadata = object_in(line, "metadata")
        message, results = self._messages(line, metadata)
        kept = {**without(line, "role", "created", "content", "metadata", "id"), **without(metadata, *_SHOWN)}
        for result in results:
            yield self._said(result, kept)
            kept = {}
        if message is None:
            return
        if self._is_summary(metadata, message):
            made = self._made_id(message)
            said_at = self._said_at or self._time
            yield self._chain.add(
                Compaction, timestamp=said_at, entry_id=made, summary=message.text, extra=keeping(kept, NAME)
            )
        else:
            yield self._said(message, kept)

    def _is_summary(self, metadata: Mapping[str, Any], message: Message) -> bool:
        """Whether the model sees this instead of what stands before it."""
        is_shown, is_sent = metadata.get("userVisible", True), metadata.get("agentVisible", True)
        if is_sent is False:
            self._has_hidden |= not _is_notice(message)
            return False
        is_summary = is_shown is False and self._has_hidden and "turnContext" not in metadata and bool(message.text)
        self._has_hidden &= not is_summary
        return is_summary

    def _messages(self, line: Mapping[str, Any], metadata: Mapping[str, Any]) -> tuple[Message | None, list[Message]]:
        """What a line says, and the results of tools in it."""
        pieces: list[Part | ToolCall] = []
        results: list[Message] = []
        for part in line["content"]:
            match part:
                case {"type": "toolResponse", "id": str(call_id), "toolResult": outcome}:
                    results.append(_result(call_id, self._names.get(call_id), outcome))
                case {
                    "type": "toolRequest" | "frontendToolRequest",
                    "id": str(call_id),
                    "toolCall": {"value": dict(call)},
                }:
                    name = text_of(call, "name") or ""
                    self._names[call_id] = name
                    pieces.append(ToolCall(call_id, name, arguments_text(call.get("arguments") or {})))
                case _:
                    pieces.append(_part(part))
        if not pieces:
            return None, results
        content, calls = taken_apart(pieces)
        if line["role"] == "user":
            return Message(Role.USER, plain(content)), results
        inference = object_in(metadata, "inference")
        model = text_of(inference, "resolvedModel") or text_of(inference, "requestedModel")
        usage = _usage(metadata.get("usage"))
        return Message(Role.ASSISTANT, plain(content), tool_calls=calls, model=model, usage=usage), results


class _DocumentReader(_Reader):
    def feed(self, piece: Any) -> Iterator[Entry]:  # type: ignore[override]
        """An export."""
        if not _is_document(piece):
            raise ImportRefused(
                "this document has no id, working_dir and conversation, as `goose session export` writes"
            )
        yield from self._document(
            {"extension_data": {}, "name": "", **without(piece, "conversation")}, piece["conversation"]
        )


def _part(part: Any) -> Part:
    match part:
        case {"type": "text", "text": str(text)}:
            return TextPart(text)
        case {"type": "thinking", "thinking": str(text)}:
            return ThinkingPart(text, text_of(part, "signature"))
        case {"type": "image", "data": str(data), "mimeType": str(kind)}:
            return ImagePart(kind, data)
        case _:
            return kept_whole(part, NAME, "part")


def _is_notice(message: Message) -> bool:
    """Whether a message is what the program itself says to people."""
    return not isinstance(message.content, str) and not message.text


def _result(call_id: str, name: str | None, outcome: Any) -> Message:
    """What a tool gave back: a list of parts, or since 2025-11 an object with them; a text where it failed."""
    fields = outcome if isinstance(outcome, dict) else {"value": outcome}
    value = fields.get("value")
    given = value if isinstance(value, dict) else {"content": value}
    parts = given.get("content")
    failed = fields.get("status") == "error" or given.get("isError") is True
    if isinstance(fields.get("error"), str):
        return Message(Role.TOOL_RESULT, fields["error"], tool_call_id=call_id, name=name, is_error=failed)
    content = plain(tuple(map(_part, parts))) if isinstance(parts, list) else _text(parts)
    return Message(Role.TOOL_RESULT, content, tool_call_id=call_id, name=name, is_error=failed)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else msgspec.json.encode(value).decode()


def _usage(fields: Any) -> Usage | None:
    """Its input includes what came from the cache, where it says that."""
    if not isinstance(fields, dict):
        return None
    read, written = amount_of(fields, "cacheReadTokens"), amount_of(fields, "cacheWriteTokens")
    cost = fields.get("cost")
    return Usage(
        max(amount_of(fields, "inputTokens") - read - written, 0),
        amount_of(fields, "outputTokens"),
        read,
        written,
        total_tokens=count_of(fields, "totalTokens"),
        cost=float(cost) if isinstance(cost, int | float) and cost and not isinstance(cost, bool) else None,
    )


GOOSE = Format(
    name=NAME,
    about="Goose's sessions, in files or as lines out of its database; read only",
    suffix=".jsonl",
    recognize=any_line(lambda line: _is_header(line) or _is_message(line)),
    reader=_Reader,
)
GOOSE_EXPORT = Format(
    name=f"{NAME}-export",
    about="What `goose session export --format json` writes; read only",
    suffix=".json",
    recognize=lambda sample: _is_document(sample.document),
    reader=_DocumentReader,
    by_line=False,
)
