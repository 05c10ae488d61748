"""opencode's sessions, out of its database (`~/.local/share/opencode/opencode.db`) or as `opencode export`; read only.

As its own source has it (`packages/opencode/src/session/session.sql.ts` and `message-v2.ts`): a session has messages
in the order of their ids, and each of them has parts, whose ids are in the order of their making. The database is read
as lines, `{"info": session}` and then `{"info": message, "parts": [...]}`; the export is one document,
`{"info": session, "messages": [{"info", "parts"}, ...]}`.

A tool's part has the call and, in its `state`, the result, which becomes a message of its own. An assistant's message
that is a `summary` is a compaction. A message that is not `completed` may yet get parts, and is held back as long as
it is the last one. Steps, snapshots, patches and other parts without a place here are kept in `extra`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec
import orjson

from miniclaw_sessions.core.protocol.encoding import encode_entry
from miniclaw_sessions.core.protocol.entries import Compaction, Entry, MessageEntry
from miniclaw_sessions.core.protocol.images import image_at
from miniclaw_sessions.core.protocol.messages import Message, Part, Role, TextPart, ThinkingPart, ToolCall, Usage
from miniclaw_sessions.errors import ImportRefused, InvalidMessage
from miniclaw_sessions.files.formats.codec import (
    Chain,
    Format,
    amount_of,
    any_line,
    count_of,
    keeping,
    kept_apart,
    kept_whole,
    object_in,
    objects_in,
    plain,
    text_of,
    without,
)
from miniclaw_sessions.files.formats.json_lines import LineReader

NAME = "opencode"

_INFO = ("id", "sessionID", "role", "time", "tokens", "cost", "modelID", "finish")
_OF_A_PART = ("id", "sessionID", "messageID")


def _is_document(document: Any) -> bool:
    return (
        isinstance(document, dict) and _is_session(document.get("info")) and isinstance(document.get("messages"), list)
    )


def _is_session(info: Any) -> bool:
    return isinstance(info, dict) and isinstance(info.get("id"), str) and "directory" in info and "role" not in info


class _Reader(LineReader):
    def __init__(self, chain: Chain) -> None:
        super().__init__(chain, NAME)
        self._held: dict[str, Any] | None = None
        self._ids: set[str] = set()

    def finish(self) -> list[Entry]:
        """The message that was not complete."""
        held, self._held = self._held, None
        return [] if held is None else self._entries(held)

    def _take(self, line: dict[str, Any]) -> Iterator[Entry]:
        info = line.get("info")
        if isinstance(info, dict) and _is_session(info) and not self.facts.header:
            self._take_session({**info, **without(line, "info")})
            return
        yield from self.finish()
        said = info if isinstance(info, dict) and info.get("role") == "assistant" and not info.get("error") else None
        if said is not None and object_in(said, "time").get("completed") is None:
            self._held = line
        else:
            yield from self._entries(line)

    def _take_session(self, info: dict[str, Any]) -> None:
        self.facts.header = info
        self.facts.source_id = info["id"]
        self.facts.title = text_of(info, "title")
        self.facts.parent_session = text_of(info, "parentID") or text_of(info, "parent_id")
        self.facts.created_at = _moment(object_in(info, "time").get("created", info.get("time_created")))

    def _entries(self, line: dict[str, Any]) -> list[Entry]:
        info, parts = line.get("info"), line.get("parts")
        known = objects_in(line, "parts")
        is_whole = isinstance(parts, list) and len(known) == len(parts) and line.keys() == {"info", "parts"}
        before = self._chain.last_id
        if is_whole and isinstance(info, dict) and text_of(info, "id"):
            self._time = _moment(object_in(info, "time").get("created")) or self._time
            try:
                entries = self._said(info, known)
                ids = {entry.id for entry in entries}
                if len(ids) < len(entries) or not ids.isdisjoint(self._ids):
                    raise InvalidMessage("its id, or that of a part, stands before it")  # noqa: TRY301 - is kept whole too
                for entry in entries:
                    encode_entry(entry)
            except InvalidMessage as error:
                self._lines.kept_whole(error)
                self._chain.last_id = before
            else:
                if entries:
                    self._ids |= ids
                    return entries
        return [self._custom(line)]

    def _said(self, info: dict[str, Any], parts: list[dict[str, Any]]) -> list[Entry]:
        text = "\n".join(
            part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str)
        )
        match info.get("role"):
            case "user":
                pieces = tuple(_user_part(part) for part in parts)
                return [self._message(info["id"], Message(Role.USER, plain(pieces)), without(info, *_INFO))]
            case "assistant" if info.get("summary") is True:
                kept = kept_apart(info, ("id", "sessionID"), NAME)
                return [self._add(Compaction, info["id"], summary=text, extra=kept)]
            case "assistant":
                return self._reply(info, parts)
            case _:
                return []

    def _reply(self, info: dict[str, Any], parts: list[dict[str, Any]]) -> list[Entry]:
        said: list[Part] = []
        calls: list[ToolCall] = []
        results: list[tuple[str, Message]] = []
        rest: list[dict[str, Any]] = []
        for part in parts:
            match part:
                case {"type": "text", "text": str(text)}:
                    said.append(TextPart(text))
                case {"type": "reasoning", "text": str(text)}:
                    said.append(ThinkingPart(text, extra=keeping(object_in(part, "metadata"), NAME)))
                case {"type": "tool", "callID": str(call_id), "tool": str(tool), "state": dict(state)}:
                    calls.append(ToolCall(call_id, tool, orjson.dumps(state.get("input") or {}).decode()))
                    if (result := _result(call_id, tool, state)) is not None:
                        results.append((text_of(part, "id") or self._chain.new_id(), result))
                    continue
                case _:
                    rest.append(part)
        message = Message(
            Role.ASSISTANT,
            plain(tuple(said)),
            tool_calls=tuple(calls) or None,
            model=text_of(info, "modelID"),
            usage=_usage(info),
            stop_reason=text_of(info, "finish"),
        )
        kept = {**without(info, *_INFO), **({"parts": rest} if rest else {})}
        return [
            self._message(info["id"], message, kept),
            *(self._message(entry_id, result, {}) for entry_id, result in results),
        ]

    def _message(self, entry_id: str, message: Message, kept: dict[str, Any]) -> Entry:
        message = msgspec.structs.replace(message, timestamp=self._time)
        return self._add(MessageEntry, entry_id, message=message, extra=keeping(kept, NAME))

    def _add(self, kind: type[Any], entry_id: str, **fields: Any) -> Entry:
        entry: Entry = kind(id=entry_id, parent_id=self._chain.last_id, timestamp=self._time, **fields)
        self._chain.last_id = entry_id
        return entry


class _DocumentReader(_Reader):
    def feed(self, piece: Any) -> Iterator[Entry]:  # type: ignore[override]
        """An export."""
        if not _is_document(piece):
            raise ImportRefused("this document has no info and messages, as `opencode export` writes them")
        lines = self._lines
        header = {**piece["info"], **without(piece, "info", "messages")}
        self._take_session(lines.storable(header) or {"id": piece["info"]["id"]})
        for line in lines.each(piece["messages"]):
            yield from self._take(line)


def _user_part(part: dict[str, Any]) -> Part:
    match part:
        case {"type": "text", "text": str(text)}:
            return TextPart(text, extra=kept_apart(part, ("type", "text", *_OF_A_PART, "time"), NAME))
        case {"type": "file", "mime": str(mime), "url": str(url)} if mime.startswith("image/"):
            return image_at(url, kept_apart(part, ("type", "url", *_OF_A_PART), NAME))
        case _:
            return kept_whole(part, NAME, "part")


def _result(call_id: str, tool: str, state: Mapping[str, Any]) -> Message | None:
    """What a tool gave back; None while it runs."""
    failed = state.get("status") == "error"
    output = state.get("error" if failed else "output")
    if not isinstance(output, str):
        return None
    extra = kept_apart(state, ("status", "input", "output", "error"), NAME)
    return Message(Role.TOOL_RESULT, output, tool_call_id=call_id, name=tool, is_error=failed, extra=extra)


def _usage(info: Mapping[str, Any]) -> Usage | None:
    tokens = info.get("tokens")
    if not isinstance(tokens, dict):
        return None
    cache, cost = object_in(tokens, "cache"), info.get("cost")
    thought, said = count_of(tokens, "reasoning") or 0, count_of(tokens, "output") or 0
    return Usage(
        input_tokens=amount_of(tokens, "input"),
        output_tokens=max(said + thought, 0),
        cache_read_tokens=amount_of(cache, "read"),
        cache_write_tokens=amount_of(cache, "write"),
        total_tokens=count_of(tokens, "total"),
        cost=float(cost) if isinstance(cost, int | float) and cost else None,
    )


def _moment(milliseconds: Any) -> datetime | None:
    if not isinstance(milliseconds, int | float) or isinstance(milliseconds, bool):
        return None
    try:
        return msgspec.convert(milliseconds / 1000, datetime, strict=False)
    except (msgspec.ValidationError, OverflowError):
        return None


OPENCODE = Format(
    name=NAME,
    about="opencode's sessions, as lines out of its database; read only",
    suffix=".jsonl",
    recognize=any_line(lambda line: _is_session(line.get("info")) and "messages" not in line),
    reader=_Reader,
)
OPENCODE_EXPORT = Format(
    name=f"{NAME}-export",
    about="What `opencode export` prints; read only",
    suffix=".json",
    recognize=lambda sample: _is_document(sample.document),
    reader=_DocumentReader,
    by_line=False,
)
