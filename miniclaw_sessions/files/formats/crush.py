"""Crush's sessions, as lines out of its database (`.crush/crush.db` of each project); read only.

As its own source has it (`internal/db/migrations`, `internal/message/content.go`), a session has messages, and each of
them has parts, `{"type", "data"}`. The lines are `{"session": row}` and then `{"message": row}`, with the parts as
JSON. The results of tools are parts of a message of the role `tool`; each becomes a message of its own. A summary is a
compaction. What a session cost stands in its row alone, and stays in the header.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from miniclaw_sessions.core.protocol.entries import Compaction, Entry
from miniclaw_sessions.core.protocol.images import image_at
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, Part, Role, TextPart, ThinkingPart, ToolCall
from miniclaw_sessions.files.formats.codec import (
    Chain,
    Format,
    any_line,
    keeping,
    kept_apart,
    kept_whole,
    object_in,
    objects_in,
    plain,
    stated,
    taken_apart,
    text_of,
    without,
)
from miniclaw_sessions.files.formats.conversation import ConversationReader
from miniclaw_sessions.files.formats.times import from_seconds

NAME = "crush"

_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM, "tool": Role.TOOL_RESULT}
_OF_A_ROW = ("id", "session_id", "role", "parts", "model", "created_at", "is_summary_message")
_OF_A_RESULT = ("tool_call_id", "name", "content", "is_error")
_IMAGE = ("data", "mime_type")


def _session_of(line: Mapping[str, Any]) -> dict[str, Any]:
    session = object_in(line, "session")
    return session if text_of(session, "id") and "prompt_tokens" in session else {}


class _Reader(ConversationReader):
    def __init__(self, chain: Chain) -> None:
        super().__init__(chain, NAME)

    def _header(self, line: dict[str, Any]) -> dict[str, Any] | None:
        if not (session := _session_of(line)):
            return None
        self.facts.source_id, self.facts.title = session["id"], text_of(session, "title")
        self.facts.parent_session = text_of(session, "parent_session_id")
        self.facts.created_at = from_seconds(session.get("created_at"))
        return {**session, **without(line, "session")}

    def _entries(self, line: dict[str, Any]) -> Iterator[Entry]:
        row = object_in(line, "message")
        role, entry_id = _ROLES.get(text_of(row, "role") or ""), text_of(row, "id")
        if role is None or entry_id is None or not isinstance(row.get("parts"), list):
            return
        self._said_at = from_seconds(row.get("created_at")) or self._said_at
        kept = {**stated(without(row, *_OF_A_ROW)), **without(line, "message")}
        messages = [*_results(row), *([] if role is Role.TOOL_RESULT else [_message(role, row, kept)])]
        if row.get("is_summary_message") or self.facts.header.get("summary_message_id") == entry_id:
            summary, said_at = messages[-1].text if messages else "", self._said_at or self._time
            extra = keeping(kept, NAME)
            yield self._chain.add(Compaction, timestamp=said_at, entry_id=entry_id, summary=summary, extra=extra)
            return
        for number, message in enumerate(messages):
            yield self._said(message, {} if number else kept, f"{entry_id}.{number}" if number else entry_id)


def _message(role: Role, row: Mapping[str, Any], kept: dict[str, Any]) -> Message:
    pieces: list[Part | ToolCall] = []
    stop_reason = None
    for part in row["parts"]:
        match part:
            case {"type": "tool_result"}:
                continue
            case {"type": "finish", "data": {"reason": str(reason)} as data}:
                stop_reason = reason
                if rest := stated(without(data, "reason", "time")):
                    kept["finish"] = rest
            case {
                "type": "tool_call",
                "data": {"id": str(call_id), "name": str(name), "input": str(arguments)} as data,
            }:
                rest = {key: value for key, value in without(data, "id", "name", "input", "finished").items() if value}
                pieces.append(ToolCall(call_id, name, arguments, extra=keeping(rest, NAME)))
            case _:
                pieces.append(_part(part))
    content, calls = taken_apart(pieces)
    if role is not Role.ASSISTANT:
        return Message(role, plain(content))
    return Message(role, plain(content), tool_calls=calls, model=text_of(row, "model"), stop_reason=stop_reason)


def _part(part: Any) -> Part:
    match part:
        case {"type": "text", "data": {"text": str(text)}}:
            return TextPart(text)
        case {"type": "reasoning", "data": {"thinking": str(text)} as data}:
            rest = {name: value for name, value in without(data, "thinking", "signature").items() if value}
            return ThinkingPart(text, text_of(data, "signature"), extra=keeping(rest, NAME))
        case {"type": "image_url", "data": {"url": str(url)} as data}:
            return image_at(url, kept_apart(data, ("url",), NAME))
        case {"type": "binary", "data": {"MIMEType": str(kind), "Data": str(data)} as fields} if _is_image(kind):
            return ImagePart(kind, data, extra=kept_apart(fields, ("MIMEType", "Data"), NAME))
        case _:
            return kept_whole(part, NAME, "part")


def _results(row: Mapping[str, Any]) -> Iterator[Message]:
    for part in objects_in(row, "parts"):
        match part:
            case {"type": "tool_result", "data": {"tool_call_id": str(call_id), "content": str(text)} as data}:
                kind, image = text_of(data, "mime_type") or "", text_of(data, "data")
                pictures = (ImagePart(kind, image),) if image and _is_image(kind) else ()
                rest = {name: value for name, value in without(data, *_OF_A_RESULT, *_IMAGE).items() if value}
                yield Message(
                    Role.TOOL_RESULT,
                    plain((TextPart(text), *pictures)) if pictures else text,
                    tool_call_id=call_id,
                    name=text_of(data, "name"),
                    is_error=data.get("is_error") is True,
                    extra=keeping(rest if pictures else {**rest, **_unshown(data)}, NAME),
                )


def _unshown(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a tool gave back that is no image."""
    return {name: data[name] for name in _IMAGE if data.get(name)}


def _is_image(kind: str) -> bool:
    return kind.startswith("image/")


CRUSH = Format(
    name=NAME,
    about="Crush's sessions, as lines out of its database; read only",
    suffix=".jsonl",
    recognize=any_line(lambda line: bool(_session_of(line))),
    reader=_Reader,
)
