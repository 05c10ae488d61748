"""LibreChat's export of a conversation (`Export conversation`, JSON); read only.

As its own source has it (`client/src/hooks/Conversations/useExportConversation.ts`), an export has `messages`, a list
with `parentMessageId`, or `messagesTree`, where each has its `children`. With *all branches* it has the whole tree.
LibreChat itself keeps its conversations in MongoDB, which is not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.core.protocol.messages import Message, Part, Role, TextPart, ThinkingPart, ToolCall
from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.formats.codec import (
    Chain,
    Format,
    kept_whole,
    object_in,
    plain,
    taken_apart,
    text_of,
    without,
)
from miniclaw_sessions.files.formats.message_tree import MessageTreeReader, parents_first
from miniclaw_sessions.files.formats.tool_calls import arguments_text

NAME = "librechat"

_OF_A_MESSAGE = (
    *("messageId", "parentMessageId", "conversationId", "isCreatedByUser", "text", "content", "model", "createdAt"),
    *("finish_reason", "children"),
)
_LISTS = ("messages", "messagesTree")


def _is_document(document: Any) -> bool:
    is_export = isinstance(document, dict) and isinstance(document.get("conversationId"), str)
    return is_export and "exportAt" in document and any(isinstance(document.get(name), list) for name in _LISTS)


class _Reader(MessageTreeReader):
    def __init__(self, chain: Chain) -> None:
        super().__init__(chain, NAME, _place_of)

    def feed(self, piece: Any) -> Iterator[Entry]:  # type: ignore[override]
        """An export."""
        if not _is_document(piece):
            raise ImportRefused("this document has no conversationId, exportAt and messages, as LibreChat exports them")
        given = next(piece[name] for name in _LISTS if isinstance(piece.get(name), list))
        messages = parents_first(_flat(given), "messageId", "parentMessageId")
        yield from self._document(without(piece, *_LISTS), messages)

    def _header(self, line: dict[str, Any]) -> dict[str, Any]:
        self.facts.source_id, self.facts.title = text_of(line, "conversationId") or "", text_of(line, "title")
        return line

    def _entries(self, line: dict[str, Any]) -> Iterator[Entry]:
        entry_id, content = text_of(line, "messageId"), line.get("content")
        if entry_id is None or not isinstance(line.get("isCreatedByUser"), bool):
            return
        if not isinstance(content, list | None) or not isinstance(line.get("text"), str | None):
            return
        self._said_at = self._lines.moment_in(line, "createdAt") or self._said_at
        self.facts.created_at = self.facts.created_at or self._said_at
        kept = without(line, *_OF_A_MESSAGE)
        messages = [_asked(line)] if line["isCreatedByUser"] else list(_answered(line))
        for number, message in enumerate(messages):
            yield self._said(message, {} if number else kept, f"{entry_id}.{number}" if number else entry_id)


def _place_of(line: dict[str, Any]) -> tuple[str | None, str | None]:
    return text_of(line, "messageId"), text_of(line, "parentMessageId")


def _flat(messages: list[Any]) -> list[Any]:
    """The messages of a tree in a row; they may be nested deeper than calls."""
    found: list[Any] = []
    waiting = list(reversed(messages))
    while waiting:
        message = waiting.pop()
        children = message.get("children") if isinstance(message, dict) else None
        found.append(without(message, "children") if isinstance(children, list) else message)
        waiting += reversed(children) if isinstance(children, list) else ()
    return found


def _asked(line: Mapping[str, Any]) -> Message:
    return Message(Role.USER, text_of(line, "text") or "" if not line.get("content") else _spoken(line["content"])[0])


def _answered(line: Mapping[str, Any]) -> Iterator[Message]:
    """An answer: what was said up to the results of tools, the results, and what was said after them."""
    model, stop_reason = text_of(line, "model"), text_of(line, "finish_reason")
    rest = line.get("content") or [{"type": "text", "text": line.get("text") or ""}]
    while rest:
        cut = next((number + 1 for number, part in enumerate(rest) if _call(part) is not None), len(rest))
        while cut < len(rest) and _call(rest[cut]) is not None:
            cut += 1
        said, rest = rest[:cut], rest[cut:]
        content, calls = _spoken(said)
        yield Message(Role.ASSISTANT, content, tool_calls=calls, model=model, stop_reason=None if rest else stop_reason)
        for part in said:
            call, fields = _call(part), object_in(part, "tool_call") if isinstance(part, dict) else {}
            if call is not None and isinstance(output := fields.get("output"), str):
                yield Message(Role.TOOL_RESULT, output, tool_call_id=call.id, name=call.name)


def _spoken(parts: list[Any]) -> tuple[str | tuple[Part, ...], tuple[ToolCall, ...] | None]:
    content, calls = taken_apart([_call(part) or _part(part) for part in parts])
    return plain(content), calls


def _call(part: Any) -> ToolCall | None:
    match part:
        case {"type": "tool_call", "tool_call": {"id": str(call_id), "name": str(name)} as fields}:
            arguments = fields.get("args")
            return ToolCall(call_id, name, arguments if isinstance(arguments, str) else arguments_text(arguments or {}))
        case _:
            return None


def _part(part: Any) -> Part:
    match part:
        case {"type": "text", "text": str(text)} | {"type": "text", "text": {"value": str(text)}}:
            return TextPart(text)
        case {"type": "think", "think": str(text)} | {"type": "think", "think": {"value": str(text)}}:
            return ThinkingPart(text)
        case {"type": "error", "error": str(text)} | {"type": "error", "text": {"value": str(text)}}:
            return TextPart(text)
        case _:
            return kept_whole(part, NAME, "part")


LIBRECHAT = Format(
    name=NAME,
    about="LibreChat's export of a conversation with its branches; read only",
    suffix=".json",
    recognize=lambda sample: _is_document(sample.document),
    reader=_Reader,
    by_line=False,
)
