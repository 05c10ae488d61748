"""The log of the command `llm` (`logs.db`, a SQLite database), as lines of its rows; read only.

As its own documentation and source have it (`docs/logging.md`, `llm/migrations.py`): since version 0.36 a `threads` row
names the newest of its `messages`, which name their parents and have `parts`; a `turns` row says what a reply cost.
Before that, a `conversations` row has `responses`, each a prompt with its reply, with `tool_calls` and `tool_results`.
The lines are `{"thread": row}` and `{"message": row, "parts": [row, ...], "turn": row}`, or `{"conversation": row}` and
`{"response": row, "tool_calls": [...], "tool_results": [...]}`; `discovery.tables.llm` makes these lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from msgspec.structs import replace

from miniclaw_sessions.core.protocol.encoding import encode_message
from miniclaw_sessions.core.protocol.entries import Entry, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, Part, Role, TextPart, ThinkingPart, ToolCall, Usage
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.codec import (
    Chain,
    Format,
    amount_of,
    any_line,
    count_of,
    keeping,
    kept_whole,
    object_in,
    objects_in,
    plain,
    role_named,
    stated,
    text_of,
    without,
)
from miniclaw_sessions.files.formats.json_lines import LineReader
from miniclaw_sessions.files.formats.tool_calls import parsed

NAME = "llm"

_HEADERS = ("thread", "conversation")
_OF_A_RESPONSE = ("id", "model", "prompt", "system", "response", "reasoning", "conversation_id", "datetime_utc")


def _header_of(line: Mapping[str, Any]) -> dict[str, Any] | None:
    header: dict[str, Any] = next((line[name] for name in _HEADERS if isinstance(line.get(name), dict)), {})
    return {**header, **without(line, *_HEADERS)} if text_of(header, "id") and "name" in header else None


class _Reader(LineReader):
    def __init__(self, chain: Chain) -> None:
        super().__init__(chain, NAME)
        self._system: str | None = None

    def _take(self, line: dict[str, Any]) -> list[Entry]:
        if (header := _header_of(line)) is not None and not self.facts.header:
            self.facts.header = header
            self.facts.source_id, self.facts.title = header["id"], text_of(header, "name")
            self.facts.parent_session = text_of(header, "forked_from")
            self.facts.created_at = self._lines.moment_in(header, "datetime_utc")
            return []
        match line:
            case {"message": {"role": str(role)} as row, "parts": list(parts)}:
                kept = {**without(row, "role"), **without(line, "message", "parts", "turn")}
                messages = self._messages(role, parts, kept, object_in(line, "turn"))
            case {"response": dict(row)}:
                messages = self._exchange(row, line)
            case _:
                messages = []
        try:
            for message in messages:
                encode_message(message)
        except InvalidMessage as error:
            self._lines.kept_whole(error, "line")
            messages = []
        if not messages:
            return [self._custom(line)]
        return [
            self._chain.add(MessageEntry, timestamp=self._time, message=replace(message, timestamp=self._time))
            for message in messages
        ]

    def finish(self) -> list[Entry]:
        """Nothing more."""
        self.facts.created_at = self.facts.created_at or (self._time if self._time != self._chain.now else None)
        return []

    def _messages(self, role: str, parts: list[Any], kept: Mapping[str, Any], turn: Mapping[str, Any]) -> list[Message]:
        """Since 0.36: one message; each result of a tool is one of its own here."""
        self._time = self._lines.moment_in(turn, "datetime_utc") or self._time
        said: list[Part] = []
        calls: list[ToolCall] = []
        results: list[Message] = []
        for part in parts:
            fields = part if isinstance(part, dict) else {}
            payload = _payload(fields.get("payload"))
            match fields.get("type"):
                case "text" if isinstance(fields.get("text"), str):
                    said.append(TextPart(fields["text"]))
                case "reasoning" if isinstance(fields.get("text"), str):
                    said.append(ThinkingPart(fields["text"]))
                case "tool_call" if payload:
                    calls.append(_call(payload))
                case "tool_result" if payload:
                    results.append(_result(payload))
                case _:
                    said.append(kept_whole(part, NAME, "part"))
        extra = keeping(kept, NAME)
        spoken = Message(role_named(role), plain(tuple(said)), tool_calls=tuple(calls) or None, extra=extra)
        if spoken.is_assistant:
            spoken = replace(spoken, model=text_of(turn, "model"), usage=_usage(turn))
        return results if results and not said and not calls else [spoken, *results]

    def _exchange(self, row: Mapping[str, Any], line: Mapping[str, Any]) -> list[Message]:
        """Before 0.36: a prompt, or the results of what the reply before it asked for; and the reply."""
        self._time = self._lines.moment_in(row, "datetime_utc") or self._time
        messages: list[Message] = []
        if (system := text_of(row, "system")) and system != self._system:
            self._system = system
            messages.append(Message(Role.SYSTEM, system))
        messages += map(_result, objects_in(line, "tool_results"))
        if prompt := text_of(row, "prompt"):
            messages.append(Message.user(prompt))
        text, thinking = text_of(row, "response") or "", text_of(row, "reasoning")
        content: tuple[Part, ...] = (
            *((ThinkingPart(thinking),) if thinking else ()),
            *((TextPart(text),) if text else ()),
        )
        calls = tuple(map(_call, objects_in(line, "tool_calls")))
        kept = stated(without(row, *_OF_A_RESPONSE))
        more = without(line, "response", "tool_calls", "tool_results")
        reply = Message(Role.ASSISTANT, plain(content), tool_calls=calls or None, extra=keeping({**kept, **more}, NAME))
        return [*messages, replace(reply, model=text_of(row, "model"), usage=_usage(row))]


def _payload(value: Any) -> dict[str, Any]:
    fields = parsed(value, None) if isinstance(value, str) else value
    return fields if isinstance(fields, dict) else {}


def _call(fields: Mapping[str, Any]) -> ToolCall:
    arguments = fields.get("arguments")
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode()
    return ToolCall(text_of(fields, "tool_call_id") or "", text_of(fields, "name") or "", text)


def _result(fields: Mapping[str, Any]) -> Message:
    output = fields.get("output")
    return Message(
        Role.TOOL_RESULT,
        output if isinstance(output, str) else orjson.dumps(output).decode(),
        tool_call_id=text_of(fields, "tool_call_id"),
        name=text_of(fields, "name"),
        is_error=bool(fields.get("exception")),
    )


def _usage(row: Mapping[str, Any]) -> Usage | None:
    """Its input includes what came from the cache, where the details say so."""
    if count_of(row, "input_tokens") is None and count_of(row, "output_tokens") is None:
        return None
    details = object_in(_payload(row.get("token_details")), "prompt_tokens_details")
    cached = min(amount_of(details, "cached_tokens"), amount_of(row, "input_tokens"))
    return Usage(amount_of(row, "input_tokens") - cached, amount_of(row, "output_tokens"), cached)


LLM = Format(
    name=NAME,
    about="The log of the command `llm`, as lines out of its database; read only",
    suffix=".jsonl",
    recognize=any_line(lambda line: _header_of(line) is not None),
    reader=_Reader,
)
