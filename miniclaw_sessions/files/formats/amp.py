"""Amp's threads (`~/.local/share/amp/threads/T-*.json`), one document each; read only.

Amp does not document them; this is after threads in public repositories. Their messages are like Anthropic's, with a
result of a tool as `{"toolUseID", "run": {"status", "result"}}`. Times are sparse: a message without one has that of
the message before it. A message that is being written is left out. Amp may write a thread again, so ids are made of
what is said. Newer versions of Amp (since 2026) keep their threads on its server, and write no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, Part, Role, ToolCall, Usage
from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.formats.blocks import read_block
from miniclaw_sessions.files.formats.codec import (
    Chain,
    Format,
    amount_of,
    count_of,
    kept_apart,
    kept_whole,
    moment_of,
    object_in,
    plain,
    taken_apart,
    text_of,
    without,
)
from miniclaw_sessions.files.formats.conversation import ConversationReader
from miniclaw_sessions.files.formats.times import from_seconds

NAME = "amp"

_OF_A_MESSAGE = ("role", "content")


def _is_document(document: Any) -> bool:
    is_thread = isinstance(document, dict) and isinstance(document.get("messages"), list)
    return is_thread and (text_of(document, "id") or "").startswith("T-") and count_of(document, "created") is not None


class _Reader(ConversationReader):
    def __init__(self, chain: Chain) -> None:
        super().__init__(chain, NAME)
        self._names: dict[str, str] = {}  # of the tools, by their calls

    def feed(self, piece: Any) -> Iterator[Entry]:  # type: ignore[override]
        """A thread."""
        if not _is_document(piece):
            raise ImportRefused("this document has no id of a thread, created and messages, as Amp writes them")
        messages = piece["messages"]
        last = messages[-1] if messages and isinstance(messages[-1], dict) else {}
        is_open = object_in(last, "state").get("type") == "streaming"
        yield from self._document(without(piece, "messages"), messages[:-1] if is_open else messages)

    def _header(self, line: dict[str, Any]) -> dict[str, Any]:
        self.facts.source_id, self.facts.title = text_of(line, "id") or "", text_of(line, "title")
        self.facts.created_at = self._said_at = from_seconds(line.get("created"))
        return line

    def _entries(self, line: dict[str, Any]) -> Iterator[Entry]:
        if line.get("role") not in ("user", "assistant") or not isinstance(line.get("content"), list):
            return
        usage = object_in(line, "usage")
        said_at = from_seconds(object_in(line, "meta").get("sentAt")) or moment_of(usage.get("timestamp"))
        self._said_at = said_at or self._said_at
        pieces: list[Part | ToolCall] = []
        results: list[Message] = []
        for block in line["content"]:
            match block:
                case {"type": "tool_result", "toolUseID": str(call_id)}:
                    results.append(_result(call_id, self._names.get(call_id), block))
                case _:
                    pieces.append(_piece(block))
                    if isinstance(pieces[-1], ToolCall):
                        self._names[pieces[-1].id] = pieces[-1].name
        kept = without(line, *_OF_A_MESSAGE)
        for result in results:
            yield self._said(result, kept)
            kept = {}
        if pieces or not results:
            yield self._said(_message(line, pieces), kept)


def _message(line: Mapping[str, Any], pieces: list[Part | ToolCall]) -> Message:
    content, calls = taken_apart(pieces)
    if line["role"] == "user":
        return Message(Role.USER, plain(content))
    usage, state = object_in(line, "usage"), object_in(line, "state")
    stop_reason = text_of(state, "stopReason") or ("aborted" if state.get("type") == "cancelled" else None)
    model = text_of(usage, "model")
    return Message(
        Role.ASSISTANT, plain(content), tool_calls=calls, model=model, usage=_usage(usage), stop_reason=stop_reason
    )


def _piece(block: Any) -> Part | ToolCall:
    match block:
        case {"type": "image", "source": {"data": str(data), "mediaType": str(kind)}}:
            return ImagePart(kind, data)
        case {"type": "thinking", **rest}:
            return read_block({**rest, "type": "thinking"}, NAME) or kept_whole(block, NAME, "block")
        case {"type": "tool_use"}:
            return read_block(without(block, "complete"), NAME) or kept_whole(block, NAME, "block")
        case _:
            return read_block(block, NAME) or kept_whole(block, NAME, "block")


def _result(call_id: str, name: str | None, block: Mapping[str, Any]) -> Message:
    run = object_in(block, "run")
    status, given = run.get("status"), run.get("result")
    failed = status in ("error", "cancelled", "rejected-by-user")
    if given is None:
        given = run.get("error") or run.get("reason") or block.get("content")
    fields = given if isinstance(given, dict) else {}
    text = given if isinstance(given, str) else text_of(fields, "message") if failed else text_of(fields, "output")
    if text is None:
        text = "" if given is None else msgspec.json.encode(given).decode()
    extra = kept_apart(block, ("type", "toolUseID"), NAME)
    return Message(Role.TOOL_RESULT, text, tool_call_id=call_id, name=name, is_error=failed, extra=extra)


def _usage(fields: Mapping[str, Any]) -> Usage | None:
    if not fields:
        return None
    return Usage(
        amount_of(fields, "inputTokens"),
        amount_of(fields, "outputTokens"),
        amount_of(fields, "cacheReadInputTokens"),
        amount_of(fields, "cacheCreationInputTokens"),
    )


AMP = Format(
    name=NAME,
    about="Amp's threads, one document each; read only",
    suffix=".json",
    recognize=lambda sample: _is_document(sample.document),
    reader=_Reader,
    by_line=False,
)
