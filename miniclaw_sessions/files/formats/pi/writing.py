"""Writes pi's session files, in version 3.

pi goes on from the last entry of a file, and shows the name that its newest `session_info` says. Where a session goes
on from another entry, or has a title that no entry says, a last entry says so.
"""

from __future__ import annotations

from typing import Any

import orjson

from miniclaw_sessions.core.history.branch import provider_of
from miniclaw_sessions.core.protocol.entries import Entry, LeafMove, MessageEntry, ModelChange, SessionInfo, moves_leaf
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.codec import SessionFacts
from miniclaw_sessions.files.formats.pi.entries import VERSION, write_entry
from miniclaw_sessions.files.formats.pi.messages import Setting
from miniclaw_sessions.files.formats.pi.shapes import from_text, to_text

_NO_TIME = "1970-01-01T00:00:00.000Z"  # pi cannot list a session whose header has none


class PiWriter:
    """Writes one file; see `codec.Writer`.

    The `extra` of other formats is left out, and so is the place of an entry in a store: whoever reads the file numbers
    its entries anew. A message's time is cut to milliseconds, unless it is its entry's.
    """

    def __init__(self, facts: SessionFacts) -> None:
        self._facts = facts
        self._count = 0
        self._last: Entry | None = None
        self._leaf_id: str | None = None
        self._title: str | None = None
        self._provider = self._model = ""

    def begin(self) -> bytes:
        """The header, with the fields of the one that was read."""
        facts = self._facts
        kept = dict(facts.header) if facts.format == "pi" else {}
        moment = _NO_TIME if facts.created_at is None else to_text(facts.created_at)
        if (read := kept.pop("timestamp", None)) is not None and from_text(read) == facts.created_at is not None:
            moment = read
        fields: dict[str, Any] = {"type": "session", "version": VERSION, "id": facts.source_id or facts.session_id}
        fields |= {"timestamp": moment, "cwd": kept.pop("cwd", "")}
        if facts.parent_session is not None:
            fields["parentSession"] = facts.parent_session
        return orjson.dumps(fields | {name: value for name, value in kept.items() if name not in fields}) + b"\n"

    def feed(self, entry: Entry) -> bytes:
        """One entry.

        Raises:
            InvalidMessage: it holds something that JSON cannot.
        """
        self._count += 1
        self._last = entry
        match entry:
            case ModelChange():
                self._provider, self._model = entry.provider, entry.model_id
            case MessageEntry(message=message) if message.is_assistant and message.model:
                self._provider, self._model = provider_of(message) or "", message.model
            case SessionInfo():
                self._title = entry.name
        if moves_leaf(entry):
            self._leaf_id = entry.target_id if isinstance(entry, LeafMove) else entry.id
        try:
            return write_entry(entry, Setting(entry.timestamp, self._provider, self._model)) + b"\n"
        except (TypeError, ValueError) as error:
            raise InvalidMessage(f"a {type(entry).__name__} cannot be written as JSON: {error}") from None

    def finish(self) -> bytes:
        """An entry for the title or the leaf, where those that were written do not say it; usually nothing."""
        if self._last is None:
            return b""
        leaf_id, title = self._facts.leaf_id or self._leaf_id, self._facts.title
        entry_id, moment = f"end-{self._count}", self._last.timestamp
        if title and title != self._title:
            return self.feed(SessionInfo(id=entry_id, parent_id=leaf_id, timestamp=moment, name=title))
        if leaf_id != self._leaf_id:
            return self.feed(LeafMove(id=entry_id, parent_id=self._leaf_id, timestamp=moment, target_id=leaf_id))
        return b""
