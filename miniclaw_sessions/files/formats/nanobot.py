"""nanobot's session files: `sessions/<key>.jsonl`, a metadata line and then messages in chat-completions form.

The oldest files' metadata has times only; later ones add `last_consolidated` and `key`, and since 2026 a line of type
`provider_state` may follow. All of them write their times without a zone, in the local time of the machine; here they
are taken to be UTC and written as UTC, because no file says which zone it was. Where nanobot has put a summary of old
messages into the metadata, it becomes a compaction that keeps what nanobot itself would still send.

Reasoning becomes thinking parts. Fields of nanobot's own are kept under `extra["nanobot"]` and written back; they are
not sent to any model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import orjson
from msgspec.structs import replace

from miniclaw_sessions.core.protocol.entries import Compaction, Custom, Entry, MessageEntry
from miniclaw_sessions.core.protocol.json_values import in_utc
from miniclaw_sessions.core.protocol.messages import (
    Message,
    OtherPart,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    message_from_dict,
)
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.blocks import read_block, written_part
from miniclaw_sessions.files.formats.codec import (
    Chain,
    Format,
    SessionFacts,
    any_line,
    count_of,
    keeping,
    kept_but,
    kept_whole,
    text_of,
    without,
)
from miniclaw_sessions.files.formats.json_lines import LineReader
from miniclaw_sessions.files.formats.openai_chat import from_openai, to_openai

NAME = "nanobot"

_METADATA = "metadata"
_SUMMARY = "_last_summary"
_KEPT_BEHIND_SUMMARY = 8  # nanobot sends at least this many messages with a summary
_CHAT_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")
_NOT_KEPT = (*_CHAT_FIELDS, "_type")  # nanobot takes a line with a type for no message
_EPOCH = datetime.fromtimestamp(0, UTC)


# --- reading ---------------------------------------------------------------------------------------------------------


class _Reader(LineReader):
    def __init__(self, chain: Chain) -> None:
        super().__init__(chain, NAME)
        self._has_metadata = False
        self._count = 0
        self._consolidated = 0
        self._first_kept: str | None = None
        self._newest: deque[str] = deque(maxlen=_KEPT_BEHIND_SUMMARY)

    def _take(self, line: dict[str, Any]) -> list[Entry]:
        """The entry of a line; none for the metadata, and for a message that was set aside."""
        kind = line.get("_type")
        if kind == _METADATA and not self._has_metadata:
            self._take_metadata(line)
            return []
        if kind is not None:
            name = kind if isinstance(kind, str) else "unknown"
            return [self._chain.add(Custom, custom_type=f"{NAME}.{name}", data=line)]
        message = self._message(line)
        if message is None:
            return []
        entry = self._chain.add(MessageEntry, timestamp=message.timestamp, message=message)
        if self._count == self._consolidated:
            self._first_kept = entry.id
        self._count += 1
        self._newest.append(entry.id)
        return [entry]

    def finish(self) -> list[Entry]:
        """The summary that nanobot has made, as a compaction behind everything that it speaks of."""
        summary = self.facts.header.get("metadata", {}).get(_SUMMARY)
        text = summary.get("text") if isinstance(summary, dict) else None
        if not isinstance(text, str) or not text or not 0 < self._consolidated <= self._count:
            return []
        if self._count - self._consolidated < _KEPT_BEHIND_SUMMARY:
            self._first_kept = self._newest[0]
        return [self._chain.add(Compaction, summary=text, first_kept_entry_id=self._first_kept)]

    def _take_metadata(self, line: Mapping[str, Any]) -> None:
        self._has_metadata = True
        facts = self.facts
        facts.header = without(line, "_type")
        if not isinstance(metadata := facts.header.get("metadata", {}), dict):
            self._lines.repaired("metadata is not an object, and was left out")
            metadata = facts.header["metadata"] = {}
        facts.title = text_of(metadata, "title")
        facts.created_at = self._lines.moment_in(line, "created_at")
        if isinstance(key := line.get("key"), str):
            facts.source_id = key
            channel, colon, chat_id = key.partition(":")
            if colon and channel and chat_id:
                facts.channel, facts.chat_id = channel, chat_id
        self._consolidated = count_of(line, "last_consolidated") or 0

    def _message(self, line: Mapping[str, Any]) -> Message | None:
        """The message of a line, its thinking in front, and what only nanobot knows kept apart."""
        chat = {name: value for name, value in line.items() if name in _CHAT_FIELDS}
        message = None
        with suppress(InvalidMessage):
            (message,) = from_openai([chat])
        if message is None or message.role is Role.OTHER:
            try:
                message = message_from_dict(chat)
            except InvalidMessage as error:
                self._lines.set_aside(str(error))
                return None
            self._lines.repaired("the message is not quite in chat-completions form, and was read all the same")
        unknown = without(line, *_CHAT_FIELDS, "timestamp")
        blocks = unknown.get("thinking_blocks")
        read = [read_block(block, NAME) for block in blocks] if isinstance(blocks, list) else []
        thinking = [part for part in read if isinstance(part, ThinkingPart) and part.signature is not None]
        if thinking and len(thinking) == len(read):
            del unknown["thinking_blocks"]
        else:
            thinking = []
        if isinstance(text := unknown.get("reasoning_content"), str) and text and not blocks:
            thinking = [ThinkingPart(text)]
            del unknown["reasoning_content"]
        content = message.content
        if not isinstance(content, str):  # a part of a known type with fields of a wrong one could not be read again
            content = tuple(
                kept_whole(part.fields, NAME, "part") if isinstance(part, OtherPart) else part for part in content
            )
        if thinking:
            said: tuple[Part, ...] = content if isinstance(content, tuple) else (TextPart(content),) if content else ()
            content = (*thinking, *said)
        extra = {**(message.extra or {}), **(keeping(unknown, NAME) or {})}
        return replace(message, content=content, timestamp=self._lines.moment_in(line), extra=extra or None)


# --- writing ---------------------------------------------------------------------------------------------------------


class _Writer:
    """The newest generation of the file. It holds no usage and no errors, and images only in a user's messages.

    nanobot compares times without a zone, so they are written without one. The summary of old messages is left out of
    the metadata, because it is among the messages.
    """

    def __init__(self, facts: SessionFacts) -> None:
        self._facts = facts

    def begin(self) -> bytes:
        """The line of metadata."""
        facts = self._facts
        created_at = facts.created_at or _EPOCH
        metadata = facts.header.get("metadata") if facts.format == NAME else None
        metadata = without(metadata, _SUMMARY) if metadata else {}
        if facts.title:
            metadata["title"] = facts.title
        head = {
            "_type": _METADATA,
            "key": f"{facts.channel or 'import'}:{facts.chat_id or facts.source_id or 'session'}",
            "created_at": _naive(created_at),
            "updated_at": _naive(facts.updated_at or created_at),
            "metadata": metadata,
            "last_consolidated": 0,
        }
        return _line(head)

    def feed(self, message: Message) -> bytes:
        """One message.

        Raises:
            InvalidMessage: it holds what JSON cannot.
        """
        line = without(to_openai([message])[0], "_type")  # images of a tool result would be a second message
        thinking = [part for part in message.content if isinstance(part, ThinkingPart)]
        if blocks := [written_part(part, NAME) for part in thinking if part.signature is not None]:
            line["thinking_blocks"] = blocks
        if text := "\n\n".join(part.thinking for part in thinking if part.signature is None):
            line["reasoning_content"] = text
        line |= kept_but(message.extra, NAME, *_NOT_KEPT)
        if message.is_tool_result and message.name:
            line["name"] = message.name
        if message.timestamp is not None:
            line["timestamp"] = _naive(message.timestamp)
        return _line(line)

    def finish(self) -> bytes:
        """Nothing more."""
        return b""


def _line(fields: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(fields) + b"\n"
    except orjson.JSONEncodeError as error:
        raise InvalidMessage(f"the session cannot be written for nanobot: {error}") from None


def _naive(moment: datetime) -> str:
    return in_utc(moment).replace(tzinfo=None).isoformat()


NANOBOT = Format(
    name=NAME,
    about="nanobot's session file, of any generation; its times, which name no zone, are taken to be UTC",
    suffix=".jsonl",
    recognize=any_line(lambda line: line.get("_type") == _METADATA and ("created_at" in line or "key" in line)),
    reader=_Reader,
    message_writer=_Writer,
)
