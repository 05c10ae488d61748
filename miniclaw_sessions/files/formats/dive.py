"""Dive's session files, document 001: a header, then one event per line, which is a turn or a compaction.

The messages of a turn become entries of which all but the first say that they continue it; by that the turns are put
together again. What a turn cost stands on its last message of the assistant. A line that no entry can stand for is kept
as a custom entry, and written back as it was. As in Dive, a torn last line is left out, and a file whose first line is
of an unknown kind is refused; a bad line in between, for which Dive refuses the file, is a finding here.

Dive has no tree. The writer has to be fed the entries of one branch, root first; entries of kinds that Dive does not
have are passed over. A compaction of ours becomes one of Dive's, which repeats the messages that are kept: for that the
writer looks ahead for what will be kept, and remembers it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from miniclaw_sessions.core.protocol.entries import BranchSummary, Compaction, Custom, Entry, EntryBase, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, Role
from miniclaw_sessions.errors import ImportRefused, InvalidMessage
from miniclaw_sessions.files.formats.codec import (
    Chain,
    Finding,
    Format,
    Outcome,
    Sample,
    SessionFacts,
    kept_fields,
    moment_of,
    stated,
    taken,
    without,
)
from miniclaw_sessions.files.formats.dive_message import KEPT, read_message, read_usage, written_messages, written_usage
from miniclaw_sessions.files.formats.json_lines import JsonLines, LineReader

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


# --- reading ---------------------------------------------------------------------------------------------------------


class _Reader(LineReader):
    def __init__(self, chain: Chain) -> None:
        super().__init__(chain, KEPT, JsonLines(beginning=_BEGINNING))
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
            if _as_text(created_at) == data["created_at"]:
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
        if not is_compaction and (usage := read_usage(data.get("usage"))) is not None:
            answer = next((n for n in reversed(range(len(messages))) if messages[n].is_assistant), None)
            if answer is not None:
                messages[answer] = msgspec.structs.replace(messages[answer], usage=usage)
                del data["usage"]
        kept = _kept_of(data, timestamp, messages)
        extra = {KEPT: kept} if kept else None
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
                messages += read_message(fields)
            except InvalidMessage as error:
                raw = msgspec.json.encode(fields)
                bad.append(Finding(self._lines.number, Outcome.SET_ASIDE, str(error), raw))
        if bad and not messages:
            self._lines.set_aside("none of the event's messages can be read")
            return None
        self.findings += bad
        return messages

    def _kept_whole(self, line: dict[str, Any], timestamp: datetime | None = None) -> Custom:
        return self._chain.add(Custom, timestamp=timestamp, custom_type=KEPT, data={_LINE: line})


def _kept_of(data: dict[str, Any], timestamp: datetime | None, messages: Sequence[Message]) -> dict[str, Any]:
    """What an event says beside its messages, as far as the entries do not say it."""
    kept = {name: value for name, value in data.items() if name != "messages" or (value is None and not messages)}
    if kept.get("type") in ("turn", "compaction"):
        del kept["type"]
    if timestamp is not None and kept.get("timestamp") == _as_text(timestamp):
        del kept["timestamp"]
    return kept


def _as_text(moment: datetime) -> str:
    return str(msgspec.to_builtins(moment))


# --- writing ---------------------------------------------------------------------------------------------------------


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
        return _line("header", {**stated(data), **(facts.header if facts.format == KEPT else {})})

    def feed(self, entry: Entry) -> bytes:
        """An entry of the branch; the bytes may be those of the turn before it."""
        match entry:
            case MessageEntry(continues=True) if self._turn:
                self._turn.append(entry)
                self._remember(entry, entry.message)
                return b""
            case MessageEntry():
                before = self.finish()
                self._turn.append(entry)
                self._remember(entry, entry.message)
                return before
            case Compaction():
                return self.finish() + self._compaction(entry)
            case BranchSummary(summary=summary) if summary:
                told = Message(Role.BRANCH_SUMMARY, summary)
                self._remember(entry, told)
                return self.finish() + _event(entry, "turn", {"messages": written_messages([told])})
            case Custom(custom_type=kind, data={"line": dict(line)}) if kind == KEPT:
                return self.finish() + msgspec.json.encode(line) + b"\n"
            case _:
                return b""

    def finish(self) -> bytes:
        """The turn that is not yet written."""
        turn, self._turn = self._turn, []
        messages = written_messages(entry.message for entry in turn)
        if not messages:
            return b""
        usage = written_usage([entry.message.usage for entry in turn if entry.message.usage is not None])
        return _event(turn[0], "turn", {"messages": messages, **({"usage": usage} if usage else {})})

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
        return _event(entry, "compaction", {"messages": written_messages(messages)})


def _event(entry: EntryBase, kind: str, payload: Mapping[str, Any]) -> bytes:
    """An event with what an entry has kept of it."""
    own = {"type": kind, "id": entry.id, "timestamp": entry.timestamp}
    kept = kept_fields(entry.extra, KEPT)
    return _line("event", {**own, **kept, **{name: told for name, told in payload.items() if told or name not in kept}})


def _line(kind: str, data: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"line_type": kind, "data": data}) + b"\n"


DIVE = Format(
    name=KEPT,
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
