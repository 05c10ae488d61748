"""Session files of the Rust miniclaw: `sessions/{channel}_{chat_id}.json`.

Its files have nanosecond times, leave `tool_calls` out where there are none, and may have results without ids, which
`history.context` pairs by their place. Our own snapshots are a superset of these files and are read here, too: with
their ids and idempotency keys, for a session that is moved without its store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from miniclaw_sessions.core.history.state import SCHEMA_VERSION
from miniclaw_sessions.core.persistence.snapshot_file import OWN_FIELDS
from miniclaw_sessions.core.protocol.entries import Entry, MessageEntry
from miniclaw_sessions.core.protocol.json_values import check_json, in_utc
from miniclaw_sessions.core.protocol.messages import Message, message_from_dict
from miniclaw_sessions.errors import ImportRefused, InvalidMessage
from miniclaw_sessions.files.formats.codec import (
    Chain,
    Finding,
    Format,
    Outcome,
    Sample,
    SessionFacts,
    moment_of,
    without,
)
from miniclaw_sessions.files.formats.json_lines import JsonLines
from miniclaw_sessions.files.formats.message_list import Request, RequestWriter

NAME = "miniclaw"

_REQUIRED = frozenset({"session_id", "channel", "chat_id", "created_at", "messages"})
_NOT_KEPT = OWN_FIELDS - {"last_accessed"}  # what facts and entries say, and what only a snapshot's own store needs
_EPOCH = datetime.fromtimestamp(0, UTC)


def _recognize(sample: Sample) -> bool:
    document = sample.document
    return isinstance(document, dict) and document.keys() >= _REQUIRED and isinstance(document["messages"], list)


# --- reading ---------------------------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, chain: Chain) -> None:
        self.facts = SessionFacts(format=NAME)
        self._lines = JsonLines()  # one is a message
        self.findings = self._lines.findings
        self._chain = chain
        self._time = chain.now

    def feed(self, piece: Any) -> Sequence[Entry]:
        """All entries of the document.

        Raises:
            ImportRefused: it holds no session, or one of a newer version of ours.
        """
        if not isinstance(piece, dict) or not isinstance(messages := piece.get("messages"), list):
            raise ImportRefused('this is not a session file of miniclaw: it has no list of "messages"')
        version = piece.get("schema_version", SCHEMA_VERSION)
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            raise ImportRefused(
                f"the file's schema_version is not one up to {SCHEMA_VERSION}, which this version understands: upgrade"
            )
        self._take_facts(piece)
        ids = self._ids(piece.get("ids"), len(messages))
        keys = piece.get("idempotency_keys")
        entries: list[MessageEntry] = []
        parent_id: str | None = None
        for number, fields in enumerate(messages, start=1):
            self._lines.number = number
            message = self._message(fields)
            if message is not None:
                entry_id = ids[number - 1] if ids else self._chain.new_id()
                self._time = message.timestamp or self._time
                entries.append(MessageEntry(id=entry_id, parent_id=parent_id, timestamp=self._time, message=message))
                parent_id = entry_id
        if not isinstance(keys, dict):
            return entries
        key_of = {entry_id: key for key, entry_id in keys.items() if isinstance(entry_id, str)}
        return [msgspec.structs.replace(entry, idempotency_key=key_of.get(entry.id)) for entry in entries]

    def finish(self) -> list[Entry]:
        """Nothing more: the document was one piece."""
        return []

    def _take_facts(self, fields: dict[str, Any]) -> None:
        facts = self.facts
        facts.session_id = facts.source_id = self._text(fields, "session_id")
        facts.channel, facts.chat_id = self._text(fields, "channel"), self._text(fields, "chat_id")
        facts.created_at = self._lines.moment_in(fields, "created_at")
        self._time = facts.created_at or self._time
        facts.metadata = self._fit(fields.get("metadata"), "metadata")
        if isinstance(title := facts.metadata.get("title"), str):
            facts.title = title
        if isinstance(leaf_id := fields.get("leaf_id"), str):
            facts.leaf_id = leaf_id
        facts.header = self._fit(without(fields, *_NOT_KEPT), "what else the file says of the session")

    def _text(self, fields: Mapping[str, Any], name: str) -> str:
        value = fields.get(name)
        if isinstance(value, str):
            return value
        usable = isinstance(value, int) and not isinstance(value, bool)
        self._lines.repaired(f"{name} is not text, and was {'made text' if usable else 'left out'}")
        return str(value) if usable else ""

    def _fit(self, value: Any, what: str) -> dict[str, Any]:
        if value is None:
            return {}
        try:
            if isinstance(value, dict):
                return dict(check_json(value))
        except InvalidMessage:
            pass
        self._lines.repaired(f"{what} cannot be stored, and was left out")
        return {}

    def _ids(self, ids: Any, count: int) -> Sequence[str]:
        """The file's own ids, if there is a usable one for every message."""
        if ids is None:
            return ()
        texts = (
            [entry_id for entry_id in ids if isinstance(entry_id, str) and entry_id] if isinstance(ids, list) else []
        )
        if len(texts) == len(set(texts)) == count:
            return texts
        self._lines.repaired("its list of ids does not fit its messages; they have new ids")
        self.facts.leaf_id = None
        return ()

    def _message(self, fields: Any) -> Message | None:
        try:
            return message_from_dict(check_json(fields))
        except InvalidMessage as error:
            reason = str(error)
        if isinstance(fields, dict) and "timestamp" in fields and moment_of(fields["timestamp"]) is None:
            try:
                message = message_from_dict(without(fields, "timestamp"))
            except InvalidMessage as error:
                reason = str(error)
            else:
                self._lines.repaired("its timestamp is not a time, and was left out")
                return message
        self.findings.append(Finding(self._lines.number, Outcome.SET_ASIDE, reason, json.dumps(fields).encode()))
        return None


# --- writing ---------------------------------------------------------------------------------------------------------


class _Request(Request):
    """The file with the Rust original's exact keys; it holds text only, and no names, errors, usage or thinking."""

    def __init__(self, created_at: datetime) -> None:
        self._time = created_at

    def add(self, message: Message) -> list[dict[str, Any]]:
        self._time = in_utc(message.timestamp) if message.timestamp is not None else self._time  # it refuses none
        fields: dict[str, Any] = {"role": message.role.value, "content": message.text, "timestamp": self._time}
        if message.tool_calls:
            fields["tool_calls"] = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in message.tool_calls]
        if message.tool_call_id is not None:
            fields["tool_call_id"] = message.tool_call_id
        return [fields]


def _writer(facts: SessionFacts) -> RequestWriter:
    channel = facts.channel or "import"
    chat_id = facts.chat_id or facts.source_id or "session"
    created_at = facts.created_at or _EPOCH
    header = {
        "session_id": f"{channel}_{chat_id}",
        "channel": channel,
        "chat_id": chat_id,
        "created_at": created_at,
        "last_accessed": moment_of(facts.header.get("last_accessed")) or facts.updated_at or created_at,
    }
    return RequestWriter(_Request(created_at), SessionFacts(format=NAME, header=header), NAME, "messages")


RUST_MINICLAW = Format(
    name=NAME,
    about="the Rust miniclaw's session file; it keeps one branch as text: no images, thinking, usage, names or errors",
    suffix=".json",
    recognize=_recognize,
    reader=_Reader,
    by_line=False,
    message_writer=_writer,
)
