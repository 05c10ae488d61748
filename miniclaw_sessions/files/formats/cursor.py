"""Cursor's chats, as lines out of its databases (`state.vscdb`); read only.

Cursor does not document them; this is after what public repositories have found in them. A chat (a *composer*) has
bubbles: `type` is 1 for what a person says and 2 for the model; a bubble has a text, a thought, or a call of a tool
together with its result. The lines are `{"composer": ...}` and then `{"bubble": ...}`. What cannot be known: earlier
versions of a chat that was reset to one of its messages, and in older versions the time of a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.core.protocol.messages import Message, Part, Role, TextPart, ThinkingPart, ToolCall, Usage
from miniclaw_sessions.files.formats.codec import (
    Chain,
    Format,
    amount_of,
    any_line,
    moment_of,
    object_in,
    plain,
    text_of,
    without,
)
from miniclaw_sessions.files.formats.conversation import ConversationReader
from miniclaw_sessions.files.formats.times import from_seconds

NAME = "cursor"

_ROLES = {1: Role.USER, 2: Role.ASSISTANT, "user": Role.USER, "ai": Role.ASSISTANT}
_OF_A_BUBBLE = ("bubbleId", "type", "text", "thinking", "toolFormerData", "createdAt", "tokenCount", "modelInfo")
_OF_A_CALL = ("toolCallId", "name", "params", "rawArgs", "result")


def _composer_of(line: Mapping[str, Any]) -> dict[str, Any]:
    composer = object_in(line, "composer")
    return composer if text_of(composer, "composerId") else {}


class _Reader(ConversationReader):
    def __init__(self, chain: Chain) -> None:
        super().__init__(chain, NAME)
        self._model: str | None = None

    def _header(self, line: dict[str, Any]) -> dict[str, Any] | None:
        if not (composer := _composer_of(line)):
            return None
        self.facts.source_id = composer["composerId"]
        self.facts.title = text_of(composer, "name")
        self.facts.parent_session = text_of(object_in(composer, "subagentInfo"), "parentComposerId")
        self.facts.created_at = self._said_at = _moment(composer.get("createdAt"))
        self._model = _model_in(composer, "modelConfig")
        return {**composer, **without(line, "composer")}

    def _entries(self, line: dict[str, Any]) -> Iterator[Entry]:
        bubble = object_in(line, "bubble")
        kind = bubble.get("type")
        role = _ROLES.get(kind) if isinstance(kind, int | str) else None
        if role is None or not isinstance(bubble.get("text"), str | None):
            return
        self._said_at = _moment(bubble.get("createdAt")) or self._said_at
        message, result = _message(role, bubble, self._model)
        if not message.content and not message.tool_calls:
            return
        kept = {name: value for name, value in without(bubble, *_OF_A_BUBBLE).items() if value or value == 0}
        call = {
            name: value for name, value in without(object_in(bubble, "toolFormerData"), *_OF_A_CALL).items() if value
        }
        kept = {**kept, **({"toolFormerData": call} if call else {}), **without(line, "bubble")}
        entry_id = text_of(bubble, "bubbleId")
        yield self._said(message, kept, entry_id)
        if result is not None:
            yield self._said(result, {}, f"{entry_id}.1" if entry_id else None)


def _message(role: Role, bubble: Mapping[str, Any], model: str | None) -> tuple[Message, Message | None]:
    """What a bubble says, and what its tool gave back."""
    text, thought = text_of(bubble, "text"), object_in(bubble, "thinking")
    parts: list[Part] = []
    if (thinking := text_of(thought, "text")) is not None:
        parts.append(ThinkingPart(thinking, text_of(thought, "signature")))
    if text is not None:
        parts.append(TextPart(text))
    if role is Role.USER:
        return Message(role, plain(tuple(parts))), None
    call, result = _call(object_in(bubble, "toolFormerData"))
    usage = object_in(bubble, "tokenCount")
    counted = Usage(amount_of(usage, "inputTokens"), amount_of(usage, "outputTokens"))
    message = Message(
        role,
        plain(tuple(parts)),
        tool_calls=None if call is None else (call,),
        model=_model_in(bubble, "modelInfo") or model,
        usage=counted if counted.input_tokens or counted.output_tokens else None,
    )
    return message, result


def _call(fields: Mapping[str, Any]) -> tuple[ToolCall | None, Message | None]:
    call_id, name = text_of(fields, "toolCallId"), text_of(fields, "name")
    if call_id is None or name is None:
        return None, None
    given = fields.get("params") or fields.get("rawArgs") or "{}"
    call = ToolCall(call_id, name, given if isinstance(given, str) else msgspec.json.encode(given).decode())
    output, status = fields.get("result"), fields.get("status")
    if output is None and status not in ("completed", "error", "cancelled"):
        return call, None
    text = output if isinstance(output, str) else "" if output is None else msgspec.json.encode(output).decode()
    return call, Message(Role.TOOL_RESULT, text, tool_call_id=call_id, name=name, is_error=status == "error")


def _model_in(fields: Mapping[str, Any], name: str) -> str | None:
    model = text_of(object_in(fields, name), "modelName")
    return model if model != "default" else None


def _moment(value: Any) -> datetime | None:
    return moment_of(value) if isinstance(value, str) else from_seconds(value)


CURSOR = Format(
    name=NAME,
    about="Cursor's chats, as lines out of its databases; read only",
    suffix=".jsonl",
    recognize=any_line(lambda line: bool(_composer_of(line))),
    reader=_Reader,
)
