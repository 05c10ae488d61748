"""Open WebUI's chats, as lines out of its database (`webui.db`), and its JSON export of one chat; read only.

As its own source has it (`backend/open_webui/models/chats.py`, `chat_messages.py`), a chat is a tree: messages name
their parents, and `currentId` says which branch is shown; answers of several models, and answers that were asked for
again, are branches. The lines are `{"chat": row}` and then `{"message": ...}`. An answer has its text in `content`,
with thoughts and calls of tools as `<details>`, or in newer versions also in `output`, as items of the Responses API.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.core.protocol.images import image_at
from miniclaw_sessions.core.protocol.json_values import parse_json
from miniclaw_sessions.core.protocol.messages import Message, Part, Role, TextPart, ThinkingPart, ToolCall, Usage
from miniclaw_sessions.errors import ImportRefused, InvalidMessage
from miniclaw_sessions.files.formats.codec import (
    MAX_ELEMENTS,
    Chain,
    Format,
    any_line,
    count_of,
    kept_apart,
    kept_whole,
    object_in,
    objects_in,
    plain,
    taken_apart,
    text_of,
    without,
)
from miniclaw_sessions.files.formats.message_tree import MessageTreeReader, parents_first
from miniclaw_sessions.files.formats.times import from_seconds
from miniclaw_sessions.files.formats.tool_calls import parsed

NAME = "open-webui"

_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
_OF_A_MESSAGE = ("id", "parentId", "childrenIds", "role", "content", "timestamp", "model", "usage", "output", "files")
_DETAILS = re.compile(r'<details type="(reasoning|tool_calls)"([^>]*)>(.*?)</details>\n?', re.DOTALL)
_ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')
_SUMMARY = re.compile(r"<summary>.*?</summary>\n?", re.DOTALL)
_SEVERAL = 2
_Piece = Part | ToolCall | Message


def messages_in(chat: Mapping[str, Any]) -> list[Any]:
    """The messages of a chat, each behind its parent; the oldest versions had a list of them, without a tree."""
    history = object_in(object_in(chat, "history"), "messages")
    if history:
        return list(parents_first(history.values(), "id", "parentId", object_in(chat, "history").get("currentId")))
    listed, before = [], None
    for message in objects_in(chat, "messages"):
        listed.append(message if "parentId" in message else {**message, "parentId": before})
        before = message.get("id")
    return listed


def without_messages(row: Mapping[str, Any]) -> dict[str, Any]:
    """A chat's row without its messages."""
    chat = object_in(row, "chat")
    history = without(object_in(chat, "history"), "messages")
    return {**row, "chat": {**without(chat, "history", "messages"), **({"history": history} if history else {})}}


def chats_apart(data: bytes) -> list[tuple[str, bytes]]:
    """The ids of the chats of an export with several of them, and each as an export of its own; empty for others."""
    try:
        document = parse_json(data, elements=MAX_ELEMENTS)
    except InvalidMessage:
        return []
    if not isinstance(document, list) or len(document) < _SEVERAL or not _is_export(document[0]):
        return []
    chats = [chat for chat in document if isinstance(chat, dict)]
    named = [text_of(chat, "id") or f"open-webui-{number}" for number, chat in enumerate(chats, 1)]
    return [(name, orjson.dumps([chat])) for name, chat in zip(named, chats, strict=True)]


def _chat_of(line: Mapping[str, Any]) -> dict[str, Any]:
    row = object_in(line, "chat")
    return row if text_of(row, "id") and isinstance(row.get("chat"), dict) and "user_id" in row else {}


def _is_export(chat: Any) -> bool:
    content = object_in(chat, "chat") if isinstance(chat, dict) else {}
    return isinstance(content.get("history"), dict) and "messages" in content["history"]


class _Reader(MessageTreeReader):
    def __init__(self, chain: Chain, name: str = NAME) -> None:
        super().__init__(chain, name, _place_of)

    def _header(self, line: dict[str, Any]) -> dict[str, Any] | None:
        if not (row := _chat_of(line)):
            return None
        chat = row["chat"]
        self.facts.source_id, self.facts.title = row["id"], text_of(row, "title") or text_of(chat, "title")
        self.facts.created_at = from_seconds(row.get("created_at"))
        self._current = text_of(object_in(chat, "history"), "currentId") or text_of(row, "current_message_id")
        return {**row, **without(line, "chat")}

    def _entries(self, line: dict[str, Any]) -> Iterator[Entry]:
        row = object_in(line, "message")
        role, entry_id = _ROLES.get(text_of(row, "role") or ""), text_of(row, "id")
        if role is None or entry_id is None or not isinstance(row.get("content"), str | list | None):
            return
        self._said_at = from_seconds(row.get("timestamp"))
        pieces = _pieces(row) if role is Role.ASSISTANT else _plain_pieces(row)
        kept = {**without(row, *_OF_A_MESSAGE), **without(line, "message")}
        model, usage = text_of(row, "model"), _usage(row)
        messages = list(_messages(role, pieces))
        last = max((number for number, message in enumerate(messages) if message.is_assistant), default=-1)
        for number, message in enumerate(messages):
            if message.is_assistant:
                spent = usage if number == last else None
                message = Message(  # noqa: PLW2901 - the same, with what it cost
                    role, message.content, tool_calls=message.tool_calls, model=model, usage=spent
                )
            yield self._said(message, {} if number else kept, f"{entry_id}.{number}" if number else entry_id)


class _ExportReader(_Reader):
    def __init__(self, chain: Chain) -> None:
        super().__init__(chain, f"{NAME}-export")

    def feed(self, piece: Any) -> Iterator[Entry]:  # type: ignore[override]
        """An export."""
        chats = piece if isinstance(piece, list) else [piece]
        if not chats or not _is_export(chats[0]):
            raise ImportRefused("this document has no chat with a history, as Open WebUI exports it")
        if len(chats) > 1:
            raise ImportRefused(
                f"it has {len(chats)} chats, and a file becomes one session: the command `import` takes them apart"
            )
        row = {"id": "", "user_id": "", **chats[0]}
        row["id"] = text_of(row, "id") or text_of(row["chat"], "id") or "chat"
        lines = [{"message": message} for message in messages_in(row["chat"])]
        yield from self._document({"chat": without_messages(row)}, lines)


def _place_of(line: dict[str, Any]) -> tuple[str | None, str | None]:
    row = object_in(line, "message")
    return text_of(row, "id"), text_of(row, "parentId")


def _plain_pieces(row: Mapping[str, Any]) -> list[_Piece]:
    content = row.get("content")
    parts: list[_Piece] = [_part(part) for part in content] if isinstance(content, list) else []
    if isinstance(content, str) and content:
        parts = [TextPart(content)]
    files = row.get("files")
    return parts + [_file(file) for file in files] if isinstance(files, list) else parts


def _pieces(row: Mapping[str, Any]) -> list[_Piece]:
    """What an answer consists of, in its order; a result of a tool is a message."""
    items = objects_in(row, "output")
    if items and len(items) == len(row["output"]):
        return [piece for item in items for piece in _of_item(item)] + _plain_pieces({"files": row.get("files")})
    content = row.get("content")
    if not isinstance(content, str) or "<details" not in content:
        return _plain_pieces(row)
    pieces: list[_Piece] = []
    end = 0
    for found in _DETAILS.finditer(content):
        if text := content[end : found.start()].strip("\n"):
            pieces.append(TextPart(text))
        pieces += _of_details(found[1], found[2], found[3])
        end = found.end()
    if text := content[end:].strip("\n"):
        pieces.append(TextPart(text))
    return pieces + _plain_pieces({"files": row.get("files")})


def _of_details(kind: str, attributes: str, inner: str) -> list[_Piece]:
    fields = {name: html.unescape(value) for name, value in _ATTRIBUTE.findall(attributes)}
    text = html.unescape(_SUMMARY.sub("", inner)).strip("\n")
    if kind == "reasoning":
        return [ThinkingPart("\n".join(line.removeprefix(">").removeprefix(" ") for line in text.split("\n")))]
    call = ToolCall(fields.get("id") or "call", fields.get("name") or "tool", fields.get("arguments") or "{}")
    given = parsed(fields["result"], fields["result"]) if fields.get("result") else text
    if fields.get("done") != "true":
        return [call]
    output = given if isinstance(given, str) else fields.get("result", "")
    return [call, Message(Role.TOOL_RESULT, output, tool_call_id=call.id, name=call.name)]


def _of_item(item: dict[str, Any]) -> list[_Piece]:
    texts = [text for part in objects_in(item, "content") if (text := text_of(part, "text"))]
    match item:
        case {"type": "message"} if texts:
            return [TextPart("".join(texts))]
        case {"type": "reasoning"}:
            thoughts = texts or [text for part in objects_in(item, "summary") if (text := text_of(part, "text"))]
            return [ThinkingPart("\n".join(thoughts))] if thoughts else []
        case {"type": "function_call", "call_id": str(call_id), "name": str(name)}:
            return [ToolCall(call_id, name, text_of(item, "arguments") or "{}")]
        case {"type": "function_call_output", "call_id": str(call_id), "output": output}:
            parts = [text_of(part, "text") or "" for part in objects_in(item, "output")]
            text = output if isinstance(output, str) else "\n".join(parts)
            return [Message(Role.TOOL_RESULT, text, tool_call_id=call_id)]
        case _:
            return [kept_whole(item, NAME, "item")]


def _part(part: Any) -> Part:
    match part:
        case {"type": "text", "text": str(text)}:
            return TextPart(text)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return image_at(url)
        case _:
            return kept_whole(part, NAME, "part")


def _file(file: Any) -> Part:
    match file:
        case {"type": "image", "url": str(url)} if url.startswith(("data:image/", "http")):
            return image_at(url, kept_apart(file, ("type", "url"), NAME))
        case _:
            return kept_whole(file, NAME, "file")


def _messages(role: Role, pieces: list[_Piece]) -> Iterator[Message]:
    """The messages that an answer is here: each result of a tool is one, and what was said between results."""
    said: list[Part | ToolCall] = []
    is_first = True
    for piece in pieces:
        if isinstance(piece, Message):
            if said:
                yield _spoken(role, said)
            said, is_first = [], False
            yield piece
        else:
            said.append(piece)
    if said or is_first:
        yield _spoken(role, said)


def _spoken(role: Role, said: list[Part | ToolCall]) -> Message:
    content, calls = taken_apart(said)
    return Message(role, plain(content), tool_calls=calls)


def _usage(row: Mapping[str, Any]) -> Usage | None:
    """Its input includes what came from the cache, where it says that; older versions have it in `info`."""
    fields = object_in(row, "usage") or object_in(object_in(row, "info"), "usage") or object_in(row, "info")
    read = _first(fields, "input_tokens", "prompt_tokens", "prompt_eval_count")
    said = _first(fields, "output_tokens", "completion_tokens", "eval_count")
    if read is None and said is None:
        return None
    cached = count_of(object_in(fields, "prompt_tokens_details"), "cached_tokens") or 0
    cost = fields.get("cost")
    return Usage(
        max((read or 0) - cached, 0),
        max(said or 0, 0),
        max(cached, 0),
        total_tokens=count_of(fields, "total_tokens"),
        cost=float(cost) if isinstance(cost, int | float) and cost and not isinstance(cost, bool) else None,
    )


def _first(fields: Mapping[str, Any], *names: str) -> int | None:
    return next((count for name in names if (count := count_of(fields, name)) is not None), None)


OPEN_WEBUI = Format(
    name=NAME,
    about="Open WebUI's chats with their branches, as lines out of its database; read only",
    suffix=".jsonl",
    recognize=any_line(lambda line: bool(_chat_of(line))),
    reader=_Reader,
)
OPEN_WEBUI_EXPORT = Format(
    name=f"{NAME}-export",
    about="Open WebUI's export of a chat; of several, the command `import` takes them apart; read only",
    suffix=".json",
    recognize=lambda sample: _is_export(
        next(iter(sample.document), None) if isinstance(sample.document, list) else sample.document
    ),
    reader=_ExportReader,
    by_line=False,
)
