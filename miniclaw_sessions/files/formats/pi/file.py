"""Reads pi's session files, line by line, in all versions and in any state, and writes them in version 3.

Three kinds of files begin alike: pi's sessions (camelCase, `parentId`), the JSONL files of the Go manager (snake_case,
`parent_id`), and the event stream of pi's JSON mode, whose header is a session's.

What is repaired, beside what `json_lines` repairs in a line:

- Entries without ids, as in version 1, get some, and each follows the one before. A compaction of version 1 names the
  first entry it keeps by its index; pi counts the header as 0, and only lines that are JSON.
- Of entries with the same id the later one gets a new id; later lines that name the id mean the later one, as in pi.
- A parent that does not stand before its child is ignored, as in pi: the child begins a branch. Only if lines were set
  aside it is taken to be among them; then the child follows what stands before the damage. So there is never a loop.
- A line that is not what its type says, or a label on nothing, is kept as it is, like one of an unknown type.

The model in force on a branch is that of the newest model change or assistant's message on it, as in pi; the thinking
level is that of the newest change. A header of version 1 says what they were at the beginning. Where the entries of
such a file never say it, an entry at its end does.

pi goes on from the last entry of a file, and shows the name that its newest `session_info` says. Where a session goes
on from another entry, or has a title that no entry says, the writer adds a last entry that says so.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import orjson
from msgspec.structs import replace

from miniclaw_sessions.core.protocol.entries import (
    Compaction,
    Entry,
    Label,
    LeafMove,
    MessageEntry,
    ModelChange,
    SessionInfo,
    ThinkingLevelChange,
    moves_leaf,
)
from miniclaw_sessions.core.protocol.json_values import MAX_DEPTH
from miniclaw_sessions.core.protocol.messages import provider_of
from miniclaw_sessions.errors import ImportRefused, InvalidMessage
from miniclaw_sessions.files.formats.codec import Chain, Finding, Outcome, Sample, SessionFacts, taken, without
from miniclaw_sessions.files.formats.json_lines import JsonLines, Tree, TreeReader
from miniclaw_sessions.files.formats.pi.entries import TYPES, VERSION, Place, read_entry, read_line, write_entry
from miniclaw_sessions.files.formats.pi.messages import Setting, Unusable, from_text, to_text

_EVENTS = frozenset(
    {
        *("agent_start", "agent_end", "turn_start", "turn_end"),
        *("message_start", "message_update", "message_end"),
        *("tool_execution_start", "tool_execution_update", "tool_execution_end"),
    }
)
"""The types of lines in which pi's JSON mode reports what it is doing."""

_ROLES = frozenset({"user", "assistant", "toolResult", "bashExecution", "hookMessage", "custom"})
_TREE_VERSION = 2  # the first version with ids on entries, and with the version in the header
_FEW = 3  # events that may stand in a file before its first entry
_BEGINNING = re.compile(b'{"type":"(?:session|%s)"' % "|".join(sorted(TYPES)).encode())


def is_pi(sample: Sample) -> bool:
    """Whether these lines are the beginning of a session of pi's.

    Raises:
        ImportRefused: they are the event stream of pi's JSON mode.
    """
    lines = sample.objects
    types = [line.get("type") for line in lines if isinstance(line.get("type"), str)]
    entries = sum(1 for line in lines if _is_entry(line))
    if "agent_start" in types and sum(1 for name in types if name in _EVENTS) > entries:
        raise _event_stream()
    if any("parent_id" in line or "parent_session" in line for line in lines):
        return False
    headers = [line for line in lines if line.get("type") == "session" and "cwd" in line]
    versions = [line.get("version", _TREE_VERSION) for line in headers]
    return entries > 0 or any(type(version) is int and version >= _TREE_VERSION for version in versions)


def _event_stream() -> ImportRefused:
    """The refusal of pi's event stream, which says what it is and where the session is."""
    return ImportRefused(
        "this is the event stream that pi prints in its JSON mode, not a session file; "
        "the session itself is under ~/.pi/agent/sessions, in the file whose name ends with the id of its first line"
    )


def _is_entry(line: Mapping[str, Any]) -> bool:
    """Whether a line is an entry of pi's: with a parent, or of version 1: a message with a time in milliseconds."""
    kind = line.get("type")
    if not isinstance(kind, str) or kind not in TYPES:
        return False
    if "parentId" in line:
        return "id" in line
    match line:
        case {"timestamp": str(), "message": {"role": str(role), "timestamp": int()}}:
            return role in _ROLES and "id" not in line
        case _:
            return False


class PiTree(Tree):
    """Gives every entry an id of its own and a parent that stands before it."""

    def __init__(self, lines: JsonLines, new_id: Callable[[], str]) -> None:
        super().__init__(lines)
        self.expects_ids = False
        self._new_id = new_id

    def place(self, fields: Mapping[str, Any], timestamp: datetime) -> Place:
        """The place of the next entry."""
        written = fields.get("id")
        has_id = isinstance(written, str) and written != ""
        parent_id: str | None = None
        is_sound, parent = True, fields.get("parentId")
        if "parentId" not in fields:
            is_sound, parent_id = not has_id, self.leaf_id
            if has_id:
                self._lines.repaired("it names no parent; it follows what stands before it")
        elif isinstance(parent, str) and parent in self:
            parent_id = self.resolve(parent)
        elif parent is not None:
            is_sound, parent_id = False, self.missing_parent(parent if isinstance(parent, str) else "")
        entry_id = written if isinstance(written, str) and has_id else self._new_id()
        if has_id:
            self.expects_ids = True
            if entry_id in self:
                self._lines.repaired("an entry with the same id stands before it; it got another one")
                repeated, entry_id = entry_id, self._new_id()
                self.redirect(repeated, entry_id)
        elif self.expects_ids:
            self._lines.repaired("it has no id, and got one")
        if self.expects_ids:  # else all ids are ours, and nothing refers to them
            self.add(entry_id)
        return Place(entry_id, parent_id, timestamp, is_sound)


class LineIds:
    """The ids of a file of version 1 by the number of their lines, 0 being the header; forty-odd bytes for each."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends = array("Q", [0])  # the header has none

    def add(self, entry_id: str) -> None:
        """The id of the next line; empty for one that is no entry."""
        self._text += entry_id.encode()
        self._ends.append(len(self._text))

    def at(self, index: int) -> str | None:
        """The id of a line; None if the line is missing or no entry."""
        if not 0 < index < len(self._ends):
            return None
        return self._text[self._ends[index - 1] : self._ends[index]].decode() or None


class PiReader(TreeReader):
    """Reads one file; see `codec.Reader`."""

    _tree: PiTree

    def __init__(self, chain: Chain) -> None:
        lines = JsonLines(depth=MAX_DEPTH - 1, beginning=_BEGINNING)
        super().__init__(chain, "pi", lines, PiTree(lines, chain.new_id))
        self._first_time: datetime | None = None
        self._has_header = False
        self._line_ids = LineIds()
        self._entries = 0  # of types that we know
        self._events = 0
        self._answered_by: tuple[str, str] | None = None
        self._says_model = self._says_level = False

    def _take_raw(self, line: dict[str, Any], raw: bytes) -> list[Entry]:
        """The entry of a line; none for a header.

        Raises:
            ImportRefused: there are more events than entries; this is no session.
        """
        if line.get("type") == "session":
            self._read_header(line)
            return []
        raw = raw or orjson.dumps(line)
        self._count(line.get("type"))
        moment = from_text(line.get("timestamp"))
        if moment is None:
            self._lines.repaired("its time cannot be read; it has that of the line before")
        self._time = moment or self._time
        self._first_time = self._first_time or self._time
        place = self._tree.place(line, self._time)
        if not self._tree.expects_ids:
            line = self._with_kept_id(line)
            self._line_ids.add(place.id)
        try:
            entry = read_entry(line, place)
            entry = None if entry is None else self._with_known_references(entry)
        except Unusable as reason:
            self._lines.kept_whole(reason, "line")
            entry = None
        if entry is None:
            entry = read_line(raw.strip().removeprefix(b"\xef\xbb\xbf").decode(), place)
        match entry:
            case ModelChange():
                self._says_model = True
            case ThinkingLevelChange():
                self._says_level = True
            case MessageEntry(message=message) if message.is_assistant and message.model:
                self._answered_by = provider_of(message) or "", message.model
        self._tree.note(entry)
        return [entry]

    def finish(self) -> list[Entry]:
        """There is nothing more.

        Raises:
            ImportRefused: no line of the file was an entry or a header, or there were more events than entries.
        """
        if self._events > self._entries:
            raise _event_stream()
        if not self._has_header:
            if not self._entries:
                raise ImportRefused("no line of this file is a header or an entry as pi writes them")
            self.findings.append(Finding(1, Outcome.REPAIRED, "the file has no header; it gets one when it is written"))
        if self.facts.created_at is None:
            self.facts.created_at = self._first_time
        entries: list[Entry] = []
        if not self._tree.expects_ids:  # only the header of version 1 says the model and the thinking level in force
            header = self.facts.header
            provider, model = self._answered_by or (header.get("provider"), header.get("modelId"))
            if isinstance(provider, str) and isinstance(model, str) and not self._says_model:
                entries.append(self._at_end(ModelChange, provider=provider, model_id=model))
            if isinstance(level := header.get("thinkingLevel"), str) and not self._says_level:
                entries.append(self._at_end(ThinkingLevelChange, thinking_level=level))
        self.facts.leaf_id = self._tree.leaf_id
        return entries

    def _at_end(self, kind: type[ModelChange | ThinkingLevelChange], **fields: Any) -> Entry:
        entry = kind(id=self._chain.new_id(), parent_id=self._tree.leaf_id, timestamp=self._time, **fields)
        self._tree.note(entry)
        return entry

    # --- the header --------------------------------------------------------------------------------------------------

    def _read_header(self, fields: dict[str, Any]) -> None:
        if self._has_header:
            self._lines.set_aside("a header stands before it; only the first one counts")
            self._line_ids.add("")  # pi counts it
            return
        self._has_header = True
        rest = without(fields, "type")
        version = rest.pop("version", 1)
        if type(version) is not int or version < 1:
            self._lines.repaired(f"the header's version is none; the file is read as version {VERSION}")
            version = VERSION
        elif version > VERSION:
            self._lines.repaired(f"the file is of version {version}; it is read as version {VERSION}")
        self._tree.expects_ids = version >= _TREE_VERSION
        source_id = taken(rest, "id", str)
        if source_id is None:
            self._lines.repaired("the header has no id")
        self.facts.source_id = source_id or ""
        self.facts.created_at = from_text(rest.get("timestamp"))
        if self.facts.created_at is None:
            self._lines.repaired("the header's time cannot be read; it is that of the first entry")
        else:
            self._time = self.facts.created_at
            if rest["timestamp"] == to_text(self.facts.created_at):
                del rest["timestamp"]
        parent = rest.pop("parentSession") if isinstance(rest.get("parentSession"), str) else rest.get("branchedFrom")
        self.facts.parent_session = parent if isinstance(parent, str) else None
        self.facts.header = rest

    # --- entries -----------------------------------------------------------------------------------------------------

    def _count(self, kind: Any) -> None:
        if not isinstance(kind, str):
            return
        self._entries += kind in TYPES
        self._events += kind in _EVENTS
        if self._events > max(self._entries, _FEW - 1):
            raise _event_stream()

    def _with_kept_id(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Version 1's compaction with the id of the first entry that it keeps in the place of its index."""
        index = fields.get("firstKeptEntryIndex")
        if fields.get("type") != "compaction" or type(index) is not int:
            return fields
        kept = self._line_ids.at(index)
        if kept is None:
            self._lines.repaired(
                "the index of the first entry that it keeps is that of none; it keeps nothing", b"%d" % index
            )
        names = {"firstKeptEntryIndex": "firstKeptEntryId"}
        return {names.get(name, name): kept if name in names else value for name, value in fields.items()}

    def _with_known_references(self, entry: Entry) -> Entry:
        """The entry, meaning by ids what they mean here."""
        tree = self._tree
        match entry:
            case Compaction(first_kept_entry_id=str(kept)) if tree.expects_ids:
                if kept not in tree:
                    self._lines.repaired("the first entry that it keeps is not in the file before it; it keeps nothing")
                return replace(entry, first_kept_entry_id=tree.resolve(kept))
            case Label(target_id=target):
                if target not in tree:
                    raise Unusable("the entry that it labels is not in the file before it")
                return replace(entry, target_id=tree.resolve(target) or target)
            case LeafMove(parent_id=str(left)):
                return replace(entry, parent_id=tree.resolve(left) if left in tree else tree.leaf_id)
        return entry


# --- writing ---------------------------------------------------------------------------------------------------------

_NO_TIME = "1970-01-01T00:00:00.000Z"  # pi cannot list a session without a time in its header


class PiWriter:
    """Writes one file; see `codec.Writer`.

    The `extra` of other formats is left out, and so is the place of an entry in a store: reading the file numbers
    its entries again. A message's time is cut to milliseconds, unless it is its entry's.
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
        return orjson.dumps(fields | without(kept, *fields)) + b"\n"

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
