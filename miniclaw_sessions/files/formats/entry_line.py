"""Sessions as JSON Lines, in the Go manager's form: a header, then an entry per line; the entries name their parents.

This is also our own way of taking a session elsewhere. What an entry says is written under the name of its type, what
the Go manager has no field for beside that, and all of it comes back equal. Only the places in a store (`sequence` and
its like) are left out, because they hold for one store. Read are also lines that have all of it side by side, as the
examples of the Go manager, our former exports and the lines that we store: the daemon's transcripts are made of those.

A tree needs its parents. The reader remembers which ids it has met, as one number each, and mends what it can: children
of a line that was set aside become children of its parent, an unknown parent is taken to be the line that could not be
read, and without such a line the entry begins a branch of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from miniclaw_sessions.core.protocol.encoding import decode_entry, encode_entry
from miniclaw_sessions.core.protocol.entries import Entry, LeafMove, MessageEntry, OtherEntry
from miniclaw_sessions.core.protocol.json_values import STORED_DEPTH
from miniclaw_sessions.errors import ImportRefused, InvalidMessage
from miniclaw_sessions.files.formats.codec import (
    IS_PART,
    Chain,
    Format,
    Sample,
    SessionFacts,
    moment_of,
    stated,
    taken,
    text_of,
    without,
)
from miniclaw_sessions.files.formats.entry_message import KEPT, joined, piece_ids, read_messages, written_message
from miniclaw_sessions.files.formats.json_lines import JsonLines, Tree, TreeReader

VERSION = 1
"""The version of the Go manager's form, and of ours."""

_HEADER = "session"
_PIECE_OF = "piece_of"  # in the `extra` of a piece, under KEPT: the id of the first
_REFERENCES = ("target_sequence", "first_kept_sequence")
_PLACES = ("sequence", "parent_sequence", *_REFERENCES)
_ALWAYS: Mapping[str, dict[str, Any]] = {
    "message": {},
    "model_change": {"provider": "", "model_id": ""},
    "thinking_level": {"thinking_level": ""},
    "session_info": {"name": ""},
    "label": {"target_id": "", "label": ""},
    "compaction": {"summary": "", "first_kept_entry_id": "", "tokens_before": 0},
    "branch_summary": {"summary": "", "from_id": ""},
    "custom": {"custom_type": "", "data": {}},
    "leaf": {"target_id": None},
}
"""What an entry of each type always says; by the first field a flat entry differs from a nested one."""

_KINDS = list(_ALWAYS)  # a list, because a type that is no text cannot be looked up in a dict
_BEGINNING = re.compile(rb'\{"type": ?"[a-z_]+", ?"id": ?"[^"\\]*", ?"parent_id": ?')


def _recognize(sample: Sample) -> bool:
    lines = sample.objects
    if any("parentId" in line for line in lines):
        return False  # pi's
    entries = [line for line in lines if isinstance(line.get("id"), str) and "parent_id" in line]
    if entries:
        return any(map(_is_header, lines)) or any(line.get("type") in _KINDS for line in entries)
    return any(_is_header(line) and ("session_id" in line or line.get("version") == VERSION) for line in lines)


def _is_header(line: Mapping[str, Any]) -> bool:
    return line.get("type") == _HEADER and "parent_id" not in line


# --- reading ---------------------------------------------------------------------------------------------------------


class _Reader(TreeReader):
    def __init__(self, chain: Chain) -> None:
        lines = JsonLines(depth=STORED_DEPTH, beginning=_BEGINNING)
        super().__init__(chain, KEPT, lines, Tree(lines))
        self._has_header = False
        self._is_part = False

    def _take_raw(self, line: dict[str, Any], raw: bytes) -> list[Entry]:
        """The entries of a line: one, several for several results, none for the header and for what is no entry.

        Raises:
            ImportRefused: the file is of a newer version.
        """
        if _is_header(line):
            self._read_header(line)
            return []
        if "id" not in line and line.get("type") not in _KINDS:
            self._lines.set_aside("the line is neither a header nor an entry")
            return []
        before = len(self.findings)
        entry_id = text_of(line, "id")
        if entry_id is None:
            self._lines.repaired("the entry has no id; it was given one")
            entry_id = self._chain.new_id()
        elif entry_id in self._tree:
            self._lines.set_aside("its id occurs twice; the first entry that has it was taken")
            return []
        line["id"] = entry_id
        named = line.get("parent_id")
        line["parent_id"] = parent_id = self._parent_of(line)
        moment = moment_of(line.get("timestamp"))
        if moment is None:
            self._lines.repaired("the entry has no valid time; it has that of the entry before it")
        line["timestamp"] = moment or self._time
        is_as_read = len(self.findings) == before and parent_id == named
        as_read = raw.strip() if is_as_read and self._lines.number > 1 else b""  # a mark may stand before the first
        try:
            entries = [decode_entry(stored) for stored in self._stored(line, as_read)]
        except InvalidMessage as error:
            self._lines.set_aside(str(error))
            self._tree.redirect(entry_id, parent_id)  # its children are its parent's
            return []
        return self._taken_in(entries)

    def finish(self) -> list[Entry]:
        """Nothing more.

        Raises:
            ImportRefused: there was no session in the file.
        """
        if not self._has_header and self._tree.is_empty:
            raise ImportRefused("there is no session in this file: no line of it is a header or an entry")
        return []

    def _read_header(self, header: dict[str, Any]) -> None:
        if self._has_header:
            self._lines.set_aside("there is a header already")
            return
        self._has_header = True
        version = header.pop("version", None)
        if isinstance(version, int) and version > VERSION:
            raise ImportRefused(
                f"this file has version {version}, and only version {VERSION} is understood: it was written by a newer "
                "program; import it with that one"
            )
        if version != VERSION:
            self._lines.repaired(f"the header has no valid version; it is read as version {VERSION}")
        del header["type"]
        facts = self.facts
        facts.source_id = taken(header, "id", str) or ""
        facts.title = taken(header, "title", str)
        facts.parent_session = taken(header, "parent_session", str)
        facts.metadata = taken(header, "metadata", dict) or {}
        if isinstance(source := header.get("source"), dict) and isinstance(source.get("format"), str):
            facts.source = header.pop("source")
        facts.session_id = taken(header, "session_id", str) or ""
        facts.channel = taken(header, "channel", str) or ""
        facts.chat_id = taken(header, "chat_id", str) or ""
        facts.created_at = moment_of(header.get("timestamp"))
        if facts.created_at is not None:
            del header["timestamp"]
        facts.header = header
        self._is_part = header.get(IS_PART) is True

    def _stored(self, fields: dict[str, Any], raw: bytes) -> Iterable[bytes]:
        """What a line holds as we store it, whichever form it has."""
        kind = fields.get("type")
        if kind == "message":
            return map(msgspec.json.encode, self._message_entries(fields))
        if kind not in _KINDS:
            return (raw or msgspec.json.encode(fields),)  # of a newer version: as it came
        payload = fields.get(kind)  # the Go manager has an entry's fields under the name of its type, too
        main = next(iter(_ALWAYS[kind]))
        if isinstance(payload, dict) and main in payload and (main == kind or main not in fields):
            fields = {**payload, **without(fields, kind)}
        if kind == "compaction" and fields.get("first_kept_entry_id") == "":
            fields = {**fields, "first_kept_entry_id": None}
        return (msgspec.json.encode(fields),)

    def _message_entries(self, fields: dict[str, Any]) -> list[dict[str, Any]]:
        if "message" not in fields:
            fields["message"] = {name: fields.pop(name) for name in ("role", "content", "model") if name in fields}
        messages = read_messages(fields["message"])
        stored = [{**fields, "message": messages[0]}]
        if len(messages) > 1:
            taken = {fields["id"]}
            piece = {name: fields[name] for name in ("type", "timestamp")} | {"continues": True}
            piece[KEPT] = {_PIECE_OF: fields["id"]}
            for named, message in zip(piece_ids(fields["message"]), messages[1:], strict=True):
                is_usable = isinstance(named, str) and named and named not in self._tree and named not in taken
                piece_id = named if is_usable else self._chain.new_id()
                taken.add(piece_id)
                stored.append({**piece, "id": piece_id, "parent_id": stored[-1]["id"], "message": message})
        return stored

    def _taken_in(self, entries: list[Entry]) -> list[Entry]:
        """The entries without places; from here on they may be parents, the last one for all of them."""
        placeless: list[Entry] = []
        for entry in entries:
            has_places = entry.sequence or entry.parent_sequence is not None
            if has_places or not isinstance(entry, MessageEntry | OtherEntry):
                changes: dict[str, Any] = {"sequence": 0, "parent_sequence": None}
                changes |= {name: None for name in _REFERENCES if name in entry.__struct_fields__}
                placeless.append(msgspec.structs.replace(entry, **changes))
            else:
                placeless.append(entry)
        first, last = placeless[0], placeless[-1]
        if isinstance(first, LeafMove) and first.target_id is not None:
            target_id = self._tree.resolve(first.target_id)
            if target_id is None or (target_id not in self._tree and not self._is_part):
                self._lines.set_aside("it moves the leaf to an entry that is not in the file before it")
                self._tree.redirect(first.id, first.parent_id)
                return []
            placeless[0] = msgspec.structs.replace(first, target_id=target_id)
        for entry in placeless:
            self._tree.add(entry.id)
            self._tree.note(entry)
        if len(placeless) > 1:
            self._tree.redirect(first.id, last.id)
        self._time = last.timestamp
        self.facts.leaf_id = self._tree.leaf_id
        return placeless

    def _parent_of(self, fields: Mapping[str, Any]) -> str | None:
        named = fields.get("parent_id", "")
        if named is None:
            return None
        if not isinstance(named, str) or not named:
            self._lines.repaired("the entry does not name its parent; it follows the entry before it")
            return self._tree.leaf_id
        parent_id = self._tree.resolve(named)
        if parent_id is not None and parent_id not in self._tree and not self._is_part:
            parent_id = self._tree.missing_parent()
            self._tree.redirect(named, parent_id)
        return parent_id


# --- writing ---------------------------------------------------------------------------------------------------------


class _Writer:
    """Writes all entries, or those of one branch. One line is held back, because pieces of one message go into one."""

    def __init__(self, facts: SessionFacts) -> None:
        self._facts = facts
        self._held: dict[str, Any] | None = None
        self._held_last_id = ""
        self._wholes: dict[str, str] = {}  # the last piece of each message that was put together again

    def begin(self) -> bytes:
        """The header."""
        facts = self._facts
        header = {
            "type": _HEADER,
            "id": facts.source_id or facts.session_id,
            "version": VERSION,
            "parent_session": facts.parent_session,
            "timestamp": facts.created_at,
            "session_id": facts.session_id or None,
            "channel": facts.channel or None,
            "chat_id": facts.chat_id or None,
            "title": facts.title,
            "metadata": facts.metadata or None,
            "source": facts.source or None,
        }
        ours = stated(header)
        theirs = facts.header if facts.format == KEPT else {}
        return msgspec.json.encode({**ours, **without(theirs, *ours)}) + b"\n"

    def feed(self, entry: Entry) -> bytes:
        """An entry; the bytes are those of the line before it."""
        if isinstance(entry, OtherEntry):
            return self.finish() + bytes(entry.encoded).replace(b"\n", b" ") + b"\n"
        fields: dict[str, Any] = without(msgspec.json.decode(encode_entry(entry)), *_PLACES)
        kind = fields["type"]
        if kind == "message":
            fields["message"] = written_message(fields["message"])
        payload = {name: fields.pop(name, value) for name, value in _ALWAYS[kind].items()}
        if not payload or kind == "leaf" or kind in fields:  # no payload of the Go manager, or its place is taken
            fields |= payload
        else:
            fields[kind] = payload
        if self._joins(fields):
            return b""
        for name in ("parent_id", "target_id") if isinstance(entry, LeafMove) else ("parent_id",):
            fields[name] = self._wholes.get(fields[name], fields[name])
        line = self.finish()
        self._held, self._held_last_id = fields, entry.id
        return line

    def finish(self) -> bytes:
        """The line that was held back."""
        held, self._held = self._held, None
        return b"" if held is None else msgspec.json.encode(held) + b"\n"

    def _joins(self, piece: dict[str, Any]) -> bool:
        """Join a further piece to the held message; False if the entry is no such piece."""
        held = self._held
        if held is None or piece.get(KEPT) != {_PIECE_OF: held["id"]}:
            return False
        if piece["parent_id"] != self._held_last_id or piece.get("timestamp") != held["timestamp"]:
            return False
        if piece.keys() != {"type", "id", "parent_id", "timestamp", "message", "continues", KEPT}:
            return False
        if not joined(held["message"], piece["message"], piece["id"]):
            return False
        self._wholes.pop(self._held_last_id, None)
        self._wholes[piece["id"]] = held["id"]
        self._held_last_id = piece["id"]
        return True


ENTRY_LINE = Format(
    name=KEPT,
    about="JSON Lines, our own way of taking a session elsewhere; nothing is lost",
    suffix=".jsonl",
    recognize=_recognize,
    reader=_Reader,
    writer=_Writer,
)
