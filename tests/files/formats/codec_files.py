"""Reading files of other programs as an import does, and damaging them as the world does."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

import msgspec
import orjson
from hypothesis import strategies as st

from miniclaw_sessions.core.history.branch import Branch, resolve
from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.history.transcript import Transcript
from miniclaw_sessions.core.protocol.encoding import decode_entry, encode_entry
from miniclaw_sessions.core.protocol.entries import Entry, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.files.formats.codec import Chain, Finding, Foreseeing, Format, Outcome, Reader, SessionFacts
from tests.legality import is_legal

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Read(msgspec.Struct):
    """What a reader made of a file."""

    entries: list[Entry]
    facts: SessionFacts
    findings: list[Finding]

    @property
    def messages(self) -> list[Message]:
        return [entry.message for entry in self.entries if isinstance(entry, MessageEntry)]

    @property
    def said(self) -> list[str]:
        return [message.text for message in self.messages]

    @property
    def message(self) -> Message:
        """The one message that was read."""
        (message,) = self.messages
        return message

    @property
    def outcomes(self) -> list[tuple[int, Outcome]]:
        return [(finding.line, finding.outcome) for finding in self.findings]

    @property
    def parents(self) -> dict[str, str | None]:
        return {entry.id: entry.parent_id for entry in self.entries}

    @property
    def branch(self) -> Branch:
        """The branch on which the conversation goes on."""
        transcript = Transcript(self.entries)
        assert not transcript.problems
        return resolve(transcript.path(self.facts.leaf_id))

    @property
    def context(self) -> list[Message]:
        return build_context(self.branch.messages())


def chain() -> Chain:
    numbers = count(1)
    return Chain(new_id=lambda: f"new-{next(numbers)}", now=NOW)


def read(source: Format, pieces: Sequence[Any]) -> Read:
    """Read the lines, as bytes or as JSON, or the one document of a file."""
    assert source.reader is not None
    reader: Reader = source.reader(chain())
    entries: list[Entry] = []
    for piece in pieces:
        entries += reader.feed(piece if isinstance(piece, bytes) or not source.by_line else orjson.dumps(piece))
    entries += reader.finish()
    return Read(entries, reader.facts, reader.findings)


def dumped(form: Format, messages: Sequence[Message], facts: SessionFacts) -> bytes:
    """What a format's writer makes of a context."""
    assert form.message_writer is not None
    writer = form.message_writer(facts)
    return b"".join([writer.begin(), *map(writer.feed, messages), writer.finish()])


def written(form: Format, entries: Sequence[Entry], facts: SessionFacts | None = None) -> list[bytes]:
    """The lines that a format's writer makes of entries."""
    assert form.writer is not None
    writer = form.writer(facts or SessionFacts())
    if isinstance(writer, Foreseeing):
        for entry in entries:
            writer.foresee(entry)
    whole = b"".join([writer.begin(), *map(writer.feed, entries), writer.finish()])
    assert whole.endswith(b"\n")
    return whole[:-1].split(b"\n")


def check(result: Read) -> None:
    """What holds for every file: entries that can be stored, in an order that makes a tree, with a legal context."""
    assert [decode_entry(encode_entry(entry)) for entry in result.entries] == result.entries
    assert not Transcript(result.entries).problems
    context = result.context if result.entries else []
    assert is_legal(context) == []


def prefixes(lines: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for end in range(len(lines) + 1):
        yield lines[:end]


# --- damage ----------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def damaged(draw: st.DrawFn, lines: Sequence[Any]) -> list[bytes]:
    """The lines with some values replaced, some lines lost, repeated, moved or torn."""
    result = [copy.deepcopy(line) for line in lines]
    for _ in range(draw(st.integers(1, 4))):
        _replace_a_value(draw, result)
    damaged_lines = [msgspec.json.encode(line) if _fits(line) else b'{"n":99999999999999999999999}' for line in result]
    for _ in range(draw(st.integers(0, 3))):
        index = draw(st.integers(0, len(damaged_lines) - 1))
        how = draw(st.sampled_from(["lose", "repeat", "move", "tear", "nul", "byte"]))
        line = damaged_lines.pop(index) if how in ("lose", "move", "tear", "nul", "byte") else damaged_lines[index]
        where = draw(st.integers(0, len(damaged_lines))) if how in ("repeat", "move") else index
        cut = draw(st.integers(0, len(line)))
        damage = {"tear": line[:cut], "nul": b"\0" * 7 + line, "byte": line[:cut] + b"\xff" + line[cut:]}
        if how != "lose" or not damaged_lines:
            damaged_lines.insert(where, damage.get(how, line))
    return damaged_lines


def _fits(line: Any) -> bool:
    try:
        msgspec.json.encode(line)
    except (OverflowError, ValueError):
        return False
    return True


def _replace_a_value(draw: st.DrawFn, lines: list[Any]) -> None:
    holder, key = draw(st.sampled_from([place for line in lines for place in places(line)]))
    holder[key] = draw(json_values)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Where the values within a value stand, however deep: what holds each, and its name or number there."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from places(inner)
