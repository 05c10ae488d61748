"""The lines of another program's JSONL file as JSON objects, even if the file is damaged; and the tree they make.

Power cuts leave runs of NUL bytes and torn lines, JavaScript cuts texts inside a character, editors add a byte order
mark. What can be repaired without guessing is repaired; the rest is set aside with its bytes. Every finding has the
number of its line, and none holds the text of a message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from miniclaw_sessions.core.protocol.entries import Custom, Entry, LeafMove, moves_leaf
from miniclaw_sessions.core.protocol.json_values import MAX_DEPTH, check_json, parse_json
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.codec import MAX_ELEMENTS, Chain, Finding, Outcome, SessionFacts, moment_of

LINE_DEPTH = MAX_DEPTH - 8
"""How deep a line may nest; what is kept of it lies a few levels further down in an entry, which has a limit, too."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


class JsonLines:
    """Parses the lines of one file, counts them, and gathers the findings."""

    def __init__(self, *, depth: int = LINE_DEPTH, beginning: re.Pattern[bytes] | None = None) -> None:
        """Begin a file.

        Args:
            depth: how deep a line may nest.
            beginning: what every line of this format begins with, and nothing within a line; by it a line is found
                that was appended to a torn one. None: they are set aside together.
        """
        self.number = 0
        self.findings: list[Finding] = []
        self._raw = b""
        self._depth = depth
        self._beginning = beginning

    def parse(self, raw: bytes) -> dict[str, Any] | None:
        """The next line's object; None for a blank line, and for one that was set aside."""
        self.number += 1
        self._raw = raw
        text = (raw.removeprefix(_BYTE_ORDER_MARK) if self.number == 1 else raw).strip()
        if text[:1] == b"\0" or text[-1:] == b"\0":
            text = text.strip(b"\0 \t\r\n")
            self.repaired(f"{raw.count(0)} NUL bytes were left out, as a power cut leaves them")
        if not text:
            return None
        try:
            value = parse_json(text, depth=self._depth, elements=MAX_ELEMENTS)
        except InvalidMessage as error:
            value = self._parse_damaged(text, str(error))
            if value is None:
                return None
        return self._checked(value)

    def each(self, pieces: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """The pieces of a document as if they were lines, numbered from 1; but for those that cannot be stored."""
        for number, piece in enumerate(pieces, 1):
            self.number = number
            if (line := self.storable(piece)) is not None:
                yield line

    def storable(self, value: Any) -> dict[str, Any] | None:
        """A piece of a document as if it were a line; None, and it is set aside, where it cannot be stored."""
        self._raw = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
        return self._checked(value)

    def _checked(self, value: Any) -> dict[str, Any] | None:
        if not isinstance(value, dict):
            self.set_aside("the line is not a JSON object")
            return None
        try:
            check_json(value, self._depth)
        except InvalidMessage as error:  # an integer too large to be stored
            self.set_aside(str(error))
            return None
        return value

    def moment_in(self, fields: Mapping[str, Any], name: str = "timestamp") -> datetime | None:
        """A time that the current line says; None where it says none, with a finding where it says something else."""
        moment = moment_of(fields.get(name))
        if moment is None and fields.get(name) is not None:
            self.repaired(f"{name} is not a time, and was left out")
        return moment

    def repaired(self, text: str, raw: bytes = b"") -> None:
        """The current line was taken in a changed form."""
        self.findings.append(Finding(self.number, Outcome.REPAIRED, text, raw))

    def kept_whole(self, error: Exception, what: str = "message") -> None:
        """The current line cannot be read for this reason, and becomes an entry that holds it as it is."""
        self.repaired(f"{error}; the {what} is kept as it is, and is no part of the conversation")

    def set_aside(self, text: str) -> None:
        """The current line was not taken; its bytes are kept with the finding."""
        self.findings.append(Finding(self.number, Outcome.SET_ASIDE, text, self._raw))

    def _parse_damaged(self, text: bytes, reason: str) -> Any:
        """The line with replacement characters where its text is damaged.

        Another one is set aside, but for a whole object that was appended to a torn line; None without one.
        """
        whole = text.decode("utf-8", errors="replace").encode()
        if b"\\u" in whole:
            whole = _ESCAPE.sub(_without_lone_surrogate, whole)
        if whole != text:
            with suppress(InvalidMessage):
                value = parse_json(whole, depth=self._depth, elements=MAX_ELEMENTS)
                self.repaired("characters that are not valid Unicode were replaced", self._raw)
                return value
        self.set_aside(reason)
        begun = [match.start() for match in self._beginning.finditer(text)] if self._beginning is not None else []
        if begun and begun[-1] > 0:
            with suppress(InvalidMessage):
                value = parse_json(text[begun[-1] :], depth=self._depth, elements=MAX_ELEMENTS)
                self.repaired("the line follows a torn one without a line break, and was taken on its own")
                return value
        return None


def _without_lone_surrogate(escape: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if _LONE_SURROGATE.fullmatch(escape[0]) else escape[0]


class LineReader:
    """A `Reader` of lines that are JSON objects; a codec adds what a line means.

    Attributes:
        facts, findings: as every reader has them.
    """

    def __init__(self, chain: Chain, name: str, lines: JsonLines | None = None) -> None:
        """Begin a file.

        Args:
            chain: makes the entries.
            name: of the format.
            lines: parses the file; None: one with the default settings.
        """
        self.facts = SessionFacts(format=name)
        self._lines = lines or JsonLines()
        self.findings = self._lines.findings
        self._chain = chain
        self._time = chain.now

    def feed(self, piece: bytes) -> list[Entry]:
        """The entries that are complete with this line."""
        line = self._lines.parse(piece)
        return [] if line is None else list(self._take(line))

    def finish(self) -> list[Entry]:
        """There is nothing more."""
        return []

    def _take(self, line: dict[str, Any]) -> Iterable[Entry]:
        """The entries that are complete with this line's object."""
        raise NotImplementedError

    def _custom(self, line: dict[str, Any], kind: Any = None) -> Custom:
        """An entry that holds a line as it is, because no entry of ours says the same."""
        name = kind if isinstance(kind, str) and kind else "unknown"
        return self._chain.add(Custom, timestamp=self._time, custom_type=f"{self.facts.format}.{name}", data=line)


class Tree:
    """The ids of the entries so far and the leaf. An id is one number, because there may be millions of them."""

    def __init__(self, lines: JsonLines) -> None:
        self.leaf_id: str | None = None
        self._lines = lines
        self._known: set[int] = set()
        self._instead: dict[str, str | None] = {}
        self._is_damaged = False
        self._before_damage: str | None = None

    def __contains__(self, entry_id: str) -> bool:
        """Whether an entry with this id has been read."""
        return hash(entry_id) in self._known

    @property
    def is_empty(self) -> bool:
        """Whether there was no entry yet."""
        return not self._known

    def resolve(self, entry_id: str) -> str | None:
        """The entry for which an id stands: for a move of the leaf, the entry to which it went."""
        return self._instead.get(entry_id, entry_id) if self._instead else entry_id

    def redirect(self, entry_id: str, other_id: str | None) -> None:
        """Let an id stand for another entry from here on."""
        self._instead[entry_id] = other_id

    def add(self, entry_id: str) -> None:
        """Let an entry with this id be a parent from here on."""
        self._known.add(hash(entry_id))
        if self._instead:
            self._instead.pop(entry_id, None)

    def note(self, entry: Entry) -> None:
        """Take the next entry: the conversation goes on from it, or from the entry to which it moves."""
        if isinstance(entry, LeafMove):
            self._instead[entry.id] = self.leaf_id = entry.target_id
        elif moves_leaf(entry):
            self.leaf_id = entry.id

    def note_damage(self) -> None:
        """Note that a line was set aside: parents that are missing from here on may have been in it."""
        self._is_damaged = True
        self._before_damage = self.leaf_id

    def missing_parent(self, named: str = "") -> str | None:
        """The parent for an entry whose own is not among the entries before it; so there is never a loop."""
        raw = named.encode()
        if self._is_damaged:
            self._lines.repaired("its parent was in damaged lines; it follows what stands before them", raw)
            return self._before_damage
        self._lines.repaired("its parent is not in the file before it; it begins a branch", raw)
        return None


class TreeReader(LineReader):
    """A `LineReader` of lines that name their parents."""

    def __init__(self, chain: Chain, name: str, lines: JsonLines, tree: Tree) -> None:
        super().__init__(chain, name, lines)
        self._tree = tree

    def feed(self, piece: bytes) -> list[Entry]:
        """The entries that are complete with this line."""
        before = len(self.findings)
        line = self._lines.parse(piece)
        if any(finding.outcome is Outcome.SET_ASIDE for finding in self.findings[before:]):
            self._tree.note_damage()
        return [] if line is None else list(self._take_raw(line, piece if len(self.findings) == before else b""))

    def _take_raw(self, line: dict[str, Any], raw: bytes) -> Iterable[Entry]:
        """The entries of a line's object; `raw` is the line itself, empty if something was wrong with it."""
        raise NotImplementedError
