"""Gemini CLI's chats: `~/.gemini/tmp/<project>/chats/session-*.jsonl`, and the older `.json`; read only.

As its own source has it (`packages/core/src/services/chatRecordingService.ts` and `chatRecordingTypes.ts`), a line is

- the header, `sessionId` and `projectHash`, which a resumed session repeats;
- a message with its `id`: a model's is written again with the same id when its tool calls or tokens are known;
- `$set` with changes of the header, or with `messages`: a checkpoint, which says which messages the chat has now. What
  a checkpoint says of a message that stood before is poorer (no tool calls, another time), so that one stays;
- `$rewindTo` with the id of a message: it and all that follows it are left, which begins a branch.

The older form is one document, the header with its `messages`. A tool's result stands in the model's message, and once
more in a user's message behind it; the latter, the program's own notices and unknown lines become `Custom` entries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from msgspec.structs import replace

from miniclaw_sessions.core.protocol.entries import Custom, Entry, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, Usage
from miniclaw_sessions.errors import ImportRefused, InvalidMessage
from miniclaw_sessions.files.formats.codec import (
    Chain,
    Format,
    amount_of,
    any_line,
    count_of,
    keeping,
    moment_of,
    objects_in,
    text_of,
    without,
)
from miniclaw_sessions.files.formats.google import from_google
from miniclaw_sessions.files.formats.json_lines import LineReader

NAME = "gemini-cli"

_PLACED = ("id", "timestamp", "type", "content", "thoughts", "tokens", "model", "toolCalls")


def _is_header(line: Mapping[str, Any]) -> bool:
    return isinstance(line.get("sessionId"), str) and "projectHash" in line


def _is_document(document: Any) -> bool:
    return isinstance(document, dict) and _is_header(document) and isinstance(document.get("messages"), list)


class _Reader(LineReader):
    def __init__(self, chain: Chain) -> None:
        super().__init__(chain, NAME)
        self._open: dict[str, Any] | None = None
        self._ends: dict[str, str | None] = {}  # of each message: the last of its entries
        self._said: dict[str, bytes] = {}  # what each message says, as a digest
        self._order: list[str] = []  # the messages that the chat has now
        self._answered: set[bytes] = set()
        self._last: str | None = None

    def finish(self) -> list[Entry]:
        """The model's message that might have been written again."""
        entries = self._closed()
        self.facts.leaf_id = self._last
        return entries

    @property
    def is_settled(self) -> bool:
        """Whether it is known what the message cost that is open; its calls are known when their tools are done."""
        return self._open is None or "tokens" in self._open

    def pending(self) -> list[Entry]:
        """The message that is open."""
        if self._open is None:
            return []
        try:
            return self._entries(self._open, _messages(self._open, set()))
        except InvalidMessage:
            return []

    # --- lines -------------------------------------------------------------------------------------------------------

    def _take(self, line: dict[str, Any]) -> Iterator[Entry]:
        match line:
            case {"$rewindTo": str(message_id), **rest} if not rest:
                yield from self._closed()
                place = self._order.index(message_id) if message_id in self._order else 0
                del self._order[place:]
                self._last = self._ends[self._order[-1]] if self._order else None
            case {"$set": dict(changes), **rest} if not rest:
                yield from self._take_changes(changes)
            case {"id": str(message_id), "type": str()} if message_id:
                yield from self._take_message(line)
            case {"sessionId": str(), "projectHash": _}:
                yield from self._take_changes(line)
            case _:
                yield from self._closed()
                yield self._kept(line)

    def _take_changes(self, changes: Mapping[str, Any]) -> Iterator[Entry]:
        facts = self.facts
        header = without(changes, "messages")
        facts.header = {**header, **facts.header, **without(header, "startTime")}  # it began once
        facts.source_id = text_of(facts.header, "sessionId") or ""
        facts.title = text_of(facts.header, "summary") or facts.title
        if facts.created_at is None:
            facts.created_at = self._lines.moment_in(facts.header, "startTime")
        messages = changes.get("messages")
        if isinstance(messages, list):
            yield from self._closed()
            self._order, self._last = [], None
            for message in messages:
                if not isinstance(message, dict) or not text_of(message, "id") or not text_of(message, "type"):
                    yield self._kept({"$set": {"messages": [message]}})
                elif self._said.get(message["id"]) == (said := _said(message)):
                    self._order.append(message["id"])
                    self._last = self._ends[message["id"]]
                elif message["id"] in self._ends:  # it says something else than before
                    yield from self._take_message({**message, "id": f"{message['id']}.{said.hex()[:8]}"})
                else:
                    yield from self._take_message(message)
            yield from self._closed()

    def _take_message(self, record: dict[str, Any]) -> Iterator[Entry]:
        message_id = record["id"]
        if self._open is not None and self._open["id"] == message_id:
            self._open = {**self._open, **record}
            return
        yield from self._closed()
        if message_id in self._ends:  # later than anything should change it
            yield self._kept(record)
            return
        self._open = record
        if record.get("type") != "gemini":
            yield from self._closed()

    def _closed(self) -> list[Entry]:
        """The message that is open, as entries; one that cannot be read is kept as it is, and may come again."""
        record, self._open = self._open, None
        if record is None:
            return []
        try:
            messages = _messages(record, self._answered)
        except InvalidMessage as error:
            self._lines.kept_whole(error)
            return [self._kept(record)]
        self._time = self._lines.moment_in(record) or self._time
        entries = self._entries(record, messages)
        self._last = entries[-1].id
        self._ends[record["id"]] = self._last
        self._said[record["id"]] = _said(record)
        self._order.append(record["id"])
        return entries

    # --- entries -----------------------------------------------------------------------------------------------------

    def _entries(self, record: dict[str, Any], messages: list[Message]) -> list[Entry]:
        """What a message says: a model's reply and the results of its tools, or what a user says."""
        parent_id = self._last
        said_at = moment_of(record.get("timestamp")) or self._time
        if not messages:
            kind = f"{NAME}.{text_of(record, 'type') or 'unknown'}"
            return [Custom(id=record["id"], parent_id=parent_id, timestamp=said_at, custom_type=kind, data=record)]
        kept, calls = without(record, *_PLACED), record.get("toolCalls")
        if isinstance(calls, list) and calls:  # what neither call nor result says
            kept["toolCalls"] = [without(call, "args", "result") if isinstance(call, dict) else call for call in calls]
        kept = orjson.loads(orjson.dumps(kept)) if kept else {}
        entries: list[Entry] = []
        for number, message in enumerate(messages):
            entry = MessageEntry(
                id=f"{record['id']}.{number}" if number else record["id"],
                parent_id=parent_id,
                timestamp=said_at,
                message=replace(message, timestamp=said_at),
                extra=None if number else keeping(kept, NAME),
            )
            entries.append(entry)
            parent_id = entry.id
        return entries

    def _kept(self, line: dict[str, Any]) -> Entry:
        """A line that says something else, behind the entry before it."""
        self._chain.last_id = self._last
        entry = self._custom(line, line.get("type"))
        self._last = entry.id
        if self._order:
            self._ends[self._order[-1]] = entry.id
        return entry


class _DocumentReader(_Reader):
    def feed(self, piece: Any) -> Iterator[Entry]:  # type: ignore[override]
        """The older form: the header, and its messages."""
        if not _is_document(piece):
            raise ImportRefused("this document has no sessionId, projectHash and messages, as Gemini CLI writes them")
        yield from self._take_changes(self._lines.storable(without(piece, "messages")) or {})
        for record in self._lines.each(piece["messages"]):
            yield from self._take(record)


def _messages(record: Mapping[str, Any], answered: set[bytes]) -> list[Message]:
    content = record.get("content")
    parts = [{"text": content}] if isinstance(content, str) else content if isinstance(content, list) else [content]
    parts = [{"text": part} if isinstance(part, str) else part for part in parts if part]
    if record.get("type") == "user":
        parts = [part for part in parts if _answer(part) not in answered]
        return from_google([{"role": "user", "parts": parts}]) if parts else []
    if record.get("type") != "gemini":
        return []
    calls = objects_in(record, "toolCalls")
    made = [part.get("functionCall") for part in parts if isinstance(part, dict)]
    written = [call.get("id") for call in made if isinstance(call, dict)]
    said = [part for part in parts if not isinstance(part, dict) or part.get("text") != ""]
    asked = [
        {"functionCall": {"id": call.get("id"), "name": call.get("name"), "args": call.get("args") or {}}}
        for call in calls
        if call.get("id") not in written
    ]
    results: list[dict[str, Any]] = []
    for call in calls:
        if isinstance(output := call.get("result"), str):
            response = {"id": call.get("id"), "name": call.get("name"), "response": {"output": output}}
            results.append({"functionResponse": response})
        results += objects_in(call, "result")
    thoughts: list[dict[str, Any]] = []
    for thought in objects_in(record, "thoughts"):
        subject, description = text_of(thought, "subject"), text_of(thought, "description")
        if text := " ".join(filter(None, (f"**{subject}**" if subject else "", description))):
            thoughts.append({"text": text, "thought": True})
    contents: list[dict[str, Any]] = [{"role": "model", "parts": [*thoughts, *said, *asked]}]
    reply, *rest = from_google([*contents, *([{"role": "user", "parts": results}] if results else [])])
    answered |= {answer for part in results if (answer := _answer(part))}
    return [replace(reply, model=text_of(record, "model"), usage=_usage(record.get("tokens"))), *rest]


def _answer(part: Any) -> bytes | None:
    """A digest of the result of a call, the same in both places; None for a part that is no result."""
    match part:
        case {"functionResponse": {"id": str(call_id), "response": response}}:
            return hashlib.blake2b(orjson.dumps([call_id, response]), digest_size=16).digest()
        case _:
            return None


def _said(record: Mapping[str, Any]) -> bytes:
    """What a message says, without what was thought and called, as a digest."""
    content = record.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = (part.get("text") if isinstance(part, dict) and not part.get("thought") else part for part in parts)
    said = "\n".join(text for text in texts if isinstance(text, str))
    return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _usage(tokens: Any) -> Usage | None:
    """What the program counted: its input includes what came from the cache, its output not what was thought."""
    if not isinstance(tokens, dict):
        return None
    read, said, cached, thought, tools = (
        amount_of(tokens, name) for name in ("input", "output", "cached", "thoughts", "tool")
    )
    return Usage(max(read + tools - cached, 0), said + thought, cached, total_tokens=count_of(tokens, "total"))


GEMINI_CLI = Format(
    name=NAME,
    about="Gemini CLI's chats, with their rewinds; read only",
    suffix=".jsonl",
    recognize=any_line(lambda line: _is_header(line) and "messages" not in line),
    reader=_Reader,
)
GEMINI_CLI_JSON = Format(
    name=f"{NAME}-json",
    about="Gemini CLI's chats in their older form, one document; read only",
    suffix=".json",
    recognize=lambda sample: _is_document(sample.document),
    reader=_DocumentReader,
    by_line=False,
)
