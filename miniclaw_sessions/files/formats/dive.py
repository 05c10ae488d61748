"""Dive's session files: a header, then one event per line, which is a turn or a compaction.

The messages of a turn become entries of which all but the first say that they continue it; by that the turns are put
together again. What a turn cost stands on its last message of the assistant. A line that no entry can stand for is kept
as a custom entry, and written back as it was. As in Dive, a torn last line is left out, and a file whose first line is
of an unknown kind is refused; a bad line in between, for which Dive refuses the file, is a finding here.

Dive has Anthropic's typed content blocks, and puts the results of all calls of a reply into one message of the user.
Such a message is read as several, one for each result; they are joined again when they are written. Dive refuses a
whole session for one block of a type that it does not know, so other services' blocks are left out.

Dive has no tree. The writer has to be fed the entries of one branch, root first; entries of kinds that Dive does not
have are passed over. A compaction of ours becomes one of Dive's, which repeats the messages that are kept: for that the
writer looks ahead for what will be kept, and remembers it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.protocol.entries import BranchSummary, Compaction, Custom, Entry, EntryBase, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, OtherPart, Part, Role, TextPart, ToolCall, Usage
from miniclaw_sessions.errors import ImportRefused, InvalidMessage
from miniclaw_sessions.files.formats.blocks import COUNTS, read_block, written_part
from miniclaw_sessions.files.formats.codec import (
    Chain,
    Finding,
    Format,
    Outcome,
    Sample,
    SessionFacts,
    in_order,
    in_pieces,
    keeping,
    kept_apart,
    kept_fields,
    moment_of,
    plain,
    role_and_extra,
    role_named,
    stated,
    taken,
    taken_apart,
    without,
)
from miniclaw_sessions.files.formats.json_lines import JsonLines, LineReader
from miniclaw_sessions.files.formats.tool_calls import NOT_AN_OBJECT, arguments_text, parsed

NAME = "dive"
"""The key of `extra` under which fields without a canonical place are kept.

It is also the type of a part that keeps a block of a form that is unknown here.
"""

_ROLES = {Role.USER: "user", Role.ASSISTANT: "assistant", Role.SYSTEM: "system", Role.OTHER: "user"}
_ALIASES = {"developer": Role.SYSTEM}
_BLOCKS = (
    *("document", "tool_use", "tool_result", "server_tool_use", "web_search_tool_result", "mcp_tool_use"),
    *("mcp_tool_result", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "refusal", "summary"),
    *("code_execution_tool_result", "bash_code_execution_tool_result", "text_editor_code_execution_tool_result"),
    "reminder",
)
"""The types of blocks that Dive knows, beside those that have a canonical place."""

_ALWAYS_COUNTED = ("input_tokens", "output_tokens")
_KINDS = ("header", "event")
_LINE = "line"  # in the data of a custom entry: the line that it keeps
_BEGINNING = re.compile(rb'\{"line_type": ?"')


def _recognize(sample: Sample) -> bool:
    """Whether the first line has Dive's envelope.

    Raises:
        ImportRefused: it has, but of a kind that is not known.
    """
    first = next(iter(sample.objects), {})
    if not isinstance(kind := first.get("line_type"), str) or "data" not in first:
        return False
    if kind not in _KINDS:
        raise _unknown_kind()
    return True


def _unknown_kind() -> ImportRefused:
    return ImportRefused(
        "this file begins with a line of a type that is neither header nor event: it is not a session of Dive, or one "
        "of a newer version"
    )


# --- reading ----------------------------------------------------------------------------------------------------------


class _Reader(LineReader):
    def __init__(self, chain: Chain) -> None:
        super().__init__(chain, NAME, JsonLines(beginning=_BEGINNING))
        self._has_begun = False
        self._has_header = False

    def _take(self, line: dict[str, Any]) -> list[Entry]:
        """The entries of a line.

        Raises:
            ImportRefused: the first line is of a kind that is not known.
        """
        kind, data = line.get("line_type"), line.get("data")
        if not self._has_begun and kind not in _KINDS:
            raise _unknown_kind()
        self._has_begun = True
        if kind in _KINDS and len(line) > 2:  # noqa: PLR2004 - the two that every line has
            self._lines.repaired("fields beside line_type and data were left out")
        entries: list[Entry] = []
        if kind not in _KINDS:
            entries = [self._kept_whole(line)]
        elif not isinstance(data, dict):
            self._lines.set_aside(f"a line of type {kind} needs an object as its data")
        elif kind == "header":
            self._read_header(data)
        else:
            entries = self._read_event(line, data)
        self.facts.leaf_id = self._chain.last_id
        return entries

    def finish(self) -> list[Entry]:
        """Nothing more.

        Raises:
            ImportRefused: there was no session in the file.
        """
        if not self._has_begun:
            raise ImportRefused("there is no session in this file: no line of it is a header or an event")
        return []

    def _read_header(self, data: dict[str, Any]) -> None:
        if self._has_header:
            self._lines.set_aside("there is a header already")
            return
        self._has_header = True
        facts = self.facts
        facts.source_id = taken(data, "id", str) or ""
        facts.title = taken(data, "title", str)
        facts.parent_session = taken(data, "forked_from", str)
        if (created_at := moment_of(data.get("created_at"))) is not None:
            facts.created_at = created_at
            if _time_text(created_at) == data["created_at"]:
                del data["created_at"]
        facts.header = data

    def _read_event(self, line: dict[str, Any], data: dict[str, Any]) -> list[Entry]:
        timestamp = moment_of(data.get("timestamp"))
        if timestamp is None:
            self._lines.repaired("the event has no valid time; it has that of the event before it")
        messages = self._read_messages(data.get("messages"))
        if messages is None:
            return []
        is_compaction = data.get("type") == "compaction"
        if not messages and not is_compaction:
            return [self._kept_whole(line, timestamp)]
        if not is_compaction and (usage := _read_usage(data.get("usage"))) is not None:
            answer = next((n for n in reversed(range(len(messages))) if messages[n].is_assistant), None)
            if answer is not None:
                messages[answer] = msgspec.structs.replace(messages[answer], usage=usage)
                del data["usage"]
        if data.get("type") in ("turn", "compaction"):
            del data["type"]
        if timestamp is not None and data.get("timestamp") == _time_text(timestamp):
            del data["timestamp"]
        if messages or data.get("messages") is not None:
            data.pop("messages", None)
        extra = keeping(data, NAME)
        if is_compaction:
            return [self._chain.add(Compaction, timestamp=timestamp, messages=tuple(messages), extra=extra)]
        return [
            self._chain.add(
                MessageEntry,
                timestamp=timestamp,
                message=message,
                continues=number > 0,
                extra=None if number else extra,
            )
            for number, message in enumerate(messages)
        ]

    def _read_messages(self, listed: Any) -> list[Message] | None:
        """An event's messages; None if the event was set aside, because none of them can be read."""
        if listed is None:
            return []
        if not isinstance(listed, list):
            self._lines.set_aside("the event's messages are not a list")
            return None
        messages: list[Message] = []
        bad: list[Finding] = []
        for fields in listed:
            try:
                messages += _read_message(fields)
            except InvalidMessage as error:
                raw = msgspec.json.encode(fields)
                bad.append(Finding(self._lines.number, Outcome.SET_ASIDE, str(error), raw))
        if bad and not messages:
            self._lines.set_aside("none of the event's messages can be read")
            return None
        self.findings += bad
        return messages

    def _kept_whole(self, line: dict[str, Any], timestamp: datetime | None = None) -> Custom:
        return self._chain.add(Custom, timestamp=timestamp, custom_type=NAME, data={_LINE: line})


def _time_text(moment: datetime) -> str:
    return str(msgspec.to_builtins(moment))


# --- reading messages -------------------------------------------------------------------------------------------------


def _read_message(fields: Any) -> list[Message]:
    """A message of Dive: one, or several where it answers several calls.

    Raises:
        InvalidMessage: it has no role, or content that is neither a list nor text.
    """
    if not isinstance(fields, dict) or not isinstance(role := fields.get("role"), str) or not role:
        raise InvalidMessage('a message must be an object with a "role"')
    blocks = fields.get("content")
    if isinstance(blocks, str):
        blocks = [{"type": "text", "text": blocks}] if blocks else []
    if not isinstance(blocks, list | None):
        raise InvalidMessage('"content" must be a list of blocks')
    unknown = without(fields, "role", "content")
    if blocks is None:
        unknown["content"] = None
    first, *further = in_pieces(blocks or [], _is_result) or [[]]
    message = _read_piece(role, first, {"message": unknown} if unknown else {})
    return [message, *(_read_piece(role, piece, {"piece": True}) for piece in further)]


def _is_result(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result" and isinstance(block.get("tool_use_id"), str)


def _read_piece(role_text: str, blocks: list[Any], kept: dict[str, Any]) -> Message:
    """A result by itself, or all that stands between results."""
    if not blocks or not _is_result(blocks[0]):
        role, named = role_and_extra(role_text, _ALIASES)
        if _ROLES.get(role) != role_text:
            kept = {**kept, "role": role_text}
        extra = {**(keeping(kept, NAME) or {}), **named}
        parts, calls = taken_apart(map(_read_block, blocks))
        said = parts if parts == (TextPart(""),) else plain(parts)  # an empty block comes back as one
        return Message(role, said, tool_calls=calls, extra=extra or None)
    block = blocks[0]
    rest = without(block, "type", "tool_use_id", "content", "is_error")
    given = block.get("content")
    content: str | tuple[Part, ...] | None = given if isinstance(given, str) else None
    if isinstance(given, list):
        pieces = [_read_block(inner) for inner in given]
        parts = tuple(piece for piece in pieces if not isinstance(piece, ToolCall))
        content = parts if len(parts) == len(pieces) else None
    if content is None:  # any JSON may stand there
        rest |= {"content": given} if "content" in block else {}
        content = _as_text(given)
    if (is_error := block.get("is_error")) is not True and "is_error" in block:
        rest["is_error"] = is_error
    kept = {**kept, "role": role_text, **({"result": rest} if rest else {})}
    return Message(
        Role.TOOL_RESULT, content, tool_call_id=block["tool_use_id"], is_error=is_error is True, extra={NAME: kept}
    )


def _read_block(block: Any) -> Part | ToolCall:
    piece = read_block(block, NAME)
    if piece is None or (isinstance(piece, OtherPart) and piece.fields["type"] not in _BLOCKS):
        return OtherPart({"type": NAME, "block": block})
    return piece


def _as_text(content: Any) -> str:
    return "" if content is None else arguments_text(content)


def _read_usage(fields: Any) -> Usage | None:
    """A turn's usage; None if it cannot be read as one."""
    if not isinstance(fields, dict):
        return None
    counts = {ours: fields.get(theirs, 0) for theirs, ours in COUNTS.items()}
    if not all(type(number) is int for number in counts.values()):
        return None
    total = fields["cost"].get("total") if isinstance(fields.get("cost"), dict) else None
    cost = float(total) if isinstance(total, int | float) and not isinstance(total, bool) else None
    written = [name for name in COUNTS if name in _ALWAYS_COUNTED or fields.get(name)]  # else a zero is kept
    return Usage(**counts, cost=cost, extra=kept_apart(fields, written, NAME))


# --- writing ----------------------------------------------------------------------------------------------------------


class _Writer:
    """Writes the entries of one branch; a turn's line comes when the turn is over."""

    def __init__(self, facts: SessionFacts) -> None:
        self._facts = facts
        self._turn: list[MessageEntry] = []
        self._said: list[tuple[str, Message]] = []  # what a compaction will keep, and what follows it up to there
        self._kept_next: deque[str | None] = deque()  # by each compaction to come

    def foresee(self, entry: Entry) -> None:
        """What the compactions keep."""
        if isinstance(entry, Compaction):
            self._kept_next.append(entry.first_kept_entry_id)

    def begin(self) -> bytes:
        """The header."""
        facts = self._facts
        data = {
            "id": facts.source_id or facts.session_id,
            "title": facts.title,
            "created_at": facts.created_at,
            "metadata": without(facts.metadata, "title") or None,
            "forked_from": facts.parent_session,
        }
        return _line("header", {**stated(data), **(facts.header if facts.format == NAME else {})})

    def feed(self, entry: Entry) -> bytes:
        """An entry of the branch; the bytes may be those of the turn before it."""
        match entry:
            case MessageEntry(continues=continues):
                before = b"" if continues and self._turn else self.finish()
                self._turn.append(entry)
                self._remember(entry, entry.message)
                return before
            case Compaction():
                return self.finish() + self._compaction(entry)
            case BranchSummary(summary=summary) if summary:
                message = Message(Role.BRANCH_SUMMARY, summary)
                self._remember(entry, message)
                return self.finish() + _event(entry, "turn", {"messages": _written_messages([message])})
            case Custom(custom_type=kind, data={"line": dict(line)}) if kind == NAME:
                return self.finish() + msgspec.json.encode(line) + b"\n"
            case _:
                return b""

    def finish(self) -> bytes:
        """The turn that is not yet written."""
        turn, self._turn = self._turn, []
        messages = _written_messages(entry.message for entry in turn)
        if not messages:
            return b""
        payload: dict[str, Any] = {"messages": messages}
        if usages := [entry.message.usage for entry in turn if entry.message.usage is not None]:
            kept = kept_fields(usages[0].extra, NAME) if len(usages) == 1 else {}
            total = sum(usages, Usage())
            sums = {theirs: getattr(total, ours) for theirs, ours in COUNTS.items()}
            counts = {name: number for name, number in sums.items() if number or name in _ALWAYS_COUNTED}
            costs = [usage.cost for usage in usages if usage.cost is not None]
            cost = {"cost": {"total": sum(costs), "breakdown_unavailable": True}} if costs else {}
            payload["usage"] = {**cost, **kept, **counts}
        return _event(turn[0], "turn", payload)

    def _remember(self, entry: Entry, message: Message) -> None:
        if self._said or entry.id in self._kept_next:
            self._said.append((entry.id, message))

    def _compaction(self, entry: Compaction) -> bytes:
        if self._kept_next:
            self._kept_next.popleft()
        ids = [entry_id for entry_id, _ in self._said]
        first_kept = ids.index(entry.first_kept_entry_id) if entry.first_kept_entry_id in ids else len(ids)
        self._said = self._said[first_kept:]
        summary = [Message(Role.COMPACTION_SUMMARY, entry.summary)] if entry.summary else []
        messages = [*summary, *entry.messages, *(message for _, message in self._said)]
        if not self._kept_next:
            self._said = []
        return _event(entry, "compaction", {"messages": _written_messages(messages)})


def _event(entry: EntryBase, kind: str, payload: Mapping[str, Any]) -> bytes:
    """An event with what an entry has kept of it."""
    own = {"type": kind, "id": entry.id, "timestamp": entry.timestamp}
    kept = kept_fields(entry.extra, NAME)
    return _line(
        "event", {**own, **kept, **{name: value for name, value in payload.items() if value or name not in kept}}
    )


def _line(kind: str, data: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"line_type": kind, "data": data}) + b"\n"


# --- writing messages -------------------------------------------------------------------------------------------------


def _written_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Canonical messages as Dive has them: results that follow each other in one message.

    A message of a role that Dive does not know becomes the user's, with the text that `history.context` gives it; a
    message without text is left out. A result that does not say which call it answers is the user's text.
    """
    written: list[dict[str, Any]] = []
    follows_result = False
    for message in messages:
        is_known = message.role in _ROLES or message.is_tool_result or kept_fields(message.extra, NAME)
        for one in (message,) if is_known else build_context([Message.user("?"), message])[1:]:
            fields = _written(one)
            kept = kept_fields(one.extra, NAME)
            is_piece = kept.get("piece") is True or (one.is_tool_result and follows_result and not kept)
            if is_piece and written and written[-1]["role"] == fields["role"]:
                written[-1]["content"] = [*(written[-1]["content"] or ()), *fields["content"]]
            else:
                written.append(fields)
            follows_result = one.is_tool_result
    return written


def _written(message: Message) -> dict[str, Any]:
    kept = kept_fields(message.extra, NAME)
    role = kept.get("role")
    if not isinstance(role, str) or not (message.is_tool_result or role_named(role, _ALIASES) is message.role):
        role = _ROLES.get(message.role, "user")
    if message.is_tool_result and message.tool_calls and not kept:
        outputs = [(call.id, message.content if call.output is None else call.output) for call in message.tool_calls]
        blocks = [  # the results are kept with their calls, as in Lango
            _written_result(msgspec.structs.replace(message, content=output), call_id) for call_id, output in outputs
        ]
    elif message.is_tool_result and message.tool_call_id is not None:
        blocks = [_written_result(message, message.tool_call_id)]
    else:
        blocks = _written_blocks(in_order(message))
    theirs = kept_fields(kept, "message")
    was_null = not blocks and "content" in theirs
    return {**theirs, "role": role, "content": None if was_null else blocks}


def _written_result(message: Message, call_id: str) -> dict[str, Any]:
    rest = kept_fields(kept_fields(message.extra, NAME), "result")
    content = message.content if isinstance(message.content, str) else _written_blocks(message.content)
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id, "content": content}
    if message.is_error:
        result["is_error"] = True
    elif "is_error" in rest and rest["is_error"] is not True:
        result["is_error"] = rest["is_error"]
    if "content" in rest and _as_text(rest["content"]) == message.content:
        result["content"] = rest["content"]
    return {**without(rest, "is_error", "content"), **result}


def _written_blocks(pieces: Iterable[Part | ToolCall]) -> list[Any]:
    """Parts and calls as blocks, without what Dive would refuse."""
    blocks: list[Any] = []
    for piece in pieces:
        match piece:
            case OtherPart(fields={"type": "dive", "block": block}):
                blocks.append(block)
            case OtherPart(fields=fields):
                blocks += [fields] if fields.get("type") in _BLOCKS else []
            case ToolCall():
                text = piece.arguments
                arguments = parsed(text, {NOT_AN_OBJECT: text}) if text.strip() else {}
                call = {"type": "tool_use", "id": piece.id, "name": piece.name, "input": arguments}
                blocks.append({**kept_fields(piece.extra, NAME), **call})
            case _ if (written := written_part(piece, NAME)) is not None:
                blocks.append(written)
    return blocks


DIVE = Format(
    name=NAME,
    about=(
        "Dive's session files; one branch is written, without labels, settings, the names of tools, the "
        "authors and models of messages, and other services' parts"
    ),
    suffix=".jsonl",
    recognize=_recognize,
    reader=_Reader,
    writer=_Writer,
    branch_only=True,
)
