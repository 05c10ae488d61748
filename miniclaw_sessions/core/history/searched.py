"""The searched text of an entry, whether it matches a search, and its snippet, for all stores.

An index only names entries that may match; `hit` decides, so that every store finds the same. Long texts are folded in
pieces, and only as far as needed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import accumulate, islice
from typing import Any

import msgspec

from miniclaw_sessions.core.history.search import LABEL, TITLE, Hit, Piece, Search, folded
from miniclaw_sessions.core.protocol.entries import BranchSummary, Compaction, Entry, Label, MessageEntry, SessionInfo
from miniclaw_sessions.core.protocol.json_values import parse_json
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall
from miniclaw_sessions.errors import InvalidMessage

SNIPPET = 160
"""The approximate number of characters of a snippet."""

WHOLE_WORD, BEGINNING, PART = 1.0, 0.75, 0.5
"""The quality of a match: a whole word, the beginning of a word, or another part."""

BY_A_TOOL = 0.4
"""The factor for texts of no speaker: arguments and results of tools, and summaries."""

_SAID = frozenset({Role.USER, Role.ASSISTANT, Role.SYSTEM})
_PIECE, _SEEK = 16_000, 500  # characters of a text that are folded at once
_OCCURRENCES = 100  # that are examined for a whole word
_BLOCK, _OVERLAP, _MAX_BLOCKS = 2_000, 500, 500
_BEFORE = 50  # characters of a snippet before the match
_MARKS = 50  # of one term


class Searched(msgspec.Struct, frozen=True, gc=False):
    """The searched parts of an entry.

    Attributes:
        text: the whole text, with arguments and results of tools, without images and thinking.
        said_at: its time.
        role: its speaker; `title` or `label` for entries without one.
        said: the part of the text that has a speaker.
        tools: the tools that it calls, or that answered.
        authors: the names of the author.
    """

    text: str
    said_at: datetime
    role: str
    said: str = ""
    tools: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()


def searched(entry: Entry) -> Searched | None:
    """The searched parts of an entry; None: it has no text, or its type is unknown."""
    match entry:
        case MessageEntry(message=message):
            return _of_message(message, entry.timestamp)
        case SessionInfo(name=text):
            found = Searched(text, entry.timestamp, TITLE, said=text)
        case Label(label=text):
            found = Searched(text, entry.timestamp, LABEL, said=text)
        case Compaction(summary=text):
            found = Searched(text, entry.timestamp, Role.COMPACTION_SUMMARY)
        case BranchSummary(summary=text):
            found = Searched(text, entry.timestamp, Role.BRANCH_SUMMARY)
        case _:
            return None
    return found if text else None


def _of_message(message: Message, logged_at: datetime) -> Searched:
    tools = [call.name for call in message.tool_calls or ()]
    texts = [message.text, *(text for call in message.tool_calls or () for text in _texts_of_call(call))]
    if message.role is Role.BASH_EXECUTION:
        texts += [text for name in ("command", "output") if isinstance(text := (message.extra or {}).get(name), str)]
    names = [message.author]
    if message.is_tool_result:
        tools += [message.name or ""]
    else:
        names.append(message.name)
    return Searched(
        "\n".join(filter(None, texts)),
        message.timestamp or logged_at,
        str(message.role),
        said=message.text if message.role in _SAID else "",
        tools=tuple(dict.fromkeys(filter(None, tools))),
        authors=tuple(dict.fromkeys(filter(None, names))),
    )


def _texts_of_call(call: ToolCall) -> Iterator[str]:
    yield call.name
    if "\\" in call.arguments:  # escaped characters in it would not be found
        try:
            yield " ".join(_texts_in(parse_json(call.arguments.encode())))
        except (InvalidMessage, UnicodeEncodeError):
            yield call.arguments
    else:
        yield call.arguments
    yield call.output or ""


def _texts_in(value: Any) -> Iterator[str]:
    """All names and values of JSON, from the outside in."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts_in(item)
    elif value is not None:
        yield str(value)


def hit(search: Search, session_id: str, key: SessionKey, entry: Entry) -> Hit | None:
    """The hit for an entry; None: it does not match.

    Args:
        search: the search.
        session_id: the session of the entry, for which the caller has checked `Search.covers`.
        key: the key of the session.
        entry: with its sequence.
    """
    found = searched(entry)
    if found is None or (fits := score(search, found)) is None:
        return None
    return Hit(
        session_id=session_id,
        channel=key.channel,
        chat_id=key.chat_id,
        entry_id=entry.id,
        sequence=entry.sequence,
        said_at=found.said_at,
        role=found.role,
        author=next(iter(found.authors), None),
        tools=found.tools,
        score=fits,
    )


def score(search: Search, found: Searched) -> float | None:
    """The quality of a match, from 0 to 1, independent of the session; None: it does not match."""
    if search.role not in (None, found.role) or not (
        _is_one_of(search.tool, found.tools) and _is_one_of(search.author, found.authors)
    ):
        return None
    if (search.after is not None and found.said_at < search.after) or (
        search.before is not None and found.said_at >= search.before
    ):
        return None
    quality = _qualities(found.text, search.terms, search.excluded)
    if quality is None:
        return None
    if found.said != found.text:
        said = found.said and _qualities(found.said, search.terms, (), demands_all=False)
        quality = [max(BY_A_TOOL * one, own) for one, own in zip(quality, said or [0.0] * len(quality), strict=True)]
    return round(sum(quality) / len(quality), 3) if quality else WHOLE_WORD


def _is_one_of(wanted: str | None, names: Iterable[str]) -> bool:
    return wanted is None or folded(wanted) in map(folded, names)


def _qualities(
    text: str, terms: Sequence[str], excluded: Sequence[str], *, demands_all: bool = True
) -> list[float] | None:
    """The quality of the match of each term; None: the text lacks a term, or has an excluded one."""
    found = [0.0] * len(terms)
    for form in _forms(text, max(map(len, (*terms, *excluded)), default=0)):
        if any(term in form for term in excluded):
            return None
        found = [max(best, _quality(form, term)) for best, term in zip(found, terms, strict=True)]
        if not excluded and all(found):
            return found
    return found if all(found) or not demands_all else None


def _forms(text: str, longest: int) -> Iterator[str]:
    """The folded text in pieces that overlap: each part of at most `longest` characters is inside one of them."""
    before = ""
    start = 0
    while start < len(text):
        end = min(start + _PIECE, len(text))
        if end < len(text):  # after white space, so that no accent is separated from its letter
            end = next((place for place in range(end, end - _SEEK, -1) if text[place - 1].isspace()), end)
        # folding strips the spaces at the ends of a piece
        is_apart = text[start - 1].isspace() or text[start].isspace()
        glue = " " if before and not before.endswith(" ") and is_apart else ""
        form = f"{before}{glue}{folded(text[start:end])}"
        yield form
        before, start = form[-longest:] if longest else "", end


def _quality(text: str, term: str) -> float:
    best = 0.0
    for start in islice(_occurrences(text, term), _OCCURRENCES):
        best = max(best, PART)
        if start == 0 or not text[start - 1].isalnum():
            end = start + len(term)
            if end == len(text) or not text[end].isalnum():
                return WHOLE_WORD
            best = BEGINNING
    return best


def _occurrences(text: str, term: str) -> Iterator[int]:
    start = text.find(term)
    while start >= 0:
        yield start
        start = text.find(term, start + len(term))


# --- snippets --------------------------------------------------------------------------------------------------------


def snippet(text: str, terms: Sequence[str], size: int = SNIPPET) -> tuple[Piece, ...]:
    """The part of a text with most of the terms, on one line, with the terms marked; else its beginning.

    Args:
        text: the original text.
        terms: in the form for comparison (`folded`).
        size: about how many characters to show.
    """
    start = _best_block(text, terms)
    line = _Line(text[start : start + _BLOCK])
    marks = line.marks(terms)
    first, last = _shown(line.text, marks, size)
    pieces = [Piece("…")] if start or first else []
    place = first
    for begin, end in marks:
        if first <= begin and end <= last:
            pieces += [Piece(line.text[place:begin])] if begin > place else []
            pieces.append(Piece(line.text[begin:end], match=True))
            place = end
    pieces += [Piece(line.text[place:last])] if last > place else []
    is_cut = last < len(line.text) or start + _BLOCK < len(text)
    return tuple([*pieces, Piece("…")] if is_cut else pieces)


def _best_block(text: str, terms: Sequence[str]) -> int:
    """The beginning of the part of a text with most of the terms; of several the first."""
    best, most = 0, 0
    for start in islice(range(0, len(text), _BLOCK - _OVERLAP), _MAX_BLOCKS if len(text) > _BLOCK else 0):
        part = folded(text[start : start + _BLOCK])
        found = sum(term in part for term in terms)
        if found > most:
            best, most = start, found
        if found == len(terms):
            break
    return best


def _shown(line: str, marks: Sequence[tuple[int, int]], size: int) -> tuple[int, int]:
    """The shown range of a line: from a little before the first mark, cut between words if possible."""
    begin, end = marks[0] if marks else (0, 0)
    first = max(begin - _BEFORE, 0)
    if first and 0 <= (space := line.find(" ", first, begin)) < first + _BEFORE // 2:
        first = space + 1
    last = max(first + size, end)
    if last >= len(line):
        return first, len(line)
    space = line.rfind(" ", max(last - _BEFORE // 2, end), last)
    return first, last if space < 0 else space


class _Line:
    """A short text on one line, with the places of matches in its folded form."""

    def __init__(self, text: str) -> None:
        words = [(word, form) for word in text.split() if (form := folded(word))]
        self.text = " ".join(word for word, _ in words)
        self._folded = " ".join(form for _, form in words)
        self._words = words
        self._starts = [0, *accumulate(len(word) + 1 for word, _ in words)]
        self._folded_starts = [0, *accumulate(len(form) + 1 for _, form in words)]

    def marks(self, terms: Sequence[str]) -> list[tuple[int, int]]:
        """The ranges of the terms, in order; overlapping ones are joined."""
        found = sorted(
            (start, start + len(term)) for term in terms for start in islice(_occurrences(self._folded, term), _MARKS)
        )
        marks: list[tuple[int, int]] = []
        for first, last in found:
            begin, end = self._place(first)[0], self._place(last)[1]
            if marks and begin < marks[-1][1]:
                begin, end = marks[-1][0], max(end, marks.pop()[1])
            marks.append((begin, end))
        return marks

    def _place(self, folded_place: int) -> tuple[int, int]:
        """The places in the line of a place in the folded form: as a beginning, and as an end."""
        number = min(bisect_right(self._folded_starts, folded_place), len(self._words)) - 1
        word, form = self._words[number]
        start, place = self._starts[number], folded_place - self._folded_starts[number]
        if len(word) == len(form):
            return start + place, start + place
        lengths = range(len(word) + 1)
        first = bisect_right(lengths, place, key=lambda length: len(folded(word[:length]))) - 1
        last = bisect_left(lengths, place, key=lambda length: len(folded(word[:length])))
        return start + first, start + max(first, last)
