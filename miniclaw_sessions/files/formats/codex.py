"""Codex's rollouts: `~/.codex/sessions/<year>/<month>/<day>/rollout-<time>-<id>.jsonl`, read only.

A line is `{"timestamp", "type", "payload"}`; files from before September 2025 have a bare header and bare response
items without times, and are read too. Only response items are messages. The events beside them that say the same once
more, for the screen, are left out; those that say something of their own become `Custom` entries, and the count of
tokens becomes the reply's usage. A rollback of turns makes a branch: what follows hangs on what stood before the turns.

A compaction that brings the history to go on with has it in `messages`, exactly as Codex sends it; there its summary
is one of them, so that `summary` is empty. An older one has its summary only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from copy import copy
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
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.files.formats.codec import Chain, Format, Sample, kept_apart, moment_of, text_of
from miniclaw_sessions.files.formats.codex_items import (
    ITEMS,
    KEPT,
    Replies,
    messages_of,
    read_usage,
    reasoning_texts,
    texts_of,
)
from miniclaw_sessions.files.formats.json_lines import LineReader

NAME = KEPT

_LINES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")  # no set: a type may be a list
_ECHOES = {"user_message": "message", "agent_message": "message", "agent_reasoning": "text"}
_BEYOND = frozenset({"local_images", "text_elements", "memory_citation"})  # what only the event says
_REMEMBERED = 64
"""How many texts are remembered to tell an event that says the same as an item; they stand close together."""

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
        self._replies = Replies()
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
        return not self._replies.is_open or self._count is not None

    def pending(self) -> list[Entry]:
        """The reply that is open, and what came behind it."""
        reply = self._replies.open
        return [] if reply is None else self._with_reply(copy(self._chain), reply)

    def _drain(self) -> list[Entry]:
        done, self._done = self._done, []
        return done

    # --- lines -------------------------------------------------------------------------------------------------------

    def _take(self, line: dict[str, Any]) -> list[Entry]:
        self._time = self._lines.moment_in(line) or self._time
        self._take_by_type(line)
        return self._drain()

    def _take_by_type(self, line: dict[str, Any]) -> None:
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
            case {"type": str(kind)} if kind in ITEMS:
                self._take_item(line)
            case _ if _is_old_header(line) and not self.facts.header:
                self._take_header(line)
            case _:
                self._add_custom(line.get("type") or line.get("record_type"), line)

    def _take_header(self, header: dict[str, Any]) -> None:
        facts = self.facts
        facts.header = header
        facts.source_id = text_of(header, "id") or text_of(header, "session_id") or ""
        facts.parent_session = text_of(header, "forked_from_id")
        facts.created_at = moment_of(header.get("timestamp")) or self._time
        self._provider = text_of(header, "model_provider") or ""

    def _take_item(self, item: dict[str, Any]) -> None:
        was_open = self._replies.is_open
        messages = self._replies.feed(item, self._time)
        if messages is None:
            self._add_custom(item.get("type"), item)
            return
        if was_open and messages:
            self._add_reply(messages.pop(0))
        for message in messages:
            self._add_message(message)
        if self._reply_id is None and (begun := self._replies.open) is not None:
            self._reply_id = self._chain.id_of(MessageEntry, timestamp=begun.timestamp, message=begun)
        for text in _item_texts(item):
            self._note_said(text)

    def _take_event(self, event: dict[str, Any]) -> None:
        kind = text_of(event, "type") or "event"
        text = event.get(_ECHOES.get(kind, ""))
        if isinstance(text, str):
            self._take_echo(event, text)
        elif kind == "token_count":
            self._take_count(event)
        elif kind == "thread_rolled_back":
            self._roll_back(event.get("num_turns"))
            self._add_event(event)
        else:
            if kind == "thread_name_updated":
                self.facts.title = text_of(event, "thread_name") or self.facts.title
            self._add_event(event)

    def _take_count(self, event: dict[str, Any]) -> None:
        """What a reply cost; some versions write it before the reply's items, some behind them, and all repeat it."""
        info = event.get("info")
        total = info.get("total_token_usage") if isinstance(info, dict) else None
        if read_usage(event) is None or (total is not None and total == self._total):
            self._add_event(event)
            return
        self._total = total
        if not self._replies.is_open and not self._is_counted:  # it is too late: that reply is gone
            self._is_counted = True
            self._add_event(event)
        elif self._replies.is_open and self._count is None:
            self._count = event
            self._close()
        else:
            self._close()
            self._drop_count()
            self._count = event

    def _drop_count(self) -> None:
        """A count whose reply never came is kept as the event that it is."""
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
        messages, rest = messages_of(history, self._time) if isinstance(history, list) else ([], None)
        extra = kept_apart(payload, ("replacement_history",) if rest is not None else ("message",), KEPT) or {KEPT: {}}
        if rest:
            extra[KEPT]["replacement_history"] = rest
        is_told = any(summary in message.text for message in messages)
        self._add(
            Compaction,
            summary="" if is_told else summary,
            messages=tuple(messages),
            extra=extra if extra[KEPT] else None,
        )

    # --- events that repeat ------------------------------------------------------------------------------------------

    def _take_echo(self, event: dict[str, Any], text: str) -> None:
        if text in self._said:
            self._said.remove(text)
            self._leave_out(event)
            return
        self._echoes.append((text, event))
        if len(self._echoes) > _REMEMBERED:
            self._add_event(self._echoes.popleft()[1])

    def _note_said(self, text: str) -> None:
        for number, (echo, event) in enumerate(self._echoes):
            if echo == text:
                self._leave_out(event)
                del self._echoes[number]
                return
        self._said.append(text)

    def _leave_out(self, event: Mapping[str, Any]) -> None:
        """An event that repeats an item; what it says beyond that stays."""
        rest = {name: value for name, value in event.items() if name in _BEYOND and value}
        if rest:
            self._add_custom(event.get("type"), rest)

    # --- entries -----------------------------------------------------------------------------------------------------

    def _add_message(self, message: Message) -> None:
        if message.is_user and not message.text.startswith(_NOT_A_TURN):
            self._drop_count()
            self._is_counted = True
            self._turns.append(self._chain.last_id)
        self._add(MessageEntry, message=message)

    def _add_reply(self, message: Message) -> None:
        """The reply that was open, and then what came while it was."""
        self._done += self._with_reply(self._chain, message)
        self._is_counted = self._count is not None and read_usage(self._count) is not None
        self._behind, self._count, self._reply_id = [], None, None

    def _with_reply(self, chain: Chain, message: Message) -> list[Entry]:
        usage = None if self._count is None else read_usage(self._count)
        message = replace(message, model=self._model, usage=usage)
        reply = chain.add(MessageEntry, timestamp=message.timestamp, entry_id=self._reply_id, message=message)
        return [reply, *(chain.add(kind, **fields) for kind, fields in self._behind)]

    def _close(self) -> None:
        for reply in self._replies.finish():
            self._add_reply(reply)

    def _add(self, kind: type[Any], **fields: Any) -> None:
        fields["timestamp"] = self._time
        if self._replies.is_open:
            self._behind.append((kind, fields))
        else:
            self._done.append(self._chain.add(kind, **fields))

    def _add_event(self, event: dict[str, Any]) -> None:
        self._add_custom(event.get("type"), event)

    def _add_custom(self, kind: Any, data: dict[str, Any]) -> None:
        self._add(Custom, custom_type=f"{NAME}.{kind if isinstance(kind, str) else 'unknown'}", data=data)

    def _roll_back(self, turns: Any) -> None:
        self._close()
        if isinstance(turns, int) and turns > 0 and self._turns:
            self._chain.last_id = self._turns[-min(turns, len(self._turns))]
            del self._turns[-turns:]
            self._model = self._effort = self._context = None  # what said them may be among the turns: say them again


def _item_texts(item: Mapping[str, Any]) -> list[str]:
    """What events may repeat of an item."""
    if item["type"] == "reasoning":
        return reasoning_texts(item)
    return ["".join(texts_of(item.get("content")))] if item["type"] == "message" else []


CODEX = Format(
    name=NAME,
    about="Codex's rollout, of either generation, with its rollbacks and compactions; read only",
    suffix=".jsonl",
    recognize=_recognize,
    reader=_Reader,
)
