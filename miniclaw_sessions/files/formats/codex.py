"""Codex's rollouts: `~/.codex/sessions/<year>/<month>/<day>/rollout-<time>-<id>.jsonl`, read only.

A line is `{"timestamp", "type", "payload"}`; files from before September 2025 have a bare header and bare response
items without times, and are read too. Only response items are messages. The events beside them that say the same once
more, for the screen, are left out; those that say something of their own become `Custom` entries, and the count of
tokens becomes the reply's usage. A rollback of turns makes a branch: what follows hangs on what stood before the turns.

What one reply of the model says comes as several items: reasoning, text, calls. They become one assistant message, as
long as no result, no user and no second text parts them. So parallel calls stand on one message, and their results
right behind it.

A compaction that brings the history to go on with has it in `messages`, exactly as Codex sends it; there its summary
is one of them, so that `summary` is empty. An older one has its summary only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from copy import copy
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from miniclaw_sessions.core.protocol.entries import (
    Compaction,
    Custom,
    Entry,
    MessageEntry,
    ModelChange,
    ThinkingLevelChange,
)
from miniclaw_sessions.core.protocol.images import image_at
from miniclaw_sessions.core.protocol.messages import (
    Message,
    OtherPart,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    Usage,
)
from miniclaw_sessions.files.formats.codec import (
    Chain,
    Format,
    Sample,
    content_of,
    count_of,
    keeping,
    kept_apart,
    kept_whole,
    moment_of,
    role_and_extra,
    stated,
    text_of,
    without,
)
from miniclaw_sessions.files.formats.json_lines import LineReader
from miniclaw_sessions.files.formats.tool_calls import arguments_text

NAME = "codex"
"""The format's name, and the key of `extra` under which fields without a canonical place are kept."""

_CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output", "local_shell_call_output"})
_HOSTED = frozenset({"web_search_call", "image_generation_call", "file_search_call", "code_interpreter_call"})
_ITEMS = _CALLS | _OUTPUTS | _HOSTED | {"message", "reasoning"}
"""The types of items that are messages or parts of one."""

_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM, "developer": Role.SYSTEM}
_TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_LINES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")  # no set: a type may be a list
_ECHOES = {"user_message": "message", "agent_message": "message", "agent_reasoning": "text"}
_BEYOND = frozenset({"local_images", "text_elements", "memory_citation"})  # what only the event says
_REMEMBERED = 64
"""How many texts are remembered to recognize an event that repeats an item; the two stand close together."""

_NOT_A_TURN = (  # user messages that Codex writes itself; a rollback does not count them
    "<environment_context>",
    "<user_instructions>",
    "# AGENTS.md instructions",
    "<turn_aborted>",
    "<user_shell_command>",
    "<skill>",
    "<subagent_notification>",
)


def _recognize(sample: Sample) -> bool:
    lines = sample.objects
    if any(line.get("type") in _LINES and isinstance(line.get("payload"), dict) for line in lines):
        return True
    return bool(lines) and _is_old_header(lines[0])


def _is_old_header(line: Mapping[str, Any]) -> bool:
    return line.keys() >= {"id", "timestamp", "instructions"} and "type" not in line and "_type" not in line


class _Reader(LineReader):
    def __init__(self, chain: Chain) -> None:
        super().__init__(chain, NAME)
        self._replies = _Replies()
        self._reply_id: str | None = None  # of the reply that is open: made of its beginning, however it goes on
        self._behind: list[tuple[type[Any], dict[str, Any]]] = []  # what came while a reply was open
        self._done: list[Entry] = []
        self._said: deque[str] = deque(maxlen=_REMEMBERED)
        self._echoes: deque[tuple[str, dict[str, Any]]] = deque()  # events whose item has not come yet
        self._count: dict[str, Any] | None = None  # what the reply cost that is open, or comes next
        self._total: Any = None
        self._is_counted = True
        self._turns: list[str | None] = []  # what stands before each turn of the user
        self._provider = ""
        self._model: str | None = None
        self._effort: str | None = None
        self._context: dict[str, Any] | None = None

    def finish(self) -> list[Entry]:
        """The reply that is still open, and the events that no item repeated."""
        self._close()
        self._drop_count()
        while self._echoes:
            self._add_event(self._echoes.popleft()[1])
        return self._drain()

    @property
    def is_settled(self) -> bool:
        """Whether it is known what the reply cost that is open; that comes last."""
        return self._replies.reply is None or self._count is not None

    def pending(self) -> list[Entry]:
        """The reply that is open, and what came behind it."""
        reply = self._replies.reply
        return [] if reply is None else self._with_reply(copy(self._chain), reply.message())

    def _drain(self) -> list[Entry]:
        done, self._done = self._done, []
        return done

    # --- lines -------------------------------------------------------------------------------------------------------

    def _take(self, line: dict[str, Any]) -> list[Entry]:
        self._time = self._lines.moment_in(line) or self._time
        match line:
            case {"type": "session_meta", "payload": dict(payload)} if not self.facts.header:
                self._take_header(payload)
            case {"type": "response_item", "payload": dict(payload)}:
                self._take_item(payload)
            case {"type": "event_msg", "payload": dict(payload)}:
                self._take_event(payload)
            case {"type": "turn_context", "payload": dict(payload)}:
                self._take_context(payload)
            case {"type": "compacted", "payload": dict(payload)}:
                self._take_compaction(payload)
            case {"type": str(kind)} if kind in _ITEMS:
                self._take_item(line)
            case _ if _is_old_header(line) and not self.facts.header:
                self._take_header(line)
            case _:
                self._add_custom(line.get("type") or line.get("record_type"), line)
        return self._drain()

    def _take_header(self, header: dict[str, Any]) -> None:
        facts = self.facts
        facts.header = header
        facts.source_id = text_of(header, "id") or text_of(header, "session_id") or ""
        facts.parent_session = text_of(header, "forked_from_id")
        facts.created_at = moment_of(header.get("timestamp")) or self._time
        self._provider = text_of(header, "model_provider") or ""

    def _take_item(self, item: dict[str, Any]) -> None:
        was_open = self._replies.reply is not None
        messages = self._replies.feed(item, self._time)
        if messages is None:
            self._add_custom(item.get("type"), item)
            return
        if was_open and messages:
            self._add_reply(messages.pop(0))
        for message in messages:
            if message.is_user and not message.text.startswith(_NOT_A_TURN):
                self._drop_count()
                self._is_counted = True
                self._turns.append(self._chain.last_id)
            self._add(MessageEntry, message=message)
        if self._reply_id is None and self._replies.reply is not None:
            begun = self._replies.reply.message()
            self._reply_id = self._chain.id_of(MessageEntry, timestamp=begun.timestamp, message=begun)
        if item["type"] == "reasoning":
            self._note_said(_reasoning_texts(item))
        elif item["type"] == "message":
            self._note_said(["".join(_texts_of(item.get("content")))])

    def _take_event(self, event: dict[str, Any]) -> None:
        kind = text_of(event, "type") or "event"
        text = event.get(_ECHOES.get(kind, ""))
        if isinstance(text, str) and text in self._said:
            self._said.remove(text)
            self._leave_out(event)
        elif isinstance(text, str):
            self._echoes.append((text, event))
            if len(self._echoes) > _REMEMBERED:
                self._add_event(self._echoes.popleft()[1])
        elif kind == "token_count":
            self._take_count(event)
        elif kind == "thread_rolled_back":
            self._close()
            turns = event.get("num_turns")
            if isinstance(turns, int) and turns > 0 and self._turns:
                self._chain.last_id = self._turns[-min(turns, len(self._turns))]
                del self._turns[-turns:]
                self._model = self._effort = self._context = None  # what said them may be gone: say them again
            self._add_event(event)
        else:
            if kind == "thread_name_updated":
                self.facts.title = text_of(event, "thread_name") or self.facts.title
            self._add_event(event)

    def _take_count(self, event: dict[str, Any]) -> None:
        """What a reply cost; some versions write it before the reply's items, some behind them, and all repeat it."""
        info = event.get("info")
        total = info.get("total_token_usage") if isinstance(info, dict) else None
        if _read_usage(event) is None or (total is not None and total == self._total):
            self._add_event(event)
            return
        self._total = total
        if self._replies.reply is None and not self._is_counted:  # it is too late: that reply is gone
            self._is_counted = True
            self._add_event(event)
        elif self._replies.reply is not None and self._count is None:
            self._count = event
            self._close()
        else:
            self._close()
            self._drop_count()
            self._count = event

    def _drop_count(self) -> None:
        """Keep a count whose reply never came as an event."""
        count, self._count = self._count, None
        if count is not None:
            self._add_event(count)

    def _take_context(self, context: dict[str, Any]) -> None:
        model, effort = text_of(context, "model"), text_of(context, "effort")
        if model is not None and model != self._model:
            self._close()
            self._model = model
            self._add(ModelChange, provider=self._provider, model_id=model)
        if effort is not None and effort != self._effort:
            self._effort = effort
            self._add(ThinkingLevelChange, thinking_level=effort)
        if context != self._context:  # the same is written again for every turn, or every request
            self._context = context
            self._add_custom("turn_context", context)

    def _take_compaction(self, payload: dict[str, Any]) -> None:
        self._close()
        summary, history = text_of(payload, "message") or "", payload.get("replacement_history")
        items, replies = history if isinstance(history, list) else None, _Replies()
        messages: list[Message] = []
        rest: list[Any] = []  # the items that make no message
        for item in items or ():
            complete = replies.feed(item, self._time) if isinstance(item, dict) else None
            if complete is None:
                rest.append(item)
            else:
                messages += complete
        messages += replies.finish()
        extra = kept_apart(payload, ("message",) if items is None else ("replacement_history",), NAME) or {NAME: {}}
        if rest:
            extra[NAME]["replacement_history"] = rest
        is_among = any(summary in message.text for message in messages)
        self._add(
            Compaction,
            summary="" if is_among else summary,
            messages=tuple(messages),
            extra=extra if extra[NAME] else None,
        )

    # --- events that repeat ------------------------------------------------------------------------------------------

    def _note_said(self, texts: Iterable[str]) -> None:
        """What an item says, which events may repeat, or have repeated already."""
        for text in texts:
            repeated = next((number for number, (echo, _) in enumerate(self._echoes) if echo == text), None)
            if repeated is None:
                self._said.append(text)
            else:
                self._leave_out(self._echoes[repeated][1])
                del self._echoes[repeated]

    def _leave_out(self, event: Mapping[str, Any]) -> None:
        """An event that repeats an item; what it says beyond that stays."""
        rest = {name: value for name, value in event.items() if name in _BEYOND and value}
        if rest:
            self._add_custom(event.get("type"), rest)

    # --- entries -----------------------------------------------------------------------------------------------------

    def _add_reply(self, message: Message) -> None:
        """The reply that was open, and then what came while it was."""
        self._done += self._with_reply(self._chain, message)
        self._is_counted = self._count is not None and _read_usage(self._count) is not None
        self._behind, self._count, self._reply_id = [], None, None

    def _with_reply(self, chain: Chain, message: Message) -> list[Entry]:
        usage = None if self._count is None else _read_usage(self._count)
        message = replace(message, model=self._model, usage=usage)
        reply = chain.add(MessageEntry, timestamp=message.timestamp, entry_id=self._reply_id, message=message)
        return [reply, *(chain.add(kind, **fields) for kind, fields in self._behind)]

    def _close(self) -> None:
        for reply in self._replies.finish():
            self._add_reply(reply)

    def _add(self, kind: type[Any], **fields: Any) -> None:
        fields["timestamp"] = self._time
        if self._replies.reply is not None:
            self._behind.append((kind, fields))
        else:
            self._done.append(self._chain.add(kind, **fields))

    def _add_event(self, event: dict[str, Any]) -> None:
        self._add_custom(event.get("type"), event)

    def _add_custom(self, kind: Any, data: dict[str, Any]) -> None:
        self._add(Custom, custom_type=f"{NAME}.{kind if isinstance(kind, str) else 'unknown'}", data=data)


# --- items ------------------------------------------------------------------------------------------------------------


class _Reply:
    """A model's reply, item by item."""

    def __init__(self, since: datetime | None) -> None:
        self.since = since
        self.parts: list[Part] = []
        self.calls: list[ToolCall] = []
        self.kept: dict[str, Any] = {}
        self.has_text = False

    def add(self, item: Mapping[str, Any]) -> None:
        kind = item["type"]
        if kind == "message":
            self.has_text = True
            content = content_of(item.get("content"), _part)
            self.parts += (TextPart(content),) if isinstance(content, str) else content
            self.kept |= without(stated(item), "type", "role", "content")
        elif kind == "reasoning":
            signature = item.get("encrypted_content")
            signature = signature if isinstance(signature, str) else None
            extra = kept_apart(stated(item), ("type", "summary", "encrypted_content"), NAME)
            self.parts.append(ThinkingPart("\n\n".join(_reasoning_texts(item)), signature, extra=extra))
        elif (call := _call(item)) is not None:
            self.calls.append(call)
        else:
            self.parts.append(OtherPart(dict(item)))

    def message(self) -> Message:
        return Message(
            Role.ASSISTANT,
            tuple(self.parts),
            timestamp=self.since,
            tool_calls=tuple(self.calls) or None,
            extra=keeping(self.kept, NAME),
        )


class _Replies:
    """Makes messages of items, in order; holds the model's reply until it is complete."""

    def __init__(self) -> None:
        self.reply: _Reply | None = None

    def feed(self, item: Mapping[str, Any], timestamp: datetime | None) -> list[Message] | None:
        """The messages that are complete with this item; None if it is no message, nor part of one."""
        kind = item.get("type")
        if not isinstance(kind, str) or kind not in _ITEMS:
            return None
        if kind in _OUTPUTS:
            return [*self.finish(), _result(item, timestamp)]
        if kind == "message" and item.get("role") != "assistant":
            message = _message(item, timestamp)
            return None if message is None else [*self.finish(), message]
        complete: list[Message] = []
        if kind == "message" and self.reply is not None and (self.reply.has_text or self.reply.calls):
            complete = self.finish()
        if self.reply is None:
            self.reply = _Reply(timestamp)
        self.reply.add(item)
        return complete

    def finish(self) -> list[Message]:
        """The reply that is open, if there is one, as it stands."""
        reply, self.reply = self.reply, None
        return [] if reply is None else [reply.message()]


def _read_usage(event: Mapping[str, Any]) -> Usage | None:
    """What an event says that the last reply cost; OpenAI counts cached tokens among the input, we do not."""
    match event:
        case {"type": "token_count", "info": {"last_token_usage": dict(last)}}:
            pass
        case _:
            return None
    cached = count_of(last, "cached_input_tokens") or 0
    return Usage(
        input_tokens=max((count_of(last, "input_tokens") or 0) - cached, 0),
        output_tokens=count_of(last, "output_tokens") or 0,
        cache_read_tokens=cached,
        total_tokens=count_of(last, "total_tokens") or None,
        extra={NAME: without(event, "type")},
    )


# --- one item --------------------------------------------------------------------------------------------------------


def _message(item: Mapping[str, Any], timestamp: datetime | None) -> Message | None:
    role_text = item.get("role")
    if not isinstance(role_text, str) or not role_text:
        return None
    role, named = role_and_extra(role_text, _ROLES)
    extra = kept_apart(stated(item), ("type", "role", "content"), NAME) or {}
    if role_text == "developer":
        extra.setdefault(NAME, {})["role"] = role_text
    content = content_of(item.get("content"), _part)
    return Message(role, content, timestamp=timestamp, extra={**extra, **named} or None)


def _part(part: Any) -> Part:
    match part:
        case {"type": str(kind), "text": str(text)} if kind in _TEXTS:
            return TextPart(text, extra=kept_apart(part, ("type", "text"), NAME))
        case {"type": "refusal", "refusal": str(text)}:
            return TextPart(text, extra={NAME: {"type": "refusal"}})
        case {"type": "input_image", "image_url": str(url)}:
            return image_at(url, kept_apart(part, ("type", "image_url"), NAME))
        case _:
            return kept_whole(part, NAME, "part")


def _reasoning_texts(item: Mapping[str, Any]) -> list[str]:
    """The summary that a model gave of its reasoning; without one, the reasoning itself."""
    return _texts_of(item.get("summary")) or _texts_of(item.get("content"))


def _texts_of(parts: Any) -> list[str]:
    """The texts of content parts."""
    if not isinstance(parts, list):
        return []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]


def _call(item: Mapping[str, Any]) -> ToolCall | None:
    """A call; what is not a function's JSON is wrapped into an object, because a model is sent nothing else."""
    call_id = item.get("call_id") or item.get("id")
    if not isinstance(call_id, str):
        return None
    match item:
        case {"type": "function_call", "name": str(name), "arguments": arguments}:
            known = ["type", "call_id", "name", "arguments"]
            text = arguments if isinstance(arguments, str) else arguments_text(arguments)
        case {"type": "custom_tool_call", "name": str(name), "input": str(free)}:  # its kept type says: free text
            text, known = arguments_text({"input": free}), ["call_id", "name", "input"]
        case {"type": "local_shell_call", "action": dict(action)}:
            name, text, known = "local_shell", arguments_text(action), ["call_id", "action"]
        case _:
            return None
    return ToolCall(call_id, name, text, extra=kept_apart(stated(item), known, NAME))


def _result(item: Mapping[str, Any], timestamp: datetime | None) -> Message:
    output, is_error = item.get("output"), False
    if isinstance(output, dict) and isinstance(output.get("content"), str):
        is_error, output = output.get("success") is False, output["content"]
    return Message(
        Role.TOOL_RESULT,
        content_of(output, _part),
        timestamp=timestamp,
        tool_call_id=text_of(item, "call_id"),
        name=text_of(item, "name"),
        is_error=is_error,
        extra=kept_apart(stated(item), ("type", "call_id", "output", "name"), NAME),
    )


CODEX = Format(
    name=NAME,
    about="Codex's rollout, of either generation, with its rollbacks and compactions; read only",
    suffix=".jsonl",
    recognize=_recognize,
    reader=_Reader,
)
