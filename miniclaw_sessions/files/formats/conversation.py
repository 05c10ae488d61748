"""Readers of files that are a conversation: a header, and then pieces of which each says some messages.

A piece that says nothing that could be read is kept whole, as an entry that is no part of the conversation. Ids that
the file does not have are made of what is said, so that a file that is read again, or that its program has written
again, gives the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from miniclaw_sessions.core.protocol.encoding import encode_entry
from miniclaw_sessions.core.protocol.entries import Entry, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.codec import Chain, keeping
from miniclaw_sessions.files.formats.json_lines import LineReader


class ConversationReader(LineReader):
    """A `LineReader` of a conversation; a codec adds `_header` and `_entries`."""

    def __init__(self, chain: Chain, name: str) -> None:
        super().__init__(chain, name)
        self._ids: set[str] = set()
        self._said_at: datetime | None = None

    def _header(self, line: dict[str, Any]) -> dict[str, Any] | None:
        """The header, if this line is it; the reader notes what it says in `facts`."""
        raise NotImplementedError

    def _entries(self, line: dict[str, Any]) -> Iterable[Entry]:
        """What another line says; it may raise `InvalidMessage`."""
        raise NotImplementedError

    def _take(self, line: dict[str, Any]) -> list[Entry]:
        if not self.facts.header and (header := self._header(line)):
            self.facts.header = header
            return []
        before = self._chain.last_id
        try:
            entries = list(self._entries(line))
            ids = {entry.id for entry in entries}
            if len(ids) < len(entries) or not ids.isdisjoint(self._ids):
                raise InvalidMessage("its id, or that of a part, stands before it")  # noqa: TRY301 - is kept whole too
            for entry in entries:
                encode_entry(entry)
        except InvalidMessage as error:
            self._lines.kept_whole(error)
            self._chain.last_id = before
            entries, ids = [], set()
        self._ids |= ids
        return entries or [self._custom(line, line.get("role"))]

    def _document(self, header: dict[str, Any], pieces: Iterable[Any]) -> Iterator[Entry]:
        """The entries of a document: its header, and pieces as if they were lines."""
        self.facts.header = self._header(self._lines.storable(header) or {}) or {"document": True}
        for line in self._lines.each(pieces):
            yield from self._take(line)

    def _said(self, message: Message, kept: dict[str, Any] | None = None, entry_id: str | None = None) -> Entry:
        """The next message, at the time of this line; `kept` is what has no place in it."""
        entry_id = entry_id or self._made_id(message)
        extra = keeping(kept or {}, self.facts.format)
        message = replace(message, timestamp=self._said_at)
        return self._chain.add(
            MessageEntry, timestamp=self._said_at or self._time, entry_id=entry_id, message=message, extra=extra
        )

    def _made_id(self, message: Message) -> str:
        """An id made of what is said and when; what it cost may be written later."""
        said = replace(message, timestamp=self._said_at, model=None, usage=None, stop_reason=None)
        return self._chain.id_of(MessageEntry, timestamp=self._said_at, message=said)
