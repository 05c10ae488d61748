"""What a codec is made of: reading and writing session files of other programs.

A codec is one file in this package. It offers a `Format`, which is a record of functions: recognize a file by its
beginning, read it, write one. Readers and writers are fed piece by piece, because a transcript may be larger than the
memory; they do no I/O. Readers give entries with their own ids and parents where the file has them, and report what
they repaired and what they set aside. The store gives the entries their sequence numbers.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import groupby
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from miniclaw_sessions.clock import derived_id
from miniclaw_sessions.core.protocol.encoding import encode_entry
from miniclaw_sessions.core.protocol.entries import Entry, EntryBase
from miniclaw_sessions.core.protocol.json_values import instant
from miniclaw_sessions.core.protocol.messages import Message, OtherPart, Part, Role, TextPart, ToolCall
from miniclaw_sessions.errors import InvalidMessage

E = TypeVar("E", bound=EntryBase)
T = TypeVar("T")
W_contra = TypeVar("W_contra", contravariant=True)

MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
"""The largest file that is one JSON document; one of lines may have any size."""

IS_PART = "is_part"
"""A field of a header: the file is a part of a session, and its entries may name others that are in it already."""

_NO_TIME = datetime.fromtimestamp(0, UTC)
_MOST_MET = 131_072  # how many different entries a chain remembers, so that equal ones get different ids

MAX_ELEMENTS = 1_000_000
"""Objects, lists and commas of one document or line: in memory the smallest of them take up to 240 MB."""


class Outcome(StrEnum):
    """What was done with a piece of a file that could not be taken as it was."""

    REPAIRED = "repaired"
    SET_ASIDE = "set aside"


class Finding(msgspec.Struct, frozen=True):
    """Something that a reader repaired, or set aside; `text` says what and why, without the text of any message.

    `line` counts from 1; in a file that is one document, it is the place of the message in it. `raw` is the piece
    itself where it was set aside, so that nothing is lost.
    """

    line: int
    outcome: Outcome
    text: str
    raw: bytes = b""


class SessionFacts(msgspec.Struct, kw_only=True):
    """What a file says about its session as a whole; readers fill it in, writers use it.

    Attributes:
        format: the name of the format that it came from.
        source_id: the session's id in the file.
        title: its display name, where the format keeps it apart from the entries.
        created_at, updated_at: when it began, and when it last changed.
        parent_session: the session that it was forked from, as the file names it.
        header: the fields of the file's header that have no place here, verbatim; they are written back.
        metadata: free metadata of the session (canonical sessions only).
        source: where the session came from before, if that was another format: its name, id and header, ...
        session_id, channel, chat_id: the key, where known.
        leaf_id: where the conversation goes on, where known.
        currency: what costs are in, for people.
    """

    format: str = ""
    source_id: str = ""
    title: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    parent_session: str | None = None
    header: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    source: dict[str, Any] = {}
    session_id: str = ""
    channel: str = ""
    chat_id: str = ""
    leaf_id: str | None = None
    currency: str = "USD"


class Sample(msgspec.Struct, frozen=True):
    """The beginning of a file, parsed: what a format is recognized by.

    Attributes:
        lines: the JSON of its first lines, at most 50; a line that is not JSON is left out.
        document: the JSON of the whole file, where the file is one document; else None.
        text: its beginning, where no line of it is JSON.
    """

    lines: Sequence[Any] = ()
    document: Any = None
    text: str = ""

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The lines that are JSON objects."""
        return [line for line in self.lines if isinstance(line, dict)]


class Reader(Protocol):
    """Reads one file. Fed with its lines (without their ends), or with the one document, parsed.

    `feed` and `finish` give the entries in the order of the file; `facts` and `findings` are complete after `finish`.
    They never fail for one bad piece: it becomes a finding. They raise `ImportRefused` for a file that is not what it
    seemed to be.
    """

    facts: SessionFacts
    findings: list[Finding]

    def feed(self, piece: Any) -> Iterable[Entry]:
        """The next line as bytes, or the whole document as parsed JSON."""
        ...

    def finish(self) -> Iterable[Entry]:
        """Finish: there is nothing more."""
        ...


@runtime_checkable
class Holding(Protocol):
    """A reader that holds entries back, because the file may yet say more of them."""

    @property
    def is_settled(self) -> bool:
        """Whether what it holds is likely to stay as it is, when nothing more has come for a moment."""
        return True

    def pending(self) -> Iterable[Entry]:
        """What `finish` would give now, without what later lines could still take back; the reader does not change.

        Each entry has the id that it has when it is complete, and they come in that order.
        """
        ...


class Writer(Protocol[W_contra]):
    """Writes one file, piece by piece: of entries, or of messages that are legal for a model."""

    def begin(self) -> bytes:
        """What stands before the first piece."""
        ...

    def feed(self, piece: W_contra, /) -> bytes:
        """One piece; empty where the format has no place for it. The bytes may be those of an earlier one."""
        ...

    def finish(self) -> bytes:
        """What stands after the last piece."""
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """A writer that has to know beforehand what will come."""

    def foresee(self, entry: Entry) -> None:
        """One entry; all of them are shown, oldest first, before anything is written. They must not be held."""
        ...


class PageWriter(Foreseeing, Protocol):
    """Writes one file in another order than that of logging: it reads the entries again, where it needs them."""

    def pieces(self, read: Callable[[int, int], Sequence[Entry]]) -> Iterator[bytes]:
        """The file.

        Args:
            read: gives the entries behind a sequence number, at most as many as its second argument says; it may
                block.
        """
        ...


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One form of session files.

    Attributes:
        name: as the command line has it, such as `pi`.
        about: which program's files these are, and what a round trip loses; one sentence.
        suffix: how such files are called.
        recognize: whether a sample is the beginning of such a file. May raise `ImportRefused` to say that the file is
            something else that only looks like one.
        reader: makes a reader; None: only written.
        by_line: whether the reader is fed lines; else the parsed document.
        writer: makes a writer that is fed all entries, oldest first; None: only read, or written by `message_writer`.
        branch_only: the writer is fed the entries of the current branch, and not the whole tree.
        page: makes a writer that is shown all entries, and reads them again.
        message_writer: makes a writer that is fed the current branch as a model may be sent it; for formats without a
            tree.
    """

    name: str
    about: str
    suffix: str
    recognize: Callable[[Sample], bool] = lambda sample: False  # noqa: ARG005 - nothing to look at
    reader: Callable[[Chain], Reader] | None = None
    by_line: bool = True
    writer: Callable[[SessionFacts], Writer[Entry]] | None = None
    branch_only: bool = False
    message_writer: Callable[[SessionFacts], Writer[Message]] | None = None
    page: Callable[[SessionFacts], PageWriter] | None = None

    @property
    def is_read(self) -> bool:
        """Whether a file of it can be imported."""
        return self.reader is not None

    @property
    def is_written(self) -> bool:
        """Whether a session can be written in it."""
        return any(make is not None for make in (self.writer, self.message_writer, self.page))


class Chain:
    """Makes entries in a row: each a child of the one before, for files that have no tree of their own."""

    def __init__(self, *, new_id: Callable[[], str], now: datetime) -> None:
        """Start a chain.

        Args:
            new_id: makes ids; for the same file the same ones, so that an import that is repeated adds nothing new.
            now: the time of what has none.
        """
        self.new_id = new_id
        self.now = now
        self.last_id: str | None = None
        self._last_time = now
        self._met: Counter[bytes] = Counter()
        self._forgotten = 0

    def __copy__(self) -> Chain:
        """A chain that goes on like this one, apart from it."""
        twin = Chain(new_id=self.new_id, now=self.now)
        twin.last_id, twin._last_time, twin._forgotten = self.last_id, self._last_time, self._forgotten
        twin._met = self._met.copy()
        return twin

    def add(self, kind: type[E], *, timestamp: datetime | None = None, entry_id: str | None = None, **fields: Any) -> E:
        """The next entry, by default with an id of `id_of`; without a time, it has that of the one before."""
        self._last_time = timestamp or self._last_time
        entry_id = entry_id or self.id_of(kind, timestamp=timestamp, **fields)
        entry = kind(id=entry_id, parent_id=self.last_id, timestamp=self._last_time, **fields)
        self.last_id = entry.id
        return entry

    def id_of(self, kind: type[EntryBase], *, timestamp: datetime | None = None, **fields: Any) -> str:
        """A new id that is made of what an entry says.

        A file that its program rewrites at each message, or shortens, gets the same ids when it is read again, as far
        as its content is the same.
        """
        try:
            said = encode_entry(kind(id="", parent_id=None, timestamp=timestamp or _NO_TIME, **fields))  # type: ignore[arg-type]
        except InvalidMessage:  # storing it says so
            return self.new_id()
        digest = hashlib.blake2b(said, digest_size=16).digest()
        if len(self._met) >= _MOST_MET:
            self._met.clear()
            self._forgotten += 1
        self._met[digest] += 1
        return derived_id(f"{digest.hex()} {self._met[digest]} {self._forgotten}")


def any_line(is_ours: Callable[[dict[str, Any]], bool]) -> Callable[[Sample], bool]:
    """A `Format.recognize` that looks at each line that is an object, and says yes if one is of this format."""
    return lambda sample: any(map(is_ours, sample.objects))


# --- fields ----------------------------------------------------------------------------------------------------------


def keeping(fields: Mapping[Any, Any], under: str) -> dict[str, Any] | None:
    """Fields that have no canonical place, as an `extra` that keeps them under the format's name; None if none."""
    return {under: dict(fields)} if fields else None


def kept_apart(fields: Mapping[Any, Any], known: Iterable[str], under: str) -> dict[str, Any] | None:
    """`keeping` of the fields but those that are known."""
    return keeping(without(fields, *known), under)


def kept_fields(extra: Mapping[str, Any] | None, under: str) -> Mapping[str, Any]:
    """What `keeping` kept; empty if that is nothing, or if another program put something else there."""
    kept = (extra or {}).get(under)
    return kept if isinstance(kept, dict) else {}


def has_kept(extra: Mapping[str, Any] | None, under: str) -> bool:
    """Whether `keeping` kept something there, if only that it was there: the mark of the format."""
    return isinstance((extra or {}).get(under), dict)


def kept_but(extra: Mapping[str, Any] | None, under: str, *known: str) -> dict[str, Any]:
    """What `keeping` kept, without the fields of these names, which the codec writes itself, or not at all."""
    return without(kept_fields(extra, under), *known)


def kept_whole(piece: Any, under: str, name: str) -> OtherPart:
    """A part that has no form here, as it came; within one of ours where it could be read as a part of ours."""
    kind = piece.get("type") if isinstance(piece, dict) else None
    is_another = isinstance(kind, str) and kind not in ("text", "image", "thinking", under)
    return OtherPart(piece if is_another else {"type": under, name: piece})


def content_of(content: Any, part_of: Callable[[Any], Part]) -> str | tuple[Part, ...]:
    """Content from JSON as text or parts: nothing is the empty text, and what is no list is the only part."""
    if content is None or isinstance(content, str):
        return content or ""
    return tuple(map(part_of, content if isinstance(content, Sequence) else [content]))


def plain(parts: tuple[Part, ...]) -> str | tuple[Part, ...]:
    """Parts as text where they are nothing else: none, or a single text with nothing kept."""
    match parts:
        case ():
            return ""
        case (TextPart(text=text, extra=None),):
            return text
        case _:
            return parts


def role_named(text: str, others: Mapping[str, Role] = {}) -> Role:
    """The role of this name, one of the format's own or of ours; `Role.OTHER` for an unknown one."""
    try:
        return others.get(text) or Role(text)
    except ValueError:
        return Role.OTHER


def role_and_extra(text: str, others: Mapping[str, Role] = {}) -> tuple[Role, dict[str, Any]]:
    """`role_named`, and the `extra` that keeps the name of an unknown role."""
    role = role_named(text, others)
    return role, {"role": text} if role is Role.OTHER and text != Role.OTHER else {}


def marked(extra: dict[str, Any] | None, content: str | tuple[Part, ...], under: str) -> dict[str, Any] | None:
    """What is kept of a message; at least the format's mark if it has parts that only the format knows."""
    is_own = extra is None and any(isinstance(part, OtherPart) for part in content)
    return {under: {}} if is_own else extra


def without(fields: Mapping[Any, Any], *names: str) -> dict[str, Any]:
    """The fields but those of these names."""
    return {name: value for name, value in fields.items() if name not in names}


def stated(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def taken(fields: dict[Any, Any], name: str, kind: type[T]) -> T | None:
    """A field of this type, taken out; what has another type stays where it is."""
    return fields.pop(name) if isinstance(fields.get(name), kind) else None


def moment_of(value: Any) -> datetime | None:
    """A time from JSON, in UTC; None for what is no time."""
    moment = instant(value)
    return moment if isinstance(moment, datetime) else None


def text_of(fields: Mapping[str, Any], name: str) -> str | None:
    """A field that is a text and not empty; else None."""
    value = fields.get(name)
    return value if isinstance(value, str) and value else None


def object_in(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A field that is an object; else an empty one."""
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def objects_in(fields: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects in a field that is a list; none of what is no list."""
    value = fields.get(name)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def count_of(fields: Mapping[str, Any], name: str) -> int | None:
    """A field that is a whole number; else None."""
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def amount_of(fields: Mapping[str, Any], name: str) -> int:
    """A field that is a whole number and not negative; else 0."""
    return max(count_of(fields, name) or 0, 0)


# --- the order of a reply ---------------------------------------------------------------------------------------------

PLACE = "content_before"
"""The key of a call's `extra` that says how many parts of the content stand before it; absent: all of them.

The canonical message keeps content and calls apart, because nearly every reply has its calls behind its content. With
it every codec can write a reply that has text or thinking between its calls in the order in which it was given.
"""


def in_order(message: Message) -> list[Part | ToolCall]:
    """The parts and the calls of a message, in the order in which they were given; text is one part if there is any."""
    content: tuple[Part, ...]
    if isinstance(message.content, str):
        content = (TextPart(message.content),) if message.content else ()
    else:
        content = message.content
    if not message.tool_calls:
        return list(content)
    pieces: list[Part | ToolCall] = []
    written = 0
    for call in message.tool_calls:
        place = (call.extra or {}).get(PLACE)
        if not isinstance(place, int) or not 0 <= place <= len(content):
            place = len(content)
        pieces += content[written:place]
        written = max(written, place)
        pieces.append(call)
    return pieces + list(content[written:])


def taken_apart(pieces: Iterable[Part | ToolCall]) -> tuple[tuple[Part, ...], tuple[ToolCall, ...] | None]:
    """The content and the calls of a reply that was given in this order: the reverse of `in_order`."""
    parts: list[Part] = []
    calls: list[tuple[ToolCall, int]] = []
    for piece in pieces:
        if isinstance(piece, ToolCall):
            calls.append((piece, len(parts)))
        else:
            parts.append(piece)
    placed = (
        call if place == len(parts) else msgspec.structs.replace(call, extra={**(call.extra or {}), PLACE: place})
        for call, place in calls
    )
    return tuple(parts), tuple(placed) or None


def in_pieces(blocks: Iterable[Any], is_result: Callable[[Any], bool]) -> list[list[Any]]:
    """Blocks in groups, for messages that answer several calls: each result by itself, what stands between together."""
    pieces: list[list[Any]] = []
    for answers, run in groupby(blocks, is_result):
        group = list(run)
        pieces += [[block] for block in group] if answers else [group]
    return pieces
